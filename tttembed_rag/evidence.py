"""What rewards can prove: a common direction, knowledge of the candidates, and a held-out gain.

Two questions come before any offset. Do the rewards of different queries pull in one direction, and do
they know the candidates: follow the retriever that found them, and score similar ones alike? Both are
answered exactly, without a fit, by dealing each query's rewards anew among its candidates: under rewards
that mean nothing every deal is as likely as the one observed. The third question, how much an offset
gains, is answered by cross-fitting: each query is ranked by an offset it did not train.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tttembed_rag.fitting import Recipe, scope_weights, solve_shared
from tttembed_rag.objectives import PADDING
from tttembed_rag.problems import Grid
from tttembed_rag.rewards import Rewards
from tttembed_rag.unitrows import Float64
from tttembed_rag.vectors import IntArray

# Deals of each query's rewards, and how often rewards that mean nothing beat all of them, 0.5 %. They are asked two
# such questions, so a worthless judge passes in at most 1 % of tasks, and by the second only if there is a gain too.
DEALS = 199
NOISE_LEVEL = 1 / (DEALS + 1)
FOLDS = 5
# One-sided level of the bounds of the change of the search, together a 90 % interval, and of what is held for a fact
# where a fact would forbid: an inverted judge.
INTERVAL_LEVEL = 0.05
# How far the change of the full search lies from the gain on judged candidates, beyond sampling error: root mean
# square per share of the first ten that is displaced, over 165 offsets that displace 5 % or more on the development
# half of benchmarks/harm.py. There 87 % of the intervals of published offsets held the change.
SURFACED = 0.12
# How far the gain of one query typically lies from the mean gain (.05 to .15 over 45 fits of five of those sets),
# and how many observations that knowledge is worth.
TYPICAL = 0.1
TYPICAL_WEIGHT = 4.0
# How much more agreement with the retriever counts than likeness of like-rewarded candidates. Of 216 sets of rewards of
# 4 to 16 queries of the development half the two know 75 % (with weights 1 and 3 66 and 73 %, agreement alone 68 %,
# likeness alone 19 %), and of 108 inverted ones 1 % (3, 0, 0 and 20 %).
_AGREEMENT = 2.0
_DEPTH = 10
# Numbers a block of dealt pulls may hold (4 or 8 bytes each).
_BLOCK_NUMBERS = 8_000_000
# A held-out gain is a matter of order, not of digits: fold offsets are solved to this many tolerances. In 72 fits
# of real rewards no verdict was another one than at 10.
_LOOSER = 30.0
# Centred rewards smaller than this are all the same but for rounding.
_ROUNDING = 1e-9
# Share of a sum of float32 products that is their rounding.
_ROUNDED = 1e-6


@dataclass(frozen=True, slots=True)
class Signal:
    """Where the observed rewards stand among `DEALS` deals of them.

    Attributes:
        common: Deals that pull the queries together as much as observed.

        informed: Deals that follow the base order of the candidates, and score similar ones alike, as much as observed.

        opposed: Deals that contradict the base order as much as observed.

        recurring: Deals of whole documents, each keeping what it is given in every query, that pull as much.
    """

    common: int
    informed: int
    opposed: int
    recurring: int

    @property
    def means_something(self) -> bool:
        """Whether the rewards know the candidates, or different queries pull in one direction, more than in any deal.

        A direction alone is nothing where documents that have a random score each, whatever is asked, would show it:
        they come back, and pull alike each time. So they must show it in at most one deal of 40, or the rewards know
        the candidates more than in 39: two questions, of which a judge that never looks at the query passes one in 20.
        """
        level = INTERVAL_LEVEL / 2
        asked = self.is_informed(level=level) or self.recurring < level * (DEALS + 1)
        return self.is_informed() or (self.has_direction() and asked)

    def has_direction(self, *, level: float = NOISE_LEVEL) -> bool:
        """Whether different queries pull in one direction more than chance would at *level*: than in any deal."""
        return self.common < level * (DEALS + 1)

    def is_informed(self, *, level: float = NOISE_LEVEL) -> bool:
        """Whether the rewards know the candidates better than chance would at *level*: than any deal."""
        return self.informed < level * (DEALS + 1)

    @property
    def is_backwards(self) -> bool:
        """Whether the rewards contradict the retriever's order, more than in 19 of 20 deals."""
        return self.opposed < INTERVAL_LEVEL * (DEALS + 1)


