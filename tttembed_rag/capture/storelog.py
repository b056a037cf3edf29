"""What a running application serves, written into a store from the background; a request only puts it in a queue."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.capture.log import Known, check_judge, unit_rewards
from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.capture.writing import ObservingStore, Writer
from tttembed_rag.errors import InputError
from tttembed_rag.judges.contract import Judge
from tttembed_rag.observations import Candidate, Served
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.scales import Scale
from tttembed_rag.serving.context import current_query_id, current_tenant
from tttembed_rag.system import telemetry
from tttembed_rag.vectors.checks import FloatArray, as_floats

__all__ = ["Captured", "StoreLog"]

_log = logging.getLogger(__name__)
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Captured:
    """What became of the served queries that a log was given, in this process.

    Attributes:
        written: In the store, by its own count; a query that was served again counts again.

        queued: Waiting for the writer.

        dropped: Left out because the queue was full, or the log closed.

        sampled_out: Left out by the share or the daily budget.

        failed: Malformed, refused by the store, or lost at the end because it was away.

        forgotten: Left out by the store, as the query, or all of its tenant, was forgotten since it was served.
    """

    written: int
    queued: int
    dropped: int
    sampled_out: int
    failed: int
    forgotten: int = 0


_NOTHING = Known()


class _Seen(NamedTuple):
    """One call of a log, as it came."""

    query: str
    documents: tuple[str, ...]
    scores: Sequence[float | None] | None
    task: str | None
    tenant: str
    at: float
    known: Known
    query_id: str


class StoreLog:
    """A log as `tttembed_rag.capture.RewardLog`, whose contents end in a store that all processes share.

    A call takes microseconds, never waits and never fails; what is wrong with its arguments is logged
    later. One thread writes batches, looks for vectors, and tries again while the store is away. What
    waits is written at exit. A log lives until it is closed, or its process ends.

    The tenant of a query is the one this log is fixed to, else the caller's ``with scope(..., tenant=...)``.

    Args:
        store: An open store, or its URL; it need not be reachable yet.

        judge: Whose scores are recorded, or its fingerprint; empty where queries are only observed.

        scale: What its scores mean, for a fingerprint: a `Scale`, or its text.

        embed_query: Text to *base* query vector (d,), asked in the background; None where callers know it.

        embed_documents: Texts to document vectors, likewise.

        vectors: Where document vectors are looked for first; None remembers what was embedded.

        embedder: Fingerprint of the embedding model, the same wherever its vectors are captured.

        tenant: Whose all queries are; None is the caller's `scope`.

        share: Of the queries of a task and a day, the share that is kept, in (0, 1].

        pairs_a_day: Pairs kept in a UTC day, by this process; None is no limit.

        capacity: Served queries that may wait, >= 1.

    Raises:
        InputError: An option is out of its range, or there is no such scale.
    """

    def __init__(
        self,
        store: ObservingStore | str,
        judge: Judge | str = "",
        *,
        scale: Scale | str = "probability",
        embed_query: Callable[[str], ArrayLike] | None = None,
        embed_documents: Callable[[list[str]], Sequence[ArrayLike]] | None = None,
        vectors: TextVectors | None = None,
        embedder: str = "",
        tenant: str | None = None,
        share: float = 1.0,
        pairs_a_day: int | None = None,
        capacity: int = 10_000,
    ) -> None:
        if not 0 < share <= 1:
            raise InputError(f"share: expected a share in (0, 1], got {share:g}")
        if pairs_a_day is not None and pairs_a_day < 0:
            raise InputError(f"pairs_a_day: expected >= 0, got {pairs_a_day}")
        if capacity < 1:
            raise InputError(f"capacity: expected at least 1 query, got {capacity}")
        self.judge, declared = (judge, scale) if isinstance(judge, str) else (judge.fingerprint, judge.scale)
        self.scale = Scale.parse(declared) if isinstance(declared, str) else declared
        self._embed_query = embed_query
        self._embed_documents = embed_documents
        self._query_vectors, self._document_vectors = TextVectors(), vectors or TextVectors()
        self._embedder = embedder
        self._tenant = tenant
        self._share = share
        self._pairs_a_day = pairs_a_day
        # The UTC day whose pairs are counted; once they are spent, when the next one begins.
        self._day, self._pairs, self._spent_until = 0, 0, 0.0
        self._sampled_out = telemetry.Tally()
        self._over_budget = self._malformed = 0
        self._reported: dict[str, int] = {}
        self._writer: Writer[_Seen] = Writer(
            store, self.judge, prepare=self._prepare, report=self._report, renew=self._renew, capacity=capacity
        )
        telemetry.watch(self)

    def check_is_for(self, judge: Judge) -> None:
        """Refuse this log where *judge* is another than its own, with an InputError that names it ``log``."""
        check_judge(self.judge, judge)

    def observe(
        self, query: str, documents: Iterable[str], *, task: str | None = None, known: Known | None = None
    ) -> None:
        """Note that *documents* were shown for *query*, in base order; they wait for a judge."""
        self._note(query, documents, None, task, known)

    def record(
        self,
        query: str,
        documents: Sequence[str],
        scores: Sequence[float | None],
        *,
        task: str | None = None,
        known: Known | None = None,
    ) -> None:
        """Keep the judge's *scores* of *documents*, on its scale; None is one it did not judge."""
        self._note(query, documents, scores, task, known)

    @property
    def counts(self) -> Captured:
        """What became of everything so far."""
        return Captured(
            self._writer.written,
            self._writer.queued,
            self._writer.dropped.value,
            self._sampled_out.value + self._over_budget,
            self._writer.failed + self._malformed,
            self._writer.forgotten,
        )

    @property
    def error(self) -> str | None:
        """Why the store could not be written to just now; None where it was."""
        return self._writer.outage.error

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything noted so far is written or refused; gives whether it is after *timeout* seconds."""
        return self._writer.flush(timeout)

    def close(self, timeout: float = 30.0) -> None:
        """Write what waits, at most *timeout* seconds, and end; what is noted later is dropped."""
        self._writer.close(timeout)
        self._report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(self) -> Iterable[telemetry.Point]:
        """Served queries that wait, for telemetry."""
        return [telemetry.Point("tttembed.capture.queued", self._writer.queued, {})]

    def _note(
        self,
        query: str,
        documents: Iterable[str],
        scores: Sequence[float | None] | None,
        task: str | None,
        known: Known | None,
    ) -> None:
        try:
            at = time.time()
            spent = self._spent_until - _DAY <= at < self._spent_until  # a clock may have been ahead
            if spent or (self._share < 1 and not self._is_sampled(query, task, at)):
                self._sampled_out.add()
                return
            tenant = current_tenant() if self._tenant is None else self._tenant
            said = None if scores is None else tuple(scores)
            facts = _NOTHING if known is None else _own(known)
            self._writer.put(_Seen(query, tuple(documents), said, task, tenant, at, facts, current_query_id()))
        except Exception:  # noqa: BLE001 - whatever a caller hands in, its request never fails for its log
            _log.exception("a served query was not noted")
            self._writer.dropped.add()

    def _is_sampled(self, query: str, task: str | None, at: float) -> bool:
        """Whether a query is in today's share: the same answer for every tap, another one tomorrow."""
        drawn = zlib.crc32(f"{at // _DAY}\n{task or DEFAULT_TASK}\n{query}".encode("utf-8", "surrogatepass"))
        return drawn < self._share * 2**32

    # What follows runs in the writer's thread.

    def _prepare(self, store: ObservingStore, some: list[_Seen]) -> list[Served]:
        """What is written of *some* calls, with the vectors that can be found."""
        within = [one for one in some if self._is_within_budget(one)]
        self._over_budget += len(some) - len(within)
        served = []
        for one in within:
            try:
                served.append(self._served(store, one))
            except Exception as error:  # noqa: BLE001 - a caller's arguments: whatever may be wrong with them
                self._malformed += 1
                _log.warning("a served query was malformed: %r", error)
        embed_queries = None if self._embed_query is None else partial(_each, self._embed_query)
        queries = _found(self._query_vectors, embed_queries, [_missing(one, one.query) for one in served])
        shown = [_missing(candidate, candidate.text) for one in served for candidate in one.candidates]
        documents = _found(self._document_vectors, self._embed_documents, shown)
        return [_filled(one, queries, documents) for one in served]

    def _is_within_budget(self, one: _Seen) -> bool:
        """Whether the day's pairs last for this one; the first that does not fit ends the day."""
        if self._pairs_a_day is None:
            return True
        day = int(one.at // _DAY)
        if day != self._day:
            self._day, self._pairs = day, 0
        if self._pairs + len(one.documents) > self._pairs_a_day:
            self._spent_until = (day + 1) * float(_DAY)
            return False
        self._pairs += len(one.documents)
        return True

    def _served(self, store: ObservingStore, one: _Seen) -> Served:
        """One call as a store takes it, with the vectors its caller knew; blank documents are left out."""
        known, none = one.known, [None] * len(one.documents)
        rewards = none if one.scores is None else unit_rewards(self.scale, one.documents, one.scores)
        vectors = none if known.document_vectors is None else known.document_vectors
        columns = (known.doc_ids or none, vectors, rewards)
        candidates = [
            Candidate(doc_id or store.text_id(text), _floats(vector), text, reward)
            for text, doc_id, vector, reward in zip(one.documents, *columns, strict=True)
            if text.strip()
        ]
        if not one.query.strip():
            raise InputError(f"query: expected a text, got {one.query!r}")
        return Served(
            known.query_id or one.query_id or store.text_id(one.query),
            _floats(known.vector),
            candidates,
            one.query,
            one.task or DEFAULT_TASK,
            one.tenant,
            one.at,
            self._embedder,
        )

    def _report(self) -> None:
        """Hand on what became of queries since the last time, to telemetry."""
        counts = self.counts
        for outcome in ("written", "dropped", "sampled_out", "failed", "forgotten"):
            total = getattr(counts, outcome)
            if more := total - self._reported.get(outcome, 0):
                telemetry.record("tttembed.capture.queries", more, outcome=outcome)
                self._reported[outcome] = total

    def _renew(self) -> None:
        """In a forked child: nothing was counted, and no other thread holds the lock of the vectors."""
        self._query_vectors, self._document_vectors = copy(self._query_vectors), copy(self._document_vectors)
        self._sampled_out = telemetry.Tally()
        self._over_budget = self._malformed = 0
        self._reported = {}


def _each(embed: Callable[[str], ArrayLike], texts: list[str]) -> list[ArrayLike]:
    return [embed(text) for text in texts]


def _own(known: Known) -> Known:
    """What the caller may change after the call, copied."""
    vectors = known.document_vectors
    if not (vectors is None or isinstance(vectors, np.ndarray)):
        vectors = [_copied(vector) for vector in vectors]
    return replace(known, vector=_copied(known.vector), document_vectors=_copied(vectors))


def _copied(vector: Any) -> Any:
    """A copy; of doubles in the precision that a store keeps, as many may wait for one that is away."""
    if not (isinstance(vector, np.ndarray) and vector.dtype == np.float64):
        return copy(vector)
    with np.errstate(over="ignore"):  # what is too large is refused later, with all that is malformed
        return vector.astype(np.float32)


def _floats(vector: ArrayLike | None) -> FloatArray | None:
    return None if vector is None else as_floats("vector", vector)


def _missing(one: Served | Candidate, text: str | None) -> str | None:
    """The text whose vector must be found; None where its caller knew it."""
    return text if one.vector is None else None


def _found(
    vectors: TextVectors,
    embed: Callable[[list[str]], Sequence[ArrayLike]] | None,
    wanted: Iterable[str | None],
) -> dict[str, FloatArray]:
    """Vectors by text, those that could be found; what a failing model leaves out is logged."""
    texts = list(dict.fromkeys(text for text in wanted if text is not None))
    if embed is None or not texts:
        return {}
    try:
        rows = vectors.of(texts, embed)
        return {text: row for text, row in zip(texts, rows, strict=True) if np.isfinite(row).all() and row.any()}
    except Exception:  # noqa: BLE001 - the caller's model: what it cannot embed is written all the same
        _log.exception("%d texts are written without vectors", len(texts))
        return {}


def _filled(one: Served, queries: Mapping[str, FloatArray], documents: Mapping[str, FloatArray]) -> Served:
    """*one* with the vectors that were found."""
    candidates = [
        replace(shown, vector=documents.get(shown.text or "")) if shown.vector is None else shown
        for shown in one.candidates
    ]
    return replace(
        one, vector=queries.get(one.query or "") if one.vector is None else one.vector, candidates=candidates
    )
