"""Unit vectors that are never copied: rows with their norms, and the products a fit spends its time on.

The products are numpy's. Rows that have to be gathered are gathered a few at a time, so that they are still in a
core's cache when they are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.vectors.checks import FloatArray, IntArray

Float64: TypeAlias = NDArray[np.float64]

# Bytes of vectors gathered at a time: what a core's second-level cache holds.
_GATHER_BYTES = 1 << 19


@dataclass(frozen=True, slots=True)
class UnitRows:
    """u vectors of any norm, width d."""

    vectors: FloatArray  # (u, d)
    norms: FloatArray  # (u,)

    def __len__(self) -> int:
        return len(self.vectors)

    def rows(self, which: slice | IntArray) -> UnitRows:
        """Some of them, with a slice as a view."""
        return UnitRows(self.vectors[which], self.norms[which])

    @property
    def unit(self) -> FloatArray:
        """(u, d) the unit vectors written out: a copy, for the few places that need one."""
        return self.vectors / self.norms[:, None]

    def times(self, offsets: Float64) -> Float64:
        """(G, u) products with *offsets* (G, d)."""
        return np.divide(offsets.astype(self.vectors.dtype) @ self.vectors.T, self.norms, dtype=np.float64)

    def weighted_sum(self, weights: Float64) -> Float64:
        """(G, d) their sums under *weights* (G, u)."""
        return ((weights / self.norms).astype(self.vectors.dtype) @ self.vectors).astype(np.float64)

    def similarities(self, queries: UnitRows, slots: IntArray) -> Float64:
        """(n, k) products of each of n *queries* with the rows at its *slots* (n, k)."""
        products = np.empty(slots.shape)
        for some, block in self._gathered(slots):
            np.matvec(block, queries.vectors[some], out=products[some])
        products /= self.norms[slots]
        products /= queries.norms[:, None]
        return products

    def gram(self, slots: IntArray) -> Float64:
        """(n, k, k) products among the k rows at each of *slots* (n, k)."""
        products = np.empty((*slots.shape, slots.shape[1]))
        for some, block in self._gathered(slots):
            np.matmul(block, block.transpose(0, 2, 1), out=products[some])
        inverse = 1.0 / self.norms[slots]
        products *= inverse[:, :, None]
        products *= inverse[:, None, :]
        return products

    def combined(self, weights: Float64, slots: IntArray) -> FloatArray:
        """(n, d) sums of the rows at *slots* (n, k) under *weights* (n, k)."""
        sums = np.empty((len(slots), self.vectors.shape[1]), self.vectors.dtype)
        scaled = (weights / self.norms[slots]).astype(self.vectors.dtype)
        for some, block in self._gathered(slots):
            np.vecmat(scaled[some], block, out=sums[some])
        return sums

    def _gathered(self, slots: IntArray) -> Iterator[tuple[slice, FloatArray]]:
        """The vectors (b, k, d) at some of *slots* at a time: views where they lie in order."""
        n, k = slots.shape
        first = int(slots[0, 0])
        in_order = int(slots[-1, -1]) - first == n * k - 1 and bool((np.diff(slots.ravel()) == 1).all())
        step = max(1, _GATHER_BYTES // (k * self.vectors.shape[1] * self.vectors.itemsize))
        for start in range(0, n, step):
            some = slice(start, min(start + step, n))
            if in_order:
                flat = self.vectors[first + start * k : first + some.stop * k]
                yield some, flat.reshape(-1, k, flat.shape[1])
            else:
                yield some, self.vectors[slots[some]]
