"""Judging served queries under a budget: which call comes next, which answers are kept, when to stop.

Stopping and continuing equals never stopping: caps count the cost of all pairs of a result, also of those
that an earlier run paid for, and every answer is kept as it comes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from tttembed_rag.errors import InputError, JudgeError
from tttembed_rag.judges.contract import (
    PROBE_BAD,
    PROBE_GOOD,
    PROBE_MARGIN,
    PROBE_QUERY,
    Judge,
    Scores,
    check_judge,
    documents_per_call,
    forecast_of,
    rewards_of,
)
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.plan import BUDGET_ENDED, Plan, Progress, Verdicts
from tttembed_rag.judging.spending import Ledger, Price
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.models.usage import Usage, metered
from tttembed_rag.system.background import DaemonThreads

_log = logging.getLogger(__name__)
# Calls that fail one after the other before the run ends.
_FAILURES = 3
# How often such a judge may show by its probe that it is well.
_CHANCES = 10


class Stop(Protocol):
    """Something that tells whether to stop, such as an `Event`."""

    def is_set(self) -> bool:
        """Whether to stop now."""
        ...


class LateError(JudgeError):
    """A call that took too long, and was left behind."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    query: str
    documents: list[str]
    keys: list[bytes]
    estimate: Usage


def forecast(plan: Plan, judge: Judge, cache: Answers, *, probe: bool = False) -> Progress:
    """The pairs that `judge_all` would judge and their highest cost, without asking the judge anything.

    Args:
        plan: The pairs and the caps.

        judge: The judge.

        cache: Answers of earlier runs.

        probe: Whether `check_once` comes before, and is paid for where the judge has not passed it yet.
    """
    walk = Walk(plan, judge, cache)
    usage = Usage()
    if probe and len(cache.get(probe_keys(judge))) < 2:
        usage = forecast_of(judge, PROBE_QUERY, [PROBE_GOOD, PROBE_BAD])
        walk.ledger.count(usage.tokens, plan.price.of(usage))
    for call in walk.calls():
        if call is not None:
            walk.ledger.settle(call, call.estimate)
            usage += call.estimate
    return Progress(walk.pairs, walk.cached, usage, walk.ledger.usd)


def check_once(judge: Judge, cache: Answers, *, price: Price | None = None) -> None:
    """Refuse a judge that fails the probe of `check_judge`; one that passed before is not asked again.

    The cost of the probe counts against the caps of every result of that judge in *cache*.

    Raises:
        JudgeError: It cannot tell good from bad.
    """
    keys = probe_keys(judge)
    if len(cache.get(keys)) < len(keys):
        with metered() as meter:
            passed = check_judge(judge)
        used = meter.usage if meter.heard else forecast_of(judge, PROBE_QUERY, [PROBE_GOOD, PROBE_BAD])
        cache.put(judge.fingerprint, _shared(keys, passed, used, (price or Price()).of(used)))


def probe_keys(judge: Judge) -> list[bytes]:
    """The addresses of the two pairs that a judge is probed with, the good one first."""
    return [pair_key(judge.fingerprint, PROBE_QUERY, text) for text in (PROBE_GOOD, PROBE_BAD)]


def _shared(keys: Sequence[bytes], scores: Sequence[float | None], used: Usage, usd: float) -> dict[bytes, Paid]:
    """The *scores* of one call, each with an equal share of its cost."""
    share = len(keys)
    return {key: Paid(score, used.tokens / share, usd / share) for key, score in zip(keys, scores, strict=True)}


def judge_all(
    plan: Plan,
    judge: Judge,
    cache: Answers,
    *,
    concurrency: int = 8,
    watch: Callable[[Progress], None] | None = None,
    seconds: float | None = None,
    stop: Stop | None = None,
    lenient: bool = False,
) -> Verdicts:
    """Score the pairs of *plan* that *cache* has no answer for, until the plan or a cap ends.

    Every answer is kept as it comes. A cap is never exceeded while judges use no more than they
    forecast. A judge that fails three times in a row ends the run, and the scores so far are kept; *lenient*, only one
    that fails the probe of `check_judge` then, or has passed it ten times so.

    Args:
        plan: The pairs and the caps.

        judge: The judge.

        cache: Answers of earlier runs; new answers are written to it.

        concurrency: Calls in flight at once.

        watch: Called with the progress after every answer.

        seconds: How long a call may take before it is left behind as failed; None is no limit.

        stop: Once it is set, no further call is made.

        lenient: Whether a judge that passes its probe is asked on where calls fail in a row; the probe is paid for.
    """

    async def judged() -> Verdicts:
        # A judge that never answers is left behind in a thread that keeps no process from ending.
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        return await ajudge_all(
            plan, judge, cache, concurrency=concurrency, watch=watch, seconds=seconds, stop=stop, lenient=lenient
        )

    return asyncio.run(judged())


