"""Which stored candidates of recent queries an offset moves up and down."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tttembed_rag.evaluate.explaining import Move
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import named_for
from tttembed_rag.report.facts import Effect, MovedQuery
from tttembed_rag.stores import Served
from tttembed_rag.system.terminal import printable
from tttembed_rag.vectors.checks import unit

# What is shown at most: characters of a text, queries, and candidates of a query in each direction.
_TEXT, _EXAMPLES, _MOVES = 160, 5, 5


def effect_of(offsets: Offsets, recent: Sequence[Served], judge: str, *, owner: str) -> Effect:
    """The effect of *offsets* on the order of candidates of *recent* queries, should they be asked again.

    Args:
        offsets: The live offsets.

        recent: The last served queries, newest first; those with fewer than two candidates are left out.

        judge: Fingerprint of the judge that gave their rewards.

        owner: The tenant that the offsets were published for.
    """
    looked = moved = better = worse = 0
    examples: list[MovedQuery] = []
    for served in recent:
        if len(served.candidates) < 2 or served.vector is None:
            continue
        looked += 1
        name = named_for(owner, served.tenant, served.query_id)
        offset = offsets.find(served.task, name)
        if offset is None:
            continue
        moves = moves_of(offsets, served, name)
        if all(move.rank == move.rank_before for move in moves):
            continue
        moved += 1
        now, before = moves[0].reward, next(move.reward for move in moves if move.rank_before == 1)
        if now is not None and before is not None:
            better, worse = better + (now > before), worse + (now < before)
        judged = any(candidate.reward is not None for candidate in served.candidates)
        if sum(example.judged == judged for example in examples) < _EXAMPLES:
            shown = None if served.query is None else shortened(served.query)
            examples.append(
                MovedQuery(
                    shortened(served.query_id),
                    shown,
                    shortened(served.task),
                    served.at or 0.0,
                    shortened(offset.key),
                    rose=_farthest([move for move in moves if move.rank < move.rank_before]),
                    fell=_farthest([move for move in moves if move.rank > move.rank_before]),
                    judged=judged,
                )
            )
    # What an offset does to queries that it learned from says little of what it does to others.
    shown_first = sorted(examples, key=lambda example: example.judged)[:_EXAMPLES]
    return Effect(looked, moved, better, worse, judge, tuple(shown_first))


def moves_of(offsets: Offsets, served: Served, name: str) -> list[Move]:
    """All candidates of a query that *offsets* know by *name*, in the order that the offsets give them."""
    vectors = np.array([candidate.vector for candidate in served.candidates], dtype=np.float64)
    base = np.asarray(served.vector, dtype=np.float64)
    shifted = offsets.apply(base, task=served.task, query_id=name)
    scores = unit(np.stack([base, shifted])) @ unit(vectors).T
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.argsort(order, axis=1) + 1
    return [
        Move(
            document=shortened(candidate.doc_id),
            text=shortened(candidate.text or ""),
            rank_before=int(ranks[0, row]),
            rank=int(ranks[1, row]),
            score_before=float(scores[0, row]),
            score=float(scores[1, row]),
            reward=candidate.reward,
        )
        for row in order[1].tolist()
        for candidate in [served.candidates[row]]
    ]


def shortened(text: str, width: int = _TEXT) -> str:
    """*text* on one line of at most *width* characters, without control characters."""
    line = printable(" ".join(text[: 4 * width].split()))
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _farthest(moves: Sequence[Move]) -> tuple[Move, ...]:
    """The moves over most ranks, in their order."""
    kept = sorted(moves, key=lambda move: (-abs(move.rank - move.rank_before), move.rank))[:_MOVES]
    return tuple(sorted(kept, key=lambda move: move.rank))
