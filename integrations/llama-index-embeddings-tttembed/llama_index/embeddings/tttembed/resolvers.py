"""Node vectors from the index that has them, so that nothing is embedded twice.

Retrieved nodes carry an id and no vector. Each function below takes an index and node ids, and
returns the vectors its store has under them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from llama_index.core.indices import VectorStoreIndex
from llama_index.core.schema import MetadataMode, NodeWithScore

__all__ = ["ids_of", "stored_vectors"]


def stored_vectors(index: VectorStoreIndex) -> Callable[[list[str]], Mapping[str, Any]] | None:
    """A function from node ids to the vectors of *index*, for ``TextVectors(stored=...)``.

    Known are SimpleVectorStore and FaissVectorStore, and what is derived from them. None for an index
    over any other store: its nodes are embedded again.
    """
    for kind in type(index.vector_store).__mro__:
        if kind.__name__ in _FETCH:
            return partial(_FETCH[kind.__name__], index)
    return None


def ids_of(nodes: Sequence[NodeWithScore]) -> list[tuple[str, str | None]]:
    """(embedded text, id) of *nodes*, for `TextVectors.note`."""
    return [(node.node.get_content(metadata_mode=MetadataMode.EMBED), node.node.node_id) for node in nodes]


def _simple(index: Any, ids: list[str]) -> dict[str, Any]:
    vectors = index.vector_store.data.embedding_dict
    return {key: vectors[key] for key in ids if key in vectors}


def _faiss(index: Any, ids: list[str]) -> dict[str, Any]:
    wanted = set(ids)
    rows = [(key, int(row)) for row, key in index.index_struct.nodes_dict.items() if key in wanted]
    return {key: index.vector_store.client.reconstruct(row) for key, row in rows}


_FETCH: dict[str, Callable[[Any, list[str]], dict[str, Any]]] = {
    "SimpleVectorStore": _simple,
    "FaissVectorStore": _faiss,
}
