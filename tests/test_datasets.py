"""Reading BEIR folders: what is there, in which order, and what is said when a part is bad."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tttembed_rag import Evidence, Offset, Offsets, Scale
from tttembed_rag.cli import main
from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import open_collection
from tttembed_rag.evaluate.explaining import explain
from tttembed_rag.evaluate.files import load_beir, load_scores, load_vectors, write_beir, write_vectors

CORPUS = """\
{"_id": "d1", "title": "Boundary layers", "text": "Flow near a wall."}
{"_id": "d2", "title": "", "text": "No title."}

{"_id": "d3", "text": "Title absent."}
{"_id": "d4", "title": "Only a title", "text": ""}
{"_id": "d5", "title": null, "text": null}
"""
QUERIES = """\
{"_id": "q1", "text": "first"}
{"_id": "q2", "text": "second"}
{"_id": "q3", "text": "without labels"}
"""
QRELS = "query-id\tcorpus-id\tscore\n\nq2\td1\t2\nq2\td3\t0\nq1\td2\t1\n\n"
SCORES = "query-id\tcorpus-id\tscore\nq1\td1\t0.25\nq1\td4\t-3\nq2\td5\t1e-3\n"
ARRAYS = {
    # Another order than the corpus has, and one of each that it lacks.
    "doc_ids": ["d5", "d3", "d9", "d1", "d2", "d4"],
    "docs": np.array([[5, 1], [3, 1], [9, 1], [1, 1], [2, 1], [4, 1]], np.float16),
    "query_ids": ["q3", "q2", "q1"],
    "queries": np.array([[3, 0], [2, 0], [1, 0]], np.float16),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small BEIR folder with stored vectors and scores."""
    path = tmp_path / "wings"
    for part in ("qrels", "scores", "vectors"):
        (path / part).mkdir(parents=True)
    (path / "corpus.jsonl").write_text(CORPUS, encoding="utf-8")
    (path / "queries.jsonl").write_text(QUERIES, encoding="utf-8")
    (path / "qrels" / "test.tsv").write_text(QRELS, encoding="utf-8")
    (path / "scores" / "judge.tsv").write_text(SCORES, encoding="utf-8")
    np.savez(path / "vectors" / "tiny.npz", **ARRAYS)
    return path


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        # Title and text with one space between, either of which may be absent.
        (
            lambda folder: load_beir(folder).documents,
            {
                "d1": "Boundary layers Flow near a wall.",
                "d2": "No title.",
                "d3": "Title absent.",
                "d4": "Only a title",
                "d5": "",
            },
        ),
        # Every line below the header is a grade, zero grades included; empty ones are skipped.
        (lambda folder: load_beir(folder).qrels, {"q2": {"d1": 2.0, "d3": 0.0}, "q1": {"d2": 1.0}}),
        # A query without labels is left out; the others come in the order of the labels.
        (lambda folder: list(load_beir(folder).queries.items()), [("q2", "second"), ("q1", "first")]),
        # Scores keep their scale: negative and tiny ones are no error.
        (lambda folder: load_scores(folder, "judge"), {"q1": {"d1": 0.25, "d4": -3.0}, "q2": {"d5": 0.001}}),
    ],
    ids=["documents", "labels", "queries", "scores"],
)
def test_a_folder_is_read(folder: Path, read: Callable[[Path], object], expected: object) -> None:
    assert read(folder) == expected


def test_vectors_come_in_the_order_of_the_ids(folder: Path) -> None:
    """Stored vectors, also of half precision, are float32 in the order of the documents and of the labelled queries."""
    documents, queries = load_vectors(folder, "tiny", load_beir(folder))

    assert documents.tolist() == [[1, 1], [2, 1], [3, 1], [4, 1], [5, 1]]
    assert queries.tolist() == [[2, 0], [1, 0]]
    assert (documents.dtype, queries.dtype) == (np.float32, np.float32)


