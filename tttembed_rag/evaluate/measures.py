"""Retrieval measures per query: any of the field's through ir-measures, nDCG@10 on arrays of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, require
from tttembed_rag.evaluate.datasets import Judgments
from tttembed_rag.vectors.checks import IntArray

Float64: TypeAlias = NDArray[np.float64]

# Ranks that nDCG@10 looks at.
_CUTOFF = 10


class Evaluator:
    """Measures of ranked lists against relevance labels; nDCG has linear gains.

    Args:
        qrels: Grades by query id and document id; negative grades count as 0.

        measures: Names in the field's notation, such as ``nDCG@10``, ``R@100`` or ``RR@10``.
    """

    def __init__(self, qrels: Judgments, measures: Sequence[str] = ("nDCG@10",)) -> None:
        library = require("ir_measures", "eval")
        self._measures = [library.parse_measure(name) for name in measures]
        self._names = dict(zip(self._measures, measures, strict=True))
        _check_whole(qrels)
        grades = {q: {d: max(0, int(grade)) for d, grade in docs.items()} for q, docs in qrels.items()}
        self._evaluator = library.evaluator(self._measures, grades)
        self._row = {query: row for row, query in enumerate(qrels)}

    def __call__(self, ranked: Mapping[str, Sequence[str]]) -> dict[str, Float64]:
        """Each measure as an array over the queries of the qrels, in their order; NaN if not ranked.

        Args:
            ranked: Document ids by query id, best first.
        """
        run = {q: {d: float(len(docs) - rank) for rank, d in enumerate(docs)} for q, docs in ranked.items()}
        values = {name: np.full(len(self._row), np.nan) for name in self._names.values()}
        for metric in self._evaluator.iter_calc(run):
            if metric.query_id in run:
                values[self._names[metric.measure]][self._row[metric.query_id]] = metric.value
        return values


@dataclass(frozen=True, slots=True, eq=False)
class Graded:
    """nDCG@10, linear gains, of ranked rows of documents, for a collection whose labels were read once.

    Attributes:
        grades: (M, N) relevance of each document to each query, 0 where not labelled.

        ideal: (M,) discounted gain of the best possible ten, 0 where nothing is relevant.
    """

    grades: Any
    ideal: Float64

    @classmethod
    def of(cls, qrels: Judgments, query_ids: Sequence[str], doc_ids: Sequence[str]) -> Graded:
        """The labels of *query_ids* over *doc_ids*; negative grades count as 0, absent documents for the ideal."""
        from scipy.sparse import csr_array

        column = {doc: i for i, doc in enumerate(doc_ids)}
        _check_whole(qrels)
        rows, columns, values = [], [], []
        ideal = np.zeros(len(query_ids))
        for row, query in enumerate(query_ids):
            relevant = {doc: float(grade) for doc, grade in qrels[query].items() if grade > 0}
            best = np.array(sorted(relevant.values(), reverse=True)[:_CUTOFF])
            ideal[row] = best @ _discounts(len(best))
            found = [doc for doc in relevant if doc in column]
            rows += [row] * len(found)
            columns += [column[doc] for doc in found]
            values += [relevant[doc] for doc in found]
        shape = (len(query_ids), len(column))
        return cls(csr_array((values, (rows, columns)), shape=shape, dtype=np.float64), ideal)

    def __call__(self, rows: IntArray, ranked: IntArray) -> Float64:
        """nDCG@10 (m,) of the queries *rows* (m,) that are shown the documents *ranked* (m, k), best first."""
        first = ranked[:, :_CUTOFF]
        if not first.size:
            return np.zeros(len(rows))
        gains = self.grades[np.repeat(rows, first.shape[1]), first.ravel()]
        dcg = np.asarray(gains).reshape(first.shape) @ _discounts(first.shape[1])
        ideal = self.ideal[rows]
        return np.divide(dcg, ideal, out=np.zeros(len(rows)), where=ideal > 0)


def _discounts(ranks: int) -> Float64:
    """1 / log2(rank + 1) of the first *ranks* ranks."""
    return 1.0 / np.log2(np.arange(2, ranks + 2))


def _check_whole(qrels: Judgments) -> None:
    if wrong := next((g for docs in qrels.values() for g in docs.values() if g != int(g)), None):
        raise InputError(f"qrels: expected whole grades, got {wrong}")
