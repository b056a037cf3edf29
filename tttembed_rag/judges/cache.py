"""Scores already paid for, in one SQLite file: kept across restarts, kills and processes."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tttembed_rag.errors import DataError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS paid (
    pair BLOB PRIMARY KEY, judge TEXT NOT NULL, score REAL, tokens REAL NOT NULL, usd REAL NOT NULL
) WITHOUT ROWID
"""
_LOOK_UP_AT_ONCE = 500


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


def pair_key(fingerprint: str, query: str, document: str) -> bytes:
    """The address of a pair: a hash of who judges and of both texts, whatever their ids are."""
    digest = hashlib.sha256()
    for part in (fingerprint, query, document):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()


class Answers(Protocol):
    """Where a judge's answers are kept, by pair."""

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """What is known of *pairs*."""

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Keep the *answers* of the judge with that fingerprint, all or none; a first answer stays."""


class ScoreCache:
    """Answers by pair, written as soon as they are known.

    Any number of processes may share the file. A pair that two of them judge at the same moment
    keeps its first answer.

    Args:
        connection: An open database with the cache's table.

        name: What to call it in errors.
    """

    def __init__(self, connection: sqlite3.Connection, name: str = "cache") -> None:
        self._connection = connection
        self._name = name

    @classmethod
    def open(cls, path: Path | None) -> ScoreCache:
        """The cache at *path*, made if absent; None keeps it in memory.

        Raises:
            DataError: The file is no such cache, or cannot be written.
        """
        with _checked(str(path)):
            connection = sqlite3.connect(path or ":memory:", timeout=60.0, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=FULL")
                connection.execute(_SCHEMA)
            except sqlite3.Error:
                connection.close()
                raise
        return cls(connection, str(path))

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """What is known of *pairs*."""
        found = {}
        for start in range(0, len(pairs), _LOOK_UP_AT_ONCE):
            some = pairs[start : start + _LOOK_UP_AT_ONCE]
            marks = ",".join("?" * len(some))
            query = f"SELECT pair, score, tokens, usd FROM paid WHERE pair IN ({marks})"  # noqa: S608 (marks only)
            with _checked(self._name), closing(self._connection.execute(query, some)) as rows:
                found.update({pair: Paid(score, tokens, usd) for pair, score, tokens, usd in rows})
        return found

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Keep the *answers* of the judge with that fingerprint, all or none."""
        rows: Iterable[tuple[object, ...]] = (
            (pair, judge, paid.score, paid.tokens, paid.usd) for pair, paid in answers.items()
        )
        with _checked(self._name):
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                self._connection.executemany("INSERT OR IGNORE INTO paid VALUES (?, ?, ?, ?, ?)", rows)


@contextmanager
def _checked(name: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise DataError(f"{name}: expected a score cache that can be written ({exc})") from exc
