"""What is served already, before anything is learned from rewards: a start that they may keep, refine or end."""

from __future__ import annotations

from dataclasses import replace

from tttembed_rag.errors import InputError
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.proposals import Prior
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards


def check_start(start: object, rewards: Rewards, *, asked: bool) -> None:
    """Refuse a *start* that is none of these *rewards*, or that is not *asked*."""
    if start is None:
        return
    if not isinstance(start, Offsets) or not asked:
        got = type(start).__name__ if asked else "another scope, or gate=False"
        raise InputError(f"start: expected Offsets, and scope='auto' or 'local' under the gate, got {got}")
    embedder = start.settings.get("embedder", rewards.embedder) if rewards.embedder else ""
    if start.width != rewards.width or embedder != rewards.embedder:
        expected, got = f"width {rewards.width} {rewards.embedder}", f"width {start.width} {embedder}"
        raise InputError(f"start: expected offsets of the same embedding model, {expected}, got {got}")


def start_of(case: Case) -> Prior | None:
    """What the task of *case* is served already; None where that is nothing."""
    start = case.terms.start
    if start is None:
        return None
    return Prior(start.alpha * start.vector, case.terms.started(case.rewards), start=True, map=start.map)


def kept(start: Offset, offset: Offset) -> Offset:
    """What a task is served already, *start*, in place of an *offset* of zero, with what is known of its lists."""
    evidence = replace(start.evidence, reason=f"{start.evidence.reason}; kept: {offset.evidence.reason}")
    start = replace(start, scope="local", task=offset.task, evidence=evidence)
    return replace(start, rescorer=offset.rescorer, skips=offset.skips, floor=offset.floor)
