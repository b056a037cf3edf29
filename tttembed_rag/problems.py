"""What the solver minimises: Eq. 6 of the paper over shared offsets, or many private ones.

    sum_q w_q loss_q( s_q(v) / tau_S ) + ridge ||v||^2,    s_q(v) = unit(x_q + v) · z

With m = ||x_q + v|| the similarities are (x·z + v·z) / m, so x·z is computed once and one
evaluation costs two products with the document vectors: v·z, and the gradient's weighted sum of z.
Shared offsets that differ in their weights w alone, as those of cross-fitting do, are found side by
side, on one grid and by products of matrices.
Where every query has candidates of its own, both are taken a block of queries at a time, so that the
vectors cross memory once. Candidates are padded to an (n, k) grid of scalars; vectors never are.

A private offset is sought in the span of its query and candidates, where every gradient on the way
from zero lies, so `PrivateProblems` sees each query in k + 1 coordinates, whatever the width d. That is
a change of basis, exact up to rounding, in front of the same formula and the same solver. Near v = -x,
where the query vector vanishes, Eq. 6 need not have a minimum (it is at most ridge there, and u may be any
direction): a solver drawn to it stops at a thousandth of x, and its certificate says not converged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.objectives import PADDING, KnowledgeDistillation, Objective, build
from tttembed_rag.rewards import Rewards
from tttembed_rag.unitrows import Device, Float64, Rows, UnitRows
from tttembed_rag.vectors import FloatArray, IntArray

# Bytes of vectors an evaluation takes at a time, twice: from a disk or a cache that holds them they come once.
_BLOCK_BYTES = 1 << 26
# Numbers (8 bytes each) of problems side by side, times queries and candidates, that are evaluated at a time.
_GRID_NUMBERS = 1 << 20
# Private problems of at most this many coordinates take Newton steps: solving for one costs their cube.
_NEWTON_WIDTH = 32
# The first Newton step sees the curvature of this mixture of student and teacher: near a confident
# student there is next to none. Anywhere in .2 to .5 it saves about a third of the evaluations.
_FIRST_STUDENT = 0.2
# A Newton step is at most this share of ||x + v|| long: one that leaves the query vector near zero leaves it there.
# Anywhere in .4 to .7 will do.
_REACH = 0.6
# How near a curvature may come to having a direction without any: .5 to .95 cost about as many evaluations.
_MOST_BENT = 0.8
# ||x + v||^2 below which a query vector has vanished: its direction is then a matter of rounding.
_VANISHING = 1e-6
# The loss there: more than any other, and still nothing to a problem in which the query weighs nothing.
_VANISHED = 1e300
# Added to each Gram diagonal, the rounding of float32 products: keeps Cholesky's method alive.
_JITTER = 1e-7
# A pivot below this means that candidates all but coincide, or outnumber the width: the span has fewer
# dimensions. Its own are the eigenvectors with more than this share of the largest eigenvalue.
_SMALLEST_PIVOT = 1e-5
_SMALLEST_SHARE = 1e-6


class Evaluation(NamedTuple):
    """G problems at some offsets.

    Attributes:
        value: (G,) objectives.

        gradient: (G, p) gradients.

        curvature: What a Newton step needs to know of them, arrays of G rows each.
    """

    value: Float64
    gradient: Float64
    curvature: tuple[Float64, ...] = ()


class Problem(Protocol):
    """G independent minimisations over p coordinates each."""

    def evaluate(self, offsets: Float64) -> Evaluation:
        """Objectives and gradients at *offsets* (G, p)."""
        ...

    def newton_step(self, offsets: Float64, at: Evaluation) -> Float64 | None:
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
        shape = (len(depths), int(depths.max()))
        if shape[0] * shape[1] == rewards.budget:
            slots, values = rewards.candidates.reshape(shape), rewards.values.reshape(shape)
            base = rewards.documents.similarities(rewards.queries, slots)
            return cls(slots, np.ones(shape, dtype=bool), values, base, None)
        columns = np.arange(shape[1])
        present = columns < depths[:, None]
        pairs = np.where(present, rewards.starts[:-1, None] + columns, 0)
        slots = np.where(present, rewards.candidates[pairs], 0)
        base = np.zeros(shape)
        for depth in np.unique(depths).tolist():
            rows = np.flatnonzero(depths == depth)
            base[rows, :depth] = rewards.documents.similarities(rewards.queries.rows(rows), slots[rows, :depth])
        return cls(slots, present, np.where(present, rewards.values[pairs], 0.0), base, _padding(present))

    def take(self, rows: IntArray | slice) -> Grid:
        """The grid of some of the queries."""
        padding = None if self.padding is None else self.padding[rows]
        return Grid(self.slots[rows], self.present[rows], self.rewards[rows], self.base[rows], padding)

    def only(self, present: NDArray[np.bool_]) -> Grid:
        """The same grid with only some of its candidates *present*."""
        return replace(self, present=present, padding=_padding(present))

    def padded(self, logits: Float64) -> Float64:
        """Student logits (n, k) with padded slots at `PADDING`."""
        return logits if self.padding is None else logits + self.padding

    def objective(self, name: str, teacher_temperature: float, student_temperature: float) -> Objective:
        """The named objective on these candidates."""
        base_logits = self.padded(self.base / student_temperature)
        return build(name, self.rewards, self.present, base_logits, teacher_temperature)


class Pull(NamedTuple):
    """The data term at some offset: losses, what the gradient takes of each vector, and where that is.

    Attributes:
        losses: (..., n) in nats.

        of_candidates: (..., n, k) share of each candidate z in the gradient.

        of_queries: (..., n) share of each x + v.

        length: (..., n) norms ||x + v||.

        products: (..., n, k) of each candidate, (x + v) · z.
    """

    losses: Float64
    of_candidates: Float64
    of_queries: Float64
    length: Float64
    products: Float64


@dataclass(frozen=True, slots=True)
class Loss:
    """The data term per query as a function of ||x + v||^2 and (x + v) · z: the formula both problems share."""

    grid: Grid
    objective: Objective
    temperature: float

    def __call__(self, squares: Float64, products: Float64) -> Pull:
        """The data term where ||x + v||^2 is *squares* (..., n) and (x + v) · z is *products* (..., n, k).

        It is immense where the query vector all but vanishes: no step of a solver ends there.
        """
        vanished = squares < _VANISHING
        squares = np.maximum(squares, _VANISHING)
        length = np.sqrt(squares)
        scale = (self.temperature * length)[..., None]
        losses, of_candidates = self.objective(self.grid.padded(products / scale))
        losses[vanished] = _VANISHED
        of_candidates /= scale
        return Pull(losses, of_candidates, np.vecdot(of_candidates, products) / -squares, length, products)

    def take(self, rows: IntArray | slice) -> Loss:
        """The same loss on some of the queries."""
        return Loss(self.grid.take(rows), self.objective.take(rows), self.temperature)


@dataclass(frozen=True, slots=True)
class Block:
    """Some of the queries of shared problems and the documents that hold their candidates.

    Attributes:
        queries: n of them.

        documents: The vectors of all their candidates.

        slots: (n, k) rows of *documents*.

        loss: The data term.

        weights: (G, n) w of each query in each problem.
    """

    queries: Rows
    documents: Rows
    slots: IntArray
    loss: Loss
    weights: Float64

    def __call__(self, offsets: Float64, vv: Float64) -> tuple[Float64, Float64]:
        """Their part of the objectives (G,) and of the gradients (G, d) at *offsets* v (G, d), ||v||^2 being *vv*."""
        squares = 1.0 + 2.0 * self.queries.times(offsets) + vv[:, None]
        along = self.documents.times(offsets)
        step = max(1, _GRID_NUMBERS // self.slots.size)
        parts = [self._part(slice(i, i + step), squares, along) for i in range(0, len(offsets), step)]
        value, of_queries, of_documents = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        gradient = self.documents.weighted_sum(of_documents)
        gradient += self.queries.weighted_sum(of_queries)
        gradient += of_queries.sum(axis=1)[:, None] * offsets
        return value, gradient

    def _part(self, some: slice, squares: Float64, along: Float64) -> tuple[Float64, Float64, Float64]:
        """Losses (g,) of some problems, and what their gradients take of each query (g, n) and document (g, u)."""
        weights = self.weights[some]
        pull = self.loss(squares[some], self.loss.grid.base + along[some].take(self.slots, axis=1))
        of_candidates = pull.of_candidates
        of_candidates *= weights[:, :, None]
        slots, documents = self.slots.ravel(), along.shape[1]
        of_documents = np.array([np.bincount(slots, part.ravel(), documents) for part in of_candidates])
        return np.vecdot(weights, pull.losses), pull.of_queries * weights, of_documents

    def take(self, rows: IntArray) -> Block:
        """The same queries in some of the problems."""
        return replace(self, weights=self.weights[rows])


@dataclass(frozen=True, slots=True)
class SharedProblem:
    """One offset for all queries of a scope, or G of them under weights of their own, p = d."""

    blocks: tuple[Block, ...]
    ridge: float

    @classmethod
    def of(cls, rewards: Rewards, loss: Loss, weights: Float64, ridge: float, device: Device = "cpu") -> SharedProblem:
        """The problems of all *rewards*, query q weighing *weights* (G, n)[g, q] in g, its vectors on *device*."""
        documents = rewards.documents.on(device)
        queries = rewards.queries if isinstance(documents, UnitRows) else rewards.queries.on("cuda")
        return cls(tuple(_blocks(rewards.starts, queries, documents, loss, weights)), ridge)

    def evaluate(self, offsets: Float64) -> Evaluation:
        """Objectives (G,) and gradients (G, d)."""
        vv = np.vecdot(offsets, offsets)
        value, gradient = self.ridge * vv, 2.0 * self.ridge * offsets
        for block in self.blocks:
            part, of_part = block(offsets, vv)
            value += part
            gradient += of_part
        return Evaluation(value, gradient)

    def newton_step(self, offsets: Float64, at: Evaluation) -> None:
        """None: a d x d curvature costs more than learning it along the way."""

    def take(self, rows: IntArray) -> SharedProblem:
        """Some of the problems."""
        return replace(self, blocks=tuple(block.take(rows) for block in self.blocks))


def _blocks(starts: IntArray, queries: Rows, documents: Rows, loss: Loss, weights: Float64) -> Iterator[Block]:
    """Queries a few at a time where each has documents of its own, in order, on the CPU; else all at once."""
    slots, present = loss.grid.slots, loss.grid.present
    n, budget = len(starts) - 1, int(starts[-1])
    own = len(documents) == budget and np.array_equal(slots[present], np.arange(budget))
    if not own or not isinstance(documents, UnitRows):
        yield Block(queries, documents, slots, loss, weights)
        return
    step = max(1, _BLOCK_BYTES * budget // documents.vectors.nbytes)
    bounds = np.searchsorted(starts[:-1], np.arange(0, budget, step))
    for first, last in zip(bounds, [*bounds[1:], n], strict=True):
        if first < last:
            some, theirs = slice(first, last), slice(starts[first], starts[last])
            local = np.where(present[some], slots[some] - starts[first], 0)
            yield Block(queries.rows(some), documents.rows(theirs), local, loss.take(some), weights[:, some])


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
    def of(cls, rewards: Rewards, loss: Loss, ridge: float, device: Device = "cpu") -> PrivateProblems:
        """The private problems of all queries of *rewards*, in one batch."""
        grid = loss.grid
        n, k = grid.slots.shape
        gram = np.empty((n, k + 1, k + 1))
        gram[:, 0, 1:] = gram[:, 1:, 0] = grid.base
        gram[:, 1:, 1:] = rewards.documents.on(device).gram(grid.slots)
        if grid.padding is not None:
            gram[:, 1:, 1:] *= grid.present[:, :, None] & grid.present[:, None, :]
        _diagonal(gram)[:] = 1.0
        return cls(loss, _factor(gram), ridge, reduced=True)

    @classmethod
    def in_full_width(cls, rewards: Rewards, loss: Loss, ridge: float) -> PrivateProblems:
        """The same problems in all d coordinates: Adam's path, unlike the optimum, depends on the basis."""
        slots = loss.grid.slots
        candidates = rewards.doc_vectors[slots] / rewards.doc_norms[slots][:, :, None]
        coordinates = np.concatenate([rewards.queries.unit[:, None], candidates], axis=1).astype(np.float64)
        return cls(loss, coordinates, ridge, reduced=False)

    def evaluate(self, offsets: Float64) -> Evaluation:
        """Objectives (n,) and gradients (n, p)."""
        candidates = self.coordinates[:, 1:]
        moved = self.coordinates[:, 0] + offsets
        pull = self.loss(np.vecdot(moved, moved), np.matvec(candidates, moved))
        gradient = np.vecmat(pull.of_candidates, candidates)
        gradient += pull.of_queries[:, None] * moved
        gradient += (2.0 * self.ridge) * offsets
        return Evaluation(pull.losses + self.ridge * np.vecdot(offsets, offsets), gradient, pull)

    def newton_step(self, offsets: Float64, at: Evaluation) -> Float64 | None:
        """The Newton step of KD; None for objectives whose curvature it does not describe.

        With u = unit(x + v), m = ||x + v|| and J the Jacobian of the logits, the curvature is that of the softmax,
        J' (diag(pi) - pi pi') J, that of the sphere, c (I - u u') - (g u' + u g') / m, and the ridge's, 2 lambda I.
        Here g is the gradient of the data term; it is taken as it will be at the minimum, -2 lambda a with a the part
        of v across u, so that the steps near there are Newton's own. They lead downhill from anywhere, because
        c >= 0 and a / m is cut short where 2 lambda (a u' + u a') / m would outweigh the curvature C without it:
        C u = 2 lambda u, so 2 lambda a' C^-1 a < m^2 is what it takes, and C^-1 of -gradient and of a give the step.
        """
        objective = self.loss.objective
        if not isinstance(objective, KnowledgeDistillation) or self.coordinates.shape[2] > _NEWTON_WIDTH:
            return None
        pull = Pull(*at.curvature)
        length = pull.length[:, None]
        scale = self.loss.temperature * length
        student = np.abs(pull.of_candidates * scale + objective.teacher)
        if not offsets.any():  # the first step of all: they start at zero together
            student = _FIRST_STUDENT * student + (1.0 - _FIRST_STUDENT) * objective.teacher
        u = (self.coordinates[:, 0] + offsets) / length
        jacobian = self.coordinates[:, 1:] - (pull.products / length)[:, :, None] * u[:, None, :]
        jacobian -= np.vecmat(student, jacobian)[:, None, :]
        jacobian *= (np.sqrt(student) / scale)[:, :, None]
        curvature = np.matmul(jacobian.transpose(0, 2, 1), jacobian)
        sphere = np.maximum(pull.of_queries, 0.0)[:, None]
        ridge = 2.0 * self.ridge
        curvature -= u[:, :, None] * (sphere * u)[:, None, :]
        _diagonal(curvature)[:] += sphere + ridge
        across = offsets - _dots(offsets, u) * u
        straight, turned = np.moveaxis(np.linalg.solve(curvature, np.stack([-at.gradient, across], axis=2)), 2, 0)
        bend = ridge * _dots(across, turned)
        turn = 1.0 / np.maximum(length, np.sqrt(bend / _MOST_BENT))
        across, turned, bend = turn * across, turn * turned, turn**2 * bend
        drawn = _dots(across, straight)
        along = (_dots(u, straight) - drawn) / (1.0 - bend)
        step = straight - drawn * u - along * (ridge * turned - bend * u)
        reach = _REACH * length
        return np.asarray(step * (reach / np.maximum(reach, np.sqrt(_dots(step, step)))))

    def take(self, rows: IntArray) -> PrivateProblems:
        """The private problems of some of the queries."""
        return replace(self, loss=self.loss.take(rows), coordinates=self.coordinates[rows])

    def lift(self, rewards: Rewards, offsets: Float64, device: Device = "cpu") -> FloatArray:
        """The offsets (n, p) as vectors (n, d) over the query and candidates of *rewards*."""
        if not self.reduced:
            return offsets
        grid = self.loss.grid
        weights = _weights(self.coordinates, offsets)
        of_candidates = np.where(grid.present, weights[:, 1:], 0.0)
        lifted = rewards.documents.on(device).combined(of_candidates, grid.slots)
        of_queries = (weights[:, 0] / rewards.query_norms).astype(lifted.dtype)
        lifted += of_queries[:, None] * rewards.query_vectors
        return lifted


