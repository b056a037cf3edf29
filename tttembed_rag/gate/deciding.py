"""The gate: what is served to each task, and why.

    rewards -> Case -> ask: is there something to compare?
            -> believe: do the rewards mean something, and might a list get better?
            -> propose: an offset, and what it does to queries that it was not learned from
            -> prove: does the held-out loss fall?
            -> audit: do trusted labels confirm the gain?
            -> expose: does a document move everywhere? Then again without what is doubtful of it
            -> expect: do the first ten places get better, as far as they were measured?
            -> Offset

Each question is a function that gives a verdict, or None where the next one is asked. Tests and levels are data:
`thresholds` has the numbers, and `tttembed_rag.offsets.codes` the codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple, TypeAlias

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.measures import Search
from tttembed_rag.fitting.optima import optima_around, private_optima
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import of_task, plain_offsets, private_offsets, recorded
from tttembed_rag.fitting.voices import Voices
from tttembed_rag.gate.audit import Audited, Labels, check_labels
from tttembed_rag.gate.belief import Voucher
from tttembed_rag.gate.case import Case, Terms, gated
from tttembed_rag.gate.exposure import Exposure
from tttembed_rag.gate.gains import WORSE, Gain
from tttembed_rag.gate.lists import with_floor, with_lists
from tttembed_rag.gate.proposals import Prior, Proposal, propose_constant, propose_local, task_families
from tttembed_rag.gate.starts import check_start, kept, start_of
from tttembed_rag.gate.thresholds import (
    AUDIT_ALONE_LEVEL,
    AUDIT_LEVEL,
    BELIEVERS,
    EXPECTED_FALL,
    EXPECTED_SHARE,
    EXPOSURE_ROUNDS,
    LEAST_EXPECTED,
    LEAST_HEADROOM,
    LEVEL,
    MIN_TASKS,
    MOST_CANDIDATES,
    MOST_VOTED,
)
from tttembed_rag.offsets.codes import AUDITED, COMPARE, EXPOSED, FALLS, MEANS, REPEATS, Question
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import AnyScope, Offset, Scope, check_scope
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.rows import Float64

Propose: TypeAlias = Callable[[Case], Proposal]
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
    check_start(start, rewards, asked=gate and scope in ("auto", "local"))
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
    asked = judged | {task for task, _ in voted.most_common(MOST_VOTED)}
    for task in tasks:
        begun = None if start is None else start.find(task)
        if scope != "query" and task not in asked:
            zero = np.zeros(rewards.width, rewards.query_vectors.dtype)
            evidence = Evidence(voted[task], None, None, "published", "").denied_by(COMPARE, SMALL)
            offset = Offset("task" if scope == "task" else "local", zero, 0.0, voted[task], evidence, task=task)
            yield offset if begun is None else kept(begun, offset)
            continue
        of_this = of_task(rewards, task) if len(tasks) > 1 else rewards
        case = Case.of(of_this, recipe, replace(terms, start=begun), together)
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
    if start := start_of(case):
        return propose_local(case, optima_around(case.widened, case.recipe, start.held_out), start)
    return propose_local(case, private_optima(case.widened, case.recipe), prior)


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


class Decision(NamedTuple):
    """The verdict on an offset of a case, and in *worse* that of `expect`, which is asked last; and the proposal."""

    case: Case
    evidence: Evidence
    proposal: Proposal | None
    worse: Evidence | None = None


def offset_of(case: Case, scope: Scope, task: str | None, propose: Propose) -> Offset:
    """The offset that *propose* proposes of *case*, published or not.

    Where sources speak beside a declared judge, all rewards count if the data vouch for them and prove the gain; else
    the judge's alone do, so that no vote silences it.
    """
    offset = learned(expose(case, propose), scope, task)
    by_sources = case.by_sources
    if offset.served or not case.rows.trusted or not by_sources.any() or by_sources.all():
        return offset
    judge_alone = case.of_rows(case.rows.take(np.flatnonzero(~by_sources)))
    return learned(expose(judge_alone, propose), scope, task)


def decide(case: Case, propose: Propose) -> Decision:
    """What the questions of the gate, one after the other, say of the offset that *propose* proposes of *case*."""
    base = learnable(case)
    if isinstance(base, Evidence):
        return Decision(case, base, None)
    proposal = propose(case)
    audited = case.audited(proposal.held_out)
    voucher: Voucher = "trusted labels" if audited is not None and audited.decides else case.voucher
    change = proposal.change(base)
    tasks = None if proposal.families is None else proposal.observations
    claim = case.evidence(proposal.title, change, n=tasks, vouched=voucher)
    verdict = prove(proposal, change, claim, audited) or audit(claim, audited) or published(case, claim, audited)
    expected = EXPECTED_SHARE * headroom_of(case, base)
    return Decision(case, verdict, proposal, expect(proposal.fall(0.0), change, claim, audited, expected))


def learnable(case: Case) -> Evidence | Float64:
    """Why nothing may be learned from *case*; else (n,) nDCG@10 of what is served before anything is learned."""
    if verdict := ask(case) or believe(case):
        return verdict
    base = case.ndcg(case.terms.started(case.rewards) if case.terms.start else None)
    verdict = improve(case, base) or confirm(case)
    return base if verdict is None else verdict


def ask(case: Case) -> Evidence | None:
    """Is there something to compare?"""
    if not case.rewards.reach.any():
        several = case.rewards.depths.max() > 1
        same = "every candidate of a query has the same reward"
        return refused(case, COMPARE, same if several else "one candidate of each was judged")
    if case.questions < 2 and case.voucher != "its declaration":
        return refused(case, COMPARE, "one rewarded query cannot be held out from itself")
    return None


def believe(case: Case) -> Evidence | None:
    """Do the rewards mean something?

    Rewards of a judge that contradict the retriever speak against the global offset too. Votes of sources do not: they
    take away nothing that is served.
    """
    if case.signal.contradicts:
        contradiction = "the rewards contradict the retriever's order, as an inverted judge's do"
        return refused(case, MEANS, contradiction, against=not case.by_sources.any())
    if case.by_sources.all() and case.sources == 1:
        return refused(case, COMPARE, "one source alone rewarded them")
    if case.voucher == "nobody" and not case.terms.labels:
        return refused(case, MEANS, doubt_of(case))
    return None


def improve(case: Case, base: Float64) -> Evidence | None:
    """Is the judge's own order better than what is served for the base vectors, whose nDCG@10 is *base* (n,)?"""
    if headroom_of(case, base) >= LEAST_HEADROOM:
        return None
    brought = "your search gives the reranker all that was judged good: judge deeper than it gives"
    return refused(case, COMPARE, brought if case.terms.reranked else REPEATS)


