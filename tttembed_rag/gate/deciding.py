"""The gate: what is served to each task, and why.

    rewards -> Case -> is the judge believed? -> proposals -> whose held-out loss falls most, and surely? -> offsets

The questions, their tests and their levels are data: see `thresholds`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.recipe import ObjectiveName, Recipe, SolverName
from tttembed_rag.fitting.scopes import collect, fit_scope, of_task
from tttembed_rag.gate.audit import Labels, check_labels
from tttembed_rag.gate.case import Case, gated
from tttembed_rag.gate.exposure import Exposure
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.private import believed_evidence, nothing, private_around, private_moves
from tttembed_rag.gate.proposals import (
    Proposal,
    propose_constant,
    propose_for_unseen_tasks,
    propose_local,
    task_families,
)
from tttembed_rag.gate.signal import Signal
from tttembed_rag.gate.thresholds import (
    AUDIT_LEVEL,
    AUDITED,
    BACKWARDS,
    BLIND,
    ECHO,
    EQUAL,
    EXPOSED,
    EXPOSURE_ROUNDS,
    FEW,
    LEAST_HEADROOM,
    LEVEL,
    MIN_TASKS,
    MOST_CANDIDATES,
    NDCG_ERROR,
    NDCG_PER_NAT,
    NDCG_SHARE,
    NO_FALL,
    NOISE,
    ONE_SOURCE,
    PUBLISHED,
    SINGLE,
    SURPASSED,
    UNSURE,
    Question,
)
from tttembed_rag.gate.voices import strongest
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope, Offset, Scope, check_scope
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.gpu import Device

# By scope, what proposes its offset for a case.
Proposing: TypeAlias = Mapping[Scope, Callable[[Case], Proposal]]


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
    source_voices: float = 1.0,
    audit: Labels | None = None,
) -> Offsets:
    """Offsets learned from *rewards*, each published only if held-out rewards support it.

    Args:
        rewards: Judged candidates of the rewarded queries; where one query has more than `MOST_CANDIDATES`, its best
            and its nearest are learned from.

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

        source_voices: How many voices each of the rewards' ``sources`` has near any query, > 0; the gate alone asks.

        audit: Trusted labels in [0, 1] of judged pairs, by query id and document id: 30 to 200 of them, drawn at
            random, make the gate independent of the judge. The gate alone asks.

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
    check_asked(scope, gate=gate, source_voices=source_voices, audit=audit)
    if not isinstance(rewards, Rewards):
        raise InputError(f"rewards: expected Rewards (see Rewards.from_texts), got {type(rewards).__name__}")
    rewards = rewards.bounded(MOST_CANDIDATES)
    if gate or scope == "auto":  # which was refused without the gate
        recipe = gated(recipe, rewards)
        everything = Case(rewards, recipe, source_voices, audit)
        return collect(list(_decided(everything, scope)), rewards, recipe, scope)
    return fit_scope(rewards, scope, recipe)


def check_asked(scope: AnyScope, *, gate: bool, source_voices: float, audit: Labels | None) -> None:
    """Refuse options of `fit` that are none, or that nothing would ask.

    Raises:
        InputError: The line names the option.
    """
    check_scope(scope)
    if scope == "auto" and not gate:
        raise InputError("gate: expected True with scope='auto' (evidence is what it chooses by), got False")
    if audit is not None and not gate:
        raise InputError("audit: expected gate=True, which asks the labels, got gate=False")
    if not source_voices > 0:
        raise InputError(f"source_voices: expected a number above 0, got {source_voices}")
    check_labels(audit)


def _decided(everything: Case, scope: AnyScope) -> Iterator[Offset]:
    """The offsets of *scope*, published or not."""
    rewards = everything.given
    tasks = np.unique(rewards.tasks).tolist()
    if scope == "global":
        yield from _shared(everything, None, {"global": lambda case: propose_constant(case, None)}, None)[1]
        return
    whole = _for_unseen_tasks(everything) if scope == "auto" and len(tasks) >= MIN_TASKS else None
    if whole is not None:
        yield whole
    for task in tasks:
        case = everything if len(tasks) == 1 else replace(everything, given=of_task(rewards, task))
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
    proposing: Proposing = {"task": lambda case: propose_constant(case, task), "local": propose_local}
    asked = {name: propose for name, propose in proposing.items() if scope in ("auto", name)}
    case, shared = _shared(case, task, asked, together)
    if whole is not None and whole.served and case.questions < 2:
        # One rewarded query says nothing against the global offset: as good as a task without rewards.
        shared = [replace(whole, scope="task", task=task), *shared[1:]]
    yield from shared
    if scope not in ("auto", "query"):
        return
    refusal = _refused(case, together)
    # One query cannot be held out, but the judge of many may be believed of it.
    unbelieved = None if refusal is not None and refusal.code == FEW.code and _believed(case, together) else refusal
    if unbelieved is None:
        served = next((offset for offset in shared if offset.served), None)
        case, withheld = _unexposed(case, served)
        evidence = replace(believed_evidence(case), withheld=withheld)
        offsets = private_around(case, served, evidence)
        if scope == "query" or any(offset.served for offset in offsets):
            yield from offsets
    elif scope == "query":
        evidence = replace(unbelieved, reason=f"private offsets: {unbelieved.reason}")
        yield from (nothing(case, "query", task, evidence, name) for name in case.rewards.query_ids.tolist())


