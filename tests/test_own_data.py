"""Own data from the command line: the steps of a user with a file of votes, a log of searches, or a store."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tttembed_store import open_store

from tttembed_rag import Evidence, Offset, Offsets, Rewards, Scale
from tttembed_rag.cli import main
from tttembed_rag.cli.rows import collections_of
from tttembed_rag.evaluate.files import write_beir
from tttembed_rag.rewards.rows import read_votes
from tttembed_rag.testing import FakeEmbedder

# Users want official pages of what they ask; the embedding model knows the topics, and nothing of what is official.
KINDS = ("official page", "forum thread", "old mirror", "blog entry")
TOPICS = [f"topic{i}" for i in range(60)]


def shown(topic: str) -> list[str]:
    """The documents that the retriever found for a query about *topic*: four of its own, and two of another."""
    other = TOPICS[(TOPICS.index(topic) + 1) % len(TOPICS)]
    return [*(f"{topic} {kind}" for kind in KINDS), *(f"{other} {kind}" for kind in KINDS[:2])]


ROWS = [(f"how does {topic} work", text, text == f"{topic} {KINDS[0]}") for topic in TOPICS for text in shown(topic)]
EMBED = "python:tttembed_rag.testing:FakeEmbedder"
JUDGE = "python:judge_of_test:judge"
STORE = "sqlite:///t.db"


def run(*arguments: Any) -> Result:
    """The command with these arguments."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder with a judge of the user's own in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge_of_test.py").write_text(
        "from tttembed_rag.judges.examination import answers\n"
        "from tttembed_rag.testing import FakeJudge\n"
        "def score(query, text):\n"
        "    good = 'official' in text and text.split()[0] in query.split() or text == answers().get(query)\n"
        "    return 0.9 if good else 0.1\n"
        "judge = FakeJudge(score)\n",
        encoding="utf-8",
    )
    return tmp_path


def write_model(name: str, options: str) -> str:
    """A module of the current folder with an embedding model of the user's own; its spec."""
    code = f"from tttembed_rag.testing import FakeEmbedder\nmodel = FakeEmbedder({options})\n"
    Path(f"{name}.py").write_text(code, encoding="utf-8")
    return f"python:{name}:model"


def write_votes(path: Path, column: str, good: Any, bad: Any) -> None:
    """A file of votes, one row a document, as CSV or JSON lines."""
    rows = [{"query": query, "document": text, column: good if liked else bad} for query, text, liked in ROWS]
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def import_file(file: str, *options: Any) -> Result:
    """The command that brings a file into the store of the test."""
    return run("store", "import", file, "--store", STORE, *options)


