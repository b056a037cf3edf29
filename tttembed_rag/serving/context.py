"""`with context(...)`: the task, the tenant, the query id and the source of what is served inside the block.

A context follows asyncio tasks and `asyncio.to_thread`. It follows neither a plain thread pool nor a background task
that was started earlier (the stores of LangGraph search in such a task): there, fix the task of the wrapper and the
tenant of the log. A block that a generator opens holds only for what that generator calls itself: neither code between
its steps nor tasks and threads that are started meanwhile have anything of it. Managers that `contextlib` makes of
generators are no such generators; their blocks hold as any other.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar, Token
from enum import Enum
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FrameType
from typing import Final, Literal

from tttembed_rag.errors import InputError


class Required(Enum):
    """The type of `REQUIRED`."""

    REQUIRED = "required"


# Instead of a tenant: each query must come with one, by the caller's `context`; one without is left out.
REQUIRED: Final = Required.REQUIRED
AnyTenant = str | Literal[Required.REQUIRED] | None
_CONTEXTLIB = contextmanager.__code__.co_filename


class context(ContextDecorator):  # noqa: N801 (it reads as the block that it opens)
    """A block whose queries belong to *task* and *tenant*; None leaves what the block around says.

    Args:
        task: Their task key.

        tenant: Whose they are.

        query_id: The id of your own that the one query of the block is recorded and found under; empty for that of
            its text.

        source: Who gives rewards in the block, such as a user who rates documents or an agent that calls tools: the
            source of what a log records and of the outcomes that a learned tool search keeps. Empty is the judge
            itself. What a reranker scores in the block is the reranker's all the same.

    Raises:
        InputError: *task*, *tenant*, *query_id* or *source* is neither a string nor None.
    """

    def __init__(
        self,
        *,
        task: str | None = None,
        tenant: str | None = None,
        query_id: str | None = None,
        source: str | None = None,
    ) -> None:
        self.said = {"task": task, "tenant": tenant, "query_id": query_id, "source": source}
        for name, value in self.said.items():
            check_text(name, value)
        self.ended = False
        self.token: Token[tuple[context, ...]] | None = None
        self.generator: FrameType | None = None
        self.place: object = None

    def _recreate_cm(self) -> context:
        """A block of its own for each call of a decorated function."""
        return context(**self.said)

    def __enter__(self) -> None:
        if self.token is not None or self.ended:
            raise InputError("context: expected one block, got a second one with the same context")
        self.generator = _generator_that_opens(sys._getframe(1))  # noqa: SLF001 - CPython's way to the calling frame
        self.place = None if self.generator is None else _here()
        blocks = [one for one in _blocks.get() if not one.ended or one.holds() is None]
        # What waits here may go on inside this block: its own is the inner one then.
        waiting = [one for one in blocks if one.holds() is False]
        self.token = _blocks.set((*(one for one in blocks if one not in waiting), self, *waiting))

    def __exit__(self, *_: object) -> None:
        blocks = tuple(one for one in _blocks.get() if one is not self)
        self.ended, self.generator = self.generator is not None, None
        try:
            _blocks.reset(self.token)  # type: ignore[arg-type]  # of the block that is open
        except ValueError:  # it ends elsewhere than it began, and holds nowhere from now on
            self.ended = True
        _blocks.set(blocks)

    def holds(self) -> bool | None:
        """Whether the running code is inside the block; None where only its generator could say."""
        if self.place is None:
            return not self.ended
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        while frame is not None and frame is not self.generator:
            frame = frame.f_back
        return True if frame is not None else False if self.place == _here() else None


_blocks: ContextVar[tuple[context, ...]] = ContextVar("tttembed_rag.context", default=())


def _here() -> object:
    """The thread and the asyncio task that runs, if one does."""
    try:
        return threading.current_thread(), asyncio.current_task()
    except RuntimeError:
        return threading.current_thread(), None


def _generator_that_opens(frame: FrameType | None) -> FrameType | None:
    """The generator that opens a block from *frame*, through managers that it enters; None for none."""
    while frame is not None:
        code, caller = frame.f_code, frame.f_back
        if code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
            if caller is None or caller.f_code.co_filename != _CONTEXTLIB:
                return frame
        elif code.co_filename != _CONTEXTLIB and code.co_name not in ("__enter__", "__aenter__"):
            return None
        frame = caller
    return None


def _said(name: str) -> str | None:
    """What the innermost block around the caller says under *name*; None where none does."""
    for one in reversed(_blocks.get()):
        holds = one.holds()
        if holds is None:
            break
        if holds and one.said[name] is not None:
            return one.said[name]
    return None


def current_task() -> str | None:
    """The task of the innermost `with context(task=...)` around the caller; None outside any."""
    return _said("task")


def said_tenant() -> str | None:
    """The tenant of the innermost `with context(tenant=...)` around the caller; None outside any."""
    return _said("tenant")


def current_tenant() -> str:
    """The tenant of the innermost `with context(tenant=...)` around the caller; empty outside any."""
    return _said("tenant") or ""


def current_query_id() -> str:
    """The id of the innermost `with context(query_id=...)` around the caller; empty outside any."""
    return _said("query_id") or ""


def current_source() -> str:
    """The source of the innermost `with context(source=...)` around the caller; empty outside any."""
    return _said("source") or ""


def check_text(name: str, value: str | None) -> None:
    """Refuse a *value* of the argument *name* that is neither a text nor None."""
    if not isinstance(value, str | None):
        raise InputError(f"{name}: expected a text or None, got {type(value).__name__}")
