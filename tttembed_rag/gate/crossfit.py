"""What rewards can prove: a common direction, knowledge of the candidates, and a held-out gain.

Two questions come before any offset. Do the rewards of different queries pull in one direction, and do
they know the candidates: follow the retriever that found them, and score similar ones alike? Both are
answered exactly, without a fit, by dealing each query's rewards anew among its candidates: under rewards
that mean nothing every deal is as likely as the one observed. The third question, how much an offset
gains, is answered by cross-fitting: each query is ranked by an offset it did not train.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import scope_weights, solve_shared
from tttembed_rag.gate.gains import displaced, judged_ndcg
from tttembed_rag.gate.thresholds import FOLDS, LOOSER
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64


def folds(rewards: Rewards, groups: IntArray) -> IntArray:
    """(n,) fold of each query: every task is dealt over the folds, the same query always to one."""
    tasks, task = np.unique(rewards.tasks, return_inverse=True)
    first_task = np.full(groups.max() + 1, len(tasks))
    np.minimum.at(first_task, groups, task)
    fold = np.empty_like(first_task)
    fold[np.argsort(first_task, kind="stable")] = np.arange(len(fold)) % FOLDS
    return fold[groups]


def cross_fitted(
    learned_from: Rewards, depths: IntArray, recipes: tuple[Recipe, ...], fold: IntArray
) -> tuple[Float64, Float64]:
    """Gains (recipes, n), each query ranked by the offset learned on the folds without it, and what it displaced.

    Args:
        learned_from: Candidates of each query, the judged ones first.

        depths: (n,) how many of them are judged; the gain is measured on these.

        recipes: Contestants, from the least to the greatest ridge.

        fold: (n,) fold of each query.

    Returns:
        The gains, and (recipes, n) the share of each query's first ten candidates that gave way to others.
    """
    gains, moved = np.zeros((2, len(recipes), len(learned_from)))
    numbers, own = np.unique(fold, return_inverse=True)
    if len(numbers) < 2:
        return gains, moved
    grid, learning = Grid.of(learned_from), fold != numbers[:, None]
    judged = grid.only(grid.present & (np.arange(grid.present.shape[1]) < depths[:, None]))
    base = judged_ndcg(judged, grid.base)
    weights = np.array([scope_weights(learned_from, seen) for seen in learning])
    start = np.zeros((len(numbers), learned_from.width))
    # From the most cautious ridge down, each certified KD optimum is a warm start for the next.
    for i in reversed(range(len(recipes))):
        recipe = replace(recipes[i], tolerance=LOOSER * recipes[i].tolerance)
        learned = solve_shared(learned_from, recipe, weights, grid, start).offsets
        start = learned if not recipe.has_many_minima and recipe.solver == "exact" else start
        dose = np.array([recipe.dose(n) for n in learning.sum(axis=1).tolist()])
        lift = dose[:, None] * learned_from.documents.times(learned)
        scores = grid.base + lift[own[:, None], grid.slots]
        gains[i] = judged_ndcg(judged, scores) - base
        moved[i] = displaced(grid, scores)
    return gains, moved
