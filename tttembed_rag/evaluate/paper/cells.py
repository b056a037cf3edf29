"""Measured cells: computed once, kept on disk by what they were computed from."""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

import tttembed_rag
from tttembed_rag import __version__
from tttembed_rag.errors import DataError
from tttembed_rag.vectors.rows import Float64

# nDCG@10 (N,) of every query of a workload by column; NaN where a query is not of the population.
Columns: TypeAlias = Mapping[str, Float64]


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement and what identifies it.

    Attributes:
        settings: Everything its outcome depends on, as JSON values; with the contents of its inputs.

        measure: Computes its columns.
    """

    settings: Mapping[str, Any]
    measure: Callable[[], Columns]

    @property
    def key(self) -> str:
        """SHA-256 of the settings and of the package's code."""
        return content_hash({"version": __version__, "code": _code(), **self.settings})


class CellStore:
    """Finished cells in one SQLite file; a cell is there whole or not at all, also after a kill."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._checked():
            self._connection = sqlite3.connect(path, timeout=30)
            self._connection.execute("create table if not exists cells (key text primary key, columns blob not null)")

    def get(self, key: str) -> Columns | None:
        """The columns of a finished cell; None if it is not finished."""
        with self._checked():
            found = self._connection.execute("select columns from cells where key = ?", (key,)).fetchone()
            if found is None:
                return None
            with np.load(io.BytesIO(found[0]), allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}

    def put(self, key: str, columns: Columns) -> None:
        """Keep the columns of a finished cell."""
        data = io.BytesIO()
        np.savez_compressed(data, allow_pickle=False, **columns)
        with self._checked(), self._connection:
            self._connection.execute("insert or replace into cells values (?, ?)", (key, data.getvalue()))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError, EOFError, BadZipFile, zlib.error) as exc:
            raise DataError(f"{self._path}: expected a file of measured cells ({exc})") from exc


def measured(cells: Sequence[Cell], store: CellStore, *, fresh: bool = False) -> Iterator[Columns]:
    """The columns of each of *cells*, from the *store* where they are there, else computed and put there.

    Args:
        cells: What to measure.

        store: Where finished cells are.

        fresh: Compute all again.
    """
    for cell in cells:
        known = None if fresh else store.get(cell.key)
        if known is None:
            known = cell.measure()
            store.put(cell.key, known)
        yield known


@cache
def _code() -> str:
    """A hash of the package's own files: what was measured by other code is measured again."""
    digest = hashlib.sha256()
    for file in sorted(Path(tttembed_rag.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def content_hash(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
