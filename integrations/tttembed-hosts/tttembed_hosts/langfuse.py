"""Langfuse: what its projects hold of retrievers, and what people said of answers (Scores v3, Observations v2).

A project is named by ``langfuse+https://HOST``; which one of the server's it is, is said by the keys in
``LANGFUSE_PUBLIC_KEY`` and ``LANGFUSE_SECRET_KEY``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tttembed_store.spans import Span, Thumb

from tttembed_hosts.extras import require
from tttembed_hosts.tracing import address_of, asking, bounded_client, seconds, span_of_retriever
from tttembed_rag.errors import InputError

__all__ = ["spans_at", "thumbs_at"]

# Rows of a page: the most that scores are given at once.
_PAGE = 100
# Scores that are read at most.
_MOST_SCORES = 1_000_000
# The attribute that holds the user of an application, who gives thumbs where no annotator does.
_USER = "user.id"


def spans_at(url: str, *, limit: int) -> list[Span]:
    """The newest runs of retrievers of the project at *url*, at most *limit*.

    Raises:
        DataError: The server cannot be asked.
        InputError: It is no such address, or a key is missing.
    """
    ask = _client(url).observations.get_many
    spans = []
    for run in _pages(ask, limit, type="RETRIEVER", fields="core,basic,io,metadata"):
        fields = {"query": run.input, "documents": run.output, "metadata": run.metadata}
        trace_id, parent = run.trace_id or run.id, run.parent_observation_id
        span = span_of_retriever(run.id, trace_id, parent, run.start_time, **fields)
        spans.append(replace(span, attributes={**span.attributes, _USER: run.user_id}))
    return spans


def thumbs_at(url: str, spans: Sequence[Span], *, name: str) -> list[Thumb]:
    """What scores called *name* say of the traces of *spans*; categories and texts are no numbers, and left out.

    The source is the annotator, else the user of the trace, else the service.

    Raises:
        DataError: The server cannot be asked.
    """
    users = {span.trace_id: span.attributes.get(_USER) for span in spans}
    first = min((span.at for span in spans if span.at is not None), default=0.0)
    since = datetime.fromtimestamp(first, tz=UTC)  # nobody judges an answer before it is asked for
    ask = _client(url).scores.get_many
    thumbs = []
    for score in _pages(ask, _MOST_SCORES, name=name, fields="subject,annotation", from_timestamp=since):
        trace = None if score.subject is None else getattr(score.subject, "trace_id", None) or score.subject.id
        if trace in users and isinstance(score.value, bool | int | float):
            source = score.author_user_id or users[trace] or "langfuse"
            thumbs.append(Thumb(trace, score.value, source, seconds(score.timestamp) or 0.0))
    return thumbs


def _client(url: str) -> Any:
    address, _ = address_of(url, "langfuse", "LANGFUSE_SECRET_KEY")
    keys = [os.environ.get(name, "") for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")]
    if not all(keys):
        raise InputError("project: expected the keys of a project in LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY")
    api = require("langfuse.api.client", "langfuse")
    return api.LangfuseAPI(base_url=address, username=keys[0], password=keys[1], httpx_client=bounded_client())


def _pages(ask: Callable[..., Any], limit: int, **which: Any) -> Iterator[Any]:
    """What *ask* gives page by page, at most *limit* rows; an empty page, or one that came before, is the end."""
    left, cursor, past = limit, None, set[str | None]()
    while left > 0 and cursor not in past:
        past.add(cursor)
        with asking("Langfuse"):
            page = ask(limit=min(_PAGE, left), cursor=cursor, **which)
        yield from page.data[:left]
        left, cursor = left - len(page.data), page.meta.cursor if page.data else None
