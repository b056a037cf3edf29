"""Phoenix: yesterday's spans in, verdicts out, so that its panels of nDCG and precision fill.

A project is named by ``phoenix+http://HOST:6006/PROJECT``; the API key, where one is needed, is in ``PHOENIX_API_KEY``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from tttembed_store.spans import Span, span_of

from tttembed_hosts.extras import require
from tttembed_rag.clients.options import without_secrets
from tttembed_rag.errors import DataError, InputError
from tttembed_rag.rewards.observations import Served

__all__ = ["PhoenixProject", "spans_at"]

_log = logging.getLogger(__name__)
_SCHEME = "phoenix+"
# Annotations that are sent at once.
_BATCH = 500


class PhoenixProject:
    """A project of a Phoenix server.

    Args:
        client: A ``phoenix.client.Client``.
        name: The project's name.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self.name = name

    @classmethod
    def open(cls, url: str) -> PhoenixProject:
        """The project at ``phoenix+http://HOST:PORT/PROJECT``.

        Raises:
            InputError: It is no such address.
            MissingExtraError: The extra ``phoenix`` is not installed.
        """
        parts = urlsplit(url)
        name = unquote(parts.path.strip("/"))
        if "@" in parts.netloc:  # not shown: it may be a password
            raise InputError("project: expected no login in the address of Phoenix; a key is in PHOENIX_API_KEY")
        if parts.scheme not in ("phoenix+http", "phoenix+https") or not parts.hostname or not name:
            raise InputError(f"project: expected phoenix+http://HOST:6006/PROJECT, got {without_secrets(url)!r}")
        address = f"{parts.scheme[len(_SCHEME) :]}://{parts.netloc}"
        return cls(require("phoenix.client", "phoenix").Client(base_url=address), name)

    def spans(self, *, since: float | None = None, limit: int = 10_000) -> list[Span]:
        """The spans of the project, at most *limit*, from *since* in Unix seconds on.

        Raises:
            DataError: The server cannot be asked, or has no such project.
        """
        start = None if since is None else datetime.fromtimestamp(since, tz=UTC)
        try:
            found = self._client.spans.get_spans(project_identifier=self.name, start_time=start, limit=limit)
            spans = [span_of(one) for one in found]
        except Exception as exc:  # of the client's HTTP library, which it does not wrap, or of spans that are none
            reason = f"{type(exc).__name__}: {_line(exc)}"
            raise DataError(f"project {self.name!r}: expected spans of Phoenix ({reason})") from exc
        if len(found) >= limit:
            _log.warning("project %r: only its newest %d spans were read: raise the limit for more", self.name, limit)
        return spans

    def annotate(
        self,
        queries: Iterable[tuple[Span, Served]],
        verdict_of: Callable[[str, str], float | None],
        *,
        judge: str,
        kind: str = "LLM",
    ) -> int:
        """Write rewards of documents onto the spans that show them; gives how many.

        Written again, an annotation of the same judge replaces the old one.

        Args:
            queries: The queries that spans of this project served, each with its span.
            verdict_of: (query, document text) to the reward in [0, 1]; None where there is none.
            judge: The name of the annotations.
            kind: Who judged: LLM, HUMAN or CODE.

        Raises:
            DataError: The server does not take them.
        """
        rows = [
            {
                "name": judge,
                "annotator_kind": kind,
                "span_id": span.span_id,
                "document_position": place,
                "result": {"score": float(reward)},
            }
            for span, served in queries
            for place, candidate in enumerate(served.candidates)
            if candidate.text and (reward := verdict_of(served.query, candidate.text)) is not None
        ]
        try:
            for first in range(0, len(rows), _BATCH):
                part = rows[first : first + _BATCH]
                self._client.spans.log_document_annotations(document_annotations=part, sync=True)
        except Exception as exc:  # of the client's HTTP library, which it does not wrap
            raise DataError(f"project {self.name!r}: expected Phoenix to take annotations ({_line(exc)})") from exc
        return len(rows)


def spans_at(url: str, *, limit: int) -> list[Span]:
    """The newest spans of the project at *url*, at most *limit*, for `tttembed store import`."""
    return PhoenixProject.open(url).spans(limit=limit)


def _line(error: Exception) -> str:
    """The first line of what a client says: the second leads to a page about its status."""
    return next(iter(str(error).splitlines()), type(error).__name__)
