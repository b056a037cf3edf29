"""The plain rule: rewards of a scope in, its offset out (paper, Eq. 6 to 8 and Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.local import Local
from tttembed_rag.fitting.merging import one_row_each
from tttembed_rag.fitting.private import PrivateProblems
from tttembed_rag.fitting.recipe import ObjectiveName, Recipe
from tttembed_rag.fitting.shared import SharedProblem
from tttembed_rag.fitting.solver import Problem, Solution
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

    *voices* (n,) say how much each query counts as one; 0 leaves it out. None is one each.
    """
    tasks, task = np.unique(rewards.tasks, return_inverse=True)
    voices = np.ones(len(task)) if voices is None else voices
    count = np.bincount(task, voices, minlength=len(tasks))
    return np.asarray(voices / (np.count_nonzero(count) * np.where(count > 0, count, 1.0)[task]))


def solve_shared(rewards: Rewards, recipe: Recipe, weights: Float64, grid: Grid, start: Float64) -> Solution:
    """G offsets side by side from *start* (G, d), each for the queries to which *weights* (G, n) gives weight."""

    def problem(objective: ObjectiveName) -> SharedProblem:
        return SharedProblem.of(rewards, recipe.loss(grid, objective), weights, recipe.ridge, recipe.device)

    return lowest(problem, recipe, start)


def lowest(problem: Callable[[ObjectiveName], Problem], recipe: Recipe, start: Float64) -> Solution:
    """The solution from *start* of the *problem* of the recipe's objective.

    Objectives other than KD have many minima: the exact solver starts from KD's optimum too, and the lower one counts.
    """
    solution = recipe.solve(mine := problem(recipe.objective), start)
    if recipe.objective == "kd" or recipe.solver == "adam":
        return solution
    first = recipe.solve(problem("kd"), start)
    second = recipe.solve(mine, first.offsets)
    lower = second.objective < solution.objective
    pairs = zip(second, solution, strict=True)
    best = (np.where(lower if one.ndim == 1 else lower[:, None], one, other) for one, other in pairs)
    return Solution(*best)._replace(evaluations=solution.evaluations + first.evaluations + second.evaluations)


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
    if scope == "query":
        rewards = one_row_each(rewards)
        offsets = private_offsets(rewards, private_optima(rewards, recipe), recipe)
    elif scope == "global":
        offsets = [shared_offset(rewards, None, recipe)]
    else:
        tasks = np.unique(rewards.tasks).tolist()
        offset_of = _ungated_local if scope == "local" else shared_offset
        offsets = [offset_of(of_task(rewards, task), task, recipe) for task in tasks]
    return recorded(offsets, rewards.judge, rewards.width, recipe, scope, rewards.embedder)


def _ungated_local(rewards: Rewards, task: str, recipe: Recipe) -> Offset:
    optima = private_optima(rewards, recipe)
    return local_offset(Local.of(rewards, optima.offsets, recipe.kappa), task, len(rewards), optima, recipe)


def recorded(offsets: list[Offset], judge: str, width: int, recipe: Recipe, scope: str, embedder: str) -> Offsets:
    """Offsets of a *width*, learned from the rewards of a *judge*, with the record of how.

    Of the recipe it keeps neither where it ran, nor where the search began.
    """
    kept = [field.name for field in fields(recipe) if field.name not in ("device", "warm_start")]
    settings: dict[str, str | float] = {"scope": scope, "judge": judge}
    settings |= {name: getattr(recipe, name) for name in kept}
    if embedder:
        settings["embedder"] = embedder
    return Offsets(offsets, width=width, settings=settings)


def of_task(rewards: Rewards, task: str) -> Rewards:
    """The rewards of one task."""
    return rewards.take(np.flatnonzero(rewards.tasks == task))


