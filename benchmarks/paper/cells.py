"""Measured cells: computed once, kept on disk by what they were computed from."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import tttembed_rag
from tttembed_rag import __version__
from tttembed_rag.errors import DataError
from tttembed_rag.system.keyed import KeyedRows
from tttembed_rag.vectors.rows import Float64

# nDCG@10 (N,) of every query of a workload by column; NaN where a query is not of the population.
Columns: TypeAlias = Mapping[str, Float64]


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement and what identifies it.

    Attributes:
        settings: JSON values that its outcome depends on, with the hash of its inputs.
        measure: Computes its columns.
    """

    settings: Mapping[str, Any]
    measure: Callable[[], Columns]

    @property
    def key(self) -> bytes:
        """SHA-256 of the settings and of the package's code."""
        return content_hash({"version": __version__, "code": _code(), **self.settings}).encode()


class CellStore:
    """Finished cells in one SQLite file; a cell is there whole or not at all, also after a kill.

    Args:
        path: The file, made if absent; None keeps the cells in memory.

    Raises:
        DataError: It is a file of something else.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows = KeyedRows(path, "cells", ("key BLOB", "columns BLOB NOT NULL"), kind="a file of measured cells")

    def get(self, key: bytes) -> Columns | None:
        """The columns of a finished cell; None if it is not finished."""
        stored = next(self._rows.rows([key]), None)
        if stored is None:
            return None
        try:
            with np.load(io.BytesIO(stored[1]), allow_pickle=False) as columns:
                return {name: columns[name] for name in columns.files}
        except Exception as exc:  # NumPy raises anything where a file is damaged
            raise DataError(f"{self._path}: expected a file of measured cells ({exc})") from exc

    def put(self, key: bytes, columns: Columns) -> None:
        """Keep the columns of a finished cell, in place of those it had."""
        data = io.BytesIO()
        np.savez_compressed(data, allow_pickle=False, **columns)
        self._rows.add([(key, data.getvalue())], replace=True)

    def close(self) -> None:
        """Close the file."""
        self._rows.close()


def measured(cells: Sequence[Cell], store: CellStore, *, fresh: bool = False) -> Iterator[Columns]:
    """The columns of each of *cells*, from the *store* where they are there, else computed and put there.

    Args:
        cells: The cells.
        store: Finished cells.
        fresh: Whether to compute finished cells again.
    """
    for cell in cells:
        columns = None if fresh else store.get(cell.key)
        if columns is None:
            columns = cell.measure()
            store.put(cell.key, columns)
        yield columns


def finished(
    cells: Sequence[Cell],
    store: CellStore,
    pool: Executor,
    measure: Callable[[int], Columns],
    *,
    fresh: bool = False,
) -> Iterator[Columns]:
    """The columns of the *cells* that the *store* lacks, put there as each is done, whichever comes first.

    Args:
        cells: The cells.
        store: Finished cells.
        pool: What computes them: threads, processes, loky, Dask, MPI.
        measure: Computes a cell by its number; a cell itself need not be pickled.
        fresh: Whether to compute finished cells again.
    """
    keys = [cell.key for cell in cells]
    first = {key: number for number, key in reversed(list(enumerate(keys)))}
    lacking = [number for key, number in first.items() if fresh or store.get(key) is None]
    asked = {pool.submit(measure, number): keys[number] for number in sorted(lacking)}
    try:
        for future in as_completed(asked):
            columns = future.result()
            store.put(asked[future], columns)
            yield columns
    finally:
        for future in asked:
            future.cancel()


@cache
def _code() -> str:
    """A hash of the package's own files: a cell that other code measured is measured again."""
    digest = hashlib.sha256()
    for file in sorted(Path(tttembed_rag.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def content_hash(value: Any) -> str:
    """SHA-256 of a JSON value; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
