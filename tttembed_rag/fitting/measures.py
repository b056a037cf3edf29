"""nDCG@10 by graded rewards, the one measure of the package: of judged candidates, and of what is served.

Gains are linear: how far each reward, or grade, lies above the least of its query. A query whose rewards do not differ
has no better list and no worse one: it is left out of every mean, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, in_brief
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.rows import Float64

# An application's own search: a query vector (d,) and the query's text, or its id where no text is known, to the ids of
# documents in the order in which they are served.
Search: TypeAlias = Callable[[FloatArray, str], Sequence[str]]

# Places that nDCG@10 looks at.
PLACES = 10
# Ids that a search may give: a list without an end is none.
LONGEST = 10_000


def judged_ndcg(grid: Grid, scores: Float64) -> Float64:
    """(n,) nDCG@10 of the judged candidates in order of *scores*; see `gains_of`."""
    gains = gains_of(grid.rewards, grid.present)
    return ndcg(np.take_along_axis(gains, grid.order(scores), axis=1), dcg(-np.sort(-gains, axis=1)))


def served_ndcg(rewards: Rewards, search: Search, vectors: FloatArray, *, reranked: bool = False) -> Float64:
    """(n,) nDCG@10 of what *search* serves for query *vectors* (n, d), by the rewards of what was judged.

    Gains are those of `gains_of`; a document that was not judged has none. Where lists are *reranked*, the judge
    sorts what *search* gives: a list counts by what is in it, whatever its order. Where one document is good, that is
    recall at the length of the list.

    Raises:
        InputError: *search* gives no list of at most `LONGEST` ids, or none that the rewards know, or raises.
    """
    if reranked not in (True, False):
        raise InputError(f"reranked: expected True or False, got {reranked!r}")
    names = np.where(rewards.query_texts == "", rewards.query_ids, rewards.query_texts)
    measured, known, shown = np.zeros(len(rewards)), False, ""
    for row, (vector, name) in enumerate(zip(vectors, names.tolist(), strict=True)):
        pairs = slice(rewards.starts[row], rewards.starts[row + 1])
        values = gains_of(rewards.values[pairs])
        gain = dict(zip(rewards.doc_ids[rewards.candidates[pairs]].tolist(), values.tolist(), strict=True))
        try:
            answer = search(vector, name)
            is_list = isinstance(answer, Iterable) and not isinstance(answer, str)
            listed = list(islice(answer, LONGEST + 1)) if is_list else [None]
        except Exception as exc:  # the caller's own search: whatever it raises
            raise InputError(f"your search: expected a list of ids of documents, got {in_brief(exc)}") from exc
        if len(listed) > LONGEST or not all(isinstance(document, str) for document in listed):
            got = f"more than {LONGEST}" if len(listed) > LONGEST else f"{answer!r:.80}"
            raise InputError(f"your search: expected a list of ids of documents, got {got}")
        ids = list(dict.fromkeys(listed))  # a document that is shown twice has its first place
        known, shown = known or any(document in gain for document in ids), str(next(iter(ids), shown))
        gains = [gain.get(document, 0.0) for document in ids]
        served, best = sorted(gains, reverse=True) if reranked else gains, sorted(gain.values(), reverse=True)
        measured[row] = ndcg(np.array(served, dtype=np.float64), dcg(np.array(best)))
    if not known:
        raise InputError(f"your search: expected ids such as {str(rewards.doc_ids[0])!r}, got {shown!r} and others")
    return measured


def gains_of(rewards: Float64, among: NDArray[np.bool_] | bool = True) -> Float64:
    """(..., k) how far each of the *rewards* lies above the least of its query; 0 where it is not *among* them."""
    least = np.min(rewards, axis=-1, keepdims=True, where=among, initial=np.inf)
    return np.where(among, rewards - least, 0.0)


def ndcg(served: Float64, ideal: Float64) -> Float64:
    """(...,) nDCG@10 of lists with gains *served* (..., k), where the best have DCG *ideal*; 0 where that is 0."""
    return np.asarray(dcg(served) / np.where(ideal > 0, ideal, 1.0))


def dcg(gains: Float64) -> Float64:
    """(...,) DCG@10 of lists with *gains* (..., k) at their places, the best first."""
    listed = gains[..., :PLACES]
    return np.asarray(listed @ (1.0 / np.log2(np.arange(2, listed.shape[-1] + 2))))


def discounts(grid: Grid, scores: Float64) -> Float64:
    """(n, k) 1 / log2(place + 2) of each candidate in order of *scores*, 0 from place `PLACES` on."""
    order = grid.order(scores)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(order.shape[1])[None], axis=1)
    return np.where(place < PLACES, 1.0 / np.log2(place + 2.0), 0.0)
