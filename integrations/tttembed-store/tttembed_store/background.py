"""Work in the background: rounds in a daemon thread, which a forked child starts again."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from threading import TIMEOUT_MAX, Event, Lock, RLock, Thread, local
from weakref import WeakSet

from tttembed_rag.errors import InputError

_log = logging.getLogger(__name__)
# Seconds before the next round after one that failed with an unexpected error.
_AFTER_FAILURE = 5.0
# Seconds that a fork waits at most for rounds in progress.
_FORK_SECONDS = 2.0


def checked_interval(argument: str, seconds: float) -> float:
    """*seconds* if a thread can wait so long, > 0; else an InputError that names the *argument*."""
    if not 0 < seconds <= TIMEOUT_MAX:
        raise InputError(f"{argument}: expected seconds in (0, {TIMEOUT_MAX:.1e}], got {seconds:g}")
    return seconds


class Loop:
    """Rounds of work in one daemon thread, from `start` until a round ends them.

    A forked child inherits no thread: its loop is *asleep* again, and is started where it is needed. A
    fork waits for the round in progress, a short while, so that the child finds no lock held and no
    module half imported.

    One round of *work* gives the seconds until the next, or None to end. *forked* is called in a forked child, where
    other threads' locks and work must be left behind. The lock *working* is held during a round, and by who does the
    same work in another thread.
    """

    def __init__(self, name: str, work: Callable[[], float | None], forked: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._work = work
        self.forked = forked
        self.begin()
        _loops.add(self)

    def begin(self) -> None:
        """Sleep, also again in a forked child."""
        # Whether it was not started yet, or has ended.
        self.asleep = True
        self._starting = Lock()
        self._woken = Event()
        self.working = RLock()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, unless it has begun; where no thread can be had now, the next call tries again."""
        with self._starting:
            if not self.asleep:
                return
            self._thread, self.asleep = Thread(target=self._run, name=self._name, daemon=True), False
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread, self.asleep = None, True
                _log.warning("%s: not started: %s", self._name, error)

    def wake(self) -> None:
        """Begin the next round at once."""
        self._woken.set()

    def join(self, timeout: float) -> None:
        """Wait for the last round, at most *timeout* seconds."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                with self.working:
                    pause = self._work()
            except Exception:  # noqa: BLE001 - of any cause: the next round may succeed
                _log.exception("%s: a round failed; another one in %.0f s", self._name, _AFTER_FAILURE)
                pause = _AFTER_FAILURE
            if pause is None:
                self.asleep = True
                return
            self._woken.wait(pause)


_loops: WeakSet[Loop] = WeakSet()


# The loops that a forking thread holds, so that none of them is within a round.
_held = local()


def _before_fork() -> None:
    until = time.monotonic() + _FORK_SECONDS
    _held.loops = [loop for loop in list(_loops) if loop.working.acquire(timeout=max(0.0, until - time.monotonic()))]


def _after_fork() -> None:
    for loop in _held.loops:
        loop.working.release()
    _held.loops = []


def _in_child() -> None:
    _held.loops = []
    for loop in list(_loops):
        loop.begin()
        loop.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
