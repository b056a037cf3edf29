"""The uncertainty of means over tasks: bootstrap intervals, a paired test, and its correction for many tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tttembed_rag.evaluate.measures import RESAMPLES, draws
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % interval; NaN where nothing was measured."""

    mean: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """The estimate in another unit."""
        return Estimate(self.mean * factor, self.low * factor, self.high * factor)


def task_means(values: Float64, tasks: IntArray) -> list[Estimate]:
    """Means (C,) of *values* (C, S, N): over the queries of each task, then over tasks, tasks weighing the same.

    The interval is a bootstrap over queries within their tasks and over seeds; the columns share its
    resamples, so their differences are paired.

    Args:
        values: C columns of S seeds of N queries, NaN where a query is not of the population.
        tasks: (N,) number of each query's task.
    """
    means, over_tasks = _resampled(values, tasks)
    return [_estimate(float(mean), drawn) for mean, drawn in zip(means, over_tasks, strict=True)]


def task_shares(values: Float64, whole: Float64, tasks: IntArray, *, least: float) -> list[Estimate]:
    """Means over tasks of the columns of *values* (C, S, N), each over that of *whole* (S, N), which is paired to them.

    It is a ratio of means, so that a task counts by how much it has to give; NaN where that of *whole* is below
    *least* > 0.
    """
    means, over_tasks = _resampled(np.concatenate([values, whole[None]]), tasks)
    if not means[-1] >= least:
        return [Estimate(np.nan, np.nan, np.nan)] * len(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares, drawn = means[:-1] / means[-1], over_tasks[:-1] / over_tasks[-1]
    return [_estimate(float(share), one) for share, one in zip(shares, drawn, strict=True)]


def _resampled(values: Float64, tasks: IntArray) -> tuple[Float64, Float64]:
    """Means (C,) over tasks of *values* (C, S, N), and the same of every resample (C, R)."""
    columns, seeds, _ = values.shape
    shape = (2, columns, seeds)
    picked = np.random.default_rng(0).integers(0, seeds, (RESAMPLES, 1, seeds))
    means, resampled = [], []
    for task in np.unique(tasks).tolist():
        of_task = values[:, :, tasks == task]
        measured = np.isfinite(of_task)
        if not measured.any():
            continue
        both = np.array([np.where(measured, of_task, 0.0), measured], dtype=np.float64)
        flat = both.reshape(-1, of_task.shape[2]).T
        drawn = np.concatenate([counts @ flat for counts in _counts(len(flat), task + 1)])
        sums, sizes = np.moveaxis(drawn.reshape(RESAMPLES, *shape), 1, 0)
        with np.errstate(invalid="ignore"):
            means.append(np.divide(*both.sum(axis=(2, 3))))
            sums, sizes = (np.take_along_axis(part, picked, 2).sum(axis=2) for part in (sums, sizes))
            resampled.append(sums / sizes)
    if not means:
        return np.full(columns, np.nan), np.full((columns, 1), np.nan)
    return np.mean(means, axis=0), np.mean(resampled, axis=0).T


def _estimate(mean: float, resampled: Float64) -> Estimate:
    """The mean with the quantiles of its resamples; a resample without any query of the population is left out."""
    measured = resampled[np.isfinite(resampled)]
    if np.isnan(mean) or not measured.size:
        return Estimate(np.nan, np.nan, np.nan)
    return Estimate(mean, *map(float, np.quantile(measured, [0.025, 0.975])))


def paired_p(differences: Float64, tasks: IntArray) -> float:
    """Two-sided p of Student's paired test that the task-balanced mean of *differences* (N,) is zero."""
    from scipy.stats import ttest_1samp

    measured = np.isfinite(differences)
    names, task, count = np.unique(tasks[measured], return_inverse=True, return_counts=True)
    weighted = differences[measured] * measured.sum() / (len(names) * count[task])
    if len(weighted) < 2:
        return 1.0
    if not np.ptp(weighted) > 0:
        return 1.0 if not weighted.any() else 0.0
    return float(ttest_1samp(weighted, 0.0).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """The p values, corrected for their number (Holm 1979)."""
    order = np.argsort(p)
    steps = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return [float(value) for value in corrected]


def _counts(n: int, seed: int) -> Iterator[Float64]:
    """The same draws as counts: blocks (r, n) of how often a resample draws each observation."""
    for drawn in draws(n, seed):
        own_bins = drawn + np.arange(len(drawn))[:, None] * n
        yield np.bincount(own_bins.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)
