"""What the solver minimises where each query has an offset of its own: Eq. 6 of the paper (`shared`: of many queries).

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

from dataclasses import dataclass, replace

import numpy as np

from tttembed_rag.fitting.grid import Loss, Pull
from tttembed_rag.fitting.objectives import KD
from tttembed_rag.fitting.solver import Evaluation
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

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
# Added to each Gram diagonal, the rounding of float32 products: keeps Cholesky's method alive.
_JITTER = 1e-7
# A pivot below this means that candidates all but coincide, or outnumber the width: the span has fewer
# dimensions. Its own are the eigenvectors with more than this share of the largest eigenvalue.
_SMALLEST_PIVOT = 1e-5
_SMALLEST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class PrivateProblems:
    """One offset per query: G = n, p = k + 1 in the span of a query and its candidates, or p = d.

    The rows of a factor F of a query's Gram matrix F F' are its query and candidates in an orthonormal
    basis of their span, so lengths and angles, and with them Eq. 6, are unchanged.

    Attributes:
        loss: The data term.
        coordinates: (n, k + 1, p) unit query, then unit candidates.
        ridge: lambda.
    """

    loss: Loss
    coordinates: Float64
    ridge: float

    @classmethod
    def of(cls, rewards: Rewards, loss: Loss, ridge: float, spread: float = 1.0) -> PrivateProblems:
        """The private problems of all queries of *rewards*, in one batch.

        Vectors are replaced by others whose cosines are 1 - (1 - cosine) / *spread*, as those on the grid of *loss*
        are: what all have in common, which ranks nothing, is taken away.
        """
        grid = loss.grid
        n, k = grid.slots.shape
        gram = np.empty((n, k + 1, k + 1))
        gram[:, 0, 1:] = gram[:, 1:, 0] = grid.base
        gram[:, 1:, 1:] = 1.0 - (1.0 - rewards.documents.gram(grid.slots)) / spread
        if grid.padding is not None:
            gram[:, 1:, 1:] *= grid.present[:, :, None] & grid.present[:, None, :]
        _diagonal(gram)[:] = 1.0
        return cls(loss, _factor(gram), ridge)

    @classmethod
    def in_full_width(cls, rewards: Rewards, loss: Loss, ridge: float) -> PrivateProblems:
        """The problems in all d coordinates: Adam's path, unlike the optimum, depends on the basis."""
        slots = loss.grid.slots
        candidates = rewards.doc_vectors[slots] / rewards.doc_norms[slots][:, :, None]
        coordinates = np.concatenate([rewards.queries.unit[:, None], candidates], axis=1).astype(np.float64)
        return cls(loss, coordinates, ridge)

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
        if not isinstance(self.loss.objective, KD) or self.coordinates.shape[2] > _NEWTON_WIDTH:
            return None
        teacher, _ = self.loss.targets
        pull = Pull(*at.curvature)
        length = pull.length[:, None]
        scale = self.loss.temperature * length
        student = np.abs(pull.of_candidates * scale + teacher)
        if not offsets.any():  # the first step of all: they start at zero together
            student = _FIRST_STUDENT * student + (1.0 - _FIRST_STUDENT) * teacher
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

    def lift(self, rewards: Rewards, offsets: FloatArray) -> tuple[FloatArray, Float64]:
        """The offsets (n, p) in the span as vectors (n, d) over the query and candidates of *rewards*.

        Beside them stands the sum (n,) of the shares that these have in each.
        """
        grid = self.loss.grid
        weights = _weights(self.coordinates, offsets)
        of_candidates = np.where(grid.present, weights[:, 1:], 0.0)
        lifted = rewards.documents.combined(of_candidates, grid.slots)
        of_queries = (weights[:, 0] / rewards.query_norms).astype(lifted.dtype)
        lifted += of_queries[:, None] * rewards.query_vectors
        return lifted, weights[:, 0] + of_candidates.sum(axis=1)


def _dots(a: Float64, b: Float64) -> Float64:
    """(n, 1) products of vectors (n, p)."""
    return np.asarray(np.vecdot(a, b)[:, None])


def _diagonal(matrices: Float64) -> Float64:
    """The diagonals (n, p) of n matrices (n, p, p), as a view to write on."""
    n, p, _ = matrices.shape
    return matrices.reshape(n, p * p)[:, :: p + 1]


def _solved(matrices: Float64, right: FloatArray) -> Float64:
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


def _weights(factor: Float64, coordinates: FloatArray) -> Float64:
    """Weights (n, p) of query and candidates that sum to the vectors at *coordinates* (n, p) in a `_factor`."""
    across = factor.transpose(0, 2, 1)
    flat = (factor == 0).all(axis=1).any(axis=1)
    if not flat.any():
        return _solved(across, coordinates)
    weights = np.empty(coordinates.shape)
    weights[~flat] = _solved(across[~flat], coordinates[~flat])
    weights[flat] = np.matvec(np.linalg.pinv(across[flat], rcond=_SMALLEST_SHARE), coordinates[flat])
    return weights
