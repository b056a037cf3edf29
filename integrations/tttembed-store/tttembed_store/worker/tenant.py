"""One tenant of a store in one pass of the worker: what is live, what is remembered, and which rewards are read.

Everything is written under the worker's lease: nothing from a worker that lost it comes after what the next one wrote.
"""

from __future__ import annotations

import base64
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Protocol, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import RewardError, StoreError, StoreUnavailable
from tttembed_rag.offsets.offset import AnyScope
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_store.sql import Lease, Store, Version
from tttembed_store.sql.records import AUDIT
from tttembed_store.sql.work.states import LEARNED, MEMORY, TRIAL
from tttembed_store.worker.steps import Action, Step
from tttembed_store.worker.trial import LiveTrial

_log = logging.getLogger(__name__)

# The name under which the worker changes what is served.
BY = "worker"
# Rewarded queries, the last ones: the judge and the embedding model of most of them are learned from.
PREVAILING = 100
# The share by which rewards must have grown before something is learned again: every fit may take chance for a gain,
# so there should be few.
GROWTH = 0.1


@dataclass(frozen=True, slots=True)
class Findings:
    """What a learner makes of the rewards of a tenant: offsets, from so many queries and rewards of the store, and why.

    They are served from now on if anything is published; *serves* says whether they serve anything.
    """

    offsets: Offsets
    serves: bool
    queries: int
    rewards: int
    why: str


