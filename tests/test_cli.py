"""The `tttembed` command: what it writes where, and how it refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from tttembed_tools.demo import tools

import tttembed_rag
from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.cli import main
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.evaluate.files import load_beir, write_beir, write_scores, write_vectors
from tttembed_rag.evaluate.summary import conclusions
from tttembed_rag.offsets.floor import Floor
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.offsets.rerankskips import Skips

MEANS = ("raw_ndcg10", "ndcg10", "delta", "rerank_delta", "harmed_fraction")
MEAN = ["mean", "of", "the", "sets"]
SMALL = ("--vectors", "tiny", "--rewarded", "4", "--seeds", "0", "--depth", "5")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BEIR folder of 60 random documents and 30 queries near one each, judged as `judge` and as `grades`."""
    rng = np.random.default_rng(5)
    docs, path = rng.standard_normal((60, 8)), tmp_path / "small"
    queries = docs[:30] + rng.standard_normal((30, 8))
    scores = rng.random((30, 60)).round(3)
    corpus = [(f"d{d}", "", f"corpus {d}") for d in range(60)]
    texts = {f"q{q}": f"queries {q}" for q in range(30)}
    write_beir(path, corpus, texts, {f"q{q}": {f"d{q}": 1.0} for q in range(30)})
    for judge, values in {"judge": scores, "grades": (3 * scores).round()}.items():
        rewards = {f"q{q}": {f"d{d}": values[q, d] for d in range(60)} for q in range(30)}
        write_scores(path / "scores" / f"{judge}.tsv", rewards)
    write_vectors(path, "tiny", load_beir(path), docs, queries, fingerprint="tiny")
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """An offsets file with a served, an abstaining and a private offset."""
    vector = np.array([0.25, -0.5], np.float32)
    offsets = [
        Offset("task", vector, 0.95, 19, Evidence(19, 0.04, (0.01, 0.07), "published", "steady"), task="billing"),
        Offset("task", 0 * vector, 0.0, 6, Evidence(6, 0.01, (-0.06, 0.08), "abstained", "too few", 30), task="legal"),
        Offset("query", vector, 0.5, 1, Evidence(1, None, None, "ungated", "no gate"), task="billing", query_id="q7"),
    ]
    path = tmp_path / "offsets.safetensors"
    Offsets(offsets, width=2).save(path)
    return path


