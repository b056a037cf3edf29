"""Which task a query belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from tttembed_rag.errors import InputError
from tttembed_rag.serving.context import context_value

_log = logging.getLogger(__name__)


@runtime_checkable
class NamesTasks(Protocol):
    """A wrapper that knows the tasks of its queries, such as `Steering` and the wrapped embeddings of the adapters."""

    def task_of(self, query: str, /) -> str | None:
        """The task of *query*, None where nothing names one."""


# A task key, a wrapper that names tasks, a function from query text to task key or None, or None.
TaskSource: TypeAlias = str | NamesTasks | Callable[[str], str | None] | None


def checked_task(source: TaskSource) -> TaskSource:
    """*source* as it came, or an InputError that names it ``task``."""
    if not (source is None or isinstance(source, str | NamesTasks) or callable(source)):
        raise InputError(
            f"task: expected a task key, wrapped embeddings, a function or None, got {type(source).__name__}"
        )
    return source


def resolve_task(source: TaskSource, query: str) -> str | None:
    """The task of *query*: a fixed *source*, else the caller's `context`, else what *source* answers.

    Where none of the three names a task, the query has none; that of the last query is never used. A wrapper as
    *source* decides as it does for its own queries, so that what is logged and what is asked for agree. A resolver
    that fails, or answers anything but a text, names no task; the failure is logged.
    """
    if source is None or isinstance(source, str):  # before the checks of protocols, which take longer than all else
        return context_value("task") if source is None else source
    if isinstance(source, NamesTasks):
        return source.task_of(query)
    task = context_value("task")
    if task is not None:
        return task
    try:
        answer = source(query)
    except Exception:  # noqa: BLE001 - the caller's code: whatever it raises, the query is answered
        _log.exception("%r named no task", source)
        return None
    return answer if isinstance(answer, str) else None
