"""One tenant's part of a round: guard what is live, learn from what is new, and publish on evidence.

What is live stays until something speaks against it. A fit whose every offset the gate withholds does: its evidence
includes what the live version was learned from. But evidence wavers around the gate, and versions must not flap, so
the first such fit is only noted; the second in a row, on more rewards, withdraws the live version.

After a rollback the same evidence cannot publish the same again: until there are `_OUTWEIGH` times the rewards that
were behind the version rolled back, only queries served since the trial that it failed began are learned from.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from tttembed_rag import telemetry
from tttembed_rag.errors import InputError, RewardError, StoreError, StoreUnavailable
from tttembed_rag.gate import AnyScope, fit
from tttembed_rag.guards import FIRST_LOOK, Probe, Trial, live_gains, query_drift, reward_drift
from tttembed_rag.offsets import Offsets
from tttembed_rag.rewards import Rewards
from tttembed_rag.stores import Lease, Store, Version
from tttembed_rag.unitrows import Float64
from tttembed_rag.worker.holding import Holding
from tttembed_rag.worker.memory import Learned, Memory, add_drift, read_probe, read_trial, write_probe, write_trial
from tttembed_rag.worker.steps import Action, Step

_log = logging.getLogger(__name__)

# As whom changes are written down.
BY = "worker"
# By this share rewards must have grown before something is learned again: every fit may take chance for a gain, so
# there should be few.
_GROWTH = 0.1
_OUTWEIGH = 2
# Offsets that a version is explained with.
_EXPLAINED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How tenants learn.

    Attributes:
        judge: Fingerprint of whose rewards; None is, per tenant, the judge with most of them.

        embedder: Fingerprint of whose vectors; None is the model of the newest rewarded query.

        scope: What is fitted.

        min_new: Rewards that must be new.

        last: Of how many queries is learned, the last served ones.
    """

    judge: str | None
    embedder: str | None
    scope: AnyScope
    min_new: int
    last: int


