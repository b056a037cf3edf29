"""Exact cosine search with FAISS."""

from __future__ import annotations

from typing import Any

import numpy as np

from tttembed_rag.errors import VectorError, check_count, require
from tttembed_rag.vectors.checks import FloatArray, IntArray, as_floats, checked_norms

__all__ = ["FaissIndex"]


class FaissIndex:
    """An index of unit document vectors, searched by inner product, which is cosine similarity.

    Args:
        index: A finished flat index of FAISS over unit vectors, with the inner-product metric.
    """

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def from_vectors(cls, vectors: FloatArray) -> FaissIndex:
        """Index document vectors (N, d) of any norm."""
        faiss = require("faiss", "eval")
        floats = as_floats("vectors", vectors)
        if floats.ndim != 2 or not floats.size:
            raise VectorError(f"vectors: expected a matrix (N, d) with N > 0, got shape {floats.shape}")
        unit = _unit("vectors", floats)
        index = faiss.IndexFlatIP(unit.shape[1])
        index.add(unit)
        return cls(index)

    def __len__(self) -> int:
        """Number of documents."""
        return int(self._index.ntotal)

    def search(self, queries: FloatArray, k: int, *, own: IntArray | None = None) -> tuple[FloatArray, IntArray]:
        """Cosine similarities (m, k) and rows (m, k) of the documents nearest to *queries* (m, d), best first.

        Where there are fewer than *k* documents these are all. A query never finds itself: its *own* row (m,), -1
        where it has none, is left out, or the last of all documents.
        """
        check_count("k", k)
        floats = as_floats("queries", queries)
        if floats.ndim != 2 or floats.shape[1] != self._index.d:
            raise VectorError(f"queries: expected shape (m, {self._index.d}), got {floats.shape}")
        more = own is not None and bool((own >= 0).any())
        similarities, rows = self._index.search(_unit("queries", floats), min(k + more, len(self)))
        if own is not None and more:
            last = np.argsort(rows == own[:, None], axis=1, kind="stable")[:, :k]
            similarities, rows = (np.take_along_axis(column, last, axis=1) for column in (similarities, rows))
        return similarities, rows.astype(np.intp)


def _unit(name: str, vectors: FloatArray) -> FloatArray:
    """Checked vectors (m, d) at unit length, in the float32 that FAISS takes."""
    return (vectors / checked_norms(name, vectors)[:, None]).astype(np.float32)
