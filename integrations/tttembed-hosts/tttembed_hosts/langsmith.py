"""LangSmith: what its projects hold of retrievers, and the feedback on their traces.

A project is named by ``langsmith+https://HOST/PROJECT``, such as ``langsmith+https://api.smith.langchain.com/default``;
the API key is in ``LANGSMITH_API_KEY``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from tttembed_store.spans import Span, Thumb

from tttembed_hosts.extras import require
from tttembed_hosts.tracing import address_of, asking, seconds, span_of_retriever

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
    with asking("LangSmith", project):
        return asyncio.run(_spans(client, str(client.read_project(project_name=project).id), limit))


async def _spans(client: Any, project_id: str, limit: int) -> list[Span]:
    query = {"project_ids": [project_id], "run_type": "RETRIEVER", "selects": _FIELDS, "min_start_time": _EVER}
    spans: list[Span] = []
    async for run in client.runs.query(**query):  # the newest come first
        if len(spans) == limit:
            break
        parent = (run.parent_run_ids or [None])[-1]
        fields = {"query": run.inputs, "documents": run.outputs, "metadata": run.metadata}
        spans.append(span_of_retriever(run.id, run.trace_id or run.id, parent, run.start_time, **fields))
    return spans


def thumbs_at(url: str, spans: Sequence[Span], *, name: str) -> list[Thumb]:
    """What feedback under the key *name* says of the traces of *spans*; where it has no score, it is left out.

    The source is the user who gave it, else the service.

    Raises:
        DataError: The server cannot be asked.
    """
    client, project = _client(url)
    # Feedback is given to the outermost run of a trace, which has the trace's id, or to a retriever itself.
    traces = {run: span.trace_id for span in spans for run in (span.trace_id, span.span_id)}
    runs, thumbs = list(traces), []
    with asking("LangSmith", project):
        for begin in range(0, len(runs), _PART):
            feedback = client.list_feedback(run_ids=runs[begin : begin + _PART], feedback_key=[name])
            for row in islice(feedback, _MOST):
                if isinstance(row.score, bool | int | float):
                    user = row.feedback_source
                    source = "langsmith" if user is None else str(user.user_id or user.user_name or "langsmith")
                    at = seconds(row.modified_at or row.created_at) or 0.0
                    thumbs.append(Thumb(traces[str(row.run_id)], row.score, source, at))
    return thumbs


def _client(url: str) -> tuple[Any, str]:
    address, project = address_of(url, "langsmith", "LANGSMITH_API_KEY", path="/PROJECT")
    langsmith = require("langsmith", "langsmith")
    key = os.environ.get("LANGSMITH_API_KEY")
    return langsmith.Client(api_url=address, api_key=key, auto_batch_tracing=False), project
