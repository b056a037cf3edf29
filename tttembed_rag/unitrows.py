"""Unit vectors that are never copied: rows with their norms, and the products a fit spends its time on.

On the CPU the products are numpy's. Rows that have to be gathered are gathered a few at a time, so that
they are still in a core's cache when they are multiplied. With ``device="cuda"`` the rows live on a GPU
and torch multiplies; what goes in and what comes out are numpy arrays either way, the same numbers up to
the rounding of float32.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, require
from tttembed_rag.vectors import FloatArray, IntArray

Float64: TypeAlias = NDArray[np.float64]
Device: TypeAlias = Literal["auto", "cpu", "cuda"]

# Bytes of vectors gathered at a time: what a core's second-level cache holds.
_GATHER_BYTES = 1 << 19
# The same on a GPU, where only the memory limits it.
_GATHER_BYTES_GPU = 1 << 30
# Below this many bytes of vectors a fit is done before they have reached a GPU.
_WORTH_A_GPU = 1 << 28
# Largest 1 - cosine between what a model makes of one text twice: batches move it by 1e-7, float16 by 1e-6, bfloat16 by
# 8e-5 (all-MiniLM-L6-v2). They are looked for among this many nearest, by a few products with each row.
_SAME = 1e-4
_NEAREST = 7
_PRODUCTS = 8
# Rows that are rounded at a time.
_AT_ONCE = 1024


class Rows(Protocol):
    """u unit vectors of width d and their products."""

    def __len__(self) -> int: ...

    def rows(self, which: slice) -> Rows:
        """Some of them, as a view."""
        ...

    def times(self, offsets: Float64) -> Float64:
        """(G, u) products with *offsets* (G, d)."""
        ...

    def weighted_sum(self, weights: Float64) -> Float64:
        """(G, d) their sums under *weights* (G, u)."""
        ...

    def gram(self, slots: IntArray) -> Float64:
        """(n, k, k) products among the k rows at each of *slots* (n, k)."""
        ...

    def combined(self, weights: Float64, slots: IntArray) -> FloatArray:
        """(n, d) sums of the rows at *slots* (n, k) under *weights* (n, k)."""
        ...


@dataclass(frozen=True, slots=True)
class UnitRows:
    """Rows on the CPU.

    Attributes:
        vectors: (u, d) vectors of any norm.

        norms: (u,) their norms.
    """

    vectors: FloatArray
    norms: FloatArray

    def __len__(self) -> int:
        return len(self.vectors)

    def on(self, device: Device) -> Rows:
        """These rows where they are to be multiplied; *auto* takes a GPU where one pays.

        Raises:
            InputError: ``cuda`` was asked for and torch sees no such device.

            MissingExtraError: ``cuda`` was asked for without torch.
        """
        if device == "cpu" or (device == "auto" and (self.vectors.nbytes < _WORTH_A_GPU or not _gpu_at_hand())):
            return self
        torch = require("torch", "gpu")
        if torch.cuda.is_available():
            return TorchRows.of(self, "cuda")
        if device == "auto":
            return self
        raise InputError("device: expected a CUDA device that torch can see, got none (use device='cpu')")

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

    def alike(self) -> IntArray:
        """(u,) a number for each different row: what a model makes of one text, twice, is one within `_SAME`.

        The numbers follow a hash of the rows, not their order.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components
        from scipy.spatial import KDTree

        _, first, number = np.unique(self._names(), return_index=True, return_inverse=True)
        sketched = self.vectors[first] @ _sketch(self.vectors.shape[1]) / self.norms[first, None]
        reach = (2 * _SAME) ** 0.5
        neighbours = KDTree(sketched).query(sketched, k=range(2, 2 + _NEAREST), distance_upper_bound=reach)[1]
        one, place = np.nonzero(neighbours < len(first))
        other = neighbours[one, place]
        near = [self.rows(first[some]).unit for some in (one, other)]
        same = np.vecdot(*near) > 1 - _SAME
        links = coo_array((np.ones(same.sum()), (one[same], other[same])), shape=(len(first), len(first)))
        parts = connected_components(links, directed=False)[1]
        # Each part is called by its least name, so that the numbers are those of the names where nothing is alike.
        _, least, part = np.unique(parts, return_index=True, return_inverse=True)
        return np.asarray(np.unique(least[part], return_inverse=True)[1][number])

    def _names(self) -> NDArray[np.uint64]:
        """(u,) a hash of each unit row, to five digits."""
        names = np.empty(len(self), np.uint64)
        for start in range(0, len(self), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            rounded = (np.round(self.rows(some).unit, 5) + 0.0).astype(np.float32)
            names[some] = [crc32(row) << 32 | int.from_bytes(blake2b(row, digest_size=4).digest()) for row in rounded]
        return names

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


@dataclass(frozen=True, slots=True)
class TorchRows:
    """Rows on a torch device.

    Attributes:
        unit: (u, d) tensor of unit vectors.
    """

    unit: Any

    @classmethod
    def of(cls, rows: UnitRows, device: str) -> TorchRows:
        """A copy of *rows* on *device*."""
        return cls(_sent(rows.vectors, device) / _sent(rows.norms.astype(rows.vectors.dtype), device)[:, None])

    def __len__(self) -> int:
        return len(self.unit)

    def rows(self, which: slice) -> TorchRows:
        """Some of them, as a view."""
        return TorchRows(self.unit[which])

    def times(self, offsets: Float64) -> Float64:
        """(G, u) products with *offsets* (G, d)."""
        return _fetched(self._like(offsets) @ self.unit.T).astype(np.float64)

    def weighted_sum(self, weights: Float64) -> Float64:
        """(G, d) their sums under *weights* (G, u)."""
        return _fetched(self._like(weights) @ self.unit).astype(np.float64)

    def gram(self, slots: IntArray) -> Float64:
        """(n, k, k) products among the k rows at each of *slots* (n, k)."""
        blocks = [_fetched(block @ block.mT) for _, block in self._gathered(slots)]
        return np.concatenate(blocks).astype(np.float64)

    def combined(self, weights: Float64, slots: IntArray) -> FloatArray:
        """(n, d) sums of the rows at *slots* (n, k) under *weights* (n, k)."""
        blocks = self._gathered(slots)
        return np.concatenate([_fetched((self._like(weights[some])[:, None] @ block)[:, 0]) for some, block in blocks])

    def _like(self, numbers: Float64) -> Any:
        """*numbers* beside the rows, in their precision."""
        return _sent(numbers, self.unit.device).to(self.unit.dtype)

    def _gathered(self, slots: IntArray) -> Iterator[tuple[slice, Any]]:
        """The vectors (b, k, d) at some of *slots* at a time."""
        step = max(1, _GATHER_BYTES_GPU // (slots.shape[1] * self.unit.shape[1] * self.unit.element_size()))
        for start in range(0, len(slots), step):
            some = slice(start, start + step)
            yield some, self.unit[_sent(slots[some], self.unit.device)]


def _sent(array: NDArray[Any], device: Any) -> Any:
    """An array as a tensor on *device*."""
    return require("torch", "gpu").from_numpy(np.require(array, requirements=["C", "W"])).to(device)


def _fetched(tensor: Any) -> FloatArray:
    """A tensor as a numpy array."""
    return np.asarray(tensor.cpu().numpy())


def _gpu_at_hand() -> bool:
    """Whether asking torch for a GPU is worth loading it: it is loaded, or there is a driver."""
    return "torch" in sys.modules or any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/dxg"))


@cache
def _sketch(width: int) -> FloatArray:
    """(width, at most 8) orthonormal columns: products with them bring no two rows further apart."""
    drawn = np.random.default_rng(0).standard_normal((width, min(width, _PRODUCTS)))
    return np.asarray(np.linalg.qr(drawn)[0], dtype=np.float32)
