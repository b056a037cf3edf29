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
from tttembed_rag.gate.thresholds import LEVEL, LOOSER, RIDGE_STEP, TYPICAL_FALL
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.values import Offset, Scope
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """What the queries of a task are moved by without a reward of their own.

    Attributes:
        served: (d,) the dosed global offset.
        held_out: (d,) the same, learned without the task.
    """

    served: FloatArray
    held_out: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """An offset that is learned only if it is published.

    Attributes:
        name: What it is, in words.
        case: The rewards that it is learned from.
        held_out: (n, d) what moves each query, learned without it.
        without: (n, d) what moves each query where it is not served.
        falls: (n,) by how many nats the loss of each query falls below that of what is served without it.
        learn: Learns the offset, on the evidence given.
        groups: (n,) what is one observation: a question, or a family of tasks.
        weights: (n,) how much each query counts.
        unit: What an observation is, in words.
    """

    name: str
    case: Case
    held_out: Float64
    without: Float64
    falls: Float64
    learn: Callable[[Evidence], Offset]
    groups: IntArray
    weights: Float64
    unit: str = "queries"

    @property
    def observations(self) -> int:
        """How many observations there are."""
        return self.case.questions if self.unit == "queries" else int(self.groups.max()) + 1

    def fall(self, expected: float) -> Gain:
        """The fall of the loss, with one pseudo-observation of what is *expected*."""
        return self._gain(self.falls, expected)

    @property
    def harmed(self) -> bool:
        """Whether what is served without it does harm for sure."""
        return self._gain(self.case.falls(self.without), 0.0).above(LEVEL) < 0

    def _gain(self, falls: Float64, expected: float) -> Gain:
        return Gain.of(falls, self.weights, self.groups, typical=TYPICAL_FALL, expected=expected, most=self._most)

    @property
    def change(self) -> Gain:
        """The change of nDCG@10 of the judged candidates of held-out queries, by their rewards."""
        return Gain.measured(self.case.judged_changes(self.held_out), self.weights, self.groups, most=self._most)

    @property
    def _most(self) -> float:
        return float(self.case.voices.sum()) if self.unit == "queries" else math.inf


def propose_local(case: Case, prior: Prior | None = None) -> Proposal:
    """The local offset of the one task of *case*: a regression towards what the task is served without it."""
    task = str(case.rewards.tasks[0])
    optima, solution = case.optima
    targets = case.trust * optima
    none = np.zeros(case.rewards.width, targets.dtype)
    name = "a local offset around the global one" if prior else "a local offset"
    prior = prior or Prior(none, none)
    weights = case.voices * case.usable
    regression = Local.of(
        case.widened, targets - prior.held_out, case.recipe.kappa, weights=weights, groups=case.groups
    )
    without = np.broadcast_to(prior.held_out.astype(np.float64), targets.shape)
    held_out = without + regression.held_out(case.fold)
    falls = case.falls(held_out) - case.falls(without)

    def learn(evidence: Evidence) -> Offset:
        used = solution.only(case.usable > 0) if case.usable.any() else solution
        around = replace(regression, targets=targets - prior.served)
        return local_offset(around, task, case.questions, used, case.recipe, evidence, prior.served)

    return Proposal(name, case, held_out, without, falls, learn, case.groups, case.voices)


def propose_constant(case: Case, task: str | None) -> Proposal:
    """One offset for all queries of *case*: that of a *task*, or (None) the global one."""
    name = "a global offset" if task is None else "one offset for all queries"
    held_out = _held_out(case, case.fold)
    without, falls = np.zeros_like(held_out), case.falls(held_out)
    return Proposal(name, case, held_out, without, falls, _learner(case, task), case.groups, case.voices)


def propose_for_unseen_tasks(case: Case) -> Proposal:
    """The global offset tried on tasks that it was not learned from; a family of tasks is one observation."""
    families = task_families(case)
    held_out = _held_out(case, families % (int(case.fold.max()) + 1))
    weights = scope_weights(case.rewards)  # every task weighs the same, whatever its size
    without, falls = np.zeros_like(held_out), case.falls(held_out)
    name, learn = "a global offset on unseen tasks", _learner(case, None)
    return Proposal(name, case, held_out, without, falls, learn, families, weights, "tasks")


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
