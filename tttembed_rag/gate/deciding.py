"""The gate: what is served to each task, and why.

    rewards -> Case -> is there something to compare? do the rewards mean something? -> Proposal
            -> does the held-out loss fall? do sources move a document everywhere? do trusted labels confirm? -> Offset

The questions, their tests and their levels are data: see `thresholds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TypeAlias

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.measures import Search
from tttembed_rag.fitting.recipe import ObjectiveName, Recipe, SolverName
from tttembed_rag.fitting.scopes import fit_scope, of_task, private_offsets, recorded
from tttembed_rag.gate.audit import Labels, check_labels
from tttembed_rag.gate.case import Case, gated, withheld
from tttembed_rag.gate.exposure import Exposure
from tttembed_rag.gate.proposals import Prior, Proposal, propose_constant, propose_local, task_families
from tttembed_rag.gate.thresholds import (
    AUDIT_ALONE_LEVEL,
    AUDIT_LEVEL,
    AUDITED,
    BELIEVERS,
    COMPARE,
    EXPECTED_FALL,
    EXPOSED,
    EXPOSURE_ROUNDS,
    FALLS,
    LEAST_HEADROOM,
    LEVEL,
    MEANS,
    MIN_TASKS,
    MOST_CANDIDATES,
)
from tttembed_rag.gate.words import with_lists
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope, Offset, Scope, check_scope
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.gpu import Device

Propose: TypeAlias = Callable[[Case], Proposal]


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
    audit: Labels | None = None,
    trusted: bool | None = None,
    served: Search | None = None,
    reranked: bool = False,
) -> Offsets:
    """Offsets learned from *rewards*, each published only if held-out rewards support it.

    Args:
        rewards: Judged candidates of the rewarded queries; where one query has more than `MOST_CANDIDATES`, its best
            and its nearest are learned from.
        scope: ``global`` (one offset for all), ``task`` (one per task), ``local`` (one per task that depends on where
            the query lies), ``query`` (one per rewarded query), or ``auto``: the local offset of each task and, from
            `MIN_TASKS` tasks on, a global one for tasks whose own rewards do not decide.
        objective: ``kd``, ``reverse_kl`` or ``softmax_grpo``.
        solver: ``exact`` (certified optimum) or ``adam`` (the paper's 300 steps).
        gate: False serves the paper's rule as it stands; ``auto`` needs the gate.
        ridge: lambda > 0, weight of ||v||^2; with the gate, constant offsets are learned at `RIDGE_STEP` times it.
        teacher_temperature: tau_T > 0, in units of reward; with the gate, `TEACHER_STEP` times it, and at most a
            `SHARPNESS`-th of how far the best and the worst candidate of a query lie apart on average.
        student_temperature: tau_S > 0, in units of cosine similarity; with the gate, `STUDENT_STEP` times it.
        kappa: Dose n / (n + kappa), in rewarded queries, >= 0; of the local offset, the noise of a rewarded query.
        tolerance: Largest gradient norm that counts as converged, in nats per unit of offset.
        device: ``cpu``, ``cuda``, or ``auto``: a GPU where torch sees one and there are vectors enough to pay.
        warm_start: Offsets of an earlier fit; a constant offset is searched from the one of its key on.
        audit: Trusted labels in [0, 1] of judged pairs, by query id and document id: 30 to 200 of them, drawn at
            random, make the gate independent of the judge. The gate alone asks.
        trusted: True where somebody vouches for the judge: the application serves its order, or it passed its
            examination (`tttembed_rag.judges.check_judge`). Then an offset is published where a gain is to be expected,
            from the first verdict on. None asks what the rewards say of themselves, else the data, which must prove
            the gain; with False only an audit publishes. Rewards of sources are never believed by declaration.
        served: Your own search, with its fusion, filters and cut: a query vector (d,) and the query's text (its id
            where no text is known) to ids of documents in the order in which they are served. Then the gain is that of
            its lists for held-out queries, and nothing is published where they get no better. The gate alone asks.
        reranked: True where a reranker sorts what *served* gives. Its lists count by what is in them then, whatever
            their order: nDCG@10 once they are sorted by reward, which is recall where one document is good.

    Returns:
        One offset per scope key; where the gate abstained it is zero and says why. With ``auto`` that is a local one
        per task and, from `MIN_TASKS` tasks on, the global one that tasks get whose rewards do not speak against it.
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
    check_asked(scope, gate=gate, audit=audit, trusted=trusted)
    if served is not None and not (gate and callable(served)):
        raise InputError(f"served: expected a function, and gate=True, which asks it, got {served!r:.80}, gate={gate}")
    if reranked and served is None:
        raise InputError(f"reranked: expected served=, whose lists are reranked, got none, and reranked={reranked!r}")
    check_rewards(rewards)
    rewards = rewards.bounded(MOST_CANDIDATES)
    trusted = rewards.trusted if trusted is None else trusted
    if gate or scope == "auto":  # which was refused without the gate
        recipe = gated(recipe, rewards)
        everything = Case(rewards, recipe, audit, trusted, search=served, reranked=reranked)
        offsets = list(_decided(everything, scope))
        return recorded(offsets, rewards.judge, rewards.width, recipe, scope, rewards.embedder)
    return fit_scope(rewards, scope, recipe)


