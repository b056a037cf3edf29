"""What offsets do to queries that they were not learned from: means, gains query by query, lists, traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tttembed_rag.evaluate.measures import LEAST_GAIN, mean_interval
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Places of a list that are shown and counted as traffic.
SHOWN = 10
# Queries that are shown in full: those that lose most, and those that gain most.
WORST, BEST = 10, 5
# Share of the documents that are called the busiest.
_BUSIEST = 0.01


@dataclass(frozen=True, slots=True)
class Listed:
    """A candidate in the list of a query, which scores `score` + `lift`.

    The *score* is its cosine similarity x·z to the base vector, the *lift* what the offset as served adds: alpha v·z.
    The *rank* is that under the base vector, 1 is the best. None of the query is worth more than a *best* one, by that
    by which lists are measured.
    """

    document: str
    text: str
    reward: float | None
    rank: int
    score: float
    lift: float
    best: bool = False


@dataclass(frozen=True, slots=True)
class Lists:
    """The candidates of one query before and after an offset.

    nDCG@10 *before* and *after* is None where nobody judged the query. The candidates are those among the first under
    the base vector or with the offset, by their rank. `tttembed report --json` prints them as they are here.
    """

    query_id: str
    query: str | None
    task: str
    offset: str
    before: float | None
    after: float | None
    candidates: tuple[Listed, ...]

    @property
    def judged(self) -> bool:
        """Whether a judge rewarded any of its candidates."""
        return any(listed.reward is not None for listed in self.candidates)

    def ranked(self) -> list[Listed]:
        """The candidates as served, best first."""
        return sorted(self.candidates, key=lambda listed: (-listed.score - listed.lift, listed.rank))

    @property
    def moved(self) -> bool:
        """Whether the offset gives another order."""
        return self.ranked() != list(self.candidates)


@dataclass(frozen=True, slots=True)
class Traffic:
    """How much of all first places the *busiest* documents take, of so many that were searched.

    It is a share of the first `SHOWN` places of all queries, under base vectors and with offsets, each time of the
    documents that are busiest then.
    """

    documents: int
    busiest: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What offsets do to queries that they were not learned from: means, gains and the lists of those that move most.

    nDCG@10 by a *measure*, and the *method* by which queries were held out, are in words. *rerank* has candidates in
    the order of their rewards: more than the judge cannot gain. The *interval* of the gain is one of 90 %, a bootstrap
    over queries. *gains* and *worst* begin with the largest loss, *best* with the largest gain.
    """

    measure: str
    method: str
    raw: float
    served: float
    rerank: float
    interval: tuple[float, float]
    gains: tuple[float, ...]
    worst: tuple[Lists, ...]
    best: tuple[Lists, ...]
    traffic: Traffic

    @property
    def gain(self) -> float:
        """Mean gain over raw."""
        return self.served - self.raw

    @property
    def share(self) -> float | None:
        """The gain over that of direct rerank; None where direct rerank gains next to nothing."""
        most = self.rerank - self.raw
        return self.gain / most if most >= LEAST_GAIN else None

    @property
    def moved(self) -> bool:
        """Whether any query gains or loses."""
        return any(self.gains)

    def __str__(self) -> str:
        many = f"{len(self.gains):,} queries that the offsets were not learned from"
        if not self.moved:
            return f"On {many}, nDCG@10 {self.measure} stays at {self.raw:.3f}: no list of theirs changes for it."
        low, high = self.interval
        share = f": {self.share:.0%} of what reranking by the rewards themselves would gain" if self.share else ""
        return (
            f"On {many}, nDCG@10 {self.measure} goes from {self.raw:.3f} to {self.served:.3f} "
            f"({self.gain:+.3f}, 90 % interval [{low:+.3f}, {high:+.3f}]){share}."
        )


def held_out_of(
    raw: Float64,
    served: Float64,
    rerank: Float64,
    shown: Callable[[Sequence[int]], tuple[Lists, ...]],
    *,
    measure: str,
    method: str,
    traffic: Traffic,
    interval: tuple[float, float] | None = None,
) -> HeldOut:
    """Queries with nDCG@10 *raw*, *served* and *rerank* (n,); *shown* gives the lists of some rows of them.

    Queries that stay as they are are not shown. The *interval* is by default that of all queries together.
    """
    gains = served - raw
    order = np.argsort(gains, kind="stable").tolist()
    return HeldOut(
        measure=measure,
        method=method,
        raw=float(raw.mean()),
        served=float(served.mean()),
        rerank=float(rerank.mean()),
        interval=interval or mean_interval(gains),
        gains=tuple(np.sort(np.round(gains, 6)).tolist()),
        worst=shown([row for row in order[:WORST] if gains[row] < 0]),
        best=shown([row for row in reversed(order[-BEST:]) if gains[row] > 0]),
        traffic=traffic,
    )


def traffic_of(before: IntArray, after: IntArray, documents: int) -> Traffic:
    """The traffic of lists (n, k) of rows of so many *documents*, *before* and *after*."""
    busiest = max(1, math.ceil(_BUSIEST * documents))
    shares = [float(np.sort(np.bincount(rows.ravel()))[-busiest:].sum() / rows.size) for rows in (before, after)]
    return Traffic(documents, busiest, *shares)
