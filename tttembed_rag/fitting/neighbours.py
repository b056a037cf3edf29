"""Unjudged documents near a query, which the fit takes for no better than the worst that was judged for the task.

A shared offset moves every document, but its loss sees only judged candidates: it may lift documents
nobody judged, and there the harm hides. The reward set knows some of them for free: what was judged
for other queries of the task lies in the same index. The nearest of them join each query's candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tttembed_rag.rewards.columns import starts_of
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray

# Unjudged candidates that join each judged one. On development three taught no more than two, at twice the cost.
NEIGHBOURS = 2
# Queries whose judged documents are each other's neighbours: bounds the search at 256 queries' depth.
_POOL = 256


def with_neighbours(rewards: Rewards) -> Rewards:
    """*rewards* with `NEIGHBOURS` unjudged candidates per judged one, as far as the task's pool has them.

    What is judged for one log of a query is judged for all.
    """
    groups = rewards.same_queries
    # One row for vectors of one text: what was judged of it is judged of its copies.
    _, first, copy = np.unique(rewards.same_documents, return_index=True, return_inverse=True)
    candidates = np.split(rewards.candidates[first][copy], rewards.starts[1:-1])
    values = np.split(rewards.values, rewards.starts[1:-1])
    for rows in _pools(rewards, groups):
        documents, judged = np.unique(np.concatenate([candidates[q] for q in rows]), return_inverse=True)
        query = np.unique(groups[rows], return_inverse=True)[1]
        known = np.zeros((query[-1] + 1, len(documents)), dtype=bool)
        known[np.repeat(query, rewards.depths[rows]), judged] = True
        similarities = rewards.queries.rows(rows).unit @ rewards.documents.rows(documents).unit.T
        distance = -similarities.round(6)  # equal texts tie, whatever float32 makes of them
        distance[known[query]] = np.inf
        most = min(NEIGHBOURS * int(rewards.depths[rows].max()), len(documents))
        nearest = np.argpartition(distance, most - 1, axis=1)[:, :most]
        nearest = np.take_along_axis(
            nearest, np.argsort(np.take_along_axis(distance, nearest, axis=1), axis=1, kind="stable"), axis=1
        )
        room = (~known).sum(axis=1)[query]
        # Not of the query: where all that it was shown is good, what it was not shown would be as good.
        worst = min(values[q].min() for q in rows)
        for q, ranked, left in zip(rows.tolist(), nearest, room.tolist(), strict=True):
            count = min(NEIGHBOURS * len(values[q]), left)
            candidates[q] = np.concatenate([candidates[q], documents[ranked[:count]]])
            values[q] = np.concatenate([values[q], np.full(count, worst)])
    starts = starts_of([len(row) for row in values])
    return replace(rewards, candidates=np.concatenate(candidates), values=np.concatenate(values), starts=starts)


def _pools(rewards: Rewards, groups: IntArray) -> Iterator[IntArray]:
    """Rows of one task at a time, at most `_POOL`, the same whatever the order of *rewards*."""
    for task in np.unique(rewards.tasks):
        rows = np.flatnonzero(rewards.tasks == task)
        rows = rows[np.argsort(groups[rows], kind="stable")]
        yield from np.array_split(rows, -(-len(rows) // _POOL))