def test_the_name_is_the_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set is called like its folder, also where the path is a dot."""
    monkeypatch.chdir(folder)

    assert load_beir(Path()).name == "wings"


def test_only_keeps_the_labels_of_the_kept_queries(folder: Path) -> None:
    """A data set cut to some queries has their texts and their labels, and the same documents."""
    dataset = load_beir(folder)

    cut = dataset.only({"q1": {}, "elsewhere": {}})

    assert (cut.queries, cut.qrels) == ({"q1": "first"}, {"q1": {"d2": 1.0}})
    assert dataset.documents == cut.documents


def test_only_of_nothing_in_common_is_an_error(folder: Path) -> None:
    """Scores for none of the labelled queries are an error that names the data set."""
    with pytest.raises(DataError, match=r"^wings: expected scores for its labelled queries, found none in common$"):
        load_beir(folder).only({"elsewhere": {}})


def read_all(folder: Path) -> None:
    """Everything the folder holds."""
    dataset = load_beir(folder)
    load_vectors(folder, "tiny", dataset)
    load_scores(folder, "judge")


Spoiled = tuple[Callable[[Path], object], str]


def written(part: str, content: str | bytes, message: str = "") -> Spoiled:
    """Replaces a part of the folder, which is named."""
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / part).write_bytes(data), f"/{part}{message}"


def without(part: str, message: str) -> Spoiled:
    """Deletes a part of the folder."""
    return lambda folder: (folder / part).unlink(), f"/{part}: {message}"


def renamed(part: str, message: str) -> Spoiled:
    """Gives a part of the folder the name b."""
    return lambda folder: (folder / part).rename((folder / part).with_stem("b")), f"/{part}: {message}"


def arrays(message: str = "", **changed: Any) -> Spoiled:
    """Replaces stored arrays, or leaves out those that are None."""
    kept = {name: array for name, array in {**ARRAYS, **changed}.items() if array is not None}
    return lambda folder: np.savez(folder / VECTORS, **kept), f"/{VECTORS}{message}"


def one_array(folder: Path) -> None:
    """Stores a bare array under the name of an archive."""
    with (folder / VECTORS).open("wb") as file:
        np.save(file, np.eye(2))


def cut_short(folder: Path) -> None:
    """Keeps the first half of the archive, as a broken download does."""
    path = folder / VECTORS
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


CORPUS_FILE, QUERIES_FILE, LABELS, SCORES_FILE = "corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "scores/judge.tsv"
VECTORS, OBJECTS = "vectors/tiny.npz", np.array(ARRAYS["doc_ids"], object)
A_LINE, TRIPLES = "expected one JSON object a line", "expected query-id, corpus-id, score"
EXPECTED, HERE = ": expected arrays doc_ids, docs, query_ids, queries", "or qrels as a simulation)"
SPOILED = {
    "no folder": (shutil.rmtree, ": expected a BEIR folder, found none"),
    "no corpus": without(CORPUS_FILE, f"{A_LINE}, found no file"),
    "no queries": without(QUERIES_FILE, f"{A_LINE}, found no file"),
    "no labels": without(LABELS, f"{TRIPLES}; found no file"),
    "no vectors": without(VECTORS, "expected stored vectors, found none (here: none)"),
    "no scores": without(SCORES_FILE, f"expected stored scores, found none (here: none, {HERE}"),
    "other vectors": renamed(VECTORS, "expected stored vectors, found none (here: b)"),
    "other scores": renamed(SCORES_FILE, f"expected stored scores, found none (here: b, {HERE}"),
    "bad JSON": written(CORPUS_FILE, CORPUS + "{oops\n", f":7: {A_LINE}"),
    "JSON list": written(QUERIES_FILE, "[1]\n", f":1: {A_LINE}"),
    "number as text": written(QUERIES_FILE, '{"_id": "q1", "text": 911}', ":1: expected a text as text, got 911"),
    "list as title": written(CORPUS_FILE, '{"_id": "d1", "title": ["a"]}', ":1: expected a text as title, got ['a']"),
    "number as id": written(QUERIES_FILE, '{"_id": 5}\n', ':1: expected an object with a string "_id"'),
    "corpus not UTF-8": written(CORPUS_FILE, '{"_id": "é"}'.encode("latin-1")),
    "no header": written(LABELS, "q1\td1\t1\n", ":1: expected a header line, got a judgment"),
    "spaces for tabs": written(LABELS, "header\nq1 d1 1\n", f":2: {TRIPLES} by tabs"),
    "word as grade": written(LABELS, "header\nq1\td1\tgood\n", f":2: {TRIPLES}"),
    "four columns": written(LABELS, "header\nq1\t0\td1\t1\n", f":2: {TRIPLES}"),
    "NaN grade": written(LABELS, "header\nq1\td1\tnan\n", ":2"),
    "infinite grade": written(LABELS, "header\nq1\td1\tinf\n", ":2"),
    "header alone": written(LABELS, "header\n", ": expected at least one line below the header"),
    "empty labels": written(LABELS, "", ": expected at least one line below the header"),
    "labels not UTF-8": written(LABELS, "header\né\td1\t1\n".encode("latin-1")),
    "unknown query": (
        written(LABELS, "header\nq7\td1\t1\n")[0],
        ": query 'q7' of qrels/test.tsv is not in queries.jsonl",
    ),
    "score missing": written(SCORES_FILE, SCORES + "q1\td2\n", f":5: {TRIPLES}"),
    "docs missing": arrays(EXPECTED, docs=None),
    "query ids missing": arrays(EXPECTED, query_ids=None),
    "document without vector": arrays(": expected a vector for every doc, got none for 'd2'", doc_ids=["d1"] * 6),
    "query without vector": arrays(": expected a vector for every query, got none for 'q2'", query_ids=["q1"] * 3),
    "fewer ids than vectors": arrays(": expected one doc vector per id, got (6, 2) for 1 ids", doc_ids=["d1"]),
    "one id, no list": arrays(doc_ids="d1"),
    "pickled ids": arrays(f"{EXPECTED} without Python objects: the ids as np.array(ids, dtype=str)", doc_ids=OBJECTS),
    "no archive": written(VECTORS, b"not an archive", ": expected arrays doc_ids, docs"),
    "empty archive": written(VECTORS, b""),
    "half an archive": (cut_short, f"/{VECTORS}"),
    "npy as npz": (one_array, f"/{VECTORS}"),
}


@pytest.mark.parametrize(("spoil", "message"), SPOILED.values(), ids=SPOILED)
def test_a_bad_part_is_named(folder: Path, spoil: Callable[[Path], object], message: str) -> None:
    """A folder with a missing or malformed part is a DataError that opens with the file, and the line."""
    spoil(folder)

    with pytest.raises(DataError) as caught:
        read_all(folder)

    assert str(caught.value).startswith(f"{folder}{message}")


def test_a_collection_has_the_queries_that_were_scored(folder: Path) -> None:
    """With a real judge, queries it never scored are neither rewarded nor measured."""
    (folder / "scores" / "judge.tsv").write_text("header\nq2\td1\t0.5\n", encoding="utf-8")

    collection = open_collection(folder, vectors="tiny", rewards="judge", scale=Scale())

    assert collection.query_ids.tolist() == ["q2"]


def test_marks_of_byte_order_are_no_text(folder: Path) -> None:
    """Windows writes them before each file."""
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "scores/judge.tsv"):
        (folder / name).write_bytes(b"\xef\xbb\xbf" + (folder / name).read_bytes())
    read = load_beir(folder)

    assert (next(iter(read.documents)), read.queries["q1"], read.qrels["q1"]) == ("d1", "first", {"d2": 1.0})
    assert load_scores(folder, "judge")["q1"] == {"d1": 0.25, "d4": -3.0}


@pytest.mark.parametrize("name", ["qrels/test.tsv", "scores/judge.tsv"])
def test_judgments_of_documents_that_are_not_there(folder: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Labels and scores alike: up to one half is a warning, more of them is an error."""

    def opened(*documents: str) -> None:
        lines = "".join(f"q1\t{document}\t1\n" for document in documents)
        (folder / name).write_text(f"query-id\tcorpus-id\tscore\n{lines}", encoding="utf-8")
        open_collection(folder, vectors="tiny", rewards="judge", scale=Scale())

    (folder / "scores" / "judge.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n", encoding="utf-8")
    opened("d1", "d2")
    opened("d1", "d2", "old1", "old2")
    with pytest.raises(DataError, match=r"test.tsv|judge.tsv: 2 of 3 lines name a document that is not in corpus"):
        opened("d1", "old1", "old2")

    assert [message.partition(name)[2] for message in caplog.messages] == [
        ": 2 of 4 lines name a document that is not in corpus.jsonl, as 'old1'"
    ]


