"""Threads that keep no process from ending, and one event loop in such a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Semaphore, Thread
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


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The loop, in a daemon thread of its own, that all coroutines of this package run on which a plain call waits for.

    Where one of them blocks it, it is left behind: `event_loop.cache_clear` lets there be another one.
    """
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonThreads())
    Thread(target=loop.run_forever, name="tttembed-loop", daemon=True).start()
    return loop


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=event_loop.cache_clear)
