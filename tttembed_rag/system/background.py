"""Work beside the requests: a daemon thread that a forked child starts again, and a store that may be away."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from math import inf
from threading import TIMEOUT_MAX, Event, Lock, RLock, Thread, local
from typing import Generic, TypeVar
from weakref import WeakSet

from tttembed_rag.errors import InputError

StoreT = TypeVar("StoreT")

_log = logging.getLogger(__name__)
# Seconds before a round is tried again that failed in a way nobody foresaw.
_AFTER_FAILURE = 5.0
# Seconds that a fork waits for rounds in progress.
_FORK_SECONDS = 2.0


def checked_interval(argument: str, seconds: float) -> float:
    """*seconds* as a time that a thread can wait for, > 0."""
    if not 0 < seconds <= TIMEOUT_MAX:
        raise InputError(f"{argument}: expected seconds in (0, {TIMEOUT_MAX:.1e}], got {seconds:g}")
    return seconds


class Loop:
    """Rounds of work in one daemon thread, from `start` until a round ends them.

    A forked child inherits no thread: its loop is *asleep* again, to be started by whoever needs it. A
    fork waits for the round in progress, a short while, so that the child finds no lock held and no
    module half imported.

    Args:
        name: Of the thread.

        work: One round; gives the seconds until the next, or None to end.

        forked: Called in a forked child, where other threads' locks and work must be left behind.

    Attributes:
        asleep: Whether nobody started it, or it ended.

        working: Held during a round.
    """

    def __init__(self, name: str, work: Callable[[], float | None], forked: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._forked = forked
        self._begin()
        _loops.add(self)

    def renew(self) -> None:
        """In a forked child: nobody started it."""
        self._begin()
        self._forked()

    def _begin(self) -> None:
        self.asleep = True
        self._starting = Lock()
        self._woken = Event()
        self.working = RLock()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, where nobody did; where no thread can be had now, the next call tries again."""
        with self._starting:
            if not self.asleep:
                return
            thread = Thread(target=self._run, name=self._name, daemon=True)
            self.asleep = False
            try:
                thread.start()
            except RuntimeError as error:
                self.asleep = True
                _log.warning("%s: not started: %s", self._name, error)
            else:
                self._thread = thread

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
            except Exception:  # noqa: BLE001 - whoever's fault it is, the next round may succeed
                _log.exception("%s: a round failed; another one in %.0f s", self._name, _AFTER_FAILURE)
                pause = _AFTER_FAILURE
            if pause is None:
                self.asleep = True
                return
            self._woken.wait(pause)


_loops: WeakSet[Loop] = WeakSet()


# The loops that a thread holds while it forks.
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
        loop.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


class Reached(Generic[StoreT]):
    """A store that is given, or opened by its URL as soon as that succeeds.

    Args:
        store: The store, or its URL.

        opened: Opens the store at a URL; what it gives must have a ``close`` without arguments.
    """

    def __init__(self, store: StoreT | str, opened: Callable[[str], StoreT]) -> None:
        self.source = store
        self._opener = opened
        self._opened: StoreT | None = None

    def store(self) -> StoreT:
        """The store.

        Raises:
            StoreUnavailable: It cannot be reached now.
            StoreError: It is none of ours.
        """
        if not isinstance(self.source, str):
            return self.source
        if self._opened is None:
            self._opened = self._opener(self.source)
        return self._opened

    def close(self) -> None:
        """Close the store if it was opened here."""
        if self._opened is not None:
            self._opened.close()  # type: ignore[attr-defined]  # what an opener gives can be closed
            self._opened = None


class Outage:
    """The time since something last answered, and one line in the log when it stops and when it is back.

    Args:
        name: What answers.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._contact: float | None = None
        self._error: str | None = None
        # When it was asked what it has not answered yet, and how long that may take.
        self._asked, self._patience = inf, 0.0
        self._told = False

    @property
    def age(self) -> float | None:
        """Seconds since the last answer; None before the first."""
        return None if self._contact is None else time.monotonic() - self._contact

    @property
    def error(self) -> str | None:
        """Why it does not answer, or for how long it has said nothing; None while it answers."""
        return self._error or self._silence()

    def asked(self, patience: float) -> None:
        """It was asked, and should say something within *patience* seconds."""
        self._asked, self._patience = time.monotonic(), patience

    def answered(self) -> None:
        """It answered."""
        if self._told:
            _log.warning("%s answers again", self._name)
        self._error, self._asked, self._told, self._contact = None, inf, False, time.monotonic()

    def failed(self, error: Exception) -> None:
        """It did not."""
        self._error, self._asked = str(error), inf
        self._tell(self._error)

    def check(self) -> None:
        """Tell where it has said nothing for too long; cheap."""
        if (why := self._silence()) is not None:
            self._tell(why)

    def _silence(self) -> str | None:
        waited = time.monotonic() - self._asked
        return f"nothing came back for {waited:.0f} s" if waited > self._patience else None

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            _log.warning("%s: does not answer: %s", self._name, why)
