"""The worker: rounds over the tenants with something to do, each under a lease of its own, until it is told to end."""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from threading import Event
from typing import TypeAlias
from uuid import uuid4

from tttembed_rag.errors import InputError, LeaseLost, StoreTooSlow, StoreUnavailable, Superseded, in_brief
from tttembed_rag.judges.contract import Judge
from tttembed_rag.judging.calls import in_time
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.offsets.offset import AnyScope, check_scope
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.system import telemetry
from tttembed_rag.system.terminal import printable
from tttembed_rag.vectors.probe import Probe
from tttembed_store.background import checked_interval
from tttembed_store.batches.service import BatchService
from tttembed_store.sql import Lease, Store
from tttembed_store.sql.work.states import BASIS
from tttembed_store.worker.asking import Asked, Asking
from tttembed_store.worker.batches import BatchAsking
from tttembed_store.worker.learning import learner_pass, one_pass
from tttembed_store.worker.steps import DECISIONS, Step
from tttembed_store.worker.tenant import GROWTH, Habits, Learner, Tenant

_log = logging.getLogger(__name__)

# Is told each step as soon as it is done.
Tell: TypeAlias = Callable[[Step], None]

# Seconds of the first and the longest wait: for a store that is out of order, for a judge that broke down, and for a
# tenant with an error of its own.
_STORE_WAITS, _JUDGE_WAITS, _TENANT_WAITS = (1.0, 60.0), (30.0, 3600.0), (60.0, 3600.0)
# Tenants are judged in turns for so many seconds, or for as long as the last learning took if that is longer; then the
# worker learns.
_TURNS = 60.0


