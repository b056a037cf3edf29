"""The gate: what is served to each task, and why.

    rewards -> Case -> is the judge believed? -> proposals -> whose held-out loss falls most, and surely? -> offsets

The questions, their tests and their levels are data: see `thresholds`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import get_args

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.recipe import ObjectiveName, Recipe, SolverName
from tttembed_rag.fitting.scopes import collect, fit_scope, of_task
from tttembed_rag.gate.case import Case, gated
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.private import believed_evidence, nothing, private_around
from tttembed_rag.gate.proposals import (
    Proposal,
    propose_constant,
    propose_for_unseen_tasks,
    propose_local,
    task_families,
)
from tttembed_rag.gate.signal import Signal
from tttembed_rag.gate.thresholds import (
    BACKWARDS,
    BLIND,
    EQUAL,
    FEW,
    LEVEL,
    MIN_TASKS,
    NDCG_ERROR,
    NDCG_PER_NAT,
    NDCG_SHARE,
    NO_FALL,
    NOISE,
    PUBLISHED,
    SURPASSED,
    UNSURE,
    Question,
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

        scope: ``global`` (one offset for all), ``task`` (one per task), ``local`` (one per task that depends on where
            the query lies), ``query`` (one per rewarded query), or ``auto``: per task the best supported of none, task
            and local, and on top of it private offsets for rewarded queries where the judge is believed.

        objective: ``kd``, ``reverse_kl`` or ``softmax_grpo``.

        solver: ``exact`` (certified optimum) or ``adam`` (the paper's 300 steps).

        gate: False serves the paper's rule as it stands; ``auto`` needs the gate.

        ridge: lambda > 0; with the gate, constant offsets are learned at `RIDGE_STEP` times it.

        teacher_temperature: tau_T > 0, in units of reward; with the gate, `TEACHER_STEP` times it, and at most a
            `SHARPNESS`-th of how far the best and the worst candidate of a query lie apart on average.

        student_temperature: tau_S > 0, in units of cosine similarity; with the gate, `STUDENT_STEP` times it.

        kappa: Dose n / (n + kappa), in rewarded queries; of the local offset, the noise of a rewarded query.

        tolerance: Largest gradient norm that counts as converged.

        device: ``cpu``, ``cuda``, or ``auto``: a GPU where torch sees one and there are vectors enough to pay.

        warm_start: Offsets of an earlier fit; a constant offset is searched from the one of its key on.

    Returns:
        One offset per scope key; where the gate abstained it is zero and says why. With ``auto`` that is a constant
        and a local one per task, of which at most one is served, the private ones that are served, and, from
        `MIN_TASKS` tasks on, the global one that tasks without rewards get.
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
    if scope not in (scopes := ("auto", *get_args(Scope))):
        raise InputError(f"scope: expected one of {', '.join(scopes)}, got {scope!r}")
    if gate:
        recipe = gated(recipe, rewards)
        return collect(list(_decided(rewards, scope, recipe)), rewards, recipe, scope)
    if scope == "auto":
        raise InputError("gate: expected True with scope='auto' (evidence is what it chooses by), got False")
    return fit_scope(rewards, scope, recipe)


def _decided(rewards: Rewards, scope: AnyScope, recipe: Recipe) -> Iterator[Offset]:
    """The offsets of *scope*, published or not."""
    tasks = np.unique(rewards.tasks).tolist()
    everything = Case(rewards, recipe)
    if scope == "global":
        refusal = _refused(everything, None)
        yield _chosen(everything, refusal, [] if refusal else [propose_constant(everything, None)], ["global"], None)[0]
        return
    whole = _for_unseen_tasks(everything) if scope == "auto" and len(tasks) >= MIN_TASKS else None
    if whole is not None:
        yield whole
    for task in tasks:
        case = everything if len(tasks) == 1 else Case(of_task(rewards, task), recipe)
        yield from _of_task(case, task, scope, everything.signal if len(tasks) > 1 else None, whole)


def _of_task(case: Case, task: str, scope: AnyScope, together: Signal | None, whole: Offset | None) -> Iterator[Offset]:
    """The offsets of one *task* of *scope*.

    Args:
        case: Its rewards.

        task: Its name.

        scope: What is asked for.

        together: What the rewards of all tasks say of the judge; None where there is one task.

        whole: The global offset for tasks without rewards; None where there is none.
    """
    kinds: dict[AnyScope, list[Scope]] = {"auto": ["task", "local"], "task": ["task"], "local": ["local"]}
    scopes = kinds.get(scope, [])
    refusal = _refused(case, together)
    proposals = (
        [] if refusal else [propose_local(case) if one == "local" else propose_constant(case, task) for one in scopes]
    )
    shared = _chosen(case, refusal, proposals, scopes, task)
    if whole is not None and whole.served and case.questions < 2:
        # One rewarded query says nothing against the global offset: as good as a task without rewards.
        shared = [replace(whole, scope="task", task=task), *shared[1:]]
    yield from shared
    if scope not in ("auto", "query"):
        return
    # One query cannot be held out, but the judge of many may be believed of it.
    unbelieved = None if refusal is not None and refusal.code == FEW.code and _believed(case, together) else refusal
    if unbelieved is None:
        served = next((offset for offset in shared if offset.served), None)
        evidence = believed_evidence(case, "the judge is believed")
        offsets = private_around(case, served, evidence)
        if scope == "query" or any(offset.served for offset in offsets):
            yield from offsets
    elif scope == "query":
        evidence = replace(unbelieved, reason=f"private offsets: {unbelieved.reason}")
        yield from (nothing(case, "query", task, evidence, name) for name in case.rewards.query_ids.tolist())


def _believed(case: Case, together: Signal | None) -> bool:
    """Whether the judge is believed: by the rewards of *case*, or by those of all tasks where *case* agrees."""
    return case.signal.believed or (together is not None and together.believed and not case.signal.contradicts)


def _refused(case: Case, together: Signal | None) -> Evidence | None:
    """Why nothing may be learned from *case*, before any offset is learned; None where nothing speaks against it."""
    signal = case.signal
    question: Question | None = None
    if not case.rewards.reach.any():
        question = EQUAL
    elif signal.contradicts:
        question = BACKWARDS
    elif case.questions < 2:
        question = FEW
    elif not _believed(case, together):
        question = BLIND if signal.agrees else NOISE
    if question is None:
        return None
    n = case.questions
    return Evidence(n, None, None, "abstained", question.answer.format(n=n), code=question.code)


def _chosen(
    case: Case, refusal: Evidence | None, proposals: list[Proposal], scopes: list[Scope], task: str | None
) -> list[Offset]:
    """An offset for each of *scopes*: of the *proposals* at most one is published, and the others say why not."""
    if refusal is not None:
        return [nothing(case, scope, task, refusal) for scope in scopes]
    verdicts = [_verdict(proposal) for proposal in proposals]
    sure = [i for i, verdict in enumerate(verdicts) if verdict.verdict == "published"]
    best = proposals[max(sure, key=lambda i: proposals[i].fall.mean)] if sure else None
    offsets = []
    for proposal, scope, verdict in zip(proposals, scopes, verdicts, strict=True):
        if proposal is best:
            offsets.append(proposal.learn(verdict))
            continue
        if best is not None and verdict.verdict == "published":
            offsets.append(nothing(case, scope, task, _withheld(proposal, verdict, SURPASSED, other=best.name)))
        else:
            offsets.append(nothing(case, scope, task, verdict))
    return offsets


def _verdict(proposal: Proposal) -> Evidence:
    """Whether *proposal* may be published by what it does to held-out queries."""
    fall, n = proposal.fall, proposal.observations
    change = fall.scaled(NDCG_PER_NAT, np.hypot(NDCG_SHARE * NDCG_PER_NAT * fall.mean, NDCG_ERROR))
    interval = change.below(LEVEL), change.above(LEVEL)
    sure = f"{proposal.name}, {n} held-out {proposal.unit}"
    evidence = Evidence(n, change.mean, interval, "published", f"{sure}: their loss falls for sure", code=PUBLISHED)
    if fall.mean <= 0:
        return _withheld(proposal, evidence, NO_FALL)
    if fall.below(LEVEL) <= 0:
        return _withheld(proposal, replace(evidence, needed=_needed(n, fall)), UNSURE)
    return evidence


def _withheld(proposal: Proposal, evidence: Evidence, question: Question, **said: str) -> Evidence:
    sure = f"{proposal.name}, {proposal.observations} held-out {proposal.unit}"
    return replace(
        evidence, verdict="abstained", reason=f"{sure}: {question.answer.format(**said)}", code=question.code
    )


def _needed(n: int, fall: Gain) -> int | None:
    """How many more observations than *n* would bring the bound above zero, if the gain holds.

    None where it would take more than ten times as many: so small a gain is no ground to count on.
    """
    more = bisect_left(range(1, 10 * n + 1), True, key=lambda more: fall.after(more / n).below(LEVEL) > 0) + 1
    return more if more <= 10 * n else None


def _for_unseen_tasks(case: Case) -> Offset | None:
    """The global offset for tasks without rewards; None where there are too few families of tasks to hold out."""
    families = task_families(case)
    if int(families.max()) + 1 < MIN_TASKS:
        return None
    refusal = _refused(case, None)
    proposals = [] if refusal else [propose_for_unseen_tasks(case, families)]
    return _chosen(case, refusal, proposals, ["global"], None)[0]
