"""How deep a reranker must look at a list under an offset, by what kept verdicts say that it costs to look less deep.

What is paid for today is the judged list in the judge's order. Against it stands the same list in the order of the
offset, whose first places alone are reranked. The offset that orders a query was learned without it.

Documents that were never judged for a query are left out of both lists. Where an offset brings in documents, a reranker
finds good ones among them, which are not counted as gain here; and it finds bad ones, which took places among the first
and are not counted as loss. On development the first is more (`benchmarks/depth.py`). To guess their rewards was tried,
and broke the certificate: rewards that were judged at the end of other lists are too good a guess.
"""

from __future__ import annotations

import numpy as np

from tttembed_rag.fitting.measures import dcg
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import CERTIFIED_LEVEL, DEEPEST, TYPICAL_LOST
from tttembed_rag.vectors.rows import Float64


def lost_by_depth(case: Case, offsets: Float64) -> tuple[float, ...]:
    """By depth from 1 on, how much nDCG@10 of the judge is lost at most where no more than so much is reranked.

    Each is an upper bound of the mean loss at one-sided level `CERTIFIED_LEVEL`, and no less than those of the depths
    below it in the list: whoever takes the first that is small enough has tested them from the deepest on, in a fixed
    sequence (Angelopoulos et al. 2021), and needs no correction for having tested several.

    Args:
        case: n rewarded queries.

        offsets: (n, d) what moves each query, learned without it.

    Returns:
        As many bounds as the median query has judged candidates, at most `DEEPEST`; none where rewards never differ, or
        where there are fewer than two questions.
    """
    grid, scores = case.judged, case.judged_under(offsets)
    gains = np.where(grid.present, grid.rewards - case.rewards.values.min(), 0.0)
    paid = dcg(-np.sort(-gains, axis=1))
    typical = float(case.voices @ paid / case.voices.sum())
    if typical <= 0.0:
        return ()
    listed = np.take_along_axis(gains, grid.order(scores), axis=1)
    bounds = list[float]()
    for depth in range(1, min(int(np.median(case.rewards.depths)), DEEPEST) + 1):
        reranked = np.concatenate([-np.sort(-listed[:, :depth], axis=1), listed[:, depth:]], axis=1)
        # A query of which all that was judged is bad weighs less: there is little to lose.
        lost = (paid - dcg(reranked)) / np.maximum(paid, typical)
        mean = Gain.of(lost, case.voices, case.groups, typical=TYPICAL_LOST, most=float(case.voices.sum()))
        bounds.append(mean.above(CERTIFIED_LEVEL))
    return tuple(np.maximum.accumulate(bounds[::-1])[::-1].tolist()) if np.isfinite(bounds).all() else ()
