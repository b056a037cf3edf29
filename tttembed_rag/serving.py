"""Serving in a process: which task a query belongs to, which offsets are live, and the vector that goes out.

The task of a query is, in this order: what the wrapper was fixed to, what the caller said by
`with scope(...)`, what a resolver answers. Nothing remembers the last one: where none of the three
names a task, the query is one without a task.

A context follows asyncio tasks and `asyncio.to_thread`, not a plain thread pool and no background
task that was started earlier (LangGraph's stores search in such): fix the scope of a wrapper there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.offsets import Offsets

__all__ = [
    "LiveOffsets",
    "Router",
    "ScopeSource",
    "Steering",
    "checked_scope",
    "current_scope",
    "resolve_scope",
    "scope",
]


@runtime_checkable
class Router(Protocol):
    """Names tasks by base query vectors, such as `tttembed_rag.routing.CentroidRouter`."""

    def route(self, vector: Any, /) -> str | None:
        """The task of a base query vector (d,), None where it is unsure."""
        ...


# A task key, a function from query text to task key or None, a router, or None.
ScopeSource: TypeAlias = str | Callable[[str], str | None] | Router | None

_log = logging.getLogger(__name__)
_task: ContextVar[str | None] = ContextVar("tttembed_rag.scope", default=None)


@contextmanager
def scope(task: str | None) -> Iterator[None]:
    """Queries embedded inside the block belong to *task*; None says nothing about them.

    Raises:
        InputError: *task* is neither a string nor None.
    """
    if not isinstance(task, str | None):
        raise InputError(f"task: expected a task key or None, got {type(task).__name__}")
    token = _task.set(task)
    try:
        yield
    finally:
        _task.reset(token)


def current_scope() -> str | None:
    """The task of the innermost `with scope(...)` around the caller; None outside any."""
    return _task.get()


def checked_scope(source: ScopeSource) -> ScopeSource:
    """*source* as it came, or an InputError that names it ``scope``."""
    if not (source is None or isinstance(source, str | Router) or callable(source)):
        raise InputError(f"scope: expected a task key, a function, a router or None, got {type(source).__name__}")
    return source


def resolve_scope(source: ScopeSource, query: str, vector: Any = None) -> str | None:
    """The task of *query*: a fixed *source*, else the caller's `scope`, else what *source* answers.

    A router is asked about the base *vector*, and where none is at hand names no task. A resolver
    that fails, or answers anything but a text, names no task; the failure is logged.
    """
    if isinstance(source, str):
        return source
    task = _task.get()
    if task is not None or source is None:
        return task
    try:
        if isinstance(source, Router):
            return None if vector is None else source.route(vector)
        answer = source(query)
    except Exception:  # noqa: BLE001 - the caller's code: whatever it raises, the query is answered
        _log.exception("%r named no task", source)
        return None
    return answer if isinstance(answer, str) else None


class LiveOffsets:
    """The offsets that are served, replaced in one step while queries are answered.

    Args:
        offsets: The first ones; `Offsets([], width=d)` before anything was learned.
    """

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = _checked_offsets(offsets)

    @property
    def current(self) -> Offsets:
        """What is served now."""
        return self._offsets

    def publish(self, offsets: Offsets) -> Offsets:
        """Serve *offsets* from the next query on; returns those served until now, for a way back.

        Raises:
            InputError: They are no `Offsets`.
            VectorError: They are of another width.
        """
        _checked_offsets(offsets)
        before = self._offsets
        if offsets.width != before.width:
            raise VectorError(f"offsets: expected width {before.width}, got {offsets.width}")
        self._offsets = offsets
        return before

    def __repr__(self) -> str:
        return repr(self._offsets)


class Steering:
    """Query vectors with the offset of their task; what offsets refuse is served as it came.

    Args:
        offsets: What was learned; `LiveOffsets` where it is replaced while serving.

        scope: A task for every query, a function from query text to task, or a router from base vector
            to task; a caller's `scope` comes before these two. Where no task is named, the default task's or the global
            offset is looked up, as `Offsets.apply` does, and without one the base vector served.

    Raises:
        InputError: *offsets* or *scope* are something else.
    """

    def __init__(self, offsets: Offsets | LiveOffsets, scope: ScopeSource = None) -> None:
        self._live = offsets if isinstance(offsets, LiveOffsets) else LiveOffsets(offsets)
        self._scope = checked_scope(scope)
        self._logged: set[str | None] = set()

    def for_scope(self, scope: ScopeSource) -> Steering:
        """The same live offsets for another scope."""
        other = Steering(self._live, scope)
        other._logged = self._logged
        return other

    def task_of(self, query: str, vector: Any = None) -> str | None:
        """The task of *query*; None where nothing names one. A router needs its base *vector*."""
        return resolve_scope(self._scope, query, vector)

    def apply(self, vector: Any, query: str) -> Any:
        """The vector to search with: *vector* (d,) with its offset, as a list of Python floats.

        A vector that the offsets refuse (NaN, zero, another width) is handed back; the first
        refusal of a task is logged.
        """
        # Some providers hand out numpy arrays; stores expect Python floats.
        base = vector.tolist() if isinstance(vector, np.ndarray) else vector
        task = self.task_of(query, base)
        try:
            return self._live.current.apply(base, task=task)
        except VectorError as error:
            if task not in self._logged:
                self._logged.add(task)
                _log.warning("scope=%r: base vectors are served where the offsets refuse them: %s", task, error)
            return base

    def __repr__(self) -> str:
        return f"{self._live!r}, scope={self._scope!r}"


def _checked_offsets(offsets: Offsets) -> Offsets:
    if not isinstance(offsets, Offsets):
        raise InputError(f"offsets: expected tttembed_rag Offsets, got {type(offsets).__name__}")
    return offsets
