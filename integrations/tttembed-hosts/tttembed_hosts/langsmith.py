"""LangSmith: what its projects hold of retrievers, and the feedback on their traces.

A project is named by ``langsmith+https://HOST/PROJECT``, such as ``langsmith+https://api.smith.langchain.com/default``;
the API key is in ``LANGSMITH_API_KEY``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import unquote

from tttembed_store.spans import Span, Thumb

from tttembed_hosts.extras import require
from tttembed_hosts.tracing import address_of, seconds, span_of_retriever
from tttembed_rag.errors import DataError, InputError

__all__ = ["spans_at", "thumbs_at"]

# Runs whose feedback is asked for at once, as they stand in an address, and how much of it is read at most.
_PART, _MOST = 50, 100_000
_FIELDS = ["ID", "TRACE_ID", "PARENT_RUN_IDS", "INPUTS", "OUTPUTS", "METADATA", "START_TIME"]
# From when on runs are read; where nothing is said, the service reads those of the last day.
_EVER = datetime(2020, 1, 1, tzinfo=UTC)


def spans_at(url: str, *, limit: int) -> list[Span]:
    """The newest runs of retrievers of the project at *url*, at most *limit*.

    Raises:
        DataError: The server cannot be asked, or has no such project.
        InputError: It is no such address.
    """
    client, project = _client(url)
    with _asked(project):
        return asyncio.run(_spans(client, str(client.read_project(project_name=project).id), limit))


async def _spans(client: Any, project_id: str, limit: int) -> list[Span]:
    query = {"project_ids": [project_id], "run_type": "RETRIEVER", "selects": _FIELDS, "min_start_time": _EVER}
    spans: list[Span] = []
    async for one in client.runs.query(**query):  # the newest come first
        if len(spans) == limit:
            break
        above = one.parent_run_ids or [None]
        at, said = seconds(one.start_time), {"asked": one.inputs, "found": one.outputs, "metadata": one.metadata}
        spans.append(span_of_retriever(one.id, one.trace_id or one.id, above[-1], at, **said))
    return spans


def thumbs_at(url: str, spans: Sequence[Span], *, name: str) -> list[Thumb]:
    """What feedback under the key *name* says of the traces of *spans*; where it has no score, it is left out.

    The source is the user who gave it, else the service.

    Raises:
        DataError: The server cannot be asked.
    """
    client, project = _client(url)
    # Feedback is given to the outermost run of a trace, which has the trace's id, or to a retriever itself.
    traces = {run: one.trace_id for one in spans for run in (one.trace_id, one.span_id)}
    runs, thumbs = list(traces), []
    with _asked(project):
        for begin in range(0, len(runs), _PART):
            feedback = client.list_feedback(run_ids=runs[begin : begin + _PART], feedback_key=[name])
            for one in islice(feedback, _MOST):
                if isinstance(one.score, bool | int | float):
                    who = one.feedback_source
                    source = "langsmith" if who is None else str(who.user_id or who.user_name or "langsmith")
                    at = seconds(one.modified_at or one.created_at) or 0.0
                    thumbs.append(Thumb(traces[str(one.run_id)], one.score, source, at))
    return thumbs


def _client(url: str) -> tuple[Any, str]:
    address, parts = address_of(url, "langsmith", "LANGSMITH_API_KEY")
    base, _, project = parts.path.strip("/").rpartition("/")
    if not project:
        raise InputError("project: expected langsmith+https://HOST/PROJECT, got no name of a project")
    langsmith = require("langsmith", "langsmith")
    address = f"{address}/{base}".rstrip("/")
    key = os.environ.get("LANGSMITH_API_KEY")
    return langsmith.Client(api_url=address, api_key=key, auto_batch_tracing=False), unquote(project)


@contextmanager
def _asked(project: str) -> Iterator[None]:
    """Around questions: whatever goes wrong is one line."""
    try:
        yield
    except Exception as exc:  # of the client, which has many of its own
        line = next(iter(str(exc).splitlines()), type(exc).__name__)
        raise DataError(f"project {project!r}: expected an answer of LangSmith ({line:.200})") from exc