def tttembed(*arguments: object) -> Result:
    """The command in this process, stdout and stderr apart."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="tttembed")


def table_of(printed: str) -> list[list[str]]:
    """The lines below the column titles, as words; an empty line ends the table."""
    return [line.split() for line in printed.partition("\n\n")[0].splitlines()[2:]]


# As a program


@pytest.mark.parametrize(
    "command", [[sys.executable, "-m", "tttembed_rag"], [str(Path(sys.executable).with_name("tttembed"))]]
)
def test_the_module_and_the_script_are_the_command(command: list[str]) -> None:
    """`python -m tttembed_rag` and the script beside this Python are `tttembed`, name and version included."""
    done = subprocess.run([*command, "--version"], check=True, capture_output=True, text=True)

    assert done.stdout == f"tttembed, version {tttembed_rag.__version__}\n"


@pytest.mark.slow
def test_a_pipe_gets_the_result_alone(folder: Path) -> None:
    """Piped, eval writes JSON to stdout and not a character to stderr."""
    command = [sys.executable, "-W", "error", "-m", "tttembed_rag", "eval", folder, *SMALL, "--json", "-"]

    done = subprocess.run(command, check=True, capture_output=True, text=True)

    assert done.stderr == ""
    assert {row["dataset"] for row in json.loads(done.stdout)} == {"small"}


def test_bad_input_ends_the_program_with_2(tmp_path: Path) -> None:
    """The exit code that a shell sees is 2, and no traceback comes with it."""
    command = [sys.executable, "-m", "tttembed_rag", "eval", tmp_path / "nowhere"]

    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {tmp_path / 'nowhere'}: expected a file of rows or a BEIR folder, found no such")


# Help


def test_help_fits_a_screen() -> None:
    """Every command is seen at once on a terminal of 24 lines of 80 characters, none cut short."""
    lines = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["--help"], prog_name="tttembed").stdout.splitlines()

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert [line for line in lines[1:] if line.endswith("...")] == []


def test_the_top_has_sixteen_commands_at_most() -> None:
    """Six of them are of tttembed-store and tttembed-tools; the others add theirs below a group."""
    added = sorted(entry_points(group="tttembed.commands").names)

    assert len(main.list_commands(click.Context(main))) <= 16
    assert added == ["demo", "report", "serve", "store", "tools", "worker"]


# Commands of other distributions


@pytest.mark.parametrize(
    ("arguments", "what", "distribution"),
    [
        (["worker", "sqlite:///a.db"], "`tttembed worker` is a command", "tttembed-store"),
        (["audit", "read", "a.csv"], "`tttembed audit read` is a command", "tttembed-store"),
        (["show", "sqlite:///a.db"], "what a store serves is known to a part", "tttembed-store"),
        (["fit", "sqlite:///a.db", "--out", "a"], "learning from a store is a part", "tttembed-store"),
        (["tools", "serve", "--catalog", "a.json"], "`tttembed tools` is a command", "tttembed-tools"),
        (["data", "NFCorpus"], "collections by name are a part", "tttembed-hosts"),
    ],
)
def test_what_another_distribution_brings_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], what: str, distribution: str
) -> None:
    """Without it, one line says what to install; it is not in the help."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tttembed_rag.system.extensions.entry_points", lambda **_: EntryPoints())

    done = CliRunner().invoke(main, arguments, prog_name="tttembed")

    installing = f"which is not installed; run: pip install {distribution}"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, f"Error: {what} of {distribution}, {installing}")
    assert "worker" not in CliRunner().invoke(main, ["--help"]).output


# Eval


def test_json_goes_to_the_file(folder: Path, tmp_path: Path) -> None:
    """--json FILE writes the rows there and still prints the table."""
    result = tttembed("eval", folder, *SMALL, "--json", tmp_path / "rows.json")

    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert {(row["scope"], row["simulated"]) for row in rows} == {("rerank", True), ("auto", True)}
    assert result.stdout.startswith("nDCG@10, mean of seeds")


def test_the_table_has_a_line_per_outcome(folder: Path) -> None:
    """Without --json a table shows held-out and rewarded queries, each baseline and scope once."""
    outcomes = [["auto"], ["global"], ["global", "ungated"], ["local"], ["local", "ungated"], ["query"]]
    outcomes += [["query", "ungated"], ["raw"], ["rerank"], ["task"], ["task", "ungated"]]
    expected = [[population, "4", *outcome] for population in ("heldout", "rewarded") for outcome in outcomes]
    every = ("--scopes", "global,task,local,query,auto", "--baselines", "raw,rerank")

    lines, default = (table_of(tttembed("eval", folder, *SMALL, *options).stdout) for options in (every, ()))

    assert expected == [line[1:-7] for line in lines]
    assert [line for line in expected if line[2:] in (["auto"], ["rerank"])] == [line[1:-7] for line in default]


def test_the_table_counts_the_queries_that_were_rewarded(folder: Path) -> None:
    """Of thirty queries, nine held out, 21 are rewarded at most, however many are asked for; they stand there once."""
    printed = tttembed("eval", folder, *SMALL, "--scopes", "auto", "--rewarded", "4,64,500").stdout

    assert [line[2] for line in table_of(printed)] == ["4", "4", "21", "21"] * 2
    assert "small: with 21 judged queries, auto" in printed


def test_the_table_ends_with_a_sentence(folder: Path) -> None:
    """Below it stands what the columns mean, and what `auto` did to queries that nobody judged."""
    *_, conclusion = tttembed("eval", folder, *SMALL).stdout.splitlines()

    sentence = r"small: with 4 judged queries, auto serves nothing, and nothing changes \(TTT-G\d\d(, TTT-G\d\d)*\)\."
    assert re.fullmatch(sentence, conclusion)


