"""Scores that are paid for, in one SQLite file: kept across restarts, kills and processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tttembed_rag.system.keyed import KeyedRows

_COLUMNS = ("pair BLOB", "judge TEXT NOT NULL", "score REAL", "tokens REAL NOT NULL", "usd REAL NOT NULL")


@dataclass(frozen=True, slots=True)
class Paid:
    """One answer of a judge.

    Attributes:
        score: On the judge's scale; None if it declined, which is an answer too.
        tokens: Its share of the tokens of its call.
        usd: Its share of the price of its call.
    """

    score: float | None
    tokens: float = 0.0
    usd: float = 0.0


class Answers(Protocol):
    """The answers of judges by pair: a `ScoreCache`, or those of a store."""

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The answers that are kept, of *pairs*."""

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Keep the *answers* of the judge with that fingerprint, all or none; a first answer stays."""


class ScoreCache(KeyedRows):
    """Answers by pair, each written as it comes.

    Any number of processes may share the file. A pair that two of them judge at the same moment keeps its first answer.
    """

    @classmethod
    def open(cls, path: Path | None) -> ScoreCache:
        """The cache at *path*, made if absent; None keeps it in memory.

        Raises:
            DataError: The file is no such cache, or cannot be written.
        """
        return cls(path, "paid", _COLUMNS, kind="a score cache")

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The answers that are kept, of *pairs*."""
        return {pair: Paid(score, tokens, usd) for pair, _, score, tokens, usd in self.rows(pairs)}

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Keep the *answers* of the judge with that fingerprint, all or none."""
        self.add((pair, judge, paid.score, paid.tokens, paid.usd) for pair, paid in answers.items())
