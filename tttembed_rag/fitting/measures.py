"""nDCG@10 of judged candidates, by their rewards."""

from __future__ import annotations

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.vectors.rows import Float64

# Places that nDCG@10 looks at.
PLACES = 10


def judged_ndcg(grid: Grid, scores: Float64) -> Float64:
    """(n,) nDCG@10 of the judged candidates in order of *scores*.

    Gains are rewards above the query's least: a judge that never says 0 tells as much as one that does.
    """
    least = np.where(grid.present, grid.rewards, np.inf).min(axis=1, keepdims=True)
    rewards = np.where(grid.present, grid.rewards - least, 0.0)
    ideal = dcg(-np.sort(-rewards, axis=1))
    return np.asarray(dcg(np.take_along_axis(rewards, grid.order(scores), axis=1)) / np.where(ideal > 0, ideal, 1.0))


def dcg(gains: Float64) -> Float64:
    """(n,) DCG@10 of lists with *gains* (n, k) at their places."""
    listed = gains[:, :PLACES]
    return np.asarray(listed @ (1.0 / np.log2(np.arange(2, listed.shape[1] + 2))))


def discounts(grid: Grid, scores: Float64) -> Float64:
    """(n, k) 1 / log2(place + 2) of each candidate in order of *scores*, 0 from place `PLACES` on."""
    order = grid.order(scores)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(order.shape[1])[None], axis=1)
    return np.where(place < PLACES, 1.0 / np.log2(place + 2.0), 0.0)