@pytest.mark.parametrize(
    ("low", "high", "word"), [(0.01, 0.05, "helps"), (-0.02, 0.06, "changes little for"), (-0.05, -0.01, "harms")]
)
def test_the_sentence_says_what_is_certain(low: float, high: float, word: str) -> None:
    """Whether the interval lies above zero, holds it, or lies below it; of the most judged queries."""
    row = {"ci_low": low, "delta": (low + high) / 2, "ci_high": high, "published": True, "rerank_delta": 0.1}
    row |= {"raw_ndcg10": 0.5, "ndcg10": 0.5 + (low + high) / 2, "harmed_fraction": 0.1, "left_out": 3}
    cells = {("wings", "heldout", judged, "auto"): [row | {"rewarded_queries": judged}] for judged in (16, 64)}

    (line,) = conclusions(cells)

    assert line.startswith(f"wings: with 64 judged queries, auto {word} queries that nobody judged: ")
    kept = f"{(low + high) / 2 / 0.1:.0%} of what direct rerank of these queries would gain."
    assert line.endswith(f"], {kept} 3 queries whose rewards do not differ are left out.")


def figures_of(rows: list[dict[str, Any]], published: str) -> list[str]:
    """The last words of a table's line: the means of *rows*, the worst change, and how many are published."""
    mean = {key: np.mean([row[key] for row in rows]) for key in MEANS}
    return [
        f"{mean['raw_ndcg10']:.3f}",
        f"{mean['ndcg10']:.3f}",
        f"{mean['delta']:+.3f}",
        f"{min(row['delta'] for row in rows):+.3f}",
        f"{mean['delta'] / mean['rerank_delta']:.0%}",
        f"{mean['harmed_fraction']:.1%}",
        published,
    ]


def test_the_table_shows_the_rows(folder: Path, tmp_path: Path) -> None:
    """A line is the mean over seeds of the rows it stands for; the last ones are means of all sets."""
    other, out = tmp_path / "other", tmp_path / "rows.json"
    shutil.copytree(folder, other)
    with np.load(other / "vectors" / "tiny.npz") as stored:
        changed = {**stored, "queries": stored["queries"] + 0.5}
    np.savez(other / "vectors" / "tiny.npz", **changed)
    arguments = ("--vectors", "tiny", "--rewarded", "8", "--seeds", "0,1", "--scopes", "task", "--baselines", "raw")
    printed = tttembed("eval", folder, other, *arguments, "--gate", "off", "--json", out).stdout
    rows = [row for row in json.loads(out.read_text()) if (row["population"], row["scope"]) == ("heldout", "task")]
    small = [row for row in rows if row["dataset"] == "small"]

    lines = [words for words in table_of(printed) if words[-10:-7] == ["8", "task", "ungated"] and "heldout" in words]

    assert [line[-7:] for line in lines if line[0] == "small"] == [figures_of(small, "2/2")]
    assert [line[-7:] for line in lines if line[:4] == MEAN] == [figures_of(rows, "4/4")]


@pytest.mark.parametrize(
    ("rewards", "title"),
    [
        (("--rewards", "qrels"), "nDCG@10, mean of seeds; rewards: qrels (simulated judge)"),
        (("--rewards", "judge"), "nDCG@10, mean of seeds; rewards: judge"),
    ],
    ids=["labels", "judge"],
)
def test_the_table_says_who_judged(folder: Path, rewards: tuple[str, ...], title: str) -> None:
    """The first line names the judge, and calls labels in that role a simulation."""
    assert title == tttembed("eval", folder, *SMALL, *rewards).stdout.splitlines()[0]


