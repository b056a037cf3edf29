"""The demo: its story, its report, its offsets file, and the real embedding model behind it."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tttembed_rag import Offsets, Scale
from tttembed_rag.demo.report import is_answer, sentence
from tttembed_rag.demo.run import _example, run_demo, standard_library
from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.evaluate.explaining import Move

NAME = "tools & <b>toys"
PARAPHRASES = [
    ("How do I copy a file?", "Duplicate a file to another place"),
    ("Sort a list of numbers", "Put numbers into ascending order"),
    ("Parse a date from text", "Turn a string into a calendar date"),
    ("Send an e-mail", "Mail a message to somebody"),
    ("Compress a folder", "Make a zip archive of a directory"),
    ("Pick a random card", "Choose an item by chance"),
    ("Wait for five seconds", "Pause the program for a while"),
    ("Read a table of values", "Load comma separated data"),
    ("Download a web page", "Fetch a document over HTTP"),
    ("Hash a password", "Compute a digest of a secret"),
]
HOSTILE_QUERY, HOSTILE_DOCUMENT = '<script>alert("query")</script>', "<img src=x onerror=alert(1)>"
DOCUMENTS, QUERIES, WIDTH = 150, 100, 40


def write_folder(folder: Path) -> Path:
    """A BEIR folder with hostile texts, whose queries all lean along one direction that an offset can undo.

    The judge `<i>noise` scored every pair at random.
    """
    rng = np.random.default_rng(3)
    docs = rng.standard_normal((DOCUMENTS, WIDTH)) * np.r_[2.5, np.ones(WIDTH - 1)]
    docs /= np.linalg.norm(docs, axis=1, keepdims=True)
    noise = rng.standard_normal((QUERIES, WIDTH))
    queries = docs[:QUERIES] + 0.5 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    queries[:, 0] += 1.0
    for part in ("qrels", "scores", "vectors"):
        (folder / part).mkdir(parents=True)
    doc_ids = [f"{HOSTILE_DOCUMENT}{d}" for d in range(DOCUMENTS)]
    query_ids = [f"q{q}" for q in range(QUERIES)]
    tables = {
        "corpus.jsonl": [json.dumps({"_id": doc_id, "text": "A tool."}) for doc_id in doc_ids],
        "queries.jsonl": [json.dumps({"_id": query_id, "text": HOSTILE_QUERY}) for query_id in query_ids],
        "qrels/test.tsv": ["header", *(f"q{q}\t{doc_ids[q]}\t1" for q in range(QUERIES))],
        "scores/<i>noise.tsv": ["header", *(f"{q}\t{d}\t{rng.random():.3f}" for q in query_ids for d in doc_ids)],
    }
    for part, lines in tables.items():
        (folder / part).write_text("\n".join(lines) + "\n", encoding="utf-8")
    np.savez(folder / "vectors" / "tiny.npz", doc_ids=doc_ids, docs=docs, query_ids=query_ids, queries=queries)
    return folder


@dataclass(frozen=True)
class Demo:
    """What one run of the demo left."""

    lines: list[str]
    rows: list[dict[str, Any]]
    out: Path

    @property
    def html(self) -> str:
        """The report."""
        return (self.out / "report.html").read_text(encoding="utf-8")


def demo(folder: Path, out: Path, rewards: str, seeds: tuple[int, ...]) -> Demo:
    """The demo on a folder."""
    lines: list[str] = []
    rows = run_demo(folder, "tiny", rewards, Scale(), seeds, out, lines.append)
    return Demo(lines, rows, out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a planted gain and hostile texts."""
    return write_folder(tmp_path_factory.mktemp("beir") / NAME)


