"""Exact solver with a certificate, and the paper's Adam; both minimise G problems side by side.

`exact` is L-BFGS (Liu and Nocedal 1989) over a batch of independent problems with a backtracking
line search; it stops a problem when its gradient norm is below the tolerance and says so in the
certificate. `adam` is the paper's recipe (appendix, optimization details): 300 full-batch steps,
learning rate 0.01, no stopping rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.problems import Problem

Float64: TypeAlias = NDArray[np.float64]

# Curvature pairs kept. More than 12 gave no fewer evaluations on the benchmarks.
_MEMORY = 12
# Sufficient decrease (Armijo) and the smallest step worth trying.
_DECREASE = 1e-4
_SMALLEST_STEP = 1e-6
# Relative noise of an objective summed from float32 similarities.
_ROUNDING = 1e-7


@dataclass(frozen=True, slots=True)
class Solution:
    """Offsets of G problems and, for each, how near the optimum they are.

    Attributes:
        offsets: (G, p) minimisers.

        objective: (G,) objective there, in nats.

        gradient_norm: (G,) Euclidean norm of the gradient there.

        evaluations: (G,) evaluations of value and gradient spent.

        converged: (G,) whether the gradient norm reached the tolerance.
    """

    offsets: Float64
    objective: Float64
    gradient_norm: Float64
    evaluations: NDArray[np.intp]
    converged: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Recent steps and gradient changes, each (G, p): what L-BFGS knows of the curvature."""

    steps: tuple[Float64, ...] = ()
    changes: tuple[Float64, ...] = ()
    inverse_products: tuple[Float64, ...] = ()

    def take(self, rows: NDArray[np.intp]) -> _Pairs:
        return _Pairs(
            tuple(s[rows] for s in self.steps),
            tuple(y[rows] for y in self.changes),
            tuple(rho[rows] for rho in self.inverse_products),
        )

    def with_pair(self, step: Float64, change: Float64) -> _Pairs:
        """These pairs and one more; a problem that did not see positive curvature ignores its own."""
        product = _dot(step, change)
        floor = 1e-12 * np.sqrt(_dot(step, step) * _dot(change, change))
        inverse = np.where(product > floor, 1.0 / np.where(product > floor, product, 1.0), 0.0)
        return _Pairs(
            (*self.steps, step)[-_MEMORY:],
            (*self.changes, change)[-_MEMORY:],
            (*self.inverse_products, inverse)[-_MEMORY:],
        )

    def inverse_hessian(self, gradient: Float64, problem: Problem) -> Float64:
        """The two-loop recursion, started from the problem's own estimate of its curvature."""
        q = gradient.copy()
        taken = []
        for s, y, rho in zip(
            reversed(self.steps), reversed(self.changes), reversed(self.inverse_products), strict=True
        ):
            taken.append(rho * _dot(s, q))
            q -= taken[-1][:, None] * y
        r = problem.precondition(q)
        if self.steps:
            r = r * self._scale(problem)[:, None]
        for s, y, rho in zip(self.steps, self.changes, self.inverse_products, strict=True):
            r += (taken.pop() - rho * _dot(y, r))[:, None] * s
        return r

    def _scale(self, problem: Problem) -> Float64:
        """s·y / y·P y of the last pair, 1 where it was ignored: fits the estimate P to what was seen."""
        y, rho = self.changes[-1], self.inverse_products[-1]
        curvature = _dot(y, problem.precondition(y)) * rho
        return np.where(curvature > 0, 1.0 / np.where(curvature > 0, curvature, 1.0), 1.0)


