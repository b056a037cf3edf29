"""Exact solver with a certificate, and the paper's Adam; both minimise G problems side by side.

`exact` takes the problems' own Newton steps where their curvature is cheap, else L-BFGS steps (Liu
and Nocedal 1989), over a batch of independent problems with one backtracking line search. It stops a
problem when its gradient norm is below the tolerance, and says in the certificate if it never was.
`adam` is the paper's recipe (appendix, optimization details): 300 full-batch steps, learning rate
0.01, no stopping rule.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

# Curvature pairs kept. More than 12 gave no fewer evaluations on the benchmarks.
_MEMORY = 12
# Sufficient decrease (Armijo) and the smallest step worth trying.
_DECREASE = 1e-4
_SMALLEST_STEP = 1e-6
# Relative noise of an objective summed from float32 similarities.
_ROUNDING = 1e-7


class Solution(NamedTuple):
    """Offsets of G problems and, for each, how near the optimum they are.

    Attributes:
        offsets: (G, p) minimisers; of private problems, once they are vectors, in the type of the query vectors.
        objective: (G,) objective there, in nats.
        gradient_norm: (G,) Euclidean norm of the gradient there.
        evaluations: (G,) evaluations of value and gradient spent.
        converged: (G,) whether the gradient norm reached the tolerance.
        shares: (G,) the sum of the shares that its query and candidates have in each private offset; 0 of a shared one.
    """

    offsets: FloatArray
    objective: Float64
    gradient_norm: Float64
    evaluations: IntArray
    converged: NDArray[np.bool_]
    shares: Float64

    def take(self, rows: NDArray[np.bool_]) -> Solution:
        """The solutions of some of the problems."""
        certificates = self.objective[rows], self.gradient_norm[rows], self.evaluations[rows], self.converged[rows]
        return Solution(self.offsets[rows], *certificates, self.shares[rows])


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

    def newton_step(self, offsets: Float64, at: Evaluation) -> Float64 | None:
        """Steps (G, p) to where the local curvature sees the minimum; None where it is not at hand."""

    def take(self, rows: IntArray) -> Problem:
        """The problem restricted to some of the G minimisations."""


@np.errstate(over="ignore", invalid="ignore")  # a step too far is rejected by its value
def exact(
    problem: Problem, start: FloatArray, *, tolerance: float = 1e-4, curvature: float = 1.0, max_evaluations: int = 1000
) -> Solution:
    """Minimise every problem from *start* (G, p) until its gradient norm is at most *tolerance*.

    With ridge 0.3 a norm of 1e-4 leaves the objective within about 1e-8 nats of the optimum. A guess at the
    *curvature* downhill from the start gives the first step its length. A problem is given up, not converged, after
    *max_evaluations*.
    """
    at = _Points.at(problem, np.array(start, dtype=np.float64))
    groups = np.arange(len(start))
    evaluations = np.ones(len(start), np.intp)
    stalled = np.zeros(len(start), bool)
    final, spent = at, evaluations.copy()
    pairs: list[_Pair] = []
    while True:
        running = (at.norm > tolerance) & ~stalled & (evaluations < max_evaluations)
        going = np.count_nonzero(running)
        if 4 * going <= 3 * len(groups):
            final.put(groups, at)
            spent[groups] = evaluations
            if not going:
                break
            rows = np.flatnonzero(running)
            problem, at, groups = problem.take(rows), at.take(rows), groups[rows]
            pairs = [_Pair(*(part[rows] for part in pair)) for pair in pairs]
            evaluations, stalled, running = evaluations[rows], stalled[rows], running[rows]
        newton = problem.newton_step(at.x, Evaluation(at.f, at.g, at.curvature))
        direction = _lbfgs_step(pairs, at.g, curvature) if newton is None else newton
        slope = np.vecdot(at.g, direction)
        if (uphill := ~(slope < 0)).any():  # or no number at all
            direction[uphill] = -at.g[uphill]
            slope = np.vecdot(at.g, direction)
        reached, trials, stuck = _line_search(problem, at, direction, slope, running)
        evaluations = evaluations + trials
        # Stuck on what it learned, a problem forgets it and goes downhill; with nothing to forget, it is over.
        if stuck.size:
            learned = [np.zeros(stuck.size), *(pair.inverse_product[stuck] for pair in pairs)]
            stalled[stuck] = ~np.any(learned, axis=0)
        if newton is None:
            pairs = [*pairs, _Pair.of(reached.x - at.x, reached.g - at.g)][-_MEMORY:]
            for pair in pairs:
                pair.inverse_product[stuck] = 0.0
        else:  # a Newton step that, shortened, neither lowers the objective nor flattens it: so would the next
            stalled |= (trials > 1) & (reached.f >= at.f - _noise(at)) & (reached.norm >= at.norm)
        at = reached
    return Solution(final.x, final.f, final.norm, spent, final.norm <= tolerance, np.zeros(len(spent)))


def adam(problem: Problem, start: FloatArray, *, tolerance: float = 1e-4, steps: int = 300) -> Solution:
    """The paper's recipe: *steps* full-batch Adam steps at a learning rate of .01, no stopping rule."""
    x = np.array(start, dtype=np.float64)
    mean, square = np.zeros_like(x), np.zeros_like(x)
    for step in range(1, steps + 1):
        g = problem.evaluate(x).gradient
        mean = 0.9 * mean + 0.1 * g
        square = 0.999 * square + 0.001 * g * g
        x = x - 0.01 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
    at = _Points.at(problem, x)
    return Solution(at.x, at.f, at.norm, np.full(len(x), steps + 1), at.norm <= tolerance, np.zeros(len(x)))


