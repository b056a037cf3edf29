"""Document text made fit to be judged: bounded, valid Unicode, nothing invisible that gives orders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite

from tttembed_rag.judges.contract import Request, Scores
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
    """What a judge reads in a call: each query, with those of its texts that are not empty.

    Their *rows* are the places of these among all documents of the query, of which there are *totals*.
    """

    requests: list[tuple[str, list[str]]]
    rows: list[list[int]]
    totals: list[int]

    @classmethod
    def of(cls, requests: Sequence[Request], limit: int, query_limit: int | None = None) -> Screened:
        """Screen *requests*: documents cut to *limit* characters, queries to *query_limit*, by default the same."""
        screened = cls([], [], [len(documents) for _, documents in requests])
        for query, documents in requests:
            texts = [readable(text, limit) for text in documents]
            rows = [row for row, text in enumerate(texts) if text.strip()]
            screened.requests.append((readable(query, query_limit or limit), [texts[row] for row in rows]))
            screened.rows.append(rows)
        return screened

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each query with each of its texts."""
        return [(query, text) for query, texts in self.requests for text in texts]

    def spread(self, scores: Iterable[float | None]) -> list[Scores]:
        """The *scores* of all `pairs` for the documents of each request: None for empty ones and what is no number."""
        left = iter(scores)
        spread: list[Scores] = [[None] * total for total in self.totals]
        for own, rows in zip(spread, self.rows, strict=True):
            for row, score in zip(rows, islice(left, len(rows)), strict=True):
                own[row] = float(score) if score is not None and isfinite(score) else None
        return spread