def write_log(path: Path, task: str | None = "docs") -> None:
    """A log of searches: six documents a query, in the order of the retriever."""
    lines = [
        {
            "query_id": topic,
            "query": f"how does {topic} work",
            **({} if task is None else {"task": task}),
            "candidates": [{"id": text.replace(" ", "-"), "text": text} for text in shown(topic)[::-1]],
        }
        for topic in TOPICS
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def finds_official_pages(offsets: Offsets, task: str | None = None) -> float:
    """Of queries that nobody judged, the share that finds its official page first, less the share without offsets."""
    model = FakeEmbedder()
    topics = [f"unseen{i}" for i in range(40)]
    queries = model.embed_queries([f"how does {topic} work" for topic in topics])
    firsts = []
    for vectors in (offsets.apply(queries, task=task), queries):
        documents = [model.embed_documents([f"{topic} {kind}" for kind in KINDS]) for topic in topics]
        firsts.append(np.mean([np.argmax(texts @ query) == 0 for texts, query in zip(documents, vectors, strict=True)]))
    return float(firsts[0] - firsts[1])


# What is no file of votes, and what is said of it.
NO_VOTES = {
    "": "votes.csv: expected at least one row with query, document (or text), and one of reward, thumb, click",
    "query,document,thumb\n": "votes.csv: expected at least one row below the titles, found none",
    "query,thumb\nq,1\n": "votes.csv:1: expected query, document (or text), and one of reward, thumb, click",
    "how to pay,a page,1\n": "and one of reward, thumb, click, success; task, source where several, got how",
    "<html><body>sign in</body></html>": "task, source where several, got <html><body>sign in</body></html>",
    "query,document,thumb,click\nq,d,1,1\n": "votes.csv:1: expected one column of reward, thumb, click, success",
    "query,query,document,thumb\nq,q,d,1\n": "votes.csv:1: expected different columns, got query twice",
    "query,document,thumb\nq,,1\n": "votes.csv:2: document: expected a text, got ''",
    "query,document,thumb\nq,well, d,1\n": "votes.csv:2: expected 3 fields, got 4: a text with ',' in it",
    'query,document,thumb\nq,d,1\nq,"e,1\nq,f,1\n': "votes.csv:3: expected comma-separated values (unexpected",
    "query,document,thumb\nq,d\n": "votes.csv:2: thumb: expected up, down, 1 or -1, got nothing",
    "query,document,thumb\nq,d,maybe\n": "votes.csv:2: thumb: expected up, down, 1 or -1, got 'maybe'",
    "query,document,thumb\nq,d,5\n": "votes.csv:2: value: expected for thumb 1 up, -1 down, 0 taken back, got 5",
    "query,document,thumb\nq,a,1\nq,b,0\nq,c,0\n": "votes.csv: value: 2 of 3 thumbs are 0",
    "query,document,click,position\nq,d,1,2.5\n": "votes.csv:2: position: expected a whole number, got 2.5",
    '{"query": "q", "document": "d", "click": 1, "task": 0}': "votes.csv:1: task: expected a text, got 0",
    'query,document,thumb\nq,d,1\nq,"e" f,1\n': "votes.csv:3: expected comma-separated values (",
    "query,document,click,position\nq,d,1,0\n": "votes.csv:2: position: expected 1 or more, got 0",
    "query,document,rating\nq,d,90%\n": "votes.csv:2: rating: expected a number, got '90%'",
    "query;document;reward\nq;d;1,000\n": "reward: expected a number, got '1,000', whose comma may divide",
    **{
        f"query,document,grade\nq,a,{low}\nq,b,{high}\n": (
            f"3, 5, 10 or 100, got whole numbers from {low} to {high}: name their --scale"
        )
        for low, high in ((0, 2), (0, 4), (1, 20), (0, 230))
    },
    "query,text,score,label\nq,d,.8,0\n": "click, success, got score, label",
    "query,text,score,vote\nq,d,.8,1\n": "click, success, got score, vote",
    f'{{"query": "q", "document": "d", "reward": 1{"0" * 400}}}': "votes.csv:1: reward: expected a number, got 1000",
    "query,document,rating\nq,d,up\n": "votes.csv:2: rating: expected a number, got 'up'",
    "query,document,reward\nq,d,nan\n": "votes.csv:2: reward: expected a number, got 'nan'",
    "query,document,reward\nq,d,1e999\n": "votes.csv:2: reward: expected a number, got '1e999'",
    "query,document,reward\nq,a,.5\nq,d,4\n": "votes.csv:3: rewards: expected scale probability in [0, 1], got 4",
    "query,document,reward\nq,a,4.2\nq,d,-3.1\n": "rubric:0,100, of any real numbers logit)",
    "query,document,thumb\nq,d,1\ncaf\udce9,d,1\n": "votes.csv:3: expected UTF-8 text, got other bytes: save",
    "\x1f\udc8b\udcff": "votes.csv:1: expected UTF-8 text, got a file compressed by gzip: unpack it",
    "PK\x03\x04\udcff": "got a spreadsheet or another zip file: save it as CSV",
    "PAR1\udcff": "got Parquet: write it as CSV or JSON lines",
    '{"query": "q", "docu': "votes.csv:1: expected one JSON object a line, got text that is no JSON",
    '[{"query": "q"': "votes.csv: expected JSON lines or a JSON list, got text that is no JSON",
    '["q", "d", 1]': "votes.csv:1: expected one JSON object a line, got str",
    '{"query": "q", "document": "d"}\n': "votes.csv:1: expected query, document (or text), and one of reward",
    '{"query": 5, "document": "d", "thumb": 1}\n': "votes.csv:1: query: expected a text, got 5",
    '{"query": "q", "document": "d", "thumb": 1, "Thumb": -1}': (
        "than case and spaces, got query, document, thumb, Thumb"
    ),
}


# Code of no embedding function, and what is said of it.
NO_EMBEDDER = {
    "def embed(texts): raise ValueError('no key')": "got ValueError (HERE/mine.py:1): no key",
    "def embed(texts): return [1.0, 2.0]": "(60, d) for a list of 60 texts, got shape (2,)",
    "def embed(texts): return None": "(60, d) for a list of 60 texts, got None",
    "def embed(texts): return [[1.0] * (1 + i % 2) for i, _ in enumerate(texts)]": "rows of different lengths",
    "async def embed(texts): return [[1.0]]": "got a coroutine",
    "class embed:\n def embed_query(self, text): return 'a'\n def embed_documents(self, texts): ...": (
        "embed.embed_query: expected one vector (d,) for a text, got a text"
    ),
    "class embed:\n fingerprint = ''\n embed_documents = len\n def embed_queries(self, t): return [[1.0]]": (
        "embed.embed_queries: expected vectors (60, d) for a list of 60 texts, got shape (1, 1)"
    ),
    "embed = 1 / 0": "expected an importable MODULE:NAME in 'python:mine:embed' (ZeroDivisionError: ",
}


class TestVotes:
    """`tttembed fit votes.csv --embed SPEC --out offsets.safetensors`."""

    @pytest.mark.parametrize(
        ("name", "column", "good", "bad"),
        [
            ("votes.csv", "thumb", 1, -1),
            ("votes.jsonl", "success", True, False),
        ],
    )
    def test_one_command_from_votes_to_a_gain(self, here: Path, name: str, column: str, good: Any, bad: Any) -> None:
        """What was learned is published, names its embedding model, and helps queries that nobody judged."""
        write_votes(here / name, column, good, bad)

        result = run("fit", name, "--embed", EMBED, "--out", "offsets.safetensors")

        assert result.exit_code == 0, result.output
        assert "published" in result.output
        offsets = Offsets.load("offsets.safetensors")
        assert offsets.settings["embedder"] == "fake"
        assert finds_official_pages(offsets) > 0.3

    def test_the_answer_is_a_few_lines(self, here: Path) -> None:
        """Private offsets are counted in one line, unless all are asked for."""
        write_votes(here / "votes.csv", "thumb", 1, -1)
        command = ("fit", "votes.csv", "--embed", EMBED, "--out", "o.safetensors", "--scope", "query")

        short, whole = run(*command).output.splitlines(), run(*command, "--all").output.splitlines()

        assert len(short) <= 6
        assert any("60 private offsets" in line and "--all lists them" in line for line in short)
        assert len(whole) > 60

    def test_many_tasks_are_counted(self, here: Path) -> None:
        """Ten have lines of their own, those that are served first; the rest is counted."""
        rows = [f"{query},{text},{int(liked)},of {query.split()[2]}" for query, text, liked in ROWS]
        (here / "votes.csv").write_text("\n".join(["query,document,success,task", *rows]), encoding="utf-8")

        lines = run("fit", "votes.csv", "--embed", EMBED, "--out", "o", "--scope", "task").output.splitlines()

        assert len(lines) <= 14
        assert [line for line in lines if line.startswith("and 50 more tasks, ")]

    @pytest.mark.parametrize(
        ("options", "code"), [((), "TTT-G01"), (("--trusted",), "TTT-G00"), (("--untrusted",), "TTT-G01")]
    )
    def test_somebody_may_vouch_for_few_verdicts(self, here: Path, options: tuple[str, ...], code: str) -> None:
        """What three verdicts cannot prove is served where the user declares the judge."""
        write_votes(here / "votes.csv", "reward", 0.9, 0.2)
        lines = (here / "votes.csv").read_text(encoding="utf-8").splitlines()
        (here / "few.csv").write_text("\n".join(lines[:7]), encoding="utf-8")

        result = run("fit", "few.csv", "--embed", EMBED, "--out", "o.safetensors", *options)

        assert result.exit_code == 0, result.output
        assert Offsets.load("o.safetensors")["local:default"].evidence.code == code

    @pytest.mark.parametrize(("content", "reason"), NO_VOTES.items())
    def test_what_is_no_file_of_votes_is_one_line(self, here: Path, content: str, reason: str) -> None:
        """With exit code 2, what was expected and what came; nothing is embedded."""
        (here / "votes.csv").write_text(content, encoding="utf-8", errors="surrogateescape")

        result = run("fit", "votes.csv", "--embed", EMBED, "--out", "o.safetensors")

        assert result.exit_code == 2
        assert reason in result.output
        assert not (here / "o.safetensors").exists()

    @pytest.mark.parametrize(("code", "reason"), NO_EMBEDDER.items())
    def test_an_embedding_function_that_is_wrong_is_one_line(
        self, here: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
    ) -> None:
        """What was called, what was expected and what came; no traceback."""
        write_votes(here / "votes.csv", "thumb", 1, -1)
        (here / "mine.py").write_text(code, encoding="utf-8")
        monkeypatch.setattr(sys, "path", [str(here), *sys.path])
        monkeypatch.delitem(sys.modules, "mine", raising=False)

        result = run("fit", "votes.csv", "--embed", "python:mine:embed", "--out", "o.safetensors")

        assert result.exit_code == 2
        assert isinstance(result.exception, SystemExit)
        assert reason.replace("HERE", str(here)) in result.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (
            ["query,document,thumb", *(f"a page on {topic} {'word ' * 20},{topic} x,1" for topic in TOPICS)],
            "warning: votes.csv: queries have 118 characters, documents 9: are the two columns exchanged?",
        ),
        (
            ["query,document,thumb", "q1,d1,1", "q1,d2,-1"],
            "warning: votes.csv: documents are single words, such as 'd1': expected their texts, not their ids",
        ),
        (["query,question,document,thumb", "q,r,a b,1"], "votes.csv: query is read as query, not question"),
        (
            ["query,document,score,feedback", "q,a b,.8,thanks a lot", "q,b c,.2,bad"],
            "votes.csv: feedback is not read, as not all that stands in it are votes",
        ),
    ],
)
def test_what_is_odd_is_asked_about(
    here: Path, caplog: pytest.LogCaptureFixture, content: list[str], warning: str
) -> None:
    """And learned from: a line says what it may be."""
    (here / "votes.csv").write_text("\n".join(content), encoding="utf-8")

    result = run("fit", "votes.csv", "--embed", EMBED, "--out", "o.safetensors")

    assert result.exit_code == 0
    assert warning in result.output + "\n".join(caplog.messages)


