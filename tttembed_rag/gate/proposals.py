"""Proposals: an offset that might be published, with what it does to queries that it was not learned from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tttembed_rag.fitting.local import Local
from tttembed_rag.fitting.scopes import local_offset, scope_weights, shared_offset, solve_shared
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import LOOSER, RIDGE_STEP, TYPICAL_FALL
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.values import Offset, Scope
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """An offset that is learned only if it is published.

    Attributes:
        name: What it is, in words.

        fall: By how many nats the loss of held-out queries falls: one observation for each question, or task.

        observations: How many observations there are.

        unit: What an observation is, in words.

        held_out: (n, d) what moves each query, learned without it.

        learn: Learns the offset, on the evidence given.
    """

    name: str
    fall: Gain
    observations: int
    held_out: Float64
    learn: Callable[[Evidence], Offset]
    unit: str = "queries"


def propose_local(case: Case) -> Proposal:
    """The local offset of the one task of *case*."""
    task = str(case.rewards.tasks[0])
    targets, solution = case.optima
    weights = case.voices * case.usable
    regression = Local.of(case.widened, case.trust * targets, case.recipe.kappa, weights=weights, groups=case.groups)
    held_out = regression.held_out(case.fold)
    fall = _fall(case, held_out, case.groups)
    used = solution.only(case.usable > 0)

    def learn(evidence: Evidence) -> Offset:
        return local_offset(regression, task, case.questions, used, case.recipe, evidence)

    return Proposal("a local offset", fall, case.questions, held_out, learn)


def propose_constant(case: Case, task: str | None) -> Proposal:
    """One offset for all queries of *case*: that of a *task*, or (None) the global one."""
    name = "a global offset" if task is None else "one offset for all queries"
    held_out = _held_out(case, case.fold)
    fall = _fall(case, held_out, case.groups)
    return Proposal(name, fall, case.questions, held_out, _learner(case, task))


def propose_for_unseen_tasks(case: Case, families: IntArray) -> Proposal:
    """The global offset tried on tasks that it was not learned from; a family of tasks is one observation.

    Args:
        case: All rewards.

        families: (n,) a number for each family, as `task_families` gives it.
    """
    fold = families % (int(case.fold.max()) + 1)
    # Every task weighs the same, whatever its size.
    held_out = _held_out(case, fold)
    fall = _fall(case, held_out, families, weights=scope_weights(case.rewards))
    tasks = int(families.max()) + 1
    return Proposal("a global offset on unseen tasks", fall, tasks, held_out, _learner(case, None), "tasks")


def task_families(case: Case) -> IntArray:
    """(n,) a number for each family of tasks: tasks of one family share a question, directly or through others."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    task = np.unique(case.rewards.tasks, return_inverse=True)[1]
    tasks, size = int(task.max()) + 1, int(task.max() + case.groups.max()) + 2
    shared = coo_array((np.ones(len(task)), (task, tasks + case.groups)), shape=(size, size))
    family = connected_components(shared, directed=False)[1][task]
    return np.asarray(np.unique(family, return_inverse=True)[1])


def _learner(case: Case, task: str | None) -> Callable[[Evidence], Offset]:
    recipe = replace(case.recipe, ridge=RIDGE_STEP * case.recipe.ridge)

    def learn(evidence: Evidence) -> Offset:
        scope: Scope = "global" if task is None else "task"
        weights = scope_weights(case.rewards, case.voices)
        return shared_offset(case.widened, scope, task, recipe, evidence, weights=weights, n=case.questions)

    return learn


def _held_out(case: Case, fold: IntArray) -> Float64:
    """(n, d) alpha v at each query, v learned from the folds without it."""
    recipe = replace(case.recipe, ridge=RIDGE_STEP * case.recipe.ridge, tolerance=LOOSER * case.recipe.tolerance)
    numbers, own = np.unique(fold, return_inverse=True)
    learning = fold != numbers[:, None]
    if len(numbers) < 2:
        return np.zeros((len(fold), case.rewards.width))
    weights = np.array([scope_weights(case.rewards, case.voices * seen) for seen in learning])
    start = np.zeros((len(numbers), case.rewards.width))
    learned = solve_shared(case.widened, recipe, weights, case.grid, start).offsets
    dose = [case.trust * recipe.dose(float(case.voices[seen].sum())) for seen in learning]
    return np.asarray(np.array(dose)[:, None] * learned)[own]


def _fall(case: Case, held_out: Float64, groups: IntArray, weights: Float64 | None = None) -> Gain:
    most = math.inf if weights is not None else float(case.voices.sum())
    weights = case.voices if weights is None else weights
    return Gain.of(case.falls(held_out), weights, groups, typical=TYPICAL_FALL, most=most)
