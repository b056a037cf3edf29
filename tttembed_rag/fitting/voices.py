"""How much each rewarded query counts: no source, no copy and no document is more than one voice.

A source is whoever gave a reward, such as a user; anyone may open an account. The declared judge, which has no name
here, is trusted as far as the other questions of the gate allow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting.merging import merged, query_numbers
from tttembed_rag.offsets.kernel import bandwidth_of, kernel_of
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# A document that is the best of more queries than this, and than this share of them, has one vote of each source.
BEST_LEAST = 3
BEST_SHARE = 0.05
# How many voices a source has near any query, at most.
SOURCE_VOICES = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Voices:
    """Rewards with one row for each query, whoever rewarded it, and how much each counts.

    Attributes:
        rewards: n queries; the reward of a document is the mean over the sources that judged the query, of which those
            that did not judge the document count with the query's least.
        weights: (n,) in (0, 1]: how much each query counts.
        sources: Distinct sources; the declared judge is not one.
    """

    rewards: Rewards
    weights: Float64
    sources: int

    @classmethod
    def of(cls, rewards: Rewards, cap: float = SOURCE_VOICES) -> Voices:
        """*rewards* with the voices of their sources, of which none is more than *cap* voices near any query."""
        groups = rewards.near_queries
        if not (rewards.sources != "").any():
            return cls(rewards, np.asarray(1.0 / np.bincount(groups)[groups]), 0)
        rewards = _without_repeated_votes(rewards)
        named, groups = rewards.sources != "", rewards.near_queries
        votes = np.where(named, np.minimum(1.0, cap / _crowding(rewards)), 1.0)
        query = query_numbers(rewards)
        _, first, query = np.unique(query, return_index=True, return_inverse=True)
        sources = np.unique(rewards.sources[named])
        weights = np.minimum(1.0, np.bincount(query, votes))
        group = groups[first]
        weights = weights / np.maximum(1.0, np.bincount(group, weights))[group]
        return cls(merged(rewards, query, absent=True), weights, len(sources))


def _crowding(rewards: Rewards) -> Float64:
    """(n,) kernel mass of the queries of the same source near each query; 1 where it is alone."""
    unit = np.asarray(rewards.queries.unit, dtype=np.float64)
    width = bandwidth_of(unit, np.ones(len(unit)), rewards.spread)
    crowding = np.ones(len(unit))
    for source in np.unique(rewards.sources):
        rows = np.flatnonzero(rewards.sources == source)
        if source and len(rows) > 1:
            kernel = kernel_of(unit[rows], unit[rows], width)
            alone = kernel.sum(axis=1)
            # Rows at the edge are less crowded than their neighbours, at which their weights would add up to more.
            crowding[rows] = alone * max(1.0, float((kernel @ (1.0 / alone)).max()))
    return crowding


def best_pairs(rewards: Rewards) -> NDArray[np.bool_]:
    """(N,) whether each pair has the best reward of its query, where the query's rewards differ."""
    most = np.maximum.reduceat(rewards.values, rewards.starts[:-1])
    return np.asarray(
        (rewards.values == np.repeat(most, rewards.depths)) & np.repeat(rewards.reach > 0, rewards.depths)
    )


def questions_won(rewards: Rewards, document: IntArray, best: NDArray[np.bool_]) -> IntArray:
    """(p,) of how many questions each *document* is the best, where (N,) pairs are of it and some are *best*."""
    question = np.repeat(rewards.near_queries, rewards.depths)
    won = np.unique(np.stack([document[best], question[best]]), axis=1)[0]
    return np.asarray(np.bincount(won, minlength=int(document.max()) + 1))


def _without_repeated_votes(rewards: Rewards) -> Rewards:
    """*rewards* in which a document that is the best of many queries has one vote of each source.

    Many is more than `BEST_LEAST`, and more than `BEST_SHARE` of all questions. What is not counted is unjudged.
    """
    documents, groups = rewards.same_documents, rewards.near_queries
    query = np.repeat(np.arange(len(rewards)), rewards.depths)
    best = best_pairs(rewards)
    allowed = max(BEST_LEAST, BEST_SHARE * len(np.unique(groups)))
    many = questions_won(rewards, documents, best) > allowed
    votes = np.flatnonzero(best & many[documents] & (rewards.sources != "")[query])
    _, first = np.unique(
        np.stack([documents[votes].astype(str), rewards.sources[query[votes]]]), axis=1, return_index=True
    )
    kept = np.ones(rewards.budget, dtype=bool)
    kept[np.delete(votes, first)] = False
    return rewards.only(kept)