class TestMeasured:
    """`tttembed eval` and `explain` of the file that `fit` takes."""

    def test_a_file_of_votes_is_measured(self, here: Path) -> None:
        """On queries that were not learned from, by the votes on them; the closing lines say by what labels."""
        write_votes(here / "votes.csv", "reward", 0.9, 0.2)

        options = ("--rewarded", 59, "--seeds", 0, "--scopes", "auto", "--holdout", 0.01, "--json", "o")
        result = run("eval", "votes.csv", "--embed", EMBED, *options)
        (auto,) = (
            row for row in json.loads(Path("o").read_text()) if (row["scope"], row["population"]) == ("auto", "heldout")
        )

        assert result.exit_code == 0, result.output
        assert auto["delta"] > 0.3
        assert (auto["rewards"], auto["simulated"], auto["dataset"]) == ("votes.csv", False, "default")
        assert "auto helps queries that nobody judged" in result.output
        assert "Labels of votes.csv: a document is worth as much as its reward lies above the least" in result.output

    def test_a_page_shows_what_the_last_line_says(self, here: Path) -> None:
        """The same means, and the queries one by one: each once, with its lists, by name and not by digest."""
        write_votes(here / "votes.csv", "reward", 0.9, 0.2)
        options = ("--rewarded", "8,54", "--holdout", "0.1", "--seeds", "0,1", "--scopes", "auto", "--json", "o")
        result = run("eval", "votes.csv", "--embed", EMBED, *options, "--html", "page.html")
        page = Path("page.html").read_text(encoding="utf-8")
        rows = [row for row in json.loads(Path("o").read_text()) if (row["scope"], row["rewarded"]) == ("auto", 54)]
        low, delta, high, after = (
            np.mean([row[name] for row in rows if row["population"] == "heldout"])
            for name in ("ci_low", "delta", "ci_high", "ndcg10")
        )
        shown = re.findall(r"<summary><span.*?</span> (.*?)</summary>", page)

        assert result.output.splitlines()[-1] == "Report: page.html"
        assert f"to {after:.3f} ({delta:+.3f}, 90 % interval [{low:+.3f}, {high:+.3f}])" in page
        assert page.count('title="the best for this query"') > len(shown)
        assert len(shown) == len(set(shown)) > 3
        assert set(shown) <= {query for query, _, _ in ROWS}
        assert [words for words in ("<script", "<link", "<img", "url(http") if words in page] == []

    @pytest.mark.parametrize(("sources", "published"), [(1, False), (20, True)])
    def test_votes_are_measured_by_their_sources(self, here: Path, sources: int, published: bool) -> None:
        """What one source alone said is not published, neither by `fit` nor by `eval`; of twenty it is."""
        rows = [
            f"{query},{text},{1 if liked else -1},u{TOPICS.index(query.split()[2]) % sources}"
            for query, text, liked in ROWS
        ]
        (here / "votes.csv").write_text("\n".join(["query,document,thumb,source", *rows]), encoding="utf-8")

        run("fit", "votes.csv", "--embed", EMBED, "--out", "o.safetensors", "--scope", "task")
        few = ("--rewarded", 59, "--seeds", 0, "--scopes", "task", "--gate", "on", "--holdout", 0.01, "--json", "o")
        run("eval", "votes.csv", "--embed", EMBED, *few)
        task = Offsets.load("o.safetensors")["task:default"]
        measured = [row for row in json.loads(Path("o").read_text()) if row["scope"] == "task"]

        assert task.served is published
        assert {row["published"] for row in measured} == {published}
        assert published or all("one source alone" in row["reason"] for row in measured)

    def test_several_files_are_several_tasks(self, here: Path) -> None:
        """Rows and lines that name no task are of one that is called like their file."""
        write_votes(here / "votes.csv", "reward", 0.9, 0.2)
        write_log(here / "log.jsonl", task=None)
        run("judge", "log.jsonl", "--judge", JUDGE, "--out", "scores/mine.tsv")
        files = ("votes.csv", "log.jsonl", "--rewards", "mine", "--embed", EMBED)

        result = run("eval", *files, "--rewarded", 9, "--seeds", 0, "--scopes", "task", "--gate", "off", "--json", "o")

        assert result.exit_code == 0, result.output
        named = {(row["dataset"], row["rewards"]) for row in json.loads(Path("o").read_text())}
        assert named == {("votes", "votes.csv"), ("log", "mine")}

    def test_rows_become_labels(self, here: Path) -> None:
        """By task; the mean of a pair, where each source counts once; its gain lies above the query's least."""
        lines = ["query,document,reward,task,source"]
        lines += ["q,a,1,one,u", "q,a,0,one,u", "q,a,1,one,v", "q,b,0.5,one,u", "q,a,0,two,u", "q,c,1,two,"]
        (here / "scores.csv").write_text("\n".join(lines), encoding="utf-8")

        model = FakeEmbedder(width=4)
        first, second = collections_of(
            Rewards.from_texts(
                read_votes(here / "scores.csv", scale=Scale(), task="rest"),
                embed_query=lambda text: model.embed_queries([text])[0],
                embed_documents=model.embed_documents,
            )
        )

        of_first, of_second = first.dataset, second.dataset
        assert (of_first.name, of_second.name) == ("one", "two")
        assert list(of_first.documents) == list(of_second.documents) == ["a", "b", "c"]
        assert (first.scores, second.scores) == ({"q": {"a": 0.75, "b": 0.5}}, {"q": {"a": 0.0, "c": 1.0}})
        assert (of_first.qrels, of_second.qrels) == ({"q": {"a": 0.25, "b": 0.0}}, {"q": {"a": 0.0, "c": 1.0}})
        assert first.sources == {"q": {"u": {"a": 0.5, "b": 0.5}, "v": {"a": 1.0}}}

    def test_a_judged_log_is_measured(self, here: Path) -> None:
        """By its scores, as a task of its own."""
        write_log(here / "log.jsonl")
        run("judge", "log.jsonl", "--judge", JUDGE, "--out", "scores/mine.tsv")
        few = ("--rewarded", 59, "--seeds", 0, "--scopes", "auto", "--holdout", 0.01, "--embed", EMBED)

        measured = run("eval", "log.jsonl", "--rewards", "mine", *few)

        assert "docs: with 59 judged queries, auto helps" in measured.output

    def test_a_query_of_a_file_is_explained(self, here: Path) -> None:
        """By its text, without naming a task; its documents once each, with what was said of them."""
        write_votes(here / "votes.csv", "reward", 0.9, 0.2)
        run("fit", "votes.csv", "--embed", EMBED, "--out", "o.safetensors")
        query = ROWS[0][0]

        lines = run("explain", "votes.csv", query, "--offsets", "o.safetensors", "--embed", EMBED).output.splitlines()

        assert lines[0] == query
        (official,) = (line for line in lines if line.endswith(f"  topic0 {KINDS[0]}  words: topic0"))
        assert "-> 1 " in official
        assert "reward 0.9 " in official

    def test_a_query_of_two_tasks_is_explained_in_one(self, here: Path) -> None:
        """What is told was said of a document in the task that is named."""
        lines = ["query,document,reward,task", "q,a,0.9,one", "q,b,0.2,one", "q,a,0.3,two", "q,b,0.8,two"]
        (here / "scores.csv").write_text("\n".join(lines), encoding="utf-8")
        vector, evidence = np.ones(64), Evidence(9, 0.1, (0.05, 0.15), "published", "steady")
        Offsets([Offset("global", vector, 0.9, 9, evidence)], width=64).save("o")

        for task, of_a, of_b in (("one", 0.9, 0.2), ("two", 0.3, 0.8)):
            result = run("explain", "scores.csv", "q", "--offsets", "o", "--embed", EMBED, "--task", task, "--json")
            facts = json.loads(result.stdout)
            moves = [move for kind in ("rose", "fell", "kept") for move in facts[kind]]
            assert {move["document"]: move["reward"] for move in moves} == {"a": of_a, "b": of_b}

    def test_scores_too_low_for_their_scale_are_doubted(self, here: Path) -> None:
        """Scores in [0, 1] that are declared as grades up to 5 teach little: a line says so."""
        write_log(here / "log.jsonl")
        run("judge", "log.jsonl", "--judge", JUDGE, "--out", "scores/mine.tsv")
        few = ("--rewarded", 4, "--seeds", 0, "--scopes", "task", "--embed", EMBED)

        result = run("eval", "log.jsonl", "--rewards", "mine", "--scale", "rubric:0,5", *few)

        assert "on scale rubric:0,5 no score lies above 0.9: scores in [0, 1] are on scale prob" in result.output

    def test_fit_says_what_counts_as_one_query(self, here: Path) -> None:
        """Where the gate counts fewer queries than there are, the last line has both numbers."""
        rows = [f"{query}{mark},{text},{int(liked)}" for query, text, liked in ROWS for mark in ("", "?")]
        (here / "votes.csv").write_text("\n".join(["query,document,success", *rows]), encoding="utf-8")

        *_, last = run("fit", "votes.csv", "--embed", EMBED, "--out", "o").output.splitlines()

        assert "from 120 rewarded queries (the gate counts 60: near repeats of a query" in last