def confirm(case: Case) -> Evidence | None:
    """Do trusted labels confirm any of the judge's order?"""
    if case.trust > 0:
        return None
    contradiction = AUDITED.answer.format(found="they contradict the judge's order of what was judged")
    return refused(case, AUDITED, contradiction, against=True)


def prove(proposal: Proposal, change: Gain, claim: Evidence, audited: Audited | None) -> Evidence | None:
    """Does the loss of held-out queries fall, and do the lists of the application's own search get better?

    Where a judge is believed the fall need be expected alone.
    """
    terms, believed = proposal.case.terms, claim.vouched in BELIEVERS
    fall = proposal.fall(EXPECTED_FALL if believed else 0.0)
    if claim.vouched == "nobody":
        return claim.denied_by(MEANS, doubt_of(proposal.case) + by_labels(audited))
    if terms.start is not None and proposal.harmed:
        return replace(claim.denied_by(FALLS, "what is served already does harm"), against=True)
    if doubt := fall.doubt(believed=believed):
        verdict = claim.denied_by(FALLS, doubt + by_labels(audited))
        if fall.mean > 0:
            return replace(verdict, needed=fall.needed(proposal.observations))
        return replace(verdict, against=proposal.harmed)
    if terms.search is not None and change.mean <= 0:
        lists = "bring the reranker no more" if terms.reranked else "get no better"
        return claim.denied_by(FALLS, f"the lists of your own search {lists}{by_labels(audited)}")
    return None


def expect(fall: Gain, change: Gain, claim: Evidence, audited: Audited | None, expected: float) -> Evidence | None:
    """Do the first ten places get better, as far as they were measured?

    What was measured to be worse is never served. Where a judge is believed and no *fall* of the loss is proven, what
    is *expected* and what was measured must make a gain together.
    """
    if change.above(LEVEL) < 0:
        return claim.denied_by(FALLS, WORSE + by_labels(audited))
    gain = change.posterior(expected)
    if claim.vouched in BELIEVERS and gain <= LEAST_EXPECTED and fall.below(LEVEL) <= 0:
        small = f"a gain of {gain:+.3f} is to be expected, and less than {LEAST_EXPECTED:g} is not served unproven"
        return claim.denied_by(FALLS, small + by_labels(audited))
    return None