class Pass:
    """One pass over one tenant; used once.

    Args:
        store: Where rewards and versions are.

        tenant: Whose.

        habits: How it learns.

        holding: The lease to publish under.

        probe: The embedding model as it is now; None where it is not probed.
    """

    def __init__(self, store: Store, tenant: str, habits: Habits, holding: Holding, probe: Probe | None) -> None:
        self._store, self._tenant, self._habits = store, tenant, habits
        self._holding, self._probe = holding, probe
        self._embedder = habits.embedder
        self._memory = Memory.read(store, tenant)
        self._live = store.version("live", tenant=tenant)
        # Gains of fresh queries under what was live at the beginning: a trial goes on under the next version.
        self._gains: Float64 = np.empty(0)

    def steps(self) -> Iterator[Step]:
        """Do it, step by step.

        Raises:
            StoreUnavailable: Not now; what was done stays done.

            LeaseLost: Another worker is at work; nothing was published.

            Superseded: Somebody has changed what is live meanwhile; that stays.
        """
        judge, count = self._busiest_judge()
        if not count and self._live is None:
            yield self._step("learned nothing", "no rewards yet")
            return
        if self._probe is not None:
            yield from self._recognise(self._probe, count)
        if (judge, count) == (self._memory.judge, self._memory.looked):
            yield self._step("learned nothing", f"nothing is new, {count} rewards as before")
            return
        if self._embedder is None:
            self._embedder = self._store.embedder(judge, tenant=self._tenant)
        try:
            rewards = self._rewards(judge)
        except RewardError as exc:
            yield self._step("learned nothing", str(exc))
            return
        live = self._live
        if live is not None and self._is_for(live, rewards) and (offsets := self._readable(live)) is not None:
            yield from self._guard(live, offsets, rewards)
        if judge != self._memory.judge or count < self._memory.base + self._memory.rewards:  # some have expired
            self._memory = replace(self._memory, judge=judge, rewards=0, base=0)
        yield from self._learn(count, rewards)
        self._remember(looked=count)

    # Who embeds

    def _recognise(self, probe: Probe, count: int) -> Iterator[Step]:
        """Halt where what is live was learned for another embedding model, resume where it is for this one again."""
        before = read_probe(self._store, self._tenant)
        live = Probe.from_json(self._live.probe) if self._live is not None and self._live.probe else None
        reference = before or live
        changed = "" if reference is None else reference.difference(probe)
        foreign = changed if live is None else live.difference(probe)
        if changed:
            self._remember(since=time.time(), base=count, rewards=0)
        # Not only at the change: since then another version may have gone live, or a person may have resumed.
        serves = self._live is not None and self._live.served > 0
        halts = serves and bool(foreign) and (bool(changed) or self._own_halt() is None)
        why = f"another embedding model: {foreign}"
        if halts:
            self._store.halt(by=BY, tenant=self._tenant, note=why, lease=self._lease, yielding=True)
        if before is None or changed:  # last: who is killed before it sees the change again
            write_probe(self._store, self._tenant, self._lease, probe)
        if live is not None and not foreign:
            yield from self._resume("the embedding model is again the one that the live version was learned for")
        elif halts:
            yield self._step("halted", f"{why}; base vectors are served until enough new is learned")
        elif changed:
            yield self._step("learned nothing", f"{changed}; what was served before is learned from no more")

    def _resume(self, why: str) -> Iterator[Step]:
        """Undo a halt of a worker's own; one of a person stays."""
        halted = self._own_halt() is not None
        if halted and self._store.resume(by=BY, tenant=self._tenant, note=why, lease=self._lease, yielding=True):
            yield self._step("resumed", why)

    def _own_halt(self) -> str | None:
        """Why the tenant, and not all, is halted."""
        return self._store.halted(tenant=self._tenant, own=True)

    # Whether what is live helps

    def _guard(self, live: Version, offsets: Offsets, rewards: Rewards) -> Iterator[Step]:
        """Try what is live on queries that it was not learned from; take it back where they contradict it."""
        trial = read_trial(self._store, self._tenant)
        if trial.version != live.number:  # published by somebody else, or by a worker that was killed right after
            self._begin(live, rewards)
            return
        old, fresh = Learned.read(self._store, self._tenant).split(rewards)
        if fresh is None:
            return
        self._gains, groups = live_gains(offsets, fresh)
        looked = trial.look(self._gains, groups)
        if looked == trial:
            return
        yield self._step("looked", f"version {live.number}: {looked}")
        if old is not None and min(len(old), len(fresh)) >= FIRST_LOOK:
            yield from self._compare(old, fresh)
        if looked.contradicted:
            yield from self._take_back(live, looked, rewards)
        elif looked.over:
            self._begin(live, rewards)
        else:
            write_trial(self._store, self._tenant, self._lease, looked)

    def _compare(self, old: Rewards, fresh: Rewards) -> Iterator[Step]:
        drifts = {
            "queries": query_drift(old.query_vectors, fresh.query_vectors),
            "rewards": reward_drift(old, fresh),
        }
        entry: dict[str, object] = {"at": time.time()} | {name: asdict(drift) for name, drift in drifts.items()}
        add_drift(self._store, self._tenant, self._lease, entry)
        for drift in drifts.values():
            if drift.seen():
                self._store.note(BY, "drift", str(drift), tenant=self._tenant)
                yield self._step("drifted", str(drift))

    def _take_back(self, live: Version, trial: Trial, rewards: Rewards) -> Iterator[Step]:
        """Serve the version before, if what contradicts this one speaks for that one; else base vectors."""
        why = f"version {live.number} is contradicted: {trial}"
        before = self._store.version("previous", tenant=self._tenant)
        if before is not None and self._speaks_for(before, trial, rewards.judge):
            now = self._store.rollback(
                by=BY, tenant=self._tenant, to=before.number, note=why, lease=self._lease, instead_of=live.number
            )
        else:
            now = self._store.publish(
                Offsets([], width=rewards.width),
                by=BY,
                tenant=self._tenant,
                note=f"base vectors: {why}",
                lease=self._lease,
                instead_of=live.number,
            )
        self._live, self._gains = now, np.empty(0)
        self._begin(now, rewards)
        self._remember(contradicted=max(live.rewarded, 1), fresh=trial.since, doubted=False)
        what = f"version {now.number}" if now.served else "base vectors"
        yield self._step("rolled back", f"{why}; {what} now", now)

    def _speaks_for(self, version: Version, trial: Trial, judge: str) -> bool:
        try:
            fresh = self._rewards(judge, since=max(trial.since, version.at))
        except RewardError:
            return False
        offsets = self._readable(version)
        gains = np.empty(0) if offsets is None or offsets.width != fresh.width else live_gains(offsets, fresh)[0]
        return len(gains) >= FIRST_LOOK and float(gains.mean()) > 0

    # What is to be served

    def _learn(self, count: int, rewards: Rewards) -> Iterator[Step]:
        """Fit, if enough is new, and publish what the gate supports."""
        memory = self._memory
        count -= memory.base
        needed = max(self._habits.min_new, math.ceil(_GROWTH * memory.rewards))
        if count - memory.rewards < needed:
            yield self._step("learned nothing", f"{count - memory.rewards} rewards are new, {needed} are needed")
            return
        usable = rewards
        if len(rewards) < _OUTWEIGH * memory.contradicted:
            try:
                usable = self._rewards(rewards.judge, since=memory.fresh)
            except RewardError as exc:
                yield self._step("learned nothing", str(exc))
                return
        live = None if self._live is None else self._readable(self._live)
        start = live if live is not None and live.width == usable.width else None
        try:
            with telemetry.step("fit", tenant=self._tenant) as note:
                offsets = fit(usable, scope=self._habits.scope, warm_start=start)
                note(rewarded=len(usable))
        except InputError as exc:
            yield self._step("failed", f"nothing could be fitted: {exc}")
            return
        said = f"{_explained(offsets)}; learned from {len(usable)} queries, {usable.budget} rewards of {usable.judge}"
        serves, served = (any(offset.served for offset in (which or {}).values()) for which in (offsets, live))
        if serves or (served and memory.doubted):
            yield from self._publish(offsets, rewards, said, serves=serves)
        elif served:
            said = f"version {self._number} stays, the next fit decides; {said}"
            self._store.note(BY, "kept", said, tenant=self._tenant)
            self._remember(doubted=True)
            yield self._step("kept", said)
        else:
            self._store.note(BY, "abstained", said, tenant=self._tenant)
            yield self._step("abstained", said)
        self._remember(rewards=count)

    def _publish(self, offsets: Offsets, rewards: Rewards, said: str, *, serves: bool) -> Iterator[Step]:
        trial = read_trial(self._store, self._tenant)
        now = self._store.publish(
            offsets,
            by=BY,
            tenant=self._tenant,
            note=said,
            embedder=self._embedder or "",
            probe="" if self._probe is None else self._probe.to_json(),
            rewarded=len(rewards),
            lease=self._lease,
            instead_of=self._number,
        )
        live = self._live
        goes_on = live is not None and trial.version == live.number and self._is_for(live, rewards) and serves
        self._live = now
        self._begin(now, rewards, trial.followed_by(now.number, self._gains) if goes_on else None)
        self._remember(doubted=False)
        yield self._step("published" if serves else "withdrawn", f"version {now.number}: {said}", now)
        yield from self._resume("a version for this embedding model was published")

    # Reading and writing down

    def _busiest_judge(self) -> tuple[str, int]:
        """Whose rewards are learned from, and how many there are."""
        known = self._store.judges(tenant=self._tenant)
        judge = self._habits.judge or (known[0][0] if known else "")
        return judge, dict(known).get(judge, 0)

    def _rewards(self, judge: str, since: float = 0.0) -> Rewards:
        """The rewards of *judge* that belong to the present embedding model, from *since* on."""
        since = max(since, self._memory.since)
        return self._store.rewards(
            judge, tenant=self._tenant, embedder=self._embedder, last=self._habits.last, since=since or None
        )

    def _is_for(self, version: Version, rewards: Rewards) -> bool:
        """Whether a version belongs to the embedding model of *rewards*: no other says anything about it."""
        return version.width == rewards.width and version.embedder in ("", self._embedder)

    def _readable(self, version: Version) -> Offsets | None:
        """The offsets of a version; None where they are damaged."""
        try:
            return version.offsets
        except StoreUnavailable:
            raise
        except StoreError as exc:
            _log.error("tenant %r: %s", self._tenant, exc)
            return None

    def _begin(self, live: Version, rewards: Rewards, trial: Trial | None = None) -> None:
        """Begin or go on with the trial of what is live now; none of *rewards* will count in it."""
        Learned.of(rewards).write(self._store, self._tenant, self._lease)
        write_trial(self._store, self._tenant, self._lease, trial or Trial(live.number, time.time()))

    def _remember(self, **changes: object) -> None:
        self._memory = replace(self._memory, **changes)  # type: ignore[arg-type]  # its own attributes
        self._memory.write(self._store, self._tenant, self._lease)

    def _step(self, action: Action, detail: str, version: Version | None = None) -> Step:
        return Step(action, detail, self._tenant, None if version is None else version.number)

    @property
    def _lease(self) -> Lease:
        """What everything is written under."""
        return self._holding.lease

    @property
    def _number(self) -> int:
        return 0 if self._live is None else self._live.number


def _explained(offsets: Offsets) -> str:
    """What the gate said of shared offsets, and how many private ones are served."""
    shared = [offset for offset in offsets.values() if offset.scope != "query"]
    told = [f"{offset.key} {offset.evidence}" for offset in shared[:_EXPLAINED]]
    if len(shared) > _EXPLAINED:
        told.append(f"{sum(offset.served for offset in shared)} of {len(shared)} shared offsets are served")
    private = sum(offset.served for offset in offsets.values() if offset.scope == "query")
    return "; ".join([*told, f"{private} private offsets"])
