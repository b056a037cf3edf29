"""Where Eq. 6 of the paper is least: of offsets that queries share, and of each query's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from tttembed_rag.fitting.grid import Grid, Loss
from tttembed_rag.fitting.objectives import KD
from tttembed_rag.fitting.private import PrivateProblems
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.shared import SharedProblem
from tttembed_rag.fitting.solver import Problem, Solution, adam, exact
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

# How much the similarities of a query's candidates typically spread along an offset: a guess that gives the first
# step its length. Between .08 and .12 it saves one evaluation in ten.
_SPREAD = 0.1
# Numbers a batch of private problems may hold beside its candidate vectors (8 bytes each).
_BATCH_NUMBERS = 16_000_000


def scope_weights(rewards: Rewards, voices: Float64 | None = None) -> Float64:
    """w_q = 1 / (active tasks * rewarded queries of q's task), (n,), summing to 1 (paper, appendix).

    *voices* (n,) say how much each query counts as one; 0 leaves it out. None is one each.
    """
    tasks, task = np.unique(rewards.tasks, return_inverse=True)
    voices = np.ones(len(task)) if voices is None else voices
    count = np.bincount(task, voices, minlength=len(tasks))
    return np.asarray(voices / (np.count_nonzero(count) * np.where(count > 0, count, 1.0)[task]))


def shared_optima(rewards: Rewards, recipe: Recipe, weights: Float64, grid: Grid) -> Solution:
    """G offsets side by side, each for the queries to which *weights* (G, n) gives weight."""

    def problem(recipe: Recipe) -> SharedProblem:
        return SharedProblem.of(rewards, Loss.of(grid, recipe), weights, recipe.ridge / recipe.spread)

    return lowest(problem, recipe, np.zeros((len(weights), rewards.width)))


def private_optima(rewards: Rewards, recipe: Recipe) -> Solution:
    """The private offset (n, d) of each query of *rewards*, and how near its optimum each is."""
    rows = list(batches(rewards))
    parts = [_optima_of_batch(rewards.take(which), recipe) for which in rows]
    order = np.argsort(np.concatenate(rows))
    return Solution(*(np.concatenate(column)[order] for column in zip(*parts, strict=True)))


def optima_around(rewards: Rewards, recipe: Recipe, offsets: FloatArray) -> Solution:
    """The private offsets (n, d) whose ridge holds them to *offsets* (n, d) that the queries are served already.

    With x' = unit(x + v) and m = ||x + v|| the query of x' + w is that of x + v + m w.
    """
    solution = private_optima(rewards.moved(offsets), recipe)
    lengths = np.linalg.norm(rewards.queries.unit + offsets, axis=1)
    around = offsets + lengths[:, None] * solution.offsets
    return solution._replace(offsets=around.astype(solution.offsets.dtype))


def batches(rewards: Rewards) -> Iterator[IntArray]:
    """Rows of queries of similar depth, few enough that their private problems stay in memory."""
    depths = rewards.depths
    order = np.argsort(depths, kind="stable")
    begin = 0
    while begin < len(order):
        end = begin + 1
        while end < len(order):
            side = int(depths[order[end]]) + 1
            if (end + 1 - begin) * side * max(side, rewards.width) > _BATCH_NUMBERS:
                break
            end += 1
        yield np.sort(order[begin:end])
        begin = end


def lowest(problem: Callable[[Recipe], Problem], recipe: Recipe, start: Float64) -> Solution:
    """The solution from *start* of the *problem* of a *recipe*.

    Objectives other than KD have many minima: the exact solver starts from KD's optimum too, and the lower one counts.
    """
    solution = _minimum(mine := problem(recipe), start, recipe)
    if isinstance(recipe.objective, KD) or recipe.solver == "adam":
        return solution
    first = _minimum(problem(replace(recipe, objective=KD())), start, recipe)
    second = _minimum(mine, first.offsets, recipe)
    lower = second.objective < solution.objective
    columns = zip(second, solution, strict=True)
    best = (np.where(lower if new.ndim == 1 else lower[:, None], new, old) for new, old in columns)
    return Solution(*best)._replace(evaluations=solution.evaluations + first.evaluations + second.evaluations)


def _minimum(problem: Problem, start: FloatArray, recipe: Recipe) -> Solution:
    """Where *problem* is least, searched from *start* with the solver of the *recipe*."""
    if recipe.solver == "adam":
        return adam(problem, start, tolerance=recipe.tolerance)
    curvature = 2.0 * recipe.ridge + (_SPREAD / recipe.student_temperature) ** 2
    return exact(problem, start, tolerance=recipe.tolerance, curvature=curvature)


def _optima_of_batch(batch: Rewards, recipe: Recipe) -> Solution:
    """The private offsets of the queries of *batch*, in their order, searched in the basis that the solver wants."""
    grid, spread, recipe = Grid.of(batch), recipe.spread, replace(recipe, spread=1.0)
    if in_span := recipe.solver != "adam" or spread != 1.0:
        grid = grid.spread_out(spread)
        problems = PrivateProblems.of(batch, Loss.of(grid, recipe), recipe.ridge, spread)
    else:
        problems = PrivateProblems.in_full_width(batch, Loss.of(grid, recipe), recipe.ridge)
    n, _, width = problems.coordinates.shape

    def problem(recipe: Recipe) -> PrivateProblems:
        return replace(problems, loss=Loss.of(grid, recipe))

    solution = lowest(problem, recipe, np.zeros((n, width)))
    vectors, shares = problems.lift(batch, solution.offsets) if in_span else (solution.offsets, solution.shares)
    return solution._replace(offsets=vectors.astype(batch.query_vectors.dtype, copy=False), shares=shares)
