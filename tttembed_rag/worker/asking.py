"""Asking a judge about what waits, within what is left of the day's budget, and never longer than bearable.

Every answer is kept by the store as soon as it is known, so a worker that is killed here has lost nothing and
pays for nothing twice.

A call may fail because the judge is down, or because of its query (too long, filtered). Where calls fail in a row, the
probe of the judge is asked again, and only a judge that fails it is broken. Queries with a call that failed go behind
all others of their tenant. Pairs that fail there again, with a judge that passes the probe right after, are declined;
if the failure may pass (a busy server), only after `_PATIENCE` of them, of which a round makes two at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from threading import Event

from tttembed_rag.errors import InputError, StoreError, TTTEmbedError
from tttembed_rag.judges.cache import Answers, Paid
from tttembed_rag.judges.contract import PROBE_BAD, PROBE_GOOD, PROBE_MARGIN, PROBE_QUERY, Judge
from tttembed_rag.judges.spending import Budget, Ledger, Price
from tttembed_rag.judging.plan import BUDGET_ENDED, Plan, Verdicts
from tttembed_rag.judging.running import LateError, check_once, judge_all
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.models.retrying import BusyError
from tttembed_rag.observations import Observation
from tttembed_rag.stores import Store
from tttembed_rag.worker.wary import TimeLimit, Wary

# Queries judged at a time: after each such step rewards are written, and a worker that is told to end ends.
_QUERIES = 16
# The share of the time of a step that one call may take: those that come back in time are kept.
_CALL_SHARE = 0.5
# Failures of a query after which a failure that may pass counts as lasting.
_PATIENCE = 5
# The probe of a judge as a query to ask about.
_PROBE = Observation("probe", PROBE_QUERY, [("good", PROBE_GOOD), ("bad", PROBE_BAD)])


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking.

    Attributes:
        scored: Rewards written.

        refused: Pairs that failed again at a judge that passes its probe: declined, or left for another round.

        stopped: Why no more is asked now; empty if more may be asked.

        broken: Whether the judge broke down: it is not to be asked about anything else now.

        more: Whether more may wait.
    """

    scored: int = 0
    refused: int = 0
    stopped: str = ""
    broken: bool = False
    more: bool = False

    def __add__(self, later: Asked) -> Asked:
        return replace(later, scored=self.scored + later.scored, refused=self.refused + later.refused)

    def __str__(self) -> str:
        refused = f"{self.refused} pairs without an answer" if self.refused else ""
        return "; ".join(part for part in (f"{self.scored} pairs scored", refused, self.stopped) if part)


class UncachedAnswers:
    """Answers that are counted and kept, and never looked up."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def get(self, _: Sequence[bytes]) -> dict[bytes, Paid]:
        """Nothing: every pair is asked about."""
        return {}

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Count *answers*, and keep those that are the first."""
        self._answers.put(judge, answers)


