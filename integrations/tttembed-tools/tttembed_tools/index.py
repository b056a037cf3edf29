"""The two legs of the search, dense and BM25, over one state of the items, and how they are fused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tttembed_rag.vectors.bm25 import Keywords
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_tools.catalog import Card

# Weight of BM25 beside the dense leg before anything was learned, and the weights that learning chooses from. Of six, a
# better one is proven later than of three.
WEIGHT = 0.35
WEIGHTS = (WEIGHT, 0.15, 0.7)
# What may be a name in a request, and a name that is a plain word.
_NAMES, _WORD = re.compile(r"[\w.:/-]+"), re.compile(r"[^\W\d_]?[^\W\d_A-Z]*")


def standardized(scores: FloatArray) -> FloatArray:
    """Scores (..., n) of one leg for all items of a query, less their mean, over their standard deviation.

    Two legs can be added then: an item counts by how far it stands out among all. A leg that tells no item from another
    gives zeros.
    """
    centred = scores - scores.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True))
    result: FloatArray = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-6)
    return result


def fused(dense: FloatArray, keyword: FloatArray, weight: float) -> FloatArray:
    """Both legs as one score: ``dense + weight keyword``, each standardized."""
    return standardized(dense) + np.float32(weight) * standardized(keyword)


def texts_of(cards: Sequence[Card]) -> list[str]:
    """What is embedded of *cards*: their texts, and behind them their passages."""
    return [*(card.text for card in cards), *(passage for card in cards for passage in card.passages)]


def best(scores: FloatArray, k: int) -> IntArray:
    """The places of the *k* highest scores (n,), highest first, of equal ones the first."""
    if k >= len(scores):
        return np.argsort(-scores, kind="stable")
    # All that reach the k-th highest score: more than k where scores are equal.
    high = np.flatnonzero(scores >= -np.partition(-scores, k - 1)[k - 1])
    return high[np.argsort(-scores[high], kind="stable")][:k]


@dataclass(frozen=True, eq=False)
class Index:
    """One state of the items, ready to be searched; it never changes, and others are made of it.

    Each name of the *cards* comes once. Of their texts there are *keywords* for BM25, with those of their passages, and
    unit *vectors* (n, d); the place of each stands by its name in *rows*, and by its key in *keys*. Their passages have
    *passages* (m, d), each of the card at the place that *owners* (m,) says.
    """

    cards: tuple[Card, ...] = ()
    keywords: Keywords = field(default_factory=Keywords)
    rows: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, int] = field(default_factory=dict)
    vectors: FloatArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    passages: FloatArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.float32))
    owners: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    def __len__(self) -> int:
        return len(self.cards)

    @property
    def width(self) -> int:
        """The width of the vectors; 0 before there are any."""
        return int(self.vectors.shape[1])

    @cached_property
    def middle(self) -> FloatArray:
        """(d,) the mean of the vectors."""
        return np.asarray(self.vectors.mean(axis=0))

    def plus(self, cards: Sequence[Card], vectors: FloatArray) -> Index:
        """With *cards* behind the others, and in place of those of the same names.

        The *vectors* are those of `texts_of` them.
        """
        old = self.without([card.name for card in cards])
        places = range(len(old), len(old) + len(cards))
        owners = np.repeat(np.array(places, dtype=np.intp), [len(card.passages) for card in cards])
        own, passages = vectors[: len(cards)], vectors[len(cards) :]
        return Index(
            (*old.cards, *cards),
            old.keywords.plus(["\n".join([card.text, *card.passages]) for card in cards]),
            {**old.rows, **{card.name: place for place, card in zip(places, cards, strict=True)}},
            {**old.keys, **{card.key: place for place, card in zip(places, cards, strict=True)}},
            np.concatenate([old.vectors, own]) if len(old) else own,
            np.concatenate([old.passages, passages]) if len(old.passages) else passages,
            np.concatenate([old.owners, owners]),
        )

    def without(self, names: Collection[str]) -> Index:
        """Without the cards of *names*, where there are such."""
        gone = {self.rows[name] for name in names if name in self.rows}
        if not gone:
            return self
        kept = [place for place in range(len(self)) if place not in gone]
        cards = tuple(self.cards[place] for place in kept)
        there = np.isin(self.owners, kept)
        return Index(
            cards,
            self.keywords.only(np.array(kept, dtype=np.intp)),
            {card.name: place for place, card in enumerate(cards)},
            {card.key: place for place, card in enumerate(cards)},
            self.vectors[kept],
            self.passages[there],
            np.searchsorted(kept, self.owners[there]),
        )

    def named(self, query: str) -> list[str]:
        """The items whose names stand in a request to the letter; names that are plain words may mean others."""
        names = (name.strip(".-:/") for name in _NAMES.findall(query))
        return list(dict.fromkeys(name for name in names if name in self.rows and not _WORD.fullmatch(name)))

    def dense(self, vector: FloatArray) -> FloatArray:
        """(n,) the products of a *vector* (d,) and the text of each item, or the passage of it that is nearest."""
        products = self.vectors @ vector
        if len(self.owners):
            np.maximum.at(products, self.owners, self.passages @ vector)
        return products

    def scores(self, query: str, vector: FloatArray | None, weight: float, first: Sequence[int] = ()) -> FloatArray:
        """(n,) fused scores of a query with a *vector* (d,); without one, BM25 alone. Some rows come *first*."""
        keyword = self.keywords.scores(query)
        scores = keyword if vector is None else fused(self.dense(vector), keyword, weight)
        if not first:
            return scores
        lift = np.zeros_like(scores)
        lift[list(first)] = np.ptp(scores) + 1
        return scores + lift
