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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tttembed_rag.errors import DataError, InputError, check_count
from tttembed_rag.rewards.columns import starts_of
from tttembed_rag.rewards.names import numbered
from tttembed_rag.system.files import whole_file
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_store.extras import require

EXTRA = "parquet"
# Rows that are written, read and copied at a time.
_GROUP = 65_536
_VECTOR = "vector"
_NAMES = ("query_id", "task", "source", "judge", "embedder")


def write_folder(folder: str | os.PathLike[str], columns: Mapping[str, Any], shards: int) -> None:
    """Write *columns*, by the names of those of `Rewards`, to a new folder, whole or not at all.

    Each table is written to at most *shards* files, as even as they can be; rows of one task and query that stand side
    by side lie in one file.

    Raises:
        InputError: Something is there already, or *shards* is below 1.
    """
    pa = require("pyarrow", EXTRA)
    check_count("shards", shards)
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: expected no such folder yet, or an empty one")
    queries, documents, starts = (columns[name] for name in ("query_vectors", "doc_vectors", "starts"))
    names = {"query_id": columns["query_ids"], "task": columns["tasks"], "source": columns["sources"]}
    names |= {"judge": np.full(len(queries), columns["judge"])}
    if columns["embedder"]:
        names["embedder"] = np.full(len(queries), columns["embedder"])
    goes_on = (names["query_id"][1:] == names["query_id"][:-1]) & (names["task"][1:] == names["task"][:-1])
    # A list, as NumPy's texts end at a NUL; a store gives all documents of other tenants one name.
    ids = pa.array(numbered(columns["doc_ids"].tolist()), pa.large_string())
    draft = target.absolute().with_name(f".{target.absolute().name}.{secrets.token_hex(8)}")
    try:
        (draft / "queries").mkdir(parents=True)
        (draft / "documents").mkdir()
        for part, (begin, end) in _parts(np.flatnonzero(~np.append(goes_on, False)) + 1, shards):
            pairs = slice(starts[begin], starts[end])
            offsets = pa.array(starts[begin : end + 1] - starts[begin], pa.int64())
            table = {name: pa.array(column[begin:end].tolist(), pa.string()) for name, column in names.items()}
            table[_VECTOR] = _lists(queries[begin:end])
            table["doc_ids"] = pa.LargeListArray.from_arrays(offsets, ids.take(pa.array(columns["candidates"][pairs])))
            table["rewards"] = pa.LargeListArray.from_arrays(offsets, pa.array(columns["values"][pairs]))
            _write(draft / "queries" / part, table)
        for part, (begin, end) in _parts(np.arange(1, len(documents) + 1), shards):
            _write(draft / "documents" / part, {"doc_id": ids[begin:end], _VECTOR: _lists(documents[begin:end])})
        draft.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _parts(ends: IntArray, shards: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """The name and the rows of each file, which ends at one of the ascending *ends*; no file is empty."""
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
    nested = {_VECTOR, "doc_ids", "rewards"}
    # The columns as Parquet names them. Vectors do not compress, and are read fastest as they lie in memory.
    leaves = {name: f"{name}.list.element" if name in nested else name for name in columns}
    with whole_file(path) as file:
        pq.write_table(
            pa.table(dict(columns)),
            file,
            row_group_size=_GROUP,
            compression={leaf: "none" if name == _VECTOR else "zstd" for name, leaf in leaves.items()},
            use_dictionary=[leaf for name, leaf in leaves.items() if name in (*_NAMES, "doc_ids")],
            write_page_checksum=True,
        )


def parts(folder: str | os.PathLike[str]) -> dict[str, int]:
    """The files of queries in *folder*, in order, by name, with the rows of each."""
    pq, queries = require("pyarrow.parquet", EXTRA), Path(folder) / "queries"
    with _checked(queries):
        return {path.name: pq.read_metadata(path).num_rows for path in _files(queries)}


def read_folder(folder: str | os.PathLike[str], *, part: str | None = None) -> dict[str, Any]:
    """The arguments of `checked_columns` for the tables in *folder*, as `Rewards.from_parquet` reads them.

    Vectors are read in parts, and copied once.
    """
    pa, pc = require("pyarrow", EXTRA), require("pyarrow.compute", EXTRA)
    documents = _Table(Path(folder) / "documents", {"doc_id", _VECTOR})
    queries = _Table(Path(folder) / "queries", {"doc_ids", "rewards", _VECTOR}, part)
    ids = documents.texts("doc_id")
    if (distinct := pc.count_distinct(ids).as_py()) != len(ids):
        raise DataError(f"{documents.folder}: expected unique doc_ids, got {distinct} for {len(ids)} documents")
    (names, depths), (rewards, counts) = queries.lists("doc_ids"), queries.lists("rewards")
    if not np.array_equal(depths, counts):
        row = int(np.argmax(depths != counts))
        raise DataError(
            f"{queries.folder}: expected as many rewards as doc_ids, got {counts[row]} for {depths[row]} in row {row}"
        )
    places = pc.index_in(names, value_set=ids)
    if places.null_count:
        unknown = names.filter(places.is_null())[0].as_py()
        raise DataError(f"{queries.folder}: expected doc_ids of documents/, got {unknown!r}, which is not there")
    rows, used = places.to_numpy().astype(np.intp), None
    if part is not None:
        used, rows = np.unique(rows, return_inverse=True)
        ids = ids.take(pa.array(used))
    judges, embedders, query_ids = queries.texts("judge"), queries.texts("embedder"), queries.names("query_id")
    judged_by = ["unnamed"] if judges is None else judges.unique().to_pylist()
    models = [""] if embedders is None else sorted(embedders.unique().to_pylist())
    if len(models) > 1:
        raise DataError(f"{queries.folder}: expected vectors of one embedder, got {', '.join(models)}")
    if query_ids is None and part is not None:
        before = sum(count for name, count in parts(folder).items() if name < part)
        query_ids = [str(before + row) for row in range(len(depths))]
    columns = {
        "query_vectors": queries.vectors(len(depths)),
        "doc_vectors": documents.vectors(len(ids), used),
        "candidates": rows,
        "scores": rewards.to_numpy(),
        "starts": starts_of(depths),
        "tasks": queries.names("task"),
        "query_ids": query_ids,
        "judge": judged_by[0] if len(judged_by) == 1 else judged_by,
        "sources": queries.names("source"),
        "doc_ids": ids.to_pylist(),
        "embedder": models[0],
    }
    pa.default_memory_pool().release_unused()  # which decoding took: as much as the columns
    return columns


def _files(folder: Path) -> list[Path]:
    """The files of one table, in the order of their names."""
    paths = sorted(path for path in folder.glob("*.parquet") if path.name[0] not in "._")
    if not paths:
        raise DataError(f"{folder}: expected files *.parquet, found none")
    return paths


class _Table:
    """The files of one table in *folder*, or the *part* of that name; each must have the columns *required*.

    Texts and lists come in one type, whichever the files have.
    """

    def __init__(self, folder: Path, required: set[str], part: str | None = None) -> None:
        pa, types = require("pyarrow", EXTRA), require("pyarrow.types", EXTRA)
        pq, datasets = require("pyarrow.parquet", EXTRA), require("pyarrow.dataset", EXTRA)
        self.folder = folder
        with _checked(folder):
            schemas = {path: pq.read_schema(path) for path in (_files(folder) if part is None else [folder / part])}
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
        return self._read(name) if name in self._names else None

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

    def vectors(self, rows: int, only: IntArray | None = None) -> FloatArray:
        """The vectors of all rows, as many as another column has, or of those at the ascending places *only*."""
        pa, pc = require("pyarrow", EXTRA), require("pyarrow.compute", EXTRA)
        vectors: FloatArray = np.empty((0, 0))
        read = filled = 0
        few = {"batch_size": _GROUP, "batch_readahead": 1, "fragment_readahead": 1}
        with _checked(self.folder):
            for batch in self._files.to_batches(columns=[_VECTOR], **few):
                column, first, read = batch.column(0), read, read + batch.num_rows
                if only is not None:
                    column = column.take(pa.array(only[slice(*np.searchsorted(only, (first, read)))] - first))
                column = self._whole(_VECTOR, column)
                lengths = pc.list_value_length(column).to_numpy()
                if not len(column):
                    continue
                if not filled:
                    vectors = np.empty((rows, int(lengths[0])), self._dtype)
                width = vectors.shape[1]
                if width < 1 or not (lengths == width).all():
                    other = int(lengths[lengths != width][0]) if width else 0
                    raise DataError(f"{self.folder}: expected vectors of one width, got {width} and {other}")
                begin, filled = filled, filled + len(column)
                if filled <= rows:
                    vectors[begin:filled] = self._whole(_VECTOR, column.flatten()).to_numpy().reshape(-1, width)
        if filled != rows:
            raise DataError(f"{self.folder}: expected {rows} vectors, got {filled}")
        return vectors

    def _read(self, name: str) -> Any:
        with _checked(self.folder):
            column = self._files.to_table(columns=[name]).column(0).combine_chunks()
            column.validate(full=True)  # also that texts are UTF-8
        return self._whole(name, column)

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
