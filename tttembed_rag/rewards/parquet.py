"""Rewards as two tables of Parquet files, which Spark, DuckDB, Polars and pandas read and write too.

A folder holds ``queries/`` and ``documents/``, each with any number of files ``*.parquet``:

    queries     vector     list of float or double, all of one length   the base query vector
                doc_ids    list of text                                 the judged candidates
                rewards    list of double, as many                      their rewards, on one scale
                query_id   text, may be left out                        unique within a task and source
                task       text, may be left out
                source     text, may be left out                        who gave the rewards; empty for the judge
                judge      text, may be left out                        one for all
                embedder   text, may be left out                        what model the vectors come from; one for all
    documents   doc_id     text, unique
                vector     as above

Other columns, and files whose name begins with a dot or an underscore, are left alone.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import DataError, InputError, check_count, require
from tttembed_rag.system.files import whole_file
from tttembed_rag.vectors.checks import FloatArray, IntArray

EXTRA = "parquet"
# Rows that are written, read and copied at a time.
_GROUP = 65_536
_VECTOR = "vector"
_NAMES = ("query_id", "task", "source", "judge", "embedder")


class RewardColumns(NamedTuple):
    """The columns of rewards, the pairs flat: query q owns those from ``starts[q]`` to ``starts[q + 1]``."""

    query_vectors: FloatArray
    doc_vectors: FloatArray
    candidates: IntArray
    rewards: NDArray[np.float64]
    starts: IntArray
    tasks: list[str] | None
    query_ids: list[str] | None
    judge: str | list[str]
    sources: list[str] | None
    doc_ids: list[str]
    embedder: str


def write_folder(
    folder: str | os.PathLike[str],
    *,
    query_vectors: FloatArray,
    doc_vectors: FloatArray,
    candidates: IntArray,
    rewards: NDArray[np.float64],
    starts: IntArray,
    names: Mapping[str, NDArray[np.str_]],
    doc_ids: NDArray[np.str_],
    shards: int,
) -> None:
    """Write the tables to a new folder, whole or not at all.

    Args:
        folder: A path where nothing is, or an empty folder.
        query_vectors: (n, d).
        doc_vectors: (u, d).
        candidates: (N,) rows of *doc_vectors*.
        rewards: (N,).
        starts: (n + 1,) where each query's pairs begin.
        names: Further columns of the queries: query_id, task and others.
        doc_ids: u names.
        shards: Files of each table at most, as even as they can be; rows of one task and query that stand side by side
            lie in one file.

    Raises:
        InputError: Something is there already, or *shards* is below 1.
    """
    pa = require("pyarrow", EXTRA)
    check_count("shards", shards)
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: expected no such folder yet, or an empty one")
    all_ids = pa.array(doc_ids.tolist(), pa.large_string())  # as a list: of NumPy's texts a NUL is taken for the end
    draft = target.absolute().with_name(f".{target.absolute().name}.{secrets.token_hex(8)}")
    try:
        (draft / "queries").mkdir(parents=True)
        (draft / "documents").mkdir()
        for part, (begin, end) in _parts(_query_ends(names, len(query_vectors)), shards):
            pairs = slice(starts[begin], starts[end])
            offsets = pa.array(starts[begin : end + 1] - starts[begin], pa.int64())
            columns = {name: pa.array(column[begin:end].tolist(), pa.string()) for name, column in names.items()}
            columns[_VECTOR] = _lists(query_vectors[begin:end])
            ids = all_ids.take(pa.array(candidates[pairs]))
            columns["doc_ids"] = pa.LargeListArray.from_arrays(offsets, ids)
            columns["rewards"] = pa.LargeListArray.from_arrays(offsets, pa.array(rewards[pairs]))
            _write(draft / "queries" / part, columns)
        for part, (begin, end) in _parts(np.arange(1, len(doc_vectors) + 1), shards):
            columns = {"doc_id": all_ids[begin:end], _VECTOR: _lists(doc_vectors[begin:end])}
            _write(draft / "documents" / part, columns)
        draft.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _query_ends(names: Mapping[str, NDArray[np.str_]], rows: int) -> IntArray:
    """Where a file of queries may end, ascending: behind each row that the next one does not go on with."""
    last = np.ones(rows, dtype=bool)
    last[:-1] = (names["query_id"][1:] != names["query_id"][:-1]) | (names["task"][1:] != names["task"][:-1])
    return np.asarray(np.flatnonzero(last) + 1)


def _parts(ends: IntArray, shards: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The name and the rows of each file, which ends at the next of *ends*; no file is empty."""
    even = np.linspace(0, ends[-1], min(shards, int(ends[-1])) + 1).round().astype(int)[1:]
    borders = [0, *np.unique(ends[np.searchsorted(ends, even)]).tolist()]
    for number, span in enumerate(pairwise(borders)):
        yield f"part-{number:05d}.parquet", span


