"""What an offset is compared with."""

from __future__ import annotations

import numpy as np

from tttembed_rag.serving.twopass import in_fused_order
from tttembed_rag.vectors.checks import FloatArray, IntArray


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


def fused(found: IntArray, candidates: IntArray, rewards: FloatArray) -> IntArray:
    """The list (k,) of a new search with its rewarded documents by what the judge and the search say together.

    Within the slots they hold, they stand in order of the sum of two ranks, by reward and in *found* (Borda's
    count). Ties keep the order of *found*, unrewarded documents keep their slots.

    Args:
        found: (k,) rows of documents, best first.

        candidates: Rewarded rows; those not in *found* are ignored.

        rewards: Their rewards.
    """
    listed = np.isin(candidates, found)
    rewarded = dict(zip(candidates[listed].tolist(), rewards[listed].tolist(), strict=True))
    return np.array(in_fused_order(found.tolist(), rewarded), dtype=found.dtype)
