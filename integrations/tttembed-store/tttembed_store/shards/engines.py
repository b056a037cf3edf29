"""Where shards are held and asked: in this process, behind the map of any executor, or in actors of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import ceil
from typing import Any, TypeAlias

from tttembed_rag.errors import InputError, TTTEmbedError
from tttembed_store.extras import require
from tttembed_store.shards.shards import Shard

EXTRA = "ray"
# How often an actor that died starts again, and a round is asked again, before the fit is given up: an actor that dies
# for want of memory would die for ever. Nodes that a cloud takes back do not count as restarts.
_RESTARTS = 20

# A function like `map`: results in the order of the items. An `Executor.map` is one.
MapLike: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
# What a method of each shard answers to what it is given, in the order of the shards: `each("evaluate", ...)`.
Each: TypeAlias = Callable[..., list[Any]]


def check_engine(engine: str | MapLike) -> None:
    """Refuse what is neither the name of an engine nor a function."""
    named = isinstance(engine, str) and (engine in ("local", "ray") or engine.startswith("ray://"))
    if not named and not callable(engine):
        got = repr(engine) if isinstance(engine, str) else f"{type(engine).__name__} (give executor.map)"
        raise InputError(f"engine: expected local, ray, ray://HOST:PORT or a function like map, got {got}")


@contextmanager
def opened_engine(engine: str | MapLike, shards: Sequence[Shard]) -> Iterator[Each]:
    """The way to ask *shards*, which *engine* holds for as long as the block lasts."""
    if isinstance(engine, str) and engine != "local":
        with _ray(engine) as ray, _pool(ray, len(shards)) as pooled:
            yield lambda method, *arguments: pooled(partial(_held_call, method, arguments), shards)
    else:
        # Threads share the shards, other processes get their paths.
        spread = map if isinstance(engine, str) else engine
        yield lambda method, *arguments: list(spread(partial(_call, method, arguments), shards))


def _call(method: str, arguments: tuple[Any, ...], shard: Shard) -> Any:
    return getattr(shard, method)(*arguments)


# The shards that this process holds, where it is an actor of a pool: one that comes by its path a second time is there.
_held: dict[str, Shard] = {}


def _held_call(method: str, arguments: tuple[Any, ...], shard: Shard) -> Any:
    return _call(method, arguments, _held.setdefault(repr(shard.__reduce__()[1]), shard))


@contextmanager
def _ray(engine: str) -> Iterator[Any]:
    """Ray, connected as it is already, or to the cluster that is found, or to one that lasts for the block."""
    ray = require("ray", EXTRA)
    if began := not ray.is_initialized():
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(None if engine == "ray" else engine)
        except (ConnectionError, ValueError, RuntimeError) as exc:
            raise TTTEmbedError(f"engine: expected a Ray cluster at {engine}, got {exc}") from exc
    try:
        yield ray
    finally:
        if began:
            ray.shutdown()


@contextmanager
def _pool(ray: Any, shards: int) -> Iterator[Callable[[Callable[[Shard], Any], Sequence[Shard]], list[Any]]]:
    """The map of actors, one for each CPU: each is given the same shards again; Ray replaces those that die."""
    each = ceil(shards / max(1, int(ray.cluster_resources().get("CPU", 0))))
    lasting = {"max_restarts": _RESTARTS, "scheduling_strategy": "SPREAD"}
    with require("ray.util.multiprocessing", EXTRA).Pool(ceil(shards / each), ray_remote_args=lasting) as pool:

        def spread(ask: Callable[[Shard], Any], some: Sequence[Shard]) -> list[Any]:
            deaths = 0
            while True:
                try:
                    return list(pool.map(ask, some, chunksize=each))
                except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as exc:
                    deaths += 1  # what it was asked is asked again: a shard that is read again answers the same
                    if deaths > _RESTARTS:
                        raise TTTEmbedError(
                            f"engine: actors died {deaths} times (write more, smaller shards if memory is short): {exc}"
                        ) from exc

        yield spread
