"""Gaussian-process regression of private offsets: an offset that depends on where the query lies.

The private optima w_i of rewarded queries x_i are noisy observations of a function v(x) with prior mean zero and
covariance k(x, y) = exp((x·y - 1) / h) in each coordinate. The noise of w_i is kappa / r_i, r_i being how far the
rewards of query i reach, over the mean reach: a query whose rewards hardly differ says little. With all queries as
landmarks the posterior mean is k(x)' (K + D)^-1 W (Rasmussen and Williams 2006, Eq. 2.25); above `LANDMARKS` queries
it is the subset-of-regressors approximation on a sample of them (their section 8.3.1), which costs O(n m^2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tttembed_rag.offsets.kernel import KernelMap, bandwidth_of, kernel_of
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

# Landmarks at most, and bytes of them and their weights in float32: what serving reads for every query.
LANDMARKS = 256
_LANDMARK_BYTES = 1 << 21
# Least and most of how far the rewards of a query reach, over the mean.
_LEAST_REACH, _MOST_REACH = 0.05, 1.5
# Added to the diagonal of the landmarks' kernel matrix, against rounding.
_JITTER = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """The regression in the m coordinates phi(x) = L^-1 k_m(x), with L L' the kernel matrix of the landmarks.

    In these coordinates it is ridge regression with ridge 1: the coefficients are C = G^-1 R with
    G = I + sum phi_i phi_i' / noise_i and R = sum phi_i w_i' / noise_i.

    Attributes:
        landmarks: (m, d) unit vectors.
        bandwidth: h, in units of cosine.
        factor: (m, m) L.
        features: (n, m) phi of the rewarded queries.
        precision: (n,) 1 / noise.
        targets: (n, d) private optima W.
    """

    landmarks: FloatArray
    bandwidth: float
    factor: Float64
    features: Float64
    precision: Float64
    targets: FloatArray

    @classmethod
    def of(
        cls,
        rewards: Rewards,
        targets: FloatArray,
        kappa: float,
        *,
        weights: Float64 | None = None,
        groups: IntArray | None = None,
        bandwidth: float | None = None,
        share: float = 1.0,
    ) -> Local:
        """The regression of *targets* on the queries of *rewards*, one task.

        A query with rewards of mean reach has a noise of *kappa* prior variances, and twice that where its *weights*
        (n,) give it half a voice. Landmarks are of different *groups* (n,), of different texts where there are none.
        The *bandwidth* is a *share* of that of the queries, unless one is given.
        """
        voices = np.ones(len(rewards)) if weights is None else weights
        rows = _landmark_rows(rewards, rewards.same_queries if groups is None else groups)
        unit = np.asarray(rewards.queries.unit, dtype=np.float64)
        bandwidth = bandwidth or bandwidth_of(unit, voices, rewards.spread, share)
        reach = rewards.reach / max(float(rewards.reach.mean()), np.finfo(np.float64).tiny)
        kernel = kernel_of(unit, unit[rows], bandwidth)
        factor = np.asarray(np.linalg.cholesky(kernel[rows] + _JITTER * np.eye(len(rows))), dtype=np.float64)
        features = _solved_lower(factor, kernel.T).T
        precision = voices * np.clip(reach, _LEAST_REACH, _MOST_REACH) / max(kappa, _JITTER)
        landmarks = unit[rows].astype(targets.dtype)
        return cls(landmarks, bandwidth, factor, features, precision, targets)

    def map(self) -> KernelMap:
        """The regression as a function of the query, for serving."""
        coefficients = np.asarray(np.linalg.solve(*self._system()), dtype=np.float64)
        weights = _solved_lower(self.factor, coefficients, transposed=True)
        return KernelMap(self.landmarks, weights.astype(self.landmarks.dtype), self.bandwidth)

    def held_out(self, fold: IntArray) -> Float64:
        """(n, d) v at each rewarded query, learned from the folds without it; *fold* is (n,)."""
        gram, right = self._system()
        predicted = np.empty((len(fold), right.shape[1]))
        for number in np.unique(fold):
            rows = np.flatnonzero(fold == number)
            features = self.features[rows]
            weighted = self.precision[rows, None] * features
            rest = np.linalg.solve(gram - weighted.T @ features, right - weighted.T @ self.targets[rows])
            predicted[rows] = features @ rest
        return predicted

    @property
    def residual(self) -> float:
        """Norm of G C - R relative to that of R: what the solved system leaves over."""
        gram, right = self._system()
        size = float(np.linalg.norm(right))
        return float(np.linalg.norm(gram @ np.linalg.solve(gram, right) - right)) / size if size else 0.0

    def _system(self) -> tuple[Float64, Float64]:
        """G (m, m) and R (m, d)."""
        weighted = self.precision[:, None] * self.features
        return np.eye(self.features.shape[1]) + weighted.T @ self.features, weighted.T @ self.targets


def _landmark_rows(rewards: Rewards, groups: IntArray) -> IntArray:
    """Rows of queries that stand for all: one of each group, or a sample of the groups, in the order of *rewards*.

    Groups are numbered by a hash of their vectors, so that the sample does not depend on the order of the queries.
    """
    most = max(1, min(LANDMARKS, _LANDMARK_BYTES // (8 * rewards.width)))
    first = np.unique(groups, return_index=True)[1]
    if len(first) > most:
        first = np.random.default_rng(0).permutation(first)[:most]
    return np.sort(first)


def _solved_lower(factor: Float64, right: Float64, *, transposed: bool = False) -> Float64:
    """L^-1 *right*, or L'^-1 *right* where *transposed*, of a lower triangular *factor* L."""
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(factor, right, lower=True, trans=1 if transposed else 0, check_finite=False))
