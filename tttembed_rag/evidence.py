"""What rewards can prove: a common direction, agreement with the retriever, and a held-out gain.

Two questions come before any offset. Do the rewards of different queries pull in one direction, and do
they agree with the retriever that found the candidates? Both are answered exactly, without a fit, by
dealing each query's rewards anew among its candidates: under rewards that mean nothing every deal is as
likely as the one observed. The third question, how much an offset gains, is answered by cross-fitting:
each query is ranked by an offset it did not train.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting import Recipe, scope_weights, solve_shared
from tttembed_rag.objectives import PADDING
from tttembed_rag.problems import Grid
from tttembed_rag.rewards import Rewards
from tttembed_rag.unitrows import Float64
from tttembed_rag.vectors import FloatArray, IntArray

# Deals of each query's rewards. What beats all of them has p <= 1 / (DEALS + 1) = 0.5 %: with one such
# question for the shared and one for the private offsets, a worthless judge passes in at most 1 % of tasks.
DEALS = 199
FOLDS = 5
# One-sided level of the bounds of the change of the search: together a 90 % interval.
INTERVAL_LEVEL = 0.05
# How far the change of the full search lies from the gain on judged candidates, beyond sampling error: root mean
# square per share of the first ten that is displaced, over 165 offsets that displace 5 % or more on the development
# half of benchmarks/harm.py. There 87 % of the intervals of published offsets held the change.
SURFACED = 0.12
# How far the gain of one query typically lies from the mean gain (.05 to .15 over 45 fits of five of those sets),
# and how many observations that knowledge is worth.
TYPICAL = 0.1
TYPICAL_WEIGHT = 4.0
_DEPTH = 10
# Numbers a block of dealt pulls may hold (4 or 8 bytes each).
_BLOCK_NUMBERS = 8_000_000
# A held-out gain is a matter of order, not of digits: fold offsets are solved to this many tolerances. In 72 fits
# of real rewards no verdict was another one than at 10.
_LOOSER = 30.0
# Centred rewards shorter than this are all the same but for rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """Where the observed rewards stand among `DEALS` deals of them, per task in the order of *tasks*.

    Attributes:
        tasks: The task keys, sorted; the counts have one more entry, for all of them together.

        common: Deals that pull a task's queries and all other queries together as much as observed.

        agreeing: Deals that agree with the base order of the task's candidates as much as observed.

        opposed: Deals that contradict it as much as observed.
    """

    tasks: NDArray[np.str_]
    common: IntArray
    agreeing: IntArray
    opposed: IntArray

    def has_direction(self, task: str | None = None) -> bool:
        """Whether queries of *task*, or all, pull in one direction, more than in any deal."""
        return not self._of(self.common, task)

    def agrees(self, *, level: float = 1 / (DEALS + 1)) -> bool:
        """Whether the rewards follow the retriever's order more than chance would at *level*: than in any deal."""
        return self._of(self.agreeing, None) < level * (DEALS + 1)

    def is_backwards(self, task: str | None = None) -> bool:
        """Whether the rewards contradict the retriever's order, more than in any deal."""
        return not self._of(self.opposed, task)

    def _of(self, counts: IntArray, task: str | None) -> int:
        return int(counts[-1] if task is None else counts[np.searchsorted(self.tasks, task)])


