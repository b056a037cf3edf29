"""A semantic cache of reranked lists: a query that is near a judged one is answered with that one's list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import numpy as np

from tttembed_rag import Rewards
from tttembed_rag.adapting import in_reward_order
from tttembed_rag.evaluate.collection import Collection, reordered
from tttembed_rag.vectors.checks import IntArray, unit
from tttembed_rag.vectors.rows import Float64

# A collection, the rows of its judged queries and their rewards to nDCG@10 of every query.
Cache: TypeAlias = Callable[[Collection, IntArray, Rewards], Float64]


def semantic_cache(collection: Collection, rows: IntArray, _: Rewards, *, reach: float, depth: int = 10) -> Float64:
    """nDCG@10 (M,) where a query within cosine *reach* of a judged one gets its reranked list; the others keep raw.

    Args:
        collection: What is searched.
        rows: The judged queries.
        reach: Least cosine of a hit.
        depth: Documents of a cached list that were judged.
    """
    queries = unit(collection.query_vectors)
    near = queries @ queries[rows].T
    cached = np.array([reordered(collection.base[q], *collection.candidates(q, depth), in_reward_order) for q in rows])
    hits = np.flatnonzero(near.max(axis=1) >= reach)
    measured = collection.raw.copy()
    measured[hits] = collection.graded(hits, cached[near[hits].argmax(axis=1)])
    return measured


CACHES: Mapping[str, Cache] = {
    f"semantic cache, cosine {reach:g}": partial(semantic_cache, reach=reach) for reach in (0.9, 0.8)
}