def _lists(vectors: FloatArray) -> Any:
    """Rows (m, d) as lists of one length; contiguous ones are not copied."""
    pa = require("pyarrow", EXTRA)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(vectors).reshape(-1)), vectors.shape[1])


def _write(path: Path, columns: Mapping[str, Any]) -> None:
    pa, pq = require("pyarrow", EXTRA), require("pyarrow.parquet", EXTRA)
    table = pa.table(dict(columns))
    repeated = [name for name in columns if name in _NAMES] + ["doc_ids.list.element"] * ("doc_ids" in columns)
    with whole_file(path) as file:
        # Vectors do not compress, and are read fastest as they lie in memory.
        squeezed = {name: "none" if name.startswith(_VECTOR) else "zstd" for name in _leaves(table)}
        pq.write_table(
            table, file, row_group_size=_GROUP, compression=squeezed, use_dictionary=repeated, write_page_checksum=True
        )


def _leaves(table: Any) -> list[str]:
    """The paths of the columns as Parquet names them."""
    nested = {_VECTOR, "doc_ids", "rewards"}
    return [f"{name}.list.element" if name in nested else name for name in table.column_names]


def parts(folder: str | os.PathLike[str]) -> dict[str, int]:
    """The files of queries in *folder*, in order, by name, with the rows of each.

    Raises:
        DataError: There is none, or one is damaged.
    """
    pq, queries = require("pyarrow.parquet", EXTRA), Path(folder) / "queries"
    with _checked(queries):
        return {path.name: pq.read_metadata(path).num_rows for path in _files(queries)}


def read_folder(folder: str | os.PathLike[str], *, part: str | None = None, scratch: bool = False) -> RewardColumns:
    """The columns of the tables in *folder*; vectors are read in parts, and copied once.

    Args:
        folder: The folder.
        part: One file of queries, which is read alone, with the documents that it names; None for all.
        scratch: Whether query vectors go to an unnamed temporary file instead of memory.

    Raises:
        DataError: The folder holds something else, or a file is damaged.
    """
    pa, pc = require("pyarrow", EXTRA), require("pyarrow.compute", EXTRA)
    documents = _Table(Path(folder) / "documents", {"doc_id", _VECTOR})
    queries = _Table(Path(folder) / "queries", {"doc_ids", "rewards", _VECTOR}, part)
    ids = documents.texts("doc_id")
    if (distinct := pc.count_distinct(ids).as_py()) != len(ids):
        raise DataError(f"{documents.folder}: expected unique doc_ids, got {distinct} for {len(ids)} documents")
    rows, depths, rewards = _pairs(queries, ids)
    used = None
    if part is not None:
        named = np.zeros(len(ids), dtype=bool)
        named[rows] = True
        used, rows = np.flatnonzero(named), (np.cumsum(named) - 1)[rows]
        ids = ids.take(pa.array(used))
    judges, embedders, query_ids = queries.texts("judge"), queries.texts("embedder"), queries.names("query_id")
    found = ["unnamed"] if judges is None else judges.unique().to_pylist()
    models = [""] if embedders is None else sorted(embedders.unique().to_pylist())
    if len(models) > 1:
        raise DataError(f"{queries.folder}: expected vectors of one embedder, got {', '.join(models)}")
    if query_ids is None and part is not None:
        before = sum(count for name, count in parts(folder).items() if name < part)
        query_ids = [str(before + row) for row in range(len(depths))]
    columns = RewardColumns(
        query_vectors=queries.vectors(len(depths), scratch=scratch),
        doc_vectors=documents.vectors(len(ids), used),
        candidates=rows,
        rewards=rewards,
        starts=np.concatenate([[0], np.cumsum(depths)]).astype(np.intp),
        tasks=queries.names("task"),
        query_ids=query_ids,
        judge=found[0] if len(found) == 1 or judges is None else judges.to_pylist(),
        sources=queries.names("source"),
        doc_ids=ids.to_pylist(),
        embedder=models[0],
    )
    pa.default_memory_pool().release_unused()  # which decoding took: as much as the columns
    return columns