class TestOwn:
    """A query that is a document of the corpus, as in ArguAna: it does not find itself."""

    @pytest.fixture
    def claims(self, tmp_path: Path) -> Path:
        """Each of 120 claims is a query too, under its id; its own document is nearest, then the one against it."""
        folder, count = tmp_path / "claims", 120
        claims, against = [f"p{i}" for i in range(count)], [f"c{i}" for i in range(count)]
        corpus = [(name, "On", f"claim {name}") for name in [*claims, *against]]
        write_beir(folder, corpus, {p: f"claim {p}" for p in claims}, {f"p{i}": {f"c{i}": 1.0} for i in range(count)})
        own, nearest = (np.eye(2 * count, k=-k, dtype=np.float32)[:, :count] for k in (0, count))
        vectors = own + nearest
        vectors[count:] += 0.01
        write_vectors(folder, "v", load_beir(folder), vectors, vectors[:count], fingerprint="v")
        return folder

    def test_is_not_found(self, claims: Path) -> None:
        """Neither by the search, nor by a new one, nor as a candidate, nor by words; as BEIR and mteb measure."""
        opened = open_collection(claims, vectors="v", rewards="qrels", scale=Scale())
        every = np.arange(120)

        assert opened.raw.tolist() == [1.0] * 120
        assert opened.measure(opened.query_vectors, every).tolist() == [1.0] * 120
        assert not (opened.base == every[:, None]).any()
        assert 3 not in opened.candidates(3, 240)[0]
        assert opened.base.shape == (120, 100)

    def test_is_found_where_only_the_id_is_the_same(self, claims: Path) -> None:
        """Queries and documents may be numbered alike, as those of Cranfield are."""
        lines = "".join(f'{{"_id": "p{i}", "text": "another {i}"}}\n' for i in range(120))
        (claims / "queries.jsonl").write_text(lines, encoding="utf-8")
        opened = open_collection(claims, vectors="v", rewards="qrels", scale=Scale())

        assert (opened.base[:, 0] == np.arange(120)).all()

    def test_is_found_where_it_has_a_label(self, claims: Path) -> None:
        """It is what the query looks for."""
        with (claims / "qrels" / "test.tsv").open("a", encoding="utf-8") as labels:
            labels.write("p3\tp3\t1\n")
        opened = open_collection(claims, vectors="v", rewards="qrels", scale=Scale())

        assert opened.base[3, 0] == 3
        assert opened.base[4, 0] != 4

    def test_is_not_judged(self, claims: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`tttembed judge` asks nobody about it."""
        monkeypatch.chdir(claims)
        (claims / "judge_here.py").write_text(
            "from tttembed_rag.testing import FakeJudge\njudge = FakeJudge(lambda query, text: .5)\n", encoding="utf-8"
        )
        options = ("--vectors", "v", "--judge", "python:judge_here:judge", "--depth", "3", "--no-examination")
        done = CliRunner().invoke(main, ["judge", ".", *options, "--out", "scores.tsv"])
        pairs = [line.split("\t")[:2] for line in (claims / "scores.tsv").read_text(encoding="utf-8").splitlines()]

        assert done.exit_code == 0, done.output
        assert [pair for pair in pairs if pair[0] == pair[1]] == []

    def test_is_the_last_in_an_explanation(self, claims: Path) -> None:
        """Where all documents are looked at."""
        evidence = Evidence(9, 0.1, (0.02, 0.18), "published", "steady")
        offsets = Offsets([Offset("task", np.full(120, 0.001), 0.9, 9, evidence, task="claims")], width=120)
        moves = explain(claims, "p3", offsets, vectors="v", top=5).moves

        assert moves[0].document == "c3"
        assert "p3" not in [move.document for move in moves]