def exact(problem: Problem, start: Float64, *, tolerance: float = 1e-4, max_evaluations: int = 1000) -> Solution:
    """Minimise every problem until its gradient norm is at most *tolerance*.

    Args:
        problem: G problems in p coordinates.

        start: (G, p) where to begin; the paper begins at zero.

        tolerance: Largest Euclidean gradient norm accepted as converged. With ridge 0.3 a norm of
            1e-4 leaves the objective within about 1e-8 nats of the optimum.

        max_evaluations: Evaluations after which a problem is given up, not converged.
    """
    at = _Points.at(problem, np.array(start, dtype=np.float64))
    groups = np.arange(len(start))
    evaluations = np.ones(len(start), np.intp)
    stalled = np.zeros(len(start), bool)
    final = _Points(at.x.copy(), at.f.copy(), at.g.copy())
    spent = evaluations.copy()
    pairs = _Pairs()
    while True:
        running = (at.norm > tolerance) & ~stalled & (evaluations < max_evaluations)
        if 2 * running.sum() <= len(groups):
            final.put(groups, at)
            spent[groups] = evaluations
            if not running.any():
                break
            rows = np.flatnonzero(running)
            problem, at, pairs, groups = problem.take(rows), at.take(rows), pairs.take(rows), groups[rows]
            evaluations, stalled, running = evaluations[rows], stalled[rows], running[rows]
        direction = -pairs.inverse_hessian(at.g, problem)
        uphill = _dot(at.g, direction) >= 0
        direction[uphill] = -at.g[uphill]
        first = np.ones(len(groups)) if pairs.steps else 1.0 / np.maximum(1.0, at.norm)
        reached, trials = _line_search(problem, at, direction, first, running)
        evaluations = evaluations + trials
        stalled = running & (reached.x == at.x).all(axis=1)
        pairs = pairs.with_pair(reached.x - at.x, reached.g - at.g)
        at = reached
    return Solution(final.x, final.f, final.norm, spent, final.norm <= tolerance)


def adam(
    problem: Problem, start: Float64, *, tolerance: float = 1e-4, steps: int = 300, rate: float = 0.01
) -> Solution:
    """The paper's recipe: *steps* full-batch Adam steps at learning rate *rate*, no stopping rule."""
    x = np.array(start, dtype=np.float64)
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for step in range(1, steps + 1):
        _, g = problem.value_and_gradient(x)
        mean = 0.9 * mean + 0.1 * g
        square = 0.999 * square + 0.001 * g * g
        x = x - rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    at = _Points.at(problem, x)
    return Solution(at.x, at.f, at.norm, np.full(len(x), steps + 1), at.norm <= tolerance)


@dataclass(frozen=True, slots=True)
class _Points:
    """Where G problems stand: coordinates (G, p), objectives (G,), gradients (G, p)."""

    x: Float64
    f: Float64
    g: Float64

    @classmethod
    def at(cls, problem: Problem, x: Float64) -> _Points:
        return cls(x, *problem.value_and_gradient(x))

    @property
    def norm(self) -> Float64:
        return np.sqrt(_dot(self.g, self.g))

    def take(self, rows: NDArray[np.intp]) -> _Points:
        return _Points(self.x[rows], self.f[rows], self.g[rows])

    def put(self, rows: NDArray[np.intp], points: _Points) -> None:
        self.x[rows], self.f[rows], self.g[rows] = points.x, points.f, points.g


def _line_search(
    problem: Problem, at: _Points, direction: Float64, step: Float64, running: NDArray[np.bool_]
) -> tuple[_Points, NDArray[np.intp]]:
    """Backtrack along *direction* until the objective falls enough; who is not running stays put.

    A step counts when the objective fell (Armijo), or, where rounding hides the fall, when the slope
    there shows it (Hager and Zhang 2005, approximate Wolfe).
    """
    reached = _Points(at.x.copy(), at.f.copy(), at.g.copy())
    trials = np.zeros(len(step), np.intp)
    slope = _dot(at.g, direction)
    rows = np.flatnonzero(running)
    while rows.size:
        here = problem if len(rows) == len(step) else problem.take(rows)
        tried = _Points.at(here, at.x[rows] + step[rows, None] * direction[rows])
        trials[rows] += 1
        slope_there = _dot(tried.g, direction[rows])
        fell = tried.f <= at.f[rows] + _DECREASE * step[rows] * slope[rows]
        noise = _ROUNDING * (1.0 + np.abs(at.f[rows]))
        level = (tried.f <= at.f[rows] + noise) & (slope_there <= (2 * _DECREASE - 1) * slope[rows])
        good = fell | level
        reached.put(rows[good], tried.take(np.flatnonzero(good)))
        secant = slope[rows] / np.minimum(slope[rows] - slope_there, slope[rows])
        step[rows] *= np.clip(secant, 0.1, 0.5)
        rows = rows[~good & (step[rows] > _SMALLEST_STEP)]
    return reached, trials


def _dot(a: Float64, b: Float64) -> Float64:
    return np.asarray(np.einsum("gp,gp->g", a, b))
