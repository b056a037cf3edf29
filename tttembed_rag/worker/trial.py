"""The trial of a served version: does it help queries that it was not learned from?"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.gate.gains import Gain, judged_ndcg
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import Offset
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.rows import Float64

# Fresh rewarded queries that the first look needs, and the factor by which they must have grown before the next look.
FIRST_LOOK = 20
_NEXT_LOOK = 1.25
# Queries after which a version that is not contradicted gets a new trial: old merits must not hide new harm.
LAST_LOOK = 1000
# Probability that a version that does neither good nor harm is taken back, over all looks together: an upper bound.
_FALSE_ALARMS = 0.05
# How far the gain of one query typically lies from the mean gain, in nDCG@10.
_TYPICAL_GAIN = 0.1
# Looks in a row that must contradict a version before it is taken back.
LOOKS_IN_A_ROW = 2


def live_gains(offsets: Offsets, fresh: Rewards) -> tuple[Float64, Float64]:
    """Gains in reward-weighted nDCG@10 of *fresh* queries under the offsets that serve them.

    Queries that no offset serves are left out. The candidates are those that the served vectors found: documents
    that an offset pushed out of sight are not among them, documents that it pushed in are.

    Returns:
        (n,) gains, and (n,) numbers of groups: queries with the same vector are one observation.
    """
    served = [
        offsets.find(task, name) for task, name in zip(fresh.tasks.tolist(), fresh.query_ids.tolist(), strict=True)
    ]
    by_key: dict[str, tuple[Offset, list[int]]] = {}
    for row, offset in enumerate(served):
        if offset is not None:
            by_key.setdefault(offset.key, (offset, []))[1].append(row)
    gains, groups = np.full(len(fresh), np.nan), fresh.same_queries
    for offset, of_offset in by_key.values():
        rows = np.array(of_offset)
        part = fresh.take(rows)
        grid = Grid.of(part)
        moved = grid.base + offset.alpha * part.documents.times(offset.vector.astype(np.float64))[grid.slots]
        gains[rows] = judged_ndcg(grid, moved) - judged_ndcg(grid, grid.base)
    moved_rows = ~np.isnan(gains)
    return gains[moved_rows], groups[moved_rows]


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

    def look(self, gains: ArrayLike, groups: ArrayLike) -> Trial:
        """The trial after a look at all fresh *gains* so far; unchanged where too few are new.

        Args:
            gains: (n,) gain of each fresh query under the live version.

            groups: (n,) number of each query's group; queries of one group are one observation.
        """
        group = np.unique(np.asarray(groups), return_inverse=True)[1]
        count = len(np.unique(group))
        n = len(self.earlier) + count
        if n < self.due:
            return self
        level = _FALSE_ALARMS / ((self.looks + 1) * (self.looks + 2))
        x = np.append(np.asarray(gains, dtype=np.float64), self.earlier)
        weights = np.full(len(x), 1 / len(x))
        gain = Gain.of(x, weights, np.append(group, np.arange(count, n)), typical=_TYPICAL_GAIN)
        upper = gain.above(level)
        against = self.against + 1 if upper < 0 else 0
        return replace(self, looks=self.looks + 1, queries=n, against=against, gain=gain.mean, upper=upper)

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
