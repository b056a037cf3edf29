"""Asking a judge about what waits, within what is left of the day's budget, and never longer than bearable.

Every answer is kept by the store as soon as it is known, so a worker that is killed here has lost nothing and
pays for nothing twice.

Any number of workers share the day's budget: each reserves what it is about to spend, see `Reservations`.

A call may fail because the judge is down, because of its query (too long, filtered), or because of the operator (a
proxy with a limit that only the probe keeps). Where calls fail in a row, the probe of the judge is asked again, and
only a judge that fails it is broken. Queries with a call that failed are set aside in the store, with the reason, and
asked about again later. Only where that goes on for half a day, pairs are declined, few of them a day, and only right
after the judge has passed its probe; `JudgeQueue.ask_again` takes that back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

from tttembed_rag.errors import InputError, StoreError, TTTEmbedError
from tttembed_rag.judges.contract import PROBE_BAD, PROBE_GOOD, PROBE_MARGIN, PROBE_QUERY, Judge
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import BUDGET_ENDED, Plan, Verdicts
from tttembed_rag.judging.running import LateError, Stop, check_once, judge_all
from tttembed_rag.judging.spending import Budget, Ledger, Price
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.models.usage import Usage
from tttembed_rag.rewards.observations import Observation
from tttembed_rag.stores import Store
from tttembed_rag.stores.records import Spend
from tttembed_rag.stores.work.reserving import Reserved
from tttembed_rag.worker.holding import Doubt, Holding
from tttembed_rag.worker.toolcalls import is_of_tools
from tttembed_rag.worker.wary import TimeLimit, Wary

# Queries judged at a time: after each such step rewards are written, and a worker that is told to end ends.
_QUERIES = 16
# The share of the time of a step that one call may take: those that come back in time are kept.
_CALL_SHARE = 0.5
# Factor on the forecast of what is asked that is reserved of the day's budget: a judge may use more than it forecasts.
_SLACK = 2.0
# Seconds between looks at whether another worker has probed the judge.
_POLL = 0.1
# Pairs declined in a day at most: so many, or that share of the pairs answered on it.
_DECLINED, _DECLINED_SHARE = 16, 0.02
# The probe of a judge as a query to ask about.
_PROBE = Observation("probe", PROBE_QUERY, [("good", PROBE_GOOD), ("bad", PROBE_BAD)])


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking.

    Attributes:
        scored: Rewards written.

        refused: Pairs that the judge failed at although it is well: set aside, or declined.

        why: The reason of one of them.

        stopped: Why no more is asked now; empty if more may be asked.

        broken: Whether the judge broke down: it is not to be asked about anything else now.

        more: Whether more may wait.
    """

    scored: int = 0
    refused: int = 0
    why: str = ""
    stopped: str = ""
    broken: bool = False
    more: bool = False

    def __add__(self, later: Asked) -> Asked:
        why = later.why or self.why
        return replace(later, scored=self.scored + later.scored, refused=self.refused + later.refused, why=why)

    def __str__(self) -> str:
        refused = f"{self.refused} pairs without an answer are asked about again later: {self.why}" * (self.refused > 0)
        return "; ".join(part for part in (f"{self.scored} pairs scored", refused, self.stopped) if part)


class _Either:
    """Is set once one of several is."""

    def __init__(self, *stops: Stop) -> None:
        self._stops = stops

    def is_set(self) -> bool:
        return any(one.is_set() for one in self._stops)


class CountedAnswers:
    """Answers of the store, with what those that were put have cost.

    Args:
        answers: Answers of the store.

        paid: The sums, to which is added.

        uncached: Whether every pair is asked about anew.
    """

    def __init__(self, answers: Answers, paid: Paying, *, uncached: bool = False) -> None:
        self._answers, self._paid, self._uncached = answers, paid, uncached

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The answers that are kept, of *pairs*."""
        return {} if self._uncached else self._answers.get(pairs)

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Count *answers*, and keep those that are the first."""
        self._answers.put(judge, answers)
        self._paid.tokens += sum(paid.tokens for paid in answers.values())
        self._paid.usd += sum(paid.usd for paid in answers.values())


@dataclass(slots=True)
class Paying:
    """What this process has paid a judge so far."""

    tokens: float = 0.0
    usd: float = 0.0


