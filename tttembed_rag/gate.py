"""The gate: held-out rewards decide which offset is served, and whether any is.

Evidence is cross-fitted. The rewarded queries are dealt into folds; each query is ranked by an
offset it did not train, and its gain is the change in reward-weighted nDCG@10 of its judged
candidates against the base order. An offset is published only if the lower confidence bound of the
mean gain is above zero. The bound is Student's, with one level for the whole race (Bonferroni), so
few queries and many contestants both make it stricter.

A private offset has no second query to be tried on, so all private offsets are tried together: each
is learned on half of its query's candidates and ranks the other half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError
from tttembed_rag.fitting import (
    ObjectiveName,
    Recipe,
    SolverName,
    batches,
    collect,
    fit_scope,
    of_task,
    private_offsets,
    scope_weights,
    shared_offset,
    solve_private,
    solve_shared,
)
from tttembed_rag.objectives import PADDING
from tttembed_rag.offsets import Evidence, Offset, Offsets, Scope
from tttembed_rag.problems import Float64, Grid, PrivateProblems
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors import IntArray

AnyScope: TypeAlias = Literal["auto", "global", "task", "query"]

# One-sided error allowed per race: how often a worthless offset may pass.
LEVEL = 0.05
FOLDS = 5
# Ridges raced, as multiples of the recipe's: half-decades towards ever more cautious offsets.
RIDGE_STEPS = (1.0, 10**0.5, 10.0, 10**1.5)
# A global offset meets unseen tasks only if it helped tasks it did not see: at least this many.
MIN_TASKS = 4
_DEPTH = 10


def fit(
    rewards: Rewards,
    *,
    scope: AnyScope = "auto",
    objective: ObjectiveName = "kd",
    solver: SolverName = "exact",
    gate: bool = True,
    ridge: float = 0.3,
    teacher_temperature: float = 0.02,
    student_temperature: float = 0.05,
    kappa: float = 1.0,
    tolerance: float = 1e-4,
) -> Offsets:
    """Offsets learned from *rewards*, each published only if held-out rewards support it.

    Args:
        rewards: Judged candidates of the rewarded queries.

        scope: ``global`` (one offset for all), ``task`` (one per task), ``query`` (one per rewarded
            query), or ``auto``: per task the best supported of none, global and task, and private
            offsets for rewarded queries where they are supported.

        objective: ``kd``, ``reverse_kl`` or ``softmax_grpo``.

        solver: ``exact`` (certified optimum) or ``adam`` (the paper's 300 steps).

        gate: False serves the paper's rule as it stands; ``auto`` needs the gate.

        ridge: lambda > 0; with the gate, the least of the ridges raced.

        teacher_temperature: tau_T > 0, in units of reward.

        student_temperature: tau_S > 0, in units of cosine similarity.

        kappa: Dose n / (n + kappa), in rewarded queries.

        tolerance: Largest gradient norm that counts as converged.

    Returns:
        One offset per scope key; where the gate abstained it is zero and says why.
    """
    recipe = Recipe(
        objective=objective,
        solver=solver,
        ridge=ridge,
        teacher_temperature=teacher_temperature,
        student_temperature=student_temperature,
        kappa=kappa,
        tolerance=tolerance,
    )
    if scope not in ("auto", "global", "task", "query"):
        raise InputError(f"scope: expected auto, global, task or query, got {scope!r}")
    if gate:
        return collect(list(_gated(rewards, scope, recipe)), rewards, recipe, scope)
    if scope == "auto":
        raise InputError("gate: expected True with scope='auto' (evidence is what it chooses by), got False")
    return fit_scope(rewards, scope, recipe)


def _gated(rewards: Rewards, scope: AnyScope, recipe: Recipe) -> Iterator[Offset]:
    if scope == "global":
        yield _decide(rewards, "global", None, [_race("this offset", rewards, recipe)])
    elif scope == "task":
        for task in np.unique(rewards.tasks).tolist():
            mine = of_task(rewards, task)
            yield _decide(mine, "task", task, [_race("this offset", mine, recipe)])
    elif scope == "query":
        yield from _gated_private(rewards, recipe, keep_abstained=True)
    else:
        yield from _auto(rewards, recipe)


def _auto(rewards: Rewards, recipe: Recipe) -> Iterator[Offset]:
    tasks = np.unique(rewards.tasks).tolist()
    pooled = _race("the global offset", rewards, recipe) if len(tasks) > 1 else None
    if len(tasks) >= MIN_TASKS:
        yield _decide(rewards, "global", None, [_leave_one_task_out(rewards, recipe)])
    for task in tasks:
        rows = np.flatnonzero(rewards.tasks == task)
        mine = rewards.take(rows)
        races = [_race("its own offset", mine, recipe)]
        if pooled:
            races.append(replace(pooled, gains=pooled.gains[:, rows], weights=np.full(len(rows), 1 / len(rows))))
        yield _decide(mine, "task", task, races)
    yield from _gated_private(rewards, recipe, keep_abstained=False)


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """Cross-fitted gains of one kind of offset at several ridges.

    Attributes:
        name: What is raced, in words.

        rewards: What the offset is learned from if it wins.

        recipes: The contestants.

        gains: (contestants, n) gain of each tried query (or task).

        weights: (n,) weights of the mean gain, summing to 1.
    """

    name: str
    rewards: Rewards
    recipes: tuple[Recipe, ...]
    gains: Float64
    weights: Float64


def _race(name: str, rewards: Rewards, recipe: Recipe) -> Race:
    """The shared offset of *rewards* at every ridge, each query tried on what other folds learned."""
    recipes = _contestants(recipe)
    gains = _cross_fit(rewards, recipes, _folds(rewards))
    return Race(name, rewards, recipes, gains, scope_weights(rewards))


def _leave_one_task_out(rewards: Rewards, recipe: Recipe) -> Race:
    """The global offset tried on tasks it did not see; a task is one observation."""
    recipes = _contestants(recipe)
    tasks, fold = np.unique(rewards.tasks, return_inverse=True)
    gains = _cross_fit(rewards, recipes, fold)
    by_task = np.array([[row[fold == t].mean() for t in range(len(tasks))] for row in gains])
    return Race("a global offset on unseen tasks", rewards, recipes, by_task, np.full(len(tasks), 1 / len(tasks)))


def _contestants(recipe: Recipe) -> tuple[Recipe, ...]:
    return tuple(replace(recipe, ridge=recipe.ridge * step) for step in RIDGE_STEPS)


def _cross_fit(rewards: Rewards, recipes: tuple[Recipe, ...], fold: IntArray) -> Float64:
    """(recipes, n) gains, each query ranked by the offset learned on the folds without it."""
    grid = Grid.of(rewards)
    gains = np.zeros((len(recipes), len(rewards)))
    if len(np.unique(fold)) < 2:
        return gains
    base = _judged_ndcg(grid, grid.base)
    for held in np.unique(fold):
        rows = np.flatnonzero(fold != held)
        train = rewards.take(rows)
        train_grid, weights = Grid.of(train), scope_weights(train)
        tried_rows = np.flatnonzero(fold == held)
        tried, tried_grid = rewards.take(tried_rows), grid.take(tried_rows)
        start = np.zeros((1, rewards.width))
        # From the most cautious ridge down, each optimum is a warm start for the next.
        for i in reversed(range(len(recipes))):
            start = solve_shared(train, recipes[i], weights, train_grid, start).offsets
            moved = _shifted(tried, recipes[i].dose(len(rows)) * start[0])
            gains[i, tried_rows] = _judged_ndcg(tried_grid, moved) - base[tried_rows]
    return gains


def _shifted(rewards: Rewards, dosed: Float64) -> Float64:
    """(n, k) scores x·z + alpha v·z, whose order is that of the shifted query."""
    grid = Grid.of(rewards)
    per_doc = (rewards.doc_vectors @ dosed.astype(rewards.doc_vectors.dtype)) / rewards.doc_norms
    return np.asarray(grid.base + per_doc.astype(np.float64)[grid.slots])


def _folds(rewards: Rewards) -> IntArray:
    """(n,) fold of each query: every task is dealt over the folds, shuffled by a hash of the query ids.

    A query's fold does not depend on where it stands in *rewards*.
    """
    folds = min(FOLDS, len(rewards))
    ids: list[str] = rewards.query_ids.tolist()
    fold = np.empty(len(rewards), np.intp)
    dealt = 0
    for task in np.unique(rewards.tasks):
        rows = np.flatnonzero(rewards.tasks == task)
        order = sorted(rows.tolist(), key=lambda row: (crc32(ids[row].encode()), ids[row]))
        fold[order] = (dealt + np.arange(len(order))) % folds
        dealt += len(order)
    return fold


def _judged_ndcg(grid: Grid, scores: Float64, among: NDArray[np.bool_] | None = None) -> Float64:
    """(n,) nDCG@10 of the judged candidates (*among* them) in order of *scores*, rewards as gains."""
    among = grid.present if among is None else among
    rewards = np.where(among, grid.rewards, 0.0)
    depth = min(_DEPTH, scores.shape[1])
    discount = 1.0 / np.log2(np.arange(2, depth + 2))
    order = np.argsort(np.where(among, -scores, -PADDING), axis=1, kind="stable")[:, :depth]
    ideal = -np.sort(-rewards, axis=1)[:, :depth] @ discount
    return np.asarray((np.take_along_axis(rewards, order, axis=1) @ discount) / np.where(ideal > 0, ideal, 1.0))


def _decide(rewards: Rewards, scope: Scope, task: str | None, races: list[Race]) -> Offset:
    """Publish the contestant with the highest lower bound if it is above zero, else abstain."""
    level = LEVEL / sum(len(race.recipes) for race in races)
    bounds = [
        (*_bounds(gains, race.weights, level), race, recipe)
        for race in races
        for gains, recipe in zip(race.gains, race.recipes, strict=True)
    ]
    low, gain, high, race, recipe = max(bounds, key=lambda bound: bound[0])
    evidence = _evidence(len(race.weights), gain, low, high, level, f"{race.name}, ridge {recipe.ridge:.2g}")
    if evidence.verdict == "abstained":
        return _nothing(rewards, scope, task, evidence)
    return shared_offset(race.rewards, scope, task, recipe, evidence)


def _nothing(
    rewards: Rewards, scope: Scope, task: str | None, evidence: Evidence, query_id: str | None = None
) -> Offset:
    zero = np.zeros(rewards.width, rewards.query_vectors.dtype)
    n = len(rewards) if query_id is None else 1
    return Offset(scope=scope, task=task, query_id=query_id, vector=zero, alpha=0.0, n=n, evidence=evidence)


def _bounds(gains: Float64, weights: Float64, level: float) -> tuple[float, float, float]:
    """Lower bound, mean and upper bound of the mean gain, each bound at one-sided *level*."""
    from scipy.special import stdtrit

    n = len(gains)
    mean = float(weights @ gains)
    if n < 2:
        return -math.inf, mean, math.inf
    error = math.sqrt(float(weights**2 @ (gains - mean) ** 2) * n / (n - 1))
    reach = float(stdtrit(n - 1, 1 - level)) * error
    return mean - reach, mean, mean + reach


def _evidence(n: int, gain: float, low: float, high: float, level: float, what: str) -> Evidence:
    """The verdict on a bound, in words, with how many more rewarded queries might settle it."""
    if n < 2:
        return Evidence(n, None, None, "abstained", f"{what}: {n} rewarded query cannot be held out from itself")
    sure = f"{what}, {n} held-out observations at {1 - level:.1%} one-sided"
    if low > 0:
        return Evidence(n, gain, (low, high), "published", sure)
    if gain > 0:
        more = math.ceil(n * ((gain - low) / gain) ** 2) - n
        hint = f"about {more} more rewarded queries would settle it if the gain holds"
    else:
        hint = "the judged candidates show no gain"
    return Evidence(n, gain, (low, high), "abstained", f"{sure}: not above zero; {hint}")


def _gated_private(rewards: Rewards, recipe: Recipe, *, keep_abstained: bool) -> Iterator[Offset]:
    """Private offsets of all queries if halves of their candidates rank each other better, else none."""
    gains = _split_gains(rewards, recipe)
    low, gain, high = _bounds(gains, np.full(len(gains), 1 / len(gains)), LEVEL)
    evidence = _evidence(len(gains), gain, low, high, LEVEL, "private offsets on the other half of the candidates")
    if evidence.verdict == "published":
        yield from private_offsets(rewards, recipe, evidence)
    elif keep_abstained:
        for task, query_id in zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True):
            yield _nothing(rewards, "query", task, evidence, query_id)


def _split_gains(rewards: Rewards, recipe: Recipe) -> Float64:
    """(n,) gain of each half of a query's candidates under the offset learned on the other half."""
    gains = np.zeros(len(rewards))
    for rows in batches(rewards):
        batch = rewards.take(rows)
        grid = Grid.of(batch)
        whole = PrivateProblems.of(batch, recipe.loss(grid), recipe.ridge)
        even = np.arange(grid.present.shape[1]) % 2 == 0
        for learn, tried in ((grid.present & even, grid.present & ~even), (grid.present & ~even, grid.present & even)):
            half = replace(whole, loss=recipe.loss(grid.only(learn)))
            offsets = solve_private(half, recipe).offsets
            moved = grid.base + recipe.dose(1) * np.matvec(whole.coordinates[:, 1:], offsets)
            gain = _judged_ndcg(grid, moved, tried) - _judged_ndcg(grid, grid.base, tried)
            gains[rows] += np.where(learn.any(axis=1) & tried.any(axis=1), gain, 0.0) / 2
    return gains
