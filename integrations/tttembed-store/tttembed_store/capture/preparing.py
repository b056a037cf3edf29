"""Served queries on their way from a request to a store: made of what a caller knew, completed in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from sys import getsizeof
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.errors import InputError
from tttembed_rag.rewards.names import checked_name
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.log import Known, unit_rewards
from tttembed_rag.vectors.checks import FloatArray, as_floats

_log = logging.getLogger(__name__)


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


def size_of(known: Known, *texts: Any) -> int:
    """Bytes that *texts* and what is *known*, which is `owned`, hold on to, but for what is small."""
    rows = known.document_vectors
    vectors = (known.vector, *(rows if isinstance(rows, list) else [rows]))
    return sum(map(getsizeof, (*texts, known.query_id, *(known.doc_ids or ()), *vectors)))


def served_of(
    query: str,
    documents: Sequence[str],
    scores: Sequence[float | None] | None,
    known: Known,
    *,
    scale: Scale,
    query_id: str,
    **facts: Any,
) -> Served:
    """A query as a store takes it, with the vectors that its caller knew; blank documents are left out.

    The *scores* are on a *scale*, the *query_id* is that of the caller's `context`, and *facts* are other fields of
    `Served`. Names that no store takes are refused here, where they cost the others of a batch nothing.

    Raises:
        TTTEmbedError: A score or a name is not what was expected, or the query is blank.
    """
    none = [None] * len(documents)
    rewards = none if scores is None else unit_rewards(scale, documents, scores)
    vectors: Any = none if known.document_vectors is None else known.document_vectors
    columns = zip(known.doc_ids or none, vectors, documents, rewards, strict=True)
    candidates = [
        Candidate(checked_name("doc_id", doc_id or "", empty=True), vector, text, reward)
        for doc_id, vector, text, reward in columns
        if text.strip()
    ]
    if not query.strip():
        raise InputError(f"query: expected a text, got {query!r}")
    vector: Any = known.vector
    served = Served(known.query_id or query_id, vector, candidates, query, **facts)
    checked_name("query_id", served.query_id, empty=True)
    checked_name("task", served.task)
    checked_name("tenant", served.tenant, empty=True)
    checked_name("source", served.source, empty=True)
    return served


@dataclass
class Preparation:
    """Completes served queries in the background; its fields are arguments of `StoreLog`."""

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

    def prepare(self, made: Iterable[Callable[[], Served]]) -> list[Served]:
        """Served queries as they are *made*, with the vectors that can be found; malformed ones are left out."""
        served = list[Served]()
        for make in made:
            try:
                served.append(make())
            except Exception as error:  # noqa: BLE001 - a caller's arguments: anything may be wrong with them
                _log.warning("a served query was malformed: %r", error)
        embed = self.embed_query
        embed_queries = None if embed is None else lambda texts: [embed(text) for text in texts]
        queries = _embedded(
            self._query_vectors, embed_queries, (entry.query for entry in served if entry.vector is None)
        )
        shown = (candidate for entry in served for candidate in entry.candidates)
        lacking = (candidate.text for candidate in shown if candidate.vector is None)
        documents = _embedded(self.vectors, self.embed_documents, lacking)
        return [
            replace(
                entry,
                vector=queries.get(entry.query) if entry.vector is None else entry.vector,
                candidates=[
                    replace(shown, vector=documents.get(shown.text)) if shown.vector is None else shown
                    for shown in entry.candidates
                ],
            )
            for entry in served
        ]


def _embedded(
    vectors: TextVectors, embed: Callable[[list[str]], Sequence[ArrayLike]] | None, texts: Iterable[str]
) -> dict[str, FloatArray]:
    """Vectors by text, as far as they can be found; a failure of the model is logged."""
    distinct = list(dict.fromkeys(texts))
    if embed is None or not distinct:
        return {}
    try:
        rows = vectors.of(distinct, embed)
        return {text: row for text, row in zip(distinct, rows, strict=True) if np.isfinite(row).all() and row.any()}
    except Exception:  # noqa: BLE001 - the caller's model: a text that it cannot embed is written all the same
        _log.exception("%d texts are written without vectors", len(distinct))
        return {}