async def ajudge_all(
    plan: Plan,
    judge: Judge,
    cache: Answers,
    *,
    concurrency: int = 8,
    watch: Callable[[Progress], None] | None = None,
    seconds: float | None = None,
    stop: Stop | None = None,
    lenient: bool = False,
) -> Verdicts:
    """`judge_all` inside a running event loop (a notebook, a server)."""
    judge.scale.check_calibrated()  # before anything is paid
    if concurrency < 1:
        raise InputError(f"concurrency: expected at least 1, got {concurrency}")
    return await _Run(
        plan, judge, cache, concurrency, watch or (lambda _: None), seconds, stop or Event(), lenient
    ).finish()


_END = _Call("", [], [], Usage())


def is_cancelled() -> bool:
    """Whether the running task is being cancelled from outside; else a `CancelledError` is the judge's own."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a plain thread
        return False
    return task is not None and task.cancelling() > 0


class Walk:
    """The calls that a plan still needs, in order, up to the call that could exceed a cap."""

    def __init__(self, plan: Plan, judge: Judge, cache: Answers) -> None:
        self._plan, self._judge, self._cache = plan, judge, cache
        self.ledger = Ledger(plan.budget, plan.price)
        self.answered: dict[bytes, Paid] = {}
        self.reached: list[tuple[str, str, bytes]] = []
        self.cached = 0
        self.stopped = ""
        self._asked: set[bytes] = set()
        self._look_up(probe_keys(judge))

    @property
    def pairs(self) -> int:
        """Number of pairs of the plan that are reached."""
        return len(self.reached)

    def calls(self) -> Generator[_Call | None, None, None]:
        """Calls to make, each reserved in the ledger, to be settled there; None: settle a running one first."""
        for observation, candidates in self._plan.visits():
            addressed = [
                (document, text, pair_key(self._judge.fingerprint, observation.query, text))
                for document, text in candidates
            ]
            self._look_up([key for _, _, key in addressed])
            for part in self._parts(addressed):
                fresh = {key: text for _, text, key in part if key not in self.answered and key not in self._asked}
                if fresh:
                    texts = list(fresh.values())
                    estimate = forecast_of(self._judge, observation.query, texts)
                    while not self.ledger.admits(estimate):
                        if not self.ledger.running:
                            self.stopped = BUDGET_ENDED
                            return
                        yield None
                    call = _Call(observation.query, texts, list(fresh), estimate)
                    self.ledger.reserve(call, estimate)
                self._asked.update(fresh)
                self.cached += sum(key in self.answered for _, _, key in part)
                self.reached += [(observation.query_id, document, key) for document, _, key in part]
                if fresh:
                    yield call

    def _look_up(self, keys: Sequence[bytes]) -> None:
        """Take the answers to *keys* from the cache; their price counts as the price of this result."""
        missing = [key for key in dict.fromkeys(keys) if key not in self.answered and key not in self._asked]
        for key, paid in self._cache.get(missing).items():
            self.answered[key] = paid
            self.ledger.count(paid.tokens, paid.usd)

    def _parts(self, addressed: Sequence[tuple[str, str, bytes]]) -> Iterator[Sequence[tuple[str, str, bytes]]]:
        size = documents_per_call(self._judge)
        for start in range(0, len(addressed), size):
            yield addressed[start : start + size]


class _Run:
    """One run of a plan: workers that take calls in turn."""

    def __init__(
        self,
        plan: Plan,
        judge: Judge,
        cache: Answers,
        concurrency: int,
        watch: Callable[[Progress], None],
        seconds: float | None,
        stop: Stop,
        lenient: bool,
    ) -> None:
        self._walk = Walk(plan, judge, cache)
        self._seconds, self._stop = seconds, stop
        # How often a judge that fails in a row may still show that it is well.
        self._chances = _CHANCES if lenient else 0
        self._judge, self._cache, self._concurrency, self._watch = judge, cache, concurrency, watch
        self._rewards: dict[bytes, float] = {}
        self._usage = Usage()
        self._failures = 0
        self._failed: dict[bytes, JudgeError] = {}
        self._stopped = ""
        self._settled = asyncio.Event()

    async def finish(self) -> Verdicts:
        """The verdicts; an error is raised after the answers under way, which cost money, are kept."""
        calls = self._walk.calls()
        ends = await asyncio.gather(*(self._work(calls) for _ in range(self._concurrency)), return_exceptions=True)
        for failed in ends:
            if failed is not None:
                raise failed
        return self._verdicts()

    async def _work(self, calls: Generator[_Call | None, None, None]) -> None:
        try:
            while not (self._stopped or self._stop.is_set()) and (call := next(calls, _END)) is not _END:
                if call is None:
                    self._settled.clear()
                    await self._settled.wait()
                    continue
                await self._answer(call)
                self._settled.set()
                self._watch(self._progress())
        finally:
            calls.close()
            self._settled.set()

    async def _answer(self, call: _Call) -> None:
        with metered() as meter:
            try:
                answer = await self._asked(call)
                scores = [None if score is None else float(score) for score in answer]
                if len(scores) != len(call.keys):
                    raise JudgeError(f"judge: expected {len(call.keys)} scores, got {len(scores)}")
            except JudgeError as exc:
                # What a call costs that is left behind is not known.
                self._walk.ledger.settle(call, call.estimate if isinstance(exc, LateError) else meter.usage)
                self._failures += 1
                self._failed |= dict.fromkeys(call.keys, exc)
                _log.warning("not judged: %s", exc)
                if self._failures >= _FAILURES and not await self._is_well():
                    self._stopped = str(exc)
                return
        self._failures = 0
        self._keep(call.keys, scores)  # raises for a score off the scale, which is never cached
        silent = not meter.heard and any(text.strip() for text in call.documents)
        used = call.estimate if silent else meter.usage  # a cap can only hold if something is counted
        answers = _shared(call.keys, scores, used, self._walk.ledger.settle(call, used))
        self._cache.put(self._judge.fingerprint, answers)
        self._walk.answered.update(answers)
        self._usage += used

    async def _is_well(self) -> bool:
        """Whether a judge that failed in a row passes its probe, and may go on; what that costs counts."""
        if not self._chances:
            return False
        self._chances, self._failures = self._chances - 1, 0
        probe = [PROBE_GOOD, PROBE_BAD]
        call = _Call(PROBE_QUERY, probe, [], forecast_of(self._judge, PROBE_QUERY, probe))
        if not self._walk.ledger.admits(call.estimate):
            return False
        self._walk.ledger.reserve(call, call.estimate)
        with metered() as meter:
            try:
                good, bad = rewards_of(self._judge, await self._asked(call)).tolist()
            except (JudgeError, ValueError):
                good = bad = 0.0
        used = meter.usage if meter.heard else call.estimate
        self._walk.ledger.settle(call, used)
        self._usage += used
        return bool(good - bad >= PROBE_MARGIN)

    async def _asked(self, call: _Call) -> Scores:
        """The judge's answer; an error where it is late, or where the judge cancels itself."""
        try:
            async with asyncio.timeout(self._seconds) as limit:
                return await self._judge.ascore(call.query, call.documents)
        except TimeoutError as exc:
            if limit.expired():
                raise LateError(f"{self._judge.fingerprint}: no answer within {self._seconds:g} s") from exc
            raise
        except asyncio.CancelledError as exc:
            if is_cancelled():
                raise
            raise JudgeError(f"{self._judge.fingerprint}: cancelled its own call") from exc

    def _progress(self) -> Progress:
        return Progress(self._walk.pairs, self._walk.cached, self._usage, self._walk.ledger.usd)

    def _keep(self, keys: Sequence[bytes], scores: Sequence[float | None]) -> None:
        """Keep the rewards of *scores*, NaN where there is none; here each score is checked, and nowhere else."""
        self._rewards.update(zip(keys, rewards_of(self._judge, scores).tolist(), strict=True))

    def _verdicts(self) -> Verdicts:
        reached, answered = self._walk.reached, self._walk.answered
        cached = {key: answered[key].score for _, _, key in reached if key in answered and key not in self._rewards}
        self._keep(list(cached), list(cached.values()))
        rewards: dict[str, dict[str, float]] = {}
        unjudged = 0
        for query, document, key in reached:
            if math.isnan(reward := self._rewards.get(key, math.nan)):
                unjudged += 1
            else:
                rewards.setdefault(query, {})[document] = reward
        failed = {(query, document): self._failed[key] for query, document, key in reached if key in self._failed}
        return Verdicts(rewards, unjudged, self._progress(), self._stopped or self._walk.stopped, failed)
