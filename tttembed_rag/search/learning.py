"""From outcomes to what is served: the weight of BM25 and offsets of the dense leg, decided on the fused list.

What is known of a request is which tools worked for it. To learn from that, a tool that worked is compared with the
tools that the search lists first and nobody called: they count as no better, and only while offsets are fitted. What
is kept of them is nothing: they stay unjudged. Where a judge was asked about one of them, its verdict counts instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tttembed_rag.gate.deciding import fit
from tttembed_rag.gate.thresholds import LISTED
from tttembed_rag.gate.tuning import tune
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope
from tttembed_rag.rewards import Rewards
from tttembed_rag.rewards.observations import KEYWORD_WEIGHT, TOOL_CALLS
from tttembed_rag.search.index import WEIGHT, WEIGHTS, ToolIndex, best, fused
from tttembed_rag.search.outcomes import PastRequest
from tttembed_rag.vectors.checks import FloatArray, IntArray

# Rewards of a tool that was called and worked, and of one that failed by its own error.
SUCCEEDED, FAILED = 1.0, 0.2
# Tools listed first that nobody called, with which a tool that worked is compared: 10 where 80 % of the tools that
# worked stand among the first ten, else 30.
_BACKGROUND, _DEEP_BACKGROUND, _NEAR = 10, 30, 0.8
# What is tried: where all requests share a habit, such as one suite of tools, one offset for all finds more.
_SCOPES: tuple[AnyScope, ...] = ("auto", "task")
# Who calls without a name: a source of its own for each request, as no judge vouches for what callers say.
_NAMELESS = "(no name)"


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was learned in one pass.

    Attributes:
        requests: Requests that were learned from: those with a tool that worked and is still in the catalogue.

        weight: The weight of BM25 that is served from now on.

        moves: Whether offsets are served from now on.

        published: Whether something new is served.

        reason: The verdict in words a person understands.
    """

    requests: int
    weight: float
    moves: bool
    published: bool
    reason: str

    @classmethod
    def of(cls, requests: int, offsets: Offsets | None, reason: str, *, published: bool = False) -> Lesson:
        """The lesson of a pass after which *offsets* are served."""
        moves = any(one.served for one in ({} if offsets is None else offsets).values())
        return cls(requests, weight_of(offsets), moves, published, reason)

    def __str__(self) -> str:
        verdict = "published" if self.published else "nothing new"
        return f"{verdict}: {self.requests} requests, weight of BM25 {self.weight:g}; {self.reason}"


def weight_of(offsets: Offsets | None) -> float:
    """The weight of BM25 that was published with *offsets*."""
    found = None if offsets is None else offsets.settings.get(KEYWORD_WEIGHT)
    return float(found) if isinstance(found, int | float) and 0 <= found <= 10 else WEIGHT


def usable(requests: Sequence[PastRequest], index: ToolIndex) -> list[PastRequest]:
    """The requests for which a tool of the catalogue worked, sorted so that their order says nothing."""
    found = [one for one in requests if any(value >= 0.5 and key in index.keys for key, value in one.outcomes.items())]
    return sorted(found, key=lambda one: (one.task, one.query_id, one.source))


def learn(
    requests: Sequence[PastRequest], index: ToolIndex, verdicts: Sequence[Mapping[str, float]] | None = None
) -> Offsets:
    """Offsets for the requests of `usable`, at least two, with the weight of BM25 in their settings.

    Both are decided at the end of the whole search: `tune` chooses the weight, then `fit` asks its gate about lists of
    both legs. Of a local offset for each task and a constant one, those are taken by which these lists gain more.
    *verdicts* are rewards of tools that nobody called, for each request, by the keys of their cards.
    """
    vectors = np.stack([one.vector for one in requests])
    keyword = {one.query_id: index.keyword(one.query) for one in requests}
    legs = np.stack([keyword[one.query_id] for one in requests])
    rewards = rewards_of_calls(requests, index, vectors, legs, verdicts)

    def listed(weight: float, vector: FloatArray, query_id: str) -> list[str]:
        scores = fused(index.vectors @ vector, keyword[query_id], weight)
        return [index.cards[row].key for row in best(scores, LISTED)]

    weight = tune(rewards, listed, WEIGHTS).setting
    tried = [fit(rewards, scope=scope, served=partial(listed, weight)) for scope in _SCOPES]
    offsets = max(tried, key=_gained)
    return Offsets(offsets.values(), width=offsets.width, settings={**offsets.settings, KEYWORD_WEIGHT: weight})


def _gained(offsets: Offsets) -> float:
    """What the lists of all requests gain together, held out, in nDCG@10."""
    own = [one for one in offsets.values() if one.served and one.task is not None]
    return sum(one.n * (one.evidence.gain or 0.0) for one in own)


def rewards_of_calls(
    requests: Sequence[PastRequest],
    index: ToolIndex,
    vectors: FloatArray,
    keyword: FloatArray,
    verdicts: Sequence[Mapping[str, float]] | None = None,
) -> Rewards:
    """The outcomes of each request, beside the tools that the search lists first and that no source called for it."""
    known = [{index.keys[key]: value for key, value in one.outcomes.items() if key in index.keys} for one in requests]
    scores = np.stack([fused(index.vectors @ x, words, WEIGHT) for x, words in zip(vectors, keyword, strict=True)])
    lowest = [
        min(row[tool] for tool, value in own.items() if value >= 0.5) for row, own in zip(scores, known, strict=True)
    ]
    near = np.mean((scores > np.array(lowest)[:, None]).sum(axis=1) < _BACKGROUND)
    depth = _BACKGROUND if near >= _NEAR else _DEEP_BACKGROUND
    called: dict[tuple[str, str], set[int]] = {}  # for a request, by any source
    for one, own in zip(requests, known, strict=True):
        called.setdefault((one.task, one.query_id), set()).update(own)
    candidates, values = [], []
    for one, row, own, judged in zip(requests, scores, known, verdicts or [{}] * len(known), strict=True):
        others = uncalled(row, called[one.task, one.query_id], depth)
        candidates.append(np.concatenate([np.fromiter(own, dtype=np.intp), others]))
        counted = [judged.get(index.cards[place].key, 0.0) for place in others.tolist()]
        values.append(np.array([*own.values(), *counted], dtype=np.float64))
    return Rewards.from_indexed(
        vectors,
        index.vectors,
        candidates,
        values,
        tasks=[one.task for one in requests],
        query_ids=[one.query_id for one in requests],
        judge=TOOL_CALLS,
        sources=[one.source or f"{_NAMELESS} {row}" for row, one in enumerate(requests)],
        doc_ids=[card.key for card in index.cards],
    )


def uncalled(scores: FloatArray, called: Collection[int], count: int) -> IntArray:
    """The places of the *count* tools with the highest scores (n,) that were not *called*."""
    others = scores.copy()
    others[list(called)] = -np.inf
    return best(others, min(count, len(others) - len(called)))
