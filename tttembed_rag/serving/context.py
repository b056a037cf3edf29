"""`with scope(...)`: the task, the tenant and the query id of what is served inside the block.

A context follows asyncio tasks and `asyncio.to_thread`. It follows neither a plain thread pool nor a background task
that was started earlier (the stores of LangGraph search in such a task): there, fix the scope of the wrapper.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tttembed_rag.errors import InputError

_task: ContextVar[str | None] = ContextVar("tttembed_rag.scope", default=None)
_tenant: ContextVar[str] = ContextVar("tttembed_rag.tenant", default="")
# Empty where the query is known by its text.
_query_id: ContextVar[str] = ContextVar("tttembed_rag.query_id", default="")


@contextmanager
def scope(task: str | None, *, tenant: str | None = None, query_id: str | None = None) -> Iterator[None]:
    """Queries embedded inside the block belong to *task*; None says nothing about them.

    Args:
        task: Their task key.

        tenant: Whose they are; None leaves the tenant of the block around.

        query_id: The id of your own that the one query of the block is recorded and found under; empty for that of
            its text, None leaves that of the block around.

    Raises:
        InputError: *task*, *tenant* or *query_id* is neither a string nor None.
    """
    if not isinstance(task, str | None):
        raise InputError(f"task: expected a task key or None, got {type(task).__name__}")
    check_tenant(tenant)
    if not isinstance(query_id, str | None):
        raise InputError(f"query_id: expected an id or None, got {type(query_id).__name__}")
    of_task = _task.set(task)
    of_tenant = _tenant.set(_tenant.get() if tenant is None else tenant)
    of_query = _query_id.set(_query_id.get() if query_id is None else query_id)
    try:
        yield
    finally:
        _task.reset(of_task)
        _tenant.reset(of_tenant)
        _query_id.reset(of_query)


def current_scope() -> str | None:
    """The task of the innermost `with scope(...)` around the caller; None outside any."""
    return _task.get()


def current_tenant() -> str:
    """The tenant of the innermost `with scope(..., tenant=...)` around the caller; empty outside any."""
    return _tenant.get()


def current_query_id() -> str:
    """The id of the innermost `with scope(..., query_id=...)` around the caller; empty outside any."""
    return _query_id.get()


def switched_off() -> bool:
    """Whether the environment variable ``TTTEMBED_OFF`` turns offsets off; empty and 0 do not."""
    return os.environ.get("TTTEMBED_OFF", "0") not in ("", "0")


def check_tenant(tenant: str | None) -> None:
    """Refuse a tenant that is neither a name nor None."""
    if not isinstance(tenant, str | None):
        raise InputError(f"tenant: expected a name or None, got {type(tenant).__name__}")