@pytest.mark.parametrize(
    ("options", "field", "values"),
    [
        (("--gate", "both"), "gated", {True, False}),
        (("--gate", "on"), "gated", {True}),
        (("--gate", "off"), "gated", {False}),
        ((), "objective", {"kd"}),
        (("--objective", "reverse_kl"), "objective", {"reverse_kl"}),
        (("--objective", "softmax_grpo"), "objective", {"softmax_grpo"}),
        ((), "solver", {"exact"}),
        (("--solver", "adam"), "solver", {"adam"}),
        (("--rewards", "grades", "--scale", "rubric:0,3"), "rewards", {"grades"}),
        # values separated by commas may have spaces around them
        (("--rewarded", "2, 4"), "rewarded", {2, 4}),
        (("--seeds", " 0 ,1"), "seed", {0, 1}),
    ],
)
def test_rows_follow_the_options(folder: Path, options: tuple[str, ...], field: str, values: set[object]) -> None:
    """What is asked for is what rows say of themselves."""
    few = (*SMALL, "--scopes", "global", "--baselines", "", "--json", "-")

    rows = json.loads(tttembed("eval", folder, *few, *options).stdout)

    assert {row[field] for row in rows} == values


@pytest.mark.parametrize(("rewards", "doubted"), [("judge", True), ("qrels", False)])
def test_scores_of_a_folder_are_doubted_on_a_rubric_up_to_more(folder: Path, rewards: str, doubted: bool) -> None:
    """Scores in [0, 1] alone are doubted in a line that names the folder; labels, which may be below 0, are not."""
    with (folder / "qrels" / "test.tsv").open("a", encoding="utf-8") as labels:
        labels.write("q0\td1\t-1\n")
    result = tttembed("eval", folder, *SMALL, "--scopes", "task", "--rewards", rewards, "--scale", "rubric:0,5")

    warned = [line for line in result.stderr.splitlines() if line.startswith(f"warning: {folder}: on scale rubric:0,5")]
    assert result.exit_code == 0
    assert len(warned) == doubted


def test_a_refused_plan_writes_no_rows(folder: Path, tmp_path: Path) -> None:
    """After an error there is no JSON file that looks like a result."""
    tttembed("eval", folder, *SMALL, "--rewards", "grades", "--json", tmp_path / "rows.json")

    assert not (tmp_path / "rows.json").exists()


# Show


def private(saved: Path) -> str:
    """The key of the private offset in a file, which does not name its query."""
    return Offsets.load(saved)["query:q7"].key


def test_show_prints_a_line_per_offset(saved: Path) -> None:
    """Show tells of each offset what happened, in one line; --verbose what it was learned from, and its dose."""
    expected = [
        "task:billing: published: +.040 nDCG@10 [+.010, +.070] on 19 held-out queries; steady",
        "  19 rewarded queries, dose 0.95",
        (
            "task:legal: abstained: about 30 more queries would settle it; "
            "+.010 nDCG@10 [-.060, +.080] on 6 held-out queries; too few"
        ),
        "  6 rewarded queries, dose 0.00",
        f"{private(saved)}: ungated: no gate",
        "  1 rewarded query, dose 0.50",
    ]

    assert expected == tttembed("show", saved, "--verbose").stdout.splitlines()
    assert expected[::2] == tttembed("show", saved).stdout.splitlines()


def test_show_tells_how_deep_a_reranker_must_look(tmp_path: Path) -> None:
    """Below the line of an offset stands how much reranking it spares."""
    evidence = Evidence(99, 0.1, (0.05, 0.15), "published", "steady", lost=(0.2, 0.05, 0.004, 0.002))
    skips = Skips((3.0, 2.0), (0.004, 0.01), 10)
    floor = Floor((0.0,) * 5, np.zeros((1, 2)), 0.0, 60, (0.125,), 1.0, (0.25,), (0.04,))
    offset = Offset("task", np.ones(2, np.float32), 0.9, 99, evidence, task="billing", skips=skips, floor=floor)
    Offsets([offset], width=2).save(path := tmp_path / "offsets.safetensors")

    lines = tttembed("show", path).stdout.splitlines()
    record = json.loads(tttembed("show", path, "--json").stdout)

    assert lines[1:] == [
        "  rerank 3 instead of 4: at most 0.01 nDCG@10 lost (90 %), 25% fewer pairs",
        "  a cascade skips the reranker in 5% of requests: at most 0.01 nDCG@10 lost (90 %)",
        f"  {floor.sentence()}",
    ]
    assert (record["floor"]["n"], record["floor"]["cut"], record["floor"]["cosine"]) == (60, 0.125, 0.25)
    assert record["lost"] == [0.2, 0.05, 0.004, 0.002]
    assert record["skips"] == {"leads": [3.0, 2.0], "lost": [0.004, 0.01], "depth": 10, "best": []}


