"""Unit vectors, the checks on incoming vectors, and the shift a served query goes through."""

from __future__ import annotations

import math
import struct
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import VectorError

FloatArray: TypeAlias = NDArray[np.floating[Any]]
IntArray: TypeAlias = NDArray[np.intp]

# Squared norms outside this range have lost digits in float32; norms() then repeats in float64.
_SAFE_SQUARES = (1e-30, 1e30)


def as_floats(name: str, value: ArrayLike) -> FloatArray:
    """*value* as a float32 or float64 array; no copy where it already is one.

    Lists become float64, half precision becomes float32, anything else is a VectorError. Tensors of torch, or lists of
    them, are read wherever they are.
    """
    try:
        value = _off_device(value)
        floats = _flat(value) if isinstance(value, list) else np.asarray(value)
        if floats.dtype.name in ("float16", "bfloat16"):
            return floats.astype(np.float32)
        if floats.dtype.kind in "iu":
            return floats.astype(np.float64)
    except ValueError as exc:
        raise VectorError(f"{name}: expected vectors of one width, got rows of different lengths") from exc
    except (TypeError, RuntimeError) as exc:  # of another library
        raise VectorError(f"{name}: expected float16, float32 or float64 numbers, got {type(value).__name__}") from exc
    if floats.dtype not in (np.float32, np.float64):
        raise VectorError(f"{name}: expected float16, float32 or float64 numbers, got dtype {floats.dtype}")
    return floats


def _off_device(value: Any) -> Any:
    """A tensor, or lists of them, as numpy has it: without a gradient, in the memory of the CPU, no bfloat16."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    if (
        isinstance(value, list | tuple)
        and len(value)
        and (hasattr(value[0], "detach") or isinstance(value[0], list | tuple))
    ):
        return [_off_device(item) for item in value]
    return value


def _flat(values: list[Any]) -> NDArray[Any]:
    """A list as an array: one of floats by way of `struct.pack`, which takes a third of the time."""
    if values and isinstance(values[0], float):
        try:
            return np.frombuffer(struct.pack(f"{len(values)}d", *values))
        except (struct.error, OverflowError):
            pass
    return np.asarray(values)


def norms(vectors: FloatArray) -> FloatArray:
    """Euclidean norms over the last axis, shape ``vectors.shape[:-1]``, safe at extreme scales."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.vecdot(vectors, vectors)
        low, high = _SAFE_SQUARES
        if ((squares > low) & (squares < high)).all():
            return np.asarray(np.sqrt(squares))
        largest = np.abs(vectors.astype(np.float64)).max(axis=-1, keepdims=True)
        scaled = vectors / np.where(largest > 0, largest, 1.0)
        return np.asarray(largest[..., 0] * np.sqrt(np.vecdot(scaled, scaled)))


def checked_norms(name: str, vectors: FloatArray, *, first: int = 0) -> FloatArray:
    """Norms of *vectors*, or a VectorError that names the first NaN, infinite or zero row, counted from *first*."""
    lengths = norms(vectors)
    bad = ~(np.isfinite(lengths) & (lengths > 0))
    if bad.any():
        row = int(np.argmax(bad))
        vector = vectors if vectors.ndim == 1 else vectors.reshape(-1, vectors.shape[-1])[row]
        kind = "NaN" if np.isnan(vector).any() else "infinity" if np.isinf(vector).any() else "a zero vector"
        raise VectorError(f"{name}: expected finite, non-zero vectors, got {kind} in row {first + row}")
    return lengths


def unit(vectors: FloatArray) -> FloatArray:
    """Vectors divided by their Euclidean norm over the last axis (unit(a) = a / ||a||)."""
    lengths = norms(vectors)
    return np.asarray(vectors / lengths[..., None], dtype=vectors.dtype)


def shift(vectors: FloatArray, dosed: FloatArray, lengths: FloatArray) -> FloatArray:
    """Query vectors after the offset: ``x' = ||x|| unit(unit(x) + alpha v)``, norm kept.

    Ranking documents by x' equals ranking them by x·z + alpha v·z (paper, appendix on ranking
    equivalence). Where the sum vanishes the base vector is returned. *dosed* is alpha v, of the shape of the
    *vectors* (m, d) or (d,) or broadcast against it, and *lengths* are their `norms`.
    """
    moved = vectors + lengths[..., None] * dosed
    after = norms(moved)
    if (gone := after == 0).any():
        moved[gone], after = vectors[gone], np.where(gone, lengths, after)
    moved *= (lengths / after)[..., None]
    return moved.astype(vectors.dtype, copy=False)


def safe_square(vector: FloatArray) -> float | None:
    """The squared norm of a single vector (d,) in a microsecond; None where it needs a closer look."""
    low, high = _SAFE_SQUARES
    square = float(vector.dot(vector))
    return square if low < square < high else None


def shift_one(vector: FloatArray, dosed: FloatArray, square: float) -> FloatArray | None:
    """`shift` of a single vector (d,) of a safe *square* in a few microseconds; None where the sum's is not safe."""
    moved: FloatArray = vector + math.sqrt(square) * dosed
    if (after := safe_square(moved)) is None:
        return None
    moved *= math.sqrt(square / after)
    return moved
