"""Rows of feedback as collections: their texts are the corpus, and their rewards both the judge's and the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.vectors.checks import FloatArray

if TYPE_CHECKING:
    from tttembed_rag.judges.feedbackrows import TextReward

# A document is relevant to a query where its reward lies above this: more often liked than not.
RELEVANT = 0.5


def datasets_of(rows: Sequence[TextReward]) -> list[tuple[Dataset, dict[str, dict[str, float]]]]:
    """For each task of *rows* its data set and its scores; texts are their own ids.

    The documents of all rows are the corpus of each. Of several rewards of a pair the mean counts. Queries without a
    relevant document have labels too: nothing can be gained there.
    """
    judged: dict[str, dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        judged.setdefault(row.task, {}).setdefault(row.query, {}).setdefault(row.document, []).append(row.reward)
    documents = {row.document: row.document for row in rows}
    found = []
    for task, queries in judged.items():
        scores = {
            query: {document: float(np.mean(given)) for document, given in of_query.items()}
            for query, of_query in queries.items()
        }
        qrels = {
            query: {document: float(score > RELEVANT) for document, score in of_query.items()}
            for query, of_query in scores.items()
        }
        found.append((Dataset(task, documents, {query: query for query in scores}, qrels), scores))
    return found


def collections_of(
    rows: Sequence[TextReward],
    queries: Mapping[str, FloatArray],
    documents: Mapping[str, FloatArray],
    *,
    judge: str,
    embedder: str,
    index: Literal["flat", "hnsw"] = "flat",
) -> list[Collection]:
    """A collection for each task of *rows*, to measure on.

    Args:
        rows: Texts and rewards in [0, 1].

        queries: Vector by text of a query.

        documents: Vector by text of a document.

        judge: Name of the rewards.

        embedder: Name of the vectors.

        index: How documents are searched.

    Raises:
        DataError: No document of a task is relevant.
    """
    found = []
    for dataset, scores in datasets_of(rows):
        if not any(grade for grades in dataset.qrels.values() for grade in grades.values()):
            raise DataError(f"{judge}: expected a reward above {RELEVANT:g} in task {dataset.name!r}, found none")
        searched = np.stack([documents[text] for text in dataset.documents])
        asked = np.stack([queries[text] for text in dataset.queries])
        found.append(
            Collection.of(dataset, searched, asked, embedder=embedder, judge=judge, scores=scores, index=index)
        )
    return found
