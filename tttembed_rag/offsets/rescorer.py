"""A rescorer: a learned order of what a search found, by similarity and by the words shared with the query.

It needs the texts of the candidates and their scores, no vectors and no judge. Words are known by digests.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.vectors.bm25 import bm25, rarity, script_of, words
from tttembed_rag.vectors.checks import IntArray

# What is known of a candidate: cosine, BM25, BM25 over the best of its list, and the logarithm of its length.
FEATURES = 4
# Where the overlap of a text in another script than the query lies among those in the same. Chinese questions in a pool
# of four languages lose .039 / .046 / .011 to words after 16 / 64 / 150 verdicts without this, .007 / .006 / 0 at the
# mean, and gain .006 / .004 / .005 so (`xquad-r-dev`, three splits).
_ANOTHER_SCRIPT = 0.75
# Texts of candidates whose words are kept counted: what is served often is not cut again.
_KEPT = 4_096


@lru_cache(maxsize=_KEPT)
def _counted(text: str) -> tuple[Counter[str], int, str]:
    """How often each word is in *text*, how many words it has, and their script."""
    tokens = words(text)
    return Counter(tokens), len(tokens), script_of(tokens)


def _digest(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """How rare words are in the documents that were judged.

    Attributes:
        digests: (w,) uint64 digests of the words, rising.
        frequencies: (w,) in how many of the documents each is.
        documents: How many documents there were.
        length: How many words a document has on average, above 0.
    """

    digests: NDArray[np.uint64]
    frequencies: NDArray[np.uint32]
    documents: int
    length: float

    @classmethod
    def of(cls, texts: Iterable[str]) -> Vocabulary:
        """The vocabulary of the documents *texts*."""
        documents = [_counted(text) for text in texts]
        frequencies = Counter(word for counts, *_ in documents for word in counts)
        known = sorted((_digest(word), count) for word, count in frequencies.items())
        digests, counts = np.array(known, dtype=np.uint64).reshape(-1, 2).T
        length = max(float(np.mean([length for _, length, _ in documents])), 1.0)
        return cls(digests, counts.astype(np.uint32), len(documents), length)

    def rarity(self, word: str) -> float:
        """Inverse document frequency of *word* in nats, above 0; largest for a word that no judged document has."""
        digest = np.uint64(_digest(word))
        place = int(np.searchsorted(self.digests, digest))
        known = place < len(self.digests) and self.digests[place] == digest
        return rarity(self.documents, int(self.frequencies[place]) if known else 0)

    def overlap(self, query: str, texts: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """BM25 (k,) of *texts* for *query*, and their lengths (k,) in words.

        A text in another script than the query shares no words with it, good or not: it has what the better ones have
        that can, so that words do not crowd it out.
        """
        of_query, _, script = _counted(query)
        weights = {word: count * self.rarity(word) for word, count in of_query.items()}
        documents = [_counted(text) for text in texts]
        scores = [
            sum(bm25(weights[word], counts[word], length, self.length) for word in weights if word in counts)
            for counts, length, _ in documents
        ]
        known = np.array([scores, [length for _, length, _ in documents]], dtype=np.float64)
        same = np.array([other in (script, "") for *_, other in documents], dtype=np.bool_)
        if same.any() and not same.all():
            known[:, ~same] = np.quantile(known[:, same], _ANOTHER_SCRIPT, axis=1, keepdims=True)
        return known[0], known[1]

    def covered(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """(k,) the share of the words of *query* that each of *texts* has, each word by its rarity."""
        weights = {word: self.rarity(word) for word in words(query)}
        whole = max(sum(weights.values()), 1e-9)
        counts = [_counted(text)[0] for text in texts]
        return np.array([sum(weights[word] for word in weights if word in own) for own in counts]) / whole


def features(cosines: ArrayLike, overlaps: ArrayLike, lengths: ArrayLike) -> NDArray[np.float64]:
    """(k, 4) what is known of the candidates of one query."""
    best = np.max(overlaps, initial=0.0)
    return np.stack([cosines, overlaps, np.asarray(overlaps) / max(float(best), 1e-9), np.log1p(lengths)], axis=1)


def check_list(query: str, texts: Sequence[str], scores: ArrayLike | Sequence[float | None]) -> None:
    """Refuse what is no query with texts and as many scores; the line names what is none."""
    if not isinstance(query, str):
        raise InputError(f"query: expected a text, got {type(query).__name__}")
    if isinstance(texts, str):
        raise InputError("texts: expected a list of texts, got one text")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"texts: expected texts, got {type(text).__name__}")
    if (shape := np.asarray(scores, dtype=object).shape) != (len(texts),):
        raise InputError(f"scores: expected {len(texts)}, one per text, got shape {shape}")


def checked_cosines(query: str, texts: Sequence[str], scores: ArrayLike) -> NDArray[np.float64]:
    """The *scores* (k,) as finite numbers, one for each text; else an error as `check_list` says."""
    check_list(query, texts, scores)
    try:
        cosines = np.asarray(scores, dtype=np.float64)
    except ValueError as exc:
        raise InputError(f"scores: expected numbers ({exc})") from exc
    if not np.isfinite(cosines).all():
        raise InputError(f"scores: expected finite numbers, got {cosines.tolist()!r:.80}")
    return cosines


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rescorer:
    """Sorts what a search found, by weights that were learned from the same verdicts as the task's offset.

    Attributes:
        weights: (4,) of cosine, BM25, BM25 over the best of the list, and log(1 + length in words).
        vocabulary: How rare words are.
        evidence: What held-out rewards say of this order beside that of the search with the task's offset.
    """

    weights: NDArray[np.float64]
    vocabulary: Vocabulary
    evidence: Evidence

    def __repr__(self) -> str:
        weights = ", ".join(f"{weight:.3g}" for weight in self.weights)
        return f"Rescorer(weights {weights}, {len(self.vocabulary.digests)} words, {self.evidence})"

    @property
    def served(self) -> bool:
        """Whether the gate published it."""
        return self.evidence.verdict == "published"

    def scores(self, query: str, texts: Sequence[str], scores: ArrayLike) -> NDArray[np.float64]:
        """(k,) the learned scores, larger is better; they are comparable within one list alone.

        Args:
            query: Text of the query.
            texts: Texts of k candidates, 20 to 100 of them: the search's list before it is cut.
            scores: (k,) their cosine similarities to the query vector that was searched with: the one with its offset.

        Raises:
            InputError: There is not one finite score for each text, or what should be a text is none.
        """
        cosines = checked_cosines(query, texts, scores)
        return np.asarray(features(cosines, *self.vocabulary.overlap(query, texts)) @ self.weights)

    def order(self, query: str, texts: Sequence[str], scores: ArrayLike) -> IntArray:
        """(k,) places of the candidates, best first; of equals the earlier one. As `scores` says."""
        return np.argsort(-self.scores(query, texts, scores), kind="stable")

    def shared_words(self, query: str, text: str) -> list[str]:
        """The words that *text* shares with *query*, the rarest first."""
        counts, *_ = _counted(text)
        shared = [word for word in dict.fromkeys(words(query)) if word in counts]
        return sorted(shared, key=lambda word: -self.vocabulary.rarity(word))

    def check(self, name: str) -> None:
        """Refuse numbers that nothing could be sorted by; the line begins with *name*."""
        known = self.vocabulary
        kinds = (known.digests.ndim, known.digests.dtype, known.frequencies.ndim, known.frequencies.dtype)
        if kinds != (1, np.dtype(np.uint64), 1, np.dtype(np.uint32)):
            raise InputError(f"{name}: expected rows of digests (uint64) and counts (uint32) of words, got {kinds}")
        if self.weights.shape != (FEATURES,) or not np.isfinite(self.weights).all():
            raise InputError(f"{name}: expected {FEATURES} finite weights of a rescorer, got {self.weights!r:.80}")
        rising = bool((known.digests[1:] > known.digests[:-1]).all())
        if len(known.digests) != len(known.frequencies) or not rising:
            raise InputError(f"{name}: expected rising digests of words with their counts, got others")
        if not (0 < known.length < math.inf) or (known.frequencies > known.documents).any():
            raise InputError(f"{name}: expected a mean length above 0 and counts of at most {known.documents}")
