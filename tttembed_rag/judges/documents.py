"""Document text made fit to be judged: bounded, valid Unicode, nothing invisible that gives orders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from tttembed_rag.errors import JudgeError
from tttembed_rag.judges.contract import Scores
from tttembed_rag.scales import Scale

# Control characters become blanks. Characters that only hide or reorder text are dropped: zero-width
# spaces, bidirectional overrides, tag characters. Joiners stay, scripts and emoji need them.
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_HIDDEN = [0x00AD, 0x200B, 0x2060, 0xFEFF, *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xE0000, 0xE0080)]
_FIT = {**dict.fromkeys(_CONTROLS, " "), **dict.fromkeys(_HIDDEN), 0x09: "\t", 0x0A: "\n"}


def readable(text: str, limit: int) -> str:
    """*text* as a judge may read it: at most *limit* characters, no lone surrogates, nothing hidden."""
    cut = (text if len(text) <= limit else text.lstrip()[:limit]).replace("\r\n", "\n")
    if not cut.isascii():
        cut = cut.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return cut.translate(_FIT)


def fence_of(query: str, document: str) -> str:
    """A tag to fence both texts with: a hash of them, which neither can contain."""
    return hashlib.sha256(f"{query}\0{document}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Screened:
    """The documents of a call that hold text, ready to be judged.

    Attributes:
        texts: The texts that the judge reads.

        rows: The place of each among all documents.

        total: The number of all documents, empty ones included.
    """

    texts: list[str]
    rows: list[int]
    total: int

    @classmethod
    def of(cls, documents: Sequence[str], limit: int) -> Screened:
        """Screen *documents*, each cut to *limit* characters."""
        texts = [readable(text, limit) for text in documents]
        rows = [row for row, text in enumerate(texts) if text.strip()]
        return cls([texts[row] for row in rows], rows, len(texts))

    def spread(self, scores: Sequence[float | None], scale: Scale) -> Scores:
        """The *scores* of `texts` for all documents: None for empty ones and for scores that are no number.

        Raises:
            JudgeError: There are more or fewer scores than texts.
            RewardError: A score is off the declared *scale*.
        """
        if len(scores) != len(self.texts):
            raise JudgeError(f"scores: expected one for each of {len(self.texts)} documents, got {len(scores)}")
        spread: Scores = [None] * self.total
        for row, score in zip(self.rows, scores, strict=True):
            spread[row] = float(score) if score is not None and isfinite(score) else None
        if scale.kind != "unbounded":
            scale.to_unit(np.array([score for score in spread if score is not None], dtype=np.float64))
        return spread
