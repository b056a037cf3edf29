"""Why a search finds these items: ranks before and after learning, and the earlier requests behind them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.vectors.checks import FloatArray
from tttembed_tools.index import WEIGHT, Index, best
from tttembed_tools.learning import weight_of
from tttembed_tools.outcomes import PastRequest

# Earlier requests that are named for an item.
_EARLIER = 2


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
) -> str:
    """Why the first *k* items are found for a request with base vector (d,), beside earlier *requests* of this width.

    The *offsets* are those that are served to the tenant, None for nothing, and the rows of *own* come first.
    """
    weight = weight_of(offsets)
    moved = vector if offsets is None else offsets.apply(vector, task=task)
    before = np.argsort(best(index.scores(query, vector, WEIGHT), len(index))) + 1
    now = best(index.scores(query, moved, weight, own), k)
    near = [(float(request.vector @ vector / np.linalg.norm(request.vector)), request) for request in requests]
    near.sort(key=lambda pair: -pair[0])
    first = f"{len(own)} helped this source with the same request; " if own else ""
    lines = [f"{query!r:.80}: {first}{_reason(offsets, task)}"]
    for rank, row in enumerate(now.tolist(), 1):
        card = index.cards[row]
        helped = [(request.query, similarity) for similarity, request in near if card.key in request.helped]
        place = "as before" if before[row] == rank else f"was #{before[row]}"
        because = "".join(f"; helped with {text!r:.60} ({similarity:.2f})" for text, similarity in helped[:_EARLIER])
        lines.append(f"#{rank} {card.name} ({place}{because})")
    return "\n".join(lines)


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
