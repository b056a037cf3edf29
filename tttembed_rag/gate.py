"""The gate: held-out rewards decide which offset is served, and whether any is.

Evidence is cross-fitted. The rewarded queries are dealt into folds; each query is ranked by an
offset it did not train, and its gain is the change in reward-weighted nDCG@10 of its judged
candidates against the base order. An offset is published only if the lower confidence bound of the
mean gain is above zero. The bound is Student's, with one level for the whole race (Bonferroni) and
one pseudo-query of zero gain (the paper's kappa = 1 prior), so few queries and many contestants both
make it stricter. A query that was logged more than once is one observation, in one fold.

A private offset has no second query to be tried on, so all private offsets are tried together: each
is learned on half of its query's candidates and ranks the other half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
    private_problems,
    scope_weights,
    shared_offset,
    solve_private,
    solve_shared,
)
from tttembed_rag.objectives import PADDING
from tttembed_rag.offsets import Evidence, Offset, Offsets, Scope
from tttembed_rag.problems import Grid, PrivateProblems
from tttembed_rag.rewards import Rewards
from tttembed_rag.unitrows import Device, Float64
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
    device: Device = "auto",
    warm_start: Mapping[str, Offset] | None = None,
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

        device: ``cpu``, ``cuda``, or ``auto``: a GPU where torch sees one and there are vectors enough to pay.

        warm_start: Offsets of an earlier fit; a shared offset is searched from the one of its key on.

    Returns:
        One offset per scope key; where the gate abstained it is zero and says why. With ``auto``
        that is one per task, the private ones that are served, and, from `MIN_TASKS` tasks on, the
        global one that tasks without rewards get.
    """
    recipe = Recipe(
        objective=objective,
        solver=solver,
        ridge=ridge,
        teacher_temperature=teacher_temperature,
        student_temperature=student_temperature,
        kappa=kappa,
        tolerance=tolerance,
        device=device,
        warm_start=warm_start,
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
        yield _decide(rewards, "global", None, [_race("this offset", rewards, recipe)])[0]
    elif scope == "task":
        for task in np.unique(rewards.tasks).tolist():
            mine = of_task(rewards, task)
            yield _decide(mine, "task", task, [_race("this offset", mine, recipe)])[0]
    elif scope == "query":
        yield from _gated_private(rewards, recipe)
    else:
        yield from _auto(rewards, recipe)


def _auto(rewards: Rewards, recipe: Recipe) -> Iterator[Offset]:
    tasks = np.unique(rewards.tasks).tolist()
    pooled = _race("the global offset", rewards, recipe) if len(tasks) > 1 else None
    if len(tasks) >= MIN_TASKS:
        yield _decide(rewards, "global", None, [_leave_one_task_out(rewards, recipe)])[0]
    private = _split_gains(rewards, recipe)
    for task in tasks:
        rows = np.flatnonzero(rewards.tasks == task)
        mine = rewards.take(rows)
        races = [_race("its own offset", mine, recipe)]
        if pooled:
            races.append(replace(pooled, gains=pooled.gains[:, rows], groups=pooled.groups[rows], weights=_even(rows)))
        offset, shared = _decide(mine, "task", task, races)
        yield offset
        # A private offset displaces the shared one, so it must beat what that one gains.
        evidence = _private_evidence(private[rows] - shared, mine)
        if evidence.verdict == "published":
            yield from private_offsets(mine, recipe, evidence)


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """Cross-fitted gains of one kind of offset at several ridges.

    Attributes:
        name: What is raced, in words.

        rewards: What the offset is learned from if it wins.

        recipes: The contestants.

        gains: (contestants, n) gain of each trial: a held-out query, or a held-out task.

        groups: (n,) trials of the same group are one observation.

        weights: (n,) weights of the mean gain, summing to 1.

        unit: What a trial is, in words.
    """

    name: str
    rewards: Rewards
    recipes: tuple[Recipe, ...]
    gains: Float64
    groups: IntArray
    weights: Float64
    unit: str = "queries"


def _race(name: str, rewards: Rewards, recipe: Recipe) -> Race:
    """The shared offset of *rewards* at every ridge, each query tried on what other folds learned."""
    recipes, groups = _contestants(recipe), _same_queries(rewards)
    gains = _cross_fit(rewards, recipes, _folds(rewards, groups))
    return Race(name, rewards, recipes, gains, groups, scope_weights(rewards))


def _leave_one_task_out(rewards: Rewards, recipe: Recipe) -> Race:
    """The global offset tried on tasks it did not see; a task is one observation."""
    recipes = _contestants(recipe)
    tasks, fold = np.unique(rewards.tasks, return_inverse=True)
    gains = _cross_fit(rewards, recipes, fold)
    by_task = np.array([[row[fold == t].mean() for t in range(len(tasks))] for row in gains])
    each = np.arange(len(tasks))
    return Race("a global offset on unseen tasks", rewards, recipes, by_task, each, _even(each), "tasks")


def _even(rows: IntArray) -> Float64:
    return np.full(len(rows), 1 / len(rows))


def _contestants(recipe: Recipe) -> tuple[Recipe, ...]:
    return tuple(replace(recipe, ridge=recipe.ridge * step) for step in RIDGE_STEPS)


def _cross_fit(rewards: Rewards, recipes: tuple[Recipe, ...], fold: IntArray) -> Float64:
    """(recipes, n) gains, each query ranked by the offset learned on the folds without it."""
    gains = np.zeros((len(recipes), len(rewards)))
    folds = np.unique(fold)
    for held in folds if len(folds) > 1 else ():
        train = rewards.take(np.flatnonzero(fold != held))
        tried_rows = np.flatnonzero(fold == held)
        tried = rewards.take(tried_rows)
        train_grid, tried_grid, weights = Grid.of(train), Grid.of(tried), scope_weights(train)
        base = _judged_ndcg(tried_grid, tried_grid.base)
        start = np.zeros((1, rewards.width))
        # From the most cautious ridge down, each certified KD optimum is a warm start for the next.
        for i in reversed(range(len(recipes))):
            learned = solve_shared(train, recipes[i], weights, train_grid, start).offsets
            start = learned if not recipes[i].has_many_minima and recipes[i].solver == "exact" else start
            per_doc = (tried.doc_vectors @ learned[0].astype(tried.doc_vectors.dtype)) / tried.doc_norms
            moved = tried_grid.base + recipes[i].dose(len(train)) * per_doc.astype(np.float64)[tried_grid.slots]
            gains[i, tried_rows] = _judged_ndcg(tried_grid, moved) - base
    return gains


def _same_queries(rewards: Rewards) -> IntArray:
    """(n,) a number for each different query vector, whatever id it was logged under.

    The numbers follow a hash of the vectors, so they do not depend on the order of *rewards*.
    """
    unit = np.round(rewards.query_vectors / rewards.query_norms[:, None], 5) + 0.0
    rows = [row.tobytes() for row in unit.astype(np.float32)]
    number = {row: i for i, row in enumerate(sorted(set(rows), key=lambda row: (crc32(row), row)))}
    return np.array([number[row] for row in rows], dtype=np.intp)


def _folds(rewards: Rewards, groups: IntArray) -> IntArray:
    """(n,) fold of each query: every task is dealt over the folds, the same query always to one."""
    tasks, task = np.unique(rewards.tasks, return_inverse=True)
    first_task = np.full(groups.max() + 1, len(tasks))
    np.minimum.at(first_task, groups, task)
    fold = np.empty_like(first_task)
    fold[np.argsort(first_task, kind="stable")] = np.arange(len(fold)) % FOLDS
    return fold[groups]


def _judged_ndcg(grid: Grid, scores: Float64, among: NDArray[np.bool_] | None = None) -> Float64:
    """(n,) nDCG@10 of the judged candidates (*among* them) in order of *scores*, rewards as gains."""
    among = grid.present if among is None else among
    rewards = np.where(among, grid.rewards, 0.0)
    depth = min(_DEPTH, scores.shape[1])
    discount = 1.0 / np.log2(np.arange(2, depth + 2))
    order = np.argsort(np.where(among, -scores, -PADDING), axis=1, kind="stable")[:, :depth]
    ideal = -np.sort(-rewards, axis=1)[:, :depth] @ discount
    return np.asarray((np.take_along_axis(rewards, order, axis=1) @ discount) / np.where(ideal > 0, ideal, 1.0))


def _decide(rewards: Rewards, scope: Scope, task: str | None, races: list[Race]) -> tuple[Offset, Float64]:
    """Publish the contestant with the highest lower bound if it is above zero, else abstain.

    With it the gain (n,) that the decision brings to each trial: the winner's, or none.
    """
    level = LEVEL / sum(len(race.recipes) for race in races)
    bounds = [
        (*_bounds(gains, race.weights, race.groups, level), gains, race, recipe)
        for race in races
        for gains, recipe in zip(race.gains, race.recipes, strict=True)
    ]
    low, gain, high, gains, race, recipe = max(bounds, key=lambda bound: bound[0])
    n = len(np.unique(race.groups))
    evidence = _evidence(n, gain, low, high, level, f"{race.name}, ridge {recipe.ridge:.2g}", race.unit)
    if evidence.verdict == "abstained":
        return _nothing(rewards, scope, task, evidence), np.zeros(len(gains))
    return shared_offset(race.rewards, scope, task, recipe, evidence), gains


def _nothing(
    rewards: Rewards, scope: Scope, task: str | None, evidence: Evidence, query_id: str | None = None
) -> Offset:
    zero = np.zeros(rewards.width, rewards.query_vectors.dtype)
    n = len(rewards) if query_id is None else 1
    return Offset(scope=scope, task=task, query_id=query_id, vector=zero, alpha=0.0, n=n, evidence=evidence)


def _bounds(gains: Float64, weights: Float64, groups: IntArray, level: float) -> tuple[float, float, float]:
    """Lower bound, mean and upper bound of the mean gain, each bound at one-sided *level*.

    One pseudo-observation of zero gain is added: equal gains are then no certainty, and the mean is
    shrunk by n / (n + 1). Unequal weights count as 1 / sum w^2 observations (Kish).
    """
    from scipy.special import stdtrit

    total = np.bincount(groups, weights)
    kept = total > 0
    x = np.asarray(np.bincount(groups, weights * gains)[kept] / total[kept])
    w = np.asarray(total[kept], dtype=np.float64)
    count = 1.0 / float(w @ w)
    if len(w) < 2:
        return -math.inf, float(w @ x), math.inf
    w, x = np.append(w * count, 1.0) / (count + 1.0), np.append(x, 0.0)
    mean = float(w @ x)
    error = math.sqrt(float(w**2 @ (x - mean) ** 2) * (count + 1.0) / count)
    reach = float(stdtrit(count, 1 - level)) * error
    return mean - reach, mean, mean + reach


def _evidence(n: int, gain: float, low: float, high: float, level: float, what: str, unit: str = "queries") -> Evidence:
    """The verdict on a bound, in words, with how much more might settle it."""
    if n < 2:
        one = "query" if unit == "queries" else "task"
        return Evidence(n, None, None, "abstained", f"{what}: {n} rewarded {one} cannot be held out from itself")
    sure = f"{what}, {n} held-out {unit} at {1 - level:.1%} one-sided"
    if low > 0:
        return Evidence(n, gain, (low, high), "published", sure)
    if gain > 0:
        more = math.ceil(n * ((gain - low) / gain) ** 2) - n
        hint = f"about {more} more rewarded {unit} would settle it if the gain holds"
    else:
        hint = "the judged candidates show no gain"
    return Evidence(n, gain, (low, high), "abstained", f"{sure}: not above zero; {hint}")


def _gated_private(rewards: Rewards, recipe: Recipe) -> Iterator[Offset]:
    """Private offsets of all queries if halves of their candidates rank each other better, else none."""
    evidence = _private_evidence(_split_gains(rewards, recipe), rewards)
    if evidence.verdict == "published":
        yield from private_offsets(rewards, recipe, evidence)
    else:
        for task, query_id in zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True):
            yield _nothing(rewards, "query", task, evidence, query_id)


