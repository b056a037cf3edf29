"""BEIR folders: corpus, queries, qrels, and the vectors and scores stored beside them."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tttembed_rag.errors import DataError
from tttembed_rag.vectors.checks import IntArray

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

    @property
    def own(self) -> IntArray:
        """(M,) The row of the document that each query is, -1 where it is none.

        It has the query's id and holds its text: ids of queries and documents may be the same numbers. A document
        with a label for the query is one that it should find.
        """
        held = {query for query, text in self.queries.items() if text.strip() in self.documents.get(query, ())}
        own = {query for query in held if query not in self.qrels.get(query, ())}
        rows = {document: row for row, document in enumerate(self.documents) if document in own}
        return np.array([rows.get(query, -1) for query in self.queries])

    def only(self, queries: Container[str]) -> Dataset:
        """The same collection with only some of its queries."""
        kept = {query: text for query, text in self.queries.items() if query in queries}
        if not kept:
            raise DataError(f"{self.name}: expected scores for its labelled queries, found none in common")
        return replace(self, queries=kept, qrels={query: self.qrels[query] for query in kept if query in self.qrels})
