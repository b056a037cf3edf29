"""From calls of a log to served queries that a store takes: rewards, ids, and the vectors that callers did not know."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.capture.log import Known, unit_rewards
from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.errors import InputError
from tttembed_rag.offsets.values import TextId
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.rewards.observations import MAX_DEPTH, Candidate, Served
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.vectors.checks import FloatArray, as_floats

_log = logging.getLogger(__name__)
DAY_SECONDS = 86_400
# Bytes of a number in a list: the object, and the reference to it.
_NUMBER_BYTES = 32


class Call(NamedTuple):
    """The arguments of one call of a log, its time, tenant, query id and source: all that a request puts together."""

    query: str
    documents: tuple[str, ...]
    scores: Sequence[float | None] | None
    task: str | None
    # None where the caller said none.
    tenant: str | None
    at: float
    known: Known
    query_id: str
    source: str = ""

    @property
    def size(self) -> int:
        """Bytes that it holds on to, but for what is small."""
        names = (self.task, self.tenant, self.query_id, self.known.query_id, self.source, *(self.known.doc_ids or ()))
        rows = self.known.document_vectors
        vectors = [rows] if rows is None or isinstance(rows, np.ndarray) else rows
        return sum(map(getsizeof, (self.query, *self.documents, *names))) + sum(
            map(_bytes_of, (self.known.vector, *vectors))
        )

    @property
    def lacks_vectors(self) -> bool:
        """Whether its query has no vector yet: texts take far longer to embed than to write."""
        return self.known.vector is None


# What is known by a caller who says nothing.
NOTHING = Known()


def owned(known: Known) -> Known:
    """A copy of *known* that the caller cannot change any more, in the precision that a store keeps."""
    rows, ids = known.document_vectors, known.doc_ids
    rows = _copied(rows) if rows is None or isinstance(rows, np.ndarray) else [_copied(row) for row in rows]
    return Known(_copied(known.vector), rows, known.query_id, None if ids is None else tuple(ids))


def _copied(vector: Any) -> Any:
    """A copy as float32, an eighth of a list of floats; what is no vector is refused later, as malformed."""
    if vector is None:
        return None
    if isinstance(vector, list | tuple):
        if vector and isinstance(vector[0], float):
            with suppress(struct.error):  # in half the time that an array of a list takes
                return np.frombuffer(struct.pack(f"{len(vector)}f", *vector), dtype=np.float32)
        return copy(vector)
    array = np.asarray(vector)
    with np.errstate(over="ignore"):
        return array.astype(np.float32 if array.dtype == np.float64 else array.dtype)


def _bytes_of(vector: Any) -> int:
    """Bytes of a vector; a list has a Python object for each number."""
    if vector is None:
        return 0
    size = getattr(vector, "nbytes", None)
    return _NUMBER_BYTES * len(vector) if size is None else int(size)


class DailyPairs:
    """A budget of so many pairs for each UTC day; None is no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = math.inf if limit is None else limit
        # The last day, and its pairs so far.
        self._last = 0, 0

    def is_spent(self, at: float) -> bool:
        """Whether the day of *at* has no pairs left; cheap, from any thread."""
        day, pairs = self._last
        return pairs >= self._limit and day == at // DAY_SECONDS

    def admits(self, at: float, pairs: int) -> bool:
        """Whether so many pairs of a query fit into the day of *at*, as far as they are kept, and count them."""
        day, (last, before) = int(at // DAY_SECONDS), self._last
        spent, more = before if day == last else 0, min(pairs, MAX_DEPTH)
        admitted = spent + more <= self._limit
        self._last = day, spent + more if admitted else spent
        return admitted


class Preparation:
    """Makes served queries of calls, in the background; the arguments are those of `StoreLog`."""

    def __init__(
        self,
        *,
        scale: Scale,
        embedder: str,
        embed_query: Callable[[str], ArrayLike] | None,
        embed_documents: Callable[[list[str]], Sequence[ArrayLike]] | None,
        vectors: TextVectors,
        pairs: DailyPairs,
    ) -> None:
        self._scale = scale
        self._embedder = embedder
        self._embed_queries = None if embed_query is None else partial(_each, embed_query)
        self._embed_documents = embed_documents
        self._query_vectors, self._document_vectors = TextVectors(), vectors
        self._pairs = pairs

    @property
    def embeds(self) -> bool:
        """Whether texts may have to be embedded, which can take seconds for a few queries."""
        return self._embed_queries is not None or self._embed_documents is not None

    def renew(self) -> None:
        """In a forked child, leave behind remembered vectors and the locks that other threads may have held."""
        self._query_vectors, self._document_vectors = copy(self._query_vectors), copy(self._document_vectors)

    def prepare(self, calls: Sequence[Call], text_id: TextId) -> tuple[list[Served], int, int]:
        """Served queries for *calls*, with the vectors that can be found.

        How many calls over the budget, and how many malformed ones, were left out stands behind them.
        """
        served, sampled_out, malformed = list[Served](), 0, 0
        for call in calls:
            try:
                one = self._served(call, text_id)
            except Exception as error:  # noqa: BLE001 - a caller's arguments: anything may be wrong with them
                _log.warning("a served query was malformed: %r", error)
                malformed += 1
                continue
            if self._pairs.admits(call.at, len(one.candidates)):
                served.append(one)
            else:
                sampled_out += 1
        queries = _vectors(
            self._query_vectors, self._embed_queries, (one.query for one in served if one.vector is None)
        )
        candidates = (candidate for one in served for candidate in one.candidates)
        documents = _vectors(
            self._document_vectors,
            self._embed_documents,
            (candidate.text for candidate in candidates if candidate.vector is None),
        )
        filled = [_filled(one, queries, documents) for one in served]
        return filled, sampled_out, malformed

    def _served(self, call: Call, text_id: TextId) -> Served:
        """One call as a store takes it, with the vectors that its caller knew; blank documents are left out."""
        known, none = call.known, [None] * len(call.documents)
        rewards = none if call.scores is None else unit_rewards(self._scale, call.documents, call.scores)
        vectors = none if known.document_vectors is None else known.document_vectors
        candidates = [
            Candidate(doc_id or text_id(text), _floats(vector), text, reward)
            for text, doc_id, vector, reward in zip(
                call.documents, known.doc_ids or none, vectors, rewards, strict=True
            )
            if text.strip()
        ]
        if not call.query.strip():
            raise InputError(f"query: expected a text, got {call.query!r}")
        served = Served(
            known.query_id or call.query_id or text_id(call.query),
            _floats(known.vector),
            candidates,
            call.query,
            call.task or DEFAULT_TASK,
            call.tenant or "",
            call.at,
            self._embedder,
            call.source,
        )
        _check_names(served)
        return served


def _check_names(served: Served) -> None:
    """Refuse names that no store takes here, where they cost the batch nothing."""
    from tttembed_rag.rewards.names import checked_name

    checked_name("tenant", served.tenant, empty=True)
    checked_name("task", served.task)
    checked_name("query_id", served.query_id)
    checked_name("source", served.source, empty=True)
    for candidate in served.candidates:
        checked_name("doc_id", candidate.doc_id)


def _each(embed: Callable[[str], ArrayLike], texts: list[str]) -> list[ArrayLike]:
    return [embed(text) for text in texts]


def _floats(vector: ArrayLike | None) -> FloatArray | None:
    return None if vector is None else as_floats("vector", vector)


def _vectors(
    vectors: TextVectors,
    embed: Callable[[list[str]], Sequence[ArrayLike]] | None,
    texts: Iterable[str | None],
) -> dict[str, FloatArray]:
    """Vectors by text, as far as they can be found; a failure of the model is logged."""
    distinct = list(dict.fromkeys(text for text in texts if text is not None))
    if embed is None or not distinct:
        return {}
    try:
        rows = vectors.of(distinct, embed)
        return {text: row for text, row in zip(distinct, rows, strict=True) if np.isfinite(row).all() and row.any()}
    except Exception:  # noqa: BLE001 - the caller's model: a text that it cannot embed is written all the same
        _log.exception("%d texts are written without vectors", len(distinct))
        return {}


def _filled(served: Served, queries: Mapping[str, FloatArray], documents: Mapping[str, FloatArray]) -> Served:
    """A served query with the vectors that were found."""
    candidates = [
        candidate if candidate.vector is not None else replace(candidate, vector=documents.get(candidate.text or ""))
        for candidate in served.candidates
    ]
    vector = queries.get(served.query or "") if served.vector is None else served.vector
    return replace(served, vector=vector, candidates=candidates)
