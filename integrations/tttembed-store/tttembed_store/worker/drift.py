"""Drift: whether fresh queries and rewards are still like those that were learned from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, unit

# Vectors of each side that are compared at most: bounds time (a tenth of a second) and memory (8 MB).
_SAMPLE = 512
# Random splits that an energy distance is compared with; one that is larger than all of theirs has p = .001.
_SPLITS = 999
# Where a difference is beyond chance, and how large it must be to matter.
_LEVEL, _EFFECT = 0.002, 0.05


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the queries that come *now* are from those *before* that were learned from, so many of each.

    *what* says in words what was compared, and the unit of the *effect*, which is the size of the difference; *p* is
    the probability of so large a one between queries of the same kind.
    """

    what: str
    before: int
    now: int
    p: float
    effect: float

    def seen(self) -> bool:
        """Whether the difference is beyond chance and large enough to matter."""
        return self.p <= _LEVEL and self.effect >= _EFFECT

    def __str__(self) -> str:
        return f"{self.what} {self.effect:.3f}, p = {self.p:.3g} ({self.before} before, {self.now} now)"


def query_drift(before: FloatArray, now: FloatArray, *, seed: int = 0) -> Drift:
    """A permutation test of whether query vectors *now* (m, d) have the distribution of those *before* (n, d).

    The energy distance E = 2 mean|x - y| - mean|x - x'| - mean|y - y'| of unit vectors is 0 only for equal
    distributions. It is compared with that of random splits of all vectors together, which are as likely where
    nothing drifted: the test is exact for any n and m >= 2. The effect is E / (2 mean|x - y|), from 0 to 1. The *seed*
    is that of the splits, and of the `_SAMPLE` vectors of each side that are compared where there are more.
    """
    rng = np.random.default_rng(seed)
    samples = [vectors[rng.permutation(len(vectors))[:_SAMPLE]] for vectors in (before, now)]
    sides = [unit(sample.astype(np.float64)) for sample in samples]
    n, m = map(len, sides)
    both = np.concatenate(sides)
    distance = np.sqrt(np.maximum(2.0 - 2.0 * both @ both.T, 0.0))
    # With a = 1/n on one side and -1/m on the other, E = -a' D a; each split permutes a.
    observed = np.concatenate([np.full(n, 1 / n), np.full(m, -1 / m)])
    splits = np.concatenate([observed[None], rng.permuted(np.tile(observed, (_SPLITS, 1)), axis=1)])
    energy = -np.vecdot(splits @ distance, splits)
    as_large = int((energy[1:] >= energy[0] - 1e-9).sum())
    across = 2.0 * float(distance[:n, n:].mean())
    effect = max(0.0, float(energy[0])) / across if across > 0 else 0.0
    return Drift("queries moved by", len(before), len(now), (as_large + 1) / (_SPLITS + 1), effect)


def reward_drift(before: Rewards, now: Rewards) -> Drift:
    """A test of whether one judge's rewards *now* have another mean or spread than *before*.

    A query is one observation. The two-sample Kolmogorov-Smirnov test compares the mean reward of queries, and the
    spread of rewards within a query; the smaller p of both is doubled. The effect is the larger change of the two
    averages, in units of reward. A better offset brings better candidates: a mean that rises after publication is no
    fault.
    """
    from scipy.stats import ks_2samp

    sides = [
        np.array([(part.mean(), part.std()) for part in np.split(x.values, x.starts[1:-1])]) for x in (before, now)
    ]
    tests = [ks_2samp(sides[0][:, i], sides[1][:, i]).pvalue for i in range(2)]
    effect = float(np.abs(sides[1].mean(axis=0) - sides[0].mean(axis=0)).max())
    return Drift("rewards moved by", len(before), len(now), min(1.0, 2.0 * float(min(tests))), effect)
