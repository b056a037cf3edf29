"""Permutation tests of rewards: do they mean anything, before any offset is learned?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.gate.thresholds import AGREEMENT, DEALS, INTERVAL_LEVEL, NOISE_LEVEL
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Numbers a block of dealt pulls may hold (4 or 8 bytes each).
_BLOCK_NUMBERS = 8_000_000
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
    informed = AGREEMENT * _standard(agreement) + _standard(own)
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
