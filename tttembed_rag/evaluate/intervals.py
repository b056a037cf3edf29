"""The uncertainty of a mean over queries: a bootstrap interval."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Resamples of a bootstrap.
RESAMPLES = 1_000
# The interval's level, which is the gate's.
_LEVEL = 0.9
# Numbers drawn at a time, so that memory does not grow with the queries.
_DRAWN = 1_000_000


def mean_interval(differences: Float64) -> tuple[float, float]:
    """Bootstrap percentile interval of the mean of paired differences (n,), over queries."""
    if not differences.size:
        return float("nan"), float("nan")
    means = np.concatenate([differences[drawn].mean(axis=1) for drawn in draws(len(differences), 0)])
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def draws(n: int, seed: int) -> Iterator[IntArray]:
    """Blocks (r, n) of the observations that each resample draws, `RESAMPLES` rows in all; the same each time."""
    rng = np.random.default_rng([seed, n])
    kind = np.uint16 if n <= 2**16 else np.uint32
    step = max(1, _DRAWN // n)
    for first in range(0, RESAMPLES, step):
        yield rng.integers(0, n, (min(step, RESAMPLES - first), n), dtype=kind).astype(np.intp)
