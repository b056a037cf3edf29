"""Asking a judge about what waits, within what is left of the day's budget, and never longer than bearable.

Every answer is kept by the store as soon as it is known, so whoever is killed here has lost nothing and
pays for nothing twice.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

from tttembed_rag.errors import InputError, JudgeError, StoreError, TTTEmbedError
from tttembed_rag.judges.cache import Answers, Paid, pair_key
from tttembed_rag.judges.contract import (
    PROBE_BAD,
    PROBE_GOOD,
    PROBE_QUERY,
    Judge,
    Scores,
    documents_per_call,
    forecast_of,
    rewards_of,
)
from tttembed_rag.judges.feedback import FeedbackJudge
from tttembed_rag.judges.spending import Budget, Ledger, Price, Usage, metered, record
from tttembed_rag.judging import BUDGET_ENDED, Observation, Plan, Verdicts, check_once, judge_all
from tttembed_rag.stores import Store

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

# Queries judged at a time: between two such steps verdicts are written, and a worker that is told to ends.
_QUERIES = 16
# Seconds that a step may still take once the worker is told to end.
_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking.

    Attributes:
        scored: Verdicts written.

        stopped: Why not all that waits was judged; empty if it was.

        broken: Whether the judge broke down: it is not to be asked about anything else now.

        failed: Queries with pairs that the judge gave no answer to.
    """

    scored: int = 0
    stopped: str = ""
    broken: bool = False
    failed: int = 0


