"""From calls of a log to served queries that a store takes: rewards, ids, and the vectors that callers did not know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from sys import getsizeof
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.capture.log import Known, unit_rewards
from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.errors import InputError
from tttembed_rag.offsets.values import TextId
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.rewards.names import checked_name
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.vectors.checks import FloatArray, as_floats

_log = logging.getLogger(__name__)


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
        """Bytes that it holds on to, but for what is small; vectors are those of `owned`."""
        known, rows = self.known, self.known.document_vectors
        names = (self.task, self.tenant, self.query_id, known.query_id, self.source, *(known.doc_ids or ()))
        vectors = (known.vector, *(rows if isinstance(rows, list) else [rows]))
        return sum(map(getsizeof, (self.query, *self.documents, *names, *vectors)))


def owned(known: Known | None) -> Known:
    """A copy of *known* that the caller cannot change any more, in the precision that a store keeps.

    Raises:
        VectorError: A vector is none.
    """
    if known is None:
        return Known()
    rows, ids = known.document_vectors, known.doc_ids
    whole = rows is None or isinstance(rows, np.ndarray)
    copied = _copied(rows) if whole else [_copied(row) for row in rows or ()]
    return Known(_copied(known.vector), copied, known.query_id, None if ids is None else tuple(ids))


def _copied(vector: Any) -> Any:
    if vector is None:
        return None
    with np.errstate(over="ignore"):  # what is infinite then is refused later, as malformed
        return np.array(as_floats("vector", vector), dtype=np.float32)


@dataclass
class Preparation:
    """Makes served queries of calls, in the background; its fields are arguments of `StoreLog`."""

    scale: Scale
    embedder: str
    embed_query: Callable[[str], ArrayLike] | None
    embed_documents: Callable[[list[str]], Sequence[ArrayLike]] | None
    vectors: TextVectors

    def __post_init__(self) -> None:
        self._query_vectors = TextVectors()

    @property
    def embeds(self) -> bool:
        """Whether texts may have to be embedded, which can take seconds for a few queries."""
        return self.embed_query is not None or self.embed_documents is not None

    def renew(self) -> None:
        """In a forked child, leave behind remembered vectors and the locks that other threads may have held."""
        self._query_vectors, self.vectors = copy(self._query_vectors), copy(self.vectors)

    def prepare(self, calls: Sequence[Call], text_id: TextId) -> tuple[list[Served], int]:
        """Served queries for *calls*, with the vectors that can be found, and how many malformed ones were left out."""
        served = list[Served]()
        for call in calls:
            try:
                served.append(self._served(call, text_id))
            except Exception as error:  # noqa: BLE001 - a caller's arguments: anything may be wrong with them
                _log.warning("a served query was malformed: %r", error)
        asked = self.embed_query
        embed_queries = None if asked is None else lambda texts: [asked(text) for text in texts]
        queries = _embedded(self._query_vectors, embed_queries, (one.query for one in served if one.vector is None))
        shown = (candidate for one in served for candidate in one.candidates)
        lacking = (candidate.text for candidate in shown if candidate.vector is None)
        documents = _embedded(self.vectors, self.embed_documents, lacking)
        filled = [
            replace(
                one,
                vector=queries.get(one.query or "") if one.vector is None else one.vector,
                candidates=[
                    replace(shown, vector=documents.get(shown.text or "")) if shown.vector is None else shown
                    for shown in one.candidates
                ],
            )
            for one in served
        ]
        return filled, len(calls) - len(served)

    def _served(self, call: Call, text_id: TextId) -> Served:
        """One call as a store takes it, with the vectors that its caller knew; blank documents are left out.

        Names that no store takes are refused here, where they cost the batch nothing.
        """
        known, none = call.known, [None] * len(call.documents)
        rewards = none if call.scores is None else unit_rewards(self.scale, call.documents, call.scores)
        vectors: Any = none if known.document_vectors is None else known.document_vectors
        candidates = [
            Candidate(checked_name("doc_id", doc_id or text_id(text)), vector, text, reward)
            for text, doc_id, vector, reward in zip(
                call.documents, known.doc_ids or none, vectors, rewards, strict=True
            )
            if text.strip()
        ]
        if not call.query.strip():
            raise InputError(f"query: expected a text, got {call.query!r}")
        vector: Any = known.vector
        return Served(
            checked_name("query_id", known.query_id or call.query_id or text_id(call.query)),
            vector,
            candidates,
            call.query,
            checked_name("task", call.task or DEFAULT_TASK),
            checked_name("tenant", call.tenant or "", empty=True),
            call.at,
            self.embedder,
            checked_name("source", call.source, empty=True),
        )


def _embedded(
    vectors: TextVectors, embed: Callable[[list[str]], Sequence[ArrayLike]] | None, texts: Iterable[str | None]
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
