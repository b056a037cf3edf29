"""Where shards are held and asked: in this process, behind the map of any executor, or in actors of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from tttembed_rag.errors import InputError, TTTEmbedError, require
from tttembed_rag.fitting.spreading import MapLike
from tttembed_rag.scale.shards import Shard

EXTRA = "ray"
# How often an actor that died starts again and reads its shards again, before the fit is given up: one that dies for
# want of memory would die for ever. Nodes that a cloud takes back are not counted by Ray.
_RESTARTS = 20


class Engine(Protocol):
    """Shards under one roof."""

    def each(self, method: str, *given: Any) -> list[Any]:
        """What *method* of each shard answers to *given*, in the order of the shards."""
        ...


def check_engine(engine: str | MapLike) -> None:
    """Refuse what is no engine.

    Raises:
        InputError: It is neither the name of one nor a function.
    """
    if not isinstance(engine, str) and not callable(engine):
        got = type(engine).__name__
        raise InputError(f"engine: expected a name or a function like map, got {got} (give executor.map)")
    if isinstance(engine, str) and engine not in ("local", "ray") and not engine.startswith("ray://"):
        raise InputError(f"engine: expected local, ray, ray://HOST:PORT or a function like map, got {engine!r}")


@contextmanager
def opened_engine(engine: str | MapLike, shards: Sequence[Shard]) -> Iterator[Engine]:
    """The engine named, or one behind a function like `map`, holding *shards* for as long as the block lasts."""
    check_engine(engine)
    if not isinstance(engine, str):
        yield _Mapped(shards, engine)
    elif engine == "local":
        yield _Mapped(shards, map)
    else:
        with _ray(engine) as ray:
            actors = _RayActors(ray, shards)
            try:
                yield actors
            finally:
                actors.close()


class _Mapped:
    """Shards asked through a function like `map`: threads share them, other processes get their paths."""

    def __init__(self, shards: Sequence[Shard], map_like: MapLike) -> None:
        self._shards, self._map = shards, map_like

    def each(self, method: str, *given: Any) -> list[Any]:
        """The answers, in order."""
        return list(self._map(partial(_asked, method, given), self._shards))


def _asked(method: str, given: tuple[Any, ...], shard: Shard) -> Any:
    return getattr(shard, method)(*given)


class _Holder:
    """Shards in an actor; it knows their paths when it starts, and so when it starts again."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    def each(self, method: str, given: tuple[Any, ...]) -> list[Any]:
        """The answers of its shards, in order."""
        return [_asked(method, given, shard) for shard in self._shards]


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


class _RayActors:
    """Actors that hold the shards, one for each CPU; Ray replaces those that die and asks them again.

    They reserve no CPU, only begin on a node that has one for each: those of a lost node crowd on what is left.
    """

    def __init__(self, ray: Any, shards: Sequence[Shard]) -> None:
        self._ray, self._count = ray, len(shards)
        holder = ray.remote(max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(_Holder)
        preferred = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        nodes = [(node["NodeID"], int(node["Resources"].get("CPU", 0))) for node in ray.nodes() if node["Alive"]]
        cpus = max((count for _, count in nodes), default=0)
        places = [node for turn in range(cpus) for node, count in nodes if turn < count][: len(shards)]
        if not places:
            raise TTTEmbedError("engine: expected a Ray cluster with a CPU, found none")
        self._actors = [
            holder.options(scheduling_strategy=preferred(node, soft=True)).remote(shards[first :: len(places)])
            for first, node in enumerate(places)
        ]

    def each(self, method: str, *given: Any) -> list[Any]:
        """The answers, in the order of the shards, whichever came first."""
        ray = self._ray
        once = ray.put(given)
        asked = [actor.each.remote(method, once) for actor in self._actors]
        answers: list[Any] = [None] * self._count
        try:
            for first, found in enumerate(ray.get(asked)):
                answers[first :: len(asked)] = found
        except ray.exceptions.RayTaskError as exc:
            if isinstance(exc.cause, TTTEmbedError):
                raise exc.cause from exc
            raise
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as exc:
            raise TTTEmbedError(
                f"engine: an actor died {_RESTARTS + 1} times (write more, smaller shards if memory is short): {exc}"
            ) from exc
        return answers

    def close(self) -> None:
        """End the actors."""
        for actor in self._actors:
            self._ray.kill(actor)
