"""Asking a judge about what waits, within what is left of the day's budget, and never longer than bearable.

Every answer is kept by the store as soon as it is known, so a worker that is killed here has lost nothing and
pays for nothing twice.

Any number of workers share the day's budget: each call is charged before it is made, see `DailyAccount`.

A call may fail because the judge is down, because of its query (too long, filtered), or because of the operator (a
proxy with a limit that only short texts keep). Where calls fail in a row, the first question of the judge's
examination is asked again, and only a judge that fails it is broken. Queries with a call that failed are set aside in
the store, with the reason, and asked about again later, less and less often; `JudgeQueue.ask_again` does so at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Event

from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import InputError, JudgeError
from tttembed_rag.judges.contract import Judge, pairs_per_call
from tttembed_rag.judging.calls import LateError
from tttembed_rag.judging.plan import Plan
from tttembed_rag.judging.running import Run
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.rewards.observations import MAX_DEPTH, Served
from tttembed_store.sql import Lease, Store

# Queries judged at a time, and pairs of a query at most times: after each such step rewards are written, and a worker
# that is told to end ends. Where the judge is asked about many queries at once, there are as many as fill a call.
_QUERIES, _PAIRS = 16, 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking: how many rewards were written, whether *more* may wait, what was used and what that cost.

    Pairs that the judge failed at although it is well are *refused*, and set aside: *why* is the reason of one of them,
    without words of the judge, which the store has. Where *stopped* has a reason, no more is asked now; where the judge
    is *broken*, nothing else is either.
    """

    scored: int = 0
    refused: int = 0
    why: str = ""
    stopped: str = ""
    broken: bool = False
    more: bool = False
    usage: Usage = field(default_factory=Usage)
    usd: float = 0.0

    def __add__(self, later: Asked) -> Asked:
        return replace(
            later,
            scored=self.scored + later.scored,
            refused=self.refused + later.refused,
            why=later.why or self.why,
            usage=self.usage + later.usage,
            usd=self.usd + later.usd,
        )

    def __str__(self) -> str:
        refused = f"{self.refused} pairs without an answer are asked about again later: {self.why}" * (self.refused > 0)
        return "; ".join(part for part in (f"{self.scored} pairs scored", refused, self.stopped) if part)


class Asking:
    """Has a judge score what waits in a store; its options are those of `Worker`, *seconds* those of a call."""

    def __init__(
        self, store: Store, judge: Judge, *, budget: Budget, price: Price, concurrency: int, seconds: float
    ) -> None:
        Plan([], budget=budget, price=price)  # refuses a cap on money without a price
        judge.scale.check_calibrated()
        if concurrency < 1 or not seconds > 0:
            raise InputError(f"judge: expected concurrency >= 1 and seconds > 0, got {concurrency} and {seconds:g}")
        self.store, self.queue = store, store.judge_queue
        self.fingerprint = judge.fingerprint
        self.budget, self.price, self.seconds = budget, price, seconds
        self._judge, self._concurrency = judge, concurrency
        self._queries = max(_QUERIES, pairs_per_call(judge) // _PAIRS)

    def tenants(self) -> set[str]:
        """Tenants for which pairs wait."""
        return set(self.queue.tenants(self.fingerprint))

    def judge(self, tenant: str, stop: Event, lease: Lease) -> Asked:
        """Score what waits of some queries of *tenant*.

        Of the newest these are the ones of which verdicts say most about what is asked; those that failed come last.
        Queries that a worker with a batch service asks about by now are left to it. No further call begins once *stop*
        is set, nor under a *lease* that is lost.
        """
        in_batches = self.store.open_batches.asked_about(self.fingerprint, tenant)
        observations = self.queue.waiting(
            self.fingerprint, tenant=tenant, limit=self._queries, due=True, without=in_batches, covering=True
        )
        if not observations:
            return Asked()
        run = self.run(observations, lease, stop)
        try:
            verdicts = run.verdicts()
        except JudgeError as exc:  # it fails its examination, which holds no text of a user
            return Asked(stopped=str(exc), broken=True, usage=run.usage, usd=run.usd)
        scored = self.queue.judged(self.fingerprint, verdicts.rewards, tenant=tenant) if verdicts.rewards else 0
        came = Asked(scored, stopped=verdicts.stopped, broken=verdicts.broken, usage=run.usage, usd=run.usd)
        failed, ids = verdicts.failed, [served.query_id for served in observations]
        reasons: dict[str, str] = {}
        if failed and not verdicts.broken:
            reasons = {query: str(why) for (query, _), why in failed.items()}
            came = replace(came, refused=len(failed), why=next(iter(failed.values())).brief)
        elif any(isinstance(why, LateError) for why in failed.values()):
            # One query on which it hangs is enough; those behind it must not come first again either.
            reasons = dict.fromkeys(ids, verdicts.stopped)
        elif not scored and verdicts.progress.cached == sum(len(served.candidates) for served in observations):
            # All of it was answered before, and no answer became a reward: asking again would change nothing.
            reasons = dict.fromkeys(ids, "nothing of it can be asked")
        if reasons:
            self.queue.failed(self.fingerprint, reasons, tenant=tenant)
        more = len(observations) == self._queries and bool(came.scored or came.refused) and not came.stopped
        return replace(came, more=more)

    def run(self, about: Sequence[Served], lease: Lease, stop: Event) -> Run:
        """A run of the judge *about* queries of the store, paid for from what is left of the day."""
        account = self.queue.account(self.fingerprint, about, caps=self.budget, price=self.price, lease=lease)
        return Run(
            account,
            Plan(about, (MAX_DEPTH,)),
            self._judge,
            concurrency=self._concurrency,
            seconds=self.seconds,
            stop=stop,
            wary=True,
        )