def signal_of(rewards: Rewards) -> Signal:
    """Whether *rewards* mean anything, by what other deals of the same rewards would show.

    Query q pulls along g_q = sum_i c_i (z_i - (x_q·z_i) x_q): its rewards c, centred, times the gradients
    of its similarities in the offset at v = 0. Their direction is the sum of g_q · g_p over all q and p of
    different queries. Their agreement with the retriever is sum c_i x_q·z_i, and the sum of g_q · g_q is the
    greater, the more alike the candidates of like reward are: those of a judge that reads them are (the
    cluster hypothesis, van Rijsbergen 1979). Both in standard deviations of the deals, the agreement
    twice since only it knows better from worse, they say whether the judge knows the candidates.
    """
    rewards = _one_each(rewards)
    pull = np.zeros((DEALS + 1, rewards.width), rewards.doc_vectors.dtype)
    own, agreement = np.zeros((2, DEALS + 1))
    rng = np.random.default_rng(0)
    for rows in _blocks(rewards.depths):
        part = rewards.take(rows)
        grid = Grid.of(part)
        dealt = _dealt(grid, rng)
        agreements = np.matvec(dealt, grid.base)
        candidates = part.documents.unit[grid.slots]
        gram = np.matmul(candidates, candidates.transpose(0, 2, 1)).astype(dealt.dtype)
        agreement += agreements.sum(axis=0)
        own += (np.vecdot(np.matmul(dealt, gram), dealt) - agreements**2).sum(axis=0)
        weights = dealt.transpose(1, 0, 2).astype(candidates.dtype).reshape(DEALS + 1, -1)
        pull += weights @ candidates.reshape(-1, rewards.width)
        pull -= agreements.T.astype(candidates.dtype) @ part.queries.unit
    informed = _AGREEMENT * _standard(agreement) + _standard(own)
    return Signal(
        common=_reached(np.vecdot(pull, pull) - own, own),
        informed=_reached(informed, informed),
        opposed=_reached(-agreement, agreement),
        recurring=_recurring(rewards, rng),
    )


def _recurring(rewards: Rewards, rng: np.random.Generator) -> int:
    """In how many deals of their mean rewards documents pull in one direction as much as observed."""
    used, document, times = np.unique(rewards.candidates, return_inverse=True, return_counts=True)
    means = np.add.reduceat(rewards.values, rewards.starts[:-1]) / rewards.depths
    centred = rewards.values - np.repeat(means, rewards.depths)
    given = np.tile(np.bincount(document, centred) / times, (DEALS + 1, 1))
    given[1:] = rng.permuted(given[1:], axis=1)
    given *= times
    pulls = rewards.documents.rows(used).weighted_sum(given)
    own = np.vecdot(given, given)
    return _reached(np.vecdot(pulls, pulls) - own, own)


