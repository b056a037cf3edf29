"""Weights of a rescorer: what similarity and shared words are worth, by the rewards of judged candidates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.objectives import PADDING, log_softmax, softmax
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.offsets.rescorer import FEATURES, Vocabulary, features
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Ridge of each scaled weight around "similarity alone": words need ten times the evidence of the similarity. Of 5, 15
# and 50 for words, 15 is the least with which no development collection falls behind its offset by more than .005.
_RIDGE = np.array([1.5, 15.0, 15.0, 15.0])
COSINE, OVERLAP = 0, 1
# Products of norms that are zero but for rounding.
_ROUNDING = 1e-12
# Least deviation of a feature. Texts that were all cut to one length say nothing of what length is worth.
_LEAST_SCALE = np.array([1e-9, 1e-9, 1e-9, 0.05])


@dataclass(frozen=True, slots=True, eq=False)
class Weighing:
    """The problem whose optimum are the weights theta: Eq. 6 with scores theta · f in place of (x + v) · z.

    sum of w_q KL(softmax(r / tau_T) || softmax(theta · f_q)) + ridge · (theta - start)^2, which is convex. Similarity
    counts no less than at the start, and a shared word against no document: shuffled rewards of a declared judge took
    .02 to .14 of nDCG@10 without these bounds, and .01 at most with them (`benchmarks/words.py`).

    Attributes:
        features: (n, k, 4) of each candidate, centred within its query and scaled by their mean deviation there.
        scale: (4,) that deviation.
        present: (n, k) which are candidates.
        teacher: (n, k) softmax(r / tau_T).
        weights: (n,) w.
        start: (4,) the similarity alone, at the temperature of the student.
        vocabulary: How rare words are in the candidates.
    """

    features: Float64
    scale: Float64
    present: NDArray[np.bool_]
    teacher: Float64
    weights: Float64
    start: Float64
    vocabulary: Vocabulary

    @classmethod
    def of(cls, rewards: Rewards, grid: Grid, cosines: Float64, weights: Float64, recipe: Recipe) -> Weighing:
        """The problem of candidates with *cosines* (n, k) to the query vectors that will be searched with."""
        present = grid.present
        vocabulary = Vocabulary.of(rewards.doc_texts[np.unique(rewards.candidates)].tolist())
        known = np.zeros((*present.shape, FEATURES))
        for row, query in enumerate(rewards.query_texts):
            listed = present[row]
            texts = rewards.doc_texts[grid.slots[row, listed]].tolist()
            known[row, listed] = features(cosines[row, listed], *vocabulary.overlap(query, texts))
        mean = known.sum(axis=1, keepdims=True) / present.sum(axis=1)[:, None, None]
        known = np.where(present[..., None], known - mean, 0.0)
        deviation = np.sqrt((known**2).sum(axis=1) / present.sum(axis=1)[:, None]).mean(axis=0)
        scale = np.maximum(deviation, _LEAST_SCALE)
        teacher = softmax(np.where(present, grid.rewards / recipe.teacher_temperature, PADDING))
        start = np.zeros(FEATURES)
        start[COSINE] = scale[COSINE] / (recipe.student_temperature * recipe.spread)
        return cls(known / scale, scale, present, teacher, weights, start, vocabulary)

    def solved(self, queries: NDArray[np.bool_] | None = None) -> Float64:
        """(4,) the optimum; of some of the *queries* (n,) alone."""
        from scipy.optimize import minimize

        weights = self.weights if queries is None else self.weights * queries
        bounds = [(self.start[COSINE], None), (0.0, None), (0.0, None), (None, None)]
        solution = minimize(self._objective, self.start, args=(weights,), jac=True, method="L-BFGS-B", bounds=bounds)
        return np.asarray(solution.x)

    def held_out(self, fold: IntArray) -> Float64:
        """(n, 4) the optimum without the *fold* (n,) of each query."""
        numbers, own = np.unique(fold, return_inverse=True)
        return np.array([self.solved(fold != number) for number in numbers])[own]

    def losses(self, theta: Float64) -> Float64:
        """(n,) KL under weights (4,), or under those of each query (n, 4)."""
        logs = np.log(np.maximum(self.teacher, np.finfo(np.float64).tiny))
        return np.asarray((self.teacher * (logs - self._log_student(theta))).sum(axis=1))

    def scores(self, theta: Float64) -> Float64:
        """(n, k) theta · f, up to a constant within each query."""
        return np.asarray(np.matvec(self.features, theta) if theta.ndim > 1 else self.features @ theta)

    @property
    def agreement(self) -> float:
        """Mean correlation of similarity and BM25 within a query; 0 where no word is shared."""
        return _correlation(self.features[..., COSINE], self.features[..., OVERLAP], self.present)

    def leaning(self, judged: Grid) -> float:
        """How much more the rewards of the *judged*, the first of each query, correlate with BM25 than similarity."""
        among, first = judged.present, self.features[:, : judged.present.shape[1]]
        overlap, cosine = (_correlation(judged.rewards, first[..., column], among) for column in (OVERLAP, COSINE))
        return overlap - cosine

    def _objective(self, theta: Float64, weights: Float64) -> tuple[float, Float64]:
        away = theta - self.start
        log_student = self._log_student(theta)
        pull = weights[:, None] * (np.exp(log_student) - self.teacher)
        value = -float(weights @ (self.teacher * log_student).sum(axis=1)) + float(_RIDGE @ away**2)
        return value, np.einsum("qk,qkp->p", pull, self.features) + 2 * _RIDGE * away

    def _log_student(self, theta: Float64) -> Float64:
        return log_softmax(np.where(self.present, self.scores(theta), PADDING))


def _correlation(a: Float64, b: Float64, among: NDArray[np.bool_]) -> float:
    """Mean correlation of *a* and *b* (n, k) within the rows, of what is *among* them; 0 where one does not differ."""
    count = among.sum(axis=1, keepdims=True)
    a, b = (np.where(among, x - np.where(among, x, 0.0).sum(axis=1, keepdims=True) / count, 0.0) for x in (a, b))
    size = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    return float(np.divide((a * b).sum(axis=1), size, out=np.zeros_like(size), where=size > _ROUNDING).mean())