def test_show_prints_json_lines(saved: Path) -> None:
    records = [json.loads(line) for line in tttembed("show", saved, "--json").stdout.splitlines()]

    assert [record["key"] for record in records] == ["task:billing", "task:legal", private(saved)]
    assert records[0] == records[0] | {
        "key": "task:billing",
        "served": True,
        "alpha": 0.95,
        "n": 19,
        "gain": 0.04,
        "interval": [0.01, 0.07],
        "verdict": "published",
        "reason": "steady",
    }
    assert (records[1]["served"], records[1]["needed"]) == (False, 30)
    assert (records[2]["gain"], records[2]["interval"]) == (None, None)


@pytest.mark.parametrize(
    ("rewards", "judge"), [("qrels", "qrels (simulated judge)"), ("judge", "judge")], ids=["labels", "judge"]
)
def test_fit_and_show_say_who_judged(folder: Path, tmp_path: Path, rewards: str, judge: str) -> None:
    """Labels in that role are called a simulation in what fit prints, in the file, and in what show prints of it."""
    out = tmp_path / "fitted.safetensors"
    fitted = ("fit", folder, "--vectors", "tiny", "--rewards", rewards, "--scope", "task", "--out", out)

    first = [tttembed(*arguments).stdout.splitlines()[0] for arguments in (fitted, ("show", out))]
    records = [
        json.loads(line)
        for arguments in ((*fitted, "--json"), ("show", out, "--json"))
        for line in tttembed(*arguments).stdout.splitlines()
    ]

    assert [f"rewards: {judge}"] * 2 == first
    assert {judge} == {record["judge"] for record in records}
    assert judge == Offsets.load(out).settings["judge"]


# Explain


@pytest.fixture
def learned(folder: Path, tmp_path: Path) -> Path:
    """An offsets file with an offset for the folder's task and a private one of its query q3."""
    rng, evidence = np.random.default_rng(2), Evidence(9, 0.1, (0.02, 0.18), "published", "steady")
    shared, private = rng.standard_normal((2, 8))
    offsets = [
        Offset("task", shared, 0.9, 9, evidence, task=folder.name),
        Offset("query", private, 0.5, 1, Evidence(1, None, None, "ungated", "none"), task=folder.name, query_id="q3"),
    ]
    path = tmp_path / "learned.safetensors"
    Offsets(offsets, width=8).save(path)
    return path


def explained(folder: Path, query: str, learned: Path, *options: str) -> dict[str, Any]:
    """The explanation of a query, as JSON."""
    result = tttembed("explain", folder, query, "--offsets", learned, "--vectors", "tiny", *options, "--json")
    record: dict[str, Any] = json.loads(result.stdout)
    return record


