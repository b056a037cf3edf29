"""How deep a reranker must look at a list under an offset, and at which lists not at all, by what kept verdicts say.

What is paid for today is the judged list in the judge's order. Against it stands the same list in the order of the
offset, or of the rescorer, whose first places alone are reranked. What orders a query was learned without it.

Documents that were never judged for a query are left out of both lists. Where an offset brings in documents, a reranker
finds good ones among them, which are not counted as gain here; and it finds bad ones, which took places among the first
and are not counted as loss. On development the first is more (`benchmarks/depth.py`). To guess their rewards was tried,
and broke the certificate: rewards that were judged at the end of other lists are too good a guess.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting.measures import dcg
from tttembed_rag.fitting.voices import best_pairs
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import CERTIFIED_LEVEL, DEEPEST, FEWEST_CERTIFIED, MOST_LOST, TYPICAL_LOST
from tttembed_rag.offsets.rerankskips import SHARES, Skips, digest_of
from tttembed_rag.vectors.rows import Float64

# Least discounted gain that is divided by, and minus the score of a candidate that is not there.
_LEAST, _NOWHERE = 1e-12, 1e6
# By so much less than rewards count scores.
_TIES = 1e9


def lost_by_depth(case: Case, scores: Float64) -> tuple[float, ...]:
    """By depth from 1 on, how much nDCG@10 of the judge is lost at most where no more than so much is reranked.

    Each is an upper bound of the mean loss at one-sided level `CERTIFIED_LEVEL`, and no less than those of the depths
    below it in the list: whoever takes the first that is small enough has tested them from the deepest on, in a fixed
    sequence (Angelopoulos et al. 2021), and needs no correction for having tested several. Where trusted labels say
    that more is lost than the judge does, it is what they say. There are as many bounds as the median query has judged
    candidates, at most `DEEPEST`; none where rewards never differ, or where there are fewer than two questions.

    The list is sorted by *scores* (n, k) of the judged candidates, learned without the query.
    """
    listed, place = _listed(case, scores), np.argsort(case.judged.order(scores), axis=1)
    if not listed.any():
        return ()
    paid = paid_for(listed, case.voices)
    depths = range(1, min(int(np.median(case.rewards.depths)), DEEPEST) + 1)
    bounds = [_bound(case, scores, lost_by(listed, depth, *paid), place < depth) for depth in depths]
    return tuple(np.maximum.accumulate(bounds[::-1])[::-1].tolist()) if np.isfinite(bounds).all() else ()


def skips_of(case: Case, scores: Float64) -> Skips | None:
    """What is lost where lists are served as they are whose first candidate leads the second by so much.

    The lists with the largest lead are looked at first, then more and more of them: a fixed sequence again, so that
    whoever takes as many as lose little enough needs no correction. Where trusted labels say that more is lost than
    the judge does, it is what they say. It is None below `FEWEST_CERTIFIED` questions, and where no list can be served
    so. Lists are sorted by *scores* (n, k) of judged candidates and their neighbours, learned without the query.
    """
    if case.questions < FEWEST_CERTIFIED or scores.shape[1] < 2:
        return None
    judged = scores[:, : case.judged.present.shape[1]]
    listed = _listed(case, judged)
    lost = lost_by(listed, 1, *paid_for(listed, case.voices))
    best = -np.sort(np.where(case.grid.present, -scores, _NOWHERE), axis=1)[:, :2]
    lead = best[:, 0] - best[:, 1]
    leads = np.sort(lead)[::-1][np.arange(1, SHARES + 1) * len(lead) // SHARES - 1]
    reranked = [lead < least for least in leads]
    bounds = [_bound(case, judged, np.where(rows, 0.0, lost), rows[:, None]) for rows in reranked]
    bounds = np.maximum.accumulate(bounds).tolist()
    kept = sum(bound <= MOST_LOST for bound in bounds)
    depth = int(np.median(case.rewards.depths))
    texts = case.rewards.doc_texts[case.rewards.candidates[best_pairs(case.rewards)]]
    digests = tuple(sorted({digest_of(text) for text in texts if text}))
    return Skips(tuple(leads[:kept].tolist()), tuple(bounds[:kept]), depth, digests) if kept else None


def paid_for(listed: Float64, voices: Float64) -> tuple[Float64, Float64]:
    """(n,) DCG@10 of lists that are reranked whole, and (n,) what a loss of it is divided by.

    A query of which all that was judged is bad weighs less: there is little to lose. Lists are *listed* gains (n, k) of
    the candidates in their order, 0 for the worst.
    """
    paid = dcg(-np.sort(-listed, axis=1))
    typical = float(voices @ paid / voices.sum())
    return paid, np.maximum(paid, max(typical, _LEAST))


def lost_by(listed: Float64, depth: int, paid: Float64, divided_by: Float64) -> Float64:
    """(n,) nDCG@10 that lists lose where their first *depth* >= 1 are reranked and not all; see `paid_for`."""
    reranked = np.concatenate([-np.sort(-listed[:, :depth], axis=1), listed[:, depth:]], axis=1)
    return np.asarray((paid - dcg(reranked)) / divided_by)


def _listed(case: Case, scores: Float64) -> Float64:
    """(n, k) gains of the judged candidates in the order of *scores* (n, k)."""
    grid = case.judged
    gains = np.where(grid.present, grid.rewards - case.rewards.values.min(), 0.0)
    return np.asarray(np.take_along_axis(gains, grid.order(scores), axis=1))


def _bound(case: Case, scores: Float64, lost: Float64, reranked: NDArray[np.bool_]) -> float:
    """The upper bound of the mean of *lost* (n,), or what trusted labels say where they say that more is lost.

    The first candidates of some lists in the order of *scores* (n, k) are *reranked* (n, k), and not all.
    """
    mean = Gain.of(lost, case.voices, case.groups, typical=TYPICAL_LOST, most=float(case.voices.sum()))
    by_scores = scores / (_TIES * max(float(np.abs(scores).max()), _LEAST))  # which decide where rewards are equal
    by_judge = 1.0 + case.judged.rewards + by_scores
    audited = case.audited_orders(by_judge, np.where(reranked, by_judge, by_scores))
    by_labels = -audited.unit * audited.corrected if audited is not None and audited.decides else -np.inf
    return max(mean.above(CERTIFIED_LEVEL), by_labels)