@pytest.fixture(scope="module")
def published(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo where rewards are worth something."""
    return demo(folder, tmp_path_factory.mktemp("out") / "deep" / "inside", "qrels", (0, 1))


@pytest.fixture(scope="module")
def abstained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo where the judge scores at random."""
    return demo(folder, tmp_path_factory.mktemp("out"), "<i>noise", (0,))


def held_out(rows: list[dict[str, Any]], rewarded: int, *, gated: bool) -> list[dict[str, Any]]:
    """The held-out rows of the task offset at one budget."""
    wanted = {"scope": "task", "population": "heldout", "rewarded": rewarded, "gated": gated}
    return [row for row in rows if wanted.items() <= row.items()]


# The story


def test_the_story_starts_with_the_data(published: Demo) -> None:
    """The first line counts documents and queries and calls the labels' role a simulation."""
    assert published.lines[0] == "150 documents, 100 queries, rewards: task success, simulated by the labels"


def test_a_real_judge_is_named(abstained: Demo) -> None:
    """A judge with stored scores is called by its name, and nothing is called simulated."""
    assert abstained.lines[0] == "150 documents, 100 queries, rewards: <i>noise"


def test_the_story_has_a_line_per_budget(published: Demo) -> None:
    """Each budget has one line of raw, changes, interval, worst split and published splits, as in the rows."""
    for rewarded in (8, 16, 32, 50):
        gated, plain = (held_out(published.rows, rewarded, gated=value) for value in (True, False))
        change = np.mean([row["delta"] for row in gated])
        low, high = (np.mean([row[key] for row in gated]) for key in ("ci_low", "ci_high"))
        expected = [
            str(rewarded),
            f"{np.mean([row['raw_ndcg10'] for row in gated]):.3f}",
            f"{np.mean([row['delta'] for row in plain]):+.3f}",
            f"{change:+.3f}",
            f"[{low:+.3f},",
            f"{high:+.3f}]",
            f"{min(row['delta'] for row in gated):+.3f}",
            f"{sum(row['published'] for row in gated)}/2",
        ]

        assert expected in [line.split() for line in published.lines]


def test_the_planted_gain_is_published(published: Demo) -> None:
    """At the largest budget both splits publish, and held-out queries gain."""
    rows = held_out(published.rows, 50, gated=True)

    assert [row["published"] for row in rows] == [True, True]
    assert all(row["ci_low"] > 0 for row in rows)


def test_the_verdict_is_told(published: Demo) -> None:
    """The offset of the first split is told with its verdict, gain, interval and reason."""
    offset = Offsets.load(published.out / "offsets.safetensors")[f"task:{NAME}"]

    assert f"The offset of split 0, 50 rewarded queries: {offset.evidence}" in published.lines
    assert str(offset.evidence).startswith("published: held-out gain +")


def test_abstaining_is_told(abstained: Demo) -> None:
    """Where the gate abstains the verdict says so, and there is no example to show."""
    (verdict,) = [line for line in abstained.lines if line.startswith("The offset of split 0")]

    assert ": abstained: " in verdict
    assert [line for line in abstained.lines if line.startswith("Most improved")] == []


def test_judged_queries_are_told_apart(published: Demo) -> None:
    """The line on judged queries is of the rewarded population: raw, direct rerank, private offsets."""
    wanted = {"population": "rewarded", "rewarded": 50}
    rows = [row for row in published.rows if wanted.items() <= row.items()]
    raw, rerank, private = (
        np.mean([row["ndcg10"] for row in rows if row["scope"] == scope and row["gated"] == gated])
        for scope, gated in (("raw", False), ("rerank", False), ("query", True))
    )

    told = [line for line in published.lines if line.startswith("raw ")]

    assert told == [f"raw {raw:.3f}  direct rerank {rerank:.3f}  private offsets {private:.3f}"]


def test_the_story_ends_with_the_files(published: Demo) -> None:
    """The last line says where report and offsets lie, and they do."""
    report, offsets = published.out / "report.html", published.out / "offsets.safetensors"

    assert published.lines[-1] == f"Report: {report}   Offsets: {offsets}"
    assert sorted(path.name for path in published.out.iterdir()) == ["offsets.safetensors", "report.html"]


# The files


def test_the_offsets_serve(published: Demo) -> None:
    """The saved offsets load, and shift a query of the data set's task."""
    offsets = Offsets.load(published.out / "offsets.safetensors")

    query = np.ones(WIDTH)

    assert list(offsets) == [f"task:{NAME}"]
    assert offsets.apply(query, task=NAME).tolist() != query.tolist()


def test_abstaining_offsets_leave_queries_alone(abstained: Demo) -> None:
    """Offsets of an abstaining gate are saved with their reason and shift nothing."""
    offsets = Offsets.load(abstained.out / "offsets.safetensors")

    query = np.ones(WIDTH)

    assert offsets[f"task:{NAME}"].evidence.verdict == "abstained"
    assert offsets.apply(query, task=NAME).tolist() == query.tolist()


def test_the_report_has_its_drawings_inside(published: Demo) -> None:
    """The report is one file: levels, gains, course and judged levels are drawn, nothing is loaded from elsewhere."""
    html = published.html

    assert html.count("<svg") == 4
    assert [part for part in ("<script", "<link", "<img", "<iframe", "@import", "url(http") if part in html] == []


def test_the_report_escapes_texts(published: Demo) -> None:
    """Hostile queries, document ids and names are shown as text, never as markup."""
    html = published.html

    assert "&lt;script&gt;alert(&#34;query&#34;)&lt;/script&gt;" in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html
    assert "<h1>tools &amp; &lt;b&gt;toys</h1>" in html
    assert [part for part in (HOSTILE_QUERY, HOSTILE_DOCUMENT, NAME) if part in html] == []


def test_the_report_escapes_the_judge(abstained: Demo) -> None:
    """A hostile judge's name is shown as text."""
    assert "rewards: &lt;i&gt;noise" in abstained.html
    assert "<i>noise" not in abstained.html


def test_the_report_has_the_verdict(published: Demo, abstained: Demo) -> None:
    """The report opens with what the gate decided."""
    verdicts = [
        re.search(r'class="verdict[ good]*">Learned from \d+ rewarded queries, (\w+):', d.html)
        for d in (published, abstained)
    ]

    assert [found and found[1] for found in verdicts] == ["published", "abstained"]


def test_the_report_has_a_row_per_budget(published: Demo) -> None:
    """The table on held-out queries has the four budgets."""
    assert [n for n in (8, 16, 32, 50) if f'<th scope="row" class="number">{n}</th>' in published.html] == [
        8,
        16,
        32,
        50,
    ]


def test_the_report_answers_first_what_held_out_queries_gain(published: Demo) -> None:
    """In one sentence and three levels: those of the split that the offset is of, as in the rows."""
    (row,) = [row for row in held_out(published.rows, 50, gated=True) if row["seed"] == 0]
    raw, served = row["raw_ndcg10"], row["ndcg10"]

    assert f"goes from {raw:.3f} to {served:.3f} ({served - raw:+.3f}, 95 % interval" in published.html
    assert f"served: with offsets {served:.3f}" in published.html
    assert f"direct rerank: the judge asked at every request {raw + row['rerank_delta']:.3f}" in published.html


def test_the_report_has_lists_only_if_published(published: Demo, abstained: Demo) -> None:
    """Held-out queries are shown before and after where an offset is served, and none otherwise."""
    assert 5 <= published.html.count('<details class="query"') <= 15
    assert abstained.html.count("<details") == 0
    assert "No example: nothing was published" in abstained.html
    assert "stays at" in abstained.html


def test_documents_without_a_label_are_called_not_judged(published: Demo) -> None:
    """The labels name one document of each query: the others of its list are hatched."""
    assert published.html.count('<li class="unjudged">') > published.html.count('class="reward good"') > 0


def test_examples_are_held_out_queries_from_best_to_worst(published: Demo) -> None:
    """The examples go from the most improved to the most harmed."""
    titles = ("Most improved: ", "In the middle: ", "Most harmed: ")

    told = [line for line in published.lines if line.startswith(titles)]

    changes = [float(line.split()[-1]) - float(line.split()[-3]) for line in told]
    assert [line[: len(title)] for line, title in zip(told, titles, strict=True)] == list(titles)
    assert changes == sorted(changes, reverse=True)
    assert changes[0] > 0


# Moves


@pytest.fixture(scope="module")
def fan() -> Collection:
    """Twelve documents `a` to `l` fanned out over a quarter and more of a circle, and a query next to `a`."""
    angles = np.radians(np.arange(0, 120, 10))
    documents = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    query = np.array([[np.cos(np.radians(-1)), np.sin(np.radians(-1))]])
    dataset = Dataset("fan", dict.fromkeys("abcdefghijkl", ""), {"q": "a query"}, {"q": {"l": 1.0, "b": 0.0}})
    return Collection.of(dataset, documents, query, embedder="fan")


def moved_to(fan: Collection, degrees: float) -> np.ndarray:
    """The query turned to another angle."""
    return np.array([[np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]])


def ranks(moves: Sequence[Move]) -> list[tuple[str, int | None, int | None]]:
    """Moves as (document, rank before, rank after), None beyond the first ten."""
    return [
        (move.document, *(rank if rank <= 10 else None for rank in (move.rank_before, move.rank))) for move in moves
    ]


def test_moves_of_a_reversed_list(fan: Collection) -> None:
    """A query turned to the far end reverses its list: the last six rise, the first six fall."""
    shifted = moved_to(fan, 111)

    example = _example("Turned", fan, 0, shifted, fan.measure(shifted, np.array([0])))

    assert ranks(example.rose) == [
        ("l", None, 1),
        ("k", None, 2),
        ("j", 10, 3),
        ("i", 9, 4),
        ("h", 8, 5),
        ("g", 7, 6),
    ]
    assert ranks(example.fell) == [
        ("f", 6, 7),
        ("e", 5, 8),
        ("d", 4, 9),
        ("c", 3, 10),
        ("a", 1, None),
        ("b", 2, None),
    ]


def test_only_documents_of_positive_grade_are_answers(fan: Collection) -> None:
    """Of the labelled documents only the relevant one is called an answer."""
    shifted = moved_to(fan, 111)

    example = _example("Turned", fan, 0, shifted, fan.measure(shifted, np.array([0])))

    assert [move.document for move in example.rose + example.fell if is_answer(move)] == ["l"]


def test_an_example_has_both_measures(fan: Collection) -> None:
    """nDCG@10 before and after are those of the two lists."""
    shifted = moved_to(fan, 111)

    example = _example("Turned", fan, 0, shifted, fan.measure(shifted, np.array([0])))

    assert (example.query, example.before, example.after) == ("a query", 0.0, 1.0)


def test_documents_that_stay_do_not_move(fan: Collection) -> None:
    """A turn past one neighbour swaps two documents and moves nothing else."""
    shifted = moved_to(fan, 6)

    example = _example("Turned", fan, 0, shifted, fan.measure(shifted, np.array([0])))

    assert (ranks(example.rose), ranks(example.fell)) == ([("b", 2, 1)], [("a", 1, 2)])


def test_moves_read_as_a_sentence() -> None:
    """A move names the document, its ranks and whether it is an answer."""
    assert sentence(Move("d7", "", 11, 3, 0.5, 0.6, 1.0)) == "d7 beyond 10 -> #3 (an answer)"
    assert sentence(Move("d8", "", 2, 12, 0.6, 0.5, None)) == "d8 #2 -> beyond 10"


# The real thing


@pytest.mark.slow
def test_the_built_in_requests_have_answers() -> None:
    """Every request of the built-in demo has an answer among the documents."""
    dataset = standard_library()

    assert len(dataset.queries) > 160
    assert [query for query, answers in dataset.qrels.items() if not answers.keys() <= dataset.documents.keys()] == []


@pytest.fixture(scope="module")
def embedded() -> tuple[np.ndarray, str]:
    """Ten pairs of paraphrases embedded by all-MiniLM-L6-v2, and what that wrote to a piped stderr."""
    code = (
        "import io, sys, numpy; from tttembed_rag.embedders import minilm\n"
        "numpy.save(file := io.BytesIO(), minilm().embed_documents(sys.stdin.read().splitlines()))\n"
        "sys.stdout.buffer.write(file.getvalue())"
    )
    texts = "\n".join(text for pair in PARAPHRASES for text in pair).encode()
    done = subprocess.run([sys.executable, "-c", code], check=True, input=texts, capture_output=True)
    return np.load(io.BytesIO(done.stdout)), done.stderr.decode()


def test_the_packaged_model_gives_unit_vectors(embedded: tuple[np.ndarray, str]) -> None:
    """all-MiniLM-L6-v2, run for real, gives a unit vector of width 384 per text, as float32."""
    vectors, _ = embedded

    assert (vectors.shape, vectors.dtype) == ((20, 384), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_the_packaged_model_understands_sentences(embedded: tuple[np.ndarray, str]) -> None:
    """Every sentence is nearer to its own paraphrase than to anybody else's."""
    vectors, _ = embedded

    similarities = vectors[0::2] @ vectors[1::2].T

    assert similarities.argmax(axis=1).tolist() == list(range(len(PARAPHRASES)))


def test_embedding_is_quiet_in_a_pipe(embedded: tuple[np.ndarray, str]) -> None:
    """Where no person watches, embedding draws no progress bar."""
    _, stderr = embedded

    assert stderr == ""
