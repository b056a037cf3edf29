"""nDCG@10 of ranked rows of documents, and how sure its mean over queries is: a bootstrap interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tttembed_rag.evaluate.datasets import Judgments
from tttembed_rag.fitting.measures import PLACES, dcg, ndcg
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Least gain of direct rerank in nDCG@10 that has shares: those of less are ratios of noise.
LEAST_GAIN = 0.005
# Resamples of a bootstrap.
RESAMPLES = 1_000
# Numbers drawn at a time, so that memory does not grow with the queries.
_DRAWN = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Graded:
    """nDCG@10 of ranked rows of documents, for a collection whose labels were read once.

    Attributes:
        grades: (M, N) gain of each document for each query, 0 where not labelled.
        ideal: (M,) discounted gain of the best possible ten, 0 where no document has a gain: nothing is measured there.
    """

    grades: Any
    ideal: Float64

    @classmethod
    def of(cls, qrels: Judgments, query_ids: Sequence[str], doc_ids: Sequence[str]) -> Graded:
        """The labels of *query_ids* over *doc_ids*; negative grades count as 0, absent documents for the ideal."""
        from scipy.sparse import csr_array

        column = {doc: i for i, doc in enumerate(doc_ids)}
        rows, columns, values = [], [], []
        ideal = np.zeros(len(query_ids))
        for row, query in enumerate(query_ids):
            relevant = {doc: float(grade) for doc, grade in qrels.get(query, {}).items() if grade > 0}
            ideal[row] = dcg(np.array(sorted(relevant.values(), reverse=True)))
            indexed = [doc for doc in relevant if doc in column]
            rows += [row] * len(indexed)
            columns += [column[doc] for doc in indexed]
            values += [relevant[doc] for doc in indexed]
        shape = (len(query_ids), len(column))
        return cls(csr_array((values, (rows, columns)), shape=shape, dtype=np.float64), ideal)

    def __call__(self, rows: IntArray, ranked: IntArray) -> Float64:
        """nDCG@10 (m,) of the queries *rows* (m,) that are shown the documents *ranked* (m, k), best first."""
        first = ranked[:, :PLACES]
        if not first.size:
            return np.zeros(len(rows))
        gains = np.asarray(self.grades[np.repeat(rows, first.shape[1]), first.ravel()]).reshape(first.shape)
        return ndcg(gains, self.ideal[rows])


def mean_interval(differences: Float64, *, level: float = 0.9) -> tuple[float, float]:
    """Bootstrap percentile interval of the mean of paired differences (n,), over queries; of the gate's level."""
    if not differences.size:
        return float("nan"), float("nan")
    means = np.concatenate([differences[drawn].mean(axis=1) for drawn in draws(len(differences), 0)])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def draws(n: int, seed: int) -> Iterator[IntArray]:
    """Blocks (r, n) of the observations that each resample draws, `RESAMPLES` rows in all; the same each time."""
    rng = np.random.default_rng([seed, n])
    kind = np.uint16 if n <= 2**16 else np.uint32
    step = max(1, _DRAWN // n)
    for first in range(0, RESAMPLES, step):
        yield rng.integers(0, n, (min(step, RESAMPLES - first), n), dtype=kind).astype(np.intp)
