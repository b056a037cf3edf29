"""Retrieval measures per query (through ir-measures) and paired bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, require
from tttembed_rag.evaluate.datasets import Judgments

Float64: TypeAlias = NDArray[np.float64]

_RESAMPLES = 1_000


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
        if wrong := next((g for docs in qrels.values() for g in docs.values() if g != int(g)), None):
            raise InputError(f"qrels: expected whole grades, got {wrong}")
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


def mean_interval(differences: Float64, *, level: float = 0.95) -> tuple[float, float]:
    """Bootstrap percentile interval of the mean of paired differences (n,), over queries."""
    if not differences.size:
        return float("nan"), float("nan")
    means = _resampling(len(differences)) @ differences
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@lru_cache(maxsize=3)
def _resampling(n: int) -> NDArray[np.float32]:
    """(resamples, n) weights of each observation in each resample; the same for every pairing of size n."""
    counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    return (counts / n).astype(np.float32)
