"""One tenant's part of a round: guard what is live, learn from what is new, and publish on evidence.

What is live stays until something speaks against it. A fit whose every offset the gate withholds does: its evidence
includes what the live version was learned from. But evidence wavers around the gate, and versions must not flap, so
the first such fit is only noted; the second in a row, on more rewards, withdraws the live version.

Rewards speak for or against versions of their own embedding model only. Where no judge or model is named, that of most
of the `_PREVAILING` queries rewarded last is learned from: a new one within that many queries, however much is known
from the one before, and no trial of another one on a few queries.

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

from tttembed_rag.errors import InputError, RewardError, StoreError, StoreUnavailable
from tttembed_rag.gate.deciding import fit
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope
from tttembed_rag.rewards import Rewards
from tttembed_rag.stores import Lease, Store, Version
from tttembed_rag.system import telemetry
from tttembed_rag.vectors.rows import Float64
from tttembed_rag.worker.drift import query_drift, reward_drift
from tttembed_rag.worker.holding import Holding
from tttembed_rag.worker.memory import Learned, Memory, add_drift, read_probe, read_trial, write_probe, write_trial
from tttembed_rag.worker.probe import Probe
from tttembed_rag.worker.steps import Action, Step
from tttembed_rag.worker.trial import FIRST_LOOK, Trial, live_gains

_log = logging.getLogger(__name__)

# As whom changes are written down.
BY = "worker"
# By this share rewards must have grown before something is learned again: every fit may take chance for a gain, so
# there should be few.
_GROWTH = 0.1
_OUTWEIGH = 2
# Of so many of the last rewarded queries most say whose rewards, and of which model, are learned from.
_PREVAILING = 100
# Offsets that a version is explained with.
_EXPLAINED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How tenants learn.

    Attributes:
        judge: Fingerprint of whose rewards; None is, per tenant, the judge of most of the last rewarded queries.

        embedder: Fingerprint of whose vectors; None is the model of most of the last rewarded queries.

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
        self._prevailing = min(habits.last, _PREVAILING)
        self._memory = Memory.read(store, tenant)
        self._live = store.registry.version("live", tenant=tenant)
        # Gains of fresh queries under what was live at the beginning: a trial goes on under the next version.
        self._gains: Float64 = np.empty(0)

    def steps(self) -> Iterator[Step]:
        """Do it, step by step.

        Raises:
            StoreUnavailable: Not now; what was done stays done.

            LeaseLost: Another worker is at work; nothing was published.

            Superseded: Somebody has changed what is live meanwhile; that stays.
        """
        judge, count = self._judge()
        if not count and self._live is None:
            yield self._step("learned nothing", "no rewards yet")
            return
        if self._probe is not None:
            yield from self._recognise(self._probe, count)
        if (judge, count) == (self._memory.judge, self._memory.looked):
            yield self._step("learned nothing", f"nothing is new, {count} rewards as before")
            return
        if self._embedder is None:
            self._embedder = self._store.embedder(judge, tenant=self._tenant, last=self._prevailing, since=self._since)
        if self._memory.judge not in ("", judge):  # what another judge's rewards said of what is live is left aside
            trial = replace(read_trial(self._store, self._tenant), queries=0, against=0, earlier=())
            write_trial(self._store, self._tenant, self._lease, trial)
        self._memory = self._memory.counted(judge, count)
        new, needed = self._memory.new, self._needed(judge)
        guarded = self._live is not None and self._live.served > 0
        if new < needed and not guarded:
            yield self._too_little(new, needed)
            self._remember()
            return
        try:
            rewards = self._rewards(judge, self._embedder)
        except RewardError as exc:
            yield self._step("learned nothing", str(exc))
            return
        if self._live is not None:
            yield from self._guard(self._live, rewards)
        if new < needed:
            yield self._too_little(new, needed)
        else:
            yield from self._learn(rewards)
        self._remember()

    # Who embeds

    def _recognise(self, probe: Probe, count: int) -> Iterator[Step]:
        """Halt where what is live was learned for another embedding model, resume where it is for this one again."""
        before = read_probe(self._store, self._tenant)
        live = Probe.from_json(self._live.probe) if self._live is not None and self._live.probe else None
        reference = before or live
        changed = "" if reference is None else reference.difference(probe)
        foreign = changed if live is None else live.difference(probe)
        if changed:
            self._remember(since=time.time(), base=count, rewards=0, looked=count)
        # Not only at the change: since then another version may have gone live, or a person may have resumed.
        serves = self._live is not None and self._live.served > 0
        halts = serves and bool(foreign) and (bool(changed) or self._own_halt() is None)
        why = f"another embedding model: {foreign}"
        if halts:
            self._store.registry.halt(by=BY, tenant=self._tenant, note=why, lease=self._lease, yielding=True)
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
        if halted and self._store.registry.resume(
            by=BY, tenant=self._tenant, note=why, lease=self._lease, yielding=True
        ):
            yield self._step("resumed", why)

    def _own_halt(self) -> str | None:
        """Why the tenant, and not all, is halted."""
        return self._store.registry.halted(tenant=self._tenant, own=True)

    # Whether what is live helps

    def _guard(self, live: Version, learned: Rewards) -> Iterator[Step]:
        """Try what is live on queries that it was not learned from; take it back where they contradict it."""
        rewards, offsets = self._own(live, learned), self._readable(live)
        if rewards is None or offsets is None:
            return
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
                self._store.audit.note(BY, "drift", str(drift), tenant=self._tenant)
                yield self._step("drifted", str(drift))

    def _take_back(self, live: Version, trial: Trial, rewards: Rewards) -> Iterator[Step]:
        """Serve the version before, if what contradicts this one speaks for that one; else base vectors."""
        why = f"version {live.number} is contradicted: {trial}"
        before = self._store.registry.version("previous", tenant=self._tenant)
        if before is not None and self._speaks_for(before, trial, rewards.judge, live.embedder or self._embedder):
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

    def _speaks_for(self, version: Version, trial: Trial, judge: str, embedder: str | None) -> bool:
        """Whether rewards of late of that model do; they say nothing of a version of another one."""
        if not _same_model(version.embedder, embedder):
            return False
        try:
            fresh = self._rewards(judge, embedder, since=max(trial.since, version.at))
        except RewardError:
            return False
        offsets = self._readable(version)
        gains = np.empty(0) if offsets is None or offsets.width != fresh.width else live_gains(offsets, fresh)[0]
        return len(gains) >= FIRST_LOOK and float(gains.mean()) > 0

    # What is to be served

    def _needed(self, judge: str) -> int:
        """How many rewards must be new: more where more is known, of which no more counts than is learned from."""
        window = self._store.budget(
            judge, tenant=self._tenant, embedder=self._embedder, last=self._habits.last, since=self._since
        )
        return max(self._habits.min_new, math.ceil(_GROWTH * min(self._memory.rewards, window)))

    def _too_little(self, new: int, needed: int) -> Step:
        return self._step("learned nothing", f"{new} rewards are new, {needed} are needed")

    def _learn(self, rewards: Rewards) -> Iterator[Step]:
        """Fit, and publish what the gate supports."""
        memory = self._memory
        usable = rewards
        if len(rewards) < _OUTWEIGH * memory.contradicted:
            try:
                usable = self._rewards(rewards.judge, self._embedder, since=memory.fresh)
            except RewardError as exc:
                yield self._step("learned nothing", str(exc))
                return
        live = self._live
        own = None if live is None or not self._is_for(live, usable) else self._readable(live)
        try:
            with telemetry.step("fit", tenant=self._tenant) as note:
                offsets = fit(usable, scope=self._habits.scope, warm_start=own)
                note(rewarded=len(usable))
        except InputError as exc:
            yield self._step("failed", f"nothing could be fitted: {exc}")
            return
        self._memory = self._memory.known()
        said = f"{_explained(offsets)}; learned from {len(usable)} queries, {usable.budget} rewards of {usable.judge}"
        serves, served = (any(offset.served for offset in (which or {}).values()) for which in (offsets, own))
        if serves or (served and memory.doubted):
            yield from self._publish(offsets, rewards, said, serves=serves)
        elif served:
            said = f"version {self._number} stays, the next fit decides; {said}"
            self._store.audit.note(BY, "kept", said, tenant=self._tenant)
            self._remember(doubted=True)
            yield self._step("kept", said)
        else:
            self._store.audit.note(BY, "abstained", said, tenant=self._tenant)
            yield self._step("abstained", said)

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

    def _judge(self) -> tuple[str, int]:
        """Whose rewards are learned from, and how many there are."""
        judge = self._habits.judge
        if judge is None:
            now = self._store.judge(tenant=self._tenant, last=self._prevailing, since=self._since)
            judge = self._memory.judge if now is None else now
        return judge, dict(self._store.judges(tenant=self._tenant)).get(judge, 0)

    @property
    def _since(self) -> float | None:
        """From when on there are vectors of the present embedding model; None is always."""
        return self._memory.since or None

    def _rewards(self, judge: str, embedder: str | None, since: float = 0.0) -> Rewards:
        """The rewards of *judge* for vectors of a model, from *since* on where there are such."""
        since = max(since, self._memory.since)
        return self._store.rewards(
            judge, tenant=self._tenant, embedder=embedder, last=self._habits.last, since=since or None
        )

    def _own(self, live: Version, rewards: Rewards) -> Rewards | None:
        """The rewards of the live version's own model, if not *rewards*; None where there are none."""
        if not _same_model(live.embedder, self._embedder):
            try:
                rewards = self._rewards(rewards.judge, live.embedder)
            except RewardError:
                return None
        return rewards if rewards.width == live.width else None

    def _is_for(self, version: Version, rewards: Rewards) -> bool:
        """Whether a version belongs to the embedding model of *rewards*, those that are learned from."""
        return version.width == rewards.width and _same_model(version.embedder, self._embedder)

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


def _same_model(one: str | None, other: str | None) -> bool:
    """Whether vectors of *one* model are those of the *other*; of one that is not known nobody can say no."""
    return one == other or not (one and other)


def _explained(offsets: Offsets) -> str:
    """What the gate said of shared offsets, and how many private ones are served."""
    shared = [offset for offset in offsets.values() if offset.scope != "query"]
    told = [f"{offset.key} {offset.evidence}" for offset in shared[:_EXPLAINED]]
    if len(shared) > _EXPLAINED:
        told.append(f"{sum(offset.served for offset in shared)} of {len(shared)} shared offsets are served")
    private = sum(offset.served for offset in offsets.values() if offset.scope == "query")
    return "; ".join([*told, f"{private} private offsets"])
