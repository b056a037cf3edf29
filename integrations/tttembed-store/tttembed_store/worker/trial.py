"""The trial of a served version: does it help queries that it was not learned from?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.measures import judged_ndcg
from tttembed_rag.fitting.voices import Voices
from tttembed_rag.gate.gains import Gain
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64, UnitRows

# Fresh rewarded queries that the first look needs, and how many more the next one does.
FIRST_LOOK = 20
_NEXT_LOOK = 10
# Fresh queries that are looked at, the last ones: old merits must not hide new harm.
WINDOW = 200
# One-sided level of the confidence sequence, and the ratio that says where it is narrowest (after some 200 queries). A
# sequence over all queries would be wrong once in a hundred versions, one over the last `WINDOW` begins again and
# again. Within 2,000 fresh queries, harmless versions are taken back in .5 %, or in 2 % where a few large gains make up
# for many small losses, and harmful ones after 170 at the median (`benchmarks/trial.py`).
_LEVEL = 0.01
_RATIO = 0.02
# How far the gain of one query typically lies from the mean gain, in nDCG@10: .04 to .17 in `benchmarks/trial.py`. The
# most counts, as a few queries with small losses do not say that no other one gains much.
_TYPICAL_GAIN = 0.2


class LiveGains(NamedTuple):
    """The *gains* (n,) of fresh queries under the offsets that serve them, in reward-weighted nDCG@10.

    Queries with one number in *groups* (n,) ask nearly the same, and are one observation. The *weights* (n,) say how
    much each counts beside the others: no source and no copy is more than one voice.
    """

    gains: Float64
    groups: IntArray
    weights: Float64


def live_gains(offsets: Offsets, fresh: Rewards) -> LiveGains:
    """Gains of *fresh* queries under the offsets that serve them; a query that several sources judged is one.

    Queries that no offset serves are left out. The candidates are those that the served vectors found: documents
    that an offset pushed out of sight are not among them, documents that it pushed in are.
    """
    voices = Voices.of(fresh)
    rewards = voices.rewards
    names = list(zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True))
    rows = np.array([row for row, name in enumerate(names) if offsets.find(*name) is not None], dtype=np.intp)
    if not len(rows):
        return LiveGains(np.empty(0), rows, np.empty(0))
    part = rewards.take(rows)
    grid = Grid.of(part)
    moved = offsets.apply(part.queries.unit, task=part.tasks.tolist(), query_id=part.query_ids.tolist())
    scores = part.documents.similarities(UnitRows(moved, np.ones(len(moved), moved.dtype)), grid.slots)
    gains = judged_ndcg(grid, scores) - judged_ndcg(grid, grid.base)
    return LiveGains(gains, rewards.near_queries[rows], voices.weights[rows])


def without_risen(offsets: Offsets, fresh: Rewards) -> Rewards | None:
    """*fresh* rewards without the documents that *offsets* lift into many lists; None where that leaves them as is.

    A document that a judge overrates hides what its rise costs others: they are compared among themselves.
    """
    evidence = [offset.evidence for offset in offsets.values() if offset.served]
    names = {name for item in evidence for name in item.withheld}
    named = np.isin(fresh.doc_ids, list(names))[fresh.candidates]
    kept = ~np.isin(fresh.same_documents, fresh.same_documents[named])
    if kept.all() or not kept.any():
        return None
    rest = fresh.only(kept)
    several = np.flatnonzero(rest.depths > 1)
    return rest.take(several) if len(several) else None


@dataclass(frozen=True, slots=True)
class LiveTrial:
    """The gains of the last queries that the live version was not learned from, looked at again and again.

    A query counts under the version that was live when its rewards came, so versions may follow each other within
    one trial. The version is contradicted where the upper end of a confidence sequence for the mean gain lies below
    zero: that of normal mixtures, which holds at all looks together (Robbins 1970; Waudby-Smith et al. 2024, Annals of
    Statistics 52, for observations that are not normal).

    Attributes:
        version: Number of the version that is live.
        since: When the trial began, in Unix seconds.
        queries: Queries at the last look.
        fresh: How many queries the live version had served by then that it was not learned from.
        gain: Mean gain at the last look.
        upper: Upper bound of that gain; None before the first look.
        earlier: Gains of the last queries under versions that were live before.
    """

    version: int
    since: float = 0.0
    queries: int = 0
    fresh: int = 0
    gain: float = 0.0
    upper: float | None = None
    earlier: Sequence[float] = ()

    @property
    def contradicted(self) -> bool:
        """Whether fresh rewards say that the live version harms."""
        return self.upper is not None and self.upper < 0

    @property
    def due(self) -> int:
        """Fresh queries under the live version that the next look needs."""
        return max(FIRST_LOOK - len(self.earlier), self.fresh + _NEXT_LOOK)

    def look(self, live: LiveGains, fresh: int, *, rest: LiveGains | None = None) -> LiveTrial:
        """The trial after a look at the gains under the *live* version; unchanged where too few are new.

        These are gains of the last `WINDOW` of the *fresh* queries that it has served. The *rest* are gains among all
        other documents than those that rose most: the version must not harm these either, so both are looked at, each
        at half the level.
        """
        queries = min(WINDOW, len(np.unique(live.groups)) + len(self.earlier))
        if fresh < self.due or queries < FIRST_LOOK:
            return self
        gain = self._mean(live)
        if rest is None or len(np.unique(rest.groups)) < FIRST_LOOK:
            upper = _upper(gain, _LEVEL)
        else:
            upper = min(_upper(gain, _LEVEL / 2), _upper(self._mean(rest), _LEVEL / 2))
        return replace(self, queries=queries, fresh=fresh, gain=gain.mean, upper=upper)

    def _mean(self, live: LiveGains) -> Gain:
        """The mean of gains, and of as many under earlier versions as the window has room for."""
        group = np.unique(live.groups, return_inverse=True)[1]
        first = int(group.max(initial=-1)) + 1
        earlier = self.earlier[-max(WINDOW - first, 0) :] if first < WINDOW else ()
        weight = live.weights.mean() if first else 1.0
        x, w = np.append(live.gains, earlier), np.append(live.weights, np.full(len(earlier), weight))
        numbers = np.append(group, np.arange(first, first + len(earlier))).astype(np.intp)
        return Gain.of(x, w / w.sum(), numbers, typical=_TYPICAL_GAIN)

    def followed_by(self, version: int, gains: ArrayLike) -> LiveTrial:
        """The trial under the next *version*, which was learned from the queries with these *gains* too."""
        earlier = (*self.earlier, *np.round(np.atleast_1d(gains), 6).tolist())
        return replace(self, version=version, fresh=0, earlier=earlier[-WINDOW:])

    def __str__(self) -> str:
        upper = math.inf if self.upper is None else self.upper
        return (
            f"gain {self.gain:+.3f}, at most {upper:+.3f}, on the last {self.queries} queries that came after the "
            "version they test"
        )


def _upper(gain: Gain, level: float) -> float:
    """The upper end of the confidence sequence of a mean after as many observations as *gain* has."""
    n, spread = gain.freedom, gain.freedom * _RATIO + 1.0
    if not n:
        return math.inf
    return gain.mean + gain.error * math.sqrt(2.0 * spread / (n * _RATIO) * math.log1p(math.sqrt(spread) / (2 * level)))
