"""One tenant's part of a round: guard what is live, learn from what is new, and publish on evidence.

What is live stays until something speaks against it: fresh rewards in its trial, trusted labels, or a judge that
contradicts the retriever. Evidence that is merely gone does not, and votes that contradict each other do not: evidence
wavers around the gate, versions must not flap, and a few accounts must not silence a tenant.

What is taken back has shown that taste has turned, or that rewards were false: only queries served since that version
was published are learned from then, so that the same evidence cannot publish the same again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tttembed_rag.errors import InputError, RewardError
from tttembed_rag.gate.fit import fit
from tttembed_rag.offsets.codes import AUDITED
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.system import telemetry
from tttembed_rag.vectors.probe import Probe
from tttembed_rag.vectors.rows import Float64
from tttembed_store.sql.records import AUDIT, TOOL_CALLS
from tttembed_store.worker.guarding import guard, recognise
from tttembed_store.worker.steps import Action, Step
from tttembed_store.worker.tenant import BY, Learner, Memory, Tenant

# Shared offsets that the note of a version explains, at most.
_EXPLAINED = 3


def one_pass(tenant: Tenant, probe: Probe | None) -> Iterator[Step]:
    """Guard what is live, and learn, step by step; *probe* is of the embedding model, None where it is not probed."""
    judge, count = tenant.judge()
    # What calls of tools support is seen on lists that only a search with the catalogue can make.
    if TOOL_CALLS in (judge, tenant.memory.judge):
        yield tenant.step("learned nothing", "these are calls of tools: `tttembed tools learn` learns from them")
        tenant.settle()
        return
    if not count and tenant.live is None:
        yield tenant.step("learned nothing", "no rewards yet")
        tenant.settle()
        return
    changes, labelled = tenant.store.written(judge, tenant=tenant.name), tenant.labelled()
    if probe is not None:
        yield from recognise(tenant, probe, changes)
    memory = tenant.memory
    audited = labelled != memory.labelled
    if not audited and (judge, changes) == (memory.judge, memory.changes):
        yield tenant.step("learned nothing", f"nothing is new, {count} rewards as before")
        tenant.settle()
        return
    tenant.find_embedder(judge)
    if memory.judge not in ("", judge):  # rewards of another judge count no more in its trial
        tenant.set_trial(replace(tenant.trial(), fresh=0, earlier=()))
    if memory.judge != judge:
        memory = replace(memory, judge=judge, rewards=0, learned=0)
    tenant.memory = replace(memory, changes=changes, labelled=labelled)
    # Corrected rewards are new too; expired ones are gone.
    new, needed = min(changes - memory.learned, count), 0 if audited else tenant.needed
    if new >= needed or tenant.serves:
        rewards, since, gains = tenant.rewards(judge, tenant.embedder), tenant.memory.since, np.empty(0)
        if rewards is not None and tenant.live is not None:
            gains = yield from guard(tenant, tenant.live, rewards)
        if tenant.memory.since > since:  # something was taken back, with what it was learned from
            needed = min(needed, tenant.needed)
            rewards = tenant.rewards(judge, tenant.embedder)
        if rewards is None:
            yield tenant.step("learned nothing", f"no rewards of {judge} for queries with vectors")
            return
        if new >= needed:
            yield from _learn(tenant, rewards, gains, probe)
    if new < needed:
        yield tenant.step("learned nothing", f"{new} rewards are new, {needed} are needed")
    tenant.remember()
    tenant.settle()


def learner_pass(tenant: Tenant, learner: Learner) -> Iterator[Step]:
    """Have a *learner* learn where enough is new of the rewards that it learns from, and publish what it found."""
    _, count = tenant.judge()
    changes, memory = tenant.store.written(learner.judge, tenant=tenant.name), tenant.memory
    tenant.memory = memory if memory.judge == learner.judge else Memory(judge=learner.judge, since=memory.since)
    new, needed = min(changes - tenant.memory.learned, count), tenant.needed
    if new < needed:
        yield tenant.step("learned nothing", f"{new} rewards are new, {needed} are needed" if new else "nothing is new")
        tenant.settle()
        return
    try:
        with telemetry.step("fit", tenant=tenant.name) as note:
            findings = learner.learn(tenant)
            note(rewarded=findings.queries)
    except RewardError as exc:
        yield tenant.step("learned nothing", str(exc))
        return
    if findings.serves or tenant.live is not None:
        now = tenant.publish(findings.offsets, findings.why, rewarded=findings.queries)
        action: Action = "published" if findings.serves else "withdrawn"
        yield tenant.step(action, f"version {now.number}: {findings.why}", now)
    else:
        yield tenant.abstain(findings.why)
    tenant.remember(rewards=findings.rewards, learned=changes, changes=changes)
    tenant.settle()


def _learn(tenant: Tenant, rewards: Rewards, gains: Float64, probe: Probe | None) -> Iterator[Step]:
    """Fit, and publish what the gate supports."""
    live = tenant.live
    own = None if live is None or not tenant.is_for(live, rewards) else tenant.offsets_of(live)
    try:
        with telemetry.step("fit", tenant=tenant.name) as note:
            labels = tenant.store.history.verdicts(tenant.name, judge=AUDIT) or None if tenant.labelled() else None
            habits = tenant.habits
            fitted = fit(rewards, scope=habits.scope, audit=labels, start=habits.start)
            offsets = staying(fitted, own)
            note(rewarded=len(rewards))
    except InputError as exc:
        yield tenant.step("failed", f"nothing could be fitted: {exc}")
        return
    tenant.memory = replace(tenant.memory, rewards=rewards.budget, learned=tenant.memory.changes)
    summary = f"{_explained(fitted)}; learned from {len(rewards)} queries, {rewards.budget} rewards of {rewards.judge}"
    live_ones, left = ({key for key, offset in (which or {}).items() if offset.in_use} for which in (own, offsets))
    if any(offset.in_use for offset in fitted.values()) or live_ones - left:
        yield from _publish(tenant, offsets, rewards, gains, probe, summary, serves=bool(left))
    elif live_ones:
        summary = f"version {tenant.live_number} stays, nothing speaks against it; {summary}"
        tenant.store.changes.note(BY, "kept", summary, tenant=tenant.name)
        yield tenant.step("kept", summary)
    else:
        yield tenant.abstain(summary)


def staying(learned: Offsets, live: Offsets | None) -> Offsets:
    """*learned* offsets, in which what is withheld stays as it is *live*, unless evidence speaks against it.

    A rescorer was learned beside what its task is served: it stays, and gives way, with the offset.
    """
    offsets = []
    for key, offset in learned.items():
        before = None if live is None else live.get(key)
        if before is None or offset.served or offset.evidence.against or (offset.in_use and not before.served):
            offsets.append(offset)
        else:
            denied = offset.rescorer is not None and offset.rescorer.evidence.code == AUDITED.code
            offsets.append(replace(before, rescorer=None) if denied else before)
    return Offsets(offsets, width=learned.width, settings=learned.settings)


def _publish(
    tenant: Tenant, offsets: Offsets, rewards: Rewards, gains: Float64, probe: Probe | None, why: str, *, serves: bool
) -> Iterator[Step]:
    """Publish *offsets*; the trial of the live version goes on under them if both belong to one embedding model."""
    live, trial = tenant.live, tenant.trial()
    now = tenant.publish(offsets, why, rewarded=len(rewards), probe="" if probe is None else probe.to_json())
    goes_on = live is not None and trial.version == live.number and tenant.is_for(live, rewards) and serves
    tenant.begin_trial(now, rewards, trial.followed_by(now.number, gains) if goes_on else None)
    yield tenant.step("published" if serves else "withdrawn", f"version {now.number}: {why}", now)
    yield from tenant.resume("a version for this embedding model was published")


def _explained(offsets: Offsets) -> str:
    """The evidence of shared offsets, and how many private ones are served."""
    shared = [offset for offset in offsets.values() if offset.scope != "query"]
    parts = [f"{offset.key} {offset.evidence}" for offset in shared[:_EXPLAINED]]
    if len(shared) > _EXPLAINED:
        parts.append(f"{sum(offset.served for offset in shared)} of {len(shared)} shared offsets are served")
    private = sum(offset.served for offset in offsets.values() if offset.scope == "query")
    return "; ".join([*parts, f"{private} private offsets"])
