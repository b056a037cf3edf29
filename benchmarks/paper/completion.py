"""The completed matrix of queries and documents: judged pairs keep their reward, the others are estimated from them.

After EARM (Feng, Ding and Fan 2026, arXiv 2608.22767), which keeps sparse scores of a judge, completes the matrix and
orders candidates by what is known and what is estimated. Its abstract is all that we could read: how the matrix is
completed, and how much an estimate counts beside the cosine, is our reading. What is completed are deviations from the
mean reward of each query, so that a document of which nothing is known keeps its place. Settings are chosen per task by
the reward-weighted nDCG of judged queries that are left out in turn; to leave the search as it is is one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeAlias

import numpy as np

from benchmarks.paper.dart import ORDERED
from benchmarks.paper.rivals import reward_ndcg
from tttembed_rag import Rewards
from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.vectors.checks import FloatArray, IntArray, unit
from tttembed_rag.vectors.rows import Float64

# How much an estimated deviation counts beside a cosine; 0 is the search as it is.
_WEIGHTS = (0.0, 0.03, 0.1, 0.3, 1.0)
# By how much the cosine of two queries falls until one says 1/e as much about the other.
_REACHES = (0.05, 0.1, 0.2)
# What pulls estimates to zero: as much as a reward of a query this similar.
_RIDGE = 0.1
_FACTORS = 8
_SWEEPS = 10
_FOLDS = 5

# Kernels (m, n) of other queries and judged ones to the estimates (m, D) of the others.
Estimates: TypeAlias = Callable[[Float64], Float64]
# Deviations (n, D) of judged queries, and whether each is known, to what estimates those of others.
Completion: TypeAlias = Callable[[Float64, Float64], Estimates]


def by_kernel(known: Float64, present: Float64) -> Estimates:
    """Kernel regression over queries, document by document."""
    return lambda kernel: np.asarray(kernel @ known / (kernel @ present + _RIDGE))


def by_factors(known: Float64, present: Float64) -> Estimates:
    """Alternating least squares of a low rank; a new query has the factors of judged ones, by kernel regression."""
    start = np.random.default_rng(0).standard_normal((len(known), min(_FACTORS, *known.shape)))
    queries = np.linalg.qr(known @ (known.T @ start))[0]
    for _ in range(_SWEEPS):
        documents = _solved(known.T, present.T, queries)
        queries = _solved(known, present, documents)
    return lambda kernel: kernel @ queries / (kernel.sum(axis=1, keepdims=True) + _RIDGE) @ documents.T


def _solved(known: Float64, present: Float64, others: Float64) -> Float64:
    """Ridge regression of each row of *known* on the factors *others* (D, r) of what it has."""
    squares = np.einsum("dr,ds->drs", others, others).reshape(len(others), -1)
    normal = (present @ squares).reshape(len(known), others.shape[1], -1) + _RIDGE * np.eye(others.shape[1])
    return np.asarray(np.linalg.solve(normal, (known @ others)[..., None])[..., 0])


@dataclass(frozen=True, slots=True, eq=False)
class _Matrix:
    """The matrix of one task.

    Attributes:
        queries: (n, d) unit vectors of judged queries.
        columns: Rows of judged documents in the collection.
        known: (n, D) deviations from the mean reward of the query, 0 where not judged.
        present: (n, D) whether a pair was judged.
    """

    queries: Float64
    columns: IntArray
    known: Float64
    present: Float64

    @classmethod
    def of(cls, collection: Collection, rows: IntArray, rewards: Rewards) -> _Matrix:
        found = [collection.candidates(q, d) for q, d in zip(rows.tolist(), rewards.depths.tolist(), strict=True)]
        columns = np.unique(np.concatenate([documents for documents, _ in found]))
        known, present = np.zeros((2, len(rows), len(columns)))
        for at, (documents, scores) in enumerate(found):
            values = collection.scale.to_unit(scores)
            places = np.searchsorted(columns, documents)
            known[at, places] = values - values.mean()
            present[at, places] = 1.0
        return cls(_unit(collection.query_vectors[rows]), columns, known, present)

    def kernel(self, queries: Float64, reach: float) -> Float64:
        """(m, n) how much each judged query says about each of *queries*."""
        return np.asarray(np.exp((queries @ self.queries.T - 1.0) / reach))

    def left_out(self, complete: Completion) -> dict[float, Float64]:
        """By reach: (n, D) estimates of judged queries, each from the other folds."""
        estimates, folds = {reach: np.zeros_like(self.known) for reach in _REACHES}, np.arange(len(self.known)) % _FOLDS
        for fold in np.unique(folds).tolist() if len(folds) > 1 else []:
            out = folds == fold
            estimate = complete(self.known[~out], self.present[~out])
            for reach in _REACHES:
                estimates[reach][out] = estimate(self.kernel(self.queries[out], reach)[:, ~out])
        return estimates


def _unit(vectors: FloatArray) -> Float64:
    """Unit vectors in double precision."""
    return np.asarray(unit(vectors.astype(np.float64)), dtype=np.float64)


def completed(collection: Collection, rows: IntArray, rewards: Rewards, *, complete: Completion) -> Float64:
    """nDCG@10 (M,) of the first hundred in the order of cosine and completed deviations."""
    matrix = _Matrix.of(collection, rows, rewards)
    documents = _unit(collection.doc_vectors)
    similar = matrix.queries @ documents[matrix.columns].T
    gains = np.where(matrix.present > 0, matrix.known - matrix.known.min(axis=1, keepdims=True), 0.0)

    def gained(reach: float, weight: float) -> float:
        moved = similar + weight * estimates[reach]
        return float(reward_ndcg(moved, gains, matrix.present > 0).mean())

    estimates = matrix.left_out(complete)
    reach, weight = max(product(_REACHES, _WEIGHTS), key=lambda setting: gained(*setting))
    estimate = complete(matrix.known, matrix.present)
    everyone, place = np.arange(len(collection.raw)), np.full(len(documents), -1)
    place[matrix.columns] = np.arange(len(matrix.columns))
    own = np.full(len(everyone), -1)
    own[rows] = np.arange(len(rows))
    lists = collection.base[:, :ORDERED].copy()
    for batch in np.array_split(everyone, -(-len(everyone) // 256)):
        queries = _unit(collection.query_vectors[batch])
        moved = weight * estimate(matrix.kernel(queries, reach))
        judged = own[batch] >= 0
        mine = own[batch][judged]
        moved[judged] = np.where(matrix.present[mine] > 0, matrix.known[mine], moved[judged])
        listed = lists[batch]
        added = np.where(place[listed] >= 0, np.take_along_axis(moved, np.maximum(place[listed], 0), 1), 0.0)
        scores = np.einsum("qd,qkd->qk", queries, documents[listed], optimize=True) + added
        lists[batch] = np.take_along_axis(listed, np.argsort(-scores, axis=1, kind="stable"), 1)
    return collection.graded(everyone, lists)


COMPLETIONS: Mapping[str, Callable[[Collection, IntArray, Rewards], Float64]] = {
    "completed matrix, kernel": partial(completed, complete=by_kernel),
    "completed matrix, factors": partial(completed, complete=by_factors),
}
