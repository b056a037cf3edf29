"""Work in the background: a daemon thread that a forked child starts again, and threads that keep nobody waiting."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from threading import TIMEOUT_MAX, Event, Lock, RLock, Semaphore, Thread, local
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from tttembed_rag.errors import InputError

ResultT = TypeVar("ResultT")
ParametersT = ParamSpec("ParametersT")

_log = logging.getLogger(__name__)
# Seconds before the next round after one that failed with an unexpected error.
_AFTER_FAILURE = 5.0
# Seconds that a fork waits at most for rounds in progress.
_FORK_SECONDS = 2.0
# Calls of one `DaemonThreads` that may be under way at once, where nothing else is said.
_MOST_THREADS = 256


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


class DaemonThreads(ThreadPoolExecutor):
    """An executor with a daemon thread for each call: a call that never comes back keeps no process from ending.

    The threads of a plain `ThreadPoolExecutor` are joined when the interpreter ends, whatever they wait for. Of calls
    under way, those that never come back among them, there are *most* at once.
    """

    def __init__(self, most: int = _MOST_THREADS) -> None:
        super().__init__()
        self._most = most
        self._free = Semaphore(most)

    def submit(
        self, function: Callable[ParametersT, ResultT], /, *args: ParametersT.args, **kwargs: ParametersT.kwargs
    ) -> Future[ResultT]:
        """The future of a call, which begins now; a RuntimeError where too many calls have not come back."""
        if not self._free.acquire(blocking=False):
            raise RuntimeError(f"{self._most} calls have not come back")
        future: Future[ResultT] = Future()

        def run() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(function(*args, **kwargs))
            except BaseException as exc:  # noqa: BLE001 (raised again where it is waited for)
                future.set_exception(exc)
            finally:
                self._free.release()

        try:
            Thread(target=run, name="tttembed-call", daemon=True).start()
        except RuntimeError:
            self._free.release()
            raise
        return future

    def shutdown(self, wait: bool = True, **_: Any) -> None:
        """Nothing: threads end with their calls, or with the process."""


class EventLoop:
    """A loop in a daemon thread, made when it is needed: all coroutines that run on it may share their connections."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Leave the loop behind, in a forked child or where a coroutine blocks it: the next call makes another one."""
        self._making = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What *coroutine* returns or raises, waited for in this thread."""
        with self._making:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_default_executor(DaemonThreads())
                Thread(target=self._loop.run_forever, name="tttembed-loop", daemon=True).start()
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()


# The loop of all coroutines of this package that a plain call waits for.
LOOP = EventLoop()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOOP.renew)
