"""Threads that keep no process from ending, and one event loop in such a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, Semaphore, Thread
from typing import Any, ParamSpec, TypeVar

ResultT = TypeVar("ResultT")
ParametersT = ParamSpec("ParametersT")

# Calls of one `DaemonThreads` that may be under way at once, where nothing else is said.
_MOST_THREADS = 256


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
