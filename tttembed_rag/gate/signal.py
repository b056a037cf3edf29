"""Permutation tests of rewards: is the judge to be believed, before any offset is learned?

Two null hypotheses say that rewards mean nothing. Under the first a query's rewards may be permuted among its
candidates; under the second a document's rewards may be permuted among the queries that it was shown for, since the
judge never looks at the query. The statistic of both is agreement with the retriever, sum r_qd s_qd, which is linear in
the rewards: its moments over all permutations are known in closed form (Pitman 1937), so nothing is drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.merging import merged
from tttembed_rag.gate.thresholds import (
    BELIEVED_LEVEL,
    FEW_PAIRS,
    LEVEL,
    STRICT_LEVEL,
    VARIES,
)
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Sums of squares smaller than this are zero but for rounding.
_ROUNDING = 1e-12
# Skewness below which a distribution is taken to be normal.
_SYMMETRIC = 1e-3


@dataclass(frozen=True, slots=True)
class Signal:
    """What the permutation tests say of rewards.

    Attributes:
        agrees_p: One-sided p-value of the agreement with the retriever, rewards permuted within queries.

        contradicts_p: One-sided p-value of the disagreement.

        reads_query_p: One-sided p-value of the agreement with the retriever, rewards permuted within documents.

        power_p: `reads_query_p` of a judge that copies the retriever: a large value means that the test has no power.

        recurring: Pairs of documents that were judged for two queries or more.

        varies: Share of the variance of those pairs' rewards that lies within documents.
    """

    agrees_p: float
    contradicts_p: float
    reads_query_p: float
    power_p: float
    recurring: int
    varies: float

    @property
    def contradicts(self) -> bool:
        """Whether the rewards contradict the retriever's order, as those of an inverted judge do."""
        return self.contradicts_p < LEVEL

    @property
    def agrees(self) -> bool:
        """Whether the rewards follow the retriever's order more than rewards without meaning would."""
        return self.agrees_p < BELIEVED_LEVEL

    @property
    def reads_query(self) -> bool:
        """Whether a document's rewards depend on what is asked.

        Where too few documents recur for the test to tell, the rewards of those that do must vary as much as rewards of
        different queries vary, or, where next to none recurs, must agree with the retriever beyond doubt.
        """
        if self.reads_query_p < LEVEL:
            return True
        if self.power_p < STRICT_LEVEL:
            return False
        return self.varies > VARIES if self.recurring >= FEW_PAIRS else self.agrees_p < STRICT_LEVEL

    @property
    def believed(self) -> bool:
        """Whether the judge is worth learning from."""
        return self.agrees and self.reads_query


def signal_of(rewards: Rewards, voices: Float64 | None = None) -> Signal:
    """The permutation tests of *rewards*, each question asked once, with its distinct documents.

    Args:
        rewards: n rewarded queries.

        voices: (n,) in (0, 1]: how much each counts; those of one question are added up. None for one each question.
    """
    groups = rewards.near_queries
    rewards = merged(rewards, groups)
    weights = np.ones(len(rewards)) if voices is None else np.bincount(groups, voices)
    query, document = np.repeat(np.arange(len(rewards)), rewards.depths), rewards.same_documents
    grid = Grid.of(rewards)
    similarity = grid.base[grid.present] * weights[query]
    above_query = similarity - (np.bincount(query, similarity) / rewards.depths)[query]
    opinion = _in_base_order(rewards, similarity, query)
    recurring, varies = _varies(rewards.values, document)
    return Signal(
        agrees_p=agreement_p(rewards.values, similarity, query),
        contradicts_p=agreement_p(-rewards.values, similarity, query),
        reads_query_p=agreement_p(rewards.values, above_query, document),
        power_p=agreement_p(opinion, above_query, document),
        recurring=recurring,
        varies=varies,
    )


def agreement_p(rewards: Float64, similarity: Float64, group: IntArray) -> float:
    """One-sided p-value of sum *rewards* x *similarity* under permutations of the rewards within each *group*.

    The first three moments of the statistic over all permutations are known; it is taken to follow the Pearson type III
    distribution with these moments (Mielke and Berry 2007, section 2.3). Where no group has rewards that differ, every
    permutation is the observed one: p is 1.
    """
    from scipy.special import gammainc, gammaincc

    size = np.bincount(group)
    r, s = (x - (np.bincount(group, x) / np.maximum(size, 1))[group] for x in (rewards, similarity))
    squares = np.bincount(group, r * r)
    squares[squares < _ROUNDING] = 0.0
    variance = float((squares * np.bincount(group, s * s) / np.maximum(size - 1, 1)).sum())
    if variance <= 0.0:
        return 1.0
    cubes = np.bincount(group, r**3) * np.bincount(group, s**3) * (squares > 0)
    third = float((cubes * size / np.maximum((size - 1) * (size - 2), 1) * (size > 2)).sum())
    z, skew = float(r @ s) / math.sqrt(variance), third / variance**1.5
    if abs(skew) < _SYMMETRIC:
        return 0.5 * math.erfc(z / math.sqrt(2.0))
    shape = 4.0 / skew**2
    at = shape + math.copysign(math.sqrt(shape), skew) * z
    return float((gammaincc if skew > 0 else gammainc)(shape, max(at, 0.0)))


def _in_base_order(rewards: Rewards, similarity: Float64, query: IntArray) -> Float64:
    """(N,) the rewards of each query dealt anew: the best to the candidate that the retriever put first."""
    opinion = np.empty_like(rewards.values)
    opinion[np.lexsort((-similarity, query))] = rewards.values[np.lexsort((-rewards.values, query))]
    return opinion


def _varies(rewards: Float64, document: IntArray) -> tuple[int, float]:
    """Pairs of documents that were judged again, and the share of their variance that lies within documents."""
    size = np.bincount(document)
    again = size[document] > 1
    centred = rewards - (np.bincount(document, rewards) / np.maximum(size, 1))[document]
    freedom = int((size[size > 1] - 1).sum())
    among = float(rewards[again].var()) if freedom else 0.0
    return int(again.sum()), float(centred[again] @ centred[again]) / freedom / among if among > _ROUNDING else 0.0