@pytest.mark.parametrize("query", ["q3", "q4"])
def test_explain_tells_ranks_and_scores(folder: Path, learned: Path, query: str) -> None:
    """Documents among the first five before or after come with the ranks and cosines of a brute-force search."""
    with np.load(folder / "vectors" / "tiny.npz") as stored:
        docs, base = stored["docs"], stored["queries"][int(query[1:])]
    moved = Offsets.load(learned).apply(base, task=folder.name, query_id=query)
    scores = [docs @ x / np.linalg.norm(docs, axis=1) / np.linalg.norm(x) for x in (base, moved)]
    ranks = [np.argsort(np.argsort(-s)) + 1 for s in scores]
    shown = [d for d in range(60) if min(ranks[0][d], ranks[1][d]) <= 5]
    expected = {
        (f"d{d}", int(ranks[0][d]), int(ranks[1][d]), f"{scores[0][d]:.4f}", f"{scores[1][d]:.4f}")
        for d in shown
        if ranks[0][d] != ranks[1][d]
    }

    record = explained(folder, query, learned, "--top", "5")
    moves = [
        (m["document"], m["rank_before"], m["rank"], f"{m['score_before']:.4f}", f"{m['score']:.4f}")
        for m in record["rose"] + record["fell"]
    ]

    assert (expected, len(expected)) == (set(moves), len(moves))
    for name, sign in (("rose", 1), ("fell", -1)):
        assert all(sign * (move["rank_before"] - move["rank"]) > 0 for move in record[name])
        assert record[name] == sorted(record[name], key=lambda move: move["rank"])


@pytest.mark.parametrize(("query", "key"), [("q3", "query:small/"), ("q4", "task:small:")])
def test_explain_names_the_offset_that_served(folder: Path, learned: Path, query: str, key: str) -> None:
    """A query is explained by its private offset, else by its task's, with the line that show prints of it."""
    lines = tttembed("explain", folder, query, "--offsets", learned, "--vectors", "tiny").stdout.splitlines()
    (shown,) = (line for line in tttembed("show", learned, "--all").stdout.splitlines() if line.startswith(key))

    record = explained(folder, query, learned)
    assert lines[:2] == [f"{query}: queries {query[1:]}", f"served by {shown}"]
    assert shown.startswith(f"{record['offset']['key']}:")
    # A constant offset was moved by all of its rewarded queries: none is named.
    assert record["moved_by"] == []
    assert not [line for line in lines if line.startswith("moved by")]


@pytest.fixture
def locally(folder: Path, tmp_path: Path) -> Path:
    """An offsets file with a local offset of the folder's task: landmarks q0 to q6, and one that the folder lacks."""
    rng, evidence = np.random.default_rng(3), Evidence(9, 0.1, (0.02, 0.18), "published", "steady")
    with np.load(folder / "vectors" / "tiny.npz") as stored:
        landmarks = stored["queries"][:8] / np.linalg.norm(stored["queries"][:8], axis=1, keepdims=True)
    landmarks[7] *= -1
    learned = KernelMap(landmarks, 0.2 * rng.standard_normal((8, 8)), 0.625)
    path = tmp_path / "local.safetensors"
    Offsets([Offset("local", np.zeros(8), 0.9, 9, evidence, task=folder.name, map=learned)], width=8).save(path)
    return path


def test_explain_names_the_queries_that_moved_it(folder: Path, locally: Path) -> None:
    """Of a local offset each rewarded query has its share of the move along the offset; the largest come first."""
    (offset,) = Offsets.load(locally).values()
    with np.load(folder / "vectors" / "tiny.npz") as stored:
        base = stored["queries"][4] / np.linalg.norm(stored["queries"][4])
    parts = np.exp((offset.map.landmarks @ base - 1) / 0.625)[:, None] * offset.map.weights
    shares = parts @ parts.sum(axis=0) / (parts.sum(axis=0) ** 2).sum()
    known = [*((f"q{i}", f"queries {i}") for i in range(7)), ("", "")]
    order = np.argsort(-np.abs(shares))
    expected = [(*known[i], pytest.approx(shares[i])) for i in order]

    record = explained(folder, "q4", locally)
    lines = tttembed("explain", folder, "q4", "--offsets", locally, "--vectors", "tiny").stdout.splitlines()

    assert expected == [(mover["query_id"], mover["text"], mover["share"]) for mover in record["moved_by"]]
    assert lines[2:8] == [
        *(
            f"moved by {name or 'a query that is not here'}: {share.expected:+.0%}  {text}".rstrip()
            for name, text, share in expected[:5]
        ),
        f"and by 3 more: {sum(shares[order[5:]]):+.0%}",
    ]


