"""What the README and the pages in docs/ show is run: their Python, and their command lines.

A page is one story, whose blocks run in order in one folder.
Commands may name folders that only exist at the reader's: each is made from random vectors where
the command expects it, below a temporary folder, so that the line runs as it is printed.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import click
import numpy as np
import pytest
from click.testing import CliRunner

from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.cli import main
from tttembed_rag.demo import tools as tools_demo
from tttembed_rag.demo.tools import DemoRow
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.fitting.scopes import UNSOLVED
from tttembed_rag.gate.thresholds import PUBLISHED, QUESTIONS
from tttembed_rag.serving.cascade import LOST, OTHER_JUDGE
from tttembed_rag.tools import cards_of

REPO = Path(__file__).resolve().parents[1]
generated = SimpleNamespace(**runpy.run_path(str(REPO / "docs" / "generate.py")))
for_models = SimpleNamespace(**runpy.run_path(str(REPO / "docs" / "llms.py")))
README = REPO / "README.md"
DATA = REPO.parent / "shared" / "data"
SKILLS = REPO / "tttembed_rag" / ".agents" / "skills"
PAGES = [README, *sorted((REPO / "docs").rglob("*.md")), *sorted(SKILLS.rglob("*.md"))]
NAMES = [str(page.relative_to(REPO)) for page in PAGES]
# What the blocks of a page import and `make test` does not install; `make test-hosts` does, and runs that page.
HOSTED = {"tools.md": "mcp"}
TEXT = README.read_text(encoding="utf-8")


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, language, code) of the fenced blocks of a document."""
    for match in re.finditer(r"^```(\w+)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(2)) + 1, match[1], match[2]


def commands(first: int, code: str) -> Iterator[tuple[int, str]]:
    """(line, arguments) of the `tttembed` commands of a block, continued lines joined."""
    joined = re.sub(r"\\\n\s*", lambda match: " " * len(match[0]), code)
    for number, line in enumerate(joined.splitlines(), first):
        if match := re.match(r"(?:\$ )?tttembed\b(.*)", line):
            yield number, match[1].strip()


def run_python(first: int, code: str, folder: Path, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs a block of Python as a script in *folder*, its lines numbered as in the document; gives its names.

    Args:
        first: Line of the document that it begins at.

        code: The block.

        folder: Where it runs.

        names: Those of the blocks before it.
    """
    script = folder / "block.py"
    script.write_text("\n" * (first - 1) + code, encoding="utf-8")
    return runpy.run_path(str(script), init_globals=names, run_name="__main__")


def ready(line: str) -> list[str]:
    """The arguments of a command as printed, its files made; none where it is only parsed: a server, the whole demo."""
    words = shlex.split(line, comments=True)
    arguments = list(takewhile(lambda word: word not in ("|", ">", ">>", "&&"), words))
    name, parameters = parsed(arguments)
    if name in ("serve", "demo"):
        return []
    provide(parameters)
    return arguments


def run_command(line: str) -> None:
    """Runs a command as printed, where it is one that ends."""
    if arguments := ready(line):
        result = CliRunner().invoke(main, arguments, prog_name="tttembed")

        assert result.exit_code == 0, result.output


VOTES = (("guide", 1), ("forum thread", -1), ("manual", -1))
SHELLS = ("console", "sh", "bash", "shell")


def write_folder(folder: Path, vectors: str, judge: str) -> None:
    """A BEIR folder of 30 random documents and 24 queries, with stored vectors and scores in [0, 1]."""
    rng = np.random.default_rng(0)
    docs = [f"d{d}" for d in range(30)]
    queries = [f"q{q}" for q in range(24)]
    pairs = [(q, d) for q in queries for d in docs]
    tables = {
        "corpus.jsonl": [json.dumps({"_id": d, "text": f"Document {d}"}) for d in docs],
        "queries.jsonl": [json.dumps({"_id": q, "text": f"Query {q}"}) for q in queries],
        "qrels/test.tsv": ["header", *(f"{q}\t{d}\t1" for q, d in zip(queries, docs, strict=False))],
    }
    if judge != QRELS:
        tables[f"scores/{judge}.tsv"] = ["header", *(f"{q}\t{d}\t{rng.random():.3f}" for q, d in pairs)]
    for part, lines in tables.items():
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "vectors").mkdir()
    arrays = {"docs": rng.standard_normal((30, 48)), "queries": rng.standard_normal((24, 48))}
    np.savez(folder / "vectors" / f"{vectors}.npz", doc_ids=docs, query_ids=queries, **arrays)


def write_offsets(path: Path) -> None:
    """An offsets file with one offset."""
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for the README")
    Offsets([Offset("global", np.ones(48, np.float32), 0.9, 9, evidence)], width=48).save(path)


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """The name of the command and its parameters; an option that does not exist is an error."""
    if arguments[0] in ("--help", "--version"):
        return arguments[0], {}
    words = 2 if arguments[0] in ("audit", "store", "tools") else 1
    name = " ".join(arguments[:words])
    with generated.commands()[name].make_context(name, arguments[words:]) as context:
        return name, context.params


def provide(parameters: dict[str, Any]) -> None:
    """Makes the files and folders that a command reads, where they are missing."""
    vectors, judge = parameters.get("vectors") or "minilm", parameters.get("rewards", QRELS)
    judge = judge[0] if isinstance(judge, tuple) else judge
    named = (parameters.get(name) for name in ("folder", "source"))
    for folder in (*parameters.get("folders", ()), *named):
        if isinstance(folder, Path) and not folder.exists() and not folder.suffix:
            write_folder(folder, vectors, judge)
    kind, _, path = (parameters.get("spec") or "").partition(":")
    path = path.partition("?")[0]
    if isinstance(source := parameters.get("source"), Path) and source.suffix == ".csv" and not source.exists():
        votes = [f"how does topic {q} work,topic {q} {what},{vote}" for q in range(9) for what, vote in VOTES]
        source.write_text("\n".join(["query,document,thumb", *votes]), encoding="utf-8")
    if kind == "feedback" and not Path(path).exists():
        Path(path).write_text("query_id,doc_id,signal,value,position\nq0,d0,click,1,1\n", encoding="utf-8")
    if isinstance(file := parameters.get("file"), Path) and not file.exists():
        write_offsets(file)


def run_page(page: Path, folder: Path, shells: tuple[str, ...] = SHELLS) -> None:
    """Runs the blocks of a page, Python and the commands of *shells*, one after another in *folder*."""
    names: dict[str, Any] = {}
    for first, language, code in blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            names = {key: value for key, value in run_python(first, code, folder, names).items() if key[:2] != "__"}
        for _, line in commands(first, code) if language in shells else ():
            run_command(line)


@pytest.mark.parametrize("page", ["README.md", "docs/tutorials/langchain.md", "docs/tutorials/llama-index.md"])
def test_first_examples_show_a_difference(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first document of a query that nobody judged is another one once the offsets are published."""
    monkeypatch.chdir(tmp_path)
    run_page(REPO / page, tmp_path, shells=())

    printed = capsys.readouterr().out.splitlines()
    assert (printed[0], printed[-1]) == ("manual on taxes", "guide with examples on taxes")
    assert "It prints `manual on taxes`, then `guide with examples on taxes`" in TEXT


def test_no_telemetry_is_sent(tmp_path: Path) -> None:
    """The README's example opens no connection and looks up no host, as README, SECURITY and the pages promise."""
    (code,) = (code for _, language, code in blocks(TEXT) if language == "python")
    watch = (
        "import sys\n"
        "def refuse(event, arguments):\n"
        "    if event in ('socket.connect', 'socket.getaddrinfo', 'socket.sendto'):\n"
        "        raise RuntimeError(f'{event} {arguments[1:]}')\n"
        "sys.addaudithook(refuse)\n"
    )
    command = [sys.executable, "-c", watch + code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    for name in ("README.md", "SECURITY.md", "docs/reference/versions.md"):
        assert "No telemetry is sent to anybody" in (REPO / name).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page shows runs as printed, without a warning."""
    if needed := HOSTED.get(page.name):
        pytest.importorskip(needed, reason=f"{needed} is not installed: make test-hosts")
    monkeypatch.chdir(tmp_path)

    run_page(page, tmp_path)


@pytest.mark.parametrize("document", PAGES, ids=NAMES)
def test_options_exist(document: Path) -> None:
    """Every option that the prose shows in code is one of the command's."""
    known = {
        option
        for command in generated.commands().values()
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
    } | {"--help", "--version"}
    prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)

    codes = [
        code
        for code in re.findall(r"`([^`]+)`", prose)
        if not code.startswith(("python benchmarks/", "python -m benchmarks"))
    ]
    shown = {option for code in codes for option in re.findall(r"(?<!\S)--[a-z-]+", code)}

    assert shown - known == set()


@pytest.mark.parametrize("document", PAGES, ids=NAMES)
def test_commands_in_the_prose_exist(document: Path) -> None:
    """Every `tttembed NAME` that the prose shows in code is a command, below a group too."""
    text = document.read_text(encoding="utf-8")
    shown = {" ".join(words).strip() for words in re.findall(r"`tttembed\s((?:audit|store|tools)\s)?([a-z-]+)", text)}

    assert {" ".join(name.split()) for name in shown} - generated.commands().keys() == set()


@pytest.mark.parametrize("name", sorted(generated.pages()))
def test_generated_pages_are_up_to_date(name: str) -> None:
    """A page that follows from the code says what the code says: `python docs/generate.py` writes it."""
    assert generated.pages()[name] == (REPO / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "metatool").is_dir(), reason=f"{DATA / 'metatool'} is absent")
def test_figures_of_the_readme_are_those_that_the_benchmark_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The two of `benchmarks/gain.py`, to the last digit; that of `benchmarks/harm.py` takes hours."""
    gain = runpy.run_path(str(REPO / "benchmarks" / "gain.py"))
    gain["shared_scopes"].__globals__.update(SETS=("metatool", "cranfield"), BUDGETS=(16, 200))
    gain["shared_scopes"](DATA, None)
    printed = {
        line[:26].split()[0] + " " + line[12:26].strip(): line[26:] for line in capsys.readouterr().out.splitlines()
    }

    def change(row: str, column: int) -> str:
        return re.sub(r"^([+-])0\.", r"\1.", re.findall(r"([+-]\S+) \(", printed[row])[column])

    gained = change("metatool auto", 1)[1:]
    assert f"200 judged queries of metatool gain {gained} with all-MiniLM-L6-v2:" in TEXT
    assert change("cranfield auto", 0) == "+.000"
    assert f"nothing changes. The same offset, served unasked, loses {change('cranfield plain rule', 0)[1:]}:" in TEXT


NUMBERS = " ".join((REPO / "docs" / "explain" / "numbers.md").read_text(encoding="utf-8").split())
RESULTS = REPO / "benchmarks" / "results"


def digits(value: float, form: str = "+.3f") -> str:
    """A number as documents print it: no zero before the point."""
    return f"{value:{form}}".replace("0.", ".", 1)


def test_figures_of_the_cascade_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/cascade.py --json benchmarks/results/cascade.json` takes a quarter of an hour."""
    found = json.loads((RESULTS / "cascade.json").read_text(encoding="utf-8"))
    page = (REPO / "docs" / "how-to" / "rerank-less.md").read_text(encoding="utf-8")
    of = {tuple(one[name] for name in ("source", "judged", "repeats", "policy")): one for one in found}
    told = {"qrels+.05": "labels", "ce-minilm-multi": "cross-encoder"}
    for (source, judged, repeats, policy), one in of.items():
        if policy == "cascade":
            rivals = [of[source, judged, repeats, name] for name in ("cache of texts", "cache of vectors, 0.95")]
            saved = [f"{each['calls']:.0%}".replace("%", " %") for each in (one, *rivals)]
            lost = [digits(one[name]) for name in ("labels", "judge", "labels_all", "judge_all")]
            row = " | ".join([told[source], str(judged), f"{repeats:.0%}".replace("%", " %"), *saved, *lost])
            assert f"| {row} |" in page
    cascades = [one for key, one in of.items() if key[-1] == "cascade"]
    cells, broken = (sum(one[name] for one in cascades) for name in ("cells", "labels above"))
    first = digits(max(one["labels worst"] for one in cascades))
    assert sum(one["judge above"] for one in cascades) == 0
    above = sum(one["labels_all above"] for one in cascades)
    worst = digits(max(one["labels_all worst"] for one in cascades))
    assert f"broken in {broken} of {cells} cells by labels ({first}), and in none by" in page
    assert f"above .01 in {above} of them, {worst} at worst" in " ".join(page.split())


def test_figures_of_words_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/words.py --json benchmarks/results/words.json` takes minutes; what it wrote is in the tree."""
    found = json.loads((RESULTS / "words.json").read_text(encoding="utf-8"))
    page = " ".join((REPO / "docs" / "how-to" / "words.md").read_text(encoding="utf-8").split())
    columns = ("direct", "rank fusion", "v, data", "words, data", "v, declared", "words, declared")
    for key, title in {
        "minilm, qrels+.05": "MiniLM, labels",
        "minilm, ce-minilm-multi": "MiniLM, a small cross-encoder",
        "static, qrels+.05": "a static model, labels",
        "static, ce-minilm-multi": "a static model, the cross-encoder",
    }.items():
        for first, (breadth, of) in enumerate(found[key]["judged queries"].items()):
            told = [digits(of["means"][column]) for column in columns]
            row = " | ".join(["" if first else title, breadth, *told])
            assert f"| {row} |".replace("|  |", "| |") in page
    worthless = [found[f"minilm, {judge}"] for judge in ("shuffled", "unasked", "inverted")]
    means = found["minilm, qrels+.05"]["judged queries"]["64"]["means"]
    gained, words, hybrid = (digits(means[column])[1:] for column in ("v, data", "words, data", "rank fusion"))
    chosen = [found["minilm, qrels+.05"]["judged queries"][count]["means"] for count in ("64", "200")]
    careful = " and ".join(digits(of["weight, data"]) for of in chosen)
    assert f"the chosen weight gains {careful} at 64 and 200 judged queries" in page
    assert f"nobody chose gains {digits(means['fixed weight'])} on the mean" in page
    link = "[shared words count too](docs/how-to/words.md)"
    assert f"64 judged queries gain {gained} on all nine, {words} where {link}, a hybrid search {hybrid}." in TEXT
    counted = [(one["published"]["data"], one["cells"]) for one in worthless]
    published, cells = map(sum, zip(*counted, strict=True))
    assert f"in {published} of {cells} fits of worthless judges" in page


def percent(value: float) -> str:
    """A share as documents print it."""
    return f"{100 * value:.0f} %"


def test_figures_of_harm_are_those_that_the_benchmark_wrote() -> None:
    """`python benchmarks/harm.py --json benchmarks/results/harm.json` takes minutes; what it wrote is in the tree."""
    parts = json.loads((RESULTS / "harm.json").read_text(encoding="utf-8"))
    names = {"four collections": "development", "five others": "confirmation", "nine, pooled": "pooled"}
    first, second, pooled = (parts[name] for name in names.values())
    single = first["cells"] + second["cells"]

    def lost(rule: str, *some: Mapping[str, Any]) -> int:
        return round(sum(part["cells"] * part["below -.01"][rule] for part in some))

    rows = []
    for title, part in zip(names, (first, second, pooled), strict=True):
        for rule, named in (("task", "plain"), ("auto", "`auto`"), ("declared", "declared")):
            told = [digits(part["mean"][rule]), percent(part["below -.01"][rule]), digits(part["worst"][rule])]
            told += [
                percent(part["of a reranker"][rule][count]) if rule != "task" else "" for count in ("16", "64", "200")
            ]
            head = [title, str(part["cells"])] if rule == "task" else ["", ""]
            rows.append("|" + "|".join(f" {one} " if one else " " for one in (*head, named, *told)) + "|")
    covered, agreed = (
        " and ".join(
            ", ".join(percent(part["intervals"][rule][name]) for part in (first, second, pooled))
            for rule in ("auto", "declared")
        )
        for name in ("covered", "compatible")
    )
    lies = [
        (part[f"{kind} tasks"], part[f"{kind} published"]) for part in parts.values() for kind in ("blind", "unasked")
    ]
    said = [
        " ".join(rows),
        f"in {lost('auto', first, second)} of {single} single-task cells and in {lost('auto', pooled)} of",
        f"{pooled['cells']} pooled ones; with a declared judge in {lost('declared', first, second)} and "
        + str(lost("declared", pooled)),
        f"in {covered} of published cells",
        f"interval and change agree in {agreed} of them",
        f"nothing in {sum(tasks for tasks, _ in lies)} tasks",
    ]

    assert [sentence for sentence in said if sentence not in NUMBERS] == []
    assert {published for _, published in lies} == {0.0}
    ungated = [part["below -.01"]["task"] for part in parts.values()]
    harmed = f"{100 * min(ungated):.0f} to {percent(max(ungated))} of"
    worst = digits(min(part["worst"]["auto"] for part in (first, second)))
    readme = (
        f"By more than .01 in {lost('auto', first, second)} of {single} settings with one task (worst {worst}) and in "
        f"{lost('auto', pooled)} of {pooled['cells']} with nine (worst {digits(pooled['worst']['auto'])}). Offsets "
        f"that are served unasked do so in {harmed} settings:"
    )
    assert readme in " ".join(TEXT.split())
    page = (REPO / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert f"lowers nDCG@10 by more than .01 in {harmed} settings" in " ".join(page.split())


def test_figures_of_rivals_are_those_that_the_benchmark_wrote() -> None:
    """`python -m benchmarks.paper baselines` and `unseen` take minutes; the means that they wrote are in the tree."""
    found = json.loads((RESULTS / "rivals.json").read_text(encoding="utf-8"))
    shares = {"queries without rewards": "share", "other queries": "share, other queries"}
    shares["unseen documents"] = "share, unseen documents"
    names = {"`auto`": "auto", "`auto`, kept verdicts": "auto + judge", "`local`": "local", "`global`": "global"}
    names |= {"linear": "linear adapter", "mean difference": "mean difference", "ReFIT": "ReFIT", "DART": "DART"}
    names |= {"semantic cache": "semantic cache, cosine 0.9", "IBM": "IBM refinement", "Qdrant": "Qdrant feedback"}
    names |= {"OATS": "OATS (documents)", "NUDGE-N": "NUDGE-N (documents)", "direct rerank": "direct rerank"}

    def cell(part: str, method: str, count: str) -> str:
        value, ours = (round(found[part][one][f"n={count}"], 2) for one in (method, "auto"))
        told = re.sub(r"^([+-])0\.", r"\1.", f"{value:+.2f}")
        if part in shares:
            told += f" ({round(found[shares[part]][method][f'n={count}'])} %)"
        return f"**{told}**" if value > ours and not method.startswith("auto") else told

    tables = re.split(r"\n\n(?=\| \| (?:16|other))", (REPO / "docs" / "compare.md").read_text(encoding="utf-8"))[1:]
    columns = [
        [("all queries", count) for count in ("16", "64", "200", "all")],
        [("queries without rewards", count) for count in ("16", "64", "200")],
        [("other queries", "200"), ("unseen documents", "200")],
    ]
    for table, asked in zip(tables, columns, strict=True):
        rows = [line.strip("| ").split(" | ") for line in table.partition("\n\n")[0].splitlines()[2:]]
        for title, *told in rows:
            method = names[max((name for name in names if title.startswith(name)), key=len)]
            assert told == [cell(part, method, count) for part, count in asked]
    numbers = (REPO / "docs" / "explain" / "numbers.md").read_text(encoding="utf-8")
    for title, of in found["repeats"].items():
        told = [re.sub(r"^([+-])0\.", r"\1.", f"{of[name]:+.2f}") for name in ("local", "auto", "direct rerank")]
        local, auto = (f"({of[f'{name}, share in %']:.0f} %)" for name in ("local", "auto"))
        (row,) = re.findall(rf"^\| {title} .*", numbers, re.MULTILINE)
        assert row.endswith(f"| {told[0]} {local} | {told[1]} {auto} | {told[2]} |")
    prose = " ".join("".join(tables).split()) + " ".join(
        (REPO / "docs" / "compare.md").read_text(encoding="utf-8").split()
    )
    kept = " and ".join(
        f"{round(found['share']['auto'][f'n={count}'])} % with {count}" for count in ("64", "200")
    ).replace("with 64", "with 64 judged queries of each collection")
    assert f"nobody judged offsets keep {kept}." in prose
    said = (
        ("semantic cache, cosine 0.9", "queries without rewards", "200"),
        ("auto", "queries without rewards", "200"),
    )
    cached, moved = (cell(part, method, count).partition(" ")[0] for method, part, count in said)
    assert f"gains new ones {cached} points of nDCG@10, offsets {moved}." in prose
    assert (
        f"{round(found['share']['auto']['n=64'])} % at 64 and {round(found['share']['auto']['n=200'])} % at 200"
        in NUMBERS
    )


def test_figures_of_the_demo_are_those_that_it_wrote() -> None:
    """`tttembed demo --json benchmarks/results/demo.json` takes minutes; what it wrote last is in the tree."""
    rows = [DemoRow(**row) for row in json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))]
    counts = sorted({row.seen for row in rows})
    start, *later = (tools_demo._line([row for row in rows if row.seen == count], rows) for count in counts)
    found, change, worst = (
        [digits(line[key], form) for line in later]
        for key, form in (("first", ".3f"), ("change", "+.3f"), ("worst", "+.3f"))
    )
    moved = [line["moves"].partition("/")[0] for line in later]
    parts = [
        (name, digits(value, ".3f"), digits(value - start["ndcg10"]))
        for name, value in tools_demo._parts([start, *later]).items()
    ]
    (_, _, by_weight), (_, _, by_offsets), (_, _, both) = parts[1:]
    said = [
        f"found first for {digits(start['first'], '.3f')} of them",
        f"after {' / '.join(map(str, counts[1:]))} other requests were seen for {' / '.join(found)};",
        f"nDCG@10 rises from {digits(start['ndcg10'], '.3f')} by {' / '.join(change)}",
        f"(worst split {', '.join(worst)})",
        f"served on {', '.join(moved[:-1])} and {moved[-1]} of the six splits",
        f"Of the last {both} the offsets alone are {by_offsets}, the learned weight of BM25 alone is {by_weight}.",
    ]
    table = "".join(f"| {name} | {value} | {gain} |\n" for name, value, gain in parts[1:])
    readme = (
        f"told what worked for {counts[-1]} requests, it finds the right tool first for "
        f"{percent(later[-1]['first'])} of others, instead of {percent(start['first'])}."
    )

    assert table in (REPO / "docs" / "tools.md").read_text(encoding="utf-8")
    assert readme in " ".join(TEXT.split())
    assert [sentence for sentence in said if sentence not in NUMBERS] == []


def test_every_verdict_has_a_page() -> None:
    """A code of the gate or of the tools can be looked up, and no page is left of one that is gone."""
    codes = {PUBLISHED, UNSOLVED, LOST, OTHER_JUDGE, *(question.code for question in QUESTIONS)}

    assert codes == {page.stem for page in (REPO / "docs" / "verdicts").glob("TTT-*.md")}


def test_the_readme_is_read_in_one_sitting() -> None:
    """At most 100 lines; everything else stands in docs/."""
    assert len(TEXT.splitlines()) <= 100


@pytest.mark.parametrize("document", PAGES, ids=NAMES)
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link of a page is to a file that is there."""
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", document.read_text(encoding="utf-8"))

    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("picture", sorted((REPO / "docs" / "assets").glob("*.svg")), ids=lambda path: path.stem)
def test_pictures_are_read_in_the_dark_and_aloud(picture: Path) -> None:
    """A picture says in words what it shows, has colours for light and dark, and its text stays within it."""
    svg = ET.parse(picture).getroot()  # noqa: S314 - our own file
    named = {child.tag.rpartition("}")[2]: child for child in svg}
    width, height = map(float, svg.attrib["viewBox"].split()[2:])

    assert svg.attrib["aria-labelledby"].split() == [named[tag].attrib["id"] for tag in ("title", "desc")]
    assert len(str(named["desc"].text).split()) > len(str(named["title"].text).split()) > 0
    classes = [
        set(re.findall(r"\.(\w+) \{[^}]*(?:fill|stroke): #", part)) for part in _schemes(str(named["style"].text))
    ]
    assert classes[0] == classes[1]
    for one in svg.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(one.attrib["x"]) < width
        assert 0 < float(one.attrib["y"]) < height


def _schemes(style: str) -> tuple[str, str]:
    """The rules of a style for light, and those for dark."""
    light, _, dark = style.partition("@media (prefers-color-scheme: dark)")
    return light, dark


def test_every_page_is_in_the_site() -> None:
    """The navigation names all pages but those of single verdicts, which their index lists."""
    site = tomllib.loads((REPO / "zensical.toml").read_text(encoding="utf-8"))
    named = set(re.findall(r"[\w/.-]+\.md", json.dumps(site["project"]["nav"])))

    pages = {name.removeprefix("docs/") for name in NAMES if name.startswith("docs/") and "/TTT-" not in name}
    assert pages == named


def test_models_are_given_a_line_a_page_and_all_pages() -> None:
    """llms.txt says what each page of the site answers, and what `make docs` adds has their whole text."""
    assert for_models.listing() == (REPO / "docs" / "llms.txt").read_text(encoding="utf-8")
    assert len(list(for_models.whole())) == len([name for name in NAMES if name.startswith("docs/")])


def test_skills_are_found_by_their_names() -> None:
    """A skill stands in a folder of its name, where tools look for it in an installed package, and says when to use it.

    Our own reader of skills takes them; a name has at most 64 letters and a description 1,024, by the format.
    """
    cards = {card.name: card.text for card in cards_of(SKILLS)}

    assert sorted(cards) == sorted(folder.name for folder in SKILLS.iterdir())
    assert [name for name in cards if not re.fullmatch(r"[a-z0-9-]{1,64}", name)] == []
    for name, text in cards.items():
        said = text.removeprefix(f"{name}: ")
        assert 0 < len(said) <= 1024
        assert "Use it when" in said
