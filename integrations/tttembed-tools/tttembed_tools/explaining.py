"""Why a search finds these items: ranks before and after learning, and the earlier requests behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.vectors.checks import FloatArray
from tttembed_tools.index import WEIGHT, Index, best
from tttembed_tools.learning import weight_of
from tttembed_tools.outcomes import PastRequest

# Earlier requests that are named for an item.
_EARLIER = 2


@dataclass(frozen=True, slots=True)
class FoundItem:
    """One item that was found.

    Attributes:
        name: Its name.
        rank_before: Its rank, from 1, before anything was learned.
        rank: Its rank now.
        earlier: Requests nearest to this one for which it helped, as (text, cosine similarity).
    """

    name: str
    rank_before: int
    rank: int
    earlier: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        moved = f"was #{self.rank_before}" if self.rank_before != self.rank else "as before"
        because = "".join(f"; helped with {text!r:.60} ({similarity:.2f})" for text, similarity in self.earlier)
        return f"#{self.rank} {self.name} ({moved}{because})"


@dataclass(frozen=True, slots=True)
class SearchExplanation:
    """Why a search finds what it finds.

    Attributes:
        query: The request.
        items: What is found, best first.
        reason: What moves them, or why nothing does.
    """

    query: str
    items: tuple[FoundItem, ...]
    reason: str

    def __str__(self) -> str:
        return "\n".join([f"{self.query!r:.80}: {self.reason}", *map(str, self.items)])


def explained(
    index: Index,
    query: str,
    vector: FloatArray,
    offsets: Offsets | None,
    requests: Sequence[PastRequest],
    *,
    own: Sequence[int],
    k: int,
    task: str | None,
) -> SearchExplanation:
    """Why the first *k* items are found for a request with base vector (d,), beside earlier *requests* of this width.

    The *offsets* are those that are served to the tenant, None for nothing, and the rows of *own* come first.
    """
    weight = weight_of(offsets)
    moved = vector if offsets is None else offsets.apply(vector, task=task)
    place = np.argsort(best(index.scores(query, vector, WEIGHT), len(index))) + 1
    now = best(index.scores(query, moved, weight, own), k)
    near = [(float(request.vector @ vector / np.linalg.norm(request.vector)), request) for request in requests]
    near.sort(key=lambda pair: -pair[0])
    items = []
    for rank, row in enumerate(now.tolist(), 1):
        key = index.cards[row].key
        earlier = [(request.query, similarity) for similarity, request in near if key in request.helped]
        items.append(FoundItem(index.cards[row].name, int(place[row]), rank, tuple(earlier[:_EARLIER])))
    first = f"{len(own)} helped this source with the same request; " if own else ""
    return SearchExplanation(query, tuple(items), first + _reason(offsets, task))


def _reason(offsets: Offsets | None, task: str | None) -> str:
    weight = weight_of(offsets)
    legs = f"BM25 weighs {weight:g}" + (" as at first" if weight == WEIGHT else f" instead of {WEIGHT:g}")
    if offsets is None:
        return f"nothing was learned yet; {legs}"
    if (offset := offsets.find(task)) is not None:
        return f"moved by {offset.key}, {offset.evidence}; {legs}"
    of_task = [offset for offset in offsets.values() if offset.task == (task or DEFAULT_TASK)]
    why = "; ".join(f"{offset.key} {offset.evidence}" for offset in of_task) or "nothing was learned for this task"
    return f"not moved: {why}; {legs}"
