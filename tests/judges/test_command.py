"""The command `tttembed judge`, and judge → fit → eval as a person runs it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from tttembed_rag.cli import main
from tttembed_rag.evaluate.collection import open_collection
from tttembed_rag.evaluate.files import load_beir, write_beir, write_vectors
from tttembed_rag.judging.covering import in_covering_order
from tttembed_rag.rewards.events import SIGNALS
from tttembed_rag.rewards.observations import Served
from tttembed_rag.rewards.scales import Scale


def judge(source, spec, *options):
    """What `tttembed judge` says of a folder or a log."""
    return tttembed("judge", source, "--judge", spec, *options)


def tttembed(*arguments):
    """The command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="tttembed")


@pytest.fixture
def folder(tmp_path):
    """A BEIR folder: 12 queries of two words, 30 documents of which two each share a word."""
    rng, path = np.random.default_rng(3), tmp_path / "set"
    corpus = [(f"d{i}", "", f"word{i // 2} filler{i}") for i in range(30)]
    queries = {f"q{i}": f"word{i} word{i + 1}" for i in range(12)}
    write_beir(path, corpus, queries, {f"q{i}": {f"d{2 * i}": 1.0} for i in range(12)})
    vectors = rng.standard_normal((30, 16)), rng.standard_normal((12, 16))
    write_vectors(path, "minilm", load_beir(path), *vectors, fingerprint="minilm")
    return path


@pytest.fixture
def spec(cohere):
    """The judge behind the server, in one line."""
    return f"http+cohere:{cohere.url.removeprefix('http:')}"


def judged(folder, lines, *options, log="", file="feedback.csv"):
    """What `tttembed judge` says of a log with one query, or of a folder, and a file of feedback with these lines."""
    source, feedback = folder, folder / file
    feedback.write_text(lines, encoding="utf-8")
    if log:
        source = folder / "served.jsonl"
        candidates = [{"id": name, "text": name.upper()} for name in log]
        source.write_text(json.dumps({"query_id": "q", "query": "Q", "candidates": candidates}), encoding="utf-8")
    suffix, *others = options or [""]
    return judge(source, f"feedback:{feedback}{suffix}", *others)


def rows(path):
    """Lines of a scores file below the header, as fields."""
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    assert header == "query-id\tcorpus-id\tscore"
    return [line.split("\t") for line in lines]


def test_judges_a_folder(folder, cohere, spec):
    """Every query's first candidates get a reward; the line tells what it cost and where it lies."""
    result = judge(folder, f"{spec}?model=m", "--depth", "5", "--price", "request=0.5", "--budget", "usd=100")

    assert result.exit_code == 0, result.output
    (written,) = (folder / "scores").glob("*.tsv")
    assert len(rows(written)) == 60
    assert {"0", "0.5", "1"} > {reward for _, _, reward in rows(written)} > {"0"}
    assert result.stdout.startswith("judged: 60 of 60 pairs, 0 known before, ")
    assert f", $18.0000; 0 without a score; written to {written} (scale: probability)\n" in result.stdout
    assert len(cohere.asked) == 24 + 12  # the examination is paid for, too


def test_what_it_writes_is_what_eval_reads(folder, spec):
    """The rewards feed `tttembed eval` without a word about scales."""
    out = folder / "scores" / "overlap.tsv"
    assert judge(folder, spec, "--depth", "10", "--out", out).exit_code == 0

    done = tttembed("eval", folder, "--rewards", "overlap", "--rewarded", "6", "--depth", "5", "--json", "-")
    assert done.exit_code == 0, done.output
    assert {row["rewards"] for row in json.loads(done.stdout)} == {"overlap"}


