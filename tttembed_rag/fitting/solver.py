"""Exact solver with a certificate, and the paper's Adam; both minimise G problems side by side.

`exact` takes the problems' own Newton steps where their curvature is cheap, else L-BFGS steps (Liu
and Nocedal 1989), over a batch of independent problems with one backtracking line search. It stops a
problem when its gradient norm is below the tolerance, and says in the certificate if it never was.
`adam` is the paper's recipe (appendix, optimization details): 300 full-batch steps, learning rate
0.01, no stopping rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

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

    def only(self, rows: NDArray[np.bool_]) -> Solution:
        """The solutions of some of the problems."""
        return Solution(
            offsets=self.offsets[rows],
            objective=self.objective[rows],
            gradient_norm=self.gradient_norm[rows],
            evaluations=self.evaluations[rows],
            converged=self.converged[rows],
        )

    def or_better(self, other: Solution) -> Solution:
        """Per problem the lower of two solutions, with the evaluations of both."""
        lower = other.objective < self.objective
        return Solution(
            offsets=np.where(lower[:, None], other.offsets, self.offsets),
            objective=np.where(lower, other.objective, self.objective),
            gradient_norm=np.where(lower, other.gradient_norm, self.gradient_norm),
            evaluations=self.evaluations + other.evaluations,
            converged=np.where(lower, other.converged, self.converged),
        )


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
        product = np.vecdot(step, change)
        floor = 1e-12 * np.sqrt(np.vecdot(step, step) * np.vecdot(change, change))
        inverse = np.where(product > floor, 1.0 / np.where(product > floor, product, 1.0), 0.0)
        return _Pairs(
            (*self.steps, step)[-_MEMORY:],
            (*self.changes, change)[-_MEMORY:],
            (*self.inverse_products, inverse)[-_MEMORY:],
        )

    def without(self, rows: NDArray[np.intp]) -> _Pairs:
        """These pairs with those of some problems forgotten."""
        if not rows.size:
            return self
        kept = np.ones(len(self.steps[0]))
        kept[rows] = 0.0
        return replace(self, inverse_products=tuple(kept * rho for rho in self.inverse_products))

    def empty(self, groups: int) -> NDArray[np.bool_]:
        """Which of the problems have no pair."""
        return np.asarray(~np.any([np.zeros(groups), *self.inverse_products], axis=0))

    def step(self, gradient: Float64, curvature: float) -> Float64:
        """Minus the inverse Hessian times *gradient*, by the two-loop recursion; at first by a guess at *curvature*."""
        if not self.steps:
            return np.asarray(-gradient / np.maximum(curvature, np.sqrt(np.vecdot(gradient, gradient)))[:, None])
        r = -gradient
        taken = []
        for s, y, rho in zip(
            reversed(self.steps), reversed(self.changes), reversed(self.inverse_products), strict=True
        ):
            taken.append(rho * np.vecdot(s, r))
            r -= taken[-1][:, None] * y
        r *= self._scale()[:, None]
        for s, y, rho in zip(self.steps, self.changes, self.inverse_products, strict=True):
            r += (taken.pop() - rho * np.vecdot(y, r))[:, None] * s
        return r

    def _scale(self) -> Float64:
        """s·y / y·y of the last pair, 1 where it was ignored: the inverse curvature last seen."""
        y, rho = self.changes[-1], self.inverse_products[-1]
        curvature = np.vecdot(y, y) * rho
        return np.where(curvature > 0, 1.0 / np.where(curvature > 0, curvature, 1.0), 1.0)


@np.errstate(over="ignore", invalid="ignore")  # a step too far is rejected by its value
def exact(
    problem: Problem,
    start: Float64,
    *,
    tolerance: float = 1e-4,
    curvature: float = 1.0,
    max_evaluations: int = 1000,
) -> Solution:
    """Minimise every problem until its gradient norm is at most *tolerance*.

    Args:
        problem: G problems in p coordinates.
        start: (G, p) where to begin; the paper begins at zero.
        tolerance: Largest Euclidean gradient norm accepted as converged. With ridge 0.3 a norm of
            1e-4 leaves the objective within about 1e-8 nats of the optimum.
        curvature: A guess at the second derivative downhill from the start, which gives the first step its length.
        max_evaluations: Evaluations after which a problem is given up, not converged.
    """
    at = _Points.at(problem, np.array(start, dtype=np.float64))
    groups = np.arange(len(start))
    evaluations = np.ones(len(start), np.intp)
    stalled = np.zeros(len(start), bool)
    final, spent = at, evaluations
    pairs = _Pairs()
    while True:
        running = (at.norm > tolerance) & ~stalled & (evaluations < max_evaluations)
        going = np.count_nonzero(running)
        if 4 * going <= 3 * len(groups):
            final, spent = final.updated(groups, at), spent.copy()
            spent[groups] = evaluations
            if not going:
                break
            rows = np.flatnonzero(running)
            problem, at, pairs, groups = problem.take(rows), at.take(rows), pairs.take(rows), groups[rows]
            evaluations, stalled, running = evaluations[rows], stalled[rows], running[rows]
        newton = problem.newton_step(at.x, at.evaluation)
        direction = pairs.step(at.g, curvature) if newton is None else newton
        slope = np.vecdot(at.g, direction)
        if (uphill := ~(slope < 0)).any():  # or no number at all
            direction[uphill] = -at.g[uphill]
            slope = np.vecdot(at.g, direction)
        reached, trials, stuck = _line_search(problem, at, direction, slope, running)
        evaluations = evaluations + trials
        # Stuck on what it learned, a problem forgets it and goes downhill; with nothing to forget, it is over.
        if stuck.size:
            stalled[stuck] = pairs.empty(len(groups))[stuck]
        if newton is None:
            pairs = pairs.with_pair(reached.x - at.x, reached.g - at.g).without(stuck)
        else:  # a Newton step that, shortened, neither lowers the objective nor flattens it: so would the next
            stalled |= (trials > 1) & (reached.f >= at.f - _noise(at)) & (reached.norm >= at.norm)
        at = reached
    return Solution(final.x, final.f, final.norm, spent, final.norm <= tolerance)


def adam(
    problem: Problem, start: Float64, *, tolerance: float = 1e-4, steps: int = 300, rate: float = 0.01
) -> Solution:
    """The paper's recipe: *steps* full-batch Adam steps at learning rate *rate*, no stopping rule."""
    x = np.array(start, dtype=np.float64)
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for step in range(1, steps + 1):
        g = problem.evaluate(x).gradient
        mean = 0.9 * mean + 0.1 * g
        square = 0.999 * square + 0.001 * g * g
        x = x - rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    at = _Points.at(problem, x)
    return Solution(at.x, at.f, at.norm, np.full(len(x), steps + 1), at.norm <= tolerance)