class Backlog:
    """The queries that a judge failed at, by tenant: they go behind all others, the one that failed last at the end."""

    def __init__(self) -> None:
        self._failures: dict[str, dict[str, int]] = {}

    def failures(self, tenant: str) -> Mapping[str, int]:
        """How often each query of *tenant* has failed."""
        return self._failures.get(tenant, {})

    def add(self, tenant: str, queries: Iterable[str]) -> None:
        """Count a failure of each query, and put it at the end."""
        failures = self._failures.setdefault(tenant, {})
        for query in dict.fromkeys(queries):
            failures[query] = failures.pop(query, 0) + 1

    def next(self, tenant: str, waiting: Sequence[Observation]) -> tuple[list[Observation], bool]:
        """The queries to ask about next, of those that wait, and whether they have failed before."""
        failures = self._failures.get(tenant, {})
        if fresh := [one for one in waiting if one.query_id not in failures]:
            return fresh[:_QUERIES], False
        left = {one.query_id: one for one in waiting}
        self._failures[tenant] = {query: count for query, count in failures.items() if query in left}
        return [left[query] for query in self._failures[tenant]][:_QUERIES], True


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
        self._queue = store.judge_queue
        self._judge = Wary(judge, self._queue.answers(), price)
        self._budget, self._price = budget, price
        self._concurrency = concurrency
        self._limit = TimeLimit(judge.fingerprint, seconds)
        self._backlog = Backlog()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the judge."""
        return self._judge.fingerprint

    def judge(self, tenant: str, stop: Event, check: Callable[[], object]) -> Asked:
        """Score what waits of `_QUERIES` queries of *tenant*, newest first, and last those that failed before.

        First *check* is called, and its errors are raised; judging ends soon once *stop* is set.
        """
        check()
        if self._limit.is_exceeded:
            return Asked(stopped=f"{self.fingerprint}: has not answered several calls of before", broken=True)
        failed_before = len(self._backlog.failures(tenant))
        waiting = self._queue.waiting(self.fingerprint, tenant=tenant, limit=_QUERIES + failed_before)
        observations, again = self._backlog.next(tenant, waiting)
        if not observations:
            return Asked()
        try:
            return self._judge_some(observations, tenant, stop, again=again)
        except StoreError:
            raise
        except TTTEmbedError as exc:
            if isinstance(exc, LateError):  # one query on which it hangs may be enough, and must not come first again
                self._backlog.add(tenant, [one.query_id for one in observations])
            return Asked(stopped=str(exc), broken=True)

    def _judge_some(self, observations: Sequence[Observation], tenant: str, stop: Event, *, again: bool) -> Asked:
        answers = self._queue.answers(observations)
        answered, fresh = self._parted(observations, answers)
        scored = 0
        if answered:
            scored = self._keep(judge_all(self._plan(answered, Budget()), self._judge, answers), tenant)
        if not fresh:
            if not scored:  # they wait by mistake: nothing of them can be asked
                self._backlog.add(tenant, [one.query_id for one in observations])
            return Asked(scored, more=bool(scored) or not again)
        left = self._left()
        if left.pairs is not None and left.pairs < 1:
            return Asked(scored, stopped=f"budget: {self._budget.pairs:g} pairs of today are spent")
        verdicts = self._limit.call(partial(self._ask, fresh, left, answers), stop)
        if verdicts is None:
            return Asked(scored, stopped=BUDGET_ENDED)
        scored += self._keep(verdicts, tenant)
        if not verdicts.failed:
            return Asked(scored, stopped=verdicts.stopped, more=not verdicts.stopped)
        return Asked(scored) + self._after_failures(verdicts, fresh, tenant, stop, again=again)

    def _after_failures(
        self, verdicts: Verdicts, asked: Sequence[Observation], tenant: str, stop: Event, *, again: bool
    ) -> Asked:
        """What comes of calls that failed: the judge is broken, or their queries go behind all others."""
        capped = verdicts.stopped == BUDGET_ENDED
        in_a_row = bool(verdicts.stopped) and not capped
        failures = self._backlog.failures(tenant)
        lasting = {
            pair
            for pair, why in verdicts.failed.items()
            if again and (not isinstance(why, BusyError) or failures.get(pair[0], 0) + 1 >= _PATIENCE)
        }
        if lasting or in_a_row:
            passes = self._limit.call(self._passes_probe, stop)
            if passes is None:
                return Asked(stopped=BUDGET_ENDED)
            if not passes:
                return Asked(stopped=verdicts.stopped or f"{self.fingerprint}: fails the probe", broken=True)
        self._backlog.add(tenant, [query for query, _ in verdicts.failed])
        refused = len(verdicts.failed) if again else 0
        if lasting and not self._decline(asked, lasting):
            return Asked(stopped=BUDGET_ENDED)
        stopped = BUDGET_ENDED if capped else ""
        if again and not lasting and not verdicts.rewards:
            stopped = stopped or "they are asked about again in the next round"
        return Asked(refused=refused, stopped=stopped, more=not stopped)

    def _ask(self, fresh: Sequence[Observation], left: Budget, answers: Answers, given_up: Event) -> Verdicts | None:
        """Verdicts on *fresh* pairs; None where not even the probe of the judge can be paid for."""
        if not self._judge.knows_some:
            keys = [pair_key(self.fingerprint, PROBE_QUERY, text) for text in (PROBE_GOOD, PROBE_BAD)]
            if len(answers.get(keys)) < len(keys):
                if not self._affords_probe(left):
                    return None
                check_once(self._judge, answers, price=self._price)
                left = self._left()
        return judge_all(
            self._plan(fresh, left),
            self._judge,
            answers,
            concurrency=self._concurrency,
            seconds=_CALL_SHARE * self._limit.seconds,
            stop=given_up,
        )

    def _passes_probe(self, given_up: Event) -> bool | None:
        """Whether the judge tells good from bad now, asked as about any pair; None where that cannot be paid for."""
        left = self._left()
        if not self._affords_probe(left):
            return None
        verdicts = judge_all(
            self._plan([_PROBE], left),
            self._judge,
            UncachedAnswers(self._queue.answers()),
            seconds=_CALL_SHARE * self._limit.seconds,
            stop=given_up,
        )
        rewards = verdicts.rewards.get(_PROBE.query_id, {})
        return len(rewards) == len(_PROBE.candidates) and rewards["good"] - rewards["bad"] >= PROBE_MARGIN

    def _affords_probe(self, left: Budget) -> bool:
        ahead = self._judge.forecast(PROBE_QUERY, [PROBE_GOOD, PROBE_BAD])
        enough = left.pairs is None or left.pairs >= len(_PROBE.candidates)
        return enough and Ledger(left, self._price).admits(ahead)

    def _decline(self, asked: Sequence[Observation], pairs: AbstractSet[tuple[str, str]]) -> int:
        """Write down that the judge declined *pairs*; gives for how many the day's budget of pairs was enough."""
        keys = {
            pair_key(self.fingerprint, one.query, text)
            for one in asked
            for document, text in one.candidates
            if (one.query_id, document) in pairs
        }
        left = self._left().pairs
        paid_for = sorted(keys)[: None if left is None else int(left)]
        self._queue.answers(asked).put(self.fingerprint, dict.fromkeys(paid_for, Paid(None)))
        return len(paid_for)

    def _plan(self, observations: Sequence[Observation], budget: Budget) -> Plan:
        deepest = max((len(one.candidates) for one in observations), default=1)
        return Plan(observations, (max(1, deepest),), budget, self._price)

    def _left(self) -> Budget:
        """What is left of the day's budget."""
        spent = self._queue.spent()

        def left(cap: float | None, gone: float) -> float | None:
            return None if cap is None else max(0.0, cap - gone)

        budget = self._budget
        return Budget(left(budget.pairs, spent.pairs), left(budget.tokens, spent.tokens), left(budget.usd, spent.usd))

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
