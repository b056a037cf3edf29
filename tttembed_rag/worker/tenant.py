"""One tenant of a store in one pass of the worker: what is live, what is remembered, and which rewards are read."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tttembed_rag.errors import StoreError, StoreUnavailable
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope
from tttembed_rag.rewards import Rewards
from tttembed_rag.stores import Lease, Store, Version
from tttembed_rag.stores.records import AUDIT
from tttembed_rag.worker.holding import Holding
from tttembed_rag.worker.memory import PREVAILING, Notes, prevailing_judge, read_memory
from tttembed_rag.worker.steps import Action, Step

_log = logging.getLogger(__name__)

# The name under which the worker changes what is served.
BY = "worker"
# The share by which rewards must have grown before something is learned again: every fit may take chance for a gain,
# so there should be few.
_GROWTH = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the worker learns, for every tenant, in the words of `Worker`; *judge* is its ``rewards_of``."""

    judge: str | None
    embedder: str | None
    scope: AnyScope
    min_new: int
    last: int


class Tenant:
    """One tenant in one pass.

    Attributes:
        notes: What the worker keeps of the tenant.
        memory: How far the worker is with the tenant; `remember` changes and writes it.
        live: The live version; None where nothing was published.
        embedder: Fingerprint of the embedding model that is learned from; None until that is known.
    """

    def __init__(self, store: Store, name: str, habits: Habits, holding: Holding) -> None:
        self.store, self.name, self.habits = store, name, habits
        self._holding = holding
        self._marks = store.due.marks(name, habits.judge)  # before anything else is read: what comes later stays due
        self.notes = Notes(store, name, holding)
        self.memory = read_memory(store, name)
        self.live = store.registry.version("live", tenant=name)
        self.embedder = habits.embedder

    @property
    def lease(self) -> Lease:
        """The lease that everything is written under.

        Raises:
            LeaseLost: Another worker has it.
        """
        return self._holding.lease

    @property
    def live_number(self) -> int:
        """The number of the live version, 0 where there is none."""
        return 0 if self.live is None else self.live.number

    @property
    def serves(self) -> bool:
        """Whether the live version serves any offset."""
        return self.live is not None and self.live.served > 0

    # Which rewards are read

    def judge(self) -> tuple[str, int]:
        """The judge that is learned from, and how many rewards it has given."""
        judge = self.habits.judge
        if judge is None:
            judge = prevailing_judge(self.store, self.name, self.memory, self.habits.last)
        return judge, dict(self.store.judges(tenant=self.name)).get(judge, 0)

    def find_embedder(self, judge: str) -> None:
        """Decide which embedding model is learned from, where none is named: that of most of the last queries."""
        if self.embedder is None:
            last = min(self.habits.last, PREVAILING)
            self.embedder = self.store.embedder(judge, tenant=self.name, last=last, since=self._since)

    def needed(self, judge: str) -> int:
        """How many rewards must be new: a share of those learned from before, but of no more than are read."""
        window = self.store.budget(
            judge, tenant=self.name, embedder=self.embedder, last=self.habits.last, since=self._since
        )
        return max(self.habits.min_new, math.ceil(_GROWTH * min(self.memory.rewards, window)))

    def rewards(self, judge: str, embedder: str | None, since: float = 0.0, last: int | None = None) -> Rewards:
        """The rewards of *judge* for vectors of a model, served at *since* or later and by the present model.

        They are those of the *last* queries, by default of as many as are learned from.

        Raises:
            RewardError: There are none.
        """
        since = max(since, self.memory.since)
        return self.store.rewards(
            judge, tenant=self.name, embedder=embedder, last=last or self.habits.last, since=since or None
        )

    def labels(self) -> dict[tuple[str, str], float] | None:
        """Trusted labels of the tenant's own queries: the rewards of the judge `AUDIT`; None where there are none."""
        return self.store.history.verdicts(self.name, judge=AUDIT) or None if self.labelled() else None

    def labelled(self) -> int:
        """How many trusted labels of its own queries were ever written that were new, or others than before."""
        return self.store.changes(AUDIT, tenant=self.name, own=True)

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

    @property
    def _since(self) -> float | None:
        """When the first vectors of the present embedding model were served; None is always."""
        return self.memory.since or None

    # What is told and remembered

    def remember(self, **changes: object) -> None:
        """Write the memory, with changes of its attributes."""
        self.memory = replace(self.memory, **changes)  # type: ignore[arg-type]  # its own attributes
        self.notes.set_memory(self.memory)

    def settle(self) -> None:
        """Note that the tenant was looked at: until something new comes, no worker looks at it again."""
        self.store.due.settle(self._marks, tenant=self.name, lease=self.lease)

    def step(self, action: Action, detail: str, version: Version | None = None) -> Step:
        """A step of this tenant."""
        return Step(action, detail, self.name, None if version is None else version.number)

    def resume(self, why: str) -> Iterator[Step]:
        """End a halt of the tenant by the worker itself; a person's halt stays."""
        halted = self.store.registry.halted(tenant=self.name, own=True) is not None
        if halted and self.store.registry.resume(by=BY, tenant=self.name, note=why, lease=self.lease):
            yield self.step("resumed", why)


def same_model(embedder: str | None, other: str | None) -> bool:
    """Whether two fingerprints stand for one embedding model; an unknown one may be any."""
    return embedder == other or not (embedder and other)
