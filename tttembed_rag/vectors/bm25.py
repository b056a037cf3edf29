"""Okapi BM25 (Robertson and Zaragoza 2009): words of texts, what each adds to a score, and an index that may grow."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from tttembed_rag.vectors.checks import FloatArray, IntArray

# Scripts that are cut into characters, as they have no spaces, and the signs that belong to the letters of India.
_CUT, _SIGNS = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af", "\u0900-\u0963\u0966-\u0dff"
_WORD = re.compile(f"[{_CUT}]|(?:[^\\W_{_CUT}]|[{_SIGNS}])+")
# Marks that writers leave out: what is left of accents, and the vowels of Hebrew and Arabic.
_LEFT_OUT = re.compile("[\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0640\u064b-\u065f\u0670]")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# How soon a repeated word counts no more, and how far a longer text counts less: what search engines come with. With
# the k1 of an index the figures of hybrid search and of the search over tools were measured; with the other one no
# nDCG@10 of hybrid search on nine collections moves by more than .005.
K1, INDEX_K1, B = 1.2, 1.5, 0.75
# Numbers of one text, or of several.
Number = TypeVar("Number", float, FloatArray)
# Of a word: the places of the texts that have it, and how often each does.
_Postings = tuple[IntArray, FloatArray]
_NOWHERE: _Postings = np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.float32)


def words(text: str) -> list[str]:
    """The words of a text in lower case; `readCSVFile` and `read_csv` are several words."""
    text = unicodedata.normalize("NFKC", _CAMEL.sub(" ", text)).casefold()
    return _WORD.findall(text if text.isascii() else _LEFT_OUT.sub("", text).replace("\u0131", "i"))


def script_of(words: Iterable[str]) -> str:
    """The script that most of the *words* are written in, such as LATIN; empty where there are none."""
    letters = (word[0] for word in words if not word[0].isdigit())
    names = ("LATIN" if letter.isascii() else unicodedata.name(letter, "").partition(" ")[0] for letter in letters)
    scripts = Counter("CJK" if name in ("HIRAGANA", "KATAKANA") else name for name in names)
    return max(scripts, key=scripts.__getitem__, default="")


def rarity(documents: int, having: int) -> float:
    """Inverse document frequency in nats, above 0, of a word that *having* of some *documents* have; as in Lucene."""
    return math.log1p((documents - having + 0.5) / (having + 0.5))


def bm25(weight: float, count: Number, length: Number, mean: float, k1: float = K1) -> Number:
    """What a word of some *weight* adds to the score of a text, or of several.

    The text has it *count* times among *length* words, where texts have *mean* words. The weight is the word's `rarity`
    times how often it is asked for.
    """
    return weight * count * (k1 + 1) / (count + k1 * (1 - B + B * length / mean))


class Keywords:
    """BM25 over texts; it never changes.

    `plus` and `only` give others that share what stays the same: one text more costs no more than its own words.
    """

    def __init__(self, postings: Mapping[str, _Postings] | None = None, lengths: FloatArray = _NOWHERE[1]) -> None:
        self._postings = postings or {}
        self._lengths = lengths  # words of each text
        self._added: dict[str, FloatArray] = {}  # by word, what it adds to the scores of the texts that have it

    @classmethod
    def of(cls, texts: Sequence[str]) -> Keywords:
        """Over *texts*, in their order."""
        return cls().plus(texts)

    def plus(self, texts: Sequence[str]) -> Keywords:
        """With *texts* behind those that are there."""
        cut = [words(text) for text in texts]
        places: dict[str, list[int]] = {}
        counts: dict[str, list[int]] = {}
        for place, text in enumerate(cut, len(self._lengths)):
            for word, count in Counter(text).items():
                places.setdefault(word, []).append(place)
                counts.setdefault(word, []).append(count)
        postings = dict(self._postings)
        for word, own in places.items():
            earlier, often = postings.get(word, _NOWHERE)
            postings[word] = np.append(earlier, own), np.append(often, np.array(counts[word], dtype=np.float32))
        return Keywords(postings, np.append(self._lengths, np.array([*map(len, cut)], dtype=np.float32)))

    def only(self, kept: IntArray) -> Keywords:
        """With the texts at the places *kept* (m,) alone, which rise."""
        places = np.full(len(self._lengths), -1)
        places[kept] = np.arange(len(kept))
        postings = {}
        for word, (earlier, often) in self._postings.items():
            now = places[earlier]
            if len(left := np.flatnonzero(now >= 0)):
                postings[word] = now[left], often[left]
        return Keywords(postings, self._lengths[kept])

    def scores(self, query: str) -> FloatArray:
        """(n,) scores of all texts; zeros where none has a word of the query."""
        scores = np.zeros(len(self._lengths), dtype=np.float32)
        for word in words(query):
            if word in self._postings:
                np.add.at(scores, self._postings[word][0], self._adds(word))
        return scores

    def _adds(self, word: str) -> FloatArray:
        """What *word* adds to the scores of the texts that have it, remembered."""
        if (known := self._added.get(word)) is None:
            places, often = self._postings[word]
            weight = rarity(len(self._lengths), len(places))
            known = bm25(weight, often, self._lengths[places], float(self._lengths.mean()), INDEX_K1)
            self._added[word] = known
        return known
