"""Contests: which shared offset, at which ridge, gains most on queries that did not train it?"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace

import numpy as np

from tttembed_rag.fitting.recipe import SMALLEST, Recipe
from tttembed_rag.fitting.scopes import scope_weights, shared_offset
from tttembed_rag.gate.crossfit import cross_fitted, folds
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.neighbours import with_neighbours
from tttembed_rag.gate.thresholds import (
    FOLDS,
    GAIN_LEVEL,
    INTERVAL_LEVEL,
    RIDGE_STEPS,
    SHARPNESS,
    TEMPERATURE_STEP,
)
from tttembed_rag.offsets.values import Evidence, Offset, Scope
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64


@dataclass(frozen=True, slots=True, eq=False)
class Contest:
    """Cross-fitted gains of one kind of offset at several ridges.

    Attributes:
        name: What is raced, in words.

        learned_from: What the offset is learned from if it wins.

        recipes: The contestants.

        gains: (contestants, n) gain of each trial: a held-out query, or a held-out task.

        moved: (contestants, n) share of its first ten candidates that was displaced.

        groups: (n,) trials of the same group are one observation.

        weights: (n,) weights of the mean gain, summing to 1.

        unit: What a trial is, in words.

        level: One-sided level at which its gain must be above zero.

        known: The offsets that were learned so far, by ridge.
    """

    name: str
    learned_from: Rewards
    recipes: tuple[Recipe, ...]
    gains: Float64
    moved: Float64
    groups: IntArray
    weights: Float64
    unit: str = "queries"
    level: float = GAIN_LEVEL
    known: dict[float, Offset] = field(default_factory=dict)

    def within(self, rows: IntArray) -> Contest:
        """The same contest as the queries of one task, at *rows*, saw it."""
        gains, moved, groups = self.gains[:, rows], self.moved[:, rows], self.groups[rows]
        return replace(self, gains=gains, moved=moved, groups=groups, weights=_even(len(rows)))

    def winner(self, scope: Scope, task: str | None, recipe: Recipe, evidence: Evidence) -> Offset:
        """The offset of a contestant, learned once for all tasks that take it."""
        if recipe.ridge not in self.known:
            self.known[recipe.ridge] = shared_offset(self.learned_from, scope, task, recipe, evidence)
        offset = replace(self.known[recipe.ridge], scope=scope, task=task)
        return replace(offset, evidence=evidence) if offset.served else offset

    @property
    def best(self) -> tuple[Gain, Recipe]:
        """The contestant with the highest mean gain."""
        trials = zip(self.gains, self.moved, strict=True)
        gains = [Gain.of(gained, moved, self.weights, self.groups) for gained, moved in trials]
        # Equal gains go to the most cautious.
        winner = max(range(len(gains)), key=lambda i: (gains[i].mean, self.recipes[i].ridge))
        return gains[winner], self.recipes[winner]


def contest_of(name: str, rewards: Rewards, recipe: Recipe) -> Contest:
    """The shared offset of *rewards* at every ridge, each query tried on what other folds learned."""
    groups = rewards.same_queries
    recipes = tuple(replace(smoothed(recipe), ridge=recipe.ridge * step) for step in RIDGE_STEPS)
    widened = with_neighbours(rewards)
    gains, moved = cross_fitted(widened, rewards.depths, recipes, folds(rewards, groups))
    return Contest(name, widened, recipes, gains, moved, groups, scope_weights(rewards))


def sharpened(rewards: Rewards, recipe: Recipe) -> Recipe:
    """The recipe at a teacher temperature that tells apart what the judge does."""
    reach = np.maximum.reduceat(rewards.values, rewards.starts[:-1])
    reach -= np.minimum.reduceat(rewards.values, rewards.starts[:-1])
    if not reach.any():
        return recipe
    sharp = float(reach[reach > 0].mean()) / SHARPNESS
    return replace(recipe, teacher_temperature=min(recipe.teacher_temperature, max(sharp, SMALLEST)))


def smoothed(recipe: Recipe) -> Recipe:
    """The recipe at the student temperature of gated offsets."""
    return replace(recipe, student_temperature=recipe.student_temperature * TEMPERATURE_STEP)


def on_unseen_tasks(rewards: Rewards, pooled: Contest) -> Contest:
    """The best global offset tried on tasks it did not see, a fold of tasks at a time; a task is one observation.

    Tasks that share a query are seen together or not at all, and are one observation together.
    """
    tasks, first, task = np.unique(rewards.tasks, return_index=True, return_inverse=True)
    family = task_families(rewards, pooled.groups)
    recipes = (pooled.best[1],)
    found = cross_fitted(pooled.learned_from, rewards.depths, recipes, family % FOLDS)
    gains, moved = (np.array([[row[task == t].mean() for t in range(len(tasks))] for row in part]) for part in found)
    return Contest(
        name="a global offset on unseen tasks",
        learned_from=pooled.learned_from,
        known=pooled.known,
        recipes=recipes,
        gains=gains,
        moved=moved,
        groups=family[first],
        weights=_even(len(tasks)),
        unit="tasks",
        level=INTERVAL_LEVEL,
    )


def task_families(rewards: Rewards, groups: IntArray) -> IntArray:
    """(n,) a number for each family of tasks: those that have a query in common, at whatever remove."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    task = np.unique(rewards.tasks, return_inverse=True)[1]
    tasks, size = int(task.max()) + 1, int(task.max() + groups.max()) + 2
    shared = coo_array((np.ones(len(task)), (task, tasks + groups)), shape=(size, size))
    family = connected_components(shared, directed=False)[1][task]
    return np.asarray(np.unique(family, return_inverse=True)[1])


def _even(n: int) -> Float64:
    return np.full(n, 1 / n)


def more_needed(n: int, gain: Gain, level: float) -> int | None:
    """How many more trials than *n* would bring the bound at *level* above zero, if the gain holds.

    None where it is above already, and where it would take more than ten times as many: so small a gain is no
    ground to count on.
    """
    if gain.below(level) > 0:
        return None
    more = bisect_left(range(1, 10 * n + 1), True, key=lambda more: gain.after(more / n).below(level) > 0) + 1
    return more if more <= 10 * n else None