def _blocks(depths: IntArray) -> Iterator[IntArray]:
    """Rows of queries about as deep as each other, so that few numbers are padding, as many as a block may hold."""
    magnitude = np.frexp(depths)[1]
    for one in np.unique(magnitude):
        rows = np.flatnonzero(magnitude == one)
        step = max(1, _BLOCK_NUMBERS // ((DEALS + 1) * int(depths[rows].max())))
        yield from np.split(rows, range(step, len(rows), step))


def _one_each(rewards: Rewards) -> Rewards:
    """Each query once with its distinct candidates, in an order that depends on nothing but their vectors.

    A query that was logged again, or a text under two ids, is judged alike: as two they would pass for knowledge.
    """
    query = np.repeat(rewards.same_queries, rewards.depths)
    document = rewards.same_documents
    order = np.lexsort((document, query))
    new = np.append(True, (np.diff(query[order]) != 0) | (np.diff(document[order]) != 0))
    first, pair = order[new], np.cumsum(new) - 1
    _, rows, depths = np.unique(query[first], return_index=True, return_counts=True)
    queries = np.searchsorted(rewards.starts, first[rows], side="right") - 1
    return replace(
        rewards,
        query_vectors=rewards.query_vectors[queries],
        query_norms=rewards.query_norms[queries],
        starts=np.concatenate([[0], np.cumsum(depths)]).astype(np.intp),
        candidates=rewards.candidates[np.unique(document, return_index=True)[1]][document[first]],
        values=np.bincount(pair, rewards.values[order]) / np.bincount(pair),
        tasks=rewards.tasks[queries],
        query_ids=rewards.query_ids[queries],
    )


def _dealt(grid: Grid, rng: np.random.Generator) -> Float64:
    """(n, DEALS + 1, k) centred rewards, first as observed, then dealt anew."""
    count = np.maximum(grid.present.sum(axis=1, keepdims=True), 1)
    mean = np.where(grid.present, grid.rewards, 0.0).sum(axis=1, keepdims=True) / count
    centred = np.where(grid.present, grid.rewards - mean, 0.0)
    centred[np.abs(centred).max(axis=1) < _ROUNDING] = 0.0
    keys = rng.random((len(centred), DEALS, centred.shape[1]), dtype=np.float32)
    keys = np.where(grid.present[:, None], keys, 2.0)  # absent candidates stay behind the others
    dealt = np.take_along_axis(centred[:, None], np.argsort(keys, axis=2), axis=2)
    return np.concatenate([centred[:, None], dealt], axis=1)


def _standard(statistics: Float64) -> Float64:
    """Statistics (1 + DEALS,) in standard deviations from their mean; 0 where they are all one."""
    deviation = statistics.std()
    rounding = _ROUNDED * np.abs(statistics).max()
    return np.asarray((statistics - statistics.mean()) / (deviation if deviation > rounding else np.inf))


def _reached(statistics: Float64, parts: Float64) -> int:
    """How many deals reach the observed statistic, the first of (1 + DEALS,).

    A tie reaches it; what is less than the rounding of its *parts* is one.
    """
    return int(np.count_nonzero(statistics[1:] >= statistics[0] - _ROUNDED * np.abs(parts).max()))


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
    numbers, own = np.unique(fold, return_inverse=True)
    if len(numbers) < 2:
        return gains, moved
    grid, learning = Grid.of(learned_from), fold != numbers[:, None]
    judged = grid.only(grid.present & (np.arange(grid.present.shape[1]) < depths[:, None]))
    base = judged_ndcg(judged, grid.base)
    weights = np.array([scope_weights(learned_from, seen) for seen in learning])
    start = np.zeros((len(numbers), learned_from.width))
    # From the most cautious ridge down, each certified KD optimum is a warm start for the next.
    for i in reversed(range(len(recipes))):
        recipe = replace(recipes[i], tolerance=_LOOSER * recipes[i].tolerance)
        learned = solve_shared(learned_from, recipe, weights, grid, start).offsets
        start = learned if not recipe.has_many_minima and recipe.solver == "exact" else start
        dose = np.array([recipe.dose(n) for n in learning.sum(axis=1).tolist()])
        lift = dose[:, None] * learned_from.documents.times(learned)
        scores = grid.base + lift[own[:, None], grid.slots]
        gains[i] = judged_ndcg(judged, scores) - base
        moved[i] = displaced(grid, scores)
    return gains, moved


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
