"""Scores of a table as a judge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tttembed_rag.judges.contract import Blocking, Scores
from tttembed_rag.models.fingerprints import fingerprint_of
from tttembed_rag.models.usage import Usage
from tttembed_rag.scales import Scale


class FeedbackJudge(Blocking):
    """Scores from a table, None for pairs without feedback.

    Args:
        table: Scores by (query text, document text).

        scale: Scale of the scores.
    """

    documents_per_call = 10_000

    def __init__(self, table: Mapping[tuple[str, str], float], scale: Scale) -> None:
        self._table = table
        self.scale = scale
        self.fingerprint = fingerprint_of("feedback", "table", table=sorted(map(repr, table.items())), scale=str(scale))

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:  # noqa: ARG002 (every judge is asked alike)
        """No usage: the feedback is given already."""
        return Usage()

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """The gathered score of each document for *query*."""
        return [self._table.get((query, text)) for text in documents]
