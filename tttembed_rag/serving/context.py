"""`with scope(...)`: the task, the tenant, the query id and the source of what is served inside the block.

A context follows asyncio tasks and `asyncio.to_thread`. It follows neither a plain thread pool nor a background task
that was started earlier (the stores of LangGraph search in such a task), nor a generator that a framework goes on with
elsewhere: there, fix the scope of the wrapper. A block that a generator opens holds while the generator runs or awaits
something, not for what others do between two of its steps. A context manager of `contextlib` is a generator that is
meant to hold a block open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ContextDecorator
from contextvars import ContextVar
from dis import opmap
from enum import Enum
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from threading import get_ident
from types import CodeType, FrameType
from typing import Final, Literal

from tttembed_rag.errors import InputError

_log = logging.getLogger(__name__)


class Required(Enum):
    """The type of `REQUIRED`."""

    REQUIRED = "required"


# Instead of a tenant: each query must come with one, by the caller's `scope`; one without is left out.
REQUIRED: Final = Required.REQUIRED
# Calls between a generator and the block that it opens, at most: each costs a request a fraction of a microsecond.
_FAR = 6
# Up to Python 3.13: the instruction with which a generator goes on, and what its argument has where that is behind an
# `await`, as the documentation of `dis` says.
_RESUME, _AFTER_AWAIT = opmap.get("RESUME", -1), 3
# Generators that the log has told of.
_left_open: set[CodeType] = set()
AnyTenant = str | Literal[Required.REQUIRED] | None


class scope(ContextDecorator):  # noqa: N801 (it reads as the block that it opens)
    """Queries embedded inside the block belong to *task*; None says nothing about them.

    Args:
        task: Their task key.

        tenant: Whose they are; None leaves the tenant of the block around.

        query_id: The id of your own that the one query of the block is recorded and found under; empty for that of
            its text, None leaves that of the block around.

        source: Who gives rewards in the block, such as a user who rates documents or an agent that calls tools: the
            source of what a log records and of the outcomes that a learned tool search keeps. Empty is the judge
            itself, None leaves that of the block around. What a reranker scores in the block is the reranker's all the
            same.

    Raises:
        InputError: *task*, *tenant*, *query_id* or *source* is neither a string nor None.

    Attributes:
        outer: The block around; None outside any.

        ended: Whether the block has ended.

        place: The thread and the asyncio task that it was opened in.

        generator: The generator that opened it, but for those that `contextlib` makes blocks of; None for none.
    """

    __slots__ = ("ended", "generator", "outer", "place", "query_id", "source", "task", "tenant")

    def __init__(
        self, task: str | None, *, tenant: str | None = None, query_id: str | None = None, source: str | None = None
    ) -> None:
        if not isinstance(task, str | None):
            raise InputError(f"task: expected a task key or None, got {type(task).__name__}")
        check_tenant(tenant)
        if not isinstance(query_id, str | None):
            raise InputError(f"query_id: expected an id or None, got {type(query_id).__name__}")
        if not isinstance(source, str | None):
            raise InputError(f"source: expected a name or None, got {type(source).__name__}")
        self.task, self.tenant, self.query_id, self.source = task, tenant, query_id, source
        self.outer: scope | None = None
        self.ended = False
        self.place: tuple[int, int] | None = None
        self.generator: FrameType | None = None

    def _recreate_cm(self) -> scope:
        """A block of its own for each call of a decorated function."""
        return scope(self.task, tenant=self.tenant, query_id=self.query_id, source=self.source)

    def __enter__(self) -> None:
        if self.place is not None:
            raise InputError("scope: expected one block, got a second one with the same scope")
        self.outer, self.place = _innermost.get(), _here()
        self.generator = _generator_around(sys._getframe(1))  # noqa: SLF001 - CPython's way to the calling frame
        _innermost.set(self)

    def __exit__(self, *_: object) -> None:
        # No token is reset: it would fail in another context, where a generator may end.
        self.ended, self.generator = True, None
        _innermost.set(next((one for one in _chain() if not (one.ended and one.place == _here())), None))

    @property
    def is_left_open(self) -> bool:
        """Whether its generator has handed on to others: it is not for what they do, or start elsewhere."""
        generator = self.generator
        if generator is None or generator.f_back is not None:  # one that does not run has no caller
            return False
        if self.place != _here() and _awaits(generator):
            return False
        if generator.f_code not in _left_open:
            _left_open.add(generator.f_code)
            _log.warning(
                "%s: %s() waits at a yield within its scope, which does not hold for what runs meanwhile; let "
                "contextlib.contextmanager hold a scope open",
                generator.f_code.co_filename,
                generator.f_code.co_qualname,
            )
        return True

    @staticmethod
    def around() -> Iterator[scope]:
        """The blocks around the caller that hold for it, the innermost first.

        A block that has ended still holds for tasks and threads that were started within it, and goes on in them.
        """
        return (one for one in _chain() if not one.is_left_open and not (one.ended and one.place == _here()))


def _chain() -> Iterator[scope]:
    one = _innermost.get()
    while one is not None:
        yield one
        one = one.outer


_innermost: ContextVar[scope | None] = ContextVar("tttembed_rag.scope", default=None)


def _here() -> tuple[int, int]:
    """The thread and the asyncio task that runs; 0 for no task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return get_ident(), 0 if task is None else id(task)


