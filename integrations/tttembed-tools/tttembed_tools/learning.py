"""From outcomes to what is served: the weight of BM25 and offsets of the dense leg, decided on the fused list.

What is known of a request is which items were listed for it, and which of them helped. An item that helped is compared
with those that were listed and that nobody used: they count as no better, and only while offsets are fitted, as no
reward of them is kept. What was not listed was not refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from tttembed_store.sql.records import TOOL_CALLS

from tttembed_rag.errors import RewardError
from tttembed_rag.fitting.measures import PLACES
from tttembed_rag.gate.fit import fit
from tttembed_rag.gate.floors import floor_of
from tttembed_rag.gate.thresholds import FOLDS
from tttembed_rag.gate.tuning import tune
from tttembed_rag.offsets.floor import LIST
from tttembed_rag.offsets.offset import AnyScope, Offset
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray, unit
from tttembed_rag.vectors.rows import Float64
from tttembed_tools.index import WEIGHT, WEIGHTS, Index, best, fused
from tttembed_tools.outcomes import Outcomes, PastRequest

if TYPE_CHECKING:
    from tttembed_store.worker import Findings, Tenant

# Rewards of an item that was used and helped, and of one that did not: a tool that failed by its own error.
SUCCEEDED, FAILED = 1.0, 0.2
# Items that the search lists first, beside which what was used must agree with it, whatever was listed.
_BACKGROUND = 10
# What is tried: where all requests share a habit, such as one suite of tools, one offset for all finds more.
_SCOPES: tuple[AnyScope, ...] = ("auto", "task")
# In the settings of offsets, the weight of BM25.
KEYWORD_WEIGHT = "bm25_weight"
# Offsets that a verdict explains, at most.
_EXPLAINED = 3
# Who uses items without a name: a source of its own for each request, as no judge vouches for what users say.
_NAMELESS = "(no name)"


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was learned in one pass.

    Attributes:
        requests: Requests that were learned from: those with an item that helped and is still there.
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

    def __str__(self) -> str:
        verdict = "published" if self.published else "nothing new"
        return f"{verdict}: {self.requests} requests, weight of BM25 {self.weight:g}; {self.reason}"


def any_served(offsets: Offsets | None) -> bool:
    """Whether any of the *offsets* is served."""
    return offsets is not None and any(offset.served for offset in offsets.values())


def weight_of(offsets: Offsets | None) -> float:
    """The weight of BM25 that was published with *offsets*."""
    weight = None if offsets is None else offsets.settings.get(KEYWORD_WEIGHT)
    return float(weight) if isinstance(weight, int | float) and 0 <= weight <= 10 else WEIGHT


def usable(requests: Sequence[PastRequest], index: Index) -> list[PastRequest]:
    """The requests for which an item that is still there helped, sorted so that their order says nothing."""
    helped = [request for request in requests if any(key in index.keys for key in request.helped)]
    return sorted(helped, key=lambda request: (request.task, request.query, request.source, request.query_id))


def learn(requests: Sequence[PastRequest], index: Index) -> Offsets:
    """Offsets for the requests of `usable`, at least two, with the weight of BM25 in their settings.

    Both are decided at the end of the whole search: `tune` chooses the weight, then `fit` asks its gate about lists of
    both legs, in which what was listed for a request is ranked: of other items nobody knows whether they would have
    helped. Of a local offset for each task and a constant one, those are taken by which these lists gain more.
    """
    rewards = rewards_of_outcomes(requests, index)
    keyword = {request.query_id: index.keywords.scores(request.query) for request in requests}
    known: dict[str, set[int]] = {}
    for request in requests:
        rows = {index.keys[key] for key in (*request.outcomes, *request.shown) if key in index.keys}
        known[request.query_id] = known.get(request.query_id, set()) | rows

    def listed(weight: float, vector: FloatArray, query_id: str) -> list[str]:
        rows = np.array(sorted(known[query_id]))
        scores = fused(index.dense(vector), keyword[query_id], weight)[rows]
        return [index.cards[row].key for row in rows[best(scores, PLACES)]]

    vouching = rewards_of_outcomes([_beside_first(request, index) for request in requests], index)
    weight = tune(rewards, listed, WEIGHTS, vouching=vouching).setting
    fitted = [fit(rewards, scope=scope, served=partial(listed, weight), vouching=vouching) for scope in _SCOPES]
    offsets = max(fitted, key=_gained)
    settings = {**offsets.settings, KEYWORD_WEIGHT: weight}
    return Offsets(with_floors(offsets, requests, index), width=offsets.width, settings=settings)


def with_floors(offsets: Offsets, requests: Sequence[PastRequest], index: Index) -> list[Offset]:
    """The *offsets*, each with the floor of the requests of its task, for all of which an item helped.

    A source is one observation, and so is a request without a named source: no source raises a floor by asking often.
    """
    voices = [request.source or f"{_NAMELESS} {request.query}" for request in requests]
    tasks = np.array([request.task for request in requests])
    floors = {}
    for task in offsets.tasks:
        own = np.flatnonzero(tasks == task).tolist()
        vectors = np.stack([requests[row].vector for row in own])
        lists = [("", (), nearest(index, vector)) for vector in vectors]
        groups = np.unique([voices[row] for row in own], return_inverse=True)[1]
        floors[task] = floor_of(unit(vectors), lists, groups % FOLDS, groups)
    return [replace(offset, floor=floors.get(offset.task or "")) for offset in offsets.values()]


def nearest(index: Index, vector: FloatArray) -> Float64:
    """The cosines of a base *vector* (d,) and the items that are nearest, the highest first."""
    cosines = index.dense(vector) / np.linalg.norm(vector)
    return cosines[best(cosines, LIST)].astype(np.float64)


def fits(offsets: Offsets, index: Index, vector: FloatArray, task: str | None) -> bool:
    """Whether any item may be what a request with a base *vector* (d,) needs."""
    if (cut := offsets.floor(task)) is None:
        return True
    likely = offsets.relevance(nearest(index, vector), vector=vector, task=task)
    return likely is None or bool(likely.max() >= cut)


def _beside_first(request: PastRequest, index: Index) -> PastRequest:
    """A request as if the search had listed its first items down to `_BACKGROUND` that it has no outcome of."""
    rows = best(index.scores(request.query, request.vector, WEIGHT), _BACKGROUND + len(request.outcomes))
    return replace(request, shown=tuple(index.cards[row].key for row in rows.tolist()))


def _sources(requests: Sequence[PastRequest]) -> list[str]:
    """The source of each request; one without a name is a source of its own."""
    return [request.source or f"{_NAMELESS} {row}" for row, request in enumerate(requests)]


def _gained(offsets: Offsets) -> float:
    """What the lists of all requests gain together, held out, in nDCG@10."""
    own = [offset for offset in offsets.values() if offset.served and offset.task is not None]
    return sum(offset.n * (offset.evidence.gain or 0.0) for offset in own)


def rewards_of_outcomes(requests: Sequence[PastRequest], index: Index) -> Rewards:
    """The outcomes of each request, beside the items that were listed and that no source used for it."""
    known = [
        {index.keys[key]: reward for key, reward in request.outcomes.items() if key in index.keys}
        for request in requests
    ]
    used: dict[tuple[str, str], set[str]] = {}  # for a request, by any source
    for request in requests:
        used.setdefault((request.task, request.query_id), set()).update(request.outcomes)
    candidates: list[IntArray] = []
    values = []
    for request, own in zip(requests, known, strict=True):
        by_any = used[request.task, request.query_id]
        others = [index.keys[key] for key in request.shown if key in index.keys and key not in by_any]
        candidates.append(np.array([*own, *others], dtype=np.intp))
        values.append(np.array([*own.values(), *[0.0] * len(others)]))
    listed = dict.fromkeys(np.concatenate(candidates).tolist())  # in the order of their rows
    row_of = {item: row for row, item in enumerate(listed)}
    return Rewards.from_indexed(
        np.stack([request.vector for request in requests]),
        index.vectors[list(listed)],
        [np.array([row_of[item] for item in items], dtype=np.intp) for items in map(np.ndarray.tolist, candidates)],
        values,
        tasks=[request.task for request in requests],
        query_ids=[request.query_id for request in requests],
        judge=TOOL_CALLS,
        sources=_sources(requests),
        doc_ids=[index.cards[item].key for item in listed],
    )


class OutcomeLearner:
    """A `tttembed_store.worker.Learner` of what moves the search over some items.

    Args:
        outcomes: Where outcomes are kept.
        index_of: Gives the items of a tenant as they are now.
        abstain: Whether the floor of the search is served.
    """

    judge = TOOL_CALLS

    def __init__(self, outcomes: Outcomes, index_of: Callable[[str], Index], *, abstain: bool) -> None:
        self.embedder = outcomes.embedder
        self._outcomes, self._index_of, self._abstain = outcomes, index_of, abstain

    def learn(self, tenant: Tenant) -> Findings:
        """What the outcomes of *tenant* support.

        Raises:
            RewardError: For fewer than two requests an item helped that is here.
        """
        from tttembed_store.worker import Findings

        index = self._index_of(tenant.name)
        requests = usable(self._outcomes.requests(tenant.name, index.width), index)
        if len(requests) < 2:
            raise RewardError("expected at least 2 requests for which an item helped")
        if self._outcomes.alone(tenant.name, requests):  # it is believed like a user of his own search
            requests = [replace(request, source="") for request in requests]
        offsets = learn(requests, index)
        weight = offsets.settings[KEYWORD_WEIGHT]
        why = [f"{offset.key} {offset.evidence}" for offset in offsets.values()][:_EXPLAINED]
        if weight != WEIGHT:
            why.append(f"BM25 weighs {weight:g} instead of {WEIGHT:g}")
        return Findings(
            offsets,
            serves=any_served(offsets)
            or weight != WEIGHT
            or (self._abstain and any(offsets.floor(task) is not None for task in offsets.tasks)),
            queries=len(requests),
            rewards=sum(len(request.outcomes) for request in requests),
            why="; ".join(why),
        )
