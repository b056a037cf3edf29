"""What a worker must know again after it was killed, kept in the store for each tenant.

It is written under the worker's lease only: nothing of one that lost it comes after what the next one wrote.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, fields, replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.rewards import Rewards
from tttembed_rag.stores import Lease, Store
from tttembed_rag.stores.states import DRIFT, LEARNED, MEMORY, PROBE, TRIAL
from tttembed_rag.worker.probe import Probe
from tttembed_rag.worker.trial import Trial

# Entries of `DRIFT` that are kept.
_DRIFTS = 200


@dataclass(frozen=True, slots=True)
class Memory:
    """How far a tenant is.

    Attributes:
        judge: Whose rewards were learned from last.

        rewards: How many there were, beyond *base*, when something was learned last.

        looked: How many there were at the last pass, of those before *base* too.

        doubted: Whether the gate withheld at the last fit all of what is live.

        since: Nothing served before this Unix second is learned from: its vectors are of another model.

        base: Rewards that there were then; they do not count as known or new.

        contradicted: Rewarded queries behind the version that was rolled back; 0 where none was.

        fresh: From when on rewards contradicted it, in Unix seconds.
    """

    judge: str = ""
    rewards: int = 0
    looked: int = 0
    doubted: bool = False
    since: float = 0.0
    base: int = 0
    contradicted: int = 0
    fresh: float = 0.0

    @property
    def new(self) -> int:
        """Rewards that nothing was learned from yet."""
        return self.looked - self.base - self.rewards

    def counted(self, judge: str, count: int) -> Memory:
        """What is known once *judge* has given *count* rewards; of another judge nothing is.

        Fewer than before: some have expired, the oldest, which are those before *base*, then known ones.
        """
        if judge != self.judge:
            return replace(self, judge=judge, rewards=0, looked=count, doubted=False, base=0)
        expired = max(0, self.looked - count)
        base = max(0, self.base - expired)
        rewards = max(0, self.rewards + self.base - base - expired)
        return replace(self, rewards=rewards, looked=count, base=base)

    def known(self) -> Memory:
        """What is known once all there is was learned from."""
        return replace(self, rewards=self.looked - self.base)

    @classmethod
    def read(cls, store: Store, tenant: str) -> Memory:
        """What is known of *tenant*."""
        known = json.loads(store.states.get(MEMORY, tenant=tenant) or "{}")
        return cls(**{one.name: known[one.name] for one in fields(cls) if one.name in known})

    def write(self, store: Store, tenant: str, lease: Lease) -> None:
        """Keep it."""
        store.states.set(MEMORY, json.dumps(asdict(self)), tenant=tenant, lease=lease)


def read_trial(store: Store, tenant: str) -> Trial:
    """The trial of what is live; version 0 before the first."""
    text = store.states.get(TRIAL, tenant=tenant)
    return Trial.from_json(text) if text else Trial(0)


def write_trial(store: Store, tenant: str, lease: Lease, trial: Trial) -> None:
    """Keep it."""
    store.states.set(TRIAL, trial.to_json(), tenant=tenant, lease=lease)


def read_probe(store: Store, tenant: str) -> Probe | None:
    """The embedding model as it was at the last round; None before the first."""
    text = store.states.get(PROBE, tenant=tenant)
    return Probe.from_json(text) if text else None


def write_probe(store: Store, tenant: str, lease: Lease, probe: Probe) -> None:
    """Keep it."""
    store.states.set(PROBE, probe.to_json(), tenant=tenant, lease=lease)


class Learned:
    """Which queries count no more in a trial: what is live was learned from them.

    Four bytes a query: one in four billion is left out of a trial by mistake.
    """

    def __init__(self, numbers: NDArray[np.uint32]) -> None:
        self._numbers = numbers

    @classmethod
    def of(cls, rewards: Rewards) -> Learned:
        """The queries of *rewards*."""
        return cls(np.unique(_numbers(rewards)))

    @classmethod
    def read(cls, store: Store, tenant: str) -> Learned:
        """What was kept; nothing before."""
        text = store.states.get(LEARNED, tenant=tenant)
        return cls(np.frombuffer(base64.b64decode(json.loads(text) if text else ""), dtype="<u4"))

    def write(self, store: Store, tenant: str, lease: Lease) -> None:
        """Keep it."""
        text = base64.b64encode(self._numbers.astype("<u4").tobytes()).decode()
        store.states.set(LEARNED, json.dumps(text), tenant=tenant, lease=lease)

    def split(self, rewards: Rewards) -> tuple[Rewards | None, Rewards | None]:
        """The queries of *rewards* that it holds, and those that it does not; None for none."""
        held = np.isin(_numbers(rewards), self._numbers)
        parts = [np.flatnonzero(held), np.flatnonzero(~held)]
        mine, others = [rewards.take(rows) if len(rows) else None for rows in parts]
        return mine, others


def _numbers(rewards: Rewards) -> NDArray[np.uint32]:
    keys = zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True)
    return np.array([crc32(f"{task}\0{query}".encode()) for task, query in keys], dtype=np.uint32)


def add_drift(store: Store, tenant: str, lease: Lease, entry: dict[str, object]) -> None:
    """Append an entry to the tenant's record of drift."""
    text = store.states.get(DRIFT, tenant=tenant)
    entries = [*(json.loads(text) if text else []), entry]
    store.states.set(DRIFT, json.dumps(entries[-_DRIFTS:]), tenant=tenant, lease=lease)