def signal_of(rewards: Rewards, groups: IntArray) -> Signal:
    """Whether *rewards* mean anything, by what other deals of the same rewards would show.

    Query q pulls along g_q = sum_i c_i (z_i - (x_q·z_i) x_q): its rewards c, centred and of unit length,
    times the gradients of its similarities in the offset at v = 0. A task's statistic is the sum of
    g_q · g_p over its queries q and all other queries p (of other groups); its agreement with the
    retriever is sum c_i x_q·z_i.

    Args:
        rewards: Judged candidates.

        groups: (n,) queries of the same group are one query.
    """
    tasks, task = np.unique(rewards.tasks, return_inverse=True)
    # Whole groups in one order, so that the same rewards are dealt alike in any order of queries.
    order = np.lexsort((rewards.query_ids, rewards.tasks, groups))
    step = max(1, _BLOCK_NUMBERS // ((DEALS + 1) * int(rewards.depths.max())))
    block = np.searchsorted(groups[order], groups[order]) // step
    sums = np.zeros((len(tasks), DEALS + 1, rewards.width), rewards.doc_vectors.dtype)
    own, agreement = np.zeros((2, len(tasks), DEALS + 1))
    rng = np.random.default_rng(0)
    for rows in np.split(order, np.flatnonzero(np.diff(block)) + 1):
        part = rewards.take(rows)
        grid = Grid.of(part)
        dealt = _dealt(grid, groups[rows], rng)
        agreements = np.matvec(dealt, grid.base)
        docs, queries = part.documents.unit, part.queries.unit
        np.add.at(agreement, task[rows], agreements)
        np.add.at(own, task[rows], _within_groups(dealt, agreements, docs[grid.slots], groups[rows]))
        for t in np.unique(task[rows]):
            mine = task[rows] == t
            weights = dealt[mine].transpose(1, 0, 2).astype(docs.dtype).reshape(DEALS + 1, -1)
            sums[t] += weights @ docs[grid.slots[mine].ravel()]
            sums[t] -= agreements[mine].T.astype(docs.dtype) @ queries[mine]
    common = np.vecdot(sums, sums.sum(axis=0)) - own
    return Signal(tasks, _reached(common, own), _reached(agreement, agreement), _reached(-agreement, agreement))


def _dealt(grid: Grid, groups: IntArray, rng: np.random.Generator) -> Float64:
    """(n, DEALS + 1, k) centred rewards of unit length, first as observed, then dealt anew, alike in a group."""
    count = np.maximum(grid.present.sum(axis=1, keepdims=True), 1)
    mean = np.where(grid.present, grid.rewards, 0.0).sum(axis=1, keepdims=True) / count
    centred = np.where(grid.present, grid.rewards - mean, 0.0)
    length = np.sqrt(np.vecdot(centred, centred))[:, None]
    centred /= np.where(length > _ROUNDING, length, np.inf)
    distinct, group = np.unique(groups, return_inverse=True)
    keys = rng.random((len(distinct), DEALS, centred.shape[1]), dtype=np.float32)[group]
    keys = np.where(grid.present[:, None], keys, 2.0)  # absent candidates stay behind the others
    dealt = np.take_along_axis(centred[:, None], np.argsort(keys, axis=2), axis=2)
    return np.concatenate([centred[:, None], dealt], axis=1)


def _within_groups(dealt: Float64, agreements: Float64, candidates: FloatArray, groups: IntArray) -> Float64:
    """(n, deals) pull of each query times that of its group: its own where it was logged once.

    Queries of a group are one vector x, so the part of a pull that is not along x is g·g' = c z·z' c' - (c s)(c' s').
    """
    group = np.unique(groups, return_inverse=True)[1]
    products = np.empty(dealt.shape[:2])
    total = np.zeros((group[-1] + 1, dealt.shape[1]))
    np.add.at(total, group, agreements)
    alone = np.bincount(group)[group] == 1
    gram = np.matmul(candidates[alone], candidates[alone].transpose(0, 2, 1)).astype(dealt.dtype)
    products[alone] = np.vecdot(np.matmul(dealt[alone], gram), dealt[alone])
    for several in np.unique(group[~alone]):
        rows = np.flatnonzero(group == several)
        pulls = np.matmul(dealt[rows].astype(candidates.dtype), candidates[rows])
        products[rows] = np.vecdot(pulls, pulls.sum(axis=0))
    return products - agreements * total[group]


def _reached(statistics: Float64, parts: Float64) -> IntArray:
    """How many deals reach the observed statistic: per row of (tasks, 1 + DEALS), then of all tasks together.

    A tie reaches it; what is less than float32 rounding of its *parts* is one.
    """
    each = np.vstack([statistics, statistics.sum(axis=0)])
    rounding = 1e-6 * np.abs(np.vstack([parts, parts.sum(axis=0)])).max(axis=1, keepdims=True)
    return np.asarray((each[:, 1:] >= each[:, :1] - rounding).sum(axis=1))


def same_queries(rewards: Rewards) -> IntArray:
    """(n,) a number for each different query vector, whatever id it was logged under.

    The numbers follow a hash of the vectors, so they do not depend on the order of *rewards*.
    """
    unit = np.round(rewards.queries.unit, 5) + 0.0
    rows = [row.tobytes() for row in unit.astype(np.float32)]
    number = {row: i for i, row in enumerate(sorted(set(rows), key=lambda row: (crc32(row), row)))}
    return np.array([number[row] for row in rows], dtype=np.intp)


def folds(rewards: Rewards, groups: IntArray) -> IntArray:
    """(n,) fold of each query: every task is dealt over the folds, the same query always to one."""
    tasks, task = np.unique(rewards.tasks, return_inverse=True)
    first_task = np.full(groups.max() + 1, len(tasks))
    np.minimum.at(first_task, groups, task)
    fold = np.empty_like(first_task)
    fold[np.argsort(first_task, kind="stable")] = np.arange(len(fold)) % FOLDS
    return fold[groups]


def cross_fitted(
    learned_from: Rewards, depths: IntArray, recipes: tuple[Recipe, ...], fold: IntArray
) -> tuple[Float64, Float64]:
    """Gains (recipes, n), each query ranked by the offset learned on the folds without it, and what it displaced.

    Args:
        learned_from: Candidates of each query, the judged ones first.

        depths: (n,) how many of them are judged; the gain is measured on these.

        recipes: Contestants, from the least to the greatest ridge.

        fold: (n,) fold of each query.

    Returns:
        The gains, and (recipes, n) the share of each query's first ten candidates that gave way to others.
    """
    gains, moved = np.zeros((2, len(recipes), len(learned_from)))
    for number in np.unique(fold).tolist() if np.ptp(fold) else ():
        held = fold == number
        rows = np.flatnonzero(held)
        train, tried = learned_from.take(np.flatnonzero(~held)), learned_from.take(rows)
        train_grid, grid, weights = Grid.of(train), Grid.of(tried), scope_weights(train)
        judged = grid.only(grid.present & (np.arange(grid.present.shape[1]) < depths[rows, None]))
        base = judged_ndcg(judged, grid.base)
        start = np.zeros((1, tried.width))
        # From the most cautious ridge down, each certified KD optimum is a warm start for the next.
        for i in reversed(range(len(recipes))):
            recipe = replace(recipes[i], tolerance=_LOOSER * recipes[i].tolerance)
            learned = solve_shared(train, recipe, weights, train_grid, start).offsets
            start = learned if not recipe.has_many_minima and recipe.solver == "exact" else start
            scores = grid.base + recipe.dose(len(train)) * tried.documents.times(learned[0])[grid.slots]
            gains[i, rows] = judged_ndcg(judged, scores) - base
            moved[i, rows] = displaced(grid, scores)
    return gains, moved


def judged_ndcg(grid: Grid, scores: Float64) -> Float64:
    """(n,) nDCG@10 of the judged candidates in order of *scores*, rewards as gains."""
    rewards = np.where(grid.present, grid.rewards, 0.0)
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