class _Pair(NamedTuple):
    """What L-BFGS knows of the curvature: a recent step (G, p), and how the gradient changed along it.

    The inverse of the product of both (G,) is 0 where a problem saw no positive curvature, and ignores the pair.
    """

    step: Float64
    change: Float64
    inverse_product: Float64

    @classmethod
    def of(cls, step: Float64, change: Float64) -> _Pair:
        product = np.vecdot(step, change)
        floor = 1e-12 * np.sqrt(np.vecdot(step, step) * np.vecdot(change, change))
        return cls(step, change, np.where(product > floor, 1.0 / np.where(product > floor, product, 1.0), 0.0))


def _lbfgs_step(pairs: list[_Pair], gradient: Float64, curvature: float) -> Float64:
    """Minus the inverse Hessian times *gradient*, by the two-loop recursion; at first by a guess at *curvature*."""
    if not pairs:
        return np.asarray(-gradient / np.maximum(curvature, np.sqrt(np.vecdot(gradient, gradient)))[:, None])
    r = -gradient
    taken = []
    for s, y, rho in reversed(pairs):
        taken.append(rho * np.vecdot(s, r))
        r -= taken[-1][:, None] * y
    # s·y / y·y of the last pair, 1 where it was ignored: the inverse curvature last seen.
    last = np.vecdot(pairs[-1].change, pairs[-1].change) * pairs[-1].inverse_product
    r *= np.where(last > 0, 1.0 / np.where(last > 0, last, 1.0), 1.0)[:, None]
    for s, y, rho in pairs:
        r += (taken.pop() - rho * np.vecdot(y, r))[:, None] * s
    return r


class _Points(NamedTuple):
    """Where G problems stand: coordinates (G, p), and what they evaluate to there."""

    x: Float64
    f: Float64
    g: Float64
    curvature: tuple[Float64, ...]

    @classmethod
    def at(cls, problem: Problem, x: Float64) -> _Points:
        return cls(x, *problem.evaluate(x))

    @property
    def norm(self) -> Float64:
        return np.asarray(np.sqrt(np.vecdot(self.g, self.g)))

    def take(self, rows: IntArray) -> _Points:
        return _Points(self.x[rows], self.f[rows], self.g[rows], tuple(part[rows] for part in self.curvature))

    def put(self, rows: IntArray, points: _Points) -> None:
        """Replace *rows* by *points*, in place."""
        for here, there in zip((*self[:3], *self.curvature), (*points[:3], *points.curvature), strict=True):
            here[rows] = there


def _line_search(
    problem: Problem, at: _Points, direction: Float64, slope: Float64, running: NDArray[np.bool_]
) -> tuple[_Points, IntArray, IntArray]:
    """Backtrack along *direction* until the objective falls enough; who is not running stays put.

    A step counts when the objective fell (Armijo), or, where rounding hides the fall, when the slope
    there shows it (Hager and Zhang 2005, approximate Wolfe). One that never falls stays put.

    Gives where the problems are then, the evaluations (G,) that took, and which problems are stuck.
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
        reached.put(rows[good], tried.take(np.flatnonzero(good)))
        reached.put(rows[hopeless], start.take(np.flatnonzero(hopeless)))
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
