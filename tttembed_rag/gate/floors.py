"""How likely candidates are relevant, learned from judged lists; and below which likelihood a list holds no answer.

A logistic regression on what is known of a candidate, with a ridge around weights that fit every collection nearly as
well as its own: verdicts say what a number means, and move the weights where they are many. What is certified is the
best candidate of each list, by a regression, an offset and a centre that did not see its question.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.thresholds import FLOOR_ALIKE, FLOOR_PRIOR, FLOOR_RIDGE, FOLDS
from tttembed_rag.offsets.codes import COMPARE
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.floor import CONFIDENCE, FEWEST, LIST, Floor, knowledge
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.offsets.rescorer import FEATURES, Rescorer, Vocabulary, checked_cosines
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.vectors.checks import FloatArray, IntArray, as_floats, checked_norms, unit
from tttembed_rag.vectors.copies import TYPICAL, near_copies
from tttembed_rag.vectors.rows import Float64, UnitRows

# The reward from which on a candidate is an answer.
ANSWER = 0.5
# Least deviation of what is known: words that nobody counted weigh nothing.
_LEAST = 1e-6
# Where the search for weights begins, and what they are without verdicts.
_START = np.array([0.0, *FLOOR_PRIOR, FLOOR_ALIKE])
# Questions whose lists are made at a time.
_BLOCK = 64
# Questions that a floor is learned from, about; and cuts that it keeps at most.
_QUESTIONS, _MOST = 1000, 100


def floor_of_case(case: Case, offsets: Float64 | None, known: Vocabulary | None) -> Floor:
    """The floor of lists that *offsets* (n, d), learned without the question, make, and of words that are *known*.

    Lists are those of a search over all judged documents, as an offset brings in what was not judged for a question;
    whether that is an answer is not known. A trusted label counts in place of the reward of the judge.
    """
    rewards, grid = case.rewards, case.judged
    judged = (
        grid.rewards if case.labelled is None else np.where(np.isnan(case.labelled[0]), grid.rewards, case.labelled[0])
    )
    some = np.arange(len(rewards))[:: 1 + len(rewards) // _QUESTIONS]
    used = np.unique(rewards.candidates)
    documents, texts = rewards.documents.rows(used), rewards.doc_texts[used]
    place = np.zeros(len(rewards.doc_texts), dtype=np.intp)
    place[used] = np.arange(len(used))
    own = rewards.queries.rows(some).unit
    moved = np.asarray(own if offsets is None else unit(own + offsets[some]), dtype=np.float64)
    lists, answers, answered = [], [], []
    blocks = (documents.times(moved[start : start + _BLOCK]) for start in range(0, len(moved), _BLOCK))
    for row, cosines in zip(some.tolist(), chain.from_iterable(blocks), strict=True):
        first = np.argsort(-cosines, kind="stable")[:LIST]
        answer = np.full(len(cosines), np.nan)
        present = grid.present[row]
        answer[place[grid.slots[row, present]]] = judged[row, present] >= ANSWER
        lists.append((rewards.query_texts[row], texts[first].tolist(), cosines[first]))
        answers.append(answer[first])
        answered.append(bool((answer == 1.0).any()))
    return floor_of(own, lists, case.fold[some], case.groups[some], known, (answers, answered), case.voices[some])


def first_floor(
    query_vectors: ArrayLike,
    lists: Sequence[tuple[str, Sequence[str], ArrayLike]],
    *,
    task: str = DEFAULT_TASK,
    embedder: str = "",
) -> Offsets:
    """Offsets that move nothing, with a floor for a *task* that nobody judged yet: of its own requests alone.

    At most 5 % of own requests are refused, whether they have an answer or not, and most of those that other
    applications would ask. `Offsets.relevance` sorts lists then, and is no probability.

    Args:
        query_vectors: (n, d) base vectors of own requests, 45 at least for a first cut.
        lists: Of each its text, and the texts and cosine similarities of what the search found for it.
        task: The task.
        embedder: Fingerprint of the embedding model.

    Raises:
        InputError: There is not one list per request, or one is none.
        VectorError: A vector is NaN, infinite or zero.
    """
    vectors = as_floats("query_vectors", query_vectors)
    queries = UnitRows(vectors, checked_norms("query_vectors", vectors))
    if vectors.ndim != 2 or len(vectors) != len(lists) or not len(lists):
        raise InputError(f"lists: expected one per request, and one request at least, got {len(lists)}")
    first = []
    for query, texts, scores in lists:
        cosines = checked_cosines(query, texts, scores)
        order = np.argsort(-cosines, kind="stable")[:LIST]
        first.append((query, [texts[place] for place in order], cosines[order]))
    known = Vocabulary.of({text for _, texts, _ in first for text in texts})
    middle = queries.unit.mean(axis=0)
    groups = near_copies(queries, (1.0 - float(middle @ middle)) / TYPICAL)
    floor = floor_of(queries.unit, first, groups % FOLDS, groups, known)
    evidence = Evidence(floor.n, None, None, "abstained", "nobody judged yet", code=COMPARE.code)
    rescorer = Rescorer(np.eye(1, FEATURES)[0], known, evidence)
    zero = np.zeros(vectors.shape[1], vectors.dtype)
    offset = Offset("local", zero, 0.0, floor.n, evidence, task=task, rescorer=rescorer, floor=floor)
    return Offsets([offset], width=len(zero), settings={"embedder": embedder} if embedder else {})


def floor_of(
    queries: FloatArray,
    lists: Sequence[tuple[str, Sequence[str], Float64]],
    fold: IntArray,
    groups: IntArray,
    known: Vocabulary | None = None,
    answers: tuple[Sequence[Float64], Sequence[bool]] | None = None,
    voices: Float64 | None = None,
) -> Floor:
    """The floor of own requests.

    Args:
        queries: (n, d) unit base vectors.
        lists: Of each query its text, and texts and cosines of what was found for it.
        fold: (n,) fold of each: what is said of a query is learned from the other folds.
        groups: (n,) which queries are one observation.
        known: The words of what was found; None counts no words.
        answers: Whether what was found is an answer, 1 or 0, and not a number where it was not judged; and which
            queries have one: where fewer than `FEWEST` have, or nobody judged, every query counts as one that has.
        voices: (n,) weights of queries; None weighs all alike.
    """
    units = np.asarray(queries, dtype=np.float64)
    folds = [fold == number for number in np.unique(fold)]
    alike = np.zeros(len(units))
    for held in folds:
        alike[held] = units[held] @ units[~held if len(folds) > 1 else held].mean(axis=0)
    typical = float(alike.mean())
    each = [
        knowledge(known, query, texts, cosines, min(own - typical, 0.0))
        for (query, texts, cosines), own in zip(lists, alike.tolist(), strict=True)
    ]
    row = np.repeat(np.arange(len(each)), [len(features) for features in each])
    features = np.concatenate(each)
    centred = features.mean(axis=0)
    scale = np.maximum(np.append(features[:, :-1].std(axis=0), alike.std()), _LEAST)
    scaled = (features - centred) / scale
    if answers is None:
        theta = _START
        best = _best(scaled, row, np.tile(theta, (len(row), 1)))
        answered = np.zeros(len(each), dtype=np.bool_)
    else:
        relevant = np.concatenate(answers[0])
        right = relevant == 1.0
        weights = ~np.isnan(relevant) * (1.0 if voices is None else voices[row])
        theta = _solved(scaled, right, weights)
        held_out = np.empty((len(row), len(theta)))
        for held in folds:
            held_out[held[row]] = _solved(scaled, right, weights * ~held[row])
        best = _best(scaled, row, held_out)
        answered = np.array(answers[1])
    if not (enough := len(np.unique(groups[answered])) >= FEWEST):
        answered = np.ones(len(each), dtype=np.bool_)
    n = len(np.unique(groups[answered]))
    lowest = _lowest(best[answered], groups[answered])
    first = np.array([cosines.max(initial=-1.0) for _, _, cosines in lists])
    worth = float(first.std() / scale[-1]) if scale[-1] > _LEAST else 0.0
    cosines = _lowest((first + worth * np.minimum(alike - typical, 0.0))[answered], groups[answered])
    from scipy.special import betaincinv

    bounds = [float(betaincinv(refused + 1, n - refused, CONFIDENCE)) for refused in range(len(lowest))]
    weight = np.where(scale > _LEAST, theta[1:] / scale, 0.0)
    intercept = float(theta[0] - weight @ centred)
    centre = units.mean(axis=0, keepdims=True).astype(queries.dtype)
    learned = (intercept, *weight.tolist())
    return Floor(learned, centre, typical, n, lowest, worth, cosines, tuple(bounds), enough)


def _lowest(scores: Float64, groups: IntArray) -> tuple[float, ...]:
    """The lowest of the *scores* (n,), rising; of each group its least."""
    least = np.full(int(groups.max(initial=0)) + 1, np.inf)
    np.minimum.at(least, groups, scores)
    return tuple(np.sort(least[np.isfinite(least)])[:_MOST].tolist())


def _best(features: Float64, row: IntArray, theta: Float64) -> Float64:
    """(n,) the likelihood of the best candidate of each list; (N, 4) *features* of *row* (N,) by *theta* (N, 5)."""
    best = np.zeros(int(row.max()) + 1)
    np.maximum.at(best, row, 1.0 / (1.0 + np.exp(-(theta[:, 0] + np.vecdot(features, theta[:, 1:])))))
    return best


def _solved(features: Float64, right: NDArray[np.bool_], weights: Float64) -> Float64:
    """(5,) intercept and weights by which *features* (N, 4) say what is *right* (N,)."""
    from scipy.optimize import minimize

    def objective(theta: Float64) -> tuple[float, Float64]:
        log_odds, away = theta[0] + features @ theta[1:], theta[1:] - _START[1:]
        pull = weights * (1.0 / (1.0 + np.exp(-log_odds)) - right)
        value = float(weights @ (np.logaddexp(0.0, log_odds) - right * log_odds) + FLOOR_RIDGE / 2 * away @ away)
        return value, np.append(pull.sum(), features.T @ pull + FLOOR_RIDGE * away)

    bounds = [(None, None), *((0.0, None) for _ in FLOOR_PRIOR), (FLOOR_ALIKE, FLOOR_ALIKE)]
    return np.asarray(minimize(objective, _START, jac=True, method="L-BFGS-B", bounds=bounds).x)
