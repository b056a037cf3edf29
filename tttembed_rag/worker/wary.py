"""A judge that is not trusted: it may raise anything, answer nonsense, or never answer."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

import numpy as np

from tttembed_rag.errors import JudgeError
from tttembed_rag.judges.contract import Judge, Scores, documents_per_call, forecast_of
from tttembed_rag.judging.cache import Answers, Paid
from tttembed_rag.judging.running import LateError, is_cancelled
from tttembed_rag.judging.spending import Price
from tttembed_rag.models.usage import Usage, metered, report_usage

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

# Seconds that a call may still take once the worker is told to end.
_GRACE = 10.0
# Calls left behind that may still be under way when another one begins.
_MOST_LEFT = 8


class Wary:
    """A judge with scores that are sensible or None: NaN and scores off its scale count as declined.

    An error of any kind is a `JudgeError` (also `SystemExit`, and a `CancelledError` of its own making), and so is an
    answer without any score for several documents: a server in trouble says NaN to everything. Those pairs are asked
    about again another day. What the answer cost counts against the budget all the same.

    Args:
        judge: The judge to ask.

        answers: Where the cost of failed calls is counted.

        price: What the judge's usage costs.
    """

    def __init__(self, judge: Judge, answers: Answers, price: Price) -> None:
        self._judge = judge
        self._answers = answers
        self._price = price
        self.scale = judge.scale
        self.fingerprint = judge.fingerprint
        self.documents_per_call = documents_per_call(judge)

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """The judge's forecast."""
        return forecast_of(self._judge, query, documents)

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """The judge's sensible scores."""
        with self._checked(query, documents):
            return self._sensible(self._judge.score(query, documents), len(documents))

    async def ascore(self, query: str, documents: Sequence[str]) -> Scores:
        """The same, without blocking the event loop."""
        with self._checked(query, documents):
            return self._sensible(await self._judge.ascore(query, documents), len(documents))

    @contextmanager
    def _checked(self, query: str, documents: Sequence[str]) -> Iterator[None]:
        """Around a call: any error is a `JudgeError`, and a failed call that was paid for is written down.

        A call that was left behind may be paid for all the same: its forecast is written down.
        """
        failed: BaseException | None = None
        with metered() as meter:
            try:
                yield
            except (Exception, asyncio.CancelledError, SystemExit) as exc:  # noqa: BLE001 (it is told where it is caught)
                failed = exc
        used = meter.usage
        if meter.heard:
            report_usage(used)
        if failed is None:
            return
        late = isinstance(failed, asyncio.CancelledError) and is_cancelled()
        if late and not meter.heard:
            used = self.forecast(query, documents)
        if used != Usage():
            # A random address, which no pair has: the answer is worth nothing and not kept, but it was paid for.
            self._answers.put(self.fingerprint, {os.urandom(32): Paid(None, used.tokens, self._price.of(used))})
        if late or isinstance(failed, JudgeError):
            raise failed
        raise JudgeError(f"{self.fingerprint}: {type(failed).__name__}: {failed}") from failed

    def _sensible(self, answer: Sequence[float | None], documents: int) -> Scores:
        """The scores of an answer, checked once; None where there is none and where it is nonsense."""
        if len(answer) != documents:
            raise JudgeError(f"{self.fingerprint}: expected {documents} scores, got {len(answer)}")
        numbers = np.array([_number(score) for score in answer], dtype=np.float64)
        held = self.scale.holds(numbers)
        scores = [score if holds else None for score, holds in zip(numbers.tolist(), held.tolist(), strict=True)]
        nonsense = sum(score is None and given is not None for score, given in zip(scores, answer, strict=True))
        if scores.count(None) == documents and (nonsense or documents > 1):
            raise JudgeError(f"{self.fingerprint}: expected scores on its scale {self.scale}, got {answer[0]!r:.40}")
        if nonsense:
            _log.warning("%s: %d of %d scores are off its scale %s", self.fingerprint, nonsense, documents, self.scale)
        return scores


def _number(score: float | None) -> float:
    """A score as a number, NaN where it is none."""
    try:
        return math.nan if score is None else float(score)
    except (TypeError, ValueError):
        return math.nan


class TimeLimit:
    """Makes calls in a thread, and waits for each no longer than some seconds.

    A call that is late is left behind and told to stop; the next call has a thread of its own.

    Args:
        judge: Fingerprint of the judge, for messages.

        seconds: How long a call may take.
    """

    def __init__(self, judge: str, seconds: float) -> None:
        self._judge, self.seconds = judge, seconds
        self._left_behind: list[Thread] = []

    def check(self) -> None:
        """Refuse another call where many that were left behind are still under way, with a JudgeError."""
        self._left_behind = [thread for thread in self._left_behind if thread.is_alive()]
        if len(self._left_behind) >= _MOST_LEFT:
            raise JudgeError(f"{self._judge}: has not answered several calls of before")

    def call(self, function: Callable[[Event], ResultT], stop: Event) -> ResultT:
        """What *function* returns or raises; once *stop* is set it has a few seconds more.

        Args:
            function: Is given an event that is set once it should begin nothing more: half of these seconds before it
                is left behind, so that it can return what it has.

            stop: Set where the worker is told to end.

        Raises:
            LateError: It takes longer, and is left behind.
            JudgeError: The same after *stop* was set, which says nothing of what it was asked; or no call may begin.
        """
        self.check()
        box: SimpleQueue[tuple[ResultT | None, BaseException | None]] = SimpleQueue()
        given_up = Event()

        def run() -> None:
            try:
                box.put((function(given_up), None))
            except BaseException as exc:  # noqa: BLE001 (raised again where it is waited for)
                box.put((None, exc))

        thread = Thread(target=run, name="tttembed-judge", daemon=True)
        thread.start()
        ends, told = time.monotonic() + self.seconds, math.inf
        while True:
            try:
                result, error = box.get(timeout=0.1)
            except Empty:
                now = time.monotonic()
                if stop.is_set():
                    told = min(told, now)
                if now >= told + _GRACE / 2:
                    given_up.set()
                if now >= min(ends, told + _GRACE):
                    given_up.set()
                    self._left_behind.append(thread)
                    if now < ends:
                        raise JudgeError(f"{self._judge}: no answer within {_GRACE:g} s of being told to end") from None
                    raise LateError(f"{self._judge}: no answer within {self.seconds:g} s") from None
                continue
            if error is not None:
                raise error
            return result  # type: ignore[return-value]  # without an error it is there
