"""Where shards are held and asked: in this process, behind the map of any executor, or in actors of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from tttembed_rag.errors import InputError, TTTEmbedError, require
from tttembed_rag.fitting.spreading import MapLike
from tttembed_rag.scale.shards import Shard

EXTRA = "ray"
# How often an actor that died starts again and reads its shards again, before the fit is given up: one that dies for
# want of memory would die for ever. Nodes that a cloud takes back are not counted by Ray.
_RESTARTS = 20

# What a method of each shard answers to what it is given, in the order of the shards: `each("evaluate", ...)`.
Each: TypeAlias = Callable[..., list[Any]]


def check_engine(engine: str | MapLike) -> None:
    """Refuse what is neither the name of an engine nor a function.

    Raises:
        InputError: The line says what there is.
    """
    named = isinstance(engine, str) and (engine in ("local", "ray") or engine.startswith("ray://"))
    if not named and not callable(engine):
        got = repr(engine) if isinstance(engine, str) else f"{type(engine).__name__} (give executor.map)"
        raise InputError(f"engine: expected local, ray, ray://HOST:PORT or a function like map, got {got}")


@contextmanager
def opened_engine(engine: str | MapLike, shards: Sequence[Shard]) -> Iterator[Each]:
    """The way to ask *shards*, which *engine* holds for as long as the block lasts."""
    if isinstance(engine, str) and engine != "local":
        with _ray(engine) as ray, _actors(ray, shards) as each:
            yield each
    else:
        # Threads share the shards, other processes get their paths.
        spread = map if isinstance(engine, str) else engine
        yield lambda method, *given: list(spread(partial(_asked, method, given), shards))


def _asked(method: str, given: tuple[Any, ...], shard: Shard) -> Any:
    return getattr(shard, method)(*given)


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


class _Holder:
    """Shards in an actor; it knows their paths when it starts, and so when it starts again."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    def each(self, method: str, given: tuple[Any, ...]) -> list[Any]:
        """The answers of its shards, in order."""
        return [_asked(method, given, shard) for shard in self._shards]


@contextmanager
def _actors(ray: Any, shards: Sequence[Shard]) -> Iterator[Each]:
    """Actors that hold the shards, one for each CPU; Ray replaces those that die and asks them again.

    They reserve no CPU, only begin on a node that has one for each: those of a lost node crowd on what is left.
    """
    holder = ray.remote(max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(_Holder)
    preferred = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    nodes = [(node["NodeID"], int(node["Resources"].get("CPU", 0))) for node in ray.nodes() if node["Alive"]]
    turns = range(max((cpus for _, cpus in nodes), default=0))
    places = [node for turn in turns for node, cpus in nodes if turn < cpus][: len(shards)]
    if not places:
        raise TTTEmbedError("engine: expected a Ray cluster with a CPU, found none")
    actors = [
        holder.options(scheduling_strategy=preferred(node, soft=True)).remote(shards[first :: len(places)])
        for first, node in enumerate(places)
    ]

    def each(method: str, *given: Any) -> list[Any]:
        once = ray.put(given)
        try:
            found = ray.get([actor.each.remote(method, once) for actor in actors])
        except ray.exceptions.RayTaskError as exc:
            raise (exc.cause if isinstance(exc.cause, TTTEmbedError) else exc) from exc
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as exc:
            raise TTTEmbedError(
                f"engine: an actor died {_RESTARTS + 1} times (write more, smaller shards if memory is short): {exc}"
            ) from exc
        return [found[row % len(found)][row // len(found)] for row in range(len(shards))]

    try:
        yield each
    finally:
        for actor in actors:
            ray.kill(actor)


@contextmanager
def ray_tasks(engine: str) -> Iterator[Executor]:
    """An executor whose calls are tasks of a Ray cluster, each on a CPU of its own: ``ray``, or ``ray://HOST:PORT``."""
    with _ray(engine) as ray:
        yield _Tasks(ray)


class _Tasks(Executor):
    def __init__(self, ray: Any) -> None:
        self._task = ray.remote(_called)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The result of a call, when it is there."""
        return self._task.remote(function, args, kwargs).future()  # type: ignore[no-any-return]


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)
