"""The values that the worker keeps in a store for each tenant, to go on where it was after it was killed."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.rewards import Rewards


@dataclass(frozen=True, slots=True)
class Memory:
    """How far the worker is with a tenant.

    Attributes:
        judge: Fingerprint of the judge that gave the rewards learned from last.

        rewards: How many there were, beyond *base*, when something was learned last.

        looked: How many there were at the last pass, those before *base* included.

        doubted: Whether the gate withheld at the last fit everything that is live.

        since: Nothing served before this Unix second is learned from: its vectors are of another model.

        base: Rewards that there were then; they count neither as learned from nor as new.

        contradicted: Rewarded queries behind the version that was rolled back; 0 where none was.

        fresh: When rewards began to contradict that version, in Unix seconds.
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
        """The memory once *judge* has given *count* rewards; from another judge than before nothing was learned.

        Fewer than before: some have expired, the oldest, which are those before *base*, then those learned from.
        """
        if judge != self.judge:
            return replace(self, judge=judge, rewards=0, looked=count, doubted=False, base=0)
        expired = max(0, self.looked - count)
        base = max(0, self.base - expired)
        rewards = max(0, self.rewards + self.base - base - expired)
        return replace(self, rewards=rewards, looked=count, base=base)

    def learned(self) -> Memory:
        """The memory once all rewards there are were learned from."""
        return replace(self, rewards=self.looked - self.base)

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
