"""Threads that keep no process from ending, and event loops in such threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from threading import Lock, Semaphore, Thread
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet, finalize

ResultT = TypeVar("ResultT")
ParametersT = ParamSpec("ParametersT")

# Calls of one `DaemonThreads` that may be under way at once, where nothing else is said.
_MOST_THREADS = 256
# Seconds within which a loop answers, unless a coroutine blocks it.
_PATIENCE = 1.0


class DaemonThreads(ThreadPoolExecutor):
    """An executor with a daemon thread for each call: a call that never comes back keeps no process from ending.

    The threads of a plain `ThreadPoolExecutor` are joined when the interpreter ends, whatever they wait for. Of calls
    under way, those that never come back among them, there are *most* at once.
    """

    def __init__(self, most: int = _MOST_THREADS) -> None:
        super().__init__()
        self.most = most
        self._free = Semaphore(most)

    def submit(
        self, function: Callable[ParametersT, ResultT], /, *args: ParametersT.args, **kwargs: ParametersT.kwargs
    ) -> Future[ResultT]:
        """The future of a call, which begins now; a RuntimeError where too many calls have not come back."""
        if not self._free.acquire(blocking=False):
            raise RuntimeError(f"{self.most} calls have not come back")
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


class Waiter:
    """A caller that waits for a call in a thread. Coroutines of that call run on the caller's *loop*, if it has one."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop
        # Coroutines under way, each with the loop that it may block.
        self.coroutines: dict[Future[Any], EventLoop] = {}

    def begin(self, threads: DaemonThreads, call: Callable[[], ResultT]) -> Future[ResultT]:
        """The future of a *call* in one of *threads*, in a copy of the context."""
        own = copy_context()
        own.run(_WAITER.set, self)
        return threads.submit(own.run, call)

    def leave(self) -> None:
        """Wait no longer: coroutines under way are cancelled, so that the threads of the call come free."""
        for coroutine, loop in list(self.coroutines.items()):
            coroutine.cancel()
            if self.loop is None:
                loop.renew()


# Who waits for the call that is made here.
_WAITER: ContextVar[Waiter | None] = ContextVar("tttembed_waiter", default=None)


class EventLoop:
    """A loop in a daemon thread, made when it is needed: all coroutines that run on it may share their connections."""

    def __init__(self) -> None:
        self.begin()
        _LOOPS.add(self)

    def __reduce__(self) -> tuple[type[EventLoop], tuple[()]]:
        """In another process, one of its own."""
        return EventLoop, ()

    def begin(self) -> None:
        """Have no loop yet, in a forked child neither."""
        self._making = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def renew(self) -> None:
        """Leave the loop behind if a coroutine blocks it: the next call makes another one."""
        with self._making:
            if self._loop is not None:
                answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop)
                if not wait([answer], _PATIENCE).done:
                    self._loop = None

    def run(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What *coroutine* returns or raises, waited for in this thread; on its waiter's loop it runs there."""
        waiter = _WAITER.get() or Waiter()
        future = asyncio.run_coroutine_threadsafe(_outcome(coroutine), waiter.loop or self._started())
        waiter.coroutines[future] = self
        try:
            return future.result().result()
        finally:
            waiter.coroutines.pop(future)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._making:
            if self._loop is None:
                loop = self._loop = asyncio.new_event_loop()
                loop.set_default_executor(DaemonThreads())
                Thread(target=_run, args=(loop,), name="tttembed-loop", daemon=True).start()
                finalize(self, loop.call_soon_threadsafe, loop.stop).atexit = False
            return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _outcome(coroutine: Coroutine[Any, Any, ResultT]) -> Future[ResultT]:
    """What *coroutine* returns; an error that would end the loop is raised where it is waited for."""
    _WAITER.set(None)  # whom it asks must not wait for the loop that it holds up
    outcome: Future[ResultT] = Future()
    try:
        outcome.set_result(await coroutine)
    except (KeyboardInterrupt, SystemExit) as exc:
        outcome.set_exception(exc)
    return outcome


_LOOPS = WeakSet[EventLoop]()


def _begin_all() -> None:
    for loop in _LOOPS:
        loop.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)