class Worker:
    """Judges what waits, learns from what is new and publishes what the gate supports, for every tenant of a store.

    Any number of workers share a store, side by side: one works for a tenant at a time, and what it was killed at
    goes to the next one once its lease ends. It may be killed at any moment: every reward and version is there or not.
    A round costs nothing for tenants with nothing to do. Workers with different judges each see what is new of theirs;
    one without a judge takes what is new of all, so it is the only one of its tenants.

    Args:
        store: The store that it works on.
        judge: The judge that scores what waits. None judges nothing: rewards come with observations or from elsewhere.
        rewards_of: Fingerprint of the judge that gave the rewards to learn from; None is *judge*, and without
            one, per tenant, the judge of most of the last 100 rewarded queries (of *last*, if that is less), of
            two the newer. Rewards of two judges never mix.
        tenants: The tenants that it works for; None is all.
        scope: What is fitted: ``auto``, ``global``, ``local``, ``task`` or ``query``.
        budget: Caps on what judging may cost in a day (UTC), over all judges, workers and restarts of the store.
        price: What the judge's usage costs; needed where the budget caps money.
        min_new: Rewards that must be new before something is learned again, >= 1; but never fewer than *growth* of
            those learned from before.
        last: Queries learned from at most, the last served ones.
        growth: The share by which rewards must have grown before something is learned again, >= 0: every fit may take
            chance for a gain, so there should be few.
        start: What is served already, as for `fit`, such as offsets of languages that were published.
        learner: Learns in its own way from the rewards of its own judge, such as a search over tools from calls; None
            fits offsets of *scope* to rewards.
        embedder: Fingerprint of the embedding model that made the vectors to learn from; None is the model of most
            of the last 100 rewarded queries.
        probe: Probes the embedding model, once a round: ``lambda: Probe.of(embed_query)``. Where it is
            another one than before, offsets are halted until enough of the new one is learned.
        batches: A batch service of *judge*, which is then asked through it: results come in a later round.
        concurrency: Calls of the judge in flight at once.
        judge_seconds: How long a call of the judge, a step of a batch, or the probe of the embedding model may take
            before it is left behind.
        lease_seconds: How long others wait for a worker that was killed.
        clock: Gives the seconds by which turns, and waits for a broken judge or store, are measured.

    Raises:
        InputError: An option is not what was expected.
    """

    def __init__(
        self,
        store: Store,
        judge: Judge | None = None,
        *,
        rewards_of: str | None = None,
        tenants: Sequence[str] | None = None,
        scope: AnyScope = "auto",
        budget: Budget | None = None,
        price: Price | None = None,
        min_new: int = 50,
        last: int = 10_000,
        growth: float = GROWTH,
        start: Offsets | None = None,
        learner: Learner | None = None,
        embedder: str | None = None,
        probe: Callable[[], Probe] | None = None,
        batches: BatchService | None = None,
        concurrency: int = 8,
        judge_seconds: float = 300.0,
        lease_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if min_new < 1 or last < 2 or not lease_seconds > 0 or not growth >= 0:
            got = f"{min_new}, {last}, {lease_seconds:g} and {growth:g}"
            raise InputError(f"worker: expected min_new >= 1, last >= 2, lease_seconds > 0 and growth >= 0, got {got}")
        check_scope(scope)
        if isinstance(tenants, str):
            raise InputError(f"tenants: expected a list of names, got the string {tenants!r}")
        self._store = store
        self._tenants = None if tenants is None else list(tenants)
        self._asking: Asking | BatchAsking | None = None
        caps, cost = budget or Budget(), price or Price()
        if batches is not None and judge is None:
            raise InputError("batches: expected a judge with them, got none")
        if judge is not None:
            singly = Asking(store, judge, budget=caps, price=cost, concurrency=concurrency, seconds=judge_seconds)
            self._asking = singly if batches is None else BatchAsking(singly, batches)
        learned = rewards_of or (judge.fingerprint if judge else None)
        if learner is not None:
            learned, embedder = learner.judge, learner.embedder
        self._habits = Habits(
            judge=learned, embedder=embedder, scope=scope, min_new=min_new, last=last, growth=growth, start=start
        )
        self._learner = learner
        self._probe = probe
        self._judge_seconds = judge_seconds
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._judged_last: str | None = None  # the tenant that was judged for last
        self._learning = 0.0  # seconds that learning took the last time
        self._judge_wait = Backoff(_JUDGE_WAITS, clock)
        self._troubles: dict[tuple[str, str], Backoff] = {}
        self._basis: dict[str, str] | None = None  # what it looked with in the last round; None before the first
        self._elsewhere = set[str]()  # the tenants of this round that other workers work for

    def round(self, *, stop: Event | None = None, watch: Callable[[Step], None] | None = None) -> list[Step]:
        """One pass over the tenants with something to do; gives what was done, step by step.

        Args:
            stop: Once it is set, the current step is finished and no other begun.
            watch: Called with every step as soon as it is done.

        Raises:
            StoreUnavailable: The store is out of order; what was done stays done.
        """
        stop, steps = stop or Event(), list[Step]()

        def tell(step: Step) -> None:
            steps.append(step)
            _announce(watch, step)

        self._elsewhere.clear()
        left_out, more = set[str](), True
        with telemetry.step("round"):
            while more and not stop.is_set():  # judging and learning in turns
                more = self._judge(left_out, stop, tell)
                begun = self._clock()
                self._learn(stop, tell)
                self._learning = self._clock() - begun
            if not steps and self._elsewhere:
                tell(Step("standby", "other workers are at work for all tenants with something to do"))
            elif not steps:
                tell(Step("learned nothing", "nothing is new"))
        return steps

    def learn(self, tenant: str) -> list[Step]:
        """One pass over *tenant* alone, whether or not it is due; gives what was done, step by step.

        Raises:
            StoreUnavailable: The store is out of order; what was done stays done.
        """
        steps = list[Step]()
        for step in self._learned(tenant, None, steps.append):
            steps.append(step)
            _announce(None, step)
        return steps or [Step("standby", "another worker is at work for it", tenant)]

    def run(
        self, *, every: float = 60.0, stop: Event | None = None, watch: Callable[[Step], None] | None = None
    ) -> None:
        """Rounds until *stop* is set; a store that is out of order is waited for.

        Args:
            every: Seconds between rounds, > 0.
            stop: Ends it after the current step, at once where it waits. None runs forever.
            watch: Called with every step as soon as it is done.
        """
        checked_interval("every", every)
        stop = stop or Event()
        trouble = Backoff(_STORE_WAITS, self._clock)
        while not stop.is_set():
            try:
                self.round(stop=stop, watch=watch)
                trouble.over()
                stop.wait(min(every, self._lease_seconds / 2) if self._elsewhere else every)
            except StoreUnavailable as exc:
                wait = trouble.wait()
                _announce(watch, Step("failed", f"{exc}; trying again in {wait:.0f} s"))
                stop.wait(wait)

    def _judge(self, left_out: set[str], stop: Event, tell: Tell) -> bool:
        """Have the judge score some of what waits for each tenant in turn; gives whether there is more.

        A judge that broke down is left alone for a while. A tenant is added to *left_out*, for the rest of the round,
        when its next answer could exceed a cap, when nothing came of its turn, or when another worker works for it.
        """
        if (asking := self._asking) is None:
            return False
        if (left := self._judge_wait.left) > 0:
            tell(Step("not judged", f"{asking.fingerprint}: broke down, is asked again in {left:.0f} s"))
            return False
        waiting = self._ours("judging", asking.tenants() - left_out)
        # They begin after the one that was judged for last; a new process begins anywhere.
        last = self._judged_last if self._judged_last is not None or not waiting else random.choice(waiting)
        turns = deque(sorted(waiting, key=lambda name: (name <= (last or ""), name)))
        done: dict[str, Asked] = {}
        begun, broken = self._clock(), False
        while turns and not broken and not stop.is_set() and self._clock() - begun < max(_TURNS, self._learning):
            tenant, outcome = turns.popleft(), None
            with self._alone("judging", tenant, tell) as lease:
                if lease is not None:
                    with telemetry.step("judge", tenant=tenant) as note:
                        outcome = asking.judge(tenant, stop, lease)
                        note(pairs=outcome.scored)
            self._judged_last = tenant
            if outcome is None:
                left_out.add(tenant)
                continue
            telemetry.judged(asking.fingerprint, pairs=outcome.scored, tokens=outcome.usage.tokens, usd=outcome.usd)
            done[tenant], broken = done.get(tenant, Asked()) + outcome, outcome.broken
            if outcome.more:
                turns.append(tenant)
        for tenant, outcome in done.items():
            if outcome.scored or outcome.refused or outcome.stopped:
                tell(Step("not judged" if outcome.broken or outcome.refused else "judged", str(outcome), tenant))
        if broken:
            self._judge_wait.wait()
            return False
        self._judge_wait.over()
        left_out.update(
            name for name, outcome in done.items() if outcome.stopped or not (outcome.scored or outcome.more)
        )
        return bool(turns)

    def _learn(self, stop: Event, tell: Tell) -> None:
        """Guard what is live, and learn from what is new."""
        probe = None
        if (ask := self._probe) is not None and not stop.is_set():
            try:
                probe = in_time(self, "the embedding model", self._judge_seconds, ask, stop)
            except Exception as exc:  # noqa: BLE001 (an embedding client may raise anything; the reason is told)
                tell(Step("not probed", f"{in_brief(exc)}; nothing is learned until the embedding model answers"))
                return
        if self._learner is None:
            self._look_anew(probe)
        for tenant in self._ours("learning", self._store.due.tenants(self._habits.judge)):
            if stop.is_set():
                return
            if tenant in self._elsewhere:
                continue  # who judges for it learns for it too, once the turns are over
            with closing(self._learned(tenant, probe, tell)) as steps:
                for step in steps:  # told out here, as an error of the caller's `watch` is not the tenant's
                    tell(step)

    def _learned(self, tenant: str, probe: Probe | None, tell: Tell) -> Generator[Step, None, None]:
        """The steps of one pass over *tenant*; its lease is held until they end, or are closed."""
        with self._alone("learning", tenant, tell) as lease:
            if lease is not None:
                held, learner = Tenant(self._store, tenant, self._habits, lease), self._learner
                yield from one_pass(held, probe) if learner is None else learner_pass(held, learner)

    def _look_anew(self, probe: Probe | None) -> None:
        """Let all tenants be due where another judge is learned from than before, or the embedding model is another.

        Before its first round that is what any worker looked with last. Afterwards it is what this worker looked with,
        as two workers with two judges would let all tenants be due in every round of both.
        """
        known = self._basis or self._store.states.get(BASIS) or {}
        before = Probe.from_json(known["probe"]) if known.get("probe") else None
        changed = known.get("judge") != (self._habits.judge or "")
        if probe is not None and (before is None or before.difference(probe)):
            before, changed = probe, True
        self._basis = {"judge": self._habits.judge or "", "probe": "" if before is None else before.to_json()}
        if changed:
            self._store.due.restart(self._habits.judge)
            self._store.states.set(BASIS, self._basis)  # last: a worker that is killed before it does both again

    def _ours(self, doing: str, tenants: Iterable[str]) -> list[str]:
        """Those of *tenants* that this worker works for, and that no error of their own leaves out for now."""
        ours = [name for name in tenants if self._tenants is None or name in self._tenants]
        troubles = [self._troubles.get((doing, name)) for name in ours]
        return [name for name, trouble in zip(ours, troubles, strict=True) if trouble is None or trouble.left <= 0]

    @contextmanager
    def _alone(self, doing: str, tenant: str, tell: Tell) -> Iterator[Lease | None]:
        """A block with the right to work for *tenant*, None where another worker has it; its errors spare all others.

        A tenant with an error is left out for a while; the log has a new error once, its traceback at level DEBUG.
        Where an error keeps the worker from taking the right, the block has None too.
        """
        entered = False
        try:
            with self._store.leases.held(tenant, self._owner, self._lease_seconds) as lease:
                entered = True
                if lease is None:
                    self._elsewhere.add(tenant)
                else:
                    self._elsewhere.discard(tenant)
                yield lease
            if lease is not None:
                self._troubles.pop((doing, tenant), None)
        except LeaseLost as exc:
            tell(Step("standby", str(exc), tenant))
        except Superseded as exc:  # by a person; looked at again in the next round
            tell(Step("learned nothing", str(exc), tenant))
        except Exception as exc:
            if isinstance(exc, StoreUnavailable) and not isinstance(exc, StoreTooSlow):
                raise
            reason = in_brief(exc)
            trouble = self._troubles.setdefault((doing, tenant), Backoff(_TENANT_WAITS, self._clock))
            wait = trouble.wait()
            if trouble.reason != reason:
                trouble.reason = reason
                _log.error("tenant %r is left out of %s for %.0f s: %s", tenant, doing, wait, reason)
                _log.debug("tenant %r", tenant, exc_info=exc)
            tell(Step("failed", f"{reason}; looked at again in {wait:.0f} s, the other tenants go on", tenant))
        if not entered:
            yield None


class Backoff:
    """The wait after each of several failures in a row, twice as long as the one before, from the first of *seconds*.

    The last failure that was told is its *reason*.
    """

    reason = ""

    def __init__(self, seconds: tuple[float, float], clock: Callable[[], float]) -> None:
        (self._first, self._longest), self._clock = seconds, clock
        self._next, self._until = self._first, -math.inf

    @property
    def left(self) -> float:
        """Seconds that are still to be waited."""
        return self._until - self._clock()

    def wait(self) -> float:
        """Count a failure; gives the seconds to wait, up to a fifth less so that many workers do not come at once."""
        seconds = self._next * random.uniform(0.8, 1.0)
        self._next = min(2 * self._next, self._longest)
        self._until = self._clock() + seconds
        return seconds

    def over(self) -> None:
        """Count a success."""
        self._next, self._until = self._first, -math.inf


def _announce(watch: Callable[[Step], None] | None, step: Step) -> None:
    _log.info("%s", printable(str(step)))
    if step.action in DECISIONS:
        telemetry.record("tttembed.publish.decisions", 1, outcome=step.action.replace(" ", "_"))
    if watch is not None:
        watch(step)