class Asking:
    """Has a judge score what waits in a store.

    Args:
        store: The store where pairs wait and answers are kept.

        judge: The judge.

        budget: Caps on what all judges of the store may cost in a day (UTC).

        price: What the judge's usage costs.

        concurrency: Calls in flight at once.

        seconds: How long a step of `_QUERIES` queries may take before the judge counts as broken.
    """

    def __init__(
        self, store: Store, judge: Judge, *, budget: Budget, price: Price, concurrency: int, seconds: float
    ) -> None:
        Plan([], budget=budget, price=price)  # refuses a cap on money without a price
        judge.scale.check_calibrated()
        if concurrency < 1 or not seconds > 0:
            raise InputError(f"judge: expected concurrency >= 1 and seconds > 0, got {concurrency} and {seconds:g}")
        self._store = store
        self._queue, self._open, self._reservations = store.judge_queue, store.open_batches, store.reservations
        self.paid = Paying()
        self._judge = Wary(judge, CountedAnswers(self._queue.answers(), self.paid), price)
        self._budget, self._price = budget, price
        self._concurrency = concurrency
        self._limit = TimeLimit(judge.fingerprint, seconds)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the judge."""
        return self._judge.fingerprint

    def tenants(self) -> set[str]:
        """Tenants for which pairs wait."""
        return set(self._queue.tenants(self.fingerprint))

    def judge(self, tenant: str, stop: Event, holding: Holding) -> Asked:
        """Score what waits of `_QUERIES` queries of *tenant*, newest first, and last those that failed before.

        Queries that a worker with a batch service asks about by now are left to it.

        Judging ends soon once *stop* is set; a worker that loses what it is *holding* begins no further call.
        """
        holding.check()
        if is_of_tools(self._store, tenant):
            return Asked()
        asked = self._open.asked_about(self.fingerprint, tenant)
        observations = self._queue.waiting(self.fingerprint, tenant=tenant, limit=_QUERIES, due=True, without=asked)
        if not observations:
            return Asked()
        try:
            self._limit.check()
            return self._judge_some(observations, tenant, stop, holding)
        except StoreError:
            raise
        except TTTEmbedError as exc:
            if isinstance(exc, LateError):  # one query on which it hangs may be enough, and must not come first again
                self._set_aside(tenant, {one.query_id: str(exc) for one in observations})
            return Asked(stopped=str(exc), broken=True)

    def _judge_some(self, observations: Sequence[Observation], tenant: str, stop: Event, holding: Holding) -> Asked:
        answers = CountedAnswers(self._queue.answers(observations), self.paid)
        answered, fresh = self._parted(observations, answers)
        scored = 0
        if answered:
            scored = self._keep(judge_all(self._plan(answered, Budget()), self._judge, answers), tenant)
        if not fresh:
            if not scored:  # they wait by mistake
                self._set_aside(tenant, {one.query_id: "nothing of it can be asked" for one in observations})
            return Asked(scored, more=True)
        doubt = holding.doubt()
        reserved = self._reserve(fresh, holding)
        if reserved.budget.pairs is not None and reserved.budget.pairs < 1:
            return Asked(scored, stopped=f"budget: {self._budget.pairs:g} pairs of today are spent")
        fresh = [one for one in fresh if one.query not in reserved.elsewhere]
        if not fresh:  # their answers are kept by then
            return Asked(scored)
        verdicts = self._limit.call(partial(self._ask, fresh, reserved.budget, answers, holding, doubt), stop)
        if verdicts is None:
            return Asked(scored, stopped=BUDGET_ENDED)
        kept = self._keep(verdicts, tenant)
        if verdicts.stopped == BUDGET_ENDED and reserved.more and kept:
            # They cost more than was forecast: the next turn reserves anew.
            verdicts = replace(verdicts, stopped="")
        scored += kept
        if not verdicts.failed:
            more = len(observations) == _QUERIES or doubt.is_set()
            return Asked(scored, stopped=verdicts.stopped, more=more and not verdicts.stopped)
        return Asked(scored) + self._after_failures(verdicts, fresh, tenant, stop, holding)

    def _after_failures(
        self,
        verdicts: Verdicts,
        asked: Sequence[Observation],
        tenant: str,
        stop: Event,
        holding: Holding,
    ) -> Asked:
        """What comes of calls that failed: the judge is broken, or their queries are set aside."""
        capped = verdicts.stopped == BUDGET_ENDED
        probed = bool(verdicts.stopped) and not capped  # several failed in a row
        if probed and (ended := self._unless_well(verdicts.stopped, stop, holding)):
            return ended
        lasting = self._set_aside(tenant, {query: str(why) for (query, _), why in verdicts.failed.items()})
        pairs = sorted(pair for pair in verdicts.failed if pair[0] in lasting)[: self._may_decline() if lasting else 0]
        why = str(next(iter(verdicts.failed.values())))
        if pairs and not probed and (ended := self._unless_well(why, stop, holding)):
            return ended
        refused = len(verdicts.failed)
        if pairs and not self._decline(asked, set(pairs), holding):
            return Asked(refused=refused, why=why, stopped=BUDGET_ENDED)
        return Asked(refused=refused, why=why, stopped=BUDGET_ENDED if capped else "", more=not capped)

    def _unless_well(self, why: str, stop: Event, holding: Holding) -> Asked | None:
        """None where the judge passes its probe now; else why nothing more is asked."""
        passes = self._limit.call(partial(self._passes_probe, holding), stop)
        if passes is None:
            return Asked(stopped=BUDGET_ENDED)
        return None if passes else Asked(stopped=f"{self.fingerprint}: fails the probe; {why}", broken=True)

    def _set_aside(self, tenant: str, reasons: Mapping[str, str]) -> set[str]:
        """Ask about queries again later; gives those at which the judge has failed for long."""
        return self._queue.failed(self.fingerprint, reasons, tenant=tenant)

    def _may_decline(self) -> int:
        """How many pairs may still be declined today: a small share of those that were answered."""
        allowed = max(_DECLINED, int(_DECLINED_SHARE * self._queue.spent().pairs))
        return max(0, allowed - self._queue.declined(self.fingerprint))

    def _ask(
        self,
        fresh: Sequence[Observation],
        left: Budget,
        answers: Answers,
        holding: Holding,
        doubt: Doubt,
        given_up: Event,
    ) -> Verdicts | None:
        """Verdicts on *fresh* pairs, until there is *doubt*; None where not even the judge's probe can be paid for."""
        keys = [pair_key(self.fingerprint, PROBE_QUERY, text) for text in (PROBE_GOOD, PROBE_BAD)]
        while len(answers.get(keys)) < len(keys):
            reserved = self._reserve([*fresh, _PROBE], holding)
            if PROBE_QUERY in reserved.elsewhere:  # another worker waits for the answer
                if given_up.wait(_POLL):
                    return None
                continue
            if not self._affords_probe(reserved.budget):
                return None
            check_once(self._judge, answers, price=self._price)
            left = self._reserve(fresh, holding).budget
        return judge_all(
            self._plan(fresh, left),
            self._judge,
            answers,
            concurrency=self._concurrency,
            seconds=_CALL_SHARE * self._limit.seconds,
            stop=_Either(given_up, doubt),
        )

    def _passes_probe(self, holding: Holding, given_up: Event) -> bool | None:
        """Whether the judge tells good from bad now, asked as about any pair; None where that cannot be paid for."""
        left = self._reserve([_PROBE], holding).budget
        if not self._affords_probe(left):
            return None
        verdicts = judge_all(
            self._plan([_PROBE], left),
            self._judge,
            CountedAnswers(self._queue.answers(), self.paid, uncached=True),
            seconds=_CALL_SHARE * self._limit.seconds,
            stop=given_up,
        )
        rewards = verdicts.rewards.get(_PROBE.query_id, {})
        return len(rewards) == len(_PROBE.candidates) and rewards["good"] - rewards["bad"] >= PROBE_MARGIN

    def _affords_probe(self, left: Budget) -> bool:
        ahead = self._judge.forecast(PROBE_QUERY, [PROBE_GOOD, PROBE_BAD])
        enough = left.pairs is None or left.pairs >= len(_PROBE.candidates)
        return enough and Ledger(left, self._price).admits(ahead)

    def _decline(self, asked: Sequence[Observation], pairs: AbstractSet[tuple[str, str]], holding: Holding) -> int:
        """Write down that the judge declined *pairs*; gives for how many the day's budget of pairs was enough."""
        keys = {
            pair_key(self.fingerprint, one.query, text)
            for one in asked
            for document, text in one.candidates
            if (one.query_id, document) in pairs
        }
        left = self._reserve(asked, holding).budget.pairs
        paid_for = sorted(keys)[: None if left is None else int(left)]
        CountedAnswers(self._queue.answers(asked), self.paid).put(self.fingerprint, dict.fromkeys(paid_for, Paid(None)))
        return len(paid_for)

    def _plan(self, observations: Sequence[Observation], budget: Budget) -> Plan:
        deepest = max((len(one.candidates) for one in observations), default=1)
        return Plan(observations, (max(1, deepest),), budget, self._price)

    def _reserve(self, asked: Sequence[Observation], holding: Holding) -> Reserved:
        """Of what is left of the day's budget, enough to ask about *asked* and for a probe of the judge."""
        size = self._judge.documents_per_call
        texts = [(one.query, [text for _, text in one.candidates]) for one in [*asked, _PROBE]]
        usage = Usage()
        if self._budget.tokens is not None or self._budget.usd is not None:
            for query, documents in texts:
                for start in range(0, len(documents), size):
                    usage += self._judge.forecast(query, documents[start : start + size])
        pairs = sum(len(documents) for _, documents in texts)
        wanted = Spend(pairs, _SLACK * usage.tokens, _SLACK * self._price.of(usage))
        queries = [query for query, _ in texts[:-1]]
        return self._reservations.reserve(holding.lease, self.fingerprint, wanted, self._budget, queries)

    def _parted(
        self, observations: Sequence[Observation], answers: Answers
    ) -> tuple[list[Observation], list[Observation]]:
        """The pairs that are answered already (for a worker that was killed, or for other ids), and the others."""
        keys = {
            (one.query_id, document): pair_key(self.fingerprint, one.query, text)
            for one in observations
            for document, text in one.candidates
        }
        kept = answers.get(list(dict.fromkeys(keys.values())))

        def part(*, answered: bool) -> list[Observation]:
            parts = [
                replace(
                    one,
                    candidates=[pair for pair in one.candidates if (keys[one.query_id, pair[0]] in kept) == answered],
                )
                for one in observations
            ]
            return [one for one in parts if one.candidates]

        return part(answered=True), part(answered=False)

    def _keep(self, verdicts: Verdicts, tenant: str) -> int:
        return self._queue.judged(self.fingerprint, verdicts.rewards, tenant=tenant) if verdicts.rewards else 0