def _generator_around(frame: FrameType | None) -> FrameType | None:
    """The generator that runs in *frame* or not far around it, but for those that `contextlib` makes blocks of."""
    for _ in range(_FAR):
        if frame is None:
            break
        caller = frame.f_back
        is_generator = frame.f_code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR)
        if is_generator and not (caller is not None and caller.f_code.co_filename == contextlib.__file__):
            return frame
        frame = caller
    return None


def _awaits(frame: FrameType) -> bool:
    """Whether the generator of *frame*, which does not run, awaits something, such as tasks that it has started."""
    if not frame.f_code.co_flags & CO_ASYNC_GENERATOR:
        return False
    if sys.version_info >= (3, 14):
        return bool(getattr(frame.f_generator, "ag_running", False))
    code, at = frame.f_code.co_code, frame.f_lasti
    resumed = next((code[n : n + 2] for n in (at, at + 2) if code[n] == _RESUME), b"")
    return len(resumed) == 2 and resumed[1] & 3 == _AFTER_AWAIT


def current_scope() -> str | None:
    """The task of the innermost `with scope(...)` around the caller; None outside any."""
    return next((one.task for one in scope.around()), None)


def said_tenant() -> str | None:
    """The tenant of the innermost `with scope(..., tenant=...)` around the caller; None outside any."""
    return next((one.tenant for one in scope.around() if one.tenant is not None), None)


def tenant_is_in_doubt() -> bool:
    """Whether the caller says no tenant, but runs while a generator waits within a block that does."""
    return said_tenant() is None and any(one.tenant is not None and one.is_left_open for one in _chain())


def current_tenant() -> str:
    """The tenant of the innermost `with scope(..., tenant=...)` around the caller; empty outside any."""
    return said_tenant() or ""


def current_query_id() -> str:
    """The id of the innermost `with scope(..., query_id=...)` around the caller; empty outside any."""
    return next((one.query_id for one in scope.around() if one.query_id is not None), "")


def current_source() -> str:
    """The source of the innermost `with scope(..., source=...)` around the caller; empty outside any."""
    return next((one.source for one in scope.around() if one.source is not None), "")


def switched_off() -> bool:
    """Whether the environment variable ``TTTEMBED_OFF`` turns offsets off; empty and 0 do not."""
    return os.environ.get("TTTEMBED_OFF", "0") not in ("", "0")


def check_tenant(tenant: str | None) -> None:
    """Refuse a tenant that is neither a name nor None."""
    if not isinstance(tenant, str | None):
        raise InputError(f"tenant: expected a name or None, got {type(tenant).__name__}")
