"""The products of unit rows on a GPU, through torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, require
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64, UnitRows

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
# Bytes of vectors gathered at a time: only the memory of a GPU limits them.
_GATHER_BYTES = 1 << 30
# Bytes of vectors below which a fit on the CPU ends before they have reached a GPU.
_WORTH_A_GPU = 1 << 28


def placed(rows: UnitRows, device: Device) -> Rows:
    """*rows* where they are to be multiplied; ``auto`` takes a GPU where one pays, ``cuda`` is refused without one."""
    if device == "cpu" or (device == "auto" and (rows.vectors.nbytes < _WORTH_A_GPU or not _worth_asking())):
        return rows
    torch = require("torch", "local")
    if torch.cuda.is_available():
        return TorchRows.of(rows, "cuda")
    if device == "auto":
        return rows
    raise InputError("device: expected a CUDA device that torch can see, got none (use device='cpu')")


@dataclass(frozen=True, slots=True)
class TorchRows:
    """Rows on a torch device."""

    unit: Any  # (u, d) tensor of unit vectors

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
        step = max(1, _GATHER_BYTES // (slots.shape[1] * self.unit.shape[1] * self.unit.element_size()))
        for start in range(0, len(slots), step):
            some = slice(start, start + step)
            yield some, self.unit[_sent(slots[some], self.unit.device)]


Rows: TypeAlias = UnitRows | TorchRows


def _worth_asking() -> bool:
    """Whether asking torch for a GPU is worth the time of loading it: it is loaded, or it is there with a driver."""
    drivers = any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/dxg"))
    return "torch" in sys.modules or (drivers and find_spec("torch") is not None)


def _sent(array: NDArray[Any], device: Any) -> Any:
    """An array as a tensor on *device*."""
    return require("torch", "local").from_numpy(np.require(array, requirements=["C", "W"])).to(device)


def _fetched(tensor: Any) -> FloatArray:
    """A tensor as a numpy array."""
    return np.asarray(tensor.cpu().numpy())