def test_a_dry_run_asks_nothing_and_writes_nothing(folder, cohere, spec):
    """The forecast is printed from texts alone; not a file is made."""
    before = sorted(folder.rglob("*"))
    result = judge(folder, spec, "--depth", "5,10", "--budget", "pairs=70", "--price", "request=0.5", "--dry-run")

    assert result.stdout.startswith("forecast: 70 of 70 pairs, 0 known before, at most ")
    known = "at most $19.0000, with its examination if it has not passed that before; time unknown before"
    assert known in result.stdout
    assert cohere.asked == []
    assert before == sorted(folder.rglob("*"))


def test_queries_that_say_most_are_judged_first(folder, cohere, spec):
    """With --order cover a cap leaves those that `in_covering_order` puts last, and more pairs judge the next."""
    of = open_collection(folder, vectors="minilm", rewards="qrels", scale=Scale())
    lists = zip(of.dataset.queries.items(), of.base[:, :5].tolist(), strict=True)
    documents = list(of.dataset.documents.items())
    served = [
        Served.of_texts(name, text, [documents[row] for row in rows], of.dataset.name) for (name, text), rows in lists
    ]
    expected = [observation.query_id for observation in in_covering_order(served, of.query_vectors, key=b"1000")]
    judged = []
    for cap in ("pairs=15", "pairs=30"):
        judge(folder, spec, "--depth", "5", "--order", "cover", "--budget", cap, "--out", folder / "scores.tsv")
        judged.append([query for query, *_ in rows(folder / "scores.tsv")][::5])

    assert judged == [expected[:3], expected[:6]]


