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
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import click
import numpy as np
import pytest
from click.testing import CliRunner
from tttembed_tools import cards_of

from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.cli import main
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.evaluate.files import load_beir, write_beir, write_scores, write_vectors
from tttembed_rag.offsets.codes import ANSWERS, LOST, OTHER_JUDGE, PUBLISHED

REPO = Path(__file__).resolve().parents[1]
generated = SimpleNamespace(**runpy.run_path(str(REPO / "docs" / "generate.py")))
for_models = SimpleNamespace(**runpy.run_path(str(REPO / "docs" / "llms.py")))
README = REPO / "README.md"
SKILLS = REPO / "tttembed_rag" / ".agents" / "skills"
PAGES = [README, *sorted((REPO / "docs").rglob("*.md")), *sorted(SKILLS.rglob("*.md"))]
NAMES = [str(page.relative_to(REPO)) for page in PAGES]
# Pages that begin with the first document before and after learning.
FIRST = ["README.md", "docs/tutorials/langchain.md", "docs/tutorials/llama-index.md"]
# What the blocks of a page import and `make test` does not install; `make test-hosts` does, and runs that page.
HOSTED = {"mcp.md": "mcp"}
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
    if arguments := ready(line):
        result = CliRunner().invoke(main, arguments, prog_name="tttembed")

        assert result.exit_code == 0, result.output


VOTES = (("guide", 1), ("forum thread", -1), ("manual", -1))
SHELLS = ("console", "sh", "bash", "shell")


def write_folder(folder: Path, vectors: str, judge: str) -> None:
    """A BEIR folder of 30 random documents and 24 queries, with stored vectors and scores in [0, 1]."""
    rng = np.random.default_rng(0)
    corpus = [(f"d{d}", "", f"Document d{d}") for d in range(30)]
    queries = {f"q{q}": f"Query q{q}" for q in range(24)}
    write_beir(folder, corpus, queries, {f"q{q}": {f"d{q}": 1.0} for q in range(24)})
    if judge != QRELS:
        scores = {query: {document: rng.random() for document, *_ in corpus} for query in queries}
        write_scores(folder / "scores" / f"{judge}.tsv", scores)
    of_documents, of_queries = rng.standard_normal((30, 48)), rng.standard_normal((24, 48))
    write_vectors(folder, vectors, load_beir(folder), of_documents, of_queries, fingerprint=vectors)


def write_offsets(path: Path) -> None:
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
    vectors = vectors[0] if isinstance(vectors, tuple) else vectors
    judge = judge[0] if isinstance(judge, tuple) else judge
    named = (parameters.get(name) for name in ("folder", "source"))
    for source in (*parameters.get("folders", ()), *named):
        if isinstance(source, Path) and not source.exists() and not source.suffix:
            write_folder(source, vectors, judge)
        if isinstance(source, Path) and not source.exists() and source.suffix == ".csv":
            votes = [f"how does topic {q} work,topic {q} {what},{vote}" for q in range(9) for what, vote in VOTES]
            source.write_text("\n".join(["query,document,thumb", *votes]), encoding="utf-8")
    kind, _, path = (parameters.get("spec") or "").partition(":")
    path = path.partition("?")[0]
    if kind == "feedback" and not Path(path).exists():
        Path(path).write_text("query_id,doc_id,signal,value,position\nq0,d0,click,1,1\n", encoding="utf-8")
    if isinstance(file := parameters.get("file"), Path) and not file.exists():
        write_offsets(file)


def run_page(page: Path, folder: Path) -> None:
    """Runs the blocks of a page, Python and commands, one after another in *folder*."""
    names: dict[str, Any] = {}
    for first, language, code in blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            names = {key: value for key, value in run_python(first, code, folder, names).items() if key[:2] != "__"}
        for _, line in commands(first, code) if language in SHELLS else ():
            run_command(line)


@pytest.mark.parametrize("page", FIRST)
def test_first_examples_show_a_difference(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first document of a query that nobody judged is another one once the offsets are published."""
    monkeypatch.chdir(tmp_path)
    run_page(REPO / page, tmp_path)

    printed, text = capsys.readouterr().out.splitlines(), (REPO / page).read_text(encoding="utf-8")
    if page == "README.md":  # the tools of an agent stand last
        *printed, learned, tools = printed
        assert (learned[:24], tools) == ("published: 24 requests, ", "['gmail_forms']")
    assert (printed[0], printed[2], printed[-1]) == ("manual on taxes", *["guide with examples on taxes"] * 2)
    assert printed[1].partition(";")[0] in text
    if page == "docs/tutorials/langchain.md":
        sentence = printed[4].partition(";")[0]
        assert f"It prints `{sentence}; ...`, then `{printed[-1]}`" in text


def test_no_telemetry_is_sent(tmp_path: Path) -> None:
    """The README's examples open no connection and look up no host, as README, SECURITY and the pages promise."""
    code = "".join(code for _, language, code in blocks(TEXT) if language == "python")
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
@pytest.mark.parametrize("name", [name for name in NAMES if name not in FIRST])
def test_pages_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page shows runs as printed, without a warning."""
    page = REPO / name
    if needed := HOSTED.get(page.name):
        pytest.importorskip(needed, reason=f"{needed} is not installed: make test-hosts")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COHERE_API_KEY", "none is asked for in a dry run")

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


def test_every_verdict_has_a_page() -> None:
    """A code of the gate or of the tools can be looked up, and no page is left of one that is gone."""
    codes = {PUBLISHED, LOST, OTHER_JUDGE, *(answer.code for answer in ANSWERS)}

    assert codes == {page.stem for page in (REPO / "docs" / "verdicts").glob("TTT-*.md")}


def test_the_readme_is_read_in_one_sitting() -> None:
    """At most 100 lines; everything else stands in docs/."""
    assert len(TEXT.splitlines()) <= 100


def test_pages_that_a_person_reads_are_few() -> None:
    """At most 20 with 22,000 words; what is looked up stands in docs/reference and docs/verdicts."""
    read = [name for name in NAMES if re.match(r"docs/(?!reference/|verdicts/)", name)]
    words = sum(len((REPO / name).read_text(encoding="utf-8").split()) for name in read)

    assert len(read) <= 20
    assert words <= 22_000


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
    for label in svg.iter("{http://www.w3.org/2000/svg}text"):
        assert 0 < float(label.attrib["x"]) < width
        assert 0 < float(label.attrib["y"]) < height


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
        description = text.removeprefix(f"{name}: ")
        assert 0 < len(description) <= 1024
        assert "Use it when" in description
