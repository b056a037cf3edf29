"""Document vectors from the store that has them, so that nothing is embedded twice.

Retrieved documents carry an id and no vector. Each function below takes a store and ids, and returns
the vectors it has under them; a store that normalises returns unit vectors, which rank the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

__all__ = ["ids_of", "stored_vectors"]


def stored_vectors(store: VectorStore) -> Callable[[list[str]], Mapping[str, Any]] | None:
    """A function from document ids to the vectors *store* has, for ``TextVectors(stored=...)``.

    Known are InMemoryVectorStore, FAISS, Chroma, Qdrant and PGVector, and what is derived from them.
    None for any other store, and for a PGVector in async mode: their documents are embedded again.
    """
    for kind in type(store).__mro__:
        if kind.__name__ in _FETCH:
            return None if getattr(store, "async_mode", False) else partial(_FETCH[kind.__name__], store)
    return None


def ids_of(documents: Sequence[Document]) -> list[tuple[str, str | None]]:
    """(text, id) of *documents*, for `TextVectors.note`."""
    # Qdrant's documents carry it in their metadata, where it may be a number.
    ids = [(document.page_content, document.id or document.metadata.get("_id")) for document in documents]
    return [(text, None if key is None else str(key)) for text, key in ids]


def _in_memory(store: Any, ids: list[str]) -> dict[str, Any]:
    return {key: store.store[key]["vector"] for key in ids if key in store.store}


def _faiss(store: Any, ids: list[str]) -> dict[str, Any]:
    wanted = set(ids)
    rows = [(key, row) for row, key in store.index_to_docstore_id.items() if key in wanted]
    return {key: store.index.reconstruct(row) for key, row in rows}


def _chroma(store: Any, ids: list[str]) -> dict[str, Any]:
    columns = store.get(ids=ids, include=["embeddings"])
    return dict(zip(columns["ids"], columns["embeddings"], strict=True))


def _qdrant(store: Any, ids: list[str]) -> dict[str, Any]:
    points = [int(key) if key.isdecimal() else key for key in ids]
    records = store.client.retrieve(store.collection_name, ids=points, with_payload=False, with_vectors=True)
    name = store.vector_name
    return {
        str(record.id): record.vector[name] if isinstance(record.vector, dict) else record.vector for record in records
    }


def _pgvector(store: Any, ids: list[str]) -> dict[str, Any]:
    rows = store.EmbeddingStore
    with store._make_sync_session() as session:  # noqa: SLF001 - the store has no public way to its vectors
        return dict(session.query(rows.id, rows.embedding).filter(rows.id.in_(ids)).all())


_FETCH: dict[str, Callable[[Any, list[str]], dict[str, Any]]] = {
    "InMemoryVectorStore": _in_memory,
    "FAISS": _faiss,
    "Chroma": _chroma,
    "QdrantVectorStore": _qdrant,
    "PGVector": _pgvector,
}
