"""BEIR folders, vectors and scores on disk: read, checked and written."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from math import isfinite
from pathlib import Path

import numpy as np

from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.datasets import QRELS, Dataset, Judgments
from tttembed_rag.rewards.rows import json_lines
from tttembed_rag.system.files import PUBLIC, whole_file
from tttembed_rag.vectors.checks import FloatArray

_log = logging.getLogger(__name__)

__all__ = ["embedder_of", "load_beir", "load_scores", "load_vectors", "write_beir", "write_scores", "write_vectors"]

_HEADER = "query-id\tcorpus-id\tscore"


def load_beir(folder: Path, *, labels: bool = True) -> Dataset:
    """The collection in a BEIR *folder*, its labels those of the test split; documents are title and text, joined.

    Where *labels* are not needed, and their file is not there, all queries are read.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a BEIR folder, found none")
    documents = {
        record["_id"]: f"{record.get('title') or ''} {record.get('text') or ''}".strip()
        for record in _records(folder / "corpus.jsonl")
    }
    texts = {record["_id"]: record.get("text") or "" for record in _records(folder / "queries.jsonl")}
    file = folder / "qrels" / "test.tsv"
    if not (labels or file.exists()):
        return Dataset(folder.resolve().name, documents, texts, {})
    qrels = _judgments(file)
    if unknown := next((q for q in qrels if q not in texts), None):
        raise DataError(f"{folder}: query {unknown!r} of qrels/test.tsv is not in queries.jsonl")
    check_known(file, qrels, documents)
    return Dataset(folder.resolve().name, documents, {q: texts[q] for q in qrels}, qrels)


def write_beir(
    folder: Path, corpus: Iterable[tuple[str, str, str]], queries: Mapping[str, str], qrels: Judgments
) -> None:
    """Write a collection as a BEIR *folder*, each file whole or not at all, the corpus last: (id, title, text) each."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    rows = [(query, document, grade) for query, grades in qrels.items() for document, grade in grades.items()]
    if wrong := next((key for row in rows for key in row[:2] if set(key) & set("\t\r\n")), None):
        raise DataError(f"{folder}: expected ids without tabs and line breaks, got {wrong!r}")
    lines = (f"{query}\t{document}\t{grade:g}" for query, document, grade in rows)
    _write_lines(folder / "qrels" / "test.tsv", chain([_HEADER], lines))
    texts = ({"_id": key, "text": text} for key, text in queries.items())
    _write_lines(folder / "queries.jsonl", map(json.dumps, texts))
    documents = ({"_id": key, "title": title, "text": text} for key, title, text in corpus)
    _write_lines(folder / "corpus.jsonl", map(json.dumps, documents))


def write_vectors(
    folder: Path, name: str, dataset: Dataset, documents: FloatArray, queries: FloatArray, *, fingerprint: str
) -> Path:
    """Write document (N, d) and query (M, d) vectors in the order of *dataset*'s ids; the path they are at.

    The *fingerprint* of the embedder is kept beside the vectors.
    """
    path = folder / "vectors" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, mode=PUBLIC) as file:
        np.savez(
            file,
            doc_ids=np.array(list(dataset.documents)),
            docs=documents,
            query_ids=np.array(list(dataset.queries)),
            queries=queries,
            fingerprint=np.array(fingerprint),
        )
    return path


def load_vectors(folder: Path, name: str, dataset: Dataset) -> tuple[FloatArray, FloatArray]:
    """Stored document (N, d) and query (M, d) vectors, in the order of *dataset*'s ids, as float32."""
    path = folder / "vectors" / f"{name}.npz"
    if not path.is_file():
        raise DataError(f"{path}: expected stored vectors, found none (here: {_names_beside(path)})")
    names = ("doc_ids", "docs", "query_ids", "queries")
    expected = f"arrays {', '.join(names)}"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            doc_ids, docs, query_ids, queries = (stored[name] for name in names)
        return (
            _in_order(path, "doc", doc_ids, docs, dataset.documents),
            _in_order(path, "query", query_ids, queries, dataset.queries),
        )
    except DataError:
        raise
    except Exception as exc:
        # NumPy raises anything where a file is damaged. It takes any other file for a pickle, and tells how to load it,
        # which would run what is in it.
        reason = "" if "pickle" in str(exc) else f" ({exc})"
        if "Object arrays" in str(exc):
            reason = " without Python objects: the ids as np.array(ids, dtype=str)"
        raise DataError(f"{path}: expected {expected}{reason}") from exc