class TestLog:
    """A log of searches, judged and learned from."""

    def test_a_log_that_was_judged_can_be_learned_from(self, here: Path) -> None:
        """`judge LOG`, then `fit LOG`: the two commands of a user without vectors and without a store.

        A document without a text is judged and left out, which is said.
        """
        write_log(here / "log.jsonl")
        lines = (here / "log.jsonl").read_text().replace('"text": "topic0 blog entry"', '"text": " "')
        (here / "log.jsonl").write_text(lines)
        judged = run("judge", "log.jsonl", "--judge", JUDGE, "--out", "scores/mine.tsv")
        learned = run("fit", "log.jsonl", "--rewards", "mine", "--embed", EMBED, "--out", "o.safetensors")

        assert (judged.exit_code, learned.exit_code) == (0, 0), judged.output + learned.output
        assert "log.jsonl: 1 judged pairs without a text are left out" in learned.stderr
        assert finds_official_pages(Offsets.load("o.safetensors"), "docs") > 0.3

    def test_a_folder_without_vectors_is_judged_and_learned_from(self, here: Path) -> None:
        """Two commands from texts alone to offsets that name the model; a log needs no vectors to be judged."""
        folder = here / "docs"
        corpus = [(f"d{i}", "", text) for i, text in enumerate(dict.fromkeys(text for _, text, _ in ROWS))]
        queries = {f"q{i}": query for i, query in enumerate(dict.fromkeys(query for query, _, _ in ROWS))}
        write_beir(folder, corpus, queries, {})
        shutil.rmtree(folder / "qrels")

        judged = run(
            "judge", folder, "--judge", JUDGE, "--embed", EMBED, "--vectors", "mine", "--out", folder / "scores/j.tsv"
        )
        learned = run("fit", folder, "--vectors", "mine", "--rewards", "j", "--out", here / "o.safetensors")

        assert judged.exit_code == learned.exit_code == 0, judged.output + learned.output
        assert (folder / "vectors" / "mine.npz").is_file()
        offsets = Offsets.load(here / "o.safetensors")
        assert offsets["local:docs"].n == len(queries)
        assert offsets.settings["embedder"] == FakeEmbedder().fingerprint


