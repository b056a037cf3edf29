"""Cosine search with FAISS, flat (exact) or HNSW (approximate)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tttembed_rag.errors import InputError, VectorError, check_count, require
from tttembed_rag.vectors.checks import FloatArray, IntArray, as_floats, checked_norms

__all__ = ["FaissIndex"]

# Graph degree and search width of HNSW: FAISS's own guidance for a few million vectors.
_LINKS = 32
_SEARCH_WIDTH = 128


class FaissIndex:
    """An index of unit document vectors, searched by inner product, which is cosine similarity.

    Args:
        index: A finished flat or HNSW index of FAISS over unit vectors, with the inner-product metric.
    """

    def __init__(self, index: Any) -> None:
        self._index = index

    @classmethod
    def from_vectors(cls, vectors: FloatArray, *, kind: Literal["flat", "hnsw"] = "flat") -> FaissIndex:
        """Index document vectors (N, d) of any norm; ``flat`` compares every document, ``hnsw`` walks a graph."""
        faiss = require("faiss", "eval")
        floats = as_floats("vectors", vectors)
        if floats.ndim != 2 or not floats.size:
            raise VectorError(f"vectors: expected a matrix (N, d) with N > 0, got shape {floats.shape}")
        unit = _unit("vectors", floats)
        if kind == "flat":
            index = faiss.IndexFlatIP(unit.shape[1])
        elif kind == "hnsw":
            index = faiss.IndexHNSWFlat(unit.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efSearch = _SEARCH_WIDTH
        else:
            raise InputError(f"kind: expected flat or hnsw, got {kind!r}")
        index.add(unit)
        return cls(index)

    def __len__(self) -> int:
        """Number of documents."""
        return int(self._index.ntotal)

    def search(self, queries: FloatArray, k: int) -> tuple[FloatArray, IntArray]:
        """Cosine similarities (m, k) and rows (m, k) of the documents nearest to *queries* (m, d), best first.

        Where there are fewer than *k* documents these are all.
        """
        check_count("k", k)
        floats = as_floats("queries", queries)
        if floats.ndim != 2 or floats.shape[1] != self._index.d:
            raise VectorError(f"queries: expected shape (m, {self._index.d}), got {floats.shape}")
        unit = _unit("queries", floats)
        similarities, rows = self._index.search(unit, min(k, len(self)))
        if (lost := (rows < 0).any(axis=1)).any():  # a graph walk may run out of neighbours before k
            similarities[lost], rows[lost] = self._index.storage.search(unit[lost], rows.shape[1])
        return similarities, rows.astype(np.intp)


def _unit(name: str, vectors: FloatArray) -> FloatArray:
    """Checked vectors (m, d) at unit length, in the float32 that FAISS takes."""
    return (vectors / checked_norms(name, vectors)[:, None]).astype(np.float32)