def check_rewards(rewards: object) -> None:
    """Refuse what is no `Rewards`."""
    if not isinstance(rewards, Rewards):
        raise InputError(f"rewards: expected Rewards (see Rewards.from_texts), got {type(rewards).__name__}")


def check_asked(scope: AnyScope, *, gate: bool, audit: Labels | None, trusted: bool | None) -> None:
    """Refuse options of `fit` that are none, or that nothing would ask.

    Raises:
        InputError: The line names the option.
    """
    check_scope(scope)
    for name, value in (("gate", gate), ("trusted", trusted)):
        if value not in (True, False, None):
            raise InputError(f"{name}: expected True or False, got {value!r}")
    if scope == "auto" and not gate:
        raise InputError("gate: expected True with scope='auto' (evidence is what it chooses by), got False")
    if audit is not None and not gate:
        raise InputError("audit: expected gate=True, which asks the labels, got gate=False")
    if not gate and trusted is not None:
        raise InputError(f"trusted: expected gate=True, which asks who vouches, got {trusted} with gate=False")
    check_labels(audit)


def _decided(everything: Case, scope: AnyScope) -> Iterator[Offset]:
    """The offsets of *scope*, published or not."""
    if scope == "global":
        yield _offset(everything, "global", None, propose_constant)
        return
    tasks = np.unique(everything.given.tasks).tolist()
    priors: Mapping[str, Prior] = {}
    if scope == "auto" and len(tasks) >= MIN_TASKS and int(task_families(everything).max()) + 1 >= MIN_TASKS:
        propose = cache(partial(propose_constant, unseen=True))  # the gate and the priors ask about the same case
        whole = _offset(everything, "global", None, propose)
        yield whole
        if whole.served:
            priors = _priors(propose(everything), whole)
    for task in tasks:
        case = everything
        if len(tasks) > 1:
            case = replace(everything, given=of_task(everything.given, task), together=everything.signal)
        if scope == "query":
            yield from _private(case, task)
        elif scope == "task":
            yield _offset(case, "task", task, partial(propose_constant, task=task))
        else:
            yield _offset(case, "local", task, partial(propose_local, prior=priors.get(task)))


def _priors(proposal: Proposal, whole: Offset) -> dict[str, Prior]:
    """By task, the global offset *whole*, and the same learned without the task, which the *proposal* holds out."""
    tasks, first = np.unique(proposal.case.rewards.tasks, return_index=True)
    held_out = proposal.held_out[first].astype(whole.vector.dtype)
    served = (whole.alpha * whole.vector).astype(whole.vector.dtype)
    return {task: Prior(served, vector) for task, vector in zip(tasks.tolist(), held_out, strict=True)}


def _offset(case: Case, scope: Scope, task: str | None, propose: Propose) -> Offset:
    """The offset that *propose* learns of *case*, published or not.

    Where sources speak beside a declared judge, all are heard if the data vouch for them and prove the gain; else the
    judge speaks alone, so that no vote silences it.
    """
    found = _heard(case, scope, task, propose)
    if found.served or not case.trusted or not case.named.any() or case.named.all():
        return found
    return _heard(replace(case, given=case.given.take(np.flatnonzero(~case.named))), scope, task, propose)


def _heard(case: Case, scope: Scope, task: str | None, propose: Propose) -> Offset:
    """The offset of *case*, learned again without what sources say of documents that they would move everywhere."""
    sources, given, silenced = case.heard.sources, case.given, list[int]()
    exposure: Exposure | None = None
    for _ in range(EXPOSURE_ROUNDS):
        if refused := refused_by(case):
            evidence = refused
            break
        proposal = propose(case)
        evidence = _verdict(proposal)
        if evidence.verdict != "published" or not sources:
            break
        exposure = exposure or Exposure.of(given)
        moved = exposure.moved(case.rewards, case.voices, proposal.held_out)
        if not (more := [one for one in moved if one not in silenced]):
            break
        silenced += more
        evidence = withheld(evidence, EXPOSED, "; " + EXPOSED.answer)
        if (rest := exposure.without(silenced)) is None:
            break
        case = replace(case, given=rest)
    names = tuple(exposure.names[one] for one in silenced) if exposure else ()
    evidence = replace(evidence, withheld=names, sources=sources, trust=case.trust)
    if refused:
        return nothing(case, scope, task, evidence)
    if evidence.verdict != "published":
        return with_lists(nothing(case, scope, task, evidence), proposal)
    return with_lists(proposal.learn(evidence), proposal)


