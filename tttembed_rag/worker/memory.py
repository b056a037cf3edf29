"""What the worker keeps of each tenant in a store, to go on where it was after it was killed.

It is written under the worker's lease: nothing from a worker that lost it comes after what the next one wrote.
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.rewards import Rewards
from tttembed_rag.stores import Store, Version
from tttembed_rag.stores.work.states import DRIFT, LEARNED, MEMORY, PROBE, TRIAL
from tttembed_rag.worker.holding import Holding
from tttembed_rag.worker.probe import Probe
from tttembed_rag.worker.trial import Trial

# Comparisons of traffic that are kept for reports.
_DRIFTS = 200
# Rewarded queries, the last ones: the judge and the embedding model of most of them are learned from.
PREVAILING = 100


@dataclass(frozen=True, slots=True)
class Memory:
    """How far the worker is with a tenant.

    Attributes:
        judge: Fingerprint of the judge that gave the rewards learned from last.
        rewards: How many there were, beyond *base*, when something was learned last.
        looked: How many there were at the last pass, those before *base* included.
        since: Nothing served before this Unix second is learned from: its vectors are of another model, or what was
            learned from it was taken back.
        base: Rewards that there were then; they count neither as learned from nor as new.
        changes: `Store.changes` at the last pass; below 0 where that is not known.
        corrected: Rewards that were corrected since something was learned last.
        labelled: Trusted labels that were ever written, at the last pass.
    """

    judge: str = ""
    rewards: int = 0
    looked: int = 0
    since: float = 0.0
    base: int = 0
    changes: int = -1
    corrected: int = 0
    labelled: int = 0

    @property
    def new(self) -> int:
        """Rewards that nothing was learned from yet, corrected ones among them."""
        return self.looked - self.base - self.rewards + self.corrected

    def counted(self, judge: str, count: int, changes: int = -1) -> Memory:
        """The memory once *judge* has given *count* rewards; from another judge than before nothing was learned.

        Fewer than before: some have expired, the oldest, which are those before *base*, then those learned from.
        More *changes* than additional rewards: the others are corrections.
        """
        if judge != self.judge:
            return replace(self, judge=judge, rewards=0, looked=count, base=0, changes=changes, corrected=0)
        corrections = 0 if self.changes < 0 else max(0, changes - self.changes - max(0, count - self.looked))
        expired = max(0, self.looked - count)
        base = max(0, self.base - expired)
        rewards = max(0, self.rewards + self.base - base - expired)
        corrected = self.corrected + corrections
        return replace(self, rewards=rewards, looked=count, base=base, changes=changes, corrected=corrected)

    def learned(self) -> Memory:
        """The memory once all rewards there are were learned from."""
        return replace(self, rewards=self.looked - self.base, corrected=0)

    def to_json(self) -> str:
        """The memory as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave, by this release or another one: fields that this one lacks are left aside."""
        record = json.loads(text)
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})


class Learned:
    """The queries that count no more in a trial: the live version was learned from them.

    It holds four bytes a query: one query in four billion is left out of a trial by mistake.
    """

    def __init__(self, hashes: NDArray[np.uint32]) -> None:
        self._hashes = hashes

    @classmethod
    def of(cls, rewards: Rewards) -> Self:
        """The queries of *rewards*."""
        return cls(np.unique(_hashes(rewards)))

    def split(self, rewards: Rewards) -> tuple[Rewards | None, Rewards | None]:
        """The queries of *rewards* that were learned from, and the fresh ones; None for none."""
        held = np.isin(_hashes(rewards), self._hashes)
        old, fresh = [rewards.take(rows) if len(rows) else None for rows in map(np.flatnonzero, (held, ~held))]
        return old, fresh

    def to_json(self) -> str:
        """The queries as text."""
        return json.dumps(base64.b64encode(self._hashes.astype("<u4").tobytes()).decode())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave."""
        return cls(np.frombuffer(base64.b64decode(json.loads(text)), dtype="<u4"))


def _hashes(rewards: Rewards) -> NDArray[np.uint32]:
    keys = zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True)
    return np.array([crc32(f"{task}\0{query}".encode()) for task, query in keys], dtype=np.uint32)


class Notes:
    """The states of one tenant as values, written under the lease that the worker is *holding*."""

    def __init__(self, store: Store, tenant: str, holding: Holding) -> None:
        self._store, self._tenant, self._holding = store, tenant, holding

    def set_memory(self, memory: Memory) -> None:
        """Write how far the worker is."""
        self._set(MEMORY, memory.to_json())

    def trial(self) -> Trial:
        """The trial of the live version; version 0 before the first."""
        return read_trial(self._store, self._tenant)

    def set_trial(self, trial: Trial) -> None:
        """Write the trial of the live version."""
        self._set(TRIAL, trial.to_json())

    def begin_trial(self, live: Version, rewards: Rewards, trial: Trial | None = None) -> None:
        """Begin the trial of what is live now, or go on with *trial*; no query of *rewards* will count in it."""
        self._set(LEARNED, Learned.of(rewards).to_json())
        self.set_trial(trial or Trial(live.number, time.time()))

    def learned(self) -> Learned:
        """The queries that the live version was learned from."""
        return Learned.from_json(self._get(LEARNED) or '""')

    def probe(self) -> Probe | None:
        """The embedding model as it was at the last pass; None before the first."""
        text = self._get(PROBE)
        return Probe.from_json(text) if text else None

    def set_probe(self, probe: Probe) -> None:
        """Write the embedding model as it is."""
        self._set(PROBE, probe.to_json())

    def add_drift(self, comparison: dict[str, object]) -> None:
        """Append a comparison of fresh traffic with what was learned from."""
        comparisons = [*json.loads(self._get(DRIFT) or "[]"), comparison]
        self._set(DRIFT, json.dumps(comparisons[-_DRIFTS:]))

    def _get(self, state: str) -> str | None:
        return self._store.states.get(state, tenant=self._tenant)

    def _set(self, state: str, text: str) -> None:
        self._store.states.set(state, text, tenant=self._tenant, lease=self._holding.lease)


def read_memory(store: Store, tenant: str) -> Memory:
    """How far the worker is with *tenant*."""
    return Memory.from_json(store.states.get(MEMORY, tenant=tenant) or "{}")


def prevailing_judge(store: Store, tenant: str, memory: Memory, last: int = PREVAILING) -> str:
    """The judge that *tenant* is learned from where none is named; an empty name where none gave a reward.

    Its *last* rewarded queries are looked at, at most `PREVAILING`.
    """
    last, since = min(last, PREVAILING), memory.since or None
    return store.judge(tenant=tenant, last=last, since=since) or memory.judge


def read_trial(store: Store, tenant: str) -> Trial:
    """The trial of what is live for *tenant*; version 0 before the first."""
    text = store.states.get(TRIAL, tenant=tenant)
    return Trial.from_json(text) if text else Trial(0)
