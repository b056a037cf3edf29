"""Asking a judge about what waits, within what is left of the day's budget, and never longer than bearable.

Every answer is kept by the store as soon as it is known, so whoever is killed here has lost nothing and
pays for nothing twice.

A call may fail because the judge is down, or because of what it was asked about (too long, filtered). Where calls fail
in a row, the probe is asked again, and only a judge that fails it is broken. Queries with a call that failed go behind
all others of their tenant. Pairs that fail there again, with a judge that passes the probe right after, are declined;
where such a failure may pass (a busy server) not before `_PATIENCE` of them, of which a round makes two at most.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

from tttembed_rag.errors import InputError, JudgeError, StoreError, TTTEmbedError
from tttembed_rag.judges.cache import Answers, Paid
from tttembed_rag.judges.contract import (
    PROBE_BAD,
    PROBE_GOOD,
    PROBE_MARGIN,
    PROBE_QUERY,
    Judge,
    Scores,
    documents_per_call,
    forecast_of,
    rewards_of,
)
from tttembed_rag.judges.feedback import FeedbackJudge
from tttembed_rag.judges.spending import Budget, Ledger, Price, Usage, metered, record
from tttembed_rag.judging.plan import BUDGET_ENDED, Plan, Verdicts
from tttembed_rag.judging.running import check_once, judge_all
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.models.retrying import BusyError
from tttembed_rag.observations import Observation
from tttembed_rag.stores import Store

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

# Queries judged at a time: between two such steps verdicts are written, and a worker that is told to ends.
_QUERIES = 16
# Seconds that a step may still take once the worker is told to end.
_GRACE = 10.0
# Failures that may pass before they do not.
_PATIENCE = 5
# What any judge can tell apart.
_PROBE = Observation("probe", PROBE_QUERY, [("good", PROBE_GOOD), ("bad", PROBE_BAD)])


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking.

    Attributes:
        scored: Verdicts written.

        refused: Pairs that a judge which passes the probe failed at again: declined, or left for another round.

        stopped: Why no more is asked now; empty if more may be.

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


class _Afresh:
    """Answers that are counted and kept, and not looked up.

    Args:
        answers: Where.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def get(self, _: Sequence[bytes]) -> dict[bytes, Paid]:
        """Nothing."""
        return {}

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Count *answers*, and keep those that are the first."""
        self._answers.put(judge, answers)


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
        self._judge = Wary(judge, store.judge_queue.answers(), price)
        self._budget, self._price = budget, price
        self._concurrency, self._seconds = concurrency, seconds
        self._late: Thread | None = None
        # By tenant, the queries that go behind all others, the next one first, and how often each has failed.
        self._behind: dict[str, dict[str, int]] = {}

    @property
    def fingerprint(self) -> str:
        """Of the judge."""
        return self._judge.fingerprint

    def judge(self, tenant: str, stop: Event, check: Callable[[], object]) -> Asked:
        """Score what waits of `_QUERIES` queries of *tenant*, newest first, and last those that failed before.

        Before it *check* is called, whose errors end it; it ends soon once *stop* is set.
        """
        check()
        if self._is_late:
            return Asked(stopped=f"{self.fingerprint}: still has not answered what it was asked before", broken=True)
        behind = self._behind.get(tenant, {})
        waiting = self._store.judge_queue.waiting(self.fingerprint, tenant=tenant, limit=_QUERIES + len(behind))
        some = [one for one in waiting if one.query_id not in behind][:_QUERIES]
        again = not some
        if again:
            left = {one.query_id: one for one in waiting}
            behind = {query: failures for query, failures in behind.items() if query in left}
            some = [left[query] for query in list(behind)[:_QUERIES]]
        if not some:
            self._behind.pop(tenant, None)
            return Asked()
        if behind:
            self._behind[tenant] = behind
        try:
            return self._judge_some(some, tenant, stop, again=again)
        except StoreError:
            raise
        except TTTEmbedError as exc:
            if self._is_late:  # one query on which it hangs may be enough, and must not come first again
                self._put_behind(tenant, [one.query_id for one in some])
            return Asked(stopped=str(exc), broken=True)

    @property
    def _is_late(self) -> bool:
        """Whether the judge has not answered yet what nobody waits for any more."""
        return self._late is not None and self._late.is_alive()

    def _put_behind(self, tenant: str, queries: Iterable[str]) -> None:
        behind = self._behind.setdefault(tenant, {})
        for query in dict.fromkeys(queries):
            behind[query] = behind.pop(query, 0) + 1

    def _judge_some(self, some: Sequence[Observation], tenant: str, stop: Event, *, again: bool) -> Asked:
        answers = self._store.judge_queue.answers(some)
        known, fresh = self._parted(some, answers)
        scored = 0
        if known:
            scored = self._keep(judge_all(self._plan(known, Budget()), self._judge, answers), tenant)
        if not fresh:
            if not scored:  # they wait by mistake: nothing of them can be asked
                self._put_behind(tenant, [one.query_id for one in some])
            return Asked(scored, more=bool(scored) or not again)
        left = self._left()
        if left.pairs is not None and left.pairs < 1:
            return Asked(scored, stopped=f"budget: {self._budget.pairs:g} pairs of today are spent")
        verdicts = self._in_time(lambda: self._ask(fresh, left, answers), stop)
        if verdicts is None:
            return Asked(scored, stopped=BUDGET_ENDED)
        scored += self._keep(verdicts, tenant)
        if not verdicts.failed:
            return Asked(scored, stopped=verdicts.stopped, more=not verdicts.stopped)
        return Asked(scored) + self._blamed(verdicts, fresh, tenant, stop, again=again)

    def _blamed(
        self, verdicts: Verdicts, asked: Sequence[Observation], tenant: str, stop: Event, *, again: bool
    ) -> Asked:
        """What comes of calls that failed, by whose fault that is: the judge's or that of what it was asked about."""
        capped = verdicts.stopped == BUDGET_ENDED
        in_a_row = bool(verdicts.stopped) and not capped
        queries = [query for query, _ in verdicts.failed]
        known = self._behind.get(tenant, {})
        lasting = {
            pair
            for pair, why in verdicts.failed.items()
            if again and (not isinstance(why, BusyError) or known.get(pair[0], 0) + 1 >= _PATIENCE)
        }
        if lasting or in_a_row:
            passes = self._in_time(self._passes, stop)
            if passes is None:
                return Asked(stopped=BUDGET_ENDED)
            if not passes:
                return Asked(stopped=verdicts.stopped or f"{self.fingerprint}: fails the probe", broken=True)
        self._put_behind(tenant, queries)
        refused = len(verdicts.failed) if again else 0
        if lasting and not self._decline(asked, lasting):
            return Asked(stopped=BUDGET_ENDED)
        stopped = BUDGET_ENDED if capped else ""
        if again and not lasting and not verdicts.rewards:
            stopped = stopped or "they are asked about again in the next round"
        return Asked(refused=refused, stopped=stopped, more=not stopped)

    def _ask(self, fresh: Sequence[Observation], left: Budget, answers: Answers) -> Verdicts | None:
        """Verdicts on *fresh* pairs; None where not even the probe of the judge can be paid for."""
        if not self._judge.knows_some:
            keys = [pair_key(self.fingerprint, PROBE_QUERY, text) for text in (PROBE_GOOD, PROBE_BAD)]
            if len(answers.get(keys)) < len(keys):
                if not self._affords_probe(left):
                    return None
                check_once(self._judge, answers, price=self._price)
                left = self._left()
        return judge_all(self._plan(fresh, left), self._judge, answers, concurrency=self._concurrency)

    def _passes(self) -> bool | None:
        """Whether the judge tells good from bad now, asked as about any pair; None where that cannot be paid for."""
        left = self._left()
        if not self._affords_probe(left):
            return None
        said = judge_all(self._plan([_PROBE], left), self._judge, _Afresh(self._store.judge_queue.answers()))
        rewards = said.rewards.get(_PROBE.query_id, {})
        return len(rewards) == len(_PROBE.candidates) and rewards["good"] - rewards["bad"] >= PROBE_MARGIN

    def _affords_probe(self, left: Budget) -> bool:
        ahead = self._judge.forecast(PROBE_QUERY, [PROBE_GOOD, PROBE_BAD])
        enough = left.pairs is None or left.pairs >= len(_PROBE.candidates)
        return enough and Ledger(left, self._price).admits(ahead)

    def _decline(self, asked: Sequence[Observation], pairs: AbstractSet[tuple[str, str]]) -> int:
        """Keep for *pairs* that the judge declined them; returns for how many the day's budget of pairs was enough."""
        keys = {
            pair_key(self.fingerprint, one.query, text)
            for one in asked
            for document, text in one.candidates
            if (one.query_id, document) in pairs
        }
        left = self._left().pairs
        some = sorted(keys)[: None if left is None else int(left)]
        self._store.judge_queue.answers(asked).put(self.fingerprint, dict.fromkeys(some, Paid(None)))
        return len(some)

    def _plan(self, observations: Sequence[Observation], budget: Budget) -> Plan:
        deepest = max((len(one.candidates) for one in observations), default=1)
        return Plan(observations, (max(1, deepest),), budget, self._price)

    def _left(self) -> Budget:
        """What is left of the day's budget."""
        spent = self._store.judge_queue.spent()

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
        return (
            self._store.judge_queue.judged(self.fingerprint, verdicts.rewards, tenant=tenant) if verdicts.rewards else 0
        )

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
