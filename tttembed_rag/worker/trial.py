"""The trial of a served version: does it help queries that it was not learned from?"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.gate.gains import Gain, judged_ndcg
from tttembed_rag.gate.voices import heard
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.rewards import Rewards
from tttembed_rag.stores.log.reading import FOREIGN
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64, UnitRows

# Fresh rewarded queries that the first look needs, and the factor by which they must have grown before the next look.
FIRST_LOOK = 20
_NEXT_LOOK = 1.25
# Queries after which a version that is not contradicted gets a new trial: old merits must not hide new harm.
LAST_LOOK = 1000
# Probability that a version that does neither good nor harm is taken back, over all looks together: an upper bound.
_FALSE_ALARMS = 0.05
# How far the gain of one query typically lies from the mean gain, in nDCG@10.
_TYPICAL_GAIN = 0.1
# How many voices a source may have near any query, as in a fit by default.
SOURCE_VOICES = 1.0
# Looks in a row that must contradict a version before it is taken back.
LOOKS_IN_A_ROW = 2


class LiveGains(NamedTuple):
    """Gains of fresh queries under the offsets that serve them.

    Attributes:
        gains: (n,) change of reward-weighted nDCG@10 of each query.

        groups: (n,) a number for each query; those that ask nearly the same are one observation.

        weights: (n,) how much each counts beside the others: no source and no copy is more than one voice.
    """

    gains: Float64
    groups: IntArray
    weights: Float64


def live_gains(offsets: Offsets, fresh: Rewards) -> LiveGains:
    """Gains of *fresh* queries under the offsets that serve them; a query that several sources judged is one.

    Queries that no offset serves are left out. The candidates are those that the served vectors found: documents
    that an offset pushed out of sight are not among them, documents that it pushed in are.
    """
    voices = heard(fresh, SOURCE_VOICES)
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
    names = {name for one in evidence for name in one.withheld} - {FOREIGN}
    named = np.isin(fresh.doc_ids, list(names))[fresh.candidates]
    kept = ~np.isin(fresh.same_documents, fresh.same_documents[named])
    if kept.all() or not kept.any():
        return None
    rest = fresh.only(kept)
    several = np.flatnonzero(rest.depths > 1)
    return rest.take(several) if len(several) else None


@dataclass(frozen=True, slots=True)
class Trial:
    """The gains of queries that the live version was not learned from, looked at again and again.

    A query counts under the version that was live when its rewards came, so versions may follow each other within
    one trial. Look k has the level `_FALSE_ALARMS` / (k (k + 1)): the levels sum to `_FALSE_ALARMS` over all looks
    there may ever be. A look needs `FIRST_LOOK` queries, and a quarter more than the look before. A gain below zero at
    the level of its look speaks against the version; `LOOKS_IN_A_ROW` such looks in a row contradict it.
    Simulated with gains spread by .1: of versions without any effect at most 3 % are taken back, however many looks
    there are; of versions that lose .1, .05 or .02, nine in ten are gone after 30, 120 or 1000 rewarded queries.

    Attributes:
        version: Number of the version that is live.

        since: When the trial began, in Unix seconds.

        looks: Looks so far.

        queries: Queries at the last look.

        against: Looks in a row that speak against the version.

        gain: Mean gain at the last look.

        upper: Upper bound of that gain at the level of that look; None before the first.

        earlier: Gains of queries under versions that were live before.
    """

    version: int
    since: float = 0.0
    looks: int = 0
    queries: int = 0
    against: int = 0
    gain: float = 0.0
    upper: float | None = None
    earlier: tuple[float, ...] = ()

    @property
    def contradicted(self) -> bool:
        """Whether fresh rewards say that the live version harms."""
        return self.against >= LOOKS_IN_A_ROW

    @property
    def over(self) -> bool:
        """Whether it has cleared the live version, so that a new trial may begin."""
        return self.queries >= LAST_LOOK and not self.against

    @property
    def due(self) -> int:
        """Queries that the next look needs."""
        return max(FIRST_LOOK, math.ceil(_NEXT_LOOK * self.queries))

    def look(
        self, gains: ArrayLike, groups: ArrayLike, weights: ArrayLike | None = None, *, rest: LiveGains | None = None
    ) -> Trial:
        """The trial after a look at all fresh *gains* so far; unchanged where too few are new.

        Args:
            gains: (n,) gain of each fresh query under the live version.

            groups: (n,) number of each query's group; queries of one group are one observation.

            weights: (n,) how much each counts; None shares one voice among the queries of a group.

            rest: The gains among all other documents than those that rose most. The version must not harm these
                either, so both are looked at, each at half the level.
        """
        group = np.unique(np.asarray(groups), return_inverse=True)[1]
        voices = 1.0 / np.bincount(group)[group] if weights is None else np.asarray(weights, dtype=np.float64)
        n = len(self.earlier) + len(np.unique(group))
        if n < self.due:
            return self
        level = _FALSE_ALARMS / ((self.looks + 1) * (self.looks + 2))
        gain = self._mean(np.asarray(gains, dtype=np.float64), group, voices)
        if rest is None or len(np.unique(rest.groups)) < FIRST_LOOK:
            upper = gain.above(level)
        else:
            upper = min(gain.above(level / 2), self._mean(*rest).above(level / 2))
        against = self.against + 1 if upper < 0 else 0
        return replace(self, looks=self.looks + 1, queries=n, against=against, gain=gain.mean, upper=upper)

    def _mean(self, gains: Float64, groups: IntArray, weights: Float64) -> Gain:
        """The mean of *gains* and of those under earlier versions."""
        group = np.unique(groups, return_inverse=True)[1]
        others, first = len(self.earlier), int(group.max(initial=-1)) + 1
        x, w = np.append(gains, self.earlier), np.append(weights, np.full(others, weights.mean() if first else 1.0))
        numbers = np.append(group, np.arange(first, first + others)).astype(np.intp)
        return Gain.of(x, w / w.sum(), numbers, typical=_TYPICAL_GAIN)

    def followed_by(self, version: int, gains: ArrayLike) -> Trial:
        """The trial under the next *version*, which was learned from the queries with these *gains* too."""
        return replace(self, version=version, earlier=(*self.earlier, *np.round(np.atleast_1d(gains), 6).tolist()))

    def __str__(self) -> str:
        upper = math.inf if self.upper is None else self.upper
        return (
            f"gain {self.gain:+.3f}, at most {upper:+.3f}, on {self.queries} queries that came after the version "
            f"they test, look {self.looks}, {self.against} of {LOOKS_IN_A_ROW} against it"
        )

    def to_json(self) -> str:
        """The trial as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Trial:
        """What `to_json` gave."""
        record = json.loads(text)
        return cls(**(record | {"earlier": tuple(record["earlier"])}))
