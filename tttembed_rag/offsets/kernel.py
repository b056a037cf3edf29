"""An offset that depends on the query: a kernel expansion over rewarded queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.vectors.checks import FloatArray, checked_norms, norms
from tttembed_rag.vectors.rows import Float64

# Largest norm of a weight that is believed of a file; learned ones are below 1.
_LARGEST_WEIGHT = 100.0
# How far from 1 the norm of a landmark may be, and the least bandwidth: so that rounding never makes exp overflow.
# Queries nearer than this bandwidth are one query.
_UNIT, _LEAST_BANDWIDTH = 1e-3, 1e-4


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class KernelMap:
    """The offset v(x) = sum_j k(x, z_j) b_j with k(x, z) = exp((x·z - 1) / h).

    Attributes:
        landmarks: (m, d) unit vectors z of rewarded queries.
        weights: (m, d) b.
        bandwidth: h > 0, in units of cosine.
    """

    landmarks: FloatArray
    weights: FloatArray
    bandwidth: float

    def __repr__(self) -> str:
        count, width = self.landmarks.shape
        return f"KernelMap({count} landmarks, width {width}, bandwidth {self.bandwidth:.3g})"

    def __call__(self, unit: FloatArray) -> FloatArray:
        """Offsets (m, d) or (d,) of *unit* query vectors of that shape, in the precision of the map."""
        return self.kernel(unit) @ self.weights

    def plus(self, other: KernelMap) -> KernelMap:
        """The sum of this map and another one of the same bandwidth."""
        landmarks = np.concatenate([self.landmarks, other.landmarks])
        return KernelMap(landmarks, np.concatenate([self.weights, other.weights]), self.bandwidth)

    def kernel(self, unit: FloatArray) -> FloatArray:
        """(..., m) kernel values between *unit* query vectors (..., d) and the landmarks."""
        values = unit.astype(self.landmarks.dtype, copy=False) @ self.landmarks.T
        values -= 1.0
        values /= self.bandwidth
        return np.asarray(np.exp(values, out=values))

    def shares(self, unit: FloatArray) -> FloatArray:
        """(m,) the share of each landmark in the offset of one *unit* query vector (d,); they sum to 1.

        A share is negative where a landmark pulls against the sum. All shares of an offset of zero are zero.
        """
        offset = self(unit)
        along = self.kernel(unit) * (self.weights @ offset)
        return np.asarray(along / (float(offset @ offset) or 1.0))

    def check(self, where: str, width: int) -> None:
        """Refuse a map that is not one of this *width*; *where* names it in errors."""
        rows = len(self.landmarks)
        for name, part in (("landmarks", self.landmarks), ("weights", self.weights)):
            if part.shape != (rows, width) or part.dtype.kind != "f":
                expected = f"expected floating-point numbers of shape ({rows}, {width})"
                raise VectorError(f"{name}: {expected} in {where}, got {part.dtype} of shape {part.shape}")
        if not rows or not isinstance(self.bandwidth, float) or not _LEAST_BANDWIDTH <= self.bandwidth < np.inf:
            expected = f"expected a number of at least {_LEAST_BANDWIDTH:g} and a landmark"
            raise InputError(f"bandwidth: {expected} in {where}, got {self.bandwidth!r}")
        far = float(np.abs(checked_norms(f"landmarks of {where}", self.landmarks) - 1.0).max())
        if not far <= _UNIT:  # longer ones could make exp overflow
            raise VectorError(f"landmarks: expected unit vectors in {where}, got a norm that is {far:g} from 1")
        longest = float(norms(self.weights).max())
        if not longest <= _LARGEST_WEIGHT:
            raise VectorError(f"weights: expected norms of at most {_LARGEST_WEIGHT:g} in {where}, got {longest:g}")


def bandwidth_of(unit: Float64, voices: Float64, alone: float = 1.0, share: float = 1.0) -> float:
    """A *share* of the mean of 1 - cosine over pairs of different queries, each weighing its voice; or of *alone*."""
    total = voices @ unit
    pairs = float(voices.sum()) ** 2 - float(voices @ voices)
    if pairs <= 0:
        return share * alone
    return max(_LEAST_BANDWIDTH, share * (1.0 - (float(total @ total) - float(voices @ voices)) / pairs))


def kernel_of(unit: Float64, landmarks: Float64, bandwidth: float) -> Float64:
    """(n, m) kernel values, float64."""
    return KernelMap(landmarks, landmarks, bandwidth).kernel(unit).astype(np.float64)
