"""The lists of stored queries before and after an offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import named_for
from tttembed_rag.report.facts import Effect
from tttembed_rag.report.heldout import Listed, Lists
from tttembed_rag.stores import Served
from tttembed_rag.system.terminal import printable
from tttembed_rag.vectors.checks import FloatArray, unit

# What is shown at most: characters of a text, those of a candidate's text and of its id, and queries.
_TEXT, _TITLE, _NAME, _EXAMPLES = 160, 100, 80, 5
# Candidates that a list holds, shown ones and those that another dose may bring in.
_CANDIDATES = 20


def effect_of(offsets: Offsets, recent: Sequence[Served], *, owner: str) -> Effect:
    """The effect of *offsets* of the tenant *owner* on the order of candidates of *recent* queries, newest first.

    Queries with fewer than two candidates are left out.
    """
    looked = moved = 0
    examples: list[Lists] = []
    for served in recent:
        if len(served.candidates) < 2 or served.vector is None:
            continue
        looked += 1
        offset = offsets.find(served.task, named_for(owner, served.tenant, served.query_id))
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


def firsts_of(vectors: FloatArray, query: FloatArray, dosed: FloatArray) -> list[tuple[int, int, float, float]]:
    """Which of unit *vectors* (n, d) are among the first of a unit *query* (d,) before or after *dosed* (d,) moves it.

    In the order before, with the row of each: its rank then among all, 1 is the best, its score x·z and its lift
    alpha v·z.
    """
    scores, lifts = vectors @ query, vectors @ dosed
    order = np.argsort(-scores, kind="stable")
    was, now = np.argsort(order), np.argsort(np.argsort(-scores - lifts, kind="stable"))
    kept = order[np.minimum(was, now)[order] < _CANDIDATES]
    facts = (kept, was[kept] + 1, scores[kept], lifts[kept])
    return list(zip(*(one.tolist() for one in facts), strict=True))


def lists_of(
    served: Served, dosed: FloatArray, key: str, *, before: float | None = None, after: float | None = None
) -> Lists:
    """The candidates of a query that is moved by *dosed* (d,): alpha v of the offset *key*."""
    vectors = unit(np.array([candidate.vector for candidate in served.candidates], dtype=np.float64))
    query = unit(np.asarray(served.vector, dtype=np.float64))
    firsts = firsts_of(vectors, query, np.asarray(dosed, dtype=np.float64))
    shown = replace(served, candidates=[served.candidates[row] for row, *_ in firsts])
    return lists_from(shown, firsts, key, before=before, after=after)


def lists_from(
    served: Served,
    firsts: Sequence[tuple[int, int, float, float]],
    key: str,
    *,
    before: float | None = None,
    after: float | None = None,
) -> Lists:
    """The same where the candidates of *served* are the *firsts* alone."""
    return Lists(
        query_id=shortened(served.query_id, _NAME),
        query=None if served.query is None else shortened(served.query),
        task=shortened(served.task, _NAME),
        offset=shortened(key, _TITLE),
        before=before,
        after=after,
        candidates=tuple(
            Listed(
                document=shortened(candidate.doc_id, _NAME),
                text=shortened(candidate.text or "", _TITLE),
                reward=candidate.reward,
                rank=rank,
                score=score,
                lift=lift,
            )
            for candidate, (_, rank, score, lift) in zip(served.candidates, firsts, strict=True)
        ),
    )


def shortened(text: str, width: int = _TEXT) -> str:
    """*text* on one line of at most *width* characters, without control characters."""
    line = printable(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width else f"{line[: width - 1]}…"