def embedder_of(folder: Path, name: str) -> str:
    """Fingerprint of the model that made stored vectors; their name where the file does not say."""
    path = folder / "vectors" / f"{name}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return str(stored["fingerprint"]) if "fingerprint" in stored else name
    except Exception as exc:  # NumPy raises anything where a file is damaged
        raise DataError(f"{path}: expected the embedding model's fingerprint as a text ({exc})") from exc


def load_scores(folder: Path, name: str) -> Judgments:
    """Stored scores of a judge by query id and document id; pairs that are absent were not judged."""
    path = folder / "scores" / f"{name}.tsv"
    if not path.is_file():
        here = f"here: {_names_beside(path)}, or {QRELS} as a simulation"
        raise DataError(f"{path}: expected stored scores, found none ({here})")
    return _judgments(path)


def write_scores(path: Path, rewards: Judgments) -> None:
    """Write *rewards* in [0, 1] to *path* as query-id, corpus-id, score with a header line, all or nothing."""
    rows = ((query, *row) for query, documents in rewards.items() for row in documents.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_lines(path, chain([_HEADER], (f"{query}\t{document}\t{reward:.9g}" for query, document, reward in rows)))


def check_known(path: Path, judgments: Judgments, documents: Collection[str]) -> None:
    """Warn of judgments in a file whose document is not among *documents*; a DataError where most are."""
    named = [document for of_query in judgments.values() for document in of_query]
    if lost := [document for document in named if document not in documents]:
        line = (
            f"{path}: {len(lost)} of {len(named)} lines name a document that is not in corpus.jsonl, as {lost[0]!r:.80}"
        )
        if 2 * len(lost) > len(named):
            raise DataError(f"{line}: expected the ids of the corpus")
        _log.warning("%s", line)


def _names_beside(path: Path) -> str:
    """The names of the files of this kind that are there instead."""
    return ", ".join(sorted(other.stem for other in path.parent.glob(f"*{path.suffix}"))) or "none"


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with whole_file(path, mode=PUBLIC) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def _lines(path: Path, expected: str) -> Iterator[str]:
    """The lines of a file; one with bytes that are not UTF-8, read as surrogates, is refused."""
    if not path.is_file():
        raise DataError(f"{path}: expected {expected}")
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            if not line.isascii() and any("\udc80" <= character <= "\udcff" for character in line):
                raise DataError(f"{path}:{number}: expected UTF-8 text, got other bytes")
            yield line


def _records(path: Path) -> Iterator[dict[str, str]]:
    for number, record in json_lines(path, _lines(path, "one JSON object a line, found no file")):
        if not isinstance(record.get("_id"), str):
            raise DataError(f'{path}:{number}: expected an object with a string "_id"')
        for name in ("title", "text"):
            if not isinstance(record.get(name), str | None):
                raise DataError(f"{path}:{number}: expected a text as {name}, got {record[name]!r:.40}")
        yield record


def _judgments(path: Path) -> dict[str, dict[str, float]]:
    judgments: dict[str, dict[str, float]] = {}
    for number, line in enumerate(_lines(path, "query-id, corpus-id, score; found no file"), 1):
        fields = line.rstrip("\n").split("\t")
        score = _number(fields[-1])
        if number == 1 and score is None:
            continue  # the header
        if number == 1:
            raise DataError(f"{path}:1: expected a header line, got a judgment, {fields}")
        if not line.strip():
            continue
        if len(fields) != 3 or score is None or not isfinite(score):
            raise DataError(f"{path}:{number}: expected query-id, corpus-id, score by tabs, got {fields}")
        judgments.setdefault(fields[0], {})[fields[1]] = score
    if not judgments:
        raise DataError(f"{path}: expected at least one line below the header, found none")
    return judgments


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _in_order(
    path: Path,
    kind: str,
    ids: np.ndarray[tuple[int], np.dtype[np.str_]],
    vectors: FloatArray,
    wanted: Mapping[str, str],
) -> FloatArray:
    if vectors.ndim != 2 or ids.shape != (len(vectors),):
        raise DataError(f"{path}: expected one {kind} vector per id, got {vectors.shape} for {ids.size} ids")
    row = {key: i for i, key in enumerate(ids.tolist())}
    if missing := next((key for key in wanted if key not in row), None):
        raise DataError(f"{path}: expected a vector for every {kind}, got none for {missing!r}")
    return vectors[[row[key] for key in wanted]].astype(np.float32)