def _pairs(queries: _Table, ids: Any) -> tuple[IntArray, IntArray, NDArray[np.float64]]:
    """The judged candidates of all *queries* as rows of the documents *ids*, how many each has, and their rewards."""
    pc = require("pyarrow.compute", EXTRA)
    (names, depths), (rewards, given) = queries.lists("doc_ids"), queries.lists("rewards")
    if not np.array_equal(depths, given):
        row = int(np.argmax(depths != given))
        raise DataError(
            f"{queries.folder}: expected as many rewards as doc_ids, got {given[row]} for {depths[row]} in row {row}"
        )
    rows = pc.index_in(queries.checked_texts(names), value_set=ids)
    if rows.null_count:
        unknown = names.filter(rows.is_null())[0].as_py()
        raise DataError(f"{queries.folder}: expected doc_ids of documents/, got {unknown!r}, which is not there")
    return rows.to_numpy().astype(np.intp), depths, rewards.to_numpy()


def _files(folder: Path) -> list[Path]:
    """The files of one table, in the order of their names."""
    paths = sorted(path for path in folder.glob("*.parquet") if path.name[0] not in "._")
    if not paths:
        raise DataError(f"{folder}: expected files *.parquet, found none")
    return paths


def _room(shape: tuple[int, int], dtype: type[np.floating[Any]], *, scratch: bool) -> NDArray[Any]:
    """An array to fill, in memory or in a temporary file that goes with it."""
    if not scratch:
        return np.empty(shape, dtype)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)


