"""`TTTSpanProcessor`: what any instrumented framework retrieves and reranks goes to a log, by its OpenTelemetry spans.

    provider = TracerProvider()
    provider.add_span_processor(TTTSpanProcessor(StoreLog("sqlite:///ttt.db")))
    LangChainInstrumentor().instrument(tracer_provider=provider)

The end of a span costs a request a few microseconds: OpenTelemetry's batch processor queues it, and a thread reads it.
The context of the caller goes along with a span that has ended. It is never an attribute of the span: other exporters
would send the names of tenants, and the SDK drops first what was set first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from tttembed_rag.errors import check_count, require
from tttembed_rag.rewards.observations import Served
from tttembed_rag.serving.context import context, context_value
from tttembed_rag.serving.log import Known, Log, checked_log
from tttembed_rag.system import telemetry
from tttembed_store.spans.reading import Reader, Span, TextsById

require("opentelemetry.sdk.trace", "telemetry")
from opentelemetry.sdk.trace import ReadableSpan  # noqa: E402 - the line above says what to install
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult  # noqa: E402

_log = logging.getLogger(__name__)
# Milliseconds between two looks at the queue, and spans that are read in a row.
_PAUSE, _BATCH = 100, 500


@dataclass(frozen=True, slots=True)
class Tapped:
    """What became of the spans that a processor saw.

    Attributes:
        observed: Retrievals that went to the log.
        recorded: Rerankings that went to the log, with their scores.
        nested: Retrievers that only handed on what another one found.
        left_out: Documents without a whole text: redacted, cut, or never there.
        without_query: Retrievals and rerankings whose query was redacted, cut, not there, or not understood.
        undeclared: Rerankings whose model was not declared, so that the scores mean nothing.
        unread: Spans that wait; after a flush, those that the queue had no room for.
        failed: Spans that could not be read, or were refused by the log.
    """

    observed: int = 0
    recorded: int = 0
    nested: int = 0
    left_out: int = 0
    without_query: int = 0
    undeclared: int = 0
    unread: int = 0
    failed: int = 0


class TTTSpanProcessor(BatchSpanProcessor):
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
        capacity: Spans that may wait, >= 1; the oldest make room for others.

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
    ) -> None:
        checked_log(log)
        check_count("capacity", capacity)
        if scores_of is not None:
            log.declare(type(self).__name__)
        self._ended = telemetry.Tallies("")
        self._reading = _Reading(log, Reader(scores_of, texts, cut_at, vectors))
        batch = min(_BATCH, capacity)
        super().__init__(self._reading, capacity, schedule_delay_millis=_PAUSE, max_export_batch_size=batch)

    def on_end(self, span: ReadableSpan) -> None:
        """Take a span; never waits, never fails."""
        if span.context is not None and span.context.trace_flags.sampled:
            self._ended.add("")
        super().on_end(_Ended(span))  # type: ignore[arg-type]  # what is exported is read by none but us

    @property
    def counts(self) -> Tapped:
        """What became of all spans so far."""
        unread = max(0, self._ended.values().get("", 0) - self._reading.read)
        return Tapped(**self._reading.counts, **self._reading.reader.counts, unread=unread)


class _Ended:
    """A span that has ended, and the context of its caller."""

    def __init__(self, span: ReadableSpan) -> None:
        self.span, self.context = span, span.context
        # None where the caller said no tenant: the log knows what that means.
        self.caller = {name: context_value(name) for name in ("task", "tenant", "query_id")}


class _Reading(SpanExporter):
    """Reads spans into a log: one thread at a time, as the batch processor exports."""

    def __init__(self, log: Log, reader: Reader) -> None:
        self.reader = reader
        self.read, self.counts = 0, Counter[str]()
        self._log = log
        self._cut_at = reader.cut_at
        self._warned = False

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        """Read each; one that cannot be read costs itself alone."""
        for ended in spans:
            try:
                self._take(ended)
            except Exception:  # noqa: BLE001 - whatever an instrumentation wrote into a span, or the log refuses
                _log.exception("a span was not read")
                self.counts["failed"] += 1
            self.read += 1
        return SpanExportResult.SUCCESS

    def _take(self, ended: _Ended) -> None:
        span, parent = ended.span, ended.span.parent
        attributes: Any = span.attributes or {}
        began = None if span.start_time is None else span.start_time / 1e9
        parent_id = None if parent is None else f"{parent.span_id:x}"
        # From which length on texts are cut: the caller's, or the SDK's limit for attributes.
        limits = self._cut_at, getattr(getattr(span, "_attributes", None), "max_value_len", None)
        self.reader.cut_at = min((limit for limit in limits if limit is not None), default=None)
        ids = f"{ended.context.span_id:x}", f"{ended.context.trace_id:x}"
        read = self.reader.read(Span(*ids, parent_id, attributes, began))
        if read is None:
            return
        if span.dropped_attributes and not self._warned:
            self._warned = True
            _log.warning(
                "spans lose attributes, and with them documents: set OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT above %d",
                len(attributes) + span.dropped_attributes,
            )
        Context().run(self._keep, ended, *read)  # the thread may be of a caller who flushes, and the span of another

    def _keep(self, ended: _Ended, served: Served, scores: list[float | None] | None) -> None:
        known = None if served.vector is None else Known(served.vector)
        texts = [candidate.text for candidate in served.candidates if candidate.text]
        with context(**ended.caller | {"task": served.task or ended.caller["task"]}):
            if scores is None:
                self._log.observe(served.query, texts, known=known)
                self.counts["observed"] += 1
            else:
                numbers = [score for score in scores if score is not None]
                self._log.record(served.query, texts, numbers, known=known, source="")
                self.counts["recorded"] += 1
