"""Document text made fit to be judged: bounded, valid Unicode, nothing invisible that gives orders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite

from tttembed_rag.judges.contract import Scores
from tttembed_rag.rewards.names import whole

# Control characters become blanks. Characters that only hide or reorder text are dropped, those that Unicode calls
# formats (Cf) or lets be ignored (Default_Ignorable_Code_Point): zero-width and bidirectional marks, fillers, tags,
# variation selectors. Joiners stay, as scripts and emoji need them, and so do the two selectors of text and emoji.
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_HIDDEN = [
    *(0x00AD, 0x034F, 0x061C, 0x06DD, 0x070F, 0x08E2, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x200B, 0x200E, 0x200F),
    *(*range(0x0600, 0x0606), 0x0890, 0x0891, *range(0x180B, 0x1810), *range(0x202A, 0x202F), *range(0x2060, 0x2070)),
    *(0x3164, *range(0xFE00, 0xFE0E), 0xFEFF, 0xFFA0, *range(0xFFF0, 0xFFFC), 0x110BD, 0x110CD),
    *(*range(0x13430, 0x13440), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B), *range(0xE0000, 0xE1000)),
]
# Hexadecimal digits of a tag.
_TAG = 24
_FIT = {**dict.fromkeys(_CONTROLS, " "), **dict.fromkeys(_HIDDEN), 0x09: "\t", 0x0A: "\n"}


def readable(text: str, limit: int) -> str:
    """*text* as a judge may read it: at most *limit* characters, no lone surrogates, nothing hidden."""
    cut = (text if len(text) <= limit else text.lstrip()[:limit]).replace("\r\n", "\n")
    return cut if cut.isascii() and cut.isprintable() else whole(cut).translate(_FIT)


def fence_of(query: str, document: str) -> str:
    """A tag to fence both texts with: a hash of them, too long for a text to be found that holds its own."""
    return hashlib.sha256(f"{query}\0{document}".encode()).hexdigest()[:_TAG]


@dataclass(frozen=True, slots=True)
class Screened:
    """The texts of a call that the judge reads, each with its place among all documents, empty ones included."""

    texts: list[str]
    rows: list[int]
    total: int

    @classmethod
    def of(cls, documents: Sequence[str], limit: int) -> Screened:
        """Screen *documents*, each cut to *limit* characters."""
        texts = [readable(text, limit) for text in documents]
        rows = [row for row, text in enumerate(texts) if text.strip()]
        return cls([texts[row] for row in rows], rows, len(texts))

    def spread(self, scores: Sequence[float | None]) -> Scores:
        """The *scores* of `texts` for all documents: None for empty ones and for scores that are no number."""
        spread: Scores = [None] * self.total
        for row, score in zip(self.rows, scores, strict=True):
            spread[row] = float(score) if score is not None and isfinite(score) else None
        return spread


def spread_all(screened: Sequence[Screened], scores: Iterable[float | None]) -> list[Scores]:
    """The *scores* of the texts of all requests, in order, for the documents of each."""
    left = iter(scores)
    return [some.spread(list(islice(left, len(some.texts)))) for some in screened]