def test_show_tells_of_a_local_offset(folder: Path, locally: Path) -> None:
    """Its line has its evidence, its landmarks and its bandwidth; the JSON too."""
    line, more = tttembed("show", locally, "--verbose").stdout.splitlines()
    record = json.loads(tttembed("show", locally, "--json").stdout)

    assert line == f"local:{folder.name}: published: +.100 nDCG@10 [+.020, +.180] on 9 held-out queries; steady"
    assert more == "  9 rewarded queries, dose 0.90, 8 landmarks, bandwidth 0.62"
    assert (record["landmarks"], record["bandwidth"], record["gain"]) == (8, 0.625, 0.1)


def test_explain_gives_the_rewards_behind_it(folder: Path, learned: Path) -> None:
    """A judged document comes with its stored reward, another with none."""
    scores = folder / "scores" / "some.tsv"
    scores.write_text("header\n" + "".join(f"q4\td{d}\t0.{d + 1}\n" for d in range(30)), encoding="utf-8")

    record = explained(folder, "q4", learned, "--top", "60", "--rewards", "some")
    rewards = {move["document"]: move["reward"] for move in record["rose"] + record["fell"]}

    assert {d: float(f"0.{int(d[1:]) + 1}") if int(d[1:]) < 30 else None for d in rewards} == rewards
    assert {None} != set(rewards.values())


def test_explain_prints_a_line_per_document(folder: Path, learned: Path) -> None:
    """The lines say how far a document rose or fell, name those that did not, and close with what they mean."""
    options = ("--offsets", learned, "--vectors", "tiny", "--rewards", "judge")
    record = explained(folder, "q4", learned, "--rewards", "judge")
    lines = tttembed("explain", folder, "q4", *options).stdout.splitlines()[2:]
    expected = [
        [word, f"{abs(m['rank'] - m['rank_before'])}:", str(m["rank_before"]), "->", str(m["rank"])]
        for word in ("rose", "fell", "kept")
        for m in record[word]
    ]

    assert record["kept"]
    assert expected == [line.split()[:5] for line in lines[:-2]]
    assert all(f"reward {m['reward']:.3g} " in line for m, line in zip(record["rose"], lines, strict=False))
    assert lines[-2].startswith("rose, fell, kept: ranks")
    assert "not judged: nothing was" in lines[-1]


def test_explain_knows_the_one_task_of_the_offsets(folder: Path, tmp_path: Path) -> None:
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "steady")
    Offsets([Offset("task", np.ones(8), 0.9, 9, evidence, task="default")], width=8).save(tmp_path / "o.safetensors")

    assert explained(folder, "q4", tmp_path / "o.safetensors")["offset"]["key"] == "task:default"


def test_explain_says_why_nothing_serves(folder: Path, tmp_path: Path) -> None:
    """Where the gate abstained, its evidence is the answer."""
    evidence = Evidence(6, 0.01, (-0.06, 0.08), "abstained", "too few", 30)
    path = tmp_path / "abstained.safetensors"
    Offsets([Offset("task", np.zeros(8), 0.0, 6, evidence, task="small")], width=8).save(path)

    result = tttembed("explain", folder, "q3", "--vectors", "tiny", "--offsets", path)

    assert result.exit_code == 2
    assert result.stderr.endswith(f"of task 'small', got task:small {evidence}\n")


# Demo


