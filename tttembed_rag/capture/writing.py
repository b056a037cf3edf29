"""A queue that a thread empties into a store: batches, tries again while the store is away, loses nothing silently."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable
from threading import Condition, Lock
from typing import Protocol
from weakref import WeakSet

from tttembed_rag.capture.preparing import Call, Preparation
from tttembed_rag.errors import StoreUnavailable, TTTEmbedError
from tttembed_rag.offsets.values import TextId
from tttembed_rag.rewards.observations import Served
from tttembed_rag.system import telemetry
from tttembed_rag.system.background import Loop, Outage, Reached

__all__ = ["ObservingStore", "Outcomes", "Writer"]

_log = logging.getLogger(__name__)
# Calls that are prepared and written together, in one transaction.
_BATCH = 200
# Bytes of calls that are prepared together, but for the last.
_BATCH_BYTES = 16 * 2**20
# Transactions that must go well before larger ones are tried, after some took too long.
_WELL = 20
# The same where texts may have to be embedded first: so that some are written every few seconds.
_EMBEDDED_BATCH = 4
# Seconds for which calls are gathered, unless they fill a batch before (small transactions take as much of a process as
# large ones); the shortest and the longest wait for a store that is away.
_PAUSE, _RETRY, _LONGEST_RETRY = 0.2, 0.1, 5.0
# Seconds without a written query after which a store is given up, when a log is closed.
_PATIENCE = 30.0
# Seconds that all writers together may take at exit: without a written query, and in all.
_EXIT_PATIENCE, _EXIT_SECONDS = 5.0, 30.0
# Seconds in which a round in progress ends: a thread in native code aborts the process when the interpreter ends.
_LAST_ROUND = 60.0


class ObservingStore(Protocol):
    """The methods of a store that a log writes to."""

    def observe(self, served: Iterable[Served], *, judge: str = "") -> int:
        """Write served queries in one transaction; gives how many of them: those forgotten since are left out."""
        ...

    def has_tenants(self) -> bool:
        """Whether there is any tenant but the shared one: whose a query without a tenant is, is not known then."""
        ...

    @property
    def text_id(self) -> TextId:
        """Gives the id of a text, the same to everybody who asks this store."""
        ...


class Outcomes:
    """How many served queries came to which end, in this process.

    Attributes:
        dropped: Raised by requests, in any thread: the queue was full or closed.

        sampled_out: Raised by requests: left out by the share, or the day's pairs were spent.

        without_tenant: Raised by requests: they came without the tenant that is required.
    """

    def __init__(self) -> None:
        self.dropped, self.sampled_out, self.without_tenant = telemetry.Tally(), telemetry.Tally(), telemetry.Tally()
        # Raised by one thread alone, the writer's.
        self._counts: Counter[str] = Counter()
        self._reported: Counter[str] = Counter()

    def add(self, outcome: str, count: int) -> None:
        """Count queries in the writer's thread."""
        self._counts[outcome] += count

    @property
    def totals(self) -> dict[str, int]:
        """The queries so far: written, dropped, sampled_out, failed, forgotten, without_tenant."""
        counts = self._counts
        return {
            "written": counts["written"],
            "dropped": self.dropped.value,
            "sampled_out": self.sampled_out.value + counts["sampled_out"],
            "failed": counts["failed"],
            "forgotten": counts["forgotten"],
            "without_tenant": self.without_tenant.value + counts["without_tenant"],
        }

    def report(self) -> None:
        """Tell telemetry of the queries since the last report."""
        for outcome, total in self.totals.items():
            if more := total - self._reported[outcome]:
                telemetry.record("tttembed.capture.queries", more, outcome=outcome)
                self._reported[outcome] = total


