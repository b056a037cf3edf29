"""What the worker keeps of each tenant in a store, to go on where it was after it was killed."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Self

from tttembed_rag.stores import Store
from tttembed_rag.stores.work.states import MEMORY, TRIAL
from tttembed_rag.worker.trial import Trial

# Rewarded queries, the last ones: the judge and the embedding model of most of them are learned from.
PREVAILING = 100


@dataclass(frozen=True, slots=True)
class Memory:
    """How far the worker is with a tenant.

    Attributes:
        judge: Fingerprint of the judge that gave the rewards learned from last.
        rewards: How many something was learned from last; 0 where that was taken back.
        learned: `Store.changes` of that judge then: what was written later is new.
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


def read_memory(store: Store, tenant: str) -> Memory:
    """How far the worker is with *tenant*."""
    return Memory.of(json.loads(store.states.get(MEMORY, tenant=tenant) or "{}"))


def prevailing_judge(store: Store, tenant: str, memory: Memory, last: int = PREVAILING) -> str:
    """The judge that *tenant* is learned from where none is named; an empty name where none gave a reward.

    Its *last* rewarded queries are looked at, at most `PREVAILING`.
    """
    return store.judge(tenant=tenant, last=min(last, PREVAILING), since=memory.since) or memory.judge


def read_trial(store: Store, tenant: str) -> Trial:
    """The trial of what is live for *tenant*; version 0 before the first."""
    return Trial(**json.loads(store.states.get(TRIAL, tenant=tenant) or '{"version": 0}'))
