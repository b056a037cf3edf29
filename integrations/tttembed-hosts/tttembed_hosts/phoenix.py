"""Phoenix: yesterday's spans in, verdicts out, so that its panels of nDCG and precision fill.

A project is named by ``phoenix+http://HOST:6006/PROJECT``; the API key, where one is needed, is in ``PHOENIX_API_KEY``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from tttembed_store.spans import Span, span_of

from tttembed_hosts.extras import require
from tttembed_hosts.tracing import address_of, asking
from tttembed_rag.rewards.observations import Served

__all__ = ["PhoenixProject", "spans_at"]

_log = logging.getLogger(__name__)
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
        address, name = address_of(url, "phoenix", "PHOENIX_API_KEY", path="/PROJECT")
        return cls(require("phoenix.client", "phoenix").Client(base_url=address), name)

    def spans(self, *, limit: int = 10_000) -> list[Span]:
        """The newest spans of the project, at most *limit*.

        Raises:
            DataError: The server cannot be asked, or has no such project.
        """
        with asking("Phoenix", self.name):
            spans = list(map(span_of, self._client.spans.get_spans(project_identifier=self.name, limit=limit)))
        if len(spans) >= limit:
            _log.warning("project %r: only its newest %d spans were read: raise the limit for more", self.name, limit)
        return spans

    def annotate(
        self,
        queries: Iterable[tuple[Span, Served]],
        verdict_of: Callable[[str, str], float | None],
        *,
        judge: str,
    ) -> int:
        """Write rewards of documents onto the spans that show them; gives how many.

        Written again, an annotation of the same judge replaces the old one.

        Args:
            queries: The queries that spans of this project served, each with its span.
            verdict_of: (query, document text) to the reward in [0, 1]; None where there is none.
            judge: The name of the annotations.

        Raises:
            DataError: The server does not take them.
        """
        rows = [
            {
                "name": judge,
                "annotator_kind": "LLM",
                "span_id": span.span_id,
                "document_position": place,
                "result": {"score": float(reward)},
            }
            for span, served in queries
            for place, candidate in enumerate(served.candidates)
            if candidate.text and (reward := verdict_of(served.query, candidate.text)) is not None
        ]
        with asking("Phoenix", self.name):
            for first in range(0, len(rows), _BATCH):
                part = rows[first : first + _BATCH]
                self._client.spans.log_document_annotations(document_annotations=part, sync=True)
        return len(rows)


def spans_at(url: str, *, limit: int) -> list[Span]:
    """The newest spans of the project at *url*, at most *limit*, for `tttembed store import`."""
    return PhoenixProject.open(url).spans(limit=limit)
