"""What an offset gains on held-out queries: its mean, and bounds that hold on few queries too."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from tttembed_rag.gate.thresholds import EXPECTED_ERROR, LEVEL, TYPICAL_GAIN, TYPICAL_WEIGHT
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64


@dataclass(frozen=True, slots=True)
class Gain:
    """A mean gain with what Student's t needs of it.

    Attributes:
        mean: The mean, of what was measured or shrunk by one pseudo-observation.
        error: Its standard error.
        freedom: Degrees of freedom; 0 where there is nothing to hold out.
    """

    mean: float
    error: float
    freedom: float

    @classmethod
    def of(
        cls,
        gains: Float64,
        weights: Float64,
        groups: IntArray,
        *,
        typical: float,
        expected: float = 0.0,
        most: float = math.inf,
    ) -> Gain:
        """The mean of *gains* (n,) under *weights*, a group being one observation.

        One pseudo-observation of the *expected* gain is added (the prior behind the paper's kappa = 1), and the
        variance is that of `TYPICAL_WEIGHT` more observations that deviate by *typical*. Unequal weights count as
        1 / sum w^2 observations (Kish 1965), and as no more than *most*.
        """
        w, x = _observations(gains, weights, groups)
        if len(w) < 2:
            return cls(expected, math.inf, 0.0)
        count = min(1.0 / float(w @ w), most)
        w, x = np.append(w * count, 1.0) / (count + 1.0), np.append(x, expected)
        mean = float(w @ x)
        observed = float(w**2 @ (x - mean) ** 2) * (count + 1.0) ** 2
        variance = (observed + TYPICAL_WEIGHT * typical**2) / (count + TYPICAL_WEIGHT)
        return cls(mean, math.sqrt(variance / (count + 1.0)), count)

    @classmethod
    def measured(cls, gains: Float64, weights: Float64, groups: IntArray, *, most: float = math.inf) -> Gain:
        """The mean of *gains* as it is, with the standard error of as many observations as `of` counts."""
        w, x = _observations(gains, weights, groups)
        mean = float(w @ x)
        count = min(1.0 / float(w @ w), most)
        if len(w) < 2 or count <= 1.0:
            return cls(mean, math.inf, 0.0)
        return cls(mean, math.sqrt(float(w @ (x - mean) ** 2) / (count - 1.0)), count - 1.0)

    def below(self, level: float) -> float:
        """The lower bound of the mean at one-sided *level*."""
        return self.mean - self._student(level) * self.error if self.freedom else -math.inf

    def above(self, level: float) -> float:
        """The upper bound of the mean at one-sided *level*."""
        return self.mean + self._student(level) * self.error if self.freedom else math.inf

    def interval(self, level: float) -> tuple[float, float] | None:
        """The bounds of a mean change of nDCG, each at one-sided *level*, as far as it can change at all.

        None where there is nothing to hold out.
        """
        return (max(self.below(level), -1.0), min(self.above(level), 1.0)) if self.freedom else None

    def posterior(self, prior: float) -> float:
        """The mean of what was measured, with a variance as in `of`, and of a *prior* with error `EXPECTED_ERROR`."""
        if not self.freedom:
            return prior
        count = self.freedom + 1.0
        spread = ((count * self.error) ** 2 + TYPICAL_WEIGHT * TYPICAL_GAIN**2) / (count + TYPICAL_WEIGHT)
        measured = EXPECTED_ERROR**2 / (EXPECTED_ERROR**2 + spread / count)
        return measured * self.mean + (1.0 - measured) * prior

    def doubt(self, *, believed: bool) -> str:
        """Why it publishes nothing, in words; empty where it is proven, or expected of a judge who is *believed*."""
        if self.mean <= 0:
            return "they are ranked no better"
        return "" if believed or self.below(LEVEL) > 0 else "the improvement is within its error"

    def needed(self, n: int) -> int | None:
        """How many more observations than *n* would bring the lower bound above zero, if mean and spread stay.

        None where it would take more than ten times as many: so small a gain is no ground to count on.
        """

        def proven(more: int) -> bool:
            times = 1 + more / n
            return replace(self, error=self.error / math.sqrt(times), freedom=self.freedom * times).below(LEVEL) > 0

        more = bisect_left(range(1, 10 * n + 1), True, key=proven) + 1
        return more if more <= 10 * n else None

    def _student(self, level: float) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 1 - level))


# Why nothing is published that was measured to lie below zero.
WORSE = "their first ten places get worse"
# What is known before anything was measured.
UNMEASURED = Gain(0.0, math.inf, 0.0)


def _observations(gains: Float64, weights: Float64, groups: IntArray) -> tuple[Float64, Float64]:
    """Weight, summing to 1, and mean gain of each group that has a weight."""
    total = np.bincount(groups, weights)
    kept = total > 0
    w = np.asarray(total[kept] / total.sum(), dtype=np.float64)
    return w, np.asarray(np.bincount(groups, weights * gains)[kept] / total[kept])
