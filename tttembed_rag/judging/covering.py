"""Which queries to judge first: those of which the verdicts say most about what is asked, and every fifth by lot.

A local offset is a Gaussian-process regression on judged queries. What it does not know yet of the offset at a query x
is the posterior variance C(x, x), and a verdict at z lowers it by C(x, z)^2 / (C(z, z) + kappa). The query with the
largest sum of these over all queries, each weighing how often it was asked, is judged next, and C follows.

The rule looks at vectors and counts, and at no score. What it chose lies apart, and a held-out query farther from its
neighbours than one that nobody judged: evidence on it errs on the safe side. Rules that look for uncertain scores,
disagreement or easy queries made evidence too good by up to .18 nats, and found less.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.offsets.kernel import bandwidth_of, kernel_of
from tttembed_rag.rewards.observations import Served
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.checks import unit as unit_rows
from tttembed_rag.vectors.rows import Float64

# Queries among which is chosen, and as many judged ones that are looked at: more cost seconds.
MOST_COMPARED = 600
# Every so many, one is drawn by lot.
_LANE = 5
# Noise of a verdict in units of the prior variance, as of a fit.
_KAPPA = 1.0


def covering(
    unit: FloatArray,
    tasks: Sequence[str],
    counts: Sequence[float],
    lots: Sequence[bytes],
    count: int,
    *,
    judged: NDArray[np.bool_] | None = None,
) -> list[int]:
    """Rows of the *count* queries to judge next, in order, of n unit query vectors (n, d).

    A verdict says nothing of another task, *counts* is how often each query was served, > 0, and those that were
    *judged* are not chosen again. The *lots* are digests by which every fifth query is drawn, least first: of a keyed
    hash, so that who asks cannot choose to be drawn.
    """
    judged = np.zeros(len(unit), dtype=np.bool_) if judged is None else judged
    open_rows, known = np.flatnonzero(~judged), np.flatnonzero(judged)
    prior = _prior(np.asarray(unit, dtype=np.float64), np.asarray(tasks))
    covariance = prior[np.ix_(open_rows, open_rows)]
    if len(known):
        across = prior[np.ix_(known, open_rows)]
        noisy = prior[np.ix_(known, known)] + _KAPPA * np.eye(len(known))
        covariance = covariance - across.T @ np.linalg.solve(noisy, across)
    weights = np.asarray(counts, dtype=np.float64)[open_rows]
    by_lot = sorted(range(len(open_rows)), key=[lots[row] for row in open_rows.tolist()].__getitem__)
    return [int(open_rows[place]) for place in _greedy(covariance, weights, by_lot, count)]


def in_covering_order(observations: Sequence[Served], vectors: FloatArray, *, key: bytes = b"") -> list[Served]:
    """*observations*, with the *vectors* (n, d) of their queries, of any norm, in the order in which to judge them.

    Those of one text and task stand beside each other. Of more than `MOST_COMPARED` texts those that were asked most
    are put in order, and the others follow by lot, drawn by a hash with that *key*.
    """
    texts = Counter((served.task, served.query) for served in observations)
    first = {(served.task, served.query): row for row, served in reversed(list(enumerate(observations)))}
    lots = {
        text: hashlib.blake2b("\0".join(text).encode("utf-8", "surrogatepass"), key=key, digest_size=16).digest()
        for text in texts
    }
    by_lot = sorted(texts, key=lots.__getitem__)
    most = sorted(by_lot, key=lambda text: -texts[text])[:MOST_COMPARED]
    chosen = covering(
        unit_rows(vectors[[first[text] for text in most]]),
        [task for task, _ in most],
        [texts[text] for text in most],
        [lots[text] for text in most],
        len(most),
    )
    order = dict.fromkeys([most[row] for row in chosen] + by_lot)
    place = {text: at for at, text in enumerate(order)}
    return sorted(observations, key=lambda served: place[served.task, served.query])


def _prior(unit: Float64, tasks: NDArray[np.str_]) -> Float64:
    """(n, n) prior covariance: the kernel of a fit within each task, 0 between tasks."""
    prior = np.zeros((len(unit), len(unit)))
    for task in np.unique(tasks):
        rows = np.flatnonzero(tasks == task)
        bandwidth = bandwidth_of(unit[rows], np.ones(len(rows)))
        prior[np.ix_(rows, rows)] = kernel_of(unit[rows], unit[rows], bandwidth)
    return prior


def _greedy(prior: Float64, weights: Float64, by_lot: Sequence[int], count: int) -> list[int]:
    """Places of *count* queries, each chosen when those before it are known.

    What these tell is subtracted as C = prior - U U', one column of U for each.
    """
    count = min(count, len(weights))
    factor = np.zeros((len(weights), count))
    variance = prior.diagonal().copy()
    squares = weights @ prior**2  # (n,) sum_i w_i C_ij^2 for each j
    chosen: list[int] = []
    is_open = np.ones(len(weights), dtype=np.bool_)
    drawn = iter(by_lot)
    for turn in range(count):
        if turn % _LANE == _LANE - 1:
            place = next(row for row in drawn if is_open[row])
        else:
            place = int(np.argmax(np.where(is_open, squares / (variance + _KAPPA), -1.0)))
        chosen.append(place)
        is_open[place] = False
        before = factor[:, :turn]
        column = prior[:, place] - before @ before[place]
        noisy = column[place] + _KAPPA
        weighted = weights * column
        across = prior @ weighted - before @ (before.T @ weighted)
        squares += column / noisy * (column / noisy * (weighted @ column) - 2.0 * across)
        factor[:, turn] = column / np.sqrt(noisy)
        variance -= factor[:, turn] ** 2
    return chosen
