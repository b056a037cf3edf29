"""Asking a judge about what waits, within what is left of the day's budget, and never longer than bearable.

Every answer is kept by the store as soon as it is known, so a worker that is killed here has lost nothing and
pays for nothing twice.

Any number of workers share the day's budget: each call is charged before it is made, see `DailyAccount`.

A call may fail because the judge is down, because of its query (too long, filtered), or because of the operator (a
proxy with a limit that only short texts keep). Where calls fail in a row, the first question of the judge's
examination is asked again, and only a judge that fails it is broken. Queries with a call that failed are set aside in
the store, with the reason, and asked about again later. Only where that goes on for half a day, pairs are declined, few
of them a day, and only right after the judge has answered that question well; `JudgeQueue.ask_again` takes that back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Event

from tttembed_rag.errors import InputError, JudgeError
from tttembed_rag.judges.contract import Judge
from tttembed_rag.judging.cache import Paid
from tttembed_rag.judging.calls import LateError
from tttembed_rag.judging.plan import Plan, Verdicts
from tttembed_rag.judging.running import Run
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.models.usage import Usage
from tttembed_rag.rewards.observations import Observation
from tttembed_rag.stores import Store
from tttembed_rag.stores.records import Spend
from tttembed_rag.stores.work.account import DailyAccount
from tttembed_rag.worker.holding import Holding
from tttembed_rag.worker.toolcalls import is_of_tools

# Queries judged at a time: after each such step rewards are written, and a worker that is told to end ends.
_QUERIES = 16
# At most 16 pairs are declined in a day, or 2 % of the pairs answered on that day, if that is more.
_DECLINED, _DECLINED_SHARE = 16, 0.02


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking.

    Attributes:
        scored: Rewards written.
        refused: Pairs that the judge failed at although it is well: set aside, or declined.
        why: The reason of one of them, without words of the judge, which the store has.
        stopped: Why no more is asked now; empty if more may be asked.
        broken: Whether the judge broke down: it is not to be asked about anything else now.
        more: Whether more may wait.
        spent: What it cost.
    """

    scored: int = 0
    refused: int = 0
    why: str = ""
    stopped: str = ""
    broken: bool = False
    more: bool = False
    spent: Spend = field(default_factory=Spend)

    def __add__(self, later: Asked) -> Asked:
        return replace(
            later,
            scored=self.scored + later.scored,
            refused=self.refused + later.refused,
            why=later.why or self.why,
            spent=self.spent + later.spent,
        )

    def __str__(self) -> str:
        refused = f"{self.refused} pairs without an answer are asked about again later: {self.why}" * (self.refused > 0)
        return "; ".join(part for part in (f"{self.scored} pairs scored", refused, self.stopped) if part)


