"""Candidates padded to a grid, and the data term of Eq. 6 on it, which shared and private offsets have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting.objectives import PADDING, Objective, Targets
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# ||x + v||^2 below which a query vector has vanished: its direction is then a matter of rounding.
_VANISHING = 1e-6
# The loss there: more than any other, and still nothing to a problem in which the query weighs nothing.
_VANISHED = 1e300


@dataclass(frozen=True, slots=True)
class Grid:
    """Candidates padded to (n, k): where they are, which are real, and their base similarities.

    `padding` is what absent candidates add to their logits; None where all are present.
    """

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
        padding = np.where(present, 0.0, PADDING)
        return cls(slots, present, np.where(present, rewards.values[pairs], 0.0), base, padding)

    def take(self, rows: IntArray | slice) -> Grid:
        """The grid of some of the queries."""
        padding = None if self.padding is None else self.padding[rows]
        return Grid(self.slots[rows], self.present[rows], self.rewards[rows], self.base[rows], padding)

    def spread_out(self, spread: float) -> Grid:
        """The grid with similarities s of 1 - (1 - s) / *spread*."""
        return replace(self, base=np.where(self.present, 1.0 - (1.0 - self.base) / spread, 0.0))

    def order(self, scores: Float64) -> IntArray:
        """(n, k) places of the candidates by their *scores* (n, k), highest first, absent ones last."""
        return np.argsort(np.where(self.present, -scores, -PADDING), axis=1, kind="stable")

    def padded(self, logits: Float64) -> Float64:
        """Student logits (n, k) with padded slots at `PADDING`."""
        return logits if self.padding is None else logits + self.padding


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
    targets: Targets
    temperature: float

    @classmethod
    def of(cls, grid: Grid, recipe: Recipe) -> Loss:
        """The loss of the recipe's objective on *grid*."""
        temperature = recipe.student_temperature * recipe.spread
        base_logits = grid.padded(grid.base / temperature)
        targets = recipe.objective.targets(grid.rewards, grid.present, base_logits, recipe.teacher_temperature)
        return cls(grid, recipe.objective, targets, temperature)

    def __call__(self, squares: Float64, products: Float64) -> Pull:
        """The data term where ||x + v||^2 is *squares* (..., n) and (x + v) · z is *products* (..., n, k).

        It is immense where the query vector all but vanishes: no step of a solver ends there.
        """
        vanished = squares < _VANISHING
        squares = np.maximum(squares, _VANISHING)
        length = np.sqrt(squares)
        scale = (self.temperature * length)[..., None]
        losses, of_candidates = self.objective.loss(self.grid.padded(products / scale), self.targets)
        losses[vanished] = _VANISHED
        of_candidates /= scale
        return Pull(losses, of_candidates, np.vecdot(of_candidates, products) / -squares, length, products)

    def take(self, rows: IntArray | slice) -> Loss:
        """The loss on some of the queries."""
        targets = tuple(target[rows] for target in self.targets)
        return Loss(self.grid.take(rows), self.objective, targets, self.temperature)
