"""DART (Liu and Li 2026, arXiv 2606.01070): a bilinear score x W z, adapted to each query while it is served.

It asks no judge: the first documents of a query are its pseudo-positives, the last of the first hundred its
pseudo-negatives. The supervised form of the same score, learned from the judge, is the linear adapter.
"""

from __future__ import annotations

import numpy as np

from tttembed_rag import Rewards
from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.fitting.objectives import softmax
from tttembed_rag.vectors.checks import FloatArray, IntArray, unit

# Documents that are ordered again.
ORDERED = 100


def dart(
    collection: Collection,
    _: IntArray,
    __: Rewards,
    *,
    labelled: int = 10,
    temperature: float = 0.02,
    margin: float = 1.0,
    hardness: float = 0.0,
    rate: float = 0.01,
    momentum: float = 0.9,
    steps: int = 5,
    meta: float = 0.1,
    ema: float = 0.5,
) -> FloatArray:
    """W'x (M, d) of every query in the order of the collection, to order its first hundred documents by.

    The margin loss sum w+ w- max(0, m - (s+ - s-)) with weights softmax(s / T) of positives and softmax(-s / T) of
    negatives and m = margin + hardness (1 - best cosine); five steps of SGD with momentum from a start that follows
    the adapted matrices (Reptile; the identity at first); ranking by a moving average of these. It is our reading of
    the paper. The numbers are ours: of 84 settings they gained most on four development collections with two
    embedders, so that they speak for it there.
    """
    documents = unit(collection.doc_vectors.astype(np.float64))
    queries = unit(collection.query_vectors.astype(np.float64))
    width = queries.shape[1]
    start, average = np.eye(width), np.eye(width)
    moved = np.empty_like(queries)
    for number, (x, ranked) in enumerate(zip(queries, collection.base[:, :ORDERED], strict=True)):
        count = min(labelled, len(ranked) // 2)
        positive, negative = documents[ranked[:count]], documents[ranked[len(ranked) - count :]]
        weights = np.outer(softmax((positive @ x)[None] / temperature), softmax(-(negative @ x)[None] / temperature))
        wanted = margin + hardness * (1.0 - float(documents[ranked[0]] @ x))
        # W = start + x h', so W'x = start'x + h: all steps are on h.
        base = start.T @ x
        h, velocity = np.zeros(width), np.zeros(width)
        for _step in range(steps):
            violated = (positive @ (base + h))[:, None] - (negative @ (base + h))[None] < wanted
            pull = np.where(violated, weights, 0.0)
            velocity = momentum * velocity + pull.sum(1) @ positive - pull.sum(0) @ negative
            h = h + rate * velocity
        average = ema * average + (1.0 - ema) * (start + np.outer(x, h))
        start = start + meta * np.outer(x, h)
        moved[number] = average.T @ x
    return moved
