"""Belief: who vouches for rewards, before any offset is learned from them.

Who speaks first decides: trusted labels, then whoever declares the judge, then the data, else nobody. The data speak by
a permutation test. Under its null hypothesis rewards mean nothing, and those of a query may be permuted among its
candidates. The statistic is the agreement with the retriever, the sum over queries of the correlation of rewards and
similarities: its moments over all permutations are known in closed form (Pitman 1937), so nothing is drawn. Every query
has the same say, so that no vote is louder than another. A judge that never looks at the query agrees by luck with what
is found often; where documents were judged for several queries, only what their rewards say beyond the mean of the
document counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.merging import merged
from tttembed_rag.gate.thresholds import BELIEVED_LEVEL, FEW_PAIRS, LEVEL, STRICT_LEVEL, VARIES
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Who vouches, in words.
Voucher: TypeAlias = Literal["trusted labels", "its declaration", "the data", "nobody"]
# Sums of squares smaller than this are zero but for rounding.
_ROUNDING = 1e-12
# Skewness below which a distribution is taken to be normal.
_SYMMETRIC = 1e-3


@dataclass(frozen=True, slots=True)
class Signal:
    """What the permutation test says of rewards.

    Attributes:
        agrees_p: One-sided p-value of the agreement with the retriever.
        contradicts_p: One-sided p-value of the disagreement.
        level: The level at which the agreement is believed: stricter where too few documents were judged again to tell
            a judge that looks at the query from one that does not.
        varies: Share of the variance of the rewards of documents that were judged again that lies within documents: 0
            of a judge that never looks at the query; 1 where too few were.
    """

    agrees_p: float
    contradicts_p: float
    level: float
    varies: float

    @classmethod
    def of(cls, rewards: Rewards, voices: Float64 | None = None) -> Signal:
        """The permutation test of *rewards*, each question asked once, with its distinct documents.

        The *voices* (n,) in (0, 1] of one question are added up; without them each question has one.
        """
        groups = rewards.near_queries
        rewards = merged(rewards, groups)
        weights = np.asarray(np.ones(len(rewards)) if voices is None else np.bincount(groups, voices), dtype=np.float64)
        query, document = np.repeat(np.arange(len(rewards)), rewards.depths), rewards.same_documents
        grid = Grid.of(rewards)
        values, similarity = rewards.values, grid.base[grid.present]
        recurring, varies = _varies(values, document)
        return cls(
            agreement_p(values, similarity, query, weights),
            agreement_p(-values, similarity, query, weights),
            BELIEVED_LEVEL if recurring >= FEW_PAIRS else STRICT_LEVEL,
            varies if recurring >= FEW_PAIRS else 1.0,
        )

    @property
    def contradicts(self) -> bool:
        """Whether the rewards contradict the retriever's order, as those of an inverted judge do."""
        return self.contradicts_p < LEVEL

    @property
    def believed(self) -> bool:
        """Whether the data vouch for the judge."""
        return self.agrees_p < self.level and self.varies > VARIES


def opposed(rewards: Rewards) -> list[str]:
    """The sources whose rewards contradict the retriever's order more than chance would, the surest first."""
    of = {name: np.flatnonzero(rewards.sources == name) for name in np.unique(rewards.sources).tolist() if name}
    p = {name: Signal.of(rewards.take(rows)).contradicts_p for name, rows in of.items()}
    return sorted((name for name in p if p[name] < LEVEL), key=lambda name: (p[name], name))


def agreement_p(rewards: Float64, similarity: Float64, query: IntArray, weights: Float64) -> float:
    """One-sided p-value of the summed correlations of *rewards* and *similarity*, rewards permuted within queries.

    The first three moments of the statistic over all permutations are known; it is taken to follow the Pearson type III
    distribution with these moments (Mielke and Berry 2007, section 2.3). Where no query has rewards that differ, every
    permutation is the observed one: p is 1. Of N pairs, *query* (N,) is the query, which counts *weights* (n,).
    """
    from scipy.special import gammainc, gammaincc

    size = np.bincount(query)
    r, s = (_standardised(x, query, size) for x in (rewards, similarity))
    s = s * weights[query]
    squares = np.bincount(query, r * r)
    variance = float((squares * np.bincount(query, s * s) / np.maximum(size - 1, 1)).sum())
    if variance <= 0.0:
        return 1.0
    cubes = np.bincount(query, r**3) * np.bincount(query, s**3)
    third = float((cubes * size / np.maximum((size - 1) * (size - 2), 1) * (size > 2)).sum())
    z, skew = float(r @ s) / math.sqrt(variance), third / variance**1.5
    if abs(skew) < _SYMMETRIC:
        return 0.5 * math.erfc(z / math.sqrt(2.0))
    shape = 4.0 / skew**2
    at = shape + math.copysign(math.sqrt(shape), skew) * z
    return float((gammaincc if skew > 0 else gammainc)(shape, max(at, 0.0)))


def _standardised(x: Float64, query: IntArray, size: IntArray) -> Float64:
    """*x* (N,) less its mean within each query, and divided by its norm there; zero where it does not differ."""
    x = x - (np.bincount(query, x) / np.maximum(size, 1))[query]
    squares = np.bincount(query, x * x)
    return np.asarray(x * np.where(squares > _ROUNDING, 1.0 / np.sqrt(np.maximum(squares, _ROUNDING)), 0.0)[query])


def _varies(rewards: Float64, document: IntArray) -> tuple[int, float]:
    """Pairs of documents that were judged again, and the share of their variance that lies within documents."""
    size = np.bincount(document)
    again = size[document] > 1
    centred = rewards - (np.bincount(document, rewards) / np.maximum(size, 1))[document]
    freedom = int((size[size > 1] - 1).sum())
    among = float(rewards[again].var()) if freedom else 0.0
    return int(again.sum()), float(centred[again] @ centred[again]) / freedom / among if among > _ROUNDING else 0.0
