"""Judging served queries under a budget: calls are made side by side, and each answer is kept as it comes.

Stopping and continuing equals never stopping: caps count the cost of all pairs of a result, also of those
that an earlier run paid for, and every answer is kept as it comes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

import numpy as np

from tttembed_rag.clients.retrying import RefusedTextsError
from tttembed_rag.clients.usage import Meter, Usage, metered
from tttembed_rag.errors import JudgeError, RewardError, check_count
from tttembed_rag.judges.contract import Judge, Scores, checked_rewards, pairs_per_call, scored_many
from tttembed_rag.judges.examination import check_answers
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.calls import THREADS, Calls, EndedError, LateError
from tttembed_rag.judging.plan import Plan, Progress, Verdicts, verdicts_of
from tttembed_rag.judging.spending import Account, Charge, Ledger
from tttembed_rag.judging.walk import JudgeCall, Walk
from tttembed_rag.system.background import Waiter

_log = logging.getLogger(__name__)
# Calls that fail one after the other before the judge is in doubt.
_FAILURES = 3
# Calls that are refused for what stands in them, one after the other, before that is not believed.
_REFUSALS = 100
# How often a judge in doubt may show by the first question of its examination that it is well.
_CHANCES = 10
# Seconds between looks at whether others, who examine the judge now, have an answer.
_POLL = 0.1
# What stands behind the last call.
_NO_MORE = JudgeCall((), Charge((), Usage()))


def judge_all(
    plan: Plan,
    judge: Judge,
    cache: Answers,
    *,
    concurrency: int = 8,
    watch: Callable[[Progress], None] | None = None,
    seconds: float | None = None,
    stop: Event | None = None,
    examine: bool = False,
) -> Verdicts:
    """Score the pairs of *plan* that *cache* has no answer for, until the plan or a cap ends.

    Every answer is kept as it comes. A cap is never exceeded while judges use no more than they
    forecast. A judge that fails three times in a row ends the run, and the scores so far are kept.

    Args:
        plan: The pairs and the caps.
        judge: The judge.
        cache: Answers of earlier runs; new answers are written to it.
        concurrency: Calls in flight at once; more than 128 are 128.
        watch: Called with the progress after every answer.
        seconds: How long a call may take before it is left behind as failed; None is no limit.
        stop: Once it is set, no further call is made.
        examine: Whether the judge must pass the examination of `check_judge` before it is asked anything else; and
            where calls fail in a row, it is asked on as long as its first question is answered well again, ten times
            at most. All of that is paid for.

    Raises:
        JudgeError: The judge fails its examination before it was asked anything else.
    """
    account = Ledger(plan.budget, plan.price, cache, judge.fingerprint)
    run = Run(account, plan, judge, concurrency=concurrency, watch=watch, seconds=seconds, stop=stop, examine=examine)
    return run.verdicts()


class Run:
    """One run of a plan under an account: so many calls under way at once, each settled as it ends.

    The caps of *plan* are not looked at: *account* keeps its own. All other arguments are those of `judge_all`, but for
    *wary*, which says that the judge is not trusted: an error of any kind is one of its calls, and a score off its
    scale is none. An answer without any score for several documents has failed: a server in trouble says NaN to all.
    Its calls have used *usage*, which has cost *usd*.
    """

    def __init__(
        self,
        account: Account,
        plan: Plan,
        judge: Judge,
        *,
        concurrency: int = 8,
        watch: Callable[[Progress], None] | None = None,
        seconds: float | None = None,
        stop: Event | None = None,
        examine: bool = True,
        wary: bool = False,
    ) -> None:
        judge.scale.check_calibrated()  # before anything is paid
        check_count("concurrency", concurrency)
        self.account, self._judge, self._wary = account, judge, wary
        # One call about many queries is tokenised while the other one is read; room is left for calls left behind.
        self._concurrency = min(concurrency, 2 if pairs_per_call(judge) else THREADS.most // 2)
        self._watch, self._stop = watch or (lambda _: None), stop or Event()
        self._walk = Walk(plan, judge, account, examine=examine)
        self._under_way = Calls[tuple[JudgeCall, Meter, Waiter]](judge.fingerprint, seconds, self._stop)
        # How often the judge may be examined again, and why it is.
        self._chances = _CHANCES if examine else 0
        self._why: str | None = None
        self._failures = self._refusals = 0
        self._failed: dict[bytes, JudgeError] = {}
        self.usage, self.usd = Usage(), 0.0
        # Why the judge is asked no more: it broke down, or a cap has no room for its examination.
        self._stopped, self._capped = "", ""

    def verdicts(self) -> Verdicts:
        """The verdicts; an error is raised after the answers under way, which cost money, are kept."""
        calls, more = self._walk.calls(), True
        try:
            while more or self._calls:
                more = more and not (self._stopped or self._capped or self._stop.is_set())
                if more and len(self._calls) < self._concurrency and not self._is_examining:
                    call = next(calls, _NO_MORE)
                    more = call is not _NO_MORE
                    if more and call is not None:
                        self._begin(call)
                        continue
                if self._calls:
                    self._end(*self._under_way.ended())
                    self._watch(self._progress)
                elif more:
                    time.sleep(_POLL)
        except Exception:
            while self._calls:
                with suppress(Exception):  # the first error is raised
                    self._end(*self._under_way.ended())
            raise
        finally:
            calls.close()
        return self._verdicts()

    def examined(self) -> Verdicts:
        """No verdicts: `Verdicts.stopped` says whether the judge fails its examination now.

        A judge that has passed it before is asked the first question alone.
        """
        self._doubt("")
        while self._calls:
            self._end(*self._under_way.ended())
        return self._verdicts()

    def _begin(self, call: JudgeCall) -> None:
        with metered() as meter:
            waiter = Waiter()
            future = waiter.begin(THREADS, partial(scored_many, self._judge, call.questions, self._concurrency))
        self._under_way.begin((call, meter, waiter), future)

    def _end(self, begun: tuple[JudgeCall, Meter, Waiter], future: Future[list[Scores]]) -> None:
        """Settle a call that has ended, and keep its scores."""
        call, meter, waiter = begun
        try:
            scores = self._scores(future)
            if call.examines:
                check_answers(self._judge, scores)
        except EndedError as exc:  # what it costs is not known, so that its charge stays
            waiter.leave()
            self._stopped = str(exc) if call.examines else self._stopped
        except (JudgeError, RewardError) as exc:
            if is_late := isinstance(exc, LateError):
                waiter.leave()
            self._pay(call, call.charge.usage if is_late else meter.usage, {})  # what a late one costs is not known
            if call.examines:
                self._fail_examination(exc)
            elif isinstance(exc, RewardError):
                raise
            else:
                self._fail(call, exc)
        else:
            silent = not meter.is_fed and any(text.strip() for _, texts in call.questions for text in texts)
            used = call.charge.usage if silent else meter.usage  # a cap can only hold if something is counted
            keys, share = call.charge.pairs, len(scores)
            paid = (used.tokens / share, self.account.price.of(used) / share)
            answers = {key: Paid(score, *paid) for key, score in zip(keys, scores, strict=True)}
            self._walk.answered.update(answers)
            if not call.examines:
                self._failures = self._refusals = 0
            self._pay(call, used, answers)

    def _scores(self, future: Future[list[Scores]]) -> Scores:
        """The judge's scores, each of which is checked here, and nowhere else."""
        try:
            answer = [score for scores in future.result() for score in scores]
        except (CancelledError, asyncio.CancelledError) as exc:
            raise JudgeError(f"{self._judge.fingerprint}: cancelled its own call") from exc
        except (Exception, SystemExit) as exc:
            if isinstance(exc, JudgeError) or not self._wary:
                raise
            raise JudgeError(f"{self._judge.fingerprint}: {type(exc).__name__}:", str(exc)) from exc
        scores = _sensible(self._judge, answer) if self._wary else answer
        checked_rewards(self._judge, scores)
        return [None if score is None else float(score) for score in scores]

    def _pay(self, call: JudgeCall, used: Usage, answers: Mapping[bytes, Paid]) -> None:
        self.account.settle(call.charge, used, answers)
        self.usage += used
        self.usd += self.account.price.of(used)

    def _fail(self, call: JudgeCall, error: JudgeError) -> None:
        """Note a call that failed; several in a row put the judge in doubt, and many about texts that are refused."""
        _log.warning("not judged: %s", error.brief)
        self._failed |= dict.fromkeys(call.charge.pairs, error)
        is_refused = isinstance(error, RefusedTextsError)
        self._failures, self._refusals = self._failures + (not is_refused), self._refusals + is_refused
        well = self._failures < _FAILURES and self._refusals < _REFUSALS
        if well or self._is_examining or self._stopped or self._capped:
            return
        if self._chances and not isinstance(error, LateError):
            self._doubt(error.brief)
        else:
            self._stopped = error.brief

    def _doubt(self, why: str) -> None:
        """Examine the judge again, and ask nothing else before its answer."""
        self._why, self._failures, self._refusals, self._chances = why, 0, 0, self._chances - 1
        call = self._walk.examination()
        if call is None:
            self._capped = self.account.ended
        else:
            self._begin(call)

    def _fail_examination(self, error: JudgeError | RewardError) -> None:
        """A judge that fails its examination is refused before anything else was asked, and left alone later."""
        if self._why is None:
            raise error
        self._stopped = f"{self._judge.fingerprint}: fails its examination; {self._why}" if self._why else str(error)

    @property
    def _calls(self) -> list[JudgeCall]:
        return [call for call, *_ in self._under_way.keys()]  # noqa: SIM118 (it is no mapping)

    @property
    def _is_examining(self) -> bool:
        return any(call.examines for call in self._calls)

    @property
    def _progress(self) -> Progress:
        waiting = sum(len(call.charge.pairs) for call in self._calls if not call.examines)
        return Progress(self._walk.pairs - waiting, self._walk.cached, self.usage, self._walk.usd + self.usd)

    def _verdicts(self) -> Verdicts:
        walk = self._walk
        scores = [
            (query, document, paid.score if (paid := walk.answered.get(key)) else None)
            for query, document, key in walk.reached
        ]
        failed = {(query, document): self._failed[key] for query, document, key in walk.reached if key in self._failed}
        stopped = self._stopped or self._capped or walk.stopped
        verdicts = verdicts_of(self._judge.scale, scores, self._progress)
        return replace(verdicts, stopped=stopped, failed=failed, broken=bool(self._stopped))


def _sensible(judge: Judge, answer: Sequence[object]) -> Scores:
    """The scores of an answer; None where it has none, or one that is not on the scale of *judge*.

    Raises:
        JudgeError: There is no score for any of several documents, or for the only one a score off the scale.
    """
    numbers = np.array([_number(score) for score in answer], dtype=np.float64)
    held = judge.scale.holds(numbers)
    nonsense = sum(score is not None for score, holds in zip(answer, held, strict=True) if not holds)
    if not held.any() and (nonsense or len(answer) > 1):
        raise JudgeError(f"{judge.fingerprint}: expected scores on its scale {judge.scale}, got {answer[0]!r:.40}")
    if nonsense:
        _log.warning("%s: %d of %d scores are off its scale %s", judge.fingerprint, nonsense, len(answer), judge.scale)
    return [score if holds else None for score, holds in zip(numbers.tolist(), held, strict=True)]


def _number(score: Any) -> float:
    """A score as a number, NaN where it is none."""
    try:
        return math.nan if score is None else float(score)
    except (TypeError, ValueError):
        return math.nan
