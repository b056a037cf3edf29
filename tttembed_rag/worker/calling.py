"""Calls of a judge with a time limit: a call that takes longer is left behind in its thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TypeVar

from tttembed_rag.errors import JudgeError

ResultT = TypeVar("ResultT")

# Seconds that a call may still take once the worker is told to end.
_GRACE = 10.0


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
