"""Recognising the embedding model: offsets are halted while it is another one than they were learned for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tttembed_rag.worker.probe import Probe
from tttembed_rag.worker.steps import Step
from tttembed_rag.worker.tenant import BY, Tenant


def recognise(tenant: Tenant, probe: Probe, count: int) -> Iterator[Step]:
    """Halt if the live version was learned for another embedding model, resume if it was learned for this one.

    Args:
        tenant: The tenant.

        probe: The embedding model as it is now.

        count: Rewards so far; should the model have changed, they are learned from no more.
    """
    live = tenant.live
    before = tenant.probe()
    of_live = Probe.from_json(live.probe) if live is not None and live.probe else None
    reference = before or of_live
    changed = "" if reference is None else reference.difference(probe)
    foreign = changed if of_live is None else of_live.difference(probe)
    if changed:
        tenant.remember(since=time.time(), base=count, rewards=0, looked=count)
    # Not only at the change: since then another version may have gone live, or a person may have resumed.
    registry = tenant.store.registry
    halts = tenant.serves and bool(foreign) and (bool(changed) or registry.halted(tenant=tenant.name, own=True) is None)
    why = f"another embedding model: {foreign}"
    if halts:
        registry.halt(by=BY, tenant=tenant.name, note=why, lease=tenant.lease, yielding=True)
    if before is None or changed:  # last: a worker that is killed before it sees the change again
        tenant.set_probe(probe)
    if of_live is not None and not foreign:
        yield from tenant.resume("the embedding model is again the one that the live version was learned for")
    elif halts:
        yield tenant.step("halted", f"{why}; base vectors are served until enough new is learned")
    elif changed:
        yield tenant.step("learned nothing", f"{changed}; what was served before is learned from no more")
