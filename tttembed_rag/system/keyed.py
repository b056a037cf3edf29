"""Rows by key in one SQLite file, written as soon as they are known, shared by any number of processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tttembed_rag.errors import DataError
from tttembed_rag.system.files import make_private

# Keys in one statement.
_AT_ONCE = 500


class KeyedRows:
    """A table with a key in its first column; a row that is there stays as it is.

    Its file is made for its owner alone if absent; None keeps it in memory. Its *columns* are declared as in SQL, the
    key first. A DataError about a file that is none calls it by its *kind*, as in "a score cache".
    """

    def __init__(self, path: Path | None, table: str, columns: Sequence[str], *, kind: str) -> None:
        self._name, self._kind, self._table = str(path), kind, table
        self._columns = [column.split()[0] for column in columns]
        schema = (
            f"CREATE TABLE IF NOT EXISTS {table} ({columns[0]} PRIMARY KEY, {', '.join(columns[1:])}) WITHOUT ROWID"
        )
        if path is not None:
            make_private(path)
        with self._checked():
            self._connection = sqlite3.connect(path or ":memory:", timeout=60.0, isolation_level=None)
            try:
                for command in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", schema):
                    self._connection.execute(command)
            except sqlite3.Error:
                self._connection.close()
                raise

    def close(self) -> None:
        """Let the file go."""
        self._connection.close()

    def rows(self, keys: Sequence[bytes]) -> Iterator[tuple[Any, ...]]:
        """The rows that are kept, of *keys*."""
        columns = ", ".join(self._columns)
        for start in range(0, len(keys), _AT_ONCE):
            part = keys[start : start + _AT_ONCE]
            marks = ",".join("?" * len(part))
            query = f"SELECT {columns} FROM {self._table} WHERE {self._columns[0]} IN ({marks})"  # noqa: S608 (our names)
            with self._checked(), closing(self._connection.execute(query, part)) as cursor:
                rows = cursor.fetchall()
            yield from rows

    def add(self, rows: Iterable[tuple[Any, ...]], *, replace: bool = False) -> None:
        """Keep *rows*, all or none; the first row of a key stays, or with *replace* the last."""
        marks, what = ",".join("?" * len(self._columns)), "REPLACE" if replace else "IGNORE"
        with self._checked():
            self._connection.execute("BEGIN IMMEDIATE")
            with self._connection:
                self._connection.executemany(f"INSERT OR {what} INTO {self._table} VALUES ({marks})", rows)  # noqa: S608

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise DataError(f"{self._name}: expected {self._kind} that can be written ({exc})") from exc