@dataclass(frozen=True, slots=True)
class _Points:
    """Where G problems stand: coordinates (G, p), and what they evaluate to there."""

    x: Float64
    evaluation: Evaluation

    @classmethod
    def at(cls, problem: Problem, x: Float64) -> _Points:
        return cls(x, problem.evaluate(x))

    @property
    def f(self) -> Float64:
        return self.evaluation.value

    @property
    def g(self) -> Float64:
        return self.evaluation.gradient

    @property
    def norm(self) -> Float64:
        return np.asarray(np.sqrt(np.vecdot(self.g, self.g)))

    def take(self, rows: NDArray[np.intp]) -> _Points:
        value, gradient, curvature = self.evaluation
        return _Points(self.x[rows], Evaluation(value[rows], gradient[rows], tuple(part[rows] for part in curvature)))

    def updated(self, rows: NDArray[np.intp], points: _Points) -> _Points:
        """These points with *rows* replaced by *points*."""
        if len(rows) == len(self.x):
            return points

        def put(here: Float64, there: Float64) -> Float64:
            here = here.copy()
            here[rows] = there
            return here

        (value, gradient, curvature), there = self.evaluation, points.evaluation
        parts = tuple(map(put, curvature, there.curvature))
        return _Points(put(self.x, points.x), Evaluation(put(value, there.value), put(gradient, there.gradient), parts))


def _line_search(
    problem: Problem, at: _Points, direction: Float64, slope: Float64, running: NDArray[np.bool_]
) -> tuple[_Points, NDArray[np.intp], NDArray[np.intp]]:
    """Backtrack along *direction* until the objective falls enough; who is not running stays put.

    A step counts when the objective fell (Armijo), or, where rounding hides the fall, when the slope
    there shows it (Hager and Zhang 2005, approximate Wolfe). One that never falls stays put.

    Returns:
        Where the problems are then, the evaluations (G,) that took, and which problems are stuck.
    """
    step = running.astype(np.float64)
    reached = _Points.at(problem, at.x + step[:, None] * direction)
    trials = running.astype(np.intp)
    good, shorter = _judge(at, reached, direction, slope, step)
    rows = np.flatnonzero(~good)
    stuck = [rows[:0]]
    shorter = shorter[rows]
    while rows.size:
        step[rows] *= shorter
        start, along = at.take(rows), direction[rows]
        tried = _Points.at(problem.take(rows), start.x + step[rows, None] * along)
        trials[rows] += 1
        good, shorter = _judge(start, tried, along, slope[rows], step[rows])
        hopeless = ~good & ~(step[rows] >= _SMALLEST_STEP)
        reached = reached.updated(rows[good], tried.take(np.flatnonzero(good)))
        reached = reached.updated(rows[hopeless], start.take(np.flatnonzero(hopeless)))
        stuck.append(rows[hopeless])
        going = ~good & ~hopeless
        rows, shorter = rows[going], shorter[going]
    return reached, trials, np.concatenate(stuck)


def _judge(
    at: _Points, tried: _Points, direction: Float64, slope: Float64, step: Float64
) -> tuple[NDArray[np.bool_], Float64]:
    """Which steps count, and by how much to shorten those that do not (the secant, kept in [.1, .5])."""
    fell = tried.f <= at.f + _DECREASE * step * slope
    if fell.all():
        return fell, step
    slope_there = np.vecdot(tried.g, direction)
    level = (tried.f <= at.f + _noise(at)) & (slope_there <= (2 * _DECREASE - 1) * slope)
    secant = slope / np.minimum(np.minimum(slope - slope_there, slope), -np.finfo(np.float64).tiny)
    return fell | level, np.clip(secant, 0.1, 0.5)


def _noise(at: _Points) -> Float64:
    """(G,) differences of objectives that are a matter of rounding."""
    return _ROUNDING * (1.0 + np.abs(at.f))


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
        """The problem restricted to some of the G minimisations."""
        ...