def test_a_log_has_no_vectors_of_its_queries(tmp_path):
    """The order that covers needs a model for it, and says so before anybody is asked."""
    log = tmp_path / "served.jsonl"
    lines = [
        {"query_id": f"q{row}", "query": f"word{row % 3}", "candidates": [{"id": "a", "text": "A"}]} for row in range(6)
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    command = (log, "http+cohere://127.0.0.1:9", "--order", "cover", "--dry-run")

    without, embedded = judge(*command), judge(*command, "--embed", "python:tttembed_rag.testing:FakeEmbedder")

    assert without.exit_code == 2
    assert "--order cover: expected --embed SPEC with a log" in without.stderr
    assert embedded.exit_code == 0, embedded.output


@pytest.mark.parametrize(("cap", "queries"), [(13.5, 3), (11.9, 0)])
def test_a_cap_on_money_is_told(folder, cohere, spec, cap, queries):
    """What was judged is written; where the examination alone would use up the money, not even that is asked."""
    options = ("--depth", "5", "--budget", f"usd={cap}", "--price", "request=0.5")
    result = tttembed("judge", folder, "--judge", spec, *options)

    assert result.exit_code == 0
    assert "stopped: budget: the next answer could exceed a cap; raise it and run again to continue" in result.stdout
    (written,) = (folder / "scores").glob("*.tsv")
    assert len(rows(written)) == 5 * queries
    assert len(cohere.asked) == (24 + queries) * bool(queries)


def test_votes_need_no_price_and_no_labels(folder):
    """A cap on money holds by itself where nothing costs any."""
    (folder / "qrels" / "test.tsv").unlink()
    votes = "query_id,doc_id,signal,value\nq1,d1,thumb,1\n"
    result = judged(folder, votes, "", "--depth", "30", "--budget", "usd=1,tokens=0")

    assert result.exit_code == 0, result.output
    assert "judged: 360 of 360 pairs, 0 known before, 0 tokens, no price known; 359 without a score" in result.stdout
    assert rows(folder / "scores" / "feedback.tsv") == [["q1", "d1", "0.75"]]


def test_a_judge_that_breaks_down_is_told_to_scripts(folder, serve):
    """What was scored is written, and the exit code is 1."""

    def answer(_path, body, n):
        scores = [1.0 - i / 100 for i in range(len(body["documents"]))]
        results = [{"index": i, "relevance_score": score} for i, score in enumerate(scores)]
        return (200, {}, {"results": results}) if n < 4 else (400, {}, {"message": "out of order"})

    spec = f"http+cohere:{serve(answer).url.removeprefix('http:')}"
    done = judge(folder, spec, "--no-examination", "--depth", "5", "--concurrency", "1")

    assert done.exit_code == 1
    assert "out of order" in done.stdout
    (written,) = (folder / "scores").glob("*.tsv")
    assert len(rows(written)) == 15


def test_a_judge_that_cannot_judge_is_refused(folder, serve):
    """The examination ends the command before anything is scored, with exit code 2 and one line."""
    results = [{"index": i, "relevance_score": 0.5} for i in range(2)]
    server = serve(lambda *_: (200, {}, {"results": results}))
    result = judge(folder, f"http+cohere:{server.url.removeprefix('http:')}")

    assert result.exit_code == 2
    assert "expected to pass its examination, got 0 of 24 questions right and 0 reversed" in result.stderr
    assert len(server.asked) == 24
    assert not list((folder / "scores").glob("*.tsv"))


def test_judges_a_log_with_feedback(tmp_path):
    """A log of served queries and a file of clicks make rewards."""
    result = judged(tmp_path, "query_id,doc_id,signal,value,position\nq,b,click,1,2\n", log="ab")

    assert result.exit_code == 0, result.output
    assert rows(tmp_path / "scores" / "feedback.tsv") == [["q", "b", "0.75"]]
    assert "1 without a score" in result.stdout


def test_judgments_take_their_scale_from_the_options(tmp_path):
    """And a pair without a judgment has no score."""
    result = judged(tmp_path, "q 0 d 2\n", "?scale=rubric:0,2", "--json", log="de", file="qrels.txt")
    other = judged(tmp_path, "q 0 d 2\n", "?grades=2", log="de", file="qrels.txt")

    assert rows(tmp_path / "scores" / "qrels.tsv") == [["q", "d", "1"]]
    assert (json.loads(result.stdout)["pairs"], json.loads(result.stdout)["unjudged"]) == (2, 1)
    assert other.exit_code == 2
    assert "expected options scale in" in other.stderr


def test_thumbs_down_written_as_zero_are_refused(folder):
    """A file of votes 1 and 0 is not read as one of votes that were taken back."""
    result = judged(folder, "query_id,doc_id,signal,value\nq1,d1,thumb,1\nq2,d2,thumb,0\nq3,d3,thumb,0\n")

    assert result.exit_code == 2
    assert "2 of 3 thumbs are 0" in result.stderr
    assert not list((folder / "scores").glob("*.tsv"))


def test_every_signal_is_explained():
    """The help says which signals there are and what their values mean."""
    printed = " ".join(tttembed("judge", "--help").stdout.split())

    assert [signal for signal in SIGNALS if f"{signal} (" not in printed] == []


@pytest.mark.parametrize("option", [None, "elsewhere.sqlite"])
def test_paid_scores_lie_where_the_option_says(folder, spec, option):
    """Beside the result without it."""
    judge(folder, spec, "--depth", "1", *(["--cache", folder / option] if option else []))

    assert list(folder.rglob("*.sqlite")) == [folder / (option or "scores/.paid-scores.sqlite")]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("magic:8ball {}", "judge: expected yesno:MODEL"),
        ("feedback:none.csv {}", "none.csv: expected feedback, found no file"),
        ("http+cohere://127.0.0.1:9 {} --budget pairs=x", "budget: expected"),
        ("http+cohere://127.0.0.1:9 {} --budget usd=1", "price: expected one"),
        ("http+cohere://127.0.0.1:9 {} --depth 0", "depths: expected rising numbers >= 1, got [0]"),
        ("http+cohere://127.0.0.1:9 {} --depth ,", "depths: expected rising numbers >= 1, got []"),
        ("feedback:x.csv {}/none", "none: expected a BEIR folder or a log of served queries, found none"),
    ],
)
def test_bad_input_is_one_line(folder, options, reason):
    """Exit code 2 and the reason."""
    result = tttembed("judge", "--judge", *options.format(folder).split())

    assert result.exit_code == 2
    assert reason in result.stderr
