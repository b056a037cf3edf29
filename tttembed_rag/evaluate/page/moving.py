"""The lists of stored queries before and after an offset."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tttembed_rag.evaluate.page.heldout import Listed, Lists
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.system.terminal import printable
from tttembed_rag.vectors.checks import FloatArray, unit

# What is shown at most: characters of a text, those of a candidate's text and of its id, and queries.
_TEXT, _TITLE, _NAME, _EXAMPLES = 160, 100, 80, 5
# Candidates that a list holds: more than are shown, as another order farther down is a move too.
_CANDIDATES = 20


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of the live version on the order of stored candidates.

    Of the last queries that were *looked* at, so many were *moved*; *examples* are some of these, those that nobody
    judged first.
    """

    looked: int = 0
    moved: int = 0
    examples: tuple[Lists, ...] = ()


def effect_of(offsets: Offsets, recent: Sequence[Served], *, owner: str) -> Effect:
    """The effect of *offsets* of the tenant *owner* on the order of candidates of *recent* queries, newest first.

    Queries with fewer than two candidates are left out. Private offsets are those of queries of *owner* itself.
    """
    looked = moved = 0
    examples: list[Lists] = []
    for served in recent:
        if len(served.candidates) < 2 or served.vector is None:
            continue
        looked += 1
        offset = offsets.find(served.task, served.query_id if served.tenant == owner else None)
        if offset is None:
            continue
        lists = lists_of(served, offset.dosed(unit(np.asarray(served.vector, dtype=np.float64))), offset.key)
        if lists.moved:
            moved += 1
            if sum(example.judged == lists.judged for example in examples) < _EXAMPLES:
                examples.append(lists)
    # What an offset does to queries that it learned from says little of what it does to others.
    shown_first = sorted(examples, key=lambda example: example.judged)[:_EXAMPLES]
    return Effect(looked, moved, tuple(shown_first))


def lists_of(
    served: Served,
    dosed: FloatArray,
    key: str,
    *,
    vectors: FloatArray | None = None,
    candidate: Callable[[int], Candidate] | None = None,
    before: float | None = None,
    after: float | None = None,
    grades: Mapping[str, float] | None = None,
) -> Lists:
    """The candidates of a query that is moved by *dosed* (d,): alpha v of the offset *key*.

    They are those of *served*; or those of a collection with unit *vectors* (n, d), each what *candidate* gives for its
    row. Those among the first before or after are kept, with their ranks among all. The best are those by *grades*, by
    document, where they are given, else by rewards.
    """
    if vectors is None:
        vectors = unit(np.array([shown.vector for shown in served.candidates], dtype=np.float64))
    candidate = candidate or list(served.candidates).__getitem__
    if grades is None:
        grades = {shown.doc_id: shown.reward for shown in served.candidates if shown.reward is not None}
    most = max(grades.values(), default=math.inf)
    scores = vectors @ unit(np.asarray(served.vector, dtype=np.float64))
    lifts = vectors @ np.asarray(dosed, dtype=np.float64)
    order = np.argsort(-scores, kind="stable")
    was, now = np.argsort(order), np.argsort(np.argsort(-scores - lifts, kind="stable"))
    kept = order[np.minimum(was, now)[order] < _CANDIDATES].tolist()
    return Lists(
        query_id=shortened(served.query_id, _NAME),
        query=shortened(served.query) if served.query else None,
        task=shortened(served.task, _NAME),
        offset=shortened(key, _TITLE),
        before=before,
        after=after,
        candidates=tuple(
            Listed(
                document=shortened(shown.doc_id, _NAME),
                text=shortened(shown.text, _TITLE),
                reward=shown.reward,
                rank=int(was[row]) + 1,
                score=float(scores[row]),
                lift=float(lifts[row]),
                best=grades.get(shown.doc_id, -math.inf) >= most,
            )
            for row, shown in zip(kept, map(candidate, kept), strict=True)
        ),
    )


def shortened(text: str, width: int = _TEXT) -> str:
    """*text* on one line of at most *width* characters, without control characters."""
    line = printable(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width else f"{line[: width - 1]}…"
