"""Private offsets of judged queries: are they to be believed, and do they help?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import private_offsets
from tttembed_rag.gate.gains import judged_ndcg
from tttembed_rag.gate.signal import Signal
from tttembed_rag.gate.thresholds import CONTRADICT, INTERVAL_LEVEL, KNOW, NOISE
from tttembed_rag.offsets.values import Evidence, Offset
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import norms, shift
from tttembed_rag.vectors.rows import UnitRows


def believed(rewards: Rewards, signal: Signal, whole: Signal | None, shared: Offset | None = None) -> Evidence:
    """The verdict on all private offsets of a task: is its judge worth believing about what it judged?

    Args:
        rewards: Rewards of the task.

        signal: What they can prove.

        whole: What the rewards of all tasks can prove; None where there is one task.

        shared: The offset of the task; None where none was asked for.
    """
    n = len(np.unique(rewards.same_queries))
    what = f"private offsets, {n} rewarded {'queries' if n > 1 else 'query'}"
    if signal.is_backwards:
        return Evidence(n, None, None, "abstained", f"{what}: the rewards {CONTRADICT}")
    if signal.is_informed():
        return Evidence(n, None, None, "published", f"{what}: the rewards {KNOW}")
    if shared and shared.served:
        return Evidence(n, None, None, "published", f"{what}: what they teach held on held-out ones")
    if whole and whole.is_informed() and signal.is_informed(level=INTERVAL_LEVEL):
        return Evidence(n, None, None, "published", f"{what}: the rewards of all tasks {KNOW}, and these seem to")
    return Evidence(n, None, None, "abstained", f"{what}: the rewards {NOISE}")


def improving(rewards: Rewards, private: Sequence[Offset], evidence: Evidence) -> Evidence:
    """*evidence*, unless *private* offsets (n) rank what was judged no better than the retriever did.

    So they would for a judge that repeats the retriever's order: there is nothing to learn, and what is learned from
    its steps is noise.
    """
    if not any(one.served for one in private):
        return evidence
    grid, unit = Grid.of(rewards), rewards.queries.unit
    moved = unit + np.array([one.alpha * one.vector for one in private], unit.dtype)
    scores = rewards.documents.similarities(UnitRows(moved, np.ones(len(unit), unit.dtype)), grid.slots)
    if (judged_ndcg(grid, scores) - judged_ndcg(grid, grid.base)).mean() > 0:
        return evidence
    what, _, _ = evidence.reason.partition(":")
    return replace(evidence, verdict="abstained", reason=f"{what}: they rank what was judged no better than it was")


def on_top(shared: Offset, rewards: Rewards, recipe: Recipe, evidence: Evidence) -> Iterator[Offset]:
    """Private offsets learned on queries that *shared* has moved, so the ridge shrinks them around it.

    With s = ||unit(x) + alpha v|| for the shared v, a private w on the moved query is the offset
    (alpha / alpha_q) v + s w on the base vector, at the private dose alpha_q.
    """
    dosed = np.asarray(shared.alpha * shared.vector, dtype=rewards.query_vectors.dtype)
    lengths = norms(rewards.queries.unit + dosed)
    moved = shift(rewards.query_vectors, dosed, rewards.query_norms)
    private = private_offsets(replace(rewards, query_vectors=moved, query_norms=norms(moved)), recipe, evidence)
    for offset, length in zip(private, lengths, strict=True):
        if offset.served:
            vector = dosed / offset.alpha + length * offset.vector
            yield replace(offset, vector=vector.astype(offset.vector.dtype, copy=False))
        else:
            yield offset