class _Table:
    """The files of one table in *folder*, or the *one* of that name; each must have the columns *required*.

    Texts and lists come in one type, whichever the files have.
    """

    def __init__(self, folder: Path, required: set[str], one: str | None = None) -> None:
        pa, types = require("pyarrow", EXTRA), require("pyarrow.types", EXTRA)
        pq, datasets = require("pyarrow.parquet", EXTRA), require("pyarrow.dataset", EXTRA)
        self.folder = folder
        with _checked(folder):
            schemas = {path: pq.read_schema(path) for path in (_files(folder) if one is None else [folder / one])}
        self._names = {*_NAMES, *required} & {name for schema in schemas.values() for name in schema.names}
        for path, schema in schemas.items():
            if missing := sorted((self._names | required) - set(schema.names)):
                raise DataError(f"{path}: expected a column {missing[0]}, found {', '.join(schema.names)}")
            for name in required - {"doc_id"}:
                kind = schema.field(name).type
                if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
                    raise DataError(f"{path}: expected lists in {name}, got {kind}")
        number = next(iter(schemas.values())).field(_VECTOR).type.value_type
        if str(number) not in ("float", "double"):
            raise DataError(f"{folder}: expected vectors of float or double, got {number}")
        self._dtype = np.float32 if str(number) == "float" else np.float64
        lists = {"doc_ids": pa.large_string(), "rewards": pa.float64(), _VECTOR: number}
        kinds = {name: pa.large_list(lists[name]) if name in lists else pa.large_string() for name in self._names}
        scanned = datasets.ParquetFragmentScanOptions(page_checksum_verification=True)
        self._files = datasets.dataset(
            [str(path) for path in schemas],
            pa.schema(list(kinds.items())),
            format=datasets.ParquetFileFormat(default_fragment_scan_options=scanned),
        )

    def texts(self, name: str) -> Any:
        """A column of texts, whole; None where no file has it."""
        return self.checked_texts(self._read(name)) if name in self._names else None

    def names(self, name: str) -> list[str] | None:
        """The same as a list."""
        column = self.texts(name)
        return None if column is None else list(column.to_pylist())

    def lists(self, name: str) -> tuple[Any, IntArray]:
        """A column of lists: their elements in order, and the length of each."""
        pc = require("pyarrow.compute", EXTRA)
        column = self._read(name)
        lengths = pc.list_value_length(column).to_numpy().astype(np.intp)
        return self._whole(name, pc.list_flatten(column)), lengths

    def vectors(self, rows: int, only: IntArray | None = None, *, scratch: bool = False) -> FloatArray:
        """The vectors of all rows, as many as another column has, in one array; or of *only* some, which ascend."""
        pc = require("pyarrow.compute", EXTRA)
        vectors: NDArray[Any] | None = None
        filled = 0
        for column in self._parts(_VECTOR, only):
            lengths = pc.list_value_length(column).to_numpy()
            width = int(lengths[0]) if vectors is None else vectors.shape[1]
            if width < 1 or not (lengths == width).all():
                other = int(lengths[lengths != width][0]) if width else 0
                raise DataError(f"{self.folder}: expected vectors of one width, got {width} and {other}")
            if vectors is None:
                vectors = _room((rows, width), self._dtype, scratch=scratch)
            begin, filled = filled, filled + len(column)
            if filled > rows:
                raise DataError(f"{self.folder}: expected {rows} vectors, got more")
            vectors[begin:filled] = self._whole(_VECTOR, column.flatten()).to_numpy().reshape(-1, width)
        if vectors is None or filled != rows:
            raise DataError(f"{self.folder}: expected {rows} vectors, got {filled}")
        return vectors

    def _parts(self, name: str, only: IntArray | None) -> Iterator[Any]:
        """A column in parts, few of them in memory at once and none of them empty; of *only* some rows."""
        begin = 0
        with _checked(self.folder):
            few = {"batch_size": _GROUP, "batch_readahead": 1, "fragment_readahead": 1}
            for batch in self._files.to_batches(columns=[name], **few):
                column, end = batch.column(0), begin + batch.num_rows
                if only is not None:
                    column = column.take(only[slice(*np.searchsorted(only, (begin, end)))] - begin)
                begin = end
                if len(column):
                    yield self._whole(name, column)

    def checked_texts(self, column: Any) -> Any:
        """A column of texts in one piece."""
        with _checked(self.folder):
            texts = column.combine_chunks()
            texts.validate(full=True)  # that they are UTF-8
            return texts

    def _read(self, name: str) -> Any:
        with _checked(self.folder):
            return self._whole(name, self._files.to_table(columns=[name]).column(0))

    def _whole(self, name: str, column: Any) -> Any:
        """A column without nulls."""
        if column.null_count:
            raise DataError(f"{self.folder}: expected no nulls in {name}, got {column.null_count}")
        return column


@contextmanager
def _checked(folder: Path) -> Iterator[None]:
    try:
        yield
    except (require("pyarrow", EXTRA).ArrowException, OSError, UnicodeDecodeError) as exc:
        raise DataError(f"{folder}: expected whole Parquet files of rewards, got {exc}") from exc
