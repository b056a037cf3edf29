"""What an offset gains on held-out queries: nDCG@10 of judged candidates, its mean and its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.objectives import PADDING
from tttembed_rag.gate.thresholds import INTERVAL_LEVEL, SURFACED, TYPICAL, TYPICAL_WEIGHT
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

_DEPTH = 10


def judged_ndcg(grid: Grid, scores: Float64) -> Float64:
    """(n,) nDCG@10 of the judged candidates in order of *scores*.

    Gains are rewards above the query's least: a judge that never says 0 tells as much as one that does.
    """
    least = np.where(grid.present, grid.rewards, np.inf).min(axis=1, keepdims=True)
    rewards = np.where(grid.present, grid.rewards - least, 0.0)
    order = _first_ten(grid, scores)
    depth = order.shape[1]
    discount = 1.0 / np.log2(np.arange(2, depth + 2))
    ideal = -np.sort(-rewards, axis=1)[:, :depth] @ discount
    return np.asarray((np.take_along_axis(rewards, order, axis=1) @ discount) / np.where(ideal > 0, ideal, 1.0))


def displaced(grid: Grid, scores: Float64) -> Float64:
    """(n,) share of the first ten candidates in base order that are not among the first ten by *scores*."""
    before, after = np.zeros((2, *scores.shape), dtype=bool)
    np.put_along_axis(before, _first_ten(grid, grid.base), values=True, axis=1)
    np.put_along_axis(after, _first_ten(grid, scores), values=True, axis=1)
    return np.asarray((before & ~after).sum(axis=1) / np.minimum(_DEPTH, grid.present.sum(axis=1)))


def _first_ten(grid: Grid, scores: Float64) -> IntArray:
    """(n, at most 10) places of the present candidates with the highest *scores*, absent ones last."""
    return np.argsort(np.where(grid.present, -scores, -PADDING), axis=1, kind="stable")[:, :_DEPTH]


@dataclass(frozen=True, slots=True)
class Gain:
    """A mean gain with what Student's t needs of it.

    Attributes:
        mean: The mean, shrunk by one pseudo-observation of zero.

        error: Its standard error.

        freedom: Degrees of freedom; 0 where there is nothing to hold out.

        moved: Mean share of the first ten candidates that was displaced.
    """

    mean: float
    error: float
    freedom: float
    moved: float

    @classmethod
    def of(cls, gains: Float64, moved: Float64, weights: Float64, groups: IntArray) -> Gain:
        """The mean of *gains* (n,) under *weights*, summing to 1, a group being one observation.

        One pseudo-observation of zero gain is added (the prior behind the paper's kappa = 1), and the variance
        is that of `TYPICAL_WEIGHT` more observations that deviate by `TYPICAL`: a few queries that happen to
        agree are no certainty. Unequal weights count as 1 / sum w^2 observations (Kish).
        """
        share = float(weights @ moved)
        total = np.bincount(groups, weights)
        kept = total > 0
        w = np.asarray(total[kept], dtype=np.float64)
        x = np.asarray(np.bincount(groups, weights * gains)[kept] / w)
        if len(w) < 2:
            return cls(float(w @ x), math.inf, 0.0, share)
        count = 1.0 / float(w @ w)
        w, x = np.append(w * count, 1.0) / (count + 1.0), np.append(x, 0.0)
        mean = float(w @ x)
        seen = float(w**2 @ (x - mean) ** 2) * (count + 1.0) ** 2
        variance = (seen + TYPICAL_WEIGHT * TYPICAL**2) / (count + TYPICAL_WEIGHT)
        return cls(mean, math.sqrt(variance / (count + 1.0)), count, share)

    def below(self, level: float) -> float:
        """How far the gain on judged candidates may lie below what was seen: the lower bound at one-sided *level*."""
        return self.mean - self._student(level) * self.error if self.freedom else -math.inf

    def above(self, level: float) -> float:
        """How far it may lie above: the upper bound at one-sided *level*."""
        return self.mean + self._student(level) * self.error if self.freedom else math.inf

    def after(self, more: float) -> Gain:
        """What it would be with *more* times as many observations again, if the mean and the spread stay."""
        return replace(self, error=self.error / math.sqrt(1 + more), freedom=self.freedom * (1 + more))

    @property
    def interval(self) -> tuple[float, float]:
        """The 90 % interval of the change of the full search, where unjudged documents surface too."""
        if not self.freedom:
            return -math.inf, math.inf
        reach = self._student(INTERVAL_LEVEL) * math.hypot(self.error, SURFACED * self.moved)
        return self.mean - reach, self.mean + reach

    def _student(self, level: float) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 1 - level))
