"""The gate: held-out rewards decide which offset is served, and whether any is.

A shared offset is published on three answers (see `evidence`). Its rewards mean something: more than in any of
199 deals of them, they pull different queries in one direction, or they know the documents, which is to follow
the retriever and to score similar documents alike. There is a direction at least in 19 of 20 deals; and where
they do not know the documents in 39 of 40, it is one that documents with a random score each, whatever is
asked, would show in at most one of 40: the scores of a judge that never looks at the query hold on queries held
out, since documents come back. They do not contradict the retriever, more than in 19 of 20: an inverted judge
does. And the better of two ridges gains on queries that did not train it, by more than one standard error.
(With `auto`, a global offset reaches tasks without rewards only if it gains on tasks that did not train it, by
more than 1.6.) What an offset then does to the full search, where documents surface that nobody judged, is told
with a 90 % interval that widens with how much it moves; that interval may reach below zero. What the gate
serves is learned from unjudged neighbours too (see `neighbours`), and more smoothly than the paper's rule: at
twice its student temperature, shared offsets at a greater ridge.

A private offset moves one query towards what the judge said of that query's own documents. There is
nothing to hold out; what must be shown is that the judge is worth believing: the task's rewards know the
documents, or its shared offset is published; or the rewards of all tasks know them, and the task's own do
in 19 of 20 deals. And together the private offsets must rank what was judged better than it was: those of a
judge that repeats the retriever's order do not. They are learned on top of the task's offset and shrunk
around it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.evidence import (
    DEALS,
    FOLDS,
    INTERVAL_LEVEL,
    NOISE_LEVEL,
    Gain,
    Signal,
    cross_fitted,
    folds,
    judged_ndcg,
    signal_of,
)
from tttembed_rag.fitting import (
    SMALLEST,
    ObjectiveName,
    Recipe,
    SolverName,
    collect,
    fit_scope,
    of_task,
    private_offsets,
    scope_weights,
    shared_offset,
)
from tttembed_rag.neighbours import with_neighbours
from tttembed_rag.offsets import Evidence, Offset, Offsets, Scope
from tttembed_rag.problems import Grid
from tttembed_rag.rewards import Rewards
from tttembed_rag.unitrows import Device, Float64, UnitRows
from tttembed_rag.vectors import IntArray, norms, shift

AnyScope: TypeAlias = Literal["auto", "global", "task", "query"]

# One-sided level at which the gain must be above zero: one standard error, where queries are many. For tasks that have
# no say in what is served to them it is `INTERVAL_LEVEL`, 1.6 standard errors.
GAIN_LEVEL = 0.16
# The student temperature of all gated offsets, as a multiple of the recipe's, and the ridges raced by shared ones.
# Held-out gain over 40 fits with a direction on the development half of benchmarks/harm.py: +.047 (.05 at ridge 0.3),
# +.050 (.1 at 0.3), +.052 (.1 at 0.95), and with that the loss where there is one from -.008 to -.003. A third ridge,
# 1, kept more but harmed more. Private offsets of 24 such fits: +.108 by the plain rule, +.115 told of neighbours
# (three then), +.121 at .1.
TEMPERATURE_STEP = 2.0
RIDGE_STEPS = (10**0.5, 10.0)
# Teacher temperatures between the best and the worst candidate of a query, at least: a judge whose numbers are all tiny
# says as much as one that uses its scale. Private offsets of 40 queries, LLM grades times .03 / .01: +.001 / -.028 with
# .02 as it stands, +.055 with the grades as they are.
SHARPNESS = 5.0
# A global offset meets unseen tasks only if it helped tasks it did not see: at least this many.
MIN_TASKS = 4
# Findings in words.
_CONTRADICT = f"contradict the retriever's order more than {1 - INTERVAL_LEVEL:.0%} of random shuffles of them"
_KNOW = f"know the documents better than any of {DEALS} random shuffles of them"
_NOISE = "say no more than random shuffles of them might"
_RECURRING = "pull alike no more than documents would that have a random score each, whatever is asked"


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
            query), or ``auto``: per task the best supported of none, global and task, and on top of it
            private offsets for rewarded queries where the rewards are to be believed.

        objective: ``kd``, ``reverse_kl`` or ``softmax_grpo``.

        solver: ``exact`` (certified optimum) or ``adam`` (the paper's 300 steps).

        gate: False serves the paper's rule as it stands; ``auto`` needs the gate.

        ridge: lambda > 0; with the gate, shared offsets are learned at one of `RIDGE_STEPS` times it.

        teacher_temperature: tau_T > 0, in units of reward; with the gate at most a `SHARPNESS`-th of how far the best
            and the worst candidate of a query lie apart on average.

        student_temperature: tau_S > 0, in units of cosine similarity; with the gate, offsets are learned at
            `TEMPERATURE_STEP` times it.

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
        recipe = _sharp(rewards, recipe)
        return collect(list(_gated(rewards, scope, recipe)), rewards, recipe, scope)
    if scope == "auto":
        raise InputError("gate: expected True with scope='auto' (evidence is what it chooses by), got False")
    return fit_scope(rewards, scope, recipe)


def _gated(rewards: Rewards, scope: AnyScope, recipe: Recipe) -> Iterator[Offset]:
    if scope == "global":
        yield _decide(rewards, "global", None, signal_of(rewards), [_race("this offset", rewards, recipe)])
        return
    tasks = np.unique(rewards.tasks).tolist()
    whole = signal_of(rewards) if scope == "query" and len(tasks) > 1 else None
    for task in tasks if scope != "auto" else ():
        mine = of_task(rewards, task)
        if scope == "task":
            yield _decide(mine, "task", task, signal_of(mine), [_race("this offset", mine, recipe)])
        else:
            evidence = _believed(mine, signal_of(mine), whole)
            learned = []
            if evidence.verdict == "published":
                widened = with_neighbours(mine)
                learned = list(private_offsets(widened, _smooth(recipe), evidence))
                evidence = _improving(mine, learned, evidence)
            if evidence.verdict == "published":
                yield from learned
            else:
                yield from (_nothing(mine, "query", task, evidence, query_id) for query_id in mine.query_ids.tolist())
    if scope == "auto":
        yield from _auto(rewards, recipe)


def _auto(rewards: Rewards, recipe: Recipe) -> Iterator[Offset]:
    tasks = np.unique(rewards.tasks).tolist()
    pooled = _race("the global offset", rewards, recipe) if len(tasks) > 1 else None
    together = signal_of(rewards) if pooled else None
    whole = None
    if pooled and together and len(np.unique(_unrelated(rewards, pooled.groups))) >= MIN_TASKS:
        whole = _decide(rewards, "global", None, together, [_on_unseen_tasks(rewards, pooled)])
        yield whole
    for task in tasks:
        rows = np.flatnonzero(rewards.tasks == task)
        mine = rewards.take(rows)
        signal, own = signal_of(mine), _race("its own offset", mine, recipe)
        shared = [pooled.within(rows)] if pooled and together and not together.is_backwards else []
        offset = decided = _decide(mine, "task", task, signal, [own, *shared])
        if whole and whole.served and decided.evidence.n < 2:
            # One rewarded query says nothing against the global offset: as good as a task that nobody rewarded.
            offset = replace(whole, scope="task", task=task)
        yield offset
        evidence = _believed(mine, signal, together, decided)
        if evidence.verdict == "published":
            learned = list(_on_top(offset, own.learned_from, _smooth(recipe), evidence))
            if _improving(mine, learned, evidence).verdict == "published":
                yield from learned


@dataclass(frozen=True, slots=True, eq=False)
class Race:
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

    def within(self, rows: IntArray) -> Race:
        """The same race as the queries of one task, at *rows*, saw it."""
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


def _race(name: str, rewards: Rewards, recipe: Recipe) -> Race:
    """The shared offset of *rewards* at every ridge, each query tried on what other folds learned."""
    groups = rewards.same_queries
    recipes = tuple(replace(_smooth(recipe), ridge=recipe.ridge * step) for step in RIDGE_STEPS)
    widened = with_neighbours(rewards)
    gains, moved = cross_fitted(widened, rewards.depths, recipes, folds(rewards, groups))
    return Race(name, widened, recipes, gains, moved, groups, scope_weights(rewards))


def _sharp(rewards: Rewards, recipe: Recipe) -> Recipe:
    """The recipe at a teacher temperature that tells apart what the judge does."""
    reach = np.maximum.reduceat(rewards.values, rewards.starts[:-1])
    reach -= np.minimum.reduceat(rewards.values, rewards.starts[:-1])
    if not reach.any():
        return recipe
    sharp = float(reach[reach > 0].mean()) / SHARPNESS
    return replace(recipe, teacher_temperature=min(recipe.teacher_temperature, max(sharp, SMALLEST)))


def _smooth(recipe: Recipe) -> Recipe:
    return replace(recipe, student_temperature=recipe.student_temperature * TEMPERATURE_STEP)


def _on_unseen_tasks(rewards: Rewards, pooled: Race) -> Race:
    """The best global offset tried on tasks it did not see, a fold of tasks at a time; a task is one observation.

    Tasks that share a query are seen together or not at all, and are one observation together.
    """
    tasks, first, task = np.unique(rewards.tasks, return_index=True, return_inverse=True)
    family = _unrelated(rewards, pooled.groups)
    recipes = (pooled.best[1],)
    found = cross_fitted(pooled.learned_from, rewards.depths, recipes, family % FOLDS)
    gains, moved = (np.array([[row[task == t].mean() for t in range(len(tasks))] for row in part]) for part in found)
    return Race(
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


def _unrelated(rewards: Rewards, groups: IntArray) -> IntArray:
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


def _decide(rewards: Rewards, scope: Scope, task: str | None, signal: Signal, races: list[Race]) -> Offset:
    """The best contestant of all *races*, if it is published; else nothing. *signal* is what *rewards* can prove."""
    race = max(races, key=lambda race: race.best[0].mean)
    gain, recipe = race.best
    evidence = _verdict(race, gain, signal, f"{race.name}, ridge {recipe.ridge:.2g}")
    if evidence.verdict == "abstained":
        return _nothing(rewards, scope, task, evidence)
    return race.winner(scope, task, recipe, evidence)


def _verdict(race: Race, gain: Gain, signal: Signal, what: str) -> Evidence:
    """The verdict on the winner of a race, in words, with how much more might settle it."""
    n, needed = len(np.unique(race.groups)), None
    if n < 2:
        one = "query" if race.unit == "queries" else "task"
        return Evidence(n, None, None, "abstained", f"{what}: {n} rewarded {one} cannot be held out from itself")
    sure = f"{what}, {n} held-out {race.unit}"
    doubt = "one standard error" if race.level == GAIN_LEVEL else "1.6 standard errors"
    verdict: Literal["published", "abstained"] = "abstained"
    if signal.is_backwards:
        why = f"the rewards {_CONTRADICT}"
    elif gain.mean <= 0:
        why = "no gain on the judged candidates"
    elif not signal.means_something:
        if signal.has_direction():  # which other documents will settle, not more queries
            why = f"the rewards {_RECURRING}"
        else:
            why, needed = f"the rewards {_NOISE}", _needed(n, gain, NOISE_LEVEL)
    elif not signal.has_direction(level=INTERVAL_LEVEL):
        why, needed = "different queries want different things", _needed(n, gain, INTERVAL_LEVEL)
    elif gain.below(race.level) <= 0:
        why, needed = f"the gain is within {doubt} of zero", _needed(n, gain, race.level)
    else:
        verdict, why = "published", f"the gain is more than {doubt} above zero"
    return Evidence(n, gain.mean, gain.interval, verdict, f"{sure}: {why}", needed)


def _needed(n: int, gain: Gain, level: float) -> int | None:
    """How many more trials than *n* would bring the bound at *level* above zero, if the gain holds.

    None where it is above already, and where it would take more than ten times as many: so small a gain is no
    ground to count on.
    """
    if gain.below(level) > 0:
        return None
    more = bisect_left(range(1, 10 * n + 1), True, key=lambda more: gain.after(more / n).below(level) > 0) + 1
    return more if more <= 10 * n else None


def _nothing(
    rewards: Rewards, scope: Scope, task: str | None, evidence: Evidence, query_id: str | None = None
) -> Offset:
    zero = np.zeros(rewards.width, rewards.query_vectors.dtype)
    n = len(rewards) if query_id is None else 1
    return Offset(scope=scope, task=task, query_id=query_id, vector=zero, alpha=0.0, n=n, evidence=evidence)


def _believed(rewards: Rewards, signal: Signal, whole: Signal | None, shared: Offset | None = None) -> Evidence:
    """The verdict on all private offsets of a task: is its judge worth believing about what it judged?

    Args:
        rewards: Rewards of the task.

        signal: What they can prove.

        whole: What the rewards of all tasks can prove; None where there is one task.

        shared: The offset of the task; None where none was asked for.
    """
    n = len(np.unique(rewards.same_queries))
    what = f"private offsets, {n} rewarded {'queries' if n > 1 else 'query'}"
    if signal.is_backwards:
        return Evidence(n, None, None, "abstained", f"{what}: the rewards {_CONTRADICT}")
    if signal.is_informed():
        return Evidence(n, None, None, "published", f"{what}: the rewards {_KNOW}")
    if shared and shared.served:
        return Evidence(n, None, None, "published", f"{what}: what they teach held on held-out ones")
    if whole and whole.is_informed() and signal.is_informed(level=INTERVAL_LEVEL):
        return Evidence(n, None, None, "published", f"{what}: the rewards of all tasks {_KNOW}, and these seem to")
    return Evidence(n, None, None, "abstained", f"{what}: the rewards {_NOISE}")


def _improving(rewards: Rewards, private: Sequence[Offset], evidence: Evidence) -> Evidence:
    """*evidence*, unless *private* offsets (n) rank what was judged no better than the retriever did.

    So they would for a judge that repeats the retriever's order: there is nothing to learn, and what is learned from
    its steps is noise.
    """
    if not any(one.served for one in private):
        return evidence
    grid, unit = Grid.of(rewards), rewards.queries.unit
    moved = unit + np.array([one.alpha * one.vector for one in private], unit.dtype)
    scores = rewards.documents.similarities(UnitRows(moved, np.ones(len(unit), unit.dtype)), grid.slots)
    if (judged_ndcg(grid, scores) - judged_ndcg(grid, grid.base)).mean() > 0:
        return evidence
    what, _, _ = evidence.reason.partition(":")
    return replace(evidence, verdict="abstained", reason=f"{what}: they rank what was judged no better than it was")


def _on_top(shared: Offset, rewards: Rewards, recipe: Recipe, evidence: Evidence) -> Iterator[Offset]:
    """Private offsets learned on queries that *shared* has moved, so the ridge shrinks them around it.

    With s = ||unit(x) + alpha v|| for the shared v, a private w on the moved query is the offset
    (alpha / alpha_q) v + s w on the base vector, at the private dose alpha_q.
    """
    dosed = np.asarray(shared.alpha * shared.vector, dtype=rewards.query_vectors.dtype)
    lengths = norms(rewards.queries.unit + dosed)
    moved = shift(rewards.query_vectors, dosed, rewards.query_norms)
    private = private_offsets(replace(rewards, query_vectors=moved, query_norms=norms(moved)), recipe, evidence)
    for offset, length in zip(private, lengths, strict=True):
        if offset.served:
            vector = dosed / offset.alpha + length * offset.vector
            yield replace(offset, vector=vector.astype(offset.vector.dtype, copy=False))
        else:
            yield offset
