"""The plain rule: rewards of a scope in, its offset out (paper, Eq. 6 to 8 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.local import Local
from tttembed_rag.fitting.merging import one_row_each
from tttembed_rag.fitting.private import PrivateProblems
from tttembed_rag.fitting.recipe import _SETTINGS, Recipe
from tttembed_rag.fitting.shared import SharedProblem
from tttembed_rag.fitting.solver import Problem, Solution
from tttembed_rag.fitting.spreading import spread
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import Certificate, Offset, Scope
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

# The code of an offset that is withheld because its solver did not reach an optimum.
UNSOLVED = "TTT-G06"
# Numbers a batch of private problems may hold beside its candidate vectors (8 bytes each).
_BATCH_NUMBERS = 16_000_000


def scope_weights(rewards: Rewards, voices: Float64 | None = None) -> Float64:
    """w_q = 1 / (active tasks * rewarded queries of q's task), (n,), summing to 1 (paper, appendix).

    Args:
        rewards: Judged candidates.
        voices: (n,) how much each query counts as one; 0 leaves it out. None for one each.
    """
    tasks, task = np.unique(rewards.tasks, return_inverse=True)
    voices = np.ones(len(task)) if voices is None else voices
    count = np.bincount(task, voices, minlength=len(tasks))
    return np.asarray(voices / (np.count_nonzero(count) * np.where(count > 0, count, 1.0)[task]))


def solve_shared(rewards: Rewards, recipe: Recipe, weights: Float64, grid: Grid, start: Float64) -> Solution:
    """G offsets side by side from *start* (G, d), each for the queries to which *weights* (G, n) gives weight."""

    def problem(objective: str) -> SharedProblem:
        return SharedProblem.of(rewards, recipe.loss(grid, objective), weights, recipe.ridge, recipe.device)

    return lowest(problem(recipe.objective), lambda: problem("kd"), recipe, start)


def private_problems(rewards: Rewards, recipe: Recipe) -> PrivateProblems:
    """The private problems of *rewards* in the basis that the recipe's solver wants."""
    loss = recipe.loss(Grid.of(rewards))
    if recipe.solver == "adam":
        return PrivateProblems.in_full_width(rewards, loss, recipe.ridge)
    return PrivateProblems.of(rewards, loss, recipe.ridge, recipe.device)


def solve_private(problems: PrivateProblems, recipe: Recipe) -> Solution:
    """One offset per query in the problems' own coordinates, from zero."""

    def kd() -> PrivateProblems:
        return replace(problems, loss=recipe.loss(problems.loss.grid, "kd"))

    n, _, width = problems.coordinates.shape
    return lowest(problems, kd, recipe, np.zeros((n, width)))


def lowest(problem: Problem, kd: Callable[[], Problem], recipe: Recipe, start: Float64) -> Solution:
    """The solution from *start* or, with many minima, the lower of that and the one from KD's optimum."""
    solution = recipe.solve(problem, start)
    if not recipe.has_many_minima:
        return solution
    first = recipe.solve(kd(), start)
    second = recipe.solve(problem, first.offsets)
    return solution.or_better(replace(second, evaluations=first.evaluations + second.evaluations))


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


def fit_scope(rewards: Rewards, scope: Scope, recipe: Recipe) -> Offsets:
    """The ungated offsets of one scope: the paper's rule as it stands."""
    if scope == "global":
        offsets = [shared_offset(rewards, "global", None, recipe)]
    elif scope == "task":
        tasks = np.unique(rewards.tasks).tolist()
        offsets = [shared_offset(of_task(rewards, task), "task", task, recipe) for task in tasks]
    elif scope == "local":
        offsets = []
        for task in np.unique(rewards.tasks).tolist():
            mine = of_task(rewards, task)
            vectors, solution = private_optima(mine, recipe)
            offsets.append(local_offset(Local.of(mine, vectors, recipe.kappa), task, len(mine), solution, recipe))
    else:
        rewards = one_row_each(rewards)
        offsets = private_offsets(rewards, *private_optima(rewards, recipe), recipe)
    return collect(offsets, rewards, recipe, scope)


def collect(offsets: list[Offset], rewards: Rewards, recipe: Recipe, scope: str) -> Offsets:
    """Offsets with the record of how they were learned."""
    return recorded(offsets, rewards.judge, rewards.width, recipe, scope, rewards.embedder)


def recorded(offsets: list[Offset], judge: str, width: int, recipe: Recipe, scope: str, embedder: str = "") -> Offsets:
    """Offsets of a *width*, learned from the rewards of a *judge*, with the record of how."""
    settings: dict[str, str | float] = {"scope": scope, "judge": judge}
    settings |= {name: getattr(recipe, name) for name in _SETTINGS}
    if embedder:
        settings["embedder"] = embedder
    return Offsets(offsets, width=width, settings=settings)


def of_task(rewards: Rewards, task: str) -> Rewards:
    """The rewards of one task."""
    return rewards.take(np.flatnonzero(rewards.tasks == task))


def shared_offset(
    rewards: Rewards,
    scope: Scope,
    task: str | None,
    recipe: Recipe,
    evidence: Evidence | None = None,
    *,
    weights: Float64 | None = None,
    n: int | None = None,
) -> Offset:
    """The offset of all *rewards* together, on *evidence* or ungated.

    Args:
        rewards: Judged candidates.
        scope: ``global`` or ``task``.
        task: Its task; None for the global offset.
        recipe: How it is learned.
        evidence: The verdict; None where no gate was asked.
        weights: (n,) weights of the queries; None for those of `scope_weights`.
        n: Rewarded queries that it counts as learned from; None for all.
    """
    start = recipe.start("global" if task is None else f"task:{task}", rewards.width)
    weights = scope_weights(rewards) if weights is None else weights
    solution = solve_shared(rewards, recipe, weights[None], Grid.of(rewards), start)
    n = len(rewards) if n is None else n
    return solved_offset(solution, 0, scope, task, n, recipe, rewards.query_vectors.dtype, evidence)


def solved_offset(
    solution: Solution,
    row: int,
    scope: Scope,
    task: str | None,
    n: int,
    recipe: Recipe,
    dtype: np.dtype[Any],
    evidence: Evidence | None = None,
) -> Offset:
    """The shared offset of *n* rewarded queries that is one *row* of a *solution*, on *evidence* or ungated."""
    offset = Offset(
        scope=scope,
        task=task,
        vector=solution.offsets[row].astype(dtype),
        alpha=recipe.dose(n) * (evidence.trust if evidence else 1.0),
        n=n,
        evidence=evidence or ungated(n),
        certificate=certificate(solution, row),
    )
    return _if_converged(offset, recipe)


def private_optima(rewards: Rewards, recipe: Recipe) -> tuple[FloatArray, Solution]:
    """The private offset (n, d) of each query of *rewards*, and how near its optimum each is."""
    rows = list(batches(rewards))
    parts = spread(partial(_optima_of_batch, recipe), map(rewards.take, rows))
    order = np.argsort(np.concatenate(rows))
    columns = ("objective", "gradient_norm", "evaluations", "converged")
    joined = {name: np.concatenate([getattr(part, name) for _, part in parts])[order] for name in columns}
    optima = np.concatenate([part for part, _ in parts])[order]
    return optima, Solution(offsets=np.asarray(optima, dtype=np.float64), **joined)


def _optima_of_batch(recipe: Recipe, batch: Rewards) -> tuple[FloatArray, Solution]:
    """The private offsets of the queries of *batch*, in their order."""
    problems = private_problems(batch, recipe)
    solution = solve_private(problems, recipe)
    lifted = problems.lift(batch, solution.offsets, recipe.device)
    return lifted.astype(batch.query_vectors.dtype, copy=False), replace(solution, offsets=np.empty((0, 0)))


def private_offsets(
    rewards: Rewards, vectors: FloatArray, solution: Solution, recipe: Recipe, evidence: Evidence | None = None
) -> list[Offset]:
    """One offset per query of *rewards*, in their order, on pooled *evidence* or ungated.

    Args:
        rewards: Judged candidates.
        vectors: (n, d) the offsets.
        solution: The certificates of the private optima behind them.
        recipe: How they were learned.
        evidence: The verdict on all of them; None where no gate was asked.
    """
    names = zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True)
    return [
        _if_converged(
            Offset(
                scope="query",
                task=task,
                query_id=query_id,
                vector=vectors[row],
                alpha=recipe.dose(1),
                n=1,
                evidence=evidence or ungated(1),
                certificate=certificate(solution, row),
            ),
            recipe,
        )
        for row, (task, query_id) in enumerate(names)
    ]


