"""Rows of feedback as collections: their texts are the corpus, and their rewards both the judge's and the labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.vectors.checks import FloatArray

if TYPE_CHECKING:
    from tttembed_rag.rewards.rows import TextReward

# A document is relevant to a query where its reward lies above this: more often liked than not. A vote that was taken
# back is a reward of exactly this.
RELEVANT = 0.5


class TaskOfRows(NamedTuple):
    """The rows of one task.

    Attributes:
        dataset: Their texts, which are their own ids, and labels.

        scores: By query and document the mean of what its sources said.

        sources: Scores by query, source and document; of several rewards of a pair by one source their mean.
    """

    dataset: Dataset
    scores: dict[str, dict[str, float]]
    sources: dict[str, dict[str, dict[str, float]]]


def tasks_of(rows: Sequence[TextReward]) -> list[TaskOfRows]:
    """Each task of *rows*.

    The documents of all rows are the corpus of each. Queries without a relevant document have labels too: nothing can
    be gained there.
    """
    given: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
    for task, query, source, document, reward in ((r.task, r.query, r.source, r.document, r.reward) for r in rows):
        of_source = given.setdefault(task, {}).setdefault(query, {}).setdefault(source, {})
        of_source.setdefault(document, []).append(reward)
    documents = {row.document: row.document for row in rows}
    found = []
    for task, queries in given.items():
        sources = {
            query: {source: _means(said) for source, said in of_query.items()} for query, of_query in queries.items()
        }
        scores = {query: _mean_of_sources(of_query.values()) for query, of_query in sources.items()}
        qrels = {
            query: {document: float(score > RELEVANT) for document, score in of_query.items()}
            for query, of_query in scores.items()
        }
        found.append(TaskOfRows(Dataset(task, documents, {query: query for query in scores}, qrels), scores, sources))
    return found


def _mean_of_sources(sources: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each document over the *sources* that said something of it."""
    said: dict[str, list[float]] = {}
    for source in sources:
        for document, score in source.items():
            said.setdefault(document, []).append(score)
    return _means(said)


def _means(given: Mapping[str, list[float]]) -> dict[str, float]:
    return {document: float(np.mean(rewards)) for document, rewards in given.items()}


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
    for dataset, scores, sources in tasks_of(rows):
        if not any(grade for grades in dataset.qrels.values() for grade in grades.values()):
            raise DataError(f"{judge}: expected a reward above {RELEVANT:g} in task {dataset.name!r}, found none")
        searched = np.stack([documents[text] for text in dataset.documents])
        asked = np.stack([queries[text] for text in dataset.queries])
        collection = Collection.of(dataset, searched, asked, embedder=embedder, judge=judge, scores=scores, index=index)
        found.append(replace(collection, sources=sources))
    return found
