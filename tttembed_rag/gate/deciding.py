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

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.recipe import ObjectiveName, Recipe, SolverName
from tttembed_rag.fitting.scopes import collect, fit_scope, of_task, private_offsets
from tttembed_rag.gate.contests import (
    Contest,
    contest_of,
    more_needed,
    on_unseen_tasks,
    sharpened,
    smoothed,
    task_families,
)
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.neighbours import with_neighbours
from tttembed_rag.gate.private import believed, improving, on_top
from tttembed_rag.gate.signal import Signal, signal_of
from tttembed_rag.gate.thresholds import (
    CONTRADICT,
    GAIN_LEVEL,
    INTERVAL_LEVEL,
    MIN_TASKS,
    NOISE,
    NOISE_LEVEL,
    RECURRING,
)
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope, Evidence, Offset, Scope
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.gpu import Device


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
        recipe = sharpened(rewards, recipe)
        return collect(list(_gated(rewards, scope, recipe)), rewards, recipe, scope)
    if scope == "auto":
        raise InputError("gate: expected True with scope='auto' (evidence is what it chooses by), got False")
    return fit_scope(rewards, scope, recipe)


def _gated(rewards: Rewards, scope: AnyScope, recipe: Recipe) -> Iterator[Offset]:
    if scope == "global":
        yield _decide(rewards, "global", None, signal_of(rewards), [contest_of("this offset", rewards, recipe)])
        return
    tasks = np.unique(rewards.tasks).tolist()
    whole = signal_of(rewards) if scope == "query" and len(tasks) > 1 else None
    for task in tasks if scope != "auto" else ():
        mine = of_task(rewards, task)
        if scope == "task":
            yield _decide(mine, "task", task, signal_of(mine), [contest_of("this offset", mine, recipe)])
        else:
            evidence = believed(mine, signal_of(mine), whole)
            learned = []
            if evidence.verdict == "published":
                widened = with_neighbours(mine)
                learned = list(private_offsets(widened, smoothed(recipe), evidence))
                evidence = improving(mine, learned, evidence)
            if evidence.verdict == "published":
                yield from learned
            else:
                yield from (_nothing(mine, "query", task, evidence, query_id) for query_id in mine.query_ids.tolist())
    if scope == "auto":
        yield from _auto(rewards, recipe)


def _auto(rewards: Rewards, recipe: Recipe) -> Iterator[Offset]:
    tasks = np.unique(rewards.tasks).tolist()
    pooled = contest_of("the global offset", rewards, recipe) if len(tasks) > 1 else None
    together = signal_of(rewards) if pooled else None
    whole = None
    if pooled and together and len(np.unique(task_families(rewards, pooled.groups))) >= MIN_TASKS:
        whole = _decide(rewards, "global", None, together, [on_unseen_tasks(rewards, pooled)])
        yield whole
    for task in tasks:
        rows = np.flatnonzero(rewards.tasks == task)
        mine = rewards.take(rows)
        signal, own = signal_of(mine), contest_of("its own offset", mine, recipe)
        shared = [pooled.within(rows)] if pooled and together and not together.is_backwards else []
        offset = decided = _decide(mine, "task", task, signal, [own, *shared])
        if whole and whole.served and decided.evidence.n < 2:
            # One rewarded query says nothing against the global offset: as good as a task that nobody rewarded.
            offset = replace(whole, scope="task", task=task)
        yield offset
        evidence = believed(mine, signal, together, decided)
        if evidence.verdict == "published":
            learned = list(on_top(offset, own.learned_from, smoothed(recipe), evidence))
            if improving(mine, learned, evidence).verdict == "published":
                yield from learned


def _decide(rewards: Rewards, scope: Scope, task: str | None, signal: Signal, contests: list[Contest]) -> Offset:
    """The best contestant of all *contests*, if it is published; else nothing. *signal* is what *rewards* can prove."""
    contest = max(contests, key=lambda contest: contest.best[0].mean)
    gain, recipe = contest.best
    evidence = _verdict(contest, gain, signal, f"{contest.name}, ridge {recipe.ridge:.2g}")
    if evidence.verdict == "abstained":
        return _nothing(rewards, scope, task, evidence)
    return contest.winner(scope, task, recipe, evidence)


def _verdict(contest: Contest, gain: Gain, signal: Signal, what: str) -> Evidence:
    """The verdict on the winner of a contest, in words, with how much more might settle it."""
    n, needed = len(np.unique(contest.groups)), None
    if n < 2:
        one = "query" if contest.unit == "queries" else "task"
        return Evidence(n, None, None, "abstained", f"{what}: {n} rewarded {one} cannot be held out from itself")
    sure = f"{what}, {n} held-out {contest.unit}"
    doubt = "one standard error" if contest.level == GAIN_LEVEL else "1.6 standard errors"
    verdict: Literal["published", "abstained"] = "abstained"
    if signal.is_backwards:
        why = f"the rewards {CONTRADICT}"
    elif gain.mean <= 0:
        why = "no gain on the judged candidates"
    elif not signal.means_something:
        if signal.has_direction():  # which other documents will settle, not more queries
            why = f"the rewards {RECURRING}"
        else:
            why, needed = f"the rewards {NOISE}", more_needed(n, gain, NOISE_LEVEL)
    elif not signal.has_direction(level=INTERVAL_LEVEL):
        why, needed = "different queries want different things", more_needed(n, gain, INTERVAL_LEVEL)
    elif gain.below(contest.level) <= 0:
        why, needed = f"the gain is within {doubt} of zero", more_needed(n, gain, contest.level)
    else:
        verdict, why = "published", f"the gain is more than {doubt} above zero"
    return Evidence(n, gain.mean, gain.interval, verdict, f"{sure}: {why}", needed)


def _nothing(
    rewards: Rewards, scope: Scope, task: str | None, evidence: Evidence, query_id: str | None = None
) -> Offset:
    zero = np.zeros(rewards.width, rewards.query_vectors.dtype)
    n = len(rewards) if query_id is None else 1
    return Offset(scope=scope, task=task, query_id=query_id, vector=zero, alpha=0.0, n=n, evidence=evidence)
