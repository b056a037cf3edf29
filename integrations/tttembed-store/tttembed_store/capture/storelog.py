"""`StoreLog`: a request puts what it served in a queue; a thread writes it into a store, and loses nothing silently."""

from __future__ import annotations

import atexit
import logging
import math
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from numpy.typing import ArrayLike

from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.errors import InputError, StoreUnavailable, TTTEmbedError, check_count, check_text
from tttembed_rag.judges.contract import Judge, checked_judge
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.observations import Served
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.context import context_value
from tttembed_rag.serving.log import Known, Log, list_of
from tttembed_rag.system import telemetry
from tttembed_store.background import Loop
from tttembed_store.capture.preparing import Preparation, owned, served_of, size_of
from tttembed_store.following.reached import Reached

if TYPE_CHECKING:
    from tttembed_store.sql import Store


_log = logging.getLogger(__name__)
# Calls that are prepared and written together, in one transaction; and of those with texts that may have to be embedded
# first, so that some are written every few seconds.
_BATCH, _EMBEDDED_BATCH = 200, 4
# Bytes of calls that are prepared together, but for the last.
_BATCH_BYTES = 16 * 2**20
# Seconds for which calls are gathered, unless they fill a batch before: small transactions cost as much as large ones.
_PAUSE = 0.2
# Seconds until a store that is away is tried again: at first, and at most, as each wait is twice the one before.
_RETRY, _LONGEST_RETRY = 0.1, 5.0
# Seconds without a written query after which a store is given up, when a log is closed.
_PATIENCE = 30.0
# Seconds that all logs together may take at exit: without a written query, and in all.
_EXIT_PATIENCE, _EXIT_SECONDS = 5.0, 30.0
# Seconds in which a round in progress ends: a thread in native code aborts the process when the interpreter ends.
_LAST_ROUND = 60.0


@dataclass(frozen=True, slots=True)
class Captured:
    """What became of the served queries that a log was given, in this process.

    Attributes:
        written: In the store, by its own count; a query that was served again counts again.
        queued: Waiting for the writer.
        dropped: Left out because the queue was full, or the log closed.
        failed: Malformed, refused by the store, or lost at the end because it was away.
        forgotten: Left out by the store, as the query, or all of its tenant, was forgotten since it was served.
        without_tenant: Left out because it came without a tenant, where one is required.
    """

    written: int = 0
    queued: int = 0
    dropped: int = 0
    failed: int = 0
    forgotten: int = 0
    without_tenant: int = 0