class Wary:
    """A judge whose nonsense is no verdict: NaN and scores off its scale count as declined.

    An error of any kind is a `JudgeError`, and so is an answer that has not one score for several documents (a
    server in trouble says NaN to everything; nobody but `FeedbackJudge` has nothing to say of a whole result list):
    those pairs are asked about again another day. What it cost counts against the budget all the same.

    Args:
        judge: Whom to ask.

        answers: Where what it cost is counted.

        price: What its usage costs.
    """

    def __init__(self, judge: Judge, answers: Answers, price: Price) -> None:
        self._judge = judge
        self._answers = answers
        self._price = price
        self.scale = judge.scale
        self.fingerprint = judge.fingerprint
        self.documents_per_call = documents_per_call(judge)
        # Feedback knows the pairs it was given, and costs nothing: no probe, no suspicion.
        self.knows_some = isinstance(judge, FeedbackJudge)

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """What the judge forecasts."""
        return forecast_of(self._judge, query, documents)

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """The judge's sensible scores."""
        with self._checked():
            return self._sensible(self._judge.score(query, documents), len(documents))

    async def ascore(self, query: str, documents: Sequence[str]) -> Scores:
        """The same, without blocking the event loop."""
        with self._checked():
            return self._sensible(await self._judge.ascore(query, documents), len(documents))

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Around a call: any error is a `JudgeError`, and a failed call that was paid for is written down."""
        with metered() as meter:
            try:
                yield
                failed: Exception | None = None
            except Exception as exc:  # noqa: BLE001 (whatever a judge raises; told by whoever catches the JudgeError)
                failed = exc
        used = meter.usage
        if meter.heard:
            record(used)
        if failed is None:
            return
        if used != Usage():
            # No pair has this address: the answer is worth nothing and not kept, but it was paid for.
            self._answers.put(self.fingerprint, {os.urandom(32): Paid(None, used.tokens, self._price.of(used))})
        if isinstance(failed, JudgeError):
            raise failed
        raise JudgeError(f"{self.fingerprint}: {type(failed).__name__}: {failed}") from failed

    def _sensible(self, said: Sequence[float | None], wanted: int) -> Scores:
        if len(said) != wanted:
            raise JudgeError(f"{self.fingerprint}: expected {wanted} scores, got {len(said)}")
        scores = [self._on_scale(score) for score in said]
        nonsense = sum(one is None and other is not None for one, other in zip(scores, said, strict=True))
        if scores.count(None) == wanted and (nonsense or (wanted > 1 and not self.knows_some)):
            raise JudgeError(f"{self.fingerprint}: expected scores on its scale {self.scale}, got {said[0]!r:.40}")
        if nonsense:
            _log.warning("%s: %d of %d scores are off its scale %s", self.fingerprint, nonsense, wanted, self.scale)
        return scores

    def _on_scale(self, score: float | None) -> float | None:
        try:
            return None if score is None or math.isnan(rewards_of(self._judge, [float(score)])[0]) else float(score)
        except (TypeError, ValueError):
            return None


class Asking:
    """Has a judge score what waits in a store.

    Args:
        store: Where pairs wait and answers are kept.

        judge: Who judges.

        budget: Caps on what all judges of the store may cost in a day (UTC).

        price: What the judge's usage costs.

        concurrency: Calls in flight at once.

        seconds: How long a step of `_QUERIES` queries may take before the judge counts as broken.
    """

    def __init__(
        self, store: Store, judge: Judge, *, budget: Budget, price: Price, concurrency: int, seconds: float
    ) -> None:
        Plan([], budget=budget, price=price)  # refuses a cap on money without a price
        judge.scale.to_unit(rewards_of(judge, []))  # and an unbounded scale
        if concurrency < 1 or not seconds > 0:
            raise InputError(f"judge: expected concurrency >= 1 and seconds > 0, got {concurrency} and {seconds:g}")
        self._store = store
        self._judge = Wary(judge, store.answers(), price)
        self._budget, self._price = budget, price
        self._concurrency, self._seconds = concurrency, seconds
        self._late: Thread | None = None

    @property
    def fingerprint(self) -> str:
        """Of the judge."""
        return self._judge.fingerprint

    def judge(self, tenant: str, stop: Event, check: Callable[[], object]) -> Asked:
        """Score what waits for *tenant*, newest queries first, until all is done, a cap is reached or *stop* is set.

        Before every `_QUERIES` queries *check* is called, whose errors end it.
        """
        if self._late is not None and self._late.is_alive():
            return Asked(0, f"{self.fingerprint}: still has not answered what it was asked before", broken=True)
        scored, tried, failed = 0, set[str](), 0
        while not stop.is_set():
            check()
            waiting = self._store.waiting(self.fingerprint, tenant=tenant, limit=_QUERIES + failed)
            some = [one for one in waiting if one.query_id not in tried]
            failed = len(waiting) - len(some)
            if not some:
                break
            tried.update(one.query_id for one in some)
            try:
                asked = self._judge_some(some, tenant, stop)
            except StoreError:
                raise
            except TTTEmbedError as exc:
                return Asked(scored, str(exc), broken=True)
            scored += asked.scored
            if asked.stopped:
                return replace(asked, scored=scored)
        return Asked(scored, f"{failed} queries have pairs without an answer" if failed else "", failed=failed)

    def _judge_some(self, some: Sequence[Observation], tenant: str, stop: Event) -> Asked:
        answers = self._store.answers(some)
        known, fresh = self._parted(some, answers)
        scored = 0
        if known:
            scored = self._keep(judge_all(self._plan(known, Budget()), self._judge, answers), tenant)
        if not fresh:
            return Asked(scored)
        left = self._left()
        if left.pairs is not None and left.pairs < 1:
            return Asked(scored, f"budget: {self._budget.pairs:g} pairs of today are spent")
        verdicts = self._in_time(lambda: self._ask(fresh, left, answers), stop)
        if verdicts is None:
            return Asked(scored, BUDGET_ENDED)
        scored += self._keep(verdicts, tenant)
        return Asked(scored, verdicts.stopped, broken=verdicts.stopped not in ("", BUDGET_ENDED))

    def _ask(self, fresh: Sequence[Observation], left: Budget, answers: Answers) -> Verdicts | None:
        """Verdicts on *fresh* pairs; None where not even the probe of the judge can be paid for."""
        if not self._judge.knows_some:
            ahead = self._judge.forecast(PROBE_QUERY, [PROBE_GOOD, PROBE_BAD])
            keys = [pair_key(self.fingerprint, PROBE_QUERY, text) for text in (PROBE_GOOD, PROBE_BAD)]
            if len(answers.get(keys)) < len(keys):
                if not Ledger(left, self._price).admits(ahead):
                    return None
                check_once(self._judge, answers, price=self._price)
                left = self._left()
        return judge_all(self._plan(fresh, left), self._judge, answers, concurrency=self._concurrency)

    def _plan(self, observations: Sequence[Observation], budget: Budget) -> Plan:
        deepest = max((len(one.candidates) for one in observations), default=1)
        return Plan(observations, (max(1, deepest),), budget, self._price)

    def _left(self) -> Budget:
        """What is left of the day's budget."""
        spent = self._store.spent()

        def left(cap: float | None, gone: float) -> float | None:
            return None if cap is None else max(0.0, cap - gone)

        budget = self._budget
        return Budget(left(budget.pairs, spent.pairs), left(budget.tokens, spent.tokens), left(budget.usd, spent.usd))

    def _parted(self, some: Sequence[Observation], answers: Answers) -> tuple[list[Observation], list[Observation]]:
        """What is answered already (by a worker that was killed, or for other ids), and what is to be asked."""
        keys = {
            (one.query_id, document): pair_key(self.fingerprint, one.query, text)
            for one in some
            for document, text in one.candidates
        }
        answered = answers.get(list(dict.fromkeys(keys.values())))

        def part(known: bool) -> list[Observation]:
            parts = [
                replace(
                    one,
                    candidates=[pair for pair in one.candidates if (keys[one.query_id, pair[0]] in answered) == known],
                )
                for one in some
            ]
            return [one for one in parts if one.candidates]

        return part(known=True), part(known=False)

    def _keep(self, verdicts: Verdicts, tenant: str) -> int:
        return self._store.judged(self.fingerprint, verdicts, tenant=tenant) if verdicts.rewards else 0

    def _in_time(self, call: Callable[[], ResultT], stop: Event) -> ResultT:
        """What *call* returns, in a thread that is left alone when it takes too long."""
        box: SimpleQueue[tuple[ResultT | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                box.put((call(), None))
            except BaseException as exc:  # noqa: BLE001 (raised again where it is waited for)
                box.put((None, exc))

        thread = Thread(target=run, name="tttembed-judge", daemon=True)
        thread.start()
        ends = time.monotonic() + self._seconds
        while True:
            try:
                result, error = box.get(timeout=0.1)
            except Empty:
                if stop.is_set():
                    ends = min(ends, time.monotonic() + _GRACE)
                if time.monotonic() >= ends:
                    self._late = thread
                    raise JudgeError(f"{self.fingerprint}: no answer within {self._seconds:g} s") from None
                continue
            if error is not None:
                raise error
            return result  # type: ignore[return-value]  # without an error it is there
