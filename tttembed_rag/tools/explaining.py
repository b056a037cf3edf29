"""Why a search finds these tools: ranks before and after learning, and the earlier requests behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import Offset
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.tools.index import WEIGHT, ToolIndex, best
from tttembed_rag.tools.memory import PastRequest
from tttembed_rag.vectors.checks import FloatArray

# Earlier requests that are named for a tool.
_EARLIER = 2


@dataclass(frozen=True, slots=True)
class FoundTool:
    """One tool that was found.

    Attributes:
        name: Its name.

        rank_before: Its rank, from 1, before anything was learned.

        rank: Its rank now.

        earlier: Requests nearest to this one for which it worked, as (text, cosine similarity).
    """

    name: str
    rank_before: int
    rank: int
    earlier: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        moved = f"was #{self.rank_before}" if self.rank_before != self.rank else "as before"
        because = "".join(f"; worked for {text!r:.60} ({similarity:.2f})" for text, similarity in self.earlier)
        return f"#{self.rank} {self.name} ({moved}{because})"


@dataclass(frozen=True, slots=True)
class ToolExplanation:
    """Why a search finds what it finds.

    Attributes:
        query: The request.

        tools: The tools that are found, best first.

        reason: What moves them, or why nothing does.
    """

    query: str
    tools: tuple[FoundTool, ...]
    reason: str

    def __str__(self) -> str:
        return "\n".join([f"{self.query!r:.80}: {self.reason}", *map(str, self.tools)])


def explained(
    index: ToolIndex,
    query: str,
    vector: FloatArray,
    moved: FloatArray,
    *,
    k: int,
    weight: float,
    offset: Offset | None,
    shared: Offsets | None,
    task: str | None,
    requests: Sequence[PastRequest],
) -> ToolExplanation:
    """The explanation of a search.

    Args:
        index: The catalogue.

        query: The request.

        vector: (d,) its base vector.

        moved: (d,) the vector that is searched.

        k: Tools to explain.

        weight: The weight of BM25 that is served.

        offset: The offset that moves the vector; None for none.

        shared: All offsets that are served to the tenant; None for none.

        task: The task key.

        requests: Earlier requests with their outcomes.
    """
    before = best(index.scores(query, vector, WEIGHT), len(index))
    place = np.empty(len(index), dtype=np.intp)
    place[before] = np.arange(1, len(index) + 1)
    now = best(index.scores(query, moved, weight), k)
    near = [
        (float(one.vector @ vector / np.linalg.norm(one.vector)), one)
        for one in requests
        if len(one.vector) == len(vector)
    ]
    near.sort(key=lambda pair: -pair[0])
    tools = []
    for rank, row in enumerate(now.tolist(), 1):
        key = index.cards[row].key
        earlier = [(one.query, similarity) for similarity, one in near if one.outcomes.get(key, 0.0) >= 0.5]
        tools.append(FoundTool(index.cards[row].name, int(place[row]), rank, tuple(earlier[:_EARLIER])))
    return ToolExplanation(query, tuple(tools), _reason(offset, shared, task, weight))


def _reason(offset: Offset | None, shared: Offsets | None, task: str | None, weight: float) -> str:
    legs = f"BM25 weighs {weight:g}" + (" as at first" if weight == WEIGHT else f" instead of {WEIGHT:g}")
    if offset is not None:
        return f"moved by {offset.key}, {offset.evidence}; {legs}"
    if shared is None:
        return f"nothing was learned yet; {legs}"
    own = [one for one in shared.values() if one.task == (task or DEFAULT_TASK) and one.query_id is None]
    why = "; ".join(f"{one.key} {one.evidence}" for one in own) or "nothing was learned for this task"
    return f"not moved: {why}; {legs}"