class Asking:
    """Has a judge score what waits in a store.

    Args:
        store: The store where pairs wait and answers are kept.
        judge: The judge.
        budget: Caps on what all judges of the store may cost in a day (UTC).
        price: What the judge's usage costs.
        concurrency: Calls in flight at once.
        seconds: How long a call may take.

    Attributes:
        fingerprint: Fingerprint of the judge.
        queue: What waits for judges in the store.
    """

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

    def tenants(self) -> set[str]:
        """Tenants for which pairs wait."""
        return set(self.queue.tenants(self.fingerprint))

    def judge(self, tenant: str, stop: Event, holding: Holding) -> Asked:
        """Score what waits of `_QUERIES` queries of *tenant*.

        Of the newest these are the ones of which verdicts say most about what is asked; those that failed come last.
        Queries that a worker with a batch service asks about by now are left to it. No further call begins once *stop*
        is set, nor without the lease that *holding* renews.
        """
        if is_of_tools(self.store, tenant):
            return Asked()
        asked = self.store.open_batches.asked_about(self.fingerprint, tenant)
        observations = self.queue.waiting(
            self.fingerprint,
            tenant=tenant,
            limit=_QUERIES,
            due=True,
            without=asked,
            covering=True,
        )
        if not observations:
            return Asked()
        account = self.account(observations, holding)
        try:
            verdicts = self.ask(observations, account, stop)
        except JudgeError as exc:  # it fails its examination, which holds no text of a user
            return Asked(stopped=str(exc), broken=True, spent=account.paid)
        scored = self.queue.judged(self.fingerprint, verdicts.rewards, tenant=tenant) if verdicts.rewards else 0
        came = Asked(scored, stopped=verdicts.stopped, broken=verdicts.broken)
        if verdicts.failed:
            came += self._after_failures(verdicts, observations, account, tenant, stop)
        elif not scored and verdicts.progress.cached == sum(len(one.candidates) for one in observations):
            self._set_aside(tenant, observations, "nothing of it can be asked")  # they wait by mistake
        more = len(observations) == _QUERIES and bool(came.scored or came.refused) and not came.stopped
        return replace(came, more=more, spent=account.paid)

    def account(self, observations: Sequence[Observation], holding: Holding) -> DailyAccount:
        """What may be spent today on *observations*, under the lease that *holding* renews."""
        return self.queue.account(observations, caps=self.budget, price=self.price, lease=lambda: holding.lease)

    def ask(
        self,
        observations: Sequence[Observation],
        account: DailyAccount,
        stop: Event,
        *,
        depths: Sequence[int] | None = None,
    ) -> Verdicts:
        """The verdicts on *observations*, as far as the *account* goes; *depths* are those of a `Plan`.

        Raises:
            JudgeError: The judge fails its examination, and was asked nothing else.
        """
        deepest = max([1, *(len(one.candidates) for one in observations)])
        plan = Plan(observations, depths or (deepest,))
        return self.run(account, plan, stop).verdicts()

    def _after_failures(
        self, verdicts: Verdicts, asked: Sequence[Observation], account: DailyAccount, tenant: str, stop: Event
    ) -> Asked:
        """What comes of calls that failed: the judge is broken, or queries are set aside, and in the end declined."""
        if verdicts.broken:
            if any(isinstance(why, LateError) for why in verdicts.failed.values()):
                # One query on which it hangs is enough; those behind it must not come first again either.
                self._set_aside(tenant, asked, verdicts.stopped)
            return Asked(stopped=verdicts.stopped, broken=True)
        reasons = {query: str(why) for (query, _), why in verdicts.failed.items()}
        why = next(iter(verdicts.failed.values())).brief
        refused = Asked(refused=len(verdicts.failed), why=why, stopped=verdicts.stopped)
        lasting = self.queue.failed(self.fingerprint, reasons, tenant=tenant)
        keys = self._declinable([pair for pair in verdicts.failed if pair[0] in lasting], asked)
        if not keys:
            return refused
        examined = self.run(account, Plan([]), stop).examined(why)
        if examined.stopped:
            return replace(refused, stopped=examined.stopped, broken=examined.broken)
        charge = account.charge(self.fingerprint, keys, Usage())
        if charge is None:
            return replace(refused, stopped=account.ended)
        account.settle(self.fingerprint, charge, Usage(), dict.fromkeys(charge.pairs, Paid(None)))
        return refused

    def run(self, account: DailyAccount, plan: Plan, stop: Event) -> Run:
        """A run of the judge over *plan*, as far as the *account* goes."""
        concurrency, seconds = self._concurrency, self.seconds
        return Run(account, plan, self._judge, concurrency=concurrency, seconds=seconds, stop=stop, wary=True)

    def _set_aside(self, tenant: str, observations: Sequence[Observation], why: str) -> None:
        """Ask about *observations* again later."""
        self.queue.failed(self.fingerprint, dict.fromkeys((one.query_id for one in observations), why), tenant=tenant)

    def _declinable(self, pairs: Sequence[tuple[str, str]], asked: Sequence[Observation]) -> list[bytes]:
        """The addresses of those of *pairs* that may still be declined today: a small share of what was answered."""
        if not pairs:
            return []
        allowed = max(_DECLINED, int(_DECLINED_SHARE * self.queue.spent().pairs))
        chosen = set(sorted(pairs)[: max(0, allowed - self.queue.declined(self.fingerprint))])
        return sorted(
            {
                pair_key(self.fingerprint, one.query, text)
                for one in asked
                for document, text in one.candidates
                if (one.query_id, document) in chosen
            }
        )
