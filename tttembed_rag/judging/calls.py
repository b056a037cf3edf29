"""Calls of a judge, none of which is waited for longer than its limit: one that never comes back is left behind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Event
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from tttembed_rag.errors import JudgeError
from tttembed_rag.system.background import DaemonThreads

KeyT = TypeVar("KeyT")
ResultT = TypeVar("ResultT")

# Seconds that calls under way still have once a run is told to end.
_GRACE = 10.0
# Seconds between looks at whether it is.
_POLL = 0.1
# The threads in which judges are called.
THREADS = DaemonThreads()
# Calls that are made one by one, and never came back, before its caller makes no other one; and each caller's threads.
_MOST_LEFT = 8
_threads = WeakKeyDictionary[object, DaemonThreads]()


class LateError(JudgeError):
    """A call that took too long, and was left behind."""


class EndedError(JudgeError):
    """A call that was left behind because its process was told to end."""


class Calls(Generic[KeyT]):
    """Calls under way of *name*, none of which is waited for longer than *seconds*; None is no limit.

    Once *stop* is set, they have ten seconds more.
    """

    def __init__(self, name: str, seconds: float | None, stop: Event) -> None:
        self._name, self._seconds, self._stop = name, seconds, stop
        self._under_way: dict[Future[Any], tuple[KeyT, float]] = {}
        self._stopping = math.inf  # when it was seen that *stop* is set

    def keys(self) -> list[KeyT]:
        """Those of the calls under way."""
        return [key for key, _ in self._under_way.values()]

    def begin(self, key: KeyT, call: Future[Any]) -> None:
        """Wait for a *call* that has just begun."""
        self._under_way[call] = key, time.monotonic() + (math.inf if self._seconds is None else self._seconds)

    def ended(self) -> tuple[KeyT, Future[Any]]:
        """The next call that ends, with what came of it; one that is late is left behind with a `LateError`."""
        while True:
            done, _ = wait(self._under_way, timeout=_POLL, return_when=FIRST_COMPLETED)
            if done:
                call = done.pop()
                return self._under_way.pop(call)[0], call
            now = time.monotonic()
            self._stopping = min(self._stopping, now) if self._stop.is_set() else math.inf
            for call, (key, ends) in self._under_way.items():
                error: JudgeError | None = None
                if now >= ends:
                    error = LateError(f"{self._name}: no answer within {self._seconds:g} s")
                elif now >= self._stopping + _GRACE:
                    error = EndedError(f"{self._name}: no answer within {_GRACE:g} s of being told to end")
                if error is not None:
                    call.cancel()
                    del self._under_way[call]
                    left: Future[Any] = Future()
                    left.set_exception(error)
                    return key, left


def in_time(caller: object, name: str, seconds: float, function: Callable[[], ResultT], stop: Event) -> ResultT:
    """What *function* of *name* returns or raises; it is waited for as `Calls` are.

    Raises:
        JudgeError: Several calls of this *caller* have not come back, and this one is not made.
    """
    calls = Calls[None](name, seconds, stop)
    try:
        calls.begin(None, _threads.setdefault(caller, DaemonThreads(_MOST_LEFT)).submit(function))
    except RuntimeError as exc:
        raise JudgeError(f"{name}: has not answered several calls of before") from exc
    result: ResultT = calls.ended()[1].result()
    return result
