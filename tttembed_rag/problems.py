"""What the solver minimises: Eq. 6 of the paper over one shared offset, or many private ones.

    sum_q w_q loss_q( s_q(v) / tau_S ) + ridge ||v||^2,    s_q(v) = unit(x_q + v) · z

With m = ||x_q + v|| the similarities are (x·z + v·z) / m, so x·z is computed once and one
evaluation costs two passes over the document vectors: v·z, and the gradient's weighted sum of z.
Candidates are padded to an (n, k) grid of scalars; the vectors themselves are never copied.

A private offset lies in the span of its query and candidates (the ridge shrinks the rest to zero),
so `PrivateProblems` sees each query in k + 1 coordinates, whatever the width d. That is a change of
basis, exact up to rounding, in front of the same formula and the same solver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.objectives import PADDING, KnowledgeDistillation, Objective, build, softmax
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors import FloatArray, IntArray

Float64: TypeAlias = NDArray[np.float64]

# Rows of candidate vectors gathered at a time while base similarities are computed.
_GATHER_ROWS = 8_192
# Private problems of at most this many coordinates take Newton steps: solving for one costs their cube.
_NEWTON_WIDTH = 32
# Added to each Gram diagonal, the rounding of float32 products: keeps its factor invertible.
_JITTER = 1e-7


class Problem(Protocol):
    """G independent minimisations over p coordinates each."""

    def value_and_gradient(self, offsets: Float64) -> tuple[Float64, Float64]:
        """Objectives (G,) and gradients (G, p) at *offsets* (G, p)."""
        ...

    def newton_step(self, offsets: Float64, gradients: Float64) -> Float64 | None:
        """Steps (G, p) to where the local curvature sees the minimum; None where it is not at hand."""
        ...

    def take(self, rows: IntArray) -> Problem:
        """The same problem restricted to some of the G minimisations."""
        ...


@dataclass(frozen=True, slots=True)
class Grid:
    """Candidates padded to (n, k): where they are, which are real, and their base similarities."""

    slots: IntArray
    present: NDArray[np.bool_]
    rewards: Float64
    base: Float64
    padding: Float64 | None

    @classmethod
    def of(cls, rewards: Rewards) -> Grid:
        """The padded view of *rewards*; `base` holds x·z of unit vectors, 0 in padded slots."""
        depths = rewards.depths
        deepest = int(depths.max())
        columns = np.arange(deepest)
        present = columns < depths[:, None]
        pairs = np.where(present, rewards.starts[:-1, None] + columns, 0)
        slots = np.where(present, rewards.candidates[pairs], 0)
        base = np.empty(slots.shape)
        step = max(1, _GATHER_ROWS // deepest)
        for start in range(0, len(slots), step):
            rows = slice(start, start + step)
            block = _vectors_at(rewards.doc_vectors, slots[rows])
            base[rows] = np.matvec(block, rewards.query_vectors[rows])
        base *= np.where(present, 1.0 / rewards.doc_norms[slots], 0.0) / rewards.query_norms[:, None]
        return cls(slots, present, np.where(present, rewards.values[pairs], 0.0), base, _padding(present))

    def take(self, rows: IntArray) -> Grid:
        """The grid of some of the queries."""
        padding = None if self.padding is None else self.padding[rows]
        return Grid(self.slots[rows], self.present[rows], self.rewards[rows], self.base[rows], padding)

    def only(self, present: NDArray[np.bool_]) -> Grid:
        """The same grid with only some of its candidates *present*."""
        return replace(self, present=present, padding=_padding(present))

    def logits(self, similarities: Float64, temperature: float) -> Float64:
        """Student logits s / tau_S with padded slots at `PADDING`."""
        logits = similarities / temperature
        return logits if self.padding is None else logits + self.padding

    def objective(self, name: str, teacher_temperature: float, student_temperature: float) -> Objective:
        """The named objective on these candidates."""
        base_logits = self.logits(self.base, student_temperature)
        return build(name, self.rewards, self.present, base_logits, teacher_temperature)


@dataclass(frozen=True, slots=True)
class Loss:
    """The data term per query as a function of x·v, z·v and ||v||^2: the formula both problems share."""

    grid: Grid
    objective: Objective
    temperature: float

    def __call__(self, xv: Float64, zv: Float64, vv: Any) -> tuple[Float64, Float64, Float64]:
        """Losses (n,) and what the gradient takes of each candidate (n, k) and of each x + v (n,)."""
        length = np.sqrt(np.maximum(1.0 + 2.0 * xv + vv, 1e-12))
        similarities = (self.grid.base + zv) / length[:, None]
        losses, pull = self.objective(self.grid.logits(similarities, self.temperature))
        of_candidates = pull / (self.temperature * length[:, None])
        return losses, of_candidates, -np.vecdot(of_candidates, similarities) / length

    def take(self, rows: IntArray) -> Loss:
        """The same loss on some of the queries."""
        return Loss(self.grid.take(rows), self.objective.take(rows), self.temperature)


@dataclass(frozen=True, slots=True)
class SharedProblem:
    """One offset for all queries of a scope: G = 1, p = d."""

    rewards: Rewards
    loss: Loss
    weights: Float64
    ridge: float

    def value_and_gradient(self, offsets: Float64) -> tuple[Float64, Float64]:
        """Objective (1,) and gradient (1, d)."""
        rewards, grid = self.rewards, self.loss.grid
        v = offsets[0]
        zv = (rewards.doc_vectors @ v.astype(rewards.doc_vectors.dtype)) / rewards.doc_norms
        xv = (rewards.query_vectors @ v.astype(rewards.query_vectors.dtype)) / rewards.query_norms
        losses, of_candidates, of_queries = self.loss(xv.astype(np.float64), zv.astype(np.float64)[grid.slots], v @ v)
        of_candidates *= self.weights[:, None]
        of_queries *= self.weights
        per_doc = np.bincount(grid.slots.ravel(), of_candidates.ravel(), len(rewards.doc_vectors)) / rewards.doc_norms
        per_query = of_queries / rewards.query_norms
        gradient = per_doc.astype(rewards.doc_vectors.dtype) @ rewards.doc_vectors
        gradient = gradient + per_query.astype(rewards.query_vectors.dtype) @ rewards.query_vectors
        gradient = gradient + (of_queries.sum() + 2.0 * self.ridge) * v
        return np.array([self.weights @ losses + self.ridge * (v @ v)]), gradient[None]

    def newton_step(self, offsets: Float64, gradients: Float64) -> None:
        """None: a d x d curvature costs more than learning it along the way."""

    def take(self, rows: IntArray) -> SharedProblem:  # noqa: ARG002 - the protocol's signature
        """Itself: there is only one."""
        return self


@dataclass(frozen=True, slots=True)
class PrivateProblems:
    """One offset per query: G = n, p = k + 1 in the span of a query and its candidates, or p = d.

    The rows of a factor F of a query's Gram matrix F F' are its query and candidates in an orthonormal
    basis of their span, so lengths and angles, and with them Eq. 6, are unchanged.

    Attributes:
        loss: The data term.

        coordinates: (n, k + 1, p) unit query, then unit candidates.

        ridge: lambda.

        reduced: Whether p counts coordinates in the span, not in the full width.
    """

    loss: Loss
    coordinates: Float64
    ridge: float
    reduced: bool

    @classmethod
    def of(cls, rewards: Rewards, loss: Loss, ridge: float) -> PrivateProblems:
        """The private problems of all queries of *rewards*, in one batch."""
        grid = loss.grid
        candidates = _vectors_at(rewards.doc_vectors, grid.slots)
        scale = np.where(grid.present, 1.0 / rewards.doc_norms[grid.slots], 0.0)
        n, k = grid.slots.shape
        gram = np.empty((n, k + 1, k + 1))
        gram[:, 0, 0] = 1.0
        gram[:, 0, 1:] = gram[:, 1:, 0] = grid.base
        gram[:, 1:, 1:] = np.matmul(candidates, candidates.transpose(0, 2, 1)) * (scale[:, :, None] * scale[:, None, :])
        diagonal = np.arange(1, k + 1)
        gram[:, diagonal, diagonal] = 1.0
        gram[:, np.arange(k + 1), np.arange(k + 1)] += _JITTER
        return cls(loss, _factor(gram), ridge, reduced=True)

    @classmethod
    def in_full_width(cls, rewards: Rewards, loss: Loss, ridge: float) -> PrivateProblems:
        """The same problems in all d coordinates: Adam's path, unlike the optimum, depends on the basis."""
        grid = loss.grid
        candidates = _vectors_at(rewards.doc_vectors, grid.slots) / rewards.doc_norms[grid.slots][:, :, None]
        queries = rewards.query_vectors / rewards.query_norms[:, None]
        coordinates = np.concatenate([queries[:, None], candidates], axis=1).astype(np.float64)
        return cls(loss, coordinates, ridge, reduced=False)

    def value_and_gradient(self, offsets: Float64) -> tuple[Float64, Float64]:
        """Objectives (n,) and gradients (n, p)."""
        query, candidates = self.coordinates[:, 0], self.coordinates[:, 1:]
        vv = np.vecdot(offsets, offsets)
        losses, of_candidates, of_queries = self.loss(np.vecdot(query, offsets), np.matvec(candidates, offsets), vv)
        gradient = np.vecmat(of_candidates, candidates)
        gradient += of_queries[:, None] * query + (of_queries + 2.0 * self.ridge)[:, None] * offsets
        return losses + self.ridge * vv, gradient

    def newton_step(self, offsets: Float64, gradients: Float64) -> Float64 | None:
        """The Gauss-Newton step of KD; None for objectives whose curvature it does not describe.

        With J the Jacobian of the logits, the curvature is J' (diag(pi) - pi pi') J + 2 ridge I.
        """
        if not isinstance(self.loss.objective, KnowledgeDistillation) or self.coordinates.shape[2] > _NEWTON_WIDTH:
            return None
        moved = self.coordinates[:, 0] + offsets
        length = np.sqrt(np.vecdot(moved, moved))
        moved /= length[:, None]
        candidates = self.coordinates[:, 1:]
        similarities = np.matvec(candidates, moved)
        student = softmax(self.loss.grid.logits(similarities, self.loss.temperature))
        jacobian = candidates - similarities[:, :, None] * moved[:, None, :]
        jacobian -= np.vecmat(student, jacobian)[:, None, :]
        jacobian *= (np.sqrt(student) / (self.loss.temperature * length[:, None]))[:, :, None]
        curvature = np.matmul(jacobian.transpose(0, 2, 1), jacobian)
        diagonal = np.arange(curvature.shape[1])
        curvature[:, diagonal, diagonal] += 2.0 * self.ridge
        return _solved(curvature, -gradients)

    def take(self, rows: IntArray) -> PrivateProblems:
        """The private problems of some of the queries."""
        return replace(self, loss=self.loss.take(rows), coordinates=self.coordinates[rows])

    def lift(self, rewards: Rewards, offsets: Float64) -> FloatArray:
        """The offsets (n, p) as vectors (n, d) over the query and candidates of *rewards*."""
        if not self.reduced:
            return offsets
        grid = self.loss.grid
        weights = _solved(self.coordinates.transpose(0, 2, 1), offsets)
        of_candidates = np.where(grid.present, weights[:, 1:] / rewards.doc_norms[grid.slots], 0.0)
        block = _vectors_at(rewards.doc_vectors, grid.slots)
        lifted = np.vecmat(of_candidates.astype(block.dtype), block)
        of_queries = (weights[:, 0] / rewards.query_norms).astype(lifted.dtype)
        return np.asarray(lifted + of_queries[:, None] * rewards.query_vectors)


