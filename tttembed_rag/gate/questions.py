"""The gate's questions: what is decided of the offset that is proposed of a case, and why.

    rewards -> Case -> ask: is there something to compare?
            -> believe: do the rewards mean something, is the judge's order better, do labels confirm some of it?
            -> propose: an offset, and what it does to queries that it was not learned from
            -> prove: does the held-out loss fall?
            -> audit: do trusted labels confirm the gain?
            -> expose: does a document move everywhere? Then all again without what is doubtful of it
            -> expect: do the first ten places get better, as far as they were measured?
            -> Decision

Each question is a function that gives a verdict, or None where the next one is asked. Tests and levels are data:
`thresholds` has the numbers, and `tttembed_rag.offsets.codes` the codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from tttembed_rag.gate.audit import Audited
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.exposure import Exposure
from tttembed_rag.gate.gains import WORSE, Gain
from tttembed_rag.gate.proposals import Proposal
from tttembed_rag.gate.thresholds import (
    AUDIT_LEVEL,
    BELIEVERS,
    EXPECTED_FALL,
    EXPECTED_SHARE,
    EXPOSURE_ROUNDS,
    LEAST_EXPECTED,
    LEAST_HEADROOM,
    LEVEL,
)
from tttembed_rag.offsets.codes import AUDITED, COMPARE, EXPOSED, FALLS, MEANS, NOTHING_TO_GAIN, Question
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.vectors.rows import Float64

Propose: TypeAlias = Callable[[Case], Proposal]


class Decision(NamedTuple):
    """The verdict on an offset of a case, and the proposal, if there was one."""

    case: Case
    evidence: Evidence
    proposal: Proposal | None = None


def decide(case: Case, propose: Propose, rounds: int = EXPOSURE_ROUNDS) -> Decision:
    """What the questions, one after the other, say of the offset that *propose* proposes of *case*.

    Where documents would move everywhere, all are asked again, in *rounds* rounds at most.
    """
    base = learnable(case)
    if isinstance(base, Evidence):
        return Decision(case, base)
    trial = Trial.of(propose(case), base)
    if verdict := prove(trial) or audit(trial):
        return Decision(case, verdict, trial.proposal)
    if decision := expose(trial, propose, rounds):
        return decision
    return Decision(case, expect(trial) or published(trial), trial.proposal)


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
    return refused(case, COMPARE, brought if case.terms.reranked else NOTHING_TO_GAIN)


def confirm(case: Case) -> Evidence | None:
    """Do trusted labels confirm any of the judge's order?"""
    if case.trust > 0:
        return None
    return refused(case, AUDITED, "trusted labels contradict the judge's order of what was judged", against=True)


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A proposal with what was measured of it on queries that it was not learned from.

    Attributes:
        proposal: The offset that might be published.
        change: By how much nDCG@10 changes.
        proven: Whether the loss falls for sure.
        audited: What trusted labels say of that; None where there are none.
        expected: The gain that is expected of a believed judge before anything is measured.
        claim: The evidence of what is published.
    """

    proposal: Proposal
    change: Gain
    proven: bool
    audited: Audited | None
    expected: float
    claim: Evidence

    @classmethod
    def of(cls, proposal: Proposal, base: Float64) -> Trial:
        """What is measured of a *proposal* beside nDCG@10 of *base* (n,), which is served without it."""
        case, change = proposal.case, proposal.change(base)
        audited = case.audited(proposal.held_out)
        by_labels = audited is not None and audited.decides
        tasks = None if proposal.families is None else proposal.observations
        vouched = "trusted labels" if by_labels else case.voucher
        claim = case.evidence(proposal.title, change, tasks=tasks, vouched=vouched).noted(audited)
        proven = proposal.fall(0.0).below(LEVEL) > 0
        return cls(proposal, change, proven, audited, EXPECTED_SHARE * headroom_of(case, base), claim)

    @property
    def believed(self) -> bool:
        """Whether somebody vouches for the judge, so that a gain need be expected alone."""
        return self.claim.vouched in BELIEVERS


def prove(trial: Trial) -> Evidence | None:
    """Does the loss of held-out queries fall, and do the lists of the application's own search get better?

    Where a judge is believed the fall need be expected alone.
    """
    proposal, claim, terms = trial.proposal, trial.claim, trial.proposal.case.terms
    fall = proposal.fall(EXPECTED_FALL if trial.believed else 0.0)
    if claim.vouched == "nobody":
        return claim.denied_by(MEANS, doubt_of(proposal.case))
    if terms.start is not None and proposal.harmed:
        return replace(claim.denied_by(FALLS, "what is served already does harm"), against=True)
    if doubt := fall.doubt(believed=trial.believed):
        verdict = claim.denied_by(FALLS, doubt)
        if fall.mean > 0:
            return replace(verdict, needed=fall.needed(proposal.observations))
        return replace(verdict, against=proposal.harmed)
    if terms.search is not None and trial.change.mean <= 0:
        better = "bring the reranker no more" if terms.reranked else "get no better"
        return claim.denied_by(FALLS, f"the lists of your own search {better}")
    return None


def audit(trial: Trial) -> Evidence | None:
    """Do trusted labels confirm the gain?"""
    if trial.audited is None or not trial.audited.refutes(AUDIT_LEVEL):
        return None
    return replace(trial.claim.denied_by(AUDITED, AUDITED.answer), against=True)


def expose(trial: Trial, propose: Propose, rounds: int) -> Decision | None:
    """Does a document move into, or out of, too many lists? Then what is decided without its doubtful rewards."""
    proposal, case = trial.proposal, trial.proposal.case
    exposure = Exposure.of(case.rows)
    moved = exposure.moved(case.rewards, case.voices, proposal.held_out)
    if not len(moved):
        return None
    rest, documents = exposure.without(moved), case.rows.doc_ids[exposure.rows[moved]].tolist()
    decision = Decision(case, trial.claim.denied_by(EXPOSED, EXPOSED.answer), proposal)
    if rest is not None:
        case = case.of_rows(rest)
        decision = decide(case, propose, rounds - 1) if rounds > 1 else decision._replace(case=case)
    withheld = tuple(dict.fromkeys([*documents, *decision.evidence.withheld]))
    return decision._replace(evidence=replace(decision.evidence, withheld=withheld))


def expect(trial: Trial) -> Evidence | None:
    """Do the first ten places get better, as far as they were measured?

    What was measured to be worse is never served. Where a judge is believed and no fall of the loss is proven, what is
    expected and what was measured must make a gain together.
    """
    if trial.change.above(LEVEL) < 0:
        return trial.claim.denied_by(FALLS, WORSE)
    gain = trial.change.posterior(trial.expected)
    if trial.believed and gain <= LEAST_EXPECTED and not trial.proven:
        small = f"a gain of {gain:+.3f} is to be expected, and less than {LEAST_EXPECTED:g} is not served unproven"
        return trial.claim.denied_by(FALLS, small)
    return None


def published(trial: Trial) -> Evidence:
    """The evidence of an offset against which no question decided."""
    falls = "their loss is expected to fall" if trial.believed else f"their loss falls (p < {LEVEL:g})"
    return trial.claim.noted(falls)


def refused(case: Case, question: Question, reason: str, *, against: bool = False) -> Evidence:
    """The verdict of a *question* on *case* before any offset is proposed, for a *reason* in a few words."""
    return replace(case.evidence().denied_by(question, reason), against=against)


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
