"""`fit`, behind the gate: what is served to each task. `tttembed_rag.gate.questions` decides about one offset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.measures import Search
from tttembed_rag.fitting.optima import optima_around, private_optima
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import of_task, plain_offsets, private_offsets, recorded
from tttembed_rag.fitting.voices import Voices
from tttembed_rag.gate.audit import Labels, check_labels
from tttembed_rag.gate.case import Case, Terms, gated
from tttembed_rag.gate.lists import with_floor, with_lists
from tttembed_rag.gate.proposals import Prior, Proposal, propose_constant, propose_local, task_families
from tttembed_rag.gate.questions import Propose, decide, learnable
from tttembed_rag.gate.thresholds import AUDIT_ALONE_LEVEL, MIN_TASKS, MOST_CANDIDATES, MOST_VOTED
from tttembed_rag.offsets.codes import AUDITED, COMPARE, MEANS
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import AnyScope, Offset, Scope, check_scope
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards

# Why nothing is asked of a task that anybody can make.
SMALL = f"sources alone rewarded it, and {MOST_VOTED} such tasks have as many votes"


def fit(
    rewards: Rewards,
    *,
    scope: AnyScope = "auto",
    trusted: bool | None = None,
    audit: Labels | None = None,
    gate: bool = True,
    served: Search | None = None,
    reranked: bool = False,
    vouching: Rewards | None = None,
    start: Offsets | None = None,
    recipe: Recipe = Recipe(),
) -> Offsets:
    """Offsets learned from *rewards*, each published only if held-out rewards support it.

    Args:
        rewards: Judged candidates of the rewarded queries; where one query has more than `MOST_CANDIDATES`, its best
            and its nearest are learned from.
        scope: ``global`` (one offset for all), ``task`` (one per task), ``local`` (one per task that depends on where
            the query lies), ``query`` (one per rewarded query), or ``auto``: the local offset of each task and, from
            `MIN_TASKS` tasks on, a global one for tasks whose own rewards do not decide.
        trusted: True where somebody vouches for the judge: the application serves its order, or it passed its
            examination (`tttembed_rag.judges.check_judge`). Then an offset is published where a gain is to be expected,
            from the first verdict on. None asks what the rewards say of themselves, else the data, which must prove
            the gain; with False only an audit publishes. Rewards of sources are never believed by declaration.
        audit: Trusted labels in [0, 1] of judged pairs, by query id and document id: 30 to 200 of them, drawn at
            random, make the gate independent of the judge. The gate alone asks.
        gate: False serves the paper's rule as it stands; ``auto`` needs the gate.
        served: Your own search, with its fusion, filters and cut: a query vector (d,) and the query's text (its id
            where no text is known) to ids of documents in the order in which they are served. Then the gain is that of
            its lists for held-out queries, and nothing is published where they get no better. The gate alone asks; a
            search that raises is an InputError, and its time is your own.
        reranked: True where a reranker sorts what *served* gives. Its lists count by what is in them then, whatever
            their order: nDCG@10 once they are sorted by reward, which is recall where one document is good.
        vouching: Rewards by which it is tested whether what was chosen agrees with the retriever; None is *rewards*.
            Where users were shown short lists, these are the same rewards with documents added that were not shown,
            at the lowest reward. No offset is learned from them.
        start: What is served already, and was not learned from *rewards*: offsets of languages' means
            (`tttembed_rag.serving.language_means`), of questions that a model wrote, or of another index. A task is
            learned around what it starts with, and keeps that until its rewards speak against it: then it is dropped,
            and the task learned without. The scopes ``local`` and ``auto`` alone ask.
        recipe: How offsets are learned: objective, solver, temperatures, ridge, dose.

    Returns:
        One offset per scope key; where the gate abstained it is zero and says why. With ``auto`` that is a local one
        per task and, from `MIN_TASKS` tasks on, the global one that tasks get whose rewards do not speak against it.
    """
    check_options(scope, gate=gate, audit=audit, trusted=trusted, recipe=recipe)
    if served is not None and not (gate and callable(served)):
        raise InputError(f"served: expected a function, and gate=True, which asks it, got {served!r:.80}, gate={gate}")
    if reranked and served is None:
        raise InputError(f"reranked: expected served=, whose lists are reranked, got none, and reranked={reranked!r}")
    check_rewards(rewards)
    check_start(start, rewards, usable=gate and scope in ("auto", "local"))
    rewards = rewards.bounded(MOST_CANDIDATES)
    if gate or scope == "auto":  # which was refused without the gate
        recipe = gated(recipe, rewards)
        rewards = rewards if trusted is None else replace(rewards, trusted=trusted, declared_by="")
        terms = Terms(labels=audit, search=served, reranked=reranked, vouching=vouching)
        offsets = list(gated_offsets(rewards, scope, recipe, terms, start))
    else:
        offsets = plain_offsets(rewards, scope, recipe)
    return recorded(
        offsets, rewards.judge, rewards.width, recipe, scope, embedder=rewards.embedder, probe=rewards.probe
    )


def check_rewards(rewards: object) -> None:
    """Refuse what is no `Rewards`."""
    if not isinstance(rewards, Rewards):
        raise InputError(f"rewards: expected Rewards (see Rewards.from_texts), got {type(rewards).__name__}")


def check_options(
    scope: AnyScope, *, gate: bool, audit: Labels | None, trusted: bool | None, recipe: Recipe = Recipe()
) -> None:
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
    if not isinstance(recipe, Recipe):
        raise InputError(f"recipe: expected a Recipe, got {type(recipe).__name__}")
    check_labels(audit)


def check_start(start: object, rewards: Rewards, *, usable: bool) -> None:
    """Refuse a *start* that is none of these *rewards*, or that is not *usable*."""
    if start is None:
        return
    if not isinstance(start, Offsets) or not usable:
        got = type(start).__name__ if usable else "another scope, or gate=False"
        raise InputError(f"start: expected Offsets, and scope='auto' or 'local' under the gate, got {got}")
    embedder = start.settings.get("embedder", rewards.embedder) if rewards.embedder else ""
    if start.width != rewards.width or embedder != rewards.embedder:
        expected, got = f"width {rewards.width} {rewards.embedder}", f"width {start.width} {embedder}"
        raise InputError(f"start: expected offsets of the same embedding model, {expected}, got {got}")


def gated_offsets(
    rewards: Rewards, scope: AnyScope, recipe: Recipe, terms: Terms, start: Offsets | None = None
) -> Iterator[Offset]:
    """The offsets of *scope*, published or not, and of *start* what is served to other tasks."""
    if scope == "global":
        yield offset_of(Case.of(rewards, recipe, terms), "global", None, propose_constant)
        return
    tasks = np.unique(rewards.tasks).tolist()
    others = [] if start is None else [offset for offset in start.values() if offset.task not in (None, *tasks)]
    yield from (offset for offset in others if offset.served and offset.query_id is None)
    voices = Voices.of(rewards)
    priors: Mapping[str, Prior] = {}
    if scope == "auto" and len(tasks) >= MIN_TASKS and int(task_families(voices.rewards).max()) + 1 >= MIN_TASKS:
        everything = Case.of(rewards, recipe, terms)
        propose = cache(partial(propose_constant, unseen=True))  # the gate and the priors ask about the same case
        whole = offset_of(everything, "global", None, propose)
        yield whole
        if whole.served:
            priors = priors_of(propose(everything), whole)
    together = terms.signal(rewards, voices) if len(tasks) > 1 else None
    judged = {*rewards.tasks[rewards.sources == ""].tolist()}
    voted = Counter(task for task in rewards.tasks.tolist() if task not in judged)
    examined = judged | {task for task, _ in voted.most_common(MOST_VOTED)}
    for task in tasks:
        own_start = None if start is None else start.find(task)
        if scope != "query" and task not in examined:
            zero = np.zeros(rewards.width, rewards.query_vectors.dtype)
            evidence = Evidence(voted[task], None, None, "abstained", SMALL, code=COMPARE.code)
            offset = Offset("task" if scope == "task" else "local", zero, 0.0, voted[task], evidence, task=task)
            yield offset if own_start is None else kept(own_start, offset)
            continue
        of_this = of_task(rewards, task) if len(tasks) > 1 else rewards
        case = Case.of(of_this, recipe, replace(terms, start=own_start), together)
        if scope == "query":
            yield from private_offsets_of(case, task)
        elif scope == "task":
            yield offset_of(case, "task", task, partial(propose_constant, task=task))
        else:
            yield local_of(case, task, partial(_propose_local, prior=priors.get(task)))


def priors_of(proposal: Proposal, whole: Offset) -> dict[str, Prior]:
    """By task, the global offset *whole*, and the same learned without the task, which the *proposal* holds out."""
    tasks, first = np.unique(proposal.case.rewards.tasks, return_index=True)
    held_out = proposal.held_out[first].astype(whole.vector.dtype)
    served = (whole.alpha * whole.vector).astype(whole.vector.dtype)
    return {task: Prior(served, vector) for task, vector in zip(tasks.tolist(), held_out, strict=True)}


def _propose_local(case: Case, prior: Prior | None) -> Proposal:
    """The local offset of the task of *case*: around what it is served already, else around a *prior*, if any."""
    if case.terms.start is None:
        return propose_local(case, private_optima(case.widened, case.recipe), prior)
    start = Prior.of_start(case.terms.start, case)
    return propose_local(case, optima_around(case.widened, case.recipe, start.held_out), start)


def local_of(case: Case, task: str, propose: Propose) -> Offset:
    """The local offset of a *task*, around what it is served already; without that where the rewards speak against it.

    Where nothing is published, what it is served stays.
    """
    offset, start = offset_of(case, "local", task, propose), case.terms.start
    if start is None or offset.served:
        return offset
    if offset.evidence.against and offset.evidence.code != MEANS.code:  # a judge that means nothing says nothing of it
        alone = Case.of(case.rows, case.recipe, replace(case.terms, start=None), case.together)
        offset = offset_of(alone, "local", task, propose)
        return offset if offset.served else replace(offset, evidence=replace(offset.evidence, against=True))
    return kept(start, offset)


def kept(start: Offset, offset: Offset) -> Offset:
    """What a task is served already, *start*, in place of an *offset* of zero, with what is known of its lists."""
    evidence = start.evidence.noted(f"kept: {offset.evidence.reason}")
    start = replace(start, scope="local", task=offset.task, evidence=evidence)
    return replace(start, rescorer=offset.rescorer, skips=offset.skips, floor=offset.floor)


def offset_of(case: Case, scope: Scope, task: str | None, propose: Propose) -> Offset:
    """The offset that *propose* proposes of *case*, published or not.

    Where sources speak beside a declared judge, all rewards count if the data vouch for them and prove the gain; else
    the judge's alone do, so that no vote silences it.
    """
    offset, by_sources = decided(case, scope, task, propose), case.by_sources
    if offset.served or not case.rows.trusted or not by_sources.any() or by_sources.all():
        return offset
    return decided(case.of_rows(case.rows.take(np.flatnonzero(~by_sources))), scope, task, propose)


def decided(case: Case, scope: Scope, task: str | None, propose: Propose) -> Offset:
    """What is learned of *case* where that is published, else zero, with what is known of its lists."""
    decision = decide(case, propose)
    evidence = replace(decision.evidence, sources=case.sources, trust=decision.case.trust)
    offset = nothing(decision.case, scope, task, evidence)
    if decision.proposal is None:
        return with_floor(offset, decision.case)
    offset = decision.proposal.learn(evidence) if evidence.verdict == "published" else offset
    return with_lists(offset, decision.proposal)


def private_offsets_of(case: Case, task: str) -> list[Offset]:
    """The private offset of each query of *case*: served where the judge is believed, which is all that is asked."""
    verdict = learnable(case)
    if not isinstance(verdict, Evidence):
        optima = private_optima(case.widened, case.recipe)
        audited = case.audited(case.recipe.dose(1) * case.trust * optima.offsets)
        claim = case.evidence("private offsets").noted(audited)
        claim = replace(claim, sources=case.sources, trust=case.trust)
        if audited is None or not audited.refutes(AUDIT_ALONE_LEVEL):
            return private_offsets(case.rewards, optima, case.recipe, claim)
        verdict = claim.denied_by(AUDITED, AUDITED.answer)
    return [nothing(case, "query", task, verdict, name) for name in case.rewards.query_ids.tolist()]


def nothing(case: Case, scope: Scope, task: str | None, evidence: Evidence, query_id: str | None = None) -> Offset:
    """An offset of zero that says in its *evidence* why nothing is served."""
    zero = np.zeros(case.rewards.width, case.rewards.query_vectors.dtype)
    n = case.questions if query_id is None else 1
    return Offset(scope=scope, task=task, query_id=query_id, vector=zero, alpha=0.0, n=n, evidence=evidence)
