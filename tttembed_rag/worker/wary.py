"""A judge that is not trusted: it may raise anything, answer nonsense, or never answer."""

from __future__ import annotations

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
from tttembed_rag.judges.cache import Answers, Paid
from tttembed_rag.judges.contract import Judge, Scores, documents_per_call, forecast_of
from tttembed_rag.judges.feedback import FeedbackJudge
from tttembed_rag.judges.spending import Price, Usage, metered, report_usage

_log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")

# Seconds that a call may still take once the worker is told to end.
_GRACE = 10.0


class Wary:
    """A judge with scores that are sensible or None: NaN and scores off its scale count as declined.

    An error of any kind is a `JudgeError`, and so is an answer without any score for several documents: a server in
    trouble says NaN to everything, and only `FeedbackJudge` may know nothing of a whole result list. Those pairs are
    asked about again another day. What the answer cost counts against the budget all the same.

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
        # Feedback knows only the pairs it was given, and costs nothing: no probe, no suspicion.
        self.knows_some = isinstance(judge, FeedbackJudge)

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """The judge's forecast."""
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
            except Exception as exc:  # noqa: BLE001 (a judge may raise anything; it is told where the JudgeError is caught)
                failed = exc
        used = meter.usage
        if meter.heard:
            report_usage(used)
        if failed is None:
            return
        if used != Usage():
            # A random address, which no pair has: the answer is worth nothing and not kept, but it was paid for.
            self._answers.put(self.fingerprint, {os.urandom(32): Paid(None, used.tokens, self._price.of(used))})
        if isinstance(failed, JudgeError):
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
        if scores.count(None) == documents and (nonsense or (documents > 1 and not self.knows_some)):
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

    Args:
        judge: Fingerprint of the judge, for messages.

        seconds: How long a call may take.
    """

    def __init__(self, judge: str, seconds: float) -> None:
        self._judge, self._seconds = judge, seconds
        self._left_behind: Thread | None = None

    @property
    def is_exceeded(self) -> bool:
        """Whether a call that was left behind is still under way."""
        return self._left_behind is not None and self._left_behind.is_alive()

    def call(self, function: Callable[[], ResultT], stop: Event) -> ResultT:
        """What *function* returns or raises; once *stop* is set it has a few seconds more.

        Raises:
            JudgeError: It takes longer, and is left behind.
        """
        box: SimpleQueue[tuple[ResultT | None, BaseException | None]] = SimpleQueue()

        def run() -> None:
            try:
                box.put((function(), None))
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
                    self._left_behind = thread
                    raise JudgeError(f"{self._judge}: no answer within {self._seconds:g} s") from None
                continue
            if error is not None:
                raise error
            return result  # type: ignore[return-value]  # without an error it is there
