"""Lists under an offset: may a rescorer sort them, how much reranking do they still need, and which have no answer?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tttembed_rag.fitting.measures import judged_ndcg
from tttembed_rag.fitting.wordweights import COSINE, Weighing
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.depth import lost_by_depth, skips_of
from tttembed_rag.gate.floors import floor_of_case
from tttembed_rag.gate.gains import WORSE, Gain
from tttembed_rag.gate.proposals import Proposal
from tttembed_rag.gate.thresholds import AGREEMENT, AUDIT_LEVEL, BELIEVERS, LEANING, LEVEL, TYPICAL_FALL
from tttembed_rag.offsets.codes import AUDITED, FALLS, MEANS
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.offsets.rescorer import FEATURES, Rescorer
from tttembed_rag.vectors.rows import Float64


def with_lists(offset: Offset, proposal: Proposal) -> Offset:
    """The *offset* of a *proposal* with what is known of the lists that it makes.

    A local one has a rescorer of what a search with it finds, published or not. It has none where texts are not known,
    where votes of sources are among the rewards (whoever writes a document chooses its words), and where the rewards
    speak against any offset. Where the judge alone rewarded the task, and the search is not your own, whose order is
    not known, the lists that are served are looked through: how deep, and which of them, a reranker must see.
    """
    case, rewards = proposal.case, proposal.case.rewards
    if offset.task is None or case.by_sources.any():
        return offset
    local = offset.scope == "local" and not offset.evidence.against
    known = all(rewards.query_texts) and all(rewards.doc_texts[np.unique(case.widened.candidates)])
    sorts = local and known
    if not local and not offset.served:
        return offset
    squares, products = case.moved(proposal.held_out if offset.served else proposal.without)
    scores = products / np.sqrt(squares)[:, None]
    if offset.served:
        offset = replace(offset, evidence=_certified(case, offset.evidence, scores))
    if sorts:
        rescorer, sorted_by = _rescorer(case, scores, offset.evidence.vouched)
        offset = replace(offset, rescorer=rescorer)
        if rescorer.served:
            rescorer = replace(rescorer, evidence=_certified(case, rescorer.evidence, sorted_by))
            offset, scores = replace(offset, rescorer=rescorer), sorted_by
    # An offset of all queries is longer than one of four fifths.
    finely = proposal.finely() if offset.served and proposal.finely is not None else proposal.without
    offset = with_floor(offset, case, finely)
    looked_through = offset.in_use and case.terms.search is None
    return replace(offset, skips=skips_of(case, scores)) if looked_through else offset


def with_floor(offset: Offset, case: Case, held_out: Float64 | None = None) -> Offset:
    """The *offset* of a *case* with the floor of the lists that it makes: of what moves queries *held_out* (n, d).

    A local one has a floor where somebody, or the data, vouch for a judge who alone rewarded the task, and nothing
    speaks against its rewards.
    """
    vouched = case.voucher != "nobody" or case.labelled is not None
    if offset.scope != "local" or offset.evidence.against or case.by_sources.any() or not vouched:
        return offset
    if held_out is None and case.terms.start is not None:
        held_out = case.terms.started(case.rewards)
    vocabulary = None if offset.rescorer is None else offset.rescorer.vocabulary
    return replace(offset, floor=floor_of_case(case, held_out, vocabulary))


def _certified(case: Case, evidence: Evidence, scores: Float64) -> Evidence:
    """The *evidence* of an order by *scores* (n, k), with how deep a reranker must see its lists."""
    judged = scores[:, : case.judged.present.shape[1]]  # those that were judged come before their neighbours
    return replace(evidence, lost=lost_by_depth(case, judged)) if case.terms.search is None else evidence


def _rescorer(case: Case, cosines: Float64, voucher: str) -> tuple[Rescorer, Float64]:
    """The rescorer of what searches find, and the scores (n, k) of those that did not learn of the query.

    Candidates are those of `Case.grid`, and their *cosines* (n, k) are to what moves the query, learned without it.
    """
    weighing = Weighing.of(case.widened, case.grid, cosines, case.voices, case.recipe)
    held_out = weighing.held_out(case.fold)
    # The similarity alone, whose weight is free: what words must be better than.
    alone = replace(weighing, features=weighing.features * (np.arange(FEATURES) == COSINE))
    falls = alone.losses(alone.held_out(case.fold)) - weighing.losses(held_out)
    most = float(case.voices.sum())
    fall = Gain.of(falls, case.voices, case.groups, typical=TYPICAL_FALL, most=most)
    depth = case.judged.present.shape[1]  # those that were judged come before their neighbours
    scores = weighing.scores(held_out)
    before, after = cosines[:, :depth], scores[:, :depth]
    changes = judged_ndcg(case.judged, after) - judged_ndcg(case.judged, before)
    change = Gain.measured(changes, case.measured, case.groups, most=float(case.measured.sum()))
    audited = case.audited_orders(before, after)
    title = f"words beside vectors, {case.questions} held-out queries"
    evidence = case.evidence(title, change, vouched=voucher).noted(audited)
    believed = voucher in BELIEVERS or (voucher == "the data" and weighing.leaning(case.judged) <= LEANING)
    if not believed and (voucher == "nobody" or weighing.agreement < AGREEMENT):
        weak = "the judge follows words rather than vectors, and nobody says that it is better than they are"
        evidence = evidence.denied_by(MEANS, weak)
    elif doubt := fall.doubt(believed=believed):
        evidence = evidence.denied_by(FALLS, doubt)
    elif change.above(LEVEL) < 0:
        evidence = evidence.denied_by(FALLS, WORSE)
    elif audited is not None and audited.refutes(AUDIT_LEVEL):
        evidence = evidence.denied_by(AUDITED, AUDITED.answer)
    else:
        proven = "" if believed else f" (p < {LEVEL:g})"
        evidence = evidence.noted(f"their loss falls{proven}")
    return Rescorer(weighing.solved() / weighing.scale, weighing.vocabulary, evidence), scores