class Learner(Protocol):
    """Learns in its own way, within the rounds of a worker: under its lease, by its growth rule, published by it."""

    @property
    def judge(self) -> str:
        """Fingerprint of the judge from whose rewards it learns."""

    @property
    def embedder(self) -> str:
        """Fingerprint of the embedding model whose vectors it learns from."""

    def learn(self, tenant: Tenant) -> Findings:
        """What the rewards of *tenant* support.

        Raises:
            RewardError: There are too few that this process can learn from; the tenant stays due.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the worker learns, for every tenant, in the words of `Worker`; *judge* is its ``rewards_of``."""

    judge: str | None
    embedder: str | None
    scope: AnyScope
    min_new: int
    last: int
    growth: float = GROWTH
    start: Offsets | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """How far the worker is with a tenant.

    Attributes:
        judge: Fingerprint of the judge that gave the rewards learned from last.
        rewards: How many something was learned from last; 0 where that was taken back.
        learned: `Store.written` of that judge then: what was written later is new.
        changes: The same at the last pass; below 0 before the first.
        since: Nothing served before this Unix second is learned from: its vectors are of another model, or what was
            learned from it was taken back.
        labelled: Trusted labels that were ever written, at the last pass.
    """

    judge: str = ""
    rewards: int = 0
    learned: int = 0
    changes: int = -1
    since: float = 0.0
    labelled: int = 0

    @classmethod
    def of(cls, record: dict[str, Any]) -> Self:
        """What `asdict` gave, in this release or another one: fields that this one lacks are left aside."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})


class Tenant:
    """One tenant in one pass; *live* is the live version, None where nothing was published.

    The *memory* is how far the worker is with it, which `remember` changes and writes. The *embedder* is the
    fingerprint of the embedding model that is learned from, None until that is known.
    """

    def __init__(self, store: Store, name: str, habits: Habits, lease: Lease) -> None:
        self.store, self.name, self.habits, self.lease = store, name, habits, lease
        self._marks = store.due.marks(name, habits.judge)  # before anything else is read: what comes later stays due
        self.memory = read_memory(store, name)
        self.live = store.registry.version("live", tenant=name)
        self.embedder = habits.embedder

    @property
    def live_number(self) -> int:
        """The number of the live version, 0 where there is none."""
        return 0 if self.live is None else self.live.number

    @property
    def serves(self) -> bool:
        """Whether the live version serves any offset."""
        return self.live is not None and self.live.served > 0

    def judge(self) -> tuple[str, int]:
        """The judge that is learned from, and how many rewards it has given."""
        judge = self.habits.judge
        if judge is None:
            judge = prevailing_judge(self.store, self.name, self.memory, self.habits.last)
        return judge, dict(self.store.judges(tenant=self.name)).get(judge, 0)

    def find_embedder(self, judge: str) -> None:
        """Decide which embedding model is learned from, where none is named: that of most of the last queries."""
        if self.embedder is None:
            last, since = min(self.habits.last, PREVAILING), self.memory.since or None
            self.embedder = self.store.embedder(judge, tenant=self.name, last=last, since=since)

    @property
    def needed(self) -> int:
        """How many rewards must be new: a share of those learned from before."""
        return max(self.habits.min_new, math.ceil(self.habits.growth * self.memory.rewards))

    def rewards(self, judge: str, embedder: str | None, since: float = 0.0, last: int | None = None) -> Rewards | None:
        """The rewards of *judge* for vectors of a model, served at *since* or later and by the present model.

        They are those of the *last* queries, by default of as many as are learned from; None where there are none.
        """
        last, since = last or self.habits.last, max(since, self.memory.since)
        try:
            return self.store.rewards(judge, tenant=self.name, embedder=embedder, last=last, since=since or None)
        except RewardError:
            return None

    def labelled(self) -> int:
        """How many trusted labels were ever written that were new, or others than before."""
        return self.store.written(AUDIT, tenant=self.name)

    def is_for(self, version: Version, rewards: Rewards) -> bool:
        """Whether a version belongs to the embedding model of *rewards*, those that are learned from."""
        return version.width == rewards.width and same_model(version.embedder, self.embedder)

    def offsets_of(self, version: Version) -> Offsets | None:
        """The offsets of a version; None where they are damaged."""
        try:
            return version.offsets
        except StoreUnavailable:
            raise
        except StoreError as exc:
            _log.error("tenant %r: %s", self.name, exc)
            return None

    def keep(self, state: str, value: Any) -> None:
        """Keep a value of JSON under a name of `states`."""
        self.store.states.set(state, value, tenant=self.name, lease=self.lease)

    def remember(self, **changes: Any) -> None:
        """Write the memory, with changes of its attributes."""
        self.memory = replace(self.memory, **changes)
        self.keep(MEMORY, asdict(self.memory))

    def trial(self) -> LiveTrial:
        """The trial of the live version; version 0 before the first."""
        return read_trial(self.store, self.name)

    def set_trial(self, trial: LiveTrial) -> None:
        """Write the trial of the live version."""
        self.keep(TRIAL, asdict(trial))

    def begin_trial(self, live: Version, rewards: Rewards, trial: LiveTrial | None = None) -> None:
        """Begin the trial of what is live now, or go on with *trial*; no query of *rewards* will count in it."""
        self.keep(LEARNED, base64.b64encode(np.unique(_hashes(rewards)).tobytes()).decode())
        self.set_trial(trial or LiveTrial(live.number, time.time()))

    def fresh(self, rewards: Rewards) -> Rewards | None:
        """The queries of *rewards* that the live version was not learned from; None for none.

        Four bytes of each are kept: one query in four billion is left out of a trial by mistake.
        """
        learned = np.frombuffer(base64.b64decode(self.store.states.get(LEARNED, tenant=self.name) or ""), dtype="<u4")
        rows = np.flatnonzero(~np.isin(_hashes(rewards), learned))
        return rewards.take(rows) if len(rows) else None

    def settle(self) -> None:
        """Note that the tenant was looked at: until something new comes, no worker looks at it again."""
        self.store.due.settle(self._marks, tenant=self.name, lease=self.lease)

    def publish(self, offsets: Offsets, why: str, *, rewarded: int, probe: str = "") -> Version:
        """Publish *offsets* in place of what was live when the pass began.

        Raises:
            Superseded: Something else is live by now.
        """
        self.live = self.store.registry.publish(
            offsets,
            by=BY,
            tenant=self.name,
            note=why,
            embedder=self.embedder or "",
            probe=probe,
            rewarded=rewarded,
            lease=self.lease,
            instead_of=self.live_number,
        )
        return self.live

    def abstain(self, why: str) -> Step:
        """Note in the log of changes that nothing is served, and was not before."""
        self.store.changes.note(BY, "abstained", why, tenant=self.name)
        return self.step("abstained", why)

    def step(self, action: Action, detail: str, version: Version | None = None) -> Step:
        """A step of this tenant."""
        return Step(action, detail, self.name, None if version is None else version.number)

    def resume(self, why: str) -> Iterator[Step]:
        """End a halt of the tenant by the worker itself; a person's halt stays."""
        if self.store.registry.resume(by=BY, tenant=self.name, note=why, lease=self.lease):
            yield self.step("resumed", why)


def _hashes(rewards: Rewards) -> NDArray[np.uint32]:
    keys = zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True)
    return np.array([crc32(f"{task}\0{query}".encode()) for task, query in keys], dtype="<u4")


def same_model(embedder: str | None, other: str | None) -> bool:
    """Whether two fingerprints stand for one embedding model; an unknown one may be any."""
    return embedder == other or not (embedder and other)


def read_memory(store: Store, tenant: str) -> Memory:
    """How far the worker is with *tenant*."""
    return Memory.of(store.states.get(MEMORY, tenant=tenant) or {})


def prevailing_judge(store: Store, tenant: str, memory: Memory, last: int = PREVAILING) -> str:
    """The judge that *tenant* is learned from where none is named; an empty name where none gave a reward.

    Its *last* rewarded queries are looked at, at most `PREVAILING`.
    """
    return store.judge(tenant=tenant, last=min(last, PREVAILING), since=memory.since) or memory.judge


def read_trial(store: Store, tenant: str) -> LiveTrial:
    """The trial of what is live for *tenant*; version 0 before the first."""
    return LiveTrial(**(store.states.get(TRIAL, tenant=tenant) or {"version": 0}))
