"""`with context(...)`: the task, the tenant, the query id and the source of what is served inside the block.

A context follows asyncio tasks and `asyncio.to_thread`. It follows neither a plain thread pool nor a background task
that was started earlier (the stores of LangGraph search in such a task), nor a generator that a framework goes on with
elsewhere: there, fix the context of the wrapper. No generator should `yield` inside a block, as the block holds for
whatever runs in between. Where several do that take turns, each has its own block while it runs; of what runs between
them, and of tasks and threads that they start, the tenant is in doubt: none is said.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from enum import Enum
from inspect import CO_ASYNC_GENERATOR, CO_GENERATOR
from types import CodeType, FrameType
from typing import Final, Literal, TypeAlias

from tttembed_rag.errors import InputError

_log = logging.getLogger(__name__)


class Required(Enum):
    """The type of `REQUIRED`."""

    REQUIRED = "required"


# Instead of a tenant: each query must come with one, by the caller's `context`; one without is left out.
REQUIRED: Final = Required.REQUIRED
# Calls between a generator and the block that it opens, at most: each costs a request a fraction of a microsecond.
_FAR = 6
_CONTEXTLIB = contextmanager.__code__.co_filename
# Generators that the log has told of: they left the tenant in doubt.
_told: set[CodeType] = set()
AnyTenant = str | Literal[Required.REQUIRED] | None
# A thread and an asyncio task, or no task; neither is taken for one that comes after it.
_Place: TypeAlias = tuple[object, "weakref.ref[asyncio.Task[object]] | None"]


class context(ContextDecorator):  # noqa: N801 (it reads as the block that it opens)
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

        beside: The blocks of generators that waited where it was opened.

        is_shared: Whether a task or a thread that is started within it may belong to another tenant. That is so where a
            generator opened it inside or beside a block of that tenant, and where a generator waits in such a block.
    """

    __slots__ = ("beside", "ended", "generator", "is_shared", "outer", "place", "query_id", "source", "task", "tenant")

    def __init__(
        self,
        *,
        task: str | None = None,
        tenant: str | None = None,
        query_id: str | None = None,
        source: str | None = None,
    ) -> None:
        if not isinstance(task, str | None):
            raise InputError(f"task: expected a task key or None, got {type(task).__name__}")
        check_tenant(tenant)
        if not isinstance(query_id, str | None):
            raise InputError(f"query_id: expected an id or None, got {type(query_id).__name__}")
        if not isinstance(source, str | None):
            raise InputError(f"source: expected a name or None, got {type(source).__name__}")
        self.task, self.tenant, self.query_id, self.source = task, tenant, query_id, source
        self.outer: context | None = None
        self.ended = False
        self.place: _Place | None = None
        self.generator: FrameType | None = None
        self.beside: tuple[context, ...] = ()
        self.is_shared = False

    def _recreate_cm(self) -> context:
        """A block of its own for each call of a decorated function."""
        return context(task=self.task, tenant=self.tenant, query_id=self.query_id, source=self.source)

    def __enter__(self) -> None:
        if self.place is not None:
            raise InputError("context: expected one block, got a second one with the same context")
        blocks = [(one, one.runs) for one in _open()]
        self.outer, self.place = next((one for one, _ in blocks), None), _here()
        self.generator = _generator_around(sys._getframe(1))  # noqa: SLF001 - CPython's way to the calling frame
        self.beside = tuple(one for one, runs in blocks if runs is False)
        around = _wherever_it_runs(blocks) if self.generator is not None else self.beside
        self.is_shared = self.tenant is not None and _differ((self, *around))
        _innermost.set(self)

    def __exit__(self, *_: object) -> None:
        # No token is reset: it would fail in another context, where a generator may end.
        self.ended, self.generator = True, None
        self._leave()
        _innermost.set(next((one for one in _open() if one is not self), None))

    def _leave(self) -> None:
        """Remove the block from those that were opened while its generator waited.

        They would keep it in memory, and so would all blocks that are opened after them.
        """
        here, rest, one = _here(), self.outer, _innermost.get()
        while rest is not None and rest.ended and rest.place == here:
            rest = rest.outer
        while one is not None:
            if self in one.beside:
                one.beside = tuple(other for other in one.beside if other is not self)
                if one.outer is self:
                    one.outer = rest
            one = one.outer

    @property
    def runs(self) -> bool | None:
        """Whether the generator that opened it here is at a step now, or waits at a `yield`; None for no generator."""
        generator = self.generator  # another thread may end the block meanwhile
        if generator is None or self.place != _here():
            return None
        return generator.f_back is not None  # the frame of a generator that waits has no caller

    @staticmethod
    def around() -> Iterator[context]:
        """The blocks around the caller, the innermost first."""
        return iter(_around()[0])


def _open() -> Iterator[context]:
    """The blocks that were opened around the caller, or by generators that take turns with it, the innermost first.

    A block that has ended still holds for tasks and threads that were started within it, and goes on in them.
    """
    one = _innermost.get()
    while one is not None:
        if not one.ended or one.place != _here():
            yield one
        one = one.outer


