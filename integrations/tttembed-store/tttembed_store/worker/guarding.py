"""Guarding what is served: is the embedding model still the same, and does the live version still help?

Offsets are halted while the model is another one than they were learned for. The live version is tried on queries that
it was not learned from, and taken back where they contradict it. Rewards speak for or against versions of their own
embedding model only.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.probe import Probe
from tttembed_rag.vectors.rows import Float64
from tttembed_store.sql import Version
from tttembed_store.sql.work.states import PROBE
from tttembed_store.worker.steps import Step
from tttembed_store.worker.tenant import BY, Tenant, same_model
from tttembed_store.worker.trial import FIRST_LOOK, WINDOW, LiveTrial, live_gains, without_risen


def recognise(tenant: Tenant, probe: Probe, changes: int) -> Iterator[Step]:
    """Halt if the live version was learned for another embedding model than *probe*, resume if it was learned for it.

    Where the model has changed, the rewards so far, after which `Store.written` is *changes*, are learned from no more.
    """
    live = tenant.live
    kept = tenant.store.states.get(PROBE, tenant=tenant.name)
    before = Probe.from_json(json.dumps(kept)) if kept else None
    of_live = Probe.from_json(live.probe) if live is not None and live.probe else None
    reference = before or of_live
    changed = "" if reference is None else reference.difference(probe)
    foreign = changed if of_live is None else of_live.difference(probe)
    if changed:
        tenant.remember(since=time.time(), rewards=0, learned=changes, changes=changes)
    # Not only at the change: since then another version may have gone live, or a person may have resumed.
    registry = tenant.store.registry
    halts = tenant.serves and bool(foreign) and (bool(changed) or registry.halted(tenant=tenant.name, own=True) is None)
    why = f"another embedding model: {foreign}"
    if halts:
        registry.halt(by=BY, tenant=tenant.name, note=why, lease=tenant.lease)
    if before is None or changed:  # last: a worker that is killed before it sees the change again
        tenant.keep(PROBE, json.loads(probe.to_json()))
    if of_live is not None and not foreign:
        yield from tenant.resume("the embedding model is again the one that the live version was learned for")
    elif halts:
        yield tenant.step("halted", f"{why}; base vectors are served until enough new is learned")
    elif changed:
        yield tenant.step("learned nothing", f"{changed}; what was served before is learned from no more")


def guard(tenant: Tenant, live: Version, rewards: Rewards) -> Generator[Step, None, Float64]:
    """Look at how the live version does on fresh queries; *rewards* are those that are learned from.

    Gives the gains (n,) with which its trial goes on under the next version; none where that begins anew.
    """
    none, offsets = np.empty(0), tenant.offsets_of(live)
    own = rewards if same_model(live.embedder, tenant.embedder) else tenant.rewards(rewards.judge, live.embedder)
    if own is None or own.width != live.width or offsets is None:
        return none
    trial = tenant.trial()
    if trial.version != live.number:  # published by a person, or by a worker that was killed right after
        tenant.begin_trial(live, own)
        return none
    fresh = tenant.fresh(own)
    if fresh is None:
        return none
    gains = live_gains(offsets, fresh)
    served, count = fresh, len(gains.gains)
    if count > WINDOW:  # rewards have no times: the store knows which are the last
        last = tenant.rewards(own.judge, live.embedder or tenant.embedder, last=math.ceil(WINDOW * len(fresh) / count))
        served = (None if last is None else tenant.fresh(last)) or fresh
        gains = live_gains(offsets, served)
    others = without_risen(offsets, served)
    looked = trial.look(gains, count, rest=None if others is None else live_gains(offsets, others))
    if looked == trial:
        return gains.gains
    yield tenant.step("looked", f"version {live.number}: {looked}")
    if looked.contradicted:
        yield from _take_back(tenant, live, looked, own)
        return none
    tenant.set_trial(looked)
    return gains.gains


def _take_back(tenant: Tenant, live: Version, trial: LiveTrial, rewards: Rewards) -> Iterator[Step]:
    """Serve the version before, if the rewards that contradict this one speak for that one; else base vectors."""
    why = f"version {live.number} is contradicted: {trial}"
    registry, before = tenant.store.registry, tenant.store.registry.version("previous", tenant=tenant.name)
    change: dict[str, Any] = {"by": BY, "tenant": tenant.name, "lease": tenant.lease, "instead_of": live.number}
    if before is not None and _speaks_for(tenant, before, trial, rewards.judge, live.embedder or tenant.embedder):
        now = registry.rollback(to=before.number, note=why, **change)
    else:
        now = registry.publish(Offsets([], width=rewards.width), note=f"base vectors: {why}", **change)
    tenant.live = now
    tenant.begin_trial(now, rewards)
    # What was learned from before has had its say: those who ask now want something else.
    tenant.remember(since=max(live.at, tenant.memory.since), rewards=0)
    what = f"version {now.number}" if now.served else "base vectors"
    yield tenant.step("rolled back", f"{why}; {what} now", now)


def _speaks_for(tenant: Tenant, version: Version, trial: LiveTrial, judge: str, embedder: str | None) -> bool:
    """Whether recent rewards for an embedding model speak for a version, which must be of the same model."""
    if not same_model(version.embedder, embedder):
        return False
    fresh, offsets = tenant.rewards(judge, embedder, since=max(trial.since, version.at)), tenant.offsets_of(version)
    if fresh is None or offsets is None or offsets.width != fresh.width:
        return False
    gains = live_gains(offsets, fresh).gains
    return len(gains) >= FIRST_LOOK and float(gains.mean()) > 0
