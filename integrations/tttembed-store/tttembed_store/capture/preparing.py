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

from tttembed_rag.capture.log import Known
from tttembed_rag.capture.textvectors import TextVectors
from tttembed_rag.errors import InputError
from tttembed_rag.rewards.names import checked_name
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.vectors.checks import FloatArray, as_floats

_log = logging.getLogger(__name__)
# Bytes that a candidate takes beside its texts and its vector.
_CANDIDATE_BYTES = 100


def served_of(
    query: str, documents: Sequence[str], rewards: Sequence[float | None], known: Known | None, **facts: Any
) -> Served:
    """A query as a store takes it, which the caller cannot change any more; blank documents are left out.

    Vectors are copied in the precision that a store keeps, and *facts* are other fields of `Served`.

    Raises:
        InputError: The query is blank.
        VectorError: A vector is none.
    """
    known = known or Known()
    none, rows = [None] * len(documents), known.document_vectors
    vectors: Any = none if rows is None else _copied(rows) if isinstance(rows, np.ndarray) else map(_copied, rows)
    columns = zip(known.doc_ids or none, vectors, documents, rewards, strict=True)
    candidates = [
        Candidate(doc_id or "", vector, text, reward) for doc_id, vector, text, reward in columns if text.strip()
    ]
    if not query.strip():
        raise InputError(f"query: expected a text, got {query!r}")
    return Served(known.query_id or "", _copied(known.vector), candidates, query, **facts)


def _copied(vector: Any) -> Any:
    if vector is None:
        return None
    with np.errstate(over="ignore"):  # what is infinite then is refused later, as malformed
        return np.array(as_floats("vector", vector), dtype=np.float32)


def size_of(served: Served) -> int:
    """Bytes that a served query holds on to, but for what is small."""
    texts = [served.query_id, served.query, served.task, served.tenant, served.source]
    vectors = [served.vector]
    for candidate in served.candidates:
        texts += candidate.doc_id, candidate.text
        vectors.append(candidate.vector)
    held = sum(map(getsizeof, texts)) + sum(vector.nbytes for vector in vectors if vector is not None)
    return held + _CANDIDATE_BYTES * len(served.candidates)


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

    def prepare(self, served: Iterable[Served]) -> list[Served]:
        """*served* with the vectors that can be found; those with names that no store takes are left out.

        They are refused here, where they cost the others of a batch nothing.
        """
        named = [query for query in served if _is_well_named(query)]
        embed = self.embed_query
        embed_queries = None if embed is None else lambda texts: [embed(text) for text in texts]
        queries = _embedded(self._query_vectors, embed_queries, (one.query for one in named if one.vector is None))
        shown = (candidate for one in named for candidate in one.candidates)
        lacking = (candidate.text for candidate in shown if candidate.vector is None)
        documents = _embedded(self.vectors, self.embed_documents, lacking)
        return [
            replace(
                one,
                vector=queries.get(one.query) if one.vector is None else one.vector,
                candidates=[
                    replace(shown, vector=documents.get(shown.text)) if shown.vector is None else shown
                    for shown in one.candidates
                ],
            )
            for one in named
        ]


def _is_well_named(served: Served) -> bool:
    """Whether a store takes the names of a query; else a line in the log says why not."""
    try:
        checked_name("query_id", served.query_id, empty=True)
        checked_name("task", served.task)
        checked_name("tenant", served.tenant, empty=True)
        checked_name("source", served.source, empty=True)
        for candidate in served.candidates:
            checked_name("doc_id", candidate.doc_id, empty=True)
    except InputError as error:
        _log.warning("a served query was malformed: %r", error)
        return False
    return True


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