def _around() -> tuple[list[context], bool]:
    """The blocks around the caller, the innermost first, and whether its tenant is in doubt.

    Where generators take turns, the blocks of those that wait are not around the one that runs. Around what runs
    between them they are, unless they name another tenant than what is around them; a task that was started within
    such a block may be of either.
    """
    opened = list(_open())
    if not any(one.generator is not None or one.is_shared for one in opened):
        return opened, False
    blocks = [(one, one.runs) for one in opened]
    last = max((n for n, (_, runs) in enumerate(blocks) if runs), default=-1)
    blocks = [(one, runs) for n, (one, runs) in enumerate(blocks) if n > last or runs is not False]
    unsure = [n for n, (one, _) in enumerate(blocks) if one.is_shared and one.place != _here()]
    waiting = [n for n, (_, runs) in enumerate(blocks) if runs is False]
    if waiting and _differ(_wherever_it_runs(blocks)):
        unsure.append(waiting[0])
    if not unsure:
        return _in_order(blocks), False
    end = min(unsure)
    _tell(one for one, _ in blocks[end:])
    return _in_order(blocks[:end]), True


def _wherever_it_runs(blocks: list[tuple[context, bool | None]]) -> Iterator[context]:
    """The blocks that the running code may be in: of *blocks*, each with whether its generator runs.

    They are looked through from the innermost outwards. The code may be in a block whose generator waits, or outside of
    it. It is in the first block that names a tenant and has no waiting generator: the search ends there.
    """
    for one, runs in blocks:
        yield one
        if runs is not False and one.tenant is not None:
            return


def _in_order(blocks: list[tuple[context, bool | None]]) -> list[context]:
    """The *blocks*, the innermost first.

    A block that was opened while a generator waited is around the step that this generator takes now.
    """
    ordered = [one for one, _ in blocks]
    for one in [one for one, runs in blocks if runs]:
        end = ordered.index(one) + 1
        outside = [other for other in ordered[:end] if one in other.beside]
        ordered[:end] = [other for other in ordered[:end] if other not in outside] + outside
    return ordered


def _differ(blocks: Iterable[context]) -> bool:
    """Whether the blocks name more than one tenant."""
    return len({one.tenant for one in blocks if one.tenant is not None}) > 1


def _tell(blocks: Iterable[context]) -> None:
    """Name, once, the generators that leave a tenant in doubt, as far as they have not ended."""
    codes = {generator.f_code for one in blocks if (generator := one.generator) is not None}
    if not codes <= _told:
        _told.update(codes)
        names = ", ".join(sorted(f"{code.co_qualname}() of {code.co_filename}" for code in codes))
        _log.warning(
            "generators wait in blocks beside those of other tenants; what runs meanwhile has no tenant: %s", names
        )


_innermost: ContextVar[context | None] = ContextVar("tttembed_rag.context", default=None)


class _Thread(threading.local):
    """What stands for a thread; its number may be that of an earlier one."""

    def __init__(self) -> None:
        self.itself = object()


_thread = _Thread()


def _here() -> _Place:
    """The thread and the asyncio task that runs."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return _thread.itself, None if task is None else weakref.ref(task)


def _generator_around(frame: FrameType | None) -> FrameType | None:
    """The generator whose block *frame* opens, but for those that `contextlib` makes blocks of; None for none.

    A block that a function opens by `with` ends with it, and is not the generator's that calls the function. One that a
    function hands to an `ExitStack`, or opens as part of another block, may be.
    """
    may_outlive = False
    for _ in range(_FAR):
        if frame is None:
            break
        code, caller = frame.f_code, frame.f_back
        if code.co_flags & (CO_GENERATOR | CO_ASYNC_GENERATOR):
            if caller is None or caller.f_code.co_filename != _CONTEXTLIB:
                return frame
        elif code.co_filename == _CONTEXTLIB:
            if code.co_name == "inner":  # of a function that a block decorates
                break
            may_outlive = may_outlive or code.co_name.startswith("enter_")
        elif not may_outlive and code.co_name not in ("__enter__", "__aenter__"):
            break
        frame = caller
    return None


def current_task() -> str | None:
    """The task of the innermost `with context(...)` around the caller; None outside any."""
    return next((one.task for one in context.around()), None)


def said_tenant() -> str | None:
    """The tenant of the innermost `with context(..., tenant=...)` around the caller; None outside any."""
    return next((one.tenant for one in context.around() if one.tenant is not None), None)


def tenant_is_in_doubt() -> bool:
    """Whether the caller says no tenant, but runs between generators that wait within blocks of different ones."""
    blocks, in_doubt = _around()
    return in_doubt and all(one.tenant is None for one in blocks)


def current_tenant() -> str:
    """The tenant of the innermost `with context(..., tenant=...)` around the caller; empty outside any."""
    return said_tenant() or ""


def current_query_id() -> str:
    """The id of the innermost `with context(..., query_id=...)` around the caller; empty outside any."""
    return next((one.query_id for one in context.around() if one.query_id is not None), "")


def current_source() -> str:
    """The source of the innermost `with context(..., source=...)` around the caller; empty outside any."""
    return next((one.source for one in context.around() if one.source is not None), "")


def switched_off() -> bool:
    """Whether the environment variable ``TTTEMBED_OFF`` turns offsets off; empty and 0 do not."""
    return os.environ.get("TTTEMBED_OFF", "0") not in ("", "0")


def check_tenant(tenant: str | None) -> None:
    """Refuse a tenant that is neither a name nor None."""
    if not isinstance(tenant, str | None):
        raise InputError(f"tenant: expected a name or None, got {type(tenant).__name__}")