def _shared(case: Case, task: str | None, proposing: Proposing, together: Signal | None) -> tuple[Case, list[Offset]]:
    """The *proposing* offsets of *task*, at most one of them published, and the case that they were learned from.

    The chosen offset may lift a document into most lists although its rewards do not depend on the query. The rewards
    of such documents are dropped, and the offsets are fitted again.
    """
    exposure, best, verdicts = None, None, list[Evidence]()
    withheld, risen = list[int](), list[int]()
    for _ in range(EXPOSURE_ROUNDS):
        if (refusal := _refused(case, together)) is not None:
            verdicts = [refusal] * len(proposing)
            break
        best, verdicts = _compared(case, proposing)
        if best is None:
            break
        exposure = exposure or Exposure.of(case.given)
        # A document without rewards may rise because similar ones were rewarded.
        risen = exposure.risen(case.rewards, case.voices, best.held_out)
        unasked = [document for document in risen if document not in withheld and exposure.unasked(document)]
        if not unasked:
            break
        withheld += unasked
        if (rest := exposure.without(withheld)) is None:
            best, verdicts = None, [_refusal(case, EXPOSED)] * len(proposing)
            break
        case = replace(case, given=rest)
        best, verdicts = None, [_refusal(case, EXPOSED)] * len(proposing)
    names = exposure.names if exposure else ()
    out, up = (tuple(names[document] for document in some) for some in (withheld, risen))
    heard = case.heard.sources
    verdicts = [replace(verdict, withheld=out, risen=up, sources=heard, trust=case.trust) for verdict in verdicts]
    return case, [
        best.learn(verdict)
        if best is not None and verdict.verdict == "published"
        else nothing(case, scope, task, verdict)
        for scope, verdict in zip(proposing, verdicts, strict=True)
    ]


def _unexposed(case: Case, served: Offset | None) -> tuple[Case, tuple[str, ...]]:
    """*case* without the documents that private offsets would lift into everybody's list, and their names."""
    exposure = Exposure.of(case.given)
    risen = exposure.risen(case.rewards, case.voices, private_moves(case, served, case.trust))
    unasked = [document for document in risen if exposure.unasked(document)]
    rest = exposure.without(unasked) if unasked else None
    return (case, ()) if rest is None else (replace(case, given=rest), tuple(exposure.names[one] for one in unasked))


def _compared(case: Case, proposing: Proposing) -> tuple[Proposal | None, list[Evidence]]:
    """The proposal to publish, if any, and the verdict on each: of those that are sure, the largest fall."""
    proposals = [propose(case) for propose in proposing.values()]
    verdicts = [_verdict(proposal) for proposal in proposals]
    best = None
    for i in sorted(range(len(proposals)), key=lambda i: -proposals[i].fall.mean):
        proposal, verdict = proposals[i], verdicts[i]
        if verdict.verdict != "published":
            continue
        if best is not None:
            verdicts[i] = _withheld(proposal, verdict, SURPASSED, other=best.name)
        elif not _falls_without_strongest(case, list(proposing.values())[i]):
            verdicts[i] = _withheld(proposal, verdict, ONE_SOURCE)
        elif (found := case.audited(proposal.held_out)) is not None and not found.confirms(AUDIT_LEVEL):
            verdicts[i] = _withheld(proposal, verdict, AUDITED, found=str(found))
        else:
            best = proposal
            verdicts[i] = verdict if found is None else replace(verdict, reason=f"{verdict.reason}; {found}")
    return best, verdicts


def _falls_without_strongest(case: Case, propose: Callable[[Case], Proposal]) -> bool:
    """Whether the held-out loss falls without the source that has most voices, if there are sources."""
    if (source := strongest(case.given, case.source_voices)) is None:
        return True
    others = np.flatnonzero(case.given.sources != source)
    if len(others) < 2:
        return False
    case = replace(case, given=case.given.take(others))
    return not case.signal.contradicts and propose(case).fall.mean > 0


def _believed(case: Case, together: Signal | None) -> bool:
    """Whether the judge is believed: by the rewards of *case*, or by those of all tasks where *case* agrees."""
    return case.signal.believed or (together is not None and together.believed and not case.signal.contradicts)


def _refused(case: Case, together: Signal | None) -> Evidence | None:
    """Why nothing may be learned from *case*, before any offset is learned; None where nothing speaks against it."""
    signal = case.signal
    question: Question | None = None
    if not case.rewards.reach.any():
        question = EQUAL if case.rewards.depths.max() > 1 else SINGLE
    elif signal.contradicts:
        question = BACKWARDS
    elif case.questions < 2:
        question = FEW
    elif not _believed(case, together):
        question = BLIND if signal.agrees else NOISE
    elif case.headroom < LEAST_HEADROOM:
        question = ECHO
    elif case.trust <= 0:
        question = AUDITED
    return None if question is None else _refusal(case, question)


def _refusal(case: Case, question: Question) -> Evidence:
    """The evidence of a case that *question* decides against, before a gain was measured."""
    n = case.questions
    reason = question.answer.format(n=n, found="they contradict the judge's order of what was judged")
    return Evidence(n, None, None, "abstained", reason, code=question.code)


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
    if int(task_families(case).max()) + 1 < MIN_TASKS:
        return None
    return _shared(case, None, {"global": lambda case: propose_for_unseen_tasks(case, task_families(case))}, None)[1][0]
