"""Proposals: an offset that might be published, with what it does to queries that it was not learned from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tttembed_rag.fitting.local import Local
from tttembed_rag.fitting.optima import scope_weights, shared_optima
from tttembed_rag.fitting.scopes import local_offset, shared_offset
from tttembed_rag.fitting.solver import Solution
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import FINE_FOLDS, LEVEL, LOOSER, NARROWER, RIDGE_STEP, TYPICAL_FALL
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64


class Prior(NamedTuple):
    """What the queries of a task are moved by without a reward of their own.

    Attributes:
        served: (d,) the dosed global offset, or the constant part of what a task is served already.
        held_out: (d,) or (n, d) the same, learned without the task.
        start: Whether it is served already: optima are sought around it.
        map: The other part of it, where it depends on the query.
    """

    served: FloatArray
    held_out: FloatArray
    start: bool = False
    map: KernelMap | None = None

    @classmethod
    def of_start(cls, start: Offset, case: Case) -> Prior:
        """What the task of *case* is served already, *start*."""
        return cls(start.alpha * start.vector, case.terms.started(case.rewards), start=True, map=start.map)


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """An offset that is learned only if it is published.

    Attributes:
        name: What it is, in words.
        case: The rewards that it is learned from.
        held_out: (n, d) what moves each query, learned without it.
        without: (n, d) what moves each query where it is not served.
        learn: Learns the offset, on the evidence given.
        families: (n,) a number for each family of tasks, where a family is one observation and not a question.
        shares: (n,) the sum of the shares that vectors have in what moves each query; None where it is not known.
        finely: Gives *held_out* from all but one of `FINE_FOLDS` folds; None where that is not known.
    """

    name: str
    case: Case
    held_out: Float64
    without: Float64
    learn: Callable[[Evidence], Offset]
    families: IntArray | None = None
    shares: Float64 | None = None
    finely: Callable[[], Float64] | None = None

    @property
    def observations(self) -> int:
        """How many observations there are."""
        return self.case.questions if self.families is None else int(self.families.max()) + 1

    @property
    def title(self) -> str:
        """What it is, and what it was asked of, in words before a verdict."""
        n, unit = self.observations, "queries" if self.families is None else "tasks"
        return f"{self.name}, {n} held-out {unit}" if n > 1 else self.name

    def fall(self, expected: float) -> Gain:
        """The fall of the loss below that of what is served without it, one pseudo-observation being *expected*."""
        falls = self.case.falls(self.held_out, self.shares) - self.case.falls(self.without)
        return Gain.of(falls, *self._counted, typical=TYPICAL_FALL, expected=expected, most=self._most)

    @property
    def harmed(self) -> bool:
        """Whether what is served without it does harm for sure."""
        falls = self.case.falls(self.without)
        return Gain.of(falls, *self._counted, typical=TYPICAL_FALL, most=self._most).above(LEVEL) < 0

    def change(self, base: Float64) -> Gain:
        """The change of nDCG@10 of held-out queries, by their rewards, from that of the *base* vectors (n,)."""
        weights, groups = self._counted
        measured = self.case.measured
        most = min(self._most, float(measured.sum()))
        return Gain.measured(self.case.ndcg(self.held_out) - base, weights * (measured > 0), groups, most=most)

    @property
    def _counted(self) -> tuple[Float64, IntArray]:
        """(n,) how much each query counts, and (n,) what is one observation."""
        if self.families is None:
            return self.case.voices, self.case.groups
        return scope_weights(self.case.rewards), self.families  # every task weighs the same, whatever its size

    @property
    def _most(self) -> float:
        return float(self.case.voices.sum()) if self.families is None else math.inf


def propose_local(case: Case, optima: Solution, prior: Prior | None = None) -> Proposal:
    """The local offset of the one task of *case*: a regression towards what the task is served without it.

    It regresses the private *optima* of the queries; one that the solver did not reach counts nothing (Adam never
    says). Around a start it varies as the start does, or over `NARROWER` distances than queries do.
    """
    task, recipe = str(case.rewards.tasks[0]), case.recipe
    none = np.zeros(case.rewards.width, optima.offsets.dtype)
    what = " around what is served" if prior and prior.start else " around the global one" if prior else ""
    alone, prior = prior is None, prior or Prior(none, none)
    known = prior.held_out if prior.start else none
    targets = known + case.trust * (optima.offsets - known)
    reached = optima.converged | (recipe.solver == "adam")
    weights = case.voices * np.asarray(reached, dtype=np.float64)
    regression = Local.of(
        case.widened,
        targets - prior.held_out,
        recipe.kappa,
        weights=weights,
        groups=case.groups,
        bandwidth=None if prior.map is None else prior.map.bandwidth,
        share=NARROWER if prior.start else 1.0,
    )
    without = np.broadcast_to(prior.held_out.astype(np.float64), targets.shape)
    held_out = without + regression.held_out(case.fold)
    shares = None
    if alone:  # else what is common to all vectors is not known
        shares = replace(regression, targets=case.trust * optima.shares[:, None]).held_out(case.fold)[:, 0]

    def learn(evidence: Evidence) -> Offset:
        used = optima.take(reached) if reached.any() else optima
        around = regression if prior.start else replace(regression, targets=targets - prior.served)
        offset = local_offset(around, task, case.questions, used, recipe, evidence, prior.served)
        both = None if prior.map is None or offset.map is None else prior.map.plus(offset.map)
        return offset if both is None else replace(offset, map=both)

    def finely() -> Float64:
        return without + regression.held_out(case.groups % FINE_FOLDS)

    return Proposal(f"a local offset{what}", case, held_out, without, learn, shares=shares, finely=finely)


def propose_constant(case: Case, task: str | None = None, *, unseen: bool = False) -> Proposal:
    """One offset for all queries of *case*: that of a *task*, or (None) the global one.

    The global one may be tried on *unseen* tasks, from which it was not learned; a family of tasks is one observation.
    """
    name = f"a global offset{' on unseen tasks' * unseen}" if task is None else "one offset for all queries"
    families = task_families(case.rewards) if unseen else None
    fold = case.fold if families is None else families % (int(case.fold.max()) + 1)
    recipe = replace(case.recipe, ridge=RIDGE_STEP * case.recipe.ridge)

    def learn(evidence: Evidence) -> Offset:
        weights = scope_weights(case.rewards, case.voices)
        return shared_offset(case.widened, task, recipe, evidence, weights=weights, n=case.questions)

    none = np.zeros((len(fold), case.rewards.width))
    held_out: Float64 = none
    numbers, own = np.unique(fold, return_inverse=True)
    if len(numbers) > 1:
        learning = fold != numbers[:, None]
        weights = np.array([scope_weights(case.rewards, case.voices * rows) for rows in learning])
        looser = replace(recipe, tolerance=LOOSER * recipe.tolerance)
        learned = shared_optima(case.widened, looser, weights, case.grid).offsets
        dose = [case.trust * recipe.dose(float(case.voices[rows].sum())) for rows in learning]
        held_out = np.asarray((np.array(dose)[:, None] * learned)[own], dtype=np.float64)
    return Proposal(name, case, held_out, none, learn, families)


def task_families(rewards: Rewards) -> IntArray:
    """(n,) a number for each family of tasks: tasks of one family share a question, directly or through others."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    task, groups = np.unique(rewards.tasks, return_inverse=True)[1], rewards.near_queries
    tasks, size = int(task.max()) + 1, int(task.max() + groups.max()) + 2
    shared = coo_array((np.ones(len(task)), (task, tasks + groups)), shape=(size, size))
    family = connected_components(shared, directed=False)[1][task]
    return np.asarray(np.unique(family, return_inverse=True)[1])