def local_offset(
    local: Local,
    task: str,
    n: int,
    solution: Solution,
    recipe: Recipe,
    evidence: Evidence | None = None,
    vector: FloatArray | None = None,
) -> Offset:
    """The offset of a task as a function of the query, on *evidence* or ungated.

    Args:
        local: The regression of the private optima.
        task: Its task.
        n: Rewarded queries that it was learned from.
        solution: The certificates of the private optima that it was learned from.
        recipe: How they were learned.
        evidence: The verdict; None where no gate was asked.
        vector: (d,) what the regression is learned around; None for zero.
    """
    map_ = local.map()
    targets = Certificate(
        objective=float(solution.objective.mean()),
        gradient_norm=float(solution.gradient_norm.max()),
        evaluations=int(solution.evaluations.max()),
        converged=bool(solution.converged.all()),
        residual=local.residual,
    )
    vector = np.zeros(map_.landmarks.shape[1], map_.landmarks.dtype) if vector is None else vector
    found = evidence or ungated(n)
    offset = Offset(
        scope="local", task=task, vector=vector, alpha=1.0, n=n, evidence=found, certificate=targets, map=map_
    )
    return _if_converged(offset, recipe)


def _if_converged(offset: Offset, recipe: Recipe) -> Offset:
    """The offset; one short of its optimum says so, and is withheld if the gate published it."""
    found = offset.certificate
    if found is None or found.converged or recipe.solver == "adam":
        return offset
    reason = f"the solver stopped at gradient norm {found.gradient_norm:.1e}, not at an optimum"
    if offset.evidence.verdict != "published":
        return replace(offset, evidence=replace(offset.evidence, reason=f"{offset.evidence.reason}; {reason}"))
    evidence = replace(offset.evidence, verdict="abstained", reason=reason, code=UNSOLVED)
    return replace(offset, vector=np.zeros_like(offset.vector), alpha=0.0, map=None, evidence=evidence)


def ungated(n: int) -> Evidence:
    """The evidence of an offset nobody asked evidence of."""
    return Evidence(n, None, None, "ungated", "learned without a gate")


def certificate(solution: Solution, row: int) -> Certificate:
    """The certificate of one problem of a solution."""
    return Certificate(
        objective=float(solution.objective[row]),
        gradient_norm=float(solution.gradient_norm[row]),
        evaluations=int(solution.evaluations[row]),
        converged=bool(solution.converged[row]),
    )