def _padding(present: NDArray[np.bool_]) -> Float64 | None:
    """What absent candidates add to their logits; None where all are present."""
    return None if present.all() else np.where(present, 0.0, PADDING)


def _solved(matrices: Float64, right: Float64) -> Float64:
    """Solutions (n, p) of n linear systems (n, p, p) with right sides (n, p)."""
    return np.asarray(np.linalg.solve(matrices, right[:, :, None])[:, :, 0], dtype=np.float64)


def _factor(gram: Float64) -> Float64:
    """F with F F' = *gram* (n, p, p): Cholesky, or by eigenvectors where candidates all but coincide."""
    try:
        return np.asarray(np.linalg.cholesky(gram), dtype=np.float64)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(gram)
        return np.asarray(vectors * np.sqrt(np.maximum(values, _JITTER))[:, None, :])


def _vectors_at(vectors: FloatArray, slots: IntArray) -> FloatArray:
    """Vectors (n, k, d) at *slots* (n, k): a view where they lie in order, gathered otherwise."""
    first, last, count = int(slots[0, 0]), int(slots[-1, -1]), slots.size
    if last - first == count - 1 and np.array_equal(slots.ravel(), np.arange(first, first + count)):
        return vectors[first : first + count].reshape(*slots.shape, -1)
    return vectors[slots]
