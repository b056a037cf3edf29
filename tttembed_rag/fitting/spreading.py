"""Private and local offsets are learned in batches that know nothing of each other: on threads, processes, machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias, TypeVar

from tttembed_rag.errors import InputError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


# A function like `map`: results in the order of the items. An `Executor.map` is one.
MapLike: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
_MAP: ContextVar[MapLike] = ContextVar("tttembed_map", default=map)


@contextmanager
def spread_over(map_like: MapLike) -> Iterator[None]:
    """A block in which `fit` learns private offsets, also those behind local ones, batch by batch through *map_like*.

    The batches are the same without it, and so are the offsets, bit by bit where the machines are alike. A batch holds
    about 130 MB of working memory and a few thousand queries; fewer queries than that are one batch. Gate and shared
    offsets stay in this process.

    Args:
        map_like: Such as the `map` of any `concurrent.futures.Executor`: threads, processes, loky, Dask, MPI. What goes
            to other processes is pickled.
    """
    if not callable(map_like):
        raise InputError(f"map: expected a function like map, got {type(map_like).__name__} (give executor.map)")
    token = _MAP.set(map_like)
    try:
        yield
    finally:
        _MAP.reset(token)


def spread(function: Callable[[ItemT], ResultT], items: Iterable[ItemT]) -> list[ResultT]:
    """The results of *function* for *items*, in their order, by the map of `spread_over`."""
    return list(_MAP.get()(function, items))
