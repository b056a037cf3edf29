"""BEIR folders: corpus, queries, qrels, and the vectors and scores stored beside them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from tttembed_rag.errors import DataError

__all__ = ["QRELS", "Dataset", "Judgments"]

Judgments = Mapping[str, Mapping[str, float]]

# The name under which relevance labels act as a judge: a simulation, and called one in every output.
QRELS = "qrels"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A retrieval collection with relevance labels.

    Attributes:
        name: Its name, also its task key.
        documents: Text by document id.
        queries: Text by query id, only queries that have labels where there are any.
        qrels: Grades by query id and document id; absent pairs are not relevant.
    """

    name: str
    documents: Mapping[str, str]
    queries: Mapping[str, str]
    qrels: Judgments

    def only(self, queries: Container[str]) -> Dataset:
        """The same collection with only some of its queries."""
        kept = {query: text for query, text in self.queries.items() if query in queries}
        if not kept:
            raise DataError(f"{self.name}: expected scores for its labelled queries, found none in common")
        return replace(self, queries=kept, qrels={query: self.qrels[query] for query in kept if query in self.qrels})