def _padding(present: NDArray[np.bool_]) -> Float64 | None:
    """What absent candidates add to their logits; None where all are present."""
    return None if present.all() else np.where(present, 0.0, PADDING)


def _dots(a: Float64, b: Float64) -> Float64:
    """(n, 1) products of vectors (n, p)."""
    return np.asarray(np.vecdot(a, b)[:, None])


def _diagonal(matrices: Float64) -> Float64:
    """The diagonals (n, p) of n matrices (n, p, p), as a view to write on."""
    n, p, _ = matrices.shape
    return matrices.reshape(n, p * p)[:, :: p + 1]


def _solved(matrices: Float64, right: Float64) -> Float64:
    """Solutions (n, p) of n linear systems (n, p, p) with right sides (n, p)."""
    return np.asarray(np.linalg.solve(matrices, right[:, :, None])[:, :, 0], dtype=np.float64)


def _factor(gram: Float64) -> Float64:
    """F (n, p, p) with F F' = *gram*: Cholesky's, or eigenvectors where the span has fewer than p dimensions.

    What a span lacks are columns of zeros in its F: coordinates that nothing ever moves.
    """
    factor = np.zeros_like(gram)
    try:
        _diagonal(factor)[:] = _JITTER
        factor = np.asarray(np.linalg.cholesky(gram + factor))
        flat = np.flatnonzero((_diagonal(factor) ** 2 < _SMALLEST_PIVOT).any(axis=1))
    except np.linalg.LinAlgError:
        flat = np.arange(len(gram))
    if flat.size:
        values, vectors = np.linalg.eigh(gram[flat])
        values = np.where(values > _SMALLEST_SHARE * values[:, -1:], values, 0.0)
        factor[flat] = vectors * np.sqrt(values)[:, None, :]
    return factor


def _weights(factor: Float64, coordinates: Float64) -> Float64:
    """Weights (n, p) of query and candidates that sum to the vectors at *coordinates* (n, p) in a `_factor`."""
    across = factor.transpose(0, 2, 1)
    flat = (factor == 0).all(axis=1).any(axis=1)
    if not flat.any():
        return _solved(across, coordinates)
    weights = np.empty_like(coordinates)
    weights[~flat] = _solved(across[~flat], coordinates[~flat])
    weights[flat] = np.matvec(np.linalg.pinv(across[flat], rcond=_SMALLEST_SHARE), coordinates[flat])
    return weights
