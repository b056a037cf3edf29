"""`with context(...)`: the task, the tenant, the query id and the source of what is served inside the block.

A context follows asyncio tasks and `asyncio.to_thread`, but neither a plain thread pool nor a background task that was
started earlier (LangGraph's stores search in such a task). A block that a generator opens holds while it runs and not
between its steps, unless `contextlib` makes a manager of it; where such tenants meet, tasks and threads have none.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import ContextDecorator, contextmanager, suppress
from contextvars import ContextVar, Token
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import FrameType
from typing import TypeAlias

from tttembed_rag.errors import InputError, check_text

Value: TypeAlias = str | None
_CONTEXTLIB = contextmanager.__code__.co_filename


class context(ContextDecorator):  # noqa: N801 (it reads as the block that it opens)
    """A block whose queries are of a task and a tenant; what is None is as in the block around.

    Args:
        task: Their task key.
        tenant: Whose they are.
        query_id: The id of your own that the one query of the block is recorded and found under; empty for its text's.
        source: Who gives rewards in the block, such as a user; empty is the judge, as it is for scores of a reranker.
    """

    def __init__(
        self, *, task: Value = None, tenant: Value = None, query_id: Value = None, source: Value = None
    ) -> None:
        self.values = {"task": task, "tenant": tenant, "query_id": query_id, "source": source}
        for name, value in self.values.items():
            check_text(name, value)
        self.ended = self.is_shared = False
        self.token: Token[tuple[context, ...]] | None = None
        self.generator: FrameType | None = None

    def _recreate_cm(self) -> context:
        return context(**self.values)

    def __enter__(self) -> None:
        if self.token is not None or self.ended:
            raise InputError("context: expected one block, got a second one with the same context")
        self.generator = _generator_that_opens(sys._getframe(1))  # noqa: SLF001 - CPython's way to the calling frame
        self.place = self.generator and _here()
        blocks = [block for block in _blocks.get() if not block.ended or block.holds() is None]
        # A generator that is suspended now may be resumed inside this block; its own block is the inner one then, and
        # is looked at before this one.
        suspended = [block for block in blocks if block.holds() is False]
        tenants = {block.values["tenant"] for block in (*blocks, self)} - {None}
        for block in (self, *suspended):
            block.is_shared |= len(tenants) > 1
        self.token = _blocks.set((*(block for block in blocks if block not in suspended), self, *suspended))

    def __exit__(self, *_: object) -> None:
        blocks = tuple(block for block in _blocks.get() if block is not self)
        token, self.token = self.token, None
        self.ended, self.generator = self.generator is not None, None
        try:
            _blocks.reset(token)  # type: ignore[arg-type]  # of the block that is open
        except ValueError:  # it ends elsewhere than it began, and holds nowhere from now on
            self.ended = True
        _blocks.set(blocks)

    def holds(self) -> bool | None:
        """Whether the running code is inside the block; None where that, or what is around, may have started it."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        generator = self.generator
        if self.place is None:
            return not self.ended
        while frame is not None and frame is not generator:
            frame = frame.f_back
        if frame is not None or self.place == _here():
            return frame is not None
        # This is another task or thread. The frame of a plain generator that waits has no caller.
        runs = generator is not None and (generator.f_back or generator.f_code.co_flags & CO_ASYNC_GENERATOR)
        return True if runs and not self.is_shared else None


_blocks: ContextVar[tuple[context, ...]] = ContextVar("tttembed_rag.context", default=())


def _here() -> object:
    with suppress(RuntimeError):
        return threading.current_thread(), asyncio.current_task()
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


def context_value(name: str) -> Value:
    """The value of *name* in the innermost block around the caller that has one; None where none has."""
    for block in reversed(_blocks.get()):
        holds = block.holds()
        if holds is None or (holds and block.values[name] is not None):
            return block.values[name] if holds else None
    return None


def current_tenant() -> str:
    """The tenant of the innermost `with context(tenant=...)` around the caller; empty outside any."""
    return context_value("tenant") or ""
