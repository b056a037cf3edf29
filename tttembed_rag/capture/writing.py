"""A queue that a thread empties into a store: batches, tries again while the store is away, loses nothing silently."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from threading import Condition
from typing import TYPE_CHECKING
from weakref import WeakSet

from tttembed_rag.capture.log import Log
from tttembed_rag.capture.preparing import Call, Preparation
from tttembed_rag.errors import StoreUnavailable, TTTEmbedError
from tttembed_rag.offsets.values import TextId
from tttembed_rag.rewards.observations import Served
from tttembed_rag.serving.reached import Reached
from tttembed_rag.system import telemetry
from tttembed_rag.system.background import Loop

if TYPE_CHECKING:
    from tttembed_rag.stores import Store

_log = logging.getLogger(__name__)
# Calls that are prepared and written together, in one transaction.
_BATCH = 200
# Calls that are prepared together where texts may have to be embedded first: some are written every few seconds.
_EMBEDDED_BATCH = 4
# Seconds for which calls are gathered, unless they fill a batch before: small transactions cost as much as large ones.
_PAUSE = 0.2
# Seconds until a store that is away is tried again for the first time.
_RETRY = 0.1
# Seconds until it is tried again at most: each wait is twice the one before.
_LONGEST_RETRY = 5.0
# How many calls came to which end.
_OUTCOMES = ("written", "dropped", "sampled_out", "failed", "forgotten", "without_tenant")
# Seconds without a written query after which a store is given up, when a log is closed.
_PATIENCE = 30.0
# Seconds that all writers together may take at exit: without a written query, and in all.
_EXIT_PATIENCE, _EXIT_SECONDS = 5.0, 30.0
# Seconds in which a round in progress ends: a thread in native code aborts the process when the interpreter ends.
_LAST_ROUND = 60.0


class Writer:
    """Calls of a log from any thread, prepared and in a store a moment later.

    A forked child starts with an empty queue: calls that its parent took, its parent writes. The *log* names the judge
    that gave the recorded scores, and says whether it is vouched for. At most *capacity* calls of *max_bytes* wait.
    *reached* is the store, with what it answered last.
    """

    def __init__(
        self, store: Store | str, log: Log, preparation: Preparation, *, capacity: int, max_bytes: int
    ) -> None:
        self.reached = Reached(store, "store of served queries")
        self._log = log
        # Whether the judge is vouched for, as the store was told.
        self._told: bool | None = None
        self._preparation = preparation
        self._capacity, self._max_bytes = capacity, max_bytes
        self._closed = False
        self._start_anew()
        self._loop = Loop("tttembed-write", self._round, self._forked)
        _writers.add(self)

    @property
    def queued(self) -> int:
        """Calls that wait."""
        return self._accepted - self._done

    @property
    def counts(self) -> dict[str, int]:
        """How many calls came to which end so far."""
        with self._changed:
            return {outcome: self._counts[outcome] for outcome in _OUTCOMES}

    def put(self, call: Call) -> None:
        """Take a call, or count it as dropped; never waits."""
        size = call.size
        with self._changed:
            full = self._closed or len(self._queue) >= self._capacity or self._held + size > self._max_bytes
            if not full:
                self._queue.append((call, size))
                self._held += size
                self._accepted += 1
            fills = len(self._queue) >= min(_BATCH, 1 + self._capacity // 2) or 2 * self._held >= self._max_bytes
        if full:
            self.leave_out("dropped")
        elif self._loop.asleep:
            _write_at_exit()
            self._loop.start()
        elif fills and self._retry == _RETRY:
            self._loop.wake()

    def leave_out(self, outcome: str) -> None:
        """Count a call that does not wait."""
        with self._changed:
            self._accepted += 1
        self._settle(**{outcome: 1})

    def flush(self, timeout: float) -> bool:
        """Wait until everything put so far is written or refused; gives whether it is after *timeout* seconds."""
        until = self._accepted
        if self._done >= until:
            return True
        self._loop.start()
        self._loop.wake()
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= until, timeout)

    def close(self, timeout: float, patience: float = _PATIENCE) -> None:
        """Write what waits, for *timeout* seconds at most; give up after *patience* seconds in which nothing ended."""
        until = time.monotonic() + timeout
        self._closed = True
        drained, done = False, -1
        while not drained and self._done > done:
            done = self._done
            drained = self.flush(min(patience, max(0.0, until - time.monotonic())))
        self._ending = True
        self._loop.wake()
        last_round = _LAST_ROUND if self._preparation.embeds else 0.0
        self._loop.join(max(min(patience, until - time.monotonic()), last_round))
        if lost := self.queued:
            _log.error("%d served queries were not written: %s", lost, self.reached.error() or "the time was over")
            self._settle(failed=lost)
        self.reached.close()
        _writers.discard(self)

    def _forked(self) -> None:
        self._start_anew()
        self._preparation.renew()

    def _start_anew(self) -> None:
        # Guards the queue and the counts; told to threads that wait for calls to come to an end.
        self._changed = Condition()
        self._queue: deque[tuple[Call, int]] = deque()
        # Bytes of the calls in the queue; how many calls were put, and how many came to an end.
        self._held = self._accepted = self._done = 0
        self._counts: Counter[str] = Counter()
        # Served queries that the store has not answered for yet, and how many of them are written in one transaction.
        self._batch: list[Served] = []
        self._at_once = _BATCH
        # What made the ids in it.
        self._text_id: TextId | None = None
        # Seconds until it is tried again; more than at first where the last try failed.
        self._retry: float = _RETRY
        self._ending = False

    def _round(self) -> float | None:
        """Write one batch; gives the seconds until the next."""
        try:
            store = self.reached.store()
            if self._batch and store.text_id != self._text_id:
                _log.error("%d served queries have ids of a store that is there no more", len(self._batch))
                self._settle(failed=len(self._batch))
                self._batch = []
            if not self._batch:
                self._batch = self._prepared(store)
            more = bool(self._queue)
            if self._batch:
                began = time.perf_counter()
                with telemetry.span("capture", queries=len(self._batch)):
                    while self._batch:
                        self._write(store, self._batch[: self._at_once])
                self.reached.answered()
                telemetry.record("tttembed.capture.duration", time.perf_counter() - began)
        except TTTEmbedError as error:  # of the store itself: each query that it refused was counted
            self.reached.failed(error)
            if self._retry > _RETRY:  # the store may be well, and the transaction too large for it
                self._at_once = max(1, self._at_once // 2)
            self._retry = min(2 * self._retry, _LONGEST_RETRY)
            return None if self._ending else self._retry
        if self._ending:
            return None
        return 0.0 if more else _PAUSE

    def _prepared(self, store: Store) -> list[Served]:
        """The served queries of the next calls in the queue."""
        if not self._queue:
            return []
        has_tenants = store.has_tenants()
        calls = self._taken()
        has_tenants = has_tenants or any(call.tenant for call in calls)  # it will have them a moment later
        if has_tenants and (lost := sum(call.tenant is None for call in calls)):
            if not self._counts["without_tenant"]:
                _log.warning(
                    "queries without a tenant are left out, as the store has tenants: name one by "
                    'context(..., tenant=), or make a log for the shared tenant with tenant=""'
                )
            self._settle(without_tenant=lost)
            calls = [call for call in calls if call.tenant is not None]
        self._text_id = store.text_id
        served, sampled_out, malformed = self._preparation.prepare(calls, self._text_id)
        self._settle(sampled_out=sampled_out, failed=malformed)
        return served

    def _taken(self) -> list[Call]:
        """The first calls of the queue, as many as are prepared and written together."""
        most = _EMBEDDED_BATCH if self._preparation.embeds else _BATCH
        calls, lacking = list[Call](), 0
        with self._changed:
            while self._queue and len(calls) < _BATCH and lacking < most:
                call, size = self._queue.popleft()
                calls.append(call)
                self._held -= size
                lacking += call.known.vector is None
        return calls

    def _write(self, store: Store, served: Sequence[Served]) -> None:
        """Write the first queries of the batch in one transaction; in halves where the store refuses one of them."""
        try:
            if self._log.trusted is not self._told:
                store.trust(self._log.judge, self._log.trusted)
                self._told = self._log.trusted
            written = store.observe(served, judge=self._log.judge)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever refuses a batch, most of its queries may be good
            if len(served) > 1:
                half = len(served) // 2
                self._write(store, served[:half])
                self._write(store, served[half:])
                return
            _log.warning("a served query was refused: %r", error)
            self._settle(failed=1)
        else:
            self._settle(written=written, forgotten=len(served) - written)
        del self._batch[: len(served)]
        self._at_once, self._retry = min(_BATCH, self._at_once + 1 + self._at_once // 32), _RETRY

    def _settle(self, **ends: int) -> None:
        """Count calls that came to an end, and let the threads know that wait for them."""
        with self._changed:
            self._counts.update(ends)
            self._done += sum(ends.values())
            self._changed.notify_all()
        for outcome, calls in ends.items():
            if calls:
                telemetry.record("tttembed.capture.queries", calls, outcome=outcome)


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
