"""`TTTSpanProcessor`: what any instrumented framework retrieves and reranks goes to a log, by its OpenTelemetry spans.

    provider = TracerProvider()
    provider.add_span_processor(TTTSpanProcessor(StoreLog("sqlite:///ttt.db")))
    LangChainInstrumentor().instrument(tracer_provider=provider)

The end of a span costs a request a few microseconds: the span is put into a bounded queue, and one thread reads it.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from sys import getsizeof
from threading import Condition, Lock
from typing import Any, NamedTuple

from tttembed_rag.capture.log import Known, Log
from tttembed_rag.capture.spans.reading import Reader, Span, TextsById
from tttembed_rag.errors import InputError, require
from tttembed_rag.serving.context import context, current_query_id, current_task, said_tenant, tenant_is_in_doubt
from tttembed_rag.system import telemetry
from tttembed_rag.system.background import Loop

require("opentelemetry.sdk.trace", "telemetry")
from opentelemetry.context import Context  # noqa: E402 - the line above says what to install
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor  # noqa: E402
from opentelemetry.sdk.trace import Span as OpenSpan  # noqa: E402

__all__ = ["TTTSpanProcessor", "Tapped"]

_log = logging.getLogger(__name__)
# Seconds between two looks at an empty queue, and spans that are read in a row.
_PAUSE, _BATCH = 0.05, 500
# Bytes of a number in a sequence: the object, and the reference to it.
_NUMBER_BYTES = 32


@dataclass(frozen=True, slots=True)
class Tapped:
    """What became of the spans that a processor saw.

    Attributes:
        observed: Retrievals that went to the log.

        recorded: Rerankings that went to the log, with their scores.

        nested: Retrievers that only handed on what another one found.

        left_out: Documents without a whole text: redacted, cut, or never there.

        undeclared: Rerankings whose model was not declared, so that the scores mean nothing.

        dropped: Spans that the queue had no room for.

        failed: Spans that could not be read, or were refused by the log.

        in_doubt: Retrievals and rerankings between generators that wait in blocks of different tenants: left out.
    """

    observed: int
    recorded: int
    nested: int
    left_out: int
    undeclared: int
    dropped: int
    failed: int
    in_doubt: int = 0


class _Ended(NamedTuple):
    span: ReadableSpan
    size: int
    task: str | None
    # None where the caller said none: the log knows what that means.
    tenant: str | None
    query_id: str
    in_doubt: bool


class TTTSpanProcessor(SpanProcessor):
    """A span processor that writes what was retrieved and reranked into a log.

    The task of a query is the ``tttembed_task`` in the metadata of its span, else the caller's ``with context(...)``,
    whose tenant and query id hold too. Where an EMBEDDING span of the trace has the query's vector, the log is given
    it; vectors that this package steered are marked in their span, and left out.

    Args:
        log: Keeps queries, documents and scores: a `RewardLog` or a `StoreLog`.

        scores_of: The model name of the reranker that the log is made for, as its spans have it: its scores are
            recorded on the log's scale. ``*`` is any; None records no scores.

        texts: Gives whole texts by document id, for documents whose text is missing or cut; asked in the background.

        cut_at: Characters from which on a text is taken to be cut; the SDK's own limit for attributes counts too.

        vectors: Whether the vectors of EMBEDDING spans are base vectors; False where the model steers unseen, as a
            proxy does.

        capacity: Spans that may wait, >= 1.

        max_bytes: Bytes of the attributes of spans that may wait, >= 1.

    Raises:
        InputError: An argument is not what was expected.
        MissingExtraError: On import: the OpenTelemetry SDK is not installed.
    """

    def __init__(
        self,
        log: Log,
        *,
        scores_of: str | None = None,
        texts: TextsById | None = None,
        cut_at: int | None = None,
        vectors: bool = True,
        capacity: int = 10_000,
        max_bytes: int = 256 * 2**20,
    ) -> None:
        if not isinstance(log, Log):
            raise InputError(f"log: expected a RewardLog or a StoreLog, got {type(log).__name__}")
        if capacity < 1:
            raise InputError(f"capacity: expected at least 1 span, got {capacity}")
        if max_bytes < 1:
            raise InputError(f"max_bytes: expected at least 1 byte, got {max_bytes}")
        self._to = log
        self._cut_at = cut_at
        self._reader = Reader(scores_of, texts, cut_at, vectors)
        self._capacity, self._max_bytes = capacity, max_bytes
        self._warned = False
        self._begin()
        self._loop = Loop("tttembed-spans", self._round, self._begin)

    def _begin(self) -> None:
        self._queue: deque[_Ended] = deque()
        # Bytes of the spans in the queue.
        self._held, self._weighing = 0, Lock()
        self._accepted, self._dropped = telemetry.Tally(), telemetry.Tally()
        self._done = self._observed = self._recorded = self._failed = self._in_doubt = 0
        self._progress = Condition()

    def on_start(self, span: OpenSpan, parent_context: Context | None = None) -> None:
        """Nothing: a span is read when it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span, or count it as dropped; never waits, never fails."""
        attributes: Any = span.attributes or {}
        size = sum(map(_bytes_of, attributes.copy().values()))  # to go through those of the SDK locks at each of them
        with self._weighing:
            fits = len(self._queue) < self._capacity and self._held + size <= self._max_bytes
            if fits:
                self._held += size
        if not fits:
            self._dropped.add()
            return
        ended = _Ended(span, size, current_task(), said_tenant(), current_query_id(), tenant_is_in_doubt())
        self._queue.append(ended)
        self._accepted.add()
        if self._loop.asleep:
            self._loop.start()

    def shutdown(self) -> None:
        """Read what waits."""
        self.force_flush()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Wait until all spans that ended so far are read; gives whether they are in time."""
        until = self._accepted.value
        if self._done >= until:
            return True
        self._loop.start()
        self._loop.wake()
        with self._progress:
            return self._progress.wait_for(lambda: self._done >= until, timeout_millis / 1000)

    @property
    def counts(self) -> Tapped:
        """What became of all spans so far."""
        read = self._reader.counts
        return Tapped(
            self._observed,
            self._recorded,
            read.nested,
            read.left_out,
            read.undeclared,
            self._dropped.value,
            self._failed,
            self._in_doubt,
        )

    def _round(self) -> float:
        """Read the next spans; gives the seconds until the next look."""
        taken = 0
        while self._queue and taken < _BATCH:
            ended = self._queue.popleft()
            with self._weighing:
                self._held -= ended.size
            try:
                self._take(ended)
            except Exception:  # noqa: BLE001 - whatever an instrumentation wrote into a span, or the log refuses
                _log.exception("a span was not read")
                self._failed += 1
            taken += 1
        if taken:
            with self._progress:
                self._done += taken
                self._progress.notify_all()
        return 0.0 if self._queue else _PAUSE

    def _take(self, ended: _Ended) -> None:
        itself, parent = ended.span.context, ended.span.parent
        if itself is None:
            return
        attributes: Any = ended.span.attributes or {}
        began = None if ended.span.start_time is None else ended.span.start_time / 1e9
        parent_id = None if parent is None else f"{parent.span_id:x}"
        self._reader.cut_at = _shorter(self._cut_at, ended.span)
        found = self._reader.read(Span(f"{itself.span_id:x}", f"{itself.trace_id:x}", parent_id, attributes, began))
        if found is None:
            return
        if ended.in_doubt:
            self._in_doubt += 1
            return
        if ended.span.dropped_attributes and not self._warned:
            self._warned = True
            _log.warning(
                "spans lose attributes, and with them documents: set OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT above %d",
                len(attributes) + ended.span.dropped_attributes,
            )
        known = None if found.vector is None else Known(found.vector)
        task = found.task or ended.task
        with context(task=task, tenant=ended.tenant, query_id=ended.query_id):
            if found.scores is None:
                self._to.observe(found.query, found.documents, task=task, known=known)
                self._observed += 1
            else:
                self._to.record(found.query, found.documents, found.scores, task=task, known=known, source="")
                self._recorded += 1


def _bytes_of(value: Any) -> int:
    """Bytes of an attribute: a text, texts or numbers, which are all of one type."""
    if not isinstance(value, tuple):
        return getsizeof(value)
    first = next((one for one in value if one is not None), None)
    return sum(map(getsizeof, value)) if isinstance(first, str) else _NUMBER_BYTES * len(value)


def _shorter(cut_at: int | None, span: ReadableSpan) -> int | None:
    """The length from which on texts of *span* are cut: the caller's, or the SDK's limit for attributes."""
    limit = getattr(getattr(span, "_attributes", None), "max_value_len", None)
    return min((one for one in (cut_at, limit) if one is not None), default=None)