@pytest.mark.slow
def test_demo_json_on_stdout_is_pure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Demo with --json - prints the rows and none of its story."""
    names = [f"tool {number}" for number in range(12)]
    requests = {f"r{number}": f"use {name}" for number, name in enumerate(names)}
    library = Dataset("few", {name: name for name in names}, requests, {f"r{i}": {n: 1.0} for i, n in enumerate(names)})
    monkeypatch.setattr(tools, "office", lambda _: library)

    rows = json.loads(tttembed("demo", "--seeds", "0", "--json", "-").stdout)

    assert {row["seen"] for row in rows} == {0, 6}


# Refusals

WRONG = {
    "eval": "Missing argument 'DIR|FILE...'.",
    "eval small small {small}": "data sets: expected different names, got small, small",
    "eval broken {small}": "broken/qrels/test.tsv:2: expected query-id, corpus-id, score by tabs, got",
    "eval small {small} --rewards gpt": "scores/gpt.tsv: expected stored scores, found none (here: grades,",
    "eval small {small} --rewards grades": "rewards: expected scale probability in [0, 1], got values",
    "eval small --vectors ada": "vectors/ada.npz: expected stored vectors, found none (here: tiny)",
    "eval small --rewarded many": "Invalid value for '--rewarded': expected values separated by commas, got",
    "eval small --rewarded ,": "rewarded: expected numbers >= 1, got ()",
    "eval small --rewarded 4,0": "rewarded: expected numbers >= 1, got (4, 0)",
    "eval small --depth 0": "depth: expected numbers >= 1, got (0,)",
    "eval small --holdout 0.0": "holdout: expected a share between 0 and 1, got 0.0",
    "eval small --holdout 1.0": "holdout: expected a share between 0 and 1, got 1.0",
    "eval small --scopes task,team": "scopes: expected auto, global, task, local, query, words, got team",
    "eval small --baselines bm25": "baselines: expected raw, rerank, fused, hybrid, got bm25",
    "eval small --scopes , --baselines ,": "scopes: expected at least one scope or baseline, got none",
    "eval small --seeds ,": "seeds: expected numbers >= 0, got ()",
    "eval small --seeds 0,-1": "seeds: expected numbers >= 0, got (0, -1)",
    "eval small --scale stars": "scale: expected probability, logit, unbounded or rubric:LOW,HIGH, got 'stars'",
    "eval small --scale rubric:3,0": "scale: expected low < high, got 3 and 0",
    "eval small --gate ajar": "Invalid value for '--gate': 'ajar' is not one of",
    "eval small --temperature 1": "No such option '--temperature'.",
    "eval small --json no/rows.json": "no/rows.json: expected a file in an existing folder",
    "show absent": "absent: expected an offsets file, found none",
    "show small": "small: expected an offsets file, found none",
    "show small/corpus.jsonl": "expected an offsets file, got a damaged or foreign one (it does not begin with",
    "explain small q99 {learned}": "small: expected a query with labels, got 'q99'",
    "explain small q3 {learned} --task legal": "one that serves query 'q3' of task 'legal', got none of its task",
    "explain small q3 {learned} --rewards no": "scores/no.tsv: expected stored scores, found none",
    "explain small q3 {learned} --top 0": "top: expected at least 1, got 0",
    "explain small q3 {saved}": "offsets: expected the width of the vectors, 8, got 2",
    "demo --seeds ,": "seeds: expected ",
    "fit nowhere --depth -1": "'--depth': -1 is not in the range x>=",
    "fit nowhere --last 0": "'--last': 0 is not in the range x>=",
    "store versions nowhere --limit 0": "'--limit': 0 is not in the range x>=",
    "store changes nowhere --limit -1": "'--limit': -1 is not in the range x>=",
    "judge nowhere --concurrency 0": "'--concurrency': 0 is not in the range x>=",
    "judge nowhere --seed -1": "'--seed': -1 is not in the range x>=",
    "worker nowhere --concurrency 0": "'--concurrency': 0 is not in the range x>=",
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.items())
def test_what_is_wrong_is_one_line(
    folder: Path, learned: Path, saved: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, reason: str
) -> None:
    """Exit code 2, nothing on standard output, and one Error line that gives the reason."""
    monkeypatch.chdir(folder.parent)
    shutil.copytree("small", "broken")
    Path("broken/qrels/test.tsv").write_text("header\nq0 d0 1\n", encoding="utf-8")
    offsets = {name: f"--vectors tiny --offsets {path}" for name, path in (("learned", learned), ("saved", saved))}

    result = tttembed(*arguments.format(small=" ".join(SMALL), **offsets).split())

    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert (result.exit_code, result.stdout, len(errors)) == (2, "", 1)
    assert reason in errors[0]
