"""Which queries are rewarded under a budget: task-balanced water-filling (paper, appendix)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.vectors.checks import IntArray


def water_fill(sizes: Sequence[int], queries: int, *, seed: int | None = 1000) -> list[IntArray]:
    """Positions of the rewarded queries within each task, in the order they are rewarded.

    Tasks take turns, one query each; an exhausted task drops out. Task t draws its queries in a
    random order of seed *seed* + t, so a larger budget only ever adds queries: prefixes are nested.

    Args:
        sizes: Queries each task has to offer.
        queries: Rewarded queries over all tasks; more than there are takes all.
        seed: Seed of task 0; None takes the queries of each task as they stand.
    """
    if queries < 0:
        raise InputError(f"queries: expected a number >= 0, got {queries}")
    turns = (task for level in range(max(sizes, default=0)) for task, size in enumerate(sizes) if level < size)
    taken = Counter(islice(turns, queries))
    if seed is None:
        return [np.arange(taken[t]) for t in range(len(sizes))]
    return [np.random.default_rng(seed + t).permutation(size)[: taken[t]] for t, size in enumerate(sizes)]


def in_turns(sizes: Sequence[int], *, seed: int | None = 1000) -> list[tuple[int, int]]:
    """All (task, position) in the order in which `water_fill` rewards them as its budget grows."""
    filled = water_fill(sizes, sum(sizes), seed=seed)
    return [
        (t, int(rows[turn]))
        for turn in range(max(sizes, default=0))
        for t, rows in enumerate(filled)
        if turn < len(rows)
    ]
