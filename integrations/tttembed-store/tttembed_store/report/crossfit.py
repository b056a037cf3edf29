"""Judged queries held out: each fifth is moved by offsets that were learned, and gated, from the other four."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from tttembed_rag.evaluate.page.heldout import SHOWN, HeldOut, Lists, held_out_of, traffic_of
from tttembed_rag.evaluate.page.moving import lists_of
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.measures import judged_ndcg
from tttembed_rag.fitting.merging import query_numbers
from tttembed_rag.gate.audit import Labels
from tttembed_rag.gate.fit import fit
from tttembed_rag.gate.thresholds import FOLDS
from tttembed_rag.offsets.evidence import without_alike
from tttembed_rag.offsets.offset import AnyScope
from tttembed_rag.rewards.observations import Served
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64, UnitRows

# What sees the parts go by as they are worked on.
Watch: TypeAlias = Callable[[Sequence[int]], Iterable[int]]

# The least of different questions that are worth being held out.
_LEAST = 10
# Candidates of a query that count.
_DEPTH = 50


def held_out(
    rewards: Rewards,
    details: Callable[[Sequence[tuple[str, str]]], Sequence[Served]],
    *,
    scope: AnyScope = "auto",
    judge: str,
    labels: Labels | None = None,
    watch: Watch = iter,
) -> HeldOut | None:
    """What offsets of *scope* do to judged queries that they were not learned from; None of too few questions.

    *details* gives the texts of some queries, named by task and id, and their candidates that nobody judged; a query
    that it does not know is counted and not shown. The gate asks the trusted *labels*, as it does before anything is
    published. *watch* gives the parts one by one as it is given them, and may tell how far the work is.
    """
    every = rewards.bounded(_DEPTH)
    rewards = every.take(np.flatnonzero(every.reach > 0)) if every.reach.any() else every
    if not rewards.reach.all() or len(np.unique(rewards.near_queries)) < _LEAST:
        return None
    dosed, keys = moved_without(rewards, parts_of(rewards), scope, labels, watch)
    grid = Grid.of(rewards)
    lifts = rewards.documents.similarities(UnitRows(dosed, np.ones(len(rewards))), grid.slots)
    # Several sources may have rewarded one query: each has a row, and they count as one query.
    query = query_numbers(rewards)
    first = np.unique(query, return_index=True)[1]
    raw, after, rerank = (
        np.bincount(query, judged_ndcg(grid, scores)) / np.bincount(query)
        for scores in (grid.base, grid.base + lifts, grid.rewards)
    )
    pool, queries, moved = rewards.documents.unit, rewards.queries.unit[first], dosed[first]
    names = list(zip(rewards.tasks[first].tolist(), rewards.query_ids[first].tolist(), strict=True))

    def shown(places: Sequence[int]) -> tuple[Lists, ...]:
        known = {(served.task, served.query_id): served for served in details([names[place] for place in places])}
        return tuple(
            lists_of(served, moved[place], keys[first[place]], before=float(raw[place]), after=float(after[place]))
            for place in places
            if (served := known.get(names[place])) is not None
        )

    return held_out_of(
        raw,
        after,
        rerank,
        shown,
        measure=f"by the rewards of {judge}",
        method="Each fifth of the judged queries is served by what the gate publishes from the other four; judged "
        f"candidates alone are measured.{without_alike(len(every) - len(rewards))}",
        traffic=traffic_of(_firsts(queries, pool), _firsts(queries + moved, pool), len(pool)),
    )


def _firsts(queries: FloatArray, documents: FloatArray) -> IntArray:
    """(n, 10) rows of unit *documents* (u, d) of largest product with *queries* (n, d), in no order, by blocks."""
    count = min(SHOWN, len(documents))
    blocks = np.array_split(queries, -(-len(queries) // 128))
    return np.concatenate([np.argpartition(-(block @ documents.T), count - 1, axis=1)[:, :count] for block in blocks])


def parts_of(rewards: Rewards) -> IntArray:
    """(n,) the part that each query is held out with; queries that ask nearly the same share one."""
    questions, question = np.unique(rewards.near_queries, return_inverse=True)
    return np.asarray(np.random.default_rng(0).permutation(len(questions))[question] % FOLDS)


def moved_without(
    rewards: Rewards, part: IntArray, scope: AnyScope, labels: Labels | None = None, watch: Watch = iter
) -> tuple[Float64, list[str]]:
    """(n, d) alpha v at each query and the offset's key, learned from all parts but that of the query.

    Where nothing is served it is zero, and the key empty.
    """
    dosed, keys = np.zeros((len(rewards), rewards.width)), [""] * len(rewards)
    for number in watch(np.unique(part).tolist()):
        offsets = fit(rewards.take(np.flatnonzero(part != number)), scope=scope, audit=labels)
        for task in np.unique(rewards.tasks[part == number]).tolist():
            if (offset := offsets.find(task)) is not None:
                rows = np.flatnonzero((part == number) & (rewards.tasks == task))
                dosed[rows] = offset.dosed(rewards.queries.rows(rows).unit)
                for row in rows.tolist():
                    keys[row] = offset.key
    return dosed, keys