class TestStore:
    """A log in a store, judged and learned from by the worker."""

    def test_no_judge_is_paid_where_nothing_could_be_learned(self, here: Path) -> None:
        """A store of texts alone is refused before the first question to the judge, with what to do."""
        write_log(here / "log.jsonl")
        imported = import_file("log.jsonl")
        refused = run("worker", STORE, "--once", "--judge", JUDGE)

        assert "60 of 60 queries and 240 of 240 documents have no vector" in imported.output
        assert refused.exit_code == 2
        assert "judging is not begun: give --embed SPEC" in refused.output
        with open_store(STORE) as store:
            assert store.counts().rewards == 0

    def test_vectors_are_made_by_a_worker_that_is_told_the_model(self, here: Path) -> None:
        """It judges, learns and publishes."""
        write_log(here / "log.jsonl")
        import_file("log.jsonl")
        worked = run("worker", STORE, "--once", "--judge", JUDGE, "--embed", EMBED)

        assert worked.exit_code == 0, worked.output
        with open_store(STORE) as store:
            live = store.serving().version
            assert store.vectors.lacking().texts == 0
        assert live is not None, worked.output
        assert live.embedder == "fake"
        assert finds_official_pages(live.offsets, "docs") > 0.3

    def test_votes_are_rewards_that_a_worker_learns_from(self, here: Path) -> None:
        """A file as `fit` takes it, by users: their votes are published from, and each is one voice."""
        write_votes(here / "votes.csv", "thumb", 1, -1)
        imported = import_file("votes.csv", "--embed", EMBED)
        worked = run("worker", STORE, "--once")

        assert imported.output == f"60 queries with {len(ROWS)} votes of votes.csv\n"
        assert worked.exit_code == 0, worked.output
        with open_store(STORE) as store:
            live = store.serving().version
            assert store.counts().rewards == len(ROWS)
        assert live is not None, worked.output
        assert finds_official_pages(live.offsets) > 0.3

    def test_vectors_of_another_model_are_not_made_in_silence(self, here: Path) -> None:
        """Texts that have vectors keep them: a line says what gives them those of the model that was named."""
        write_votes(here / "votes.csv", "thumb", 1, -1)
        write_model("other", "fingerprint='other'")
        first, second = (import_file("votes.csv", "--embed", embed).output for embed in (EMBED, "python:other:model"))

        assert "reembed" not in first
        assert "60 of 60 queries and 240 of 240 documents have no vector of other: `tttembed store reembed" in second

    def test_votes_of_a_store_keep_their_sources_and_tasks(self, here: Path) -> None:
        """Two users say different things of a pair; a later file adds to what was said before."""
        for name, row in (("a.csv", "q,d,5,ann,docs"), ("b.csv", "q,d,2,bob,docs"), ("c.csv", "q,e,1,ann,docs")):
            (here / name).write_text(f"query,text,rating,source,task\n{row}\n", encoding="utf-8")
            assert import_file(name, "--scale", "rubric:1,5", "--embed", EMBED).exit_code == 0

        with open_store(STORE) as store:
            rewards = store.rewards("votes")

        assert (rewards.sources.tolist(), set(rewards.tasks.tolist())) == (["ann", "bob"], {"docs"})
        assert sorted(rewards.values.tolist()) == [0.0, 0.25, 1.0]

    def test_a_new_embedding_model_learns_from_what_was_judged(self, here: Path) -> None:
        """Texts are embedded anew beside the old vectors, and rewards that are there teach the new model."""
        write_votes(here / "votes.csv", "thumb", 1, -1)
        new = write_model("new_model", "width=32, fingerprint='new'")
        import_file("votes.csv", "--embed", EMBED)
        counted = run("store", "reembed", "--store", STORE, "--embed", new, "--dry-run")
        done = run("store", "reembed", "--store", STORE, "--embed", new)
        again = run("store", "reembed", "--store", STORE, "--embed", new)
        learned = run("fit", STORE, "--embed", new, "--out", "new.safetensors")
        with open_store(STORE) as store:
            widths = {name: store.rewards("votes", embedder=name).width for name in ("fake", "new")}

        assert counted.output == "60 of 60 queries and 240 of 240 documents have no vector of new\n"
        assert done.output == "300 texts embedded by new\n"
        assert again.output == "0 texts embedded by new\n"
        assert learned.exit_code == 0, learned.output
        assert widths == {"fake": 64, "new": 32}
        offsets = Offsets.load("new.safetensors")
        assert (offsets.width, offsets.settings["embedder"]) == (32, "new")

    def test_a_run_that_was_stopped_goes_on(self, here: Path) -> None:
        """What was embedded before a failure is kept, and is not embedded again."""
        write_log(here / "log.jsonl")
        import_file("log.jsonl")
        batches: list[int] = []

        class Failing(FakeEmbedder):
            def embed_documents(self, texts: Any) -> Any:
                batches.append(len(texts))
                if len(batches) == 2:
                    raise TimeoutError
                return super().embed_documents(texts)

        with open_store(STORE) as store:
            with pytest.raises(TimeoutError):
                store.vectors.fill(Failing(), "fake")
            before = store.vectors.lacking("fake")
            after = store.vectors.fill(FakeEmbedder(), "fake")

        assert (before.queries, before.documents) == (0, 240 - 128)
        assert after.texts == 0

    def test_vectors_of_one_name_have_one_width(self, here: Path) -> None:
        """Another model under the same name is refused."""
        write_log(here / "log.jsonl")
        import_file("log.jsonl", "--embed", EMBED)
        wide = write_model("wide", "width=8")
        lines = (here / "log.jsonl").read_text(encoding="utf-8").replace("topic", "other")
        (here / "more.jsonl").write_text(lines, encoding="utf-8")

        result = import_file("more.jsonl", "--embed", wide)

        assert result.exit_code == 2
        assert "expected width 64 as of all vectors of embedder 'fake', got 8" in result.output