class Writer:
    """Calls of a log from any thread, prepared and in a store a moment later.

    A forked child starts with an empty queue: calls that its parent took, its parent writes.

    Args:
        store: An open store, or its URL.

        judge: Fingerprint of the judge that gave the recorded scores.

        preparation: Makes served queries of calls.

        capacity: Calls that may wait.

        max_bytes: Bytes of calls that may wait.

    Attributes:
        outcomes: How many calls came to which end.

        outage: What the store answered last.
    """

    def __init__(
        self, store: ObservingStore | str, judge: str, preparation: Preparation, *, capacity: int, max_bytes: int
    ) -> None:
        self._reached: Reached[ObservingStore] = Reached(store, _opened)
        self._judge = judge
        self._preparation = preparation
        self._capacity, self._max_bytes = capacity, max_bytes
        self._closed = False
        self.outage = Outage("store of served queries")
        self._start_anew()
        self._loop = Loop("tttembed-write", self._round, self._forked)
        _writers.add(self)

    @property
    def queued(self) -> int:
        """Calls that wait."""
        return self._accepted.value - self._done

    def put(self, call: Call) -> None:
        """Take a call, or count it as dropped; never waits."""
        size, bytes_enough = call.size, min(_BATCH_BYTES, self._max_bytes // 2)
        with self._weighing:
            fits = not self._closed and len(self._queue) < self._capacity and self._held + size <= self._max_bytes
            if fits:
                self._held += size
            fills = self._held - size < bytes_enough <= self._held
        if not fits:
            self.outcomes.dropped.add()
            return
        self._queue.append((call, size))
        self._accepted.add()
        if self._loop.asleep:
            _write_at_exit()
            self._loop.start()
        elif (fills or len(self._queue) == min(_BATCH, 1 + self._capacity // 2)) and not self._refusals:
            self._loop.wake()

    def flush(self, timeout: float) -> bool:
        """Wait until everything put so far is written or refused; gives whether it is after *timeout* seconds."""
        until = self._accepted.value
        if self._done >= until:
            return True
        self._loop.start()
        self._loop.wake()
        with self._progress:
            return self._progress.wait_for(lambda: self._done >= until, timeout)

    def close(self, timeout: float, patience: float = _PATIENCE) -> None:
        """Write what waits, and end.

        Args:
            timeout: Seconds that it may take.

            patience: Seconds without a query that came to an end after which the rest is given up.
        """
        until = time.monotonic() + timeout
        self._closed = True
        drained, done = False, -1
        while not drained and self._done > done:
            done = self._done
            drained = self.flush(min(patience, max(0.0, until - time.monotonic())))
        self._ending, self._given_up = True, not drained
        self._loop.wake()
        last_round = _LAST_ROUND if self._preparation.embeds else 0.0
        self._loop.join(max(min(patience, until - time.monotonic()), last_round))
        if lost := self.queued:
            _log.error("%d served queries were not written: %s", lost, self.outage.error or "the time was over")
            self._settle("failed", lost)
        self._reached.close()
        _writers.discard(self)
        self.outcomes.report()

    def _forked(self) -> None:
        self._start_anew()
        self._preparation.renew()

    def _start_anew(self) -> None:
        self.outcomes = Outcomes()
        self._queue: deque[tuple[Call, int]] = deque()
        # Bytes of the calls in the queue.
        self._held, self._weighing = 0, Lock()
        # Calls at its front that are packed; and whether more waited when a batch was taken than fitted into it.
        self._packed, self._more = 0, False
        # Queries that are written in one transaction, fewer where these take too long; and how many went well since.
        self._at_once, self._well, self._refusals = _BATCH, 0, 0
        # Served queries that the store has not answered for yet.
        self._batch: list[Served] = []
        # Calls that were put, and those that came to an end; threads wait for the latter to progress.
        self._accepted, self._done = telemetry.Tally(), 0
        self._progress = Condition()
        self._retry = _RETRY
        self._ending = self._given_up = False
        # Whether the store is known to have tenants; they are never forgotten as such.
        self._has_tenants = False

    def _round(self) -> float | None:
        """Write one batch; gives the seconds until the next."""
        self.outcomes.report()
        try:
            store = self._reached.store()
            if not self._batch:
                self._batch = self._prepared(store)
            if self._batch:
                began = time.perf_counter()
                with telemetry.span("capture", queries=len(self._batch)):
                    self._write(store)
                telemetry.record("tttembed.capture.duration", time.perf_counter() - began)
        except TTTEmbedError as error:  # of the store itself: each query that it refused was counted
            self.outage.failed(error)
            self._refusals += 1
            if self._refusals > 1:  # the store may be well, and the transaction too large for it
                self._at_once, self._well = max(1, self._at_once // 2), 0
            self._retry = min(2 * self._retry, _LONGEST_RETRY)
            self._pack()
            return None if self._ending else self._retry
        self._retry = _RETRY
        if self._queue and (self._more or self._ending) and not self._given_up:
            return 0.0
        return None if self._ending else _PAUSE

    def _pack(self) -> None:
        """Let calls that have to wait take less memory; only this thread takes calls out of the queue."""
        for place in range(self._packed, len(self._queue)):
            call, size = self._queue[place]
            packed = call.packed
            self._queue[place] = packed, packed.size
            with self._weighing:
                self._held += packed.size - size
            self._packed = place + 1

    def _prepared(self, store: ObservingStore) -> list[Served]:
        """The served queries of the next calls in the queue."""
        if not self._queue:
            return []
        self._has_tenants = self._has_tenants or store.has_tenants()
        most = _EMBEDDED_BATCH if self._preparation.embeds else _BATCH
        calls, size, lacking = list[Call](), 0, 0
        while self._queue and len(calls) < _BATCH and lacking < most and size < _BATCH_BYTES:
            call, own = self._queue.popleft()
            calls.append(call)
            size += own
            lacking += call.lacks_vectors
        self._more = bool(self._queue)
        with self._weighing:
            self._held -= size
        self._packed = max(0, self._packed - len(calls))
        self._has_tenants = self._has_tenants or any(call.tenant for call in calls)  # it will have them a moment later
        if self._has_tenants:
            kept = [call for call in calls if call.tenant is not None]
            self._leave_out(len(calls) - len(kept))
            calls = kept
        served, sampled_out, malformed = self._preparation.prepare(calls, store.text_id)
        self._settle("sampled_out", sampled_out)
        self._settle("failed", malformed)
        return served

    def _leave_out(self, count: int) -> None:
        """Count queries that came without a tenant, and say once what that means."""
        if count and not self.outcomes.totals["without_tenant"]:
            _log.warning(
                "queries without a tenant are left out, as the store has tenants: name one by context(..., tenant=), "
                'or make a log for the shared tenant with tenant=""'
            )
        self._settle("without_tenant", count)

    def _write(self, store: ObservingStore) -> None:
        """Write the batch in few transactions; those that the store refuses are halved until the bad query is alone."""
        size = self._at_once
        while self._batch:
            size = min(size, self._at_once, len(self._batch))
            try:
                self._put(store, size)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - whatever refuses a batch, most of its queries may be good
                if size > 1:
                    size //= 2
                    continue
                _log.warning("a served query was refused: %r", error)
                del self._batch[0]
                self._settle("failed", 1)
            size *= 2
            self._refusals, self._well = 0, self._well + 1
            if self._well >= _WELL:
                self._at_once, self._well = min(2 * self._at_once, _BATCH), 0
        self.outage.answered()

    def _put(self, store: ObservingStore, count: int) -> None:
        """Write the first *count* queries of the batch in one transaction, all but those forgotten since."""
        written = store.observe(self._batch[:count], judge=self._judge)
        del self._batch[:count]
        self._settle("written", written)
        self._settle("forgotten", count - written)

    def _settle(self, outcome: str, count: int) -> None:
        """Count calls that came to an end, and let the threads know that wait for them."""
        self.outcomes.add(outcome, count)
        with self._progress:
            self._done += count
            self._progress.notify_all()


def _opened(url: str) -> ObservingStore:
    from tttembed_rag.stores import open_store

    return open_store(url)


_writers: WeakSet[Writer] = WeakSet()


def _close_all() -> None:
    until = time.monotonic() + _EXIT_SECONDS
    for writer in list(_writers):
        writer.close(max(0.0, until - time.monotonic()), _EXIT_PATIENCE)


atexit.register(_close_all)
# The process that writes what waits when `multiprocessing` ends it.
_ends_with: int | None = None


def _write_at_exit() -> None:
    """In a child of `multiprocessing`, which ends without `atexit`, write what waits at its end too."""
    global _ends_with  # noqa: PLW0603 (a fact of the process)
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is None or util is None or _ends_with == os.getpid() or process.parent_process() is None:
        return
    _ends_with = os.getpid()
    util.Finalize(None, _close_all, exitpriority=10)