def shared_offset(
    rewards: Rewards,
    task: str | None,
    recipe: Recipe,
    evidence: Evidence | None = None,
    *,
    weights: Float64 | None = None,
    n: int | None = None,
) -> Offset:
    """The offset of a *task*, or the global one (None), of all *rewards* together, on *evidence* or ungated.

    The *weights* (n,) of queries are those of `scope_weights` if there are none; it counts as learned from *n* queries.
    """
    start = recipe.start("global" if task is None else f"task:{task}", rewards.width)
    weights = scope_weights(rewards) if weights is None else weights
    solution = solve_shared(rewards, recipe, weights[None], Grid.of(rewards), start)
    return solved_offset(solution, 0, task, n or len(rewards), recipe, rewards.query_vectors.dtype, evidence)


def solved_offset(
    solution: Solution,
    row: int,
    task: str | None,
    n: int,
    recipe: Recipe,
    dtype: np.dtype[Any],
    evidence: Evidence | None = None,
) -> Offset:
    """The shared offset of *n* rewarded queries that is one *row* of a *solution*, on *evidence* or ungated."""
    offset = Offset(
        scope="global" if task is None else "task",
        task=task,
        vector=solution.offsets[row].astype(dtype),
        alpha=recipe.dose(n) * (evidence.trust if evidence else 1.0),
        n=n,
        evidence=evidence or _ungated(n),
        certificate=_certificate(solution, row),
    )
    return _if_converged(offset, recipe)


def private_optima(rewards: Rewards, recipe: Recipe) -> Solution:
    """The private offset (n, d) of each query of *rewards*, and how near its optimum each is."""
    rows = list(batches(rewards))
    parts = [_optima_of_batch(rewards.take(which), recipe) for which in rows]
    order = np.argsort(np.concatenate(rows))
    return Solution(*(np.concatenate(column)[order] for column in zip(*parts, strict=True)))


def _optima_of_batch(batch: Rewards, recipe: Recipe) -> Solution:
    """The private offsets of the queries of *batch*, in their order, searched in the basis that the solver wants."""
    grid = Grid.of(batch)
    loss = recipe.loss(grid)
    if recipe.solver == "adam":
        problems = PrivateProblems.in_full_width(batch, loss, recipe.ridge)
    else:
        problems = PrivateProblems.of(batch, loss, recipe.ridge, recipe.device)
    n, _, width = problems.coordinates.shape

    def problem(objective: ObjectiveName) -> PrivateProblems:
        return replace(problems, loss=recipe.loss(grid, objective))

    solution = lowest(problem, recipe, np.zeros((n, width)))
    found = solution.offsets
    vectors = found if recipe.solver == "adam" else problems.lift(batch, found, recipe.device)
    return solution._replace(offsets=vectors.astype(batch.query_vectors.dtype, copy=False))


def private_offsets(
    rewards: Rewards, optima: Solution, recipe: Recipe, evidence: Evidence | None = None
) -> list[Offset]:
    """One offset per query of *rewards*, in their order: its row of *optima*, on pooled *evidence* or ungated."""
    trust = evidence.trust if evidence else 1.0
    vectors = (trust * optima.offsets).astype(optima.offsets.dtype)
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
                evidence=evidence or _ungated(1),
                certificate=_certificate(optima, row),
            ),
            recipe,
        )
        for row, (task, query_id) in enumerate(names)
    ]


def local_offset(
    local: Local,
    task: str,
    n: int,
    optima: Solution,
    recipe: Recipe,
    evidence: Evidence | None = None,
    vector: FloatArray | None = None,
) -> Offset:
    """The offset of a *task* as a function of the query, on *evidence* or ungated.

    It is the *local* regression of *n* private *optima* around a *vector* (d,), or around zero.
    """
    map_ = local.map()
    targets = Certificate(
        objective=float(optima.objective.mean()),
        gradient_norm=float(optima.gradient_norm.max()),
        evaluations=int(optima.evaluations.max()),
        converged=bool(optima.converged.all()),
        residual=local.residual,
    )
    vector = np.zeros(map_.landmarks.shape[1], map_.landmarks.dtype) if vector is None else vector
    found = evidence or _ungated(n)
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


def _ungated(n: int) -> Evidence:
    return Evidence(n, None, None, "ungated", "learned without a gate")


def _certificate(solution: Solution, row: int) -> Certificate:
    """The certificate of one problem of a solution."""
    return Certificate(*(column[row].item() for column in solution[1:]))