def refused_by(case: Case) -> Evidence | None:
    """Why nothing may be learned from *case*, before any offset is learned; None where nothing speaks against it."""
    question, found, against = COMPARE, "", False
    if not case.rewards.reach.any():
        several = case.rewards.depths.max() > 1
        found = "every candidate of a query has the same reward" if several else "one candidate of each was judged"
    elif case.questions < 2 and case.voucher != "its declaration":
        found = "one rewarded query cannot be held out from itself"
    elif case.signal.contradicts:
        question, against = MEANS, not case.named.any()  # no vote takes away what is served
        found = "the rewards contradict the retriever's order, as an inverted judge's do"
    elif case.named.all() and case.heard.sources == 1:  # which nobody confirms
        found = "one source alone rewarded them"
    elif case.voucher == "nobody" and not case.labels:
        question, found = MEANS, _unbelieved(case)
    elif case.headroom < LEAST_HEADROOM:
        brought = "your search gives the reranker all that was judged good: judge deeper than it gives"
        found = brought if case.reranked else "the judge repeats the retriever's order"
    elif case.trust <= 0:
        question, against = AUDITED, True
        found = question.answer.format(found="they contradict the judge's order of what was judged")
    if not found:
        return None
    return replace(withheld(case.evidence(""), question, found), against=against)


def _unbelieved(case: Case) -> str:
    """Why the data do not vouch for the rewards of *case*."""
    if case.trusted is False:
        return "nobody vouches for the judge"
    if case.signal.agrees_p < case.signal.level:
        return "a document's rewards do not depend on what is asked, and nobody vouches for the judge"
    return "the rewards agree with the retriever no more than chance might, and nobody vouches for the judge"


def _verdict(proposal: Proposal) -> Evidence:
    """Whether *proposal* may be published by what it does to held-out queries."""
    case, n, change = proposal.case, proposal.observations, proposal.change
    audited = case.audited(proposal.held_out)
    voucher = "trusted labels" if audited is not None and audited.decides else case.voucher
    believed = voucher in BELIEVERS
    fall = proposal.fall(EXPECTED_FALL if believed else 0.0)
    asked = f"{proposal.name}, {n} held-out {proposal.unit}: " if n > 1 else f"{proposal.name}: "
    evidence = case.evidence(asked, change, n=n, vouched=voucher)
    said = f"; {audited}" if audited else ""
    if voucher == "nobody":
        return withheld(evidence, MEANS, _unbelieved(case) + said)
    if doubt := fall.doubt(believed=believed):
        evidence = withheld(evidence, FALLS, doubt + said)
        fell = fall.mean > 0
        return replace(evidence, needed=fall.needed(n)) if fell else replace(evidence, against=proposal.harmed)
    if case.search is not None and change.mean <= 0:
        kept = "bring the reranker no more" if case.reranked else "get no better"
        return withheld(evidence, FALLS, f"the lists of your own search {kept}{said}")
    if audited is not None and audited.refutes(AUDIT_LEVEL):
        return replace(withheld(evidence, AUDITED, AUDITED.answer.format(found=audited)), against=True)
    told = "their loss is expected to fall" if believed else f"their loss falls (p < {LEVEL:g})"
    return replace(evidence, reason=f"{asked}{told}; vouched for by {voucher}{said}")


def _private(case: Case, task: str) -> list[Offset]:
    """The private offset of each query of *case*: served where the judge is believed, which is all that is asked."""
    evidence = refused_by(case)
    if evidence is None:
        evidence = case.evidence(f"private offsets, {case.questions} rewarded; vouched for by {case.voucher}")
        evidence = replace(evidence, sources=case.heard.sources, trust=case.trust)
        audited = case.audited(case.recipe.dose(1) * case.trust * case.optima.offsets)
        if audited is not None and audited.refutes(AUDIT_ALONE_LEVEL):
            evidence = withheld(evidence, AUDITED, "; " + AUDITED.answer.format(found=audited))
    if evidence.verdict == "published":
        return private_offsets(case.rewards, case.optima, case.recipe, evidence)
    return [nothing(case, "query", task, evidence, name) for name in case.rewards.query_ids.tolist()]


def nothing(case: Case, scope: Scope, task: str | None, evidence: Evidence, query_id: str | None = None) -> Offset:
    """An offset of zero that says in its *evidence* why nothing is served."""
    zero = np.zeros(case.rewards.width, case.rewards.query_vectors.dtype)
    n = case.questions if query_id is None else 1
    return Offset(scope=scope, task=task, query_id=query_id, vector=zero, alpha=0.0, n=n, evidence=evidence)
