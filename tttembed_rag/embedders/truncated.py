"""Fewer dimensions of a model that was trained for it (Matryoshka)."""

from __future__ import annotations

from collections.abc import Sequence

from tttembed_rag.embedders.contract import Embedder, unit_vectors
from tttembed_rag.errors import InputError, check_count
from tttembed_rag.vectors.checks import FloatArray


class Truncated:
    """The first dimensions of another embedder's vectors, at unit length again.

    Args:
        embedder: The embedder.
        dimensions: Number of dimensions that are kept, at least 1 and at most the embedder's width.
    """

    def __init__(self, embedder: Embedder, dimensions: int) -> None:
        check_count("dimensions", dimensions)
        self._embedder = embedder
        self._dimensions = dimensions
        self.fingerprint = f"{embedder.fingerprint}[:{dimensions}]"

    def embed_queries(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), dimensions) of queries."""
        return self._cut(self._embedder.embed_queries(texts))

    def embed_documents(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors (len(texts), dimensions) of documents."""
        return self._cut(self._embedder.embed_documents(texts))

    def _cut(self, vectors: FloatArray) -> FloatArray:
        if len(vectors) and vectors.shape[1] < self._dimensions:
            raise InputError(f"dimensions: expected at most {vectors.shape[1]}, got {self._dimensions}")
        return unit_vectors(self.fingerprint, vectors[:, : self._dimensions], len(vectors))