class TestAudit:
    """A person's labels decide whether what the judge claims is so."""

    def test_to_a_spreadsheet_and_back(self, here: Path) -> None:
        """Pairs are drawn into a CSV; labels that agree confirm the offsets, labels that deny them withhold all."""
        write_votes(here / "votes.csv", "reward", 1, 0)
        drawn = run("audit", "draw", "votes.csv", "--embed", EMBED, "--out", "pairs.csv", "--count", 60)
        with (here / "pairs.csv").open(encoding="utf-8-sig", newline="") as file:
            pairs = list(csv.DictReader(file))
        liked = {(query, text): good for query, text, good in ROWS}
        served = {}
        for name, honest in (("right", True), ("wrong", False)):
            with (here / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                rows = csv.DictWriter(file, ["query_id", "doc_id", "label"])
                rows.writeheader()
                for pair in pairs:
                    good = liked[pair["query_id"], pair["doc_id"]]
                    rows.writerow(pair | {"label": int(good == honest)})
                rows.writerow({"query_id": "left", "doc_id": "empty", "label": ""})
            made = run("fit", "votes.csv", "--embed", EMBED, "--audit", f"{name}.csv", "--out", "audited.safetensors")
            offsets = Offsets.load(here / "audited.safetensors")
            served[name] = sum(offset.served for offset in offsets.values())
            assert made.exit_code == 0, made.output

        assert drawn.output == "pairs.csv: 60 pairs to label\n"
        # A spreadsheet takes it for UTF-8 where a mark of byte order stands before it.
        assert (here / "pairs.csv").read_bytes().startswith(b"\xef\xbb\xbfquery_id,doc_id,label")
        assert (len(pairs), {pair["label"] for pair in pairs}) == (60, {""})
        assert served["right"] > 0
        assert served["wrong"] == 0


@pytest.fixture
def data(here: Path) -> Path:
    """A folder with votes, a log that begins with a mark, offsets and models, and with files that lack something."""
    write_votes(here / "votes.csv", "thumb", 1, -1)
    write_log(here / "log.jsonl")
    (here / "log.jsonl").write_bytes(b"\xef\xbb\xbf" + (here / "log.jsonl").read_bytes())
    for name, text in {
        "broken.jsonl": '{"query": "q", ',
        "all-bad.csv": "query,document,thumb\nq,a,-1\nq,b,-1\n",
        "columns.csv": "query,label\n",
        "words.csv": "query_id,doc_id,label\nq,d,good\n",
        "others.csv": "query_id,doc_id,label\nq,d,1\n",
    }.items():
        (here / name).write_text(text, encoding="utf-8")
    write_model("other", "fingerprint='other'")
    vector, evidence = np.ones(64), Evidence(9, 0.1, (0.05, 0.15), "published", "steady")
    offset = Offset("task", vector, 0.9, 9, evidence, task="default")
    Offsets([offset], width=64, settings={"embedder": "fake"}).save("o")
    return here


FIT = f"fit votes.csv --embed {EMBED} --out new"
EVAL = f"eval votes.csv --embed {EMBED}"
EXPLAIN = f"explain votes.csv '{ROWS[0][0]}' --offsets o --embed"
FEW = "--embed python:mine:none"
OF_VOTES = (FIT, EVAL, f"{EXPLAIN} {EMBED}")
MISTAKES = {
    f"fit none.csv {FEW} --out new": "none.csv: expected a file with query, document (or text), and one",
    f"fit none {FEW} --out new": "none: expected a file with query, document (or text), and one of",
    f"fit . {FEW} --out new": "expected a file of rows or a BEIR folder, found a folder without corpus",
    f"{FIT} --scale logit": "votes.csv: expected rewards for scale logit, got a column thumb",
    f"fit broken.jsonl {FEW} --out new": "broken.jsonl:1: expected one JSON object a line",
    "fit votes.csv --embed python:mine --out new": "expected python:MODULE:NAME, got 'python:",
    f"judge votes.csv --judge {JUDGE}": "votes need no judge: tttembed fit votes.csv",
    f"fit log.jsonl {FEW} --out new": "`tttembed judge log.jsonl ...` writes it",
    f"eval log.jsonl {FEW}": "`tttembed judge log.jsonl ...` writes it",
    f"judge log.jsonl --judge {JUDGE} --embed {EMBED}": "--embed: expected a folder, got",
    # what a command needs besides
    "fit votes.csv --out new": "--embed: expected the embedding model that your index was built with",
    "eval votes.csv": "--embed: expected the embedding model that your index was built with",
    "explain votes.csv q0 --offsets o": "--embed: expected the embedding model",
    f"explain votes.csv q0 --offsets o --embed {EMBED}": "expected the text of a query of",
    f"{EXPLAIN} python:other:model": "expected the model of the offsets, fake, got other",
    f"eval all-bad.csv --embed {EMBED}": "expected rewards that differ in at least half of the queries",
    f"eval none.json --embed {EMBED}": "none.json: expected a file of rows or a BEIR folder",
    f"eval {STORE} --embed {EMBED}": "expected a folder or a file, got a URL: stores are not taken",
    f"explain none.json q0 --offsets o --embed {EMBED}": "none.json: expected a file of rows or a BEIR folder",
    f"explain {STORE} q0 --offsets o --embed {EMBED}": "expected a folder or a file, got a URL: stores are not taken",
    # options that say nothing of votes: none is taken and ignored
    **{f"{command} --vectors 3": "Error: --vectors: expected a BEIR folder, got votes.csv\n" for command in OF_VOTES},
    **{
        f"{command} --rewards 3": "Error: --rewards: expected a BEIR folder or a judged log, got votes.csv\n"
        for command in OF_VOTES
    },
    f"{FIT} --depth 3": "Error: --depth: expected a BEIR folder, got votes.csv\n",
    **{
        f"{FIT} {option} 3": f"Error: {option}: expected a store, got votes.csv\n"
        for option in ("--judge", "--tenant", "--last")
    },
    # where results go
    f"eval votes.csv {FEW} --scopes task --html p": "Error: --html: expected auto among --scopes, got task\n",
    f"eval votes.csv {FEW} --html none/p": "Error: none/p: expected a file in an existing folder\n",
    f"fit votes.csv --embed {EMBED} --out -": "-: expected a file",
    f"fit votes.csv --embed {EMBED} --out .": ".: expected a file in an existing folder",
    f"{EVAL} --html -": "-: expected a file",
    f"audit draw votes.csv --embed {EMBED} --out -": "-: expected a file",
    f"judge log.jsonl --judge {JUDGE} --out -": "-: expected a file",
    # labels
    f"{FIT} --audit columns.csv": "columns.csv: expected columns query_id, doc_id, label, found no",
    f"{FIT} --audit words.csv": "words.csv:2: expected a label from 0 to 1, got 'good'",
    f"{FIT} --audit others.csv": "others.csv: expected labels of queries of votes.csv, as '",
}


@pytest.mark.parametrize(("command", "reason"), MISTAKES.items())
def test_a_mistake_is_one_line(data: Path, command: str, reason: str) -> None:
    """With exit code 2, it says what would have been right; nothing is written."""
    before = {path.name for path in data.iterdir()}
    result = run(*shlex.split(command))

    assert result.exit_code == 2
    assert reason in result.output
    assert {path.name for path in data.iterdir() if not path.name.startswith((".known", "__"))} <= before


def of_shared_words() -> Iterator[str]:
    """Votes that count the words which a document shares with its query."""
    for number in range(12):
        words = [f"word{number}x{place}" for place in range(5)]
        for shared in range(5):
            yield f"{' '.join(words)},{' '.join([*words[:shared], *['other'] * (5 - shared)])},{shared / 5}"


def test_a_judge_that_does_not_read_is_told(here: Path) -> None:
    """`fit` prints a warning, and `show` repeats it; what is learned stays learned."""
    (here / "votes.csv").write_text("\n".join(["query,document,reward", *of_shared_words()]), encoding="utf-8")

    fitted = run("fit", "votes.csv", "--embed", EMBED, "--out", "o.safetensors")
    again = run("show", "o.safetensors")

    assert fitted.exit_code == 0, fitted.output
    for result in (fitted, again):
        assert "warning: rewards repeat how many words documents share with their query" in result.output


class TestPlaces:
    """What a command reads and writes, and where."""

    COMMAND = ("fit", "votes.csv", "--embed", EMBED)

    def test_a_cache_that_cannot_be_written_is_a_warning(self, here: Path) -> None:
        """As beside data of another user, or on a medium that is read alone: vectors are kept in memory."""
        write_votes(here / "votes.csv", "thumb", 1, -1)
        (here / ".known-vectors.sqlite").mkdir()  # no user may write that
        fitted = run(*self.COMMAND, "--out", "o")
        measured = run("eval", "votes.csv", "--embed", EMBED, "--rewarded", 9, "--seeds", 0, "--scopes", "auto")

        assert (fitted.exit_code, measured.exit_code) == (0, 0), fitted.output + measured.output
        for result in (fitted, measured):
            assert result.output.count("warning: vectors are kept for this command alone: ") == 1

    def test_commands_share_their_vectors(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They lie beside the votes, wherever the offsets go: no text is embedded twice."""
        (here / "data").mkdir()
        write_votes(here / "data" / "votes.csv", "thumb", 1, -1)
        embedded: list[int] = []
        embed = FakeEmbedder.embed_documents
        count = lambda self, texts: embedded.append(len(texts)) or embed(self, texts)  # noqa: E731
        monkeypatch.setattr(FakeEmbedder, "embed_documents", count)
        run("fit", "data/votes.csv", "--embed", EMBED, "--out", "o")
        before = sum(embedded)
        run("fit", "data/votes.csv", "--embed", EMBED, "--out", "p")
        run("eval", "data/votes.csv", "--embed", EMBED, "--rewarded", 9, "--seeds", 0, "--scopes", "auto")

        assert sum(embedded) == before > 0
        assert [path.name for path in here.glob(".known*")] == []

    @pytest.mark.parametrize(("command", "source"), [("fit", "ada"), ("fit", ""), ("eval", "ada")])
    def test_votes_with_a_source_are_never_vouched_for(self, here: Path, command: str, source: str) -> None:
        """--trusted says so where it means nothing."""
        rows = [f"{query},{text},{1 if liked else -1},{source}" for query, text, liked in ROWS]
        (here / "votes.csv").write_text("\n".join(["query,document,thumb,source", *rows]), encoding="utf-8")
        options = {"fit": ("--out", "o"), "eval": ("--rewarded", 9, "--seeds", 0, "--scopes", "auto")}[command]
        result = run(command, "votes.csv", "--embed", EMBED, "--trusted", *options)

        assert result.exit_code == 0, result.output
        assert ("warning: --trusted: rewards with a source are never vouched for" in result.output) is bool(source)

    def test_a_store_may_be_named_by_a_variable(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A URL with a password is readable by every user of the machine as an argument."""
        open_store("sqlite:///s.db").close()
        monkeypatch.setenv("MINE", "sqlite:///s.db")
        monkeypatch.setenv("TTTEMBED_STORE", "sqlite:///s.db")

        assert run("worker", "--once").exit_code == 0
        assert run("worker", "env:MINE", "--once").exit_code == 0
        assert run("show", "env:MINE").exit_code == 0
        assert "expected the URL of a store in the environment variable NONE" in run("show", "env:NONE").output
