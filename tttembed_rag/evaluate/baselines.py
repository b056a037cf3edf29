"""What an offset is compared with."""

from __future__ import annotations

import numpy as np

from tttembed_rag.vectors import FloatArray, IntArray


def direct_rerank(ranked: IntArray, candidates: IntArray, rewards: FloatArray) -> IntArray:
    """The base list (k,) with its rewarded documents sorted by reward within the slots they hold.

    Ties keep base order, unrewarded documents keep their slots (paper, appendix on budgets).

    Args:
        ranked: (k,) rows of documents in base order.

        candidates: Rewarded rows; those beyond *ranked* are ignored.

        rewards: Their rewards.
    """
    reward = dict(zip(candidates.tolist(), rewards.tolist(), strict=True))
    slots = [slot for slot, row in enumerate(ranked.tolist()) if row in reward]
    by_reward = sorted((ranked[slot] for slot in slots), key=lambda row: -reward[int(row)])
    reranked = ranked.copy()
    reranked[slots] = np.array(by_reward, dtype=ranked.dtype)
    return reranked
