"""Other ways to use the same rewards, each as its authors publish it: query vectors in, query vectors out.

A rival is given a collection, the rows of its rewarded queries and their rewards (one task, in that order), and
returns the query vectors (M, d) it would search with; those it leaves alone are the base vectors. Vectors of
documents and queries are compared as unit vectors, as the search does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from benchmarks.paper.dart import ORDERED, dart
from tttembed_rag import Rewards
from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.objectives import log_softmax, softmax
from tttembed_rag.fitting.optima import scope_weights
from tttembed_rag.vectors.checks import FloatArray, IntArray, unit
from tttembed_rag.vectors.rows import Float64

Rival: TypeAlias = Callable[[Collection, IntArray, Rewards], FloatArray]

# Queries in a batch, which holds the vectors of all their candidates.
_BATCH = 256
# Judged examples that Qdrant's client advises to send, best first.
_EXAMPLES = 5
# Weights c / a and powers b that are tried for Qdrant's formula; (0, any) is the raw search.
_FEEDBACK_WEIGHTS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
_FEEDBACK_POWERS = (0.43, 1.0, 2.0)
# The paper's temperatures.
_TEACHER_TEMPERATURE = 0.02
_STUDENT_TEMPERATURE = 0.05
# A reward that is higher than the mean by less is as high.
_TIES = 1e-9


def average_prf(collection: Collection, _: IntArray, __: Rewards, *, first: int = 3) -> FloatArray:
    """Average vector PRF: the mean of a query and its first 3 documents; no judge, every query.

    Li et al. 2021, "Pseudo-relevance feedback with deep language models and dense retrievers"; depth 3 is Pyserini's.
    """
    mean = _means(unit(collection.doc_vectors), collection.base[:, :first])
    return (unit(collection.query_vectors) + first * mean) / (first + 1)


def rocchio_prf(
    collection: Collection, _: IntArray, __: Rewards, *, alpha: float = 0.4, beta: float = 0.6, first: int = 5
) -> FloatArray:
    """Rocchio vector PRF: .4 query + .6 mean of its first 5 documents (Pyserini's example); no judge, every query."""
    mean = _means(unit(collection.doc_vectors), collection.base[:, :first])
    return alpha * unit(collection.query_vectors) + beta * mean


def judged_rocchio(
    collection: Collection, rows: IntArray, rewards: Rewards, *, alpha: float = 0.4, beta: float = 0.6, first: int = 5
) -> FloatArray:
    """The same with the judge's first 5 documents instead of the retriever's: rewarded queries alone."""
    moved = collection.query_vectors.copy()
    for batch, grid, documents in _batches(rewards):
        best = np.argsort(np.where(grid.present, -grid.rewards, np.inf), axis=1, kind="stable")[:, :first]
        chosen = np.take_along_axis(grid.present, best, 1)[:, :, None]
        picked = np.take_along_axis(documents, best[:, :, None], 1) * chosen
        mean = picked.sum(axis=1) / chosen.sum(axis=1)
        moved[rows[batch]] = alpha * unit(rewards.query_vectors[batch]) + beta * mean
    return moved


def feedback_query(
    collection: Collection,
    rows: IntArray,
    rewards: Rewards,
    *,
    weights: Sequence[float] = _FEEDBACK_WEIGHTS,
    powers: Sequence[float] = _FEEDBACK_POWERS,
) -> FloatArray:
    """Qdrant's relevance feedback (1.17, `naive`) folded into one query vector: rewarded queries alone.

    Its score, a x·z + c sum over pairs of (r_p - r_n)^b (p·z - n·z), is linear in z, so one plain search with
    a x + c sum (r_p - r_n)^b (p - n) gives the same list. Pairs are the ordered ones of the 5 best judged
    examples; b and c / a are fitted per task, as Qdrant advises, on the reward-weighted nDCG of the other
    judged candidates (of all where no others are); 0.43 and 1 are values of its examples.
    """
    moved = collection.query_vectors.copy()
    settings = [(c, b) for b in powers for c in weights]
    gained = np.zeros(len(settings))
    pulls = []
    for batch, grid, documents in _batches(rewards):
        order = np.argsort(np.where(grid.present, -grid.rewards, np.inf), axis=1, kind="stable")[:, :_EXAMPLES]
        present = np.take_along_axis(grid.present, order, 1)
        scores = np.where(present, np.take_along_axis(grid.rewards, order, 1), np.nan)
        examples = np.take_along_axis(documents, order[:, :, None], 1)
        confidence = np.nan_to_num(np.maximum(scores[:, :, None] - scores[:, None, :], 0.0))
        pull = []
        for b in powers:
            pairs = np.where(confidence > 0, confidence**b, 0.0)
            pull.append(np.vecmat(pairs.sum(2) - pairs.sum(1), examples))
        pulls.append((batch, pull))
        others = grid.present.copy()
        np.put_along_axis(others, order, False, 1)
        others[others.sum(axis=1) < 2] = grid.present[others.sum(axis=1) < 2]
        for i, (c, b) in enumerate(settings):
            similar = grid.base + c * np.matvec(documents, pull[powers.index(b)])
            gained[i] += reward_ndcg(similar, grid.rewards, others).sum()
    c, b = settings[int(np.argmax(gained))]
    for batch, pull in pulls:
        moved[rows[batch]] = unit(rewards.query_vectors[batch]) + c * pull[powers.index(b)]
    return moved


def refit(
    collection: Collection, rows: IntArray, rewards: Rewards, *, rate: float = 0.005, steps: int = 100
) -> FloatArray:
    """ReFIT (Reddy et al. 2023): the query vector distilled from its own rewards, min-max scaled, T = 2.

    Adam, rate .005, 100 steps, as IBM's task-aware-embedding-refinement runs it (`--refit`).
    """
    return _refined(collection, rows, rewards, rate, steps, scaled=True)


def refined(
    collection: Collection, rows: IntArray, rewards: Rewards, *, rate: float = 1e-4, steps: int = 100
) -> FloatArray:
    """IBM's task-aware embedding refinement (2026): KL(softmax r || softmax cosine), T = 1, Adam, 1e-4, 100 steps."""
    return _refined(collection, rows, rewards, rate, steps, scaled=False)


def mean_difference(collection: Collection, _: IntArray, rewards: Rewards) -> FloatArray:
    """The mean of (better minus worse than the query's mean reward) over the rewarded queries, added to all."""
    shift, counted = np.zeros(rewards.width), 0
    for _batch, grid, documents in _batches(rewards):
        mean = grid.rewards.sum(axis=1) / grid.present.sum(axis=1)
        better, worse = (grid.present & part for part in (grid.rewards > mean[:, None], grid.rewards <= mean[:, None]))
        two_sided = better.any(axis=1) & worse.any(axis=1)
        sides = [np.vecmat((side / np.maximum(side.sum(1), 1)[:, None]), documents) for side in (better, worse)]
        shift += (sides[0] - sides[1])[two_sided].sum(axis=0)
        counted += int(two_sided.sum())
    return unit(collection.query_vectors) + (shift / max(1, counted)).astype(collection.query_vectors.dtype)


def linear_adapter(collection: Collection, _: IntArray, rewards: Rewards) -> FloatArray:
    """A linear query adapter, x W', on the same rewards with our objective and ridge (see `adapter`)."""
    return unit(collection.query_vectors) @ adapter(rewards).T.astype(collection.query_vectors.dtype)


def adapter(rewards: Rewards, *, ridge: float = 0.3, iterations: int = 100) -> Float64:
    """W (d, d) that minimises sum w_q KL(pT || softmax(unit(W x)·z / .05)) + ridge ||W - I||^2, by L-BFGS.

    The same teacher (temperature .02) and weights as an offset has; a matrix in place of a vector.

    Args:
        rewards: Rewards to learn from.
        ridge: Weight of the squared distance from the identity.
        iterations: Iterations at most.
    """
    from scipy.optimize import minimize

    width = rewards.width
    weights, x = scope_weights(rewards), unit(rewards.query_vectors.astype(np.float64))
    parts = [(batch, grid, documents, _teacher(grid)) for batch, grid, documents in _batches(rewards)]

    def objective(flat: Float64) -> tuple[float, Float64]:
        change = flat.reshape(width, width)
        value, gradient = ridge * float(flat @ flat), 2.0 * ridge * change
        for batch, grid, documents, teacher in parts:
            moved = x[batch] + x[batch] @ change.T
            length = np.linalg.norm(moved, axis=1, keepdims=True)
            u = moved / length
            logits = np.where(grid.present, np.matvec(documents, u) / _STUDENT_TEMPERATURE, -np.inf)
            log_student = log_softmax(logits)
            student = np.exp(log_student)
            positive = teacher > 0
            surplus = np.log(teacher, where=positive, out=np.zeros_like(teacher)) - np.where(positive, log_student, 0.0)
            value += float(weights[batch] @ (teacher * surplus).sum(axis=1))
            of_u = np.vecmat((student - teacher) / _STUDENT_TEMPERATURE * weights[batch][:, None], documents)
            gradient = gradient + ((of_u - u * np.vecdot(of_u, u)[:, None]) / length).T @ x[batch]
        return value, gradient.ravel()

    minimum = minimize(objective, np.zeros(width * width), jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return np.eye(width) + np.asarray(minimum.x, dtype=np.float64).reshape(width, width)


def least_change_adapter(collection: Collection, _: IntArray, rewards: Rewards, *, margin: float = 0.05) -> FloatArray:
    """The query adapter of RAGLite (1.1, `update_query_adapter`, for cosine): an orthogonal map, x W'.

    The target of a judged query is the nearest vector to it that scores each relevant document at least 1 + *margin*
    times as high as each irrelevant one. The map is the rotation that takes judged queries closest to their targets
    (orthogonal Procrustes); directions that no judged query has pass as they are. Relevant is what is better than the
    query's mean reward.
    """
    x, targets = unit(rewards.query_vectors.astype(np.float64)), list[Float64]()
    learned = list[int]()
    for batch, grid, documents in _batches(rewards):
        mean = grid.rewards.sum(axis=1) / grid.present.sum(axis=1)
        for at, row in enumerate(batch.tolist()):
            better = grid.rewards[at] > mean[at] + _TIES
            relevant, irrelevant = (documents[at][grid.present[at] & side] for side in (better, ~better))
            if len(relevant) and len(irrelevant):
                targets.append(least_change(x[row], relevant, irrelevant, margin))
                learned.append(row)
    if not learned:
        return collection.query_vectors.copy()
    queries, wanted = x[learned], unit(np.array(targets))
    spanned = np.linalg.pinv(queries) @ queries
    turn = wanted.T @ queries / len(queries) + np.eye(rewards.width) - spanned
    left, _, right = np.linalg.svd(turn)
    turned: FloatArray = unit(collection.query_vectors) @ (left @ right).T.astype(collection.query_vectors.dtype)
    return turned


def least_change(x: Float64, relevant: Float64, irrelevant: Float64, margin: float) -> Float64:
    """The vector (d,) nearest to *x* that scores each relevant document 1 + *margin* times each irrelevant one."""
    from scipy.optimize import nnls

    apart = (relevant[:, None] - (1.0 + margin) * irrelevant[None]).reshape(-1, len(x))
    # Under apart t >= 0 the least change is apart' m, by the dual over multipliers m >= 0.
    return np.asarray(x + apart.T @ nnls(apart.T, -x)[0])


@dataclass(frozen=True, slots=True)
class Entrant:
    """A rival as a table names it.

    Attributes:
        move: The query vectors it searches with.
        everyone: Whether it moves unjudged queries too.
        searches: Searches per query it needs.
        reorders: Whether it orders the first hundred documents again instead of searching with its vectors.
    """

    move: Rival
    everyone: bool
    searches: str
    reorders: bool = False

    def measure(self, collection: Collection, rows: IntArray, rewards: Rewards) -> Float64:
        """nDCG@10 (M,) of the queries of *collection*, of which *rows* have *rewards*."""
        moved = self.move(collection, rows, rewards)
        everyone = np.arange(len(collection.raw))
        if not self.reorders:
            return collection.measure(moved, everyone if self.everyone else rows)
        listed = collection.base[:, :ORDERED]
        similar = np.einsum("qd,qkd->qk", unit(moved), unit(collection.doc_vectors)[listed], optimize=True)
        order = np.argsort(-similar, axis=1, kind="stable")
        return collection.graded(everyone, np.take_along_axis(listed, order, 1))


RIVALS: Mapping[str, Entrant] = {
    "average PRF": Entrant(average_prf, everyone=True, searches="2"),
    "Rocchio PRF": Entrant(rocchio_prf, everyone=True, searches="2"),
    "DART": Entrant(dart, everyone=True, searches="1", reorders=True),
    "judged Rocchio": Entrant(judged_rocchio, everyone=False, searches="2 if judged"),
    "Qdrant feedback": Entrant(feedback_query, everyone=False, searches="2 if judged"),
    "ReFIT": Entrant(refit, everyone=False, searches="2 if judged"),
    "IBM refinement": Entrant(refined, everyone=False, searches="2 if judged"),
    "mean difference": Entrant(mean_difference, everyone=True, searches="1"),
    "linear adapter": Entrant(linear_adapter, everyone=True, searches="1"),
    "RAGLite adapter": Entrant(least_change_adapter, everyone=True, searches="1"),
}


def _means(documents: FloatArray, rows: IntArray) -> FloatArray:
    """Means (m, d) of the rows (m, k) of *documents*, one column of rows at a time."""
    total = np.zeros((len(rows), documents.shape[1]), documents.dtype)
    for column in rows.T:
        total += documents[column]
    return np.asarray(total / rows.shape[1])


def _batches(rewards: Rewards) -> Iterator[tuple[IntArray, Grid, Float64]]:
    """The queries in batches: their rows, their candidates, and the candidates' unit vectors (b, k, d)."""
    grid = Grid.of(rewards)
    unit_documents: Float64 = unit(rewards.doc_vectors.astype(np.float64)).astype(np.float64, copy=False)
    for first in range(0, len(rewards), _BATCH):
        rows: IntArray = np.arange(first, min(first + _BATCH, len(rewards)))
        part = grid.take(rows)
        yield rows, part, unit_documents[part.slots]


def _teacher(grid: Grid) -> Float64:
    """The teacher's probabilities (b, k) of an offset at the paper's temperature."""
    return softmax(np.where(grid.present, grid.rewards / _TEACHER_TEMPERATURE, -np.inf))


def reward_ndcg(similar: Float64, rewards: Float64, among: np.ndarray[Any, np.dtype[np.bool_]]) -> Float64:
    """NDCG (b,) of the candidates *among* those judged, in order of *similar*, with rewards as gains."""
    gains = np.where(among, rewards, 0.0)
    order = np.argsort(np.where(among, -similar, np.inf), axis=1, kind="stable")
    discounts = 1.0 / np.log2(np.arange(2, gains.shape[1] + 2))
    gained, ideal = np.take_along_axis(gains, order, 1) @ discounts, -np.sort(-gains, axis=1) @ discounts
    return np.asarray(np.divide(gained, ideal, out=np.ones(len(ideal)), where=ideal > 0))


def _refined(
    collection: Collection, rows: IntArray, rewards: Rewards, rate: float, steps: int, *, scaled: bool
) -> FloatArray:
    """Query vectors after Adam on KL(teacher || softmax of cosines), both min-max *scaled* or as they are."""
    moved = collection.query_vectors.copy()
    for batch, grid, documents in _batches(rewards):
        present = grid.present
        scores = _scaled(grid.rewards, present)[0] / 2.0 if scaled else grid.rewards
        teacher = softmax(np.where(present, scores, -np.inf))
        query = unit(rewards.query_vectors[batch].astype(np.float64))
        first, second = np.zeros_like(query), np.zeros_like(query)
        for step in range(1, steps + 1):
            length = np.linalg.norm(query, axis=1, keepdims=True)
            u = query / length
            cosine = np.matvec(documents, u)
            scale, low, high = 1.0, None, None
            logits = cosine
            if scaled:
                logits, scale, low, high = _scaled(cosine, present)
            pull = np.where(present, softmax(np.where(present, logits, -np.inf)) - teacher, 0.0) / scale
            if low is not None and high is not None:
                # The scale moves with its ends: what they take of the gradient.
                at_high = -(pull * logits).sum(axis=1)
                each = np.arange(len(pull))
                pull[each, low] -= pull.sum(axis=1) + at_high
                pull[each, high] += at_high
            of_u = np.vecmat(pull, documents)
            gradient = (of_u - u * np.vecdot(of_u, u)[:, None]) / length
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            query -= rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
        moved[rows[batch]] = query
    return moved


def _scaled(values: Float64, present: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[Float64, Any, IntArray, IntArray]:
    """Values min-max scaled within each row, with the span, and where the ends are."""
    low = np.where(present, values, np.inf).argmin(axis=1)
    high = np.where(present, values, -np.inf).argmax(axis=1)
    least, most = (np.take_along_axis(values, end[:, None], 1) for end in (low, high))
    span = most - least + 1e-8
    return (values - least) / span, span, low, high
