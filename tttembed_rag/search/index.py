"""The two legs of the search, dense and BM25, over one state of the catalogue, and how they are fused."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tttembed_rag.search.catalog import Card
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.words import keyword_index, words

# Weight of BM25 beside the dense leg before anything was learned, and the weights that learning chooses from. Of six, a
# better one is proven later than of three.
WEIGHT = 0.35
WEIGHTS = (WEIGHT, 0.15, 0.7)
# What may be a name in a request, and a name that is a plain word.
_NAMES, _WORD = re.compile(r"[\w.:/-]+"), re.compile(r"[^\W\d_]?[^\W\d_A-Z]*")


def standardized(scores: FloatArray) -> FloatArray:
    """Scores (..., n) of one leg for all tools of a query, less their mean, over their standard deviation.

    Two legs can be added then: a tool counts by how far it stands out among all. A leg that tells no tool from another
    gives zeros.
    """
    centred = scores - scores.mean(axis=-1, keepdims=True)
    spread = scores.std(axis=-1, keepdims=True)
    result: FloatArray = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-6)
    return result


def fused(dense: FloatArray, keyword: FloatArray, weight: float) -> FloatArray:
    """Both legs as one score: ``dense + weight keyword``, each standardized."""
    return standardized(dense) + np.float32(weight) * standardized(keyword)


def best(scores: FloatArray, k: int) -> IntArray:
    """The places of the *k* highest scores (n,), highest first, of equal ones the first."""
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    # All that reach the k-th highest score: more than k where scores are equal.
    high = np.flatnonzero(scores >= -np.partition(-scores, k - 1)[k - 1])
    return high[np.argsort(-scores[high], kind="stable")][:k]


class ToolIndex:
    """One state of the catalogue, ready to be searched; it never changes.

    The *vectors* (n, d) are unit vectors of the texts of *cards*, each name of which comes once. The place of a card
    stands in *rows* by its name, in *keys* by its key.
    """

    def __init__(self, cards: Sequence[Card], vectors: FloatArray) -> None:
        self.cards = tuple(cards)
        self.vectors = vectors
        self.rows = {card.name: row for row, card in enumerate(self.cards)}
        self.keys = {card.key: row for row, card in enumerate(self.cards)}
        self._bm25 = keyword_index([words(card.text) for card in self.cards], "tools")

    def __len__(self) -> int:
        return len(self.cards)

    def keyword(self, query: str) -> FloatArray:
        """(n,) BM25 scores; zeros where no word of the query is in the catalogue."""
        asked = words(query)
        if self._bm25 is None or not asked:
            return np.zeros(len(self.cards), dtype=np.float32)
        scores: FloatArray = self._bm25.get_scores(asked)
        return scores

    def named(self, query: str) -> list[str]:
        """The tools whose names stand in a request to the letter; names that are plain words may mean others."""
        asked = (one.strip(".-:/") for one in _NAMES.findall(query))
        return list(dict.fromkeys(one for one in asked if one in self.rows and not _WORD.fullmatch(one)))

    def scores(self, query: str, vector: FloatArray | None, weight: float) -> FloatArray:
        """(n,) fused scores of a query with a *vector* (d,); without one, BM25 alone."""
        keyword = self.keyword(query)
        return keyword if vector is None else fused(self.vectors @ vector, keyword, weight)