def audit(claim: Evidence, audited: Audited | None) -> Evidence | None:
    """Do trusted labels confirm the gain?"""
    if audited is None or not audited.refutes(AUDIT_LEVEL):
        return None
    return replace(claim.denied_by(AUDITED, AUDITED.answer.format(found=audited)), against=True)


def published(case: Case, claim: Evidence, audited: Audited | None) -> Evidence:
    """The *claim* of an offset against which no question decided."""
    falls = "their loss is expected to fall" if claim.vouched in BELIEVERS else f"their loss falls (p < {LEVEL:g})"
    return replace(claim, reason=f"{claim.reason}{falls}; {case.by(claim.vouched)}{by_labels(audited)}")


def expose(case: Case, propose: Propose) -> Decision:
    """What is decided of *case*, again without doubtful rewards of documents, while these would move everywhere."""
    sources, withheld = case.sources, dict[str, None]()
    for _ in range(EXPOSURE_ROUNDS):
        decision = decide(case, propose)
        if decision.evidence.verdict != "published" or decision.proposal is None:
            break
        exposure = Exposure.of(case.rows)
        moved = exposure.moved(case.rewards, case.voices, decision.proposal.held_out)
        if not len(moved):
            break
        withheld |= dict.fromkeys(case.rows.doc_ids[exposure.rows[moved]].tolist())
        decision = decision._replace(evidence=decision.evidence.denied_by(EXPOSED, "; " + EXPOSED.answer))
        if (rest := exposure.without(moved)) is None:
            break
        case = case.of_rows(rest)
        decision = decision._replace(case=case)
    verdict = decision.evidence if decision.evidence.verdict != "published" else decision.worse or decision.evidence
    evidence = replace(verdict, withheld=tuple(withheld), sources=sources, trust=case.trust)
    return decision._replace(evidence=evidence)


def learned(decision: Decision, scope: Scope, task: str | None) -> Offset:
    """The offset of a *decision*: learned where it is published, else zero, with what is known of its lists."""
    case, evidence, proposal, _ = decision
    offset = nothing(case, scope, task, evidence)
    if proposal is None:
        return with_floor(offset, case)
    return with_lists(proposal.learn(evidence) if evidence.verdict == "published" else offset, proposal)


def private_offsets_of(case: Case, task: str) -> list[Offset]:
    """The private offset of each query of *case*: served where the judge is believed, which is all that is asked."""
    verdict = learnable(case)
    if not isinstance(verdict, Evidence):
        optima = private_optima(case.widened, case.recipe)
        claim = case.evidence(f"private offsets, {case.questions} rewarded; {case.by(case.voucher)}")
        claim = replace(claim, sources=case.sources, trust=case.trust)
        audited = case.audited(case.recipe.dose(1) * case.trust * optima.offsets)
        if audited is None or not audited.refutes(AUDIT_ALONE_LEVEL):
            return private_offsets(case.rewards, optima, case.recipe, claim)
        verdict = claim.denied_by(AUDITED, "; " + AUDITED.answer.format(found=audited))
    return [nothing(case, "query", task, verdict, name) for name in case.rewards.query_ids.tolist()]


def nothing(case: Case, scope: Scope, task: str | None, evidence: Evidence, query_id: str | None = None) -> Offset:
    """An offset of zero that says in its *evidence* why nothing is served."""
    zero = np.zeros(case.rewards.width, case.rewards.query_vectors.dtype)
    n = case.questions if query_id is None else 1
    return Offset(scope=scope, task=task, query_id=query_id, vector=zero, alpha=0.0, n=n, evidence=evidence)


def refused(case: Case, question: Question, finding: str, *, against: bool = False) -> Evidence:
    """The verdict of a *question* on *case* before any offset is proposed, for a *finding* in words."""
    return replace(case.evidence("").denied_by(question, finding), against=against)


def headroom_of(case: Case, base: Float64) -> float:
    """By how much the judge's own order is better than what is served for the base vectors, in nDCG@10."""
    differ = case.rewards.reach > 0
    return float((1.0 - base[differ]).mean()) if differ.any() else 0.0


def doubt_of(case: Case) -> str:
    """Why the data do not vouch for the rewards of *case*."""
    if case.rows.trusted is False:
        return "nobody vouches for the judge"
    if case.signal.agrees_p < case.signal.level:
        return "a document's rewards do not depend on what is asked, and nobody vouches for the judge"
    return "the rewards agree with the retriever no more than chance might, and nobody vouches for the judge"


def by_labels(audited: Audited | None) -> str:
    """What trusted labels say, behind a reason."""
    return "" if audited is None else f"; {audited}"
