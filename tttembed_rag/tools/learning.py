"""From outcomes to what is served: offsets of the dense leg and the weight of BM25, decided on the fused list.

What is known of a request is which tools worked for it. To learn from that, a tool that worked is compared with the
tools that the search lists first and nobody called: they count as no better, and only while offsets are fitted. What
is kept of them is nothing: they stay unjudged. Where a judge was asked about one of them, its verdict counts instead;
what is served is decided by calls alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.gate.deciding import fit
from tttembed_rag.gate.thresholds import Question
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope, Offset
from tttembed_rag.rewards import Rewards
from tttembed_rag.rewards.observations import KEYWORD_WEIGHT, TOOL_CALLS
from tttembed_rag.tools.index import WEIGHT, WEIGHTS, ToolIndex, best, fused
from tttembed_rag.tools.memory import PastRequest
from tttembed_rag.vectors.checks import FloatArray, IntArray

# Rewards of a tool that was called and worked, and of one that failed by its own error.
SUCCEEDED, FAILED = 1.0, 0.2
# The one question about an offset of tools that `fit` does not ask.
CONTRADICTED = Question(
    "TTT-T01",
    "Does the list of both legs bear an offset of tools out?",
    "with BM25 beside it, requests that it was not learned from lose {loss} of nDCG@10",
)
# Tools listed first that nobody called, with which a tool that worked is compared: 10 where 80 % of the tools that
# worked stand among the first ten, else 30.
_BACKGROUND, _DEEP_BACKGROUND, _NEAR = 10, 30, 0.8
_FOLDS = 5
# What is tried: where all requests share a habit, such as one suite of tools, one offset for all finds more.
_SCOPES: tuple[AnyScope, ...] = ("auto", "task")
# Who calls without a name: a source of its own for each request, as no judge vouches for what callers say.
_NAMELESS = "(no name)"
# Standard errors by which another weight must be better, and by which an offset must be worse to be withheld.
_BETTER, _WORSE = 1.28, 1.0

Float64 = NDArray[np.float64]


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

    The gate of `fit` decides on the dense leg. Then requests that did not train the offsets are searched with both
    legs: of a local offset for each task and a constant one those are taken that find more there, offsets of a task
    that make it worse by more than a standard error are withheld, and another weight is taken where it is better by
    more than that. *verdicts* are rewards of tools that nobody called, for each request, by the keys of their cards.
    """
    vectors = np.stack([one.vector for one in requests])
    keyword = np.stack([index.keyword(one.query) for one in requests])
    worked = [
        np.array([index.keys[key] for key, value in one.outcomes.items() if value >= 0.5 and key in index.keys])
        for one in requests
    ]
    measured = partial(_measured, index, keyword=keyword, worked=worked)
    rewards = rewards_of_calls(requests, index, vectors, keyword, verdicts)
    tasks, questions = np.array([one.task for one in requests]), rewards.near_queries
    tried = []
    for scope in _SCOPES:
        learned = fit(rewards, scope=scope)
        serves = any(one.served for one in learned.values())
        tried.append((learned, _cross_fitted(rewards, vectors, scope) if serves else vectors))
    offsets, held_out = max(tried, key=lambda one: float(measured(one[1], WEIGHT).mean()))
    losses = measured(vectors, WEIGHT) - measured(held_out, WEIGHT)
    against = {
        task: loss
        for task in np.unique(tasks).tolist()
        if (loss := _excess(losses[tasks == task], questions[tasks == task], _WORSE)) is not None
    }
    steered = np.where(np.isin(tasks, list(against))[:, None], vectors, held_out)
    at_first = measured(steered, WEIGHT)
    better = {
        weight: gain
        for weight in WEIGHTS
        if weight != WEIGHT and (gain := _excess(measured(steered, weight) - at_first, questions, _BETTER)) is not None
    }
    weight = max(better, key=better.__getitem__, default=WEIGHT)
    kept = [_withheld(one, against[one.task]) if one.task in against else one for one in offsets.values()]
    return Offsets(kept, width=offsets.width, settings={**offsets.settings, KEYWORD_WEIGHT: weight})


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


def _cross_fitted(rewards: Rewards, vectors: FloatArray, scope: AnyScope) -> FloatArray:
    """Each request's vector with the offset of its task as it is learned from the other folds.

    Requests that ask nearly the same, such as one request of several sources, share a fold.
    """
    fold = rewards.near_queries % _FOLDS
    moved = vectors.copy()
    for number in np.unique(fold).tolist():
        test, train = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        if len(train):
            moved[test] = fit(rewards.take(train), scope=scope).apply(vectors[test], task=rewards.tasks[test].tolist())
    return moved


def _measured(
    index: ToolIndex, vectors: FloatArray, weight: float, *, keyword: FloatArray, worked: Sequence[IntArray]
) -> Float64:
    """(n,) nDCG@10 of each request's fused list, the tools that worked being the relevant ones."""
    result = np.empty(len(vectors))
    discounts = 1 / np.log2(np.arange(2, 12))
    for row, right in enumerate(worked):
        listed = best(fused(index.vectors @ vectors[row], keyword[row], weight), 10)
        found = np.isin(listed, right)
        result[row] = discounts[: len(listed)][found].sum() / discounts[: min(10, len(right))].sum()
    return result


def _excess(gains: Float64, questions: IntArray, errors: float) -> float | None:
    """The mean gain, one question of no gain added, where it is more than so many standard errors; else None.

    Requests that ask nearly the same are one question (n,), with the mean of their gains (n,).
    """
    _, question = np.unique(questions, return_inverse=True)
    with_one = np.append(np.bincount(question, gains) / np.bincount(question), 0.0)
    mean = float(with_one.mean())
    error = float(with_one.std(ddof=1)) / np.sqrt(len(with_one))
    return mean if mean > errors * error and mean > 0 else None


def _withheld(offset: Offset, loss: float) -> Offset:
    """An offset that is not served, as the list of both legs contradicts it."""
    if not offset.served:
        return offset
    reason, code = CONTRADICTED.answer.format(loss=f"{loss:.3f}"), CONTRADICTED.code
    return replace(offset, evidence=replace(offset.evidence, verdict="abstained", reason=reason, code=code))
