"""A queue that a thread empties into a store: batches, tries again while the store is away, loses nothing silently."""

from __future__ import annotations

import atexit
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from threading import Condition
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from tttembed_rag.errors import StoreUnavailable, TTTEmbedError
from tttembed_rag.observations import Served
from tttembed_rag.offsets.values import TextId
from tttembed_rag.system import telemetry
from tttembed_rag.system.background import Loop, Outage, Reached

__all__ = ["ObservingStore", "Writer"]

ItemT = TypeVar("ItemT")

_log = logging.getLogger(__name__)
# Items in one transaction.
_BATCH = 200
# Seconds between two looks at an empty queue; the shortest and the longest wait for a store that is away.
_PAUSE, _RETRY, _LONGEST_RETRY = 0.2, 0.1, 5.0
# Seconds that all writers together may take at exit.
_EXIT_SECONDS = 5.0


class ObservingStore(Protocol):
    """What a store must take to be written to."""

    def observe(self, served: Iterable[Served], *, judge: str = "") -> int:
        """Write served queries in one transaction; gives how many of them: those forgotten since are left out."""
        ...

    @property
    def text_id(self) -> TextId:
        """Gives a text's id, the same whoever asks this store."""
        ...


class Writer(Generic[ItemT]):
    """Items from any thread, in a store a moment later.

    A forked child starts with an empty queue: what its parent noted, its parent writes.

    Args:
        store: An open store, or its URL.

        judge: Fingerprint of whose rewards are written.

        prepare: Items to what is written, fewer where some are left out; called in the background.

        report: Called in the background before each batch.

        renew: Called in a forked child.

        capacity: Items that may wait.

    Attributes:
        dropped: Items that found the queue full or closed.

        written: Items in the store, by its own count; a query that was served again counts again.

        forgotten: Items that the store left out, as their queries were forgotten since.

        failed: Items that the store refused, or that were lost because it stayed away.

        outage: What the store said last.
    """

    def __init__(
        self,
        store: ObservingStore | str,
        judge: str,
        *,
        prepare: Callable[[ObservingStore, list[ItemT]], list[Served]],
        report: Callable[[], None],
        renew: Callable[[], None],
        capacity: int,
    ) -> None:
        self._reached: Reached[ObservingStore] = Reached(store, _opened)
        self._judge = judge
        self._prepare = prepare
        self._report = report
        self._renew = renew
        self._capacity = capacity
        self._closed = False
        self.outage = Outage("store of served queries")
        self._start_anew()
        self._loop = Loop("tttembed-write", self._round, self._forked)
        _writers.add(self)

    @property
    def queued(self) -> int:
        """Items that wait."""
        return self._accepted.value - self._done

    def put(self, item: ItemT) -> None:
        """Take *item*, or count it as dropped; never waits."""
        if self._closed or len(self._queue) >= self._capacity:
            self.dropped.add()
            return
        self._queue.append(item)
        self._accepted.add()
        if self._loop.asleep:
            self._loop.start()

    def flush(self, timeout: float) -> bool:
        """Wait until everything put so far is written or refused; gives whether it is after *timeout* seconds."""
        until = self._accepted.value
        if self._done >= until:
            return True
        self._loop.start()
        self._loop.wake()
        with self._progress:
            return self._progress.wait_for(lambda: self._done >= until, timeout)

    def close(self, timeout: float) -> None:
        """Write what waits, at most *timeout* seconds, and end."""
        until = time.monotonic() + timeout
        self._closed = True
        self.flush(timeout)
        self._ending = True
        self._loop.wake()
        self._loop.join(max(0.0, until - time.monotonic()))
        if lost := self.queued:
            _log.error("%d served queries were not written: %s", lost, self.outage.error or "the time was over")
            self.failed += lost
            self._finish(lost)
        self._reached.close()
        _writers.discard(self)

    def _forked(self) -> None:
        self._start_anew()
        self._renew()

    def _start_anew(self) -> None:
        self._queue: deque[ItemT] = deque()
        self._batch: list[Served] = []
        self._accepted, self._done = telemetry.Tally(), 0
        self._progress = Condition()
        self._retry = _RETRY
        self._ending = False
        self.dropped = telemetry.Tally()
        self.written = self.forgotten = self.failed = 0

    def _round(self) -> float | None:
        """Write one batch; gives the seconds until the next."""
        self._report()
        try:
            store = self._reached.store()
            if not self._batch:
                some = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                self._batch = self._prepare(store, some)
                self._finish(len(some) - len(self._batch))
            if self._batch:
                began = time.perf_counter()
                with telemetry.span("capture", queries=len(self._batch)):
                    self._write(store)
                telemetry.record("tttembed.capture.duration", time.perf_counter() - began)
        except TTTEmbedError as error:  # the store itself: each query it refuses was counted
            self.outage.failed(error)
            self._retry = min(2 * self._retry, _LONGEST_RETRY)
            return None if self._ending else self._retry
        self._retry = _RETRY
        if self._queue:
            return 0.0
        return None if self._ending else _PAUSE

    def _write(self, store: ObservingStore) -> None:
        """Write the batch in one transaction; where the store refuses it, without the queries it refuses."""
        try:
            self._put(store, len(self._batch))
        except StoreUnavailable:
            raise
        except Exception:  # noqa: BLE001 - whatever refuses a batch, most of its queries may be good
            while self._batch:
                try:
                    self._put(store, 1)
                except StoreUnavailable:
                    raise
                except Exception as error:  # noqa: BLE001 - it must not hold up those behind it
                    _log.warning("a served query was refused: %r", error)
                    self.failed += 1
                    self._settle(1)
        self.outage.answered()

    def _put(self, store: ObservingStore, many: int) -> None:
        """Write the first *many* of the batch in one transaction, all but those forgotten since."""
        written = store.observe(self._batch[:many], judge=self._judge)
        self.written += written
        self.forgotten += many - written
        self._settle(many)

    def _settle(self, many: int) -> None:
        """The first *many* of the batch are written, or never will be."""
        del self._batch[:many]
        self._finish(many)

    def _finish(self, many: int) -> None:
        with self._progress:
            self._done += many
            self._progress.notify_all()


def _opened(url: str) -> ObservingStore:
    from tttembed_rag.stores import open_store

    return open_store(url)


_writers: WeakSet[Writer[Any]] = WeakSet()


def _close_all() -> None:
    until = time.monotonic() + _EXIT_SECONDS
    for writer in list(_writers):
        writer.close(max(0.0, until - time.monotonic()))


atexit.register(_close_all)