class StoreLog(Log):
    """A log like `tttembed_rag.RewardLog`; its contents end in a store that all processes share.

    A call takes microseconds, never waits and never fails; wrong arguments are logged later. One thread writes
    batches, looks for vectors, and tries again while the store is away. Queries that still wait are written at exit.
    A log lives until it is closed, or its process ends.

    The tenant of a query is the one this log is fixed to, else the caller's ``with context(..., tenant=...)``. Where
    the caller says none, the query is the shared tenant's, but only in a store without other tenants: in one that has
    tenants it is left out, and counted, as nobody knows whose it is.

    Args:
        store: An open store, or its URL; it need not be reachable yet.
        judge: The judge that gave the recorded scores, or its fingerprint; empty where queries are only observed.
        scale: What the scores mean, for a fingerprint: a `Scale`, or its text.
        embed_query: Text to *base* query vector (d,), asked in the background; None where callers know it.
        embed_documents: Texts to document vectors, likewise.
        vectors: Where document vectors are looked for first; None remembers what was embedded.
        embedder: Fingerprint of the embedding model, the same wherever its vectors are captured.
        tenant: The tenant of all queries, "" for the shared one; None is the caller's `context`.
        tenant_required: Whether queries of the shared tenant are left out, also before the store has any other.
        capacity: Served queries that may wait, >= 1.
        max_bytes: Bytes of served queries that may wait, >= 1; beside them at most 16 MiB and one query are written.
        trusted: As the attribute, kept with the judge in the store; taps that record the order that is served set it
            to True where it is None.

    Raises:
        InputError: An option is out of its range, or there is no such scale.
        StoreError: The URL can never be that of a store.
    """

    def __init__(
        self,
        store: Store | str,
        judge: Judge | str = "",
        *,
        scale: Scale | str = "probability",
        embed_query: Callable[[str], ArrayLike] | None = None,
        embed_documents: Callable[[list[str]], Sequence[ArrayLike]] | None = None,
        vectors: TextVectors | None = None,
        embedder: str = "",
        tenant: str | None = None,
        tenant_required: bool = False,
        capacity: int = 10_000,
        max_bytes: int = 256 * 2**20,
        trusted: bool | None = None,
    ) -> None:
        check_count("capacity", capacity)
        check_count("max_bytes", max_bytes)
        check_text("tenant", tenant)
        if not (isinstance(store, str) or hasattr(store, "observe")):
            raise InputError(f"store: expected an open store or its URL, got {type(store).__name__}")
        self.judge = judge if isinstance(judge, str) else checked_judge(judge).fingerprint
        self.scale = Scale.parse(scale if isinstance(judge, str) else judge.scale)
        self.trusted = trusted
        # Whether the judge is vouched for, as it stands in the store.
        self._stored_trust: bool | None = None
        self._tenant, self._tenant_required = tenant, tenant_required
        self._capacity, self._max_bytes, self._embedder = capacity, max_bytes, embedder
        self._preparation = Preparation(embed_query, embed_documents, vectors or TextVectors())
        self._reached = Reached(store, "store of served queries", records=True)
        self._closed = False
        self._start_anew()
        self._loop = Loop("tttembed-write", self._round, self._forked)
        _logs.add(self)
        telemetry.watch(self)

    def __repr__(self) -> str:
        return f"StoreLog({self.judge!r}, {self.counts})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counts(self) -> Captured:
        """What became of all served queries so far."""
        with self._changed:
            return Captured(queued=self._accepted - self._done, **self._counts)

    @property
    def error(self) -> str | None:
        """Why the store could not be written to just now; None where it was."""
        return self._reached.error

    def measure(self) -> Iterable[telemetry.Point]:
        """Served queries that wait, for telemetry."""
        return [telemetry.Point("tttembed.capture.queued", self.counts.queued, {})]

    def note(
        self,
        query: str,
        documents: Iterable[str],
        scores: Sequence[float | None] | None,
        *,
        task: str | None,
        known: Known | None,
        source: str,
    ) -> None:
        """Put a served query into the queue, with the caller's tenant and query id."""
        try:
            tenant = context_value("tenant") if self._tenant is None else self._tenant
            if not tenant and self._tenant_required:
                self._leave_out("without_tenant")
                return
            names = {"task": task or DEFAULT_TASK, "query_id": context_value("query_id") or "", "source": source}
            self.put(query, list_of(documents), scores, known, tenant=tenant, at=time.time(), **names)
        except Exception:  # noqa: BLE001 - whatever a caller hands in, its request never fails for its log
            _log.exception("a served query was not noted")
            self._leave_out("failed")

    def put(
        self,
        query: str,
        documents: Sequence[str],
        scores: Sequence[float | None] | None,
        known: Known | None,
        *,
        tenant: str | None,
        at: float,
        task: str,
        query_id: str = "",
        source: str = "",
    ) -> None:
        """Put a served query into the queue, whatever the caller's `context` says, or count it as dropped.

        It was served *at* a Unix second. One that nobody named a *tenant* for is left out of a store with tenants.
        """
        texts, known = tuple(documents), owned(known)
        numbers = None if scores is None else tuple(scores)
        facts: dict[str, Any] = {"tenant": tenant or "", "at": at, "task": task, "query_id": query_id, "source": source}
        facts |= {"scale": self.scale, "embedder": self._embedder}
        make = partial(served_of, query, texts, numbers, known, **facts)
        size = size_of(known, query, *texts, tenant, task, query_id, source)
        with self._changed:
            if self._closed or len(self._queue) >= self._capacity or self._held + size > self._max_bytes:
                self._counts["dropped"] += 1
                return
            self._queue.append((make, tenant, known.vector is None, size))
            self._held += size
            self._accepted += 1
            fills = len(self._queue) >= min(_BATCH, 1 + self._capacity // 2) or 2 * self._held >= self._max_bytes
        if self._loop.asleep:
            _write_at_exit()
            self._loop.start()
        elif fills and self._retry == _RETRY:
            self._loop.wake()

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything noted so far is written or refused; gives whether it is after *timeout* seconds."""
        until = self._accepted
        if self._done >= until:
            return True
        self._loop.start()
        self._loop.wake()
        with self._changed:
            return self._changed.wait_for(lambda: self._done >= until, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Write what waits, and end; later calls are dropped. What could not be written is counted and logged.

        Args:
            timeout: Seconds that it may take, beyond the embedding that is in progress; None is as long as queries are
                being written, and gives up after 30 s in which none was.
        """
        self._end(math.inf if timeout is None else timeout, _PATIENCE)

    def _end(self, timeout: float, patience: float) -> None:
        """Write what waits, for *timeout* seconds at most; give up after *patience* seconds in which nothing ended."""
        until = time.monotonic() + timeout
        with self._changed:  # all that was put before is waited for below
            self._closed = True
        drained, done = False, -1
        while not drained and self._done > done:
            done = self._done
            drained = self.flush(min(patience, max(0.0, until - time.monotonic())))
        self._ending = True
        self._loop.wake()
        last_round = _LAST_ROUND if self._preparation.embeds else 0.0
        self._loop.join(max(min(patience, until - time.monotonic()), last_round))
        if lost := self.counts.queued:
            _log.error("%d served queries were not written: %s", lost, self._reached.error or "the time was over")
            self._settle(failed=lost)
        self._report()
        self._reached.close()
        _logs.discard(self)

    def _leave_out(self, outcome: str) -> None:
        """Count a call that does not wait: the numbers that `flush` compares are of calls in the queue alone."""
        with self._changed:
            self._counts[outcome] += 1

    def _forked(self) -> None:
        self._start_anew()
        self._preparation.renew()

    def _start_anew(self) -> None:
        # Guards the queue and the counts; told to threads that wait for calls to come to an end.
        self._changed = Condition()
        self._queue: deque[tuple[Callable[[], Served], str | None, bool, int]] = deque()
        # Bytes of the calls in the queue; how many calls were put there, and how many of those came to an end.
        self._held = self._accepted = self._done = 0
        # All calls by their ends: so far, and when telemetry was told last.
        self._counts, self._reported = Counter[str](), Counter[str]()
        # Served queries that the store has not answered for yet, and how many of them are written in one transaction.
        self._batch: list[Served] = []
        self._at_once = _BATCH
        # Seconds until it is tried again; more than at first where the last try failed.
        self._retry: float = _RETRY
        self._ending = False

    def _round(self) -> float | None:
        """Write one batch; gives the seconds until the next."""
        self._report()
        try:
            store = self._reached.store()
            if not self._batch:
                self._batch = self._prepared(store)
            more = bool(self._queue)
            if self._batch:
                began = time.perf_counter()
                with telemetry.span("capture", queries=len(self._batch)):
                    while self._batch:
                        self._write(store, self._batch[: self._at_once])
                self._reached.answered()
                telemetry.record("tttembed.capture.duration", time.perf_counter() - began)
        except TTTEmbedError as error:  # of the store itself: each query that it refused was counted
            self._reached.failed(error)
            if self._retry > _RETRY:  # the store may be well, and the transaction too large for it
                self._at_once = max(1, self._at_once // 2)
            self._retry = min(2 * self._retry, _LONGEST_RETRY)
            return None if self._ending else self._retry
        if self._ending:
            return None
        return 0.0 if more else _PAUSE

    def _prepared(self, store: Store) -> list[Served]:
        """The next served queries in the queue."""
        if not self._queue:
            return []
        has_tenants = store.has_tenants()
        most = _EMBEDDED_BATCH if self._preparation.embeds else _BATCH
        batch, taken, lacking = list[tuple[Callable[[], Served], str | None]](), 0, 0
        with self._changed:
            while self._queue and len(batch) < _BATCH and lacking < most and taken < _BATCH_BYTES:
                make, tenant, lacks, size = self._queue.popleft()
                batch.append((make, tenant))
                taken += size
                lacking += lacks
            self._held -= taken
        has_tenants = has_tenants or any(tenant for _, tenant in batch)  # it will have them a moment later
        queries = [make for make, tenant in batch if tenant is not None or not has_tenants]
        if lost := len(batch) - len(queries):
            if not self._counts["without_tenant"]:
                _log.warning(
                    "queries without a tenant are left out, as the store has tenants: name one by "
                    'context(..., tenant=), or make a log for the shared tenant with tenant=""'
                )
            self._settle(without_tenant=lost)
        served = self._preparation.prepare(queries)
        self._settle(failed=len(queries) - len(served))
        return served

    def _write(self, store: Store, served: Sequence[Served]) -> None:
        """Write the first queries of the batch in one transaction; in halves where the store refuses one of them."""
        try:
            if self.trusted is not self._stored_trust:
                store.trust(self.judge, self.trusted)
                self._stored_trust = self.trusted
            written = store.observe(served, judge=self.judge)
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
        """Count calls of the queue that came to an end, and let the threads know that wait for them."""
        with self._changed:
            self._counts.update(ends)
            self._done += sum(ends.values())
            self._changed.notify_all()

    def _report(self) -> None:
        """Tell telemetry of the calls since the last report; never in the thread of a request."""
        with self._changed:
            since, self._reported = self._counts - self._reported, self._counts.copy()
        for outcome, calls in since.items():
            telemetry.record("tttembed.capture.queries", calls, outcome=outcome)


_logs: WeakSet[StoreLog] = WeakSet()


def _close_all() -> None:
    until = time.monotonic() + _EXIT_SECONDS
    for log in list(_logs):
        log._end(max(0.0, until - time.monotonic()), _EXIT_PATIENCE)  # noqa: SLF001 (its own end)


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