def _private_evidence(gains: Float64, rewards: Rewards) -> Evidence:
    """The verdict on private offsets from their gains (n,), NaN where a query had no two halves."""
    what = "private offsets on the half of the candidates they did not learn from"
    rows = np.flatnonzero(~np.isnan(gains))
    if not rows.size:
        return Evidence(0, None, None, "abstained", f"{what}: no query with two judged candidates")
    groups = _same_queries(rewards)[rows]
    low, gain, high = _bounds(gains[rows], _even(rows), groups, LEVEL)
    return _evidence(len(np.unique(groups)), gain, low, high, LEVEL, what)


def _split_gains(rewards: Rewards, recipe: Recipe) -> Float64:
    """(n,) gain of each half of a query's candidates under the offset learned on the other half."""
    gains = np.full(len(rewards), np.nan)
    for rows in batches(rewards):
        batch = rewards.take(rows)
        whole = private_problems(batch, recipe)
        grid = whole.loss.grid
        even = grid.present & (np.arange(grid.present.shape[1]) % 2 == 0)
        odd = grid.present & ~even
        both = odd.any(axis=1)  # the first candidate is always there
        gain = (_half_gain(whole, recipe, even, odd) + _half_gain(whole, recipe, odd, even)) / 2
        gains[rows[both]] = gain[both]
    return gains


def _half_gain(whole: PrivateProblems, recipe: Recipe, learn: NDArray[np.bool_], tried: NDArray[np.bool_]) -> Float64:
    """(n,) gain on the candidates *tried* of the private offsets of those to *learn* from."""
    grid = whole.loss.grid
    offsets = solve_private(replace(whole, loss=recipe.loss(grid.only(learn))), recipe).offsets
    moved = grid.base + recipe.dose(1) * np.matvec(whole.coordinates[:, 1:], offsets)
    return _judged_ndcg(grid, moved, tried) - _judged_ndcg(grid, grid.base, tried)
