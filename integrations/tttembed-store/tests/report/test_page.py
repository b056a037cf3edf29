"""The page of a report stays one harmless small page, whatever the store holds; and `tttembed report`."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from markupsafe import escape
from tttembed_store import Candidate, Served
from tttembed_store.report import gather, page_of

from tests.traffic import fan, observed, published, rewarded, task_offset, turned
from tttembed_rag import Evidence, Offsets
from tttembed_rag.cli import main
from tttembed_rag.evaluate.page import drawing

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("store", "name"),
    [("sqlite:////srv/shop.db", "shop"), ("postgresql+psycopg://me@host/shop", "shop"), ("sqlite:///a b.db", "a b")],
)
def test_the_page_is_called_by_the_store(report, store, name):
    """Its title tells several reports apart in tabs and in mails."""
    assert f"<title>Offsets of {name}</title>" in page_of(replace(report, store=store))


def test_the_page_loads_nothing_and_runs_nothing(page):
    """No element or attribute that fetches or executes, and a policy that forbids both."""
    tags = {tag for tag, _ in page.elements}
    attributes = {name for _, values in page.elements for name in values}

    assert tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "a", "b", "i"} == set()
    assert {name for name in attributes if name.startswith("on") or name in {"src", "href", "style", "srcset"}} == set()
    assert [word for word in ("@import", "url(") if word in page.html] == []
    assert {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"} in (
        page.all("meta")
    )


def test_hostile_texts_are_shown_as_texts(page, evil):
    """Queries, documents, tasks, judges, names and details of changes: all are there, none is markup."""
    moved = page.sections["Query by query"]

    for name in (r"query \d+", r"d\d+", r"document \d+"):
        assert re.search(re.escape(evil("{}")).replace(r"\{\}", name), moved)
    assert "judge<script>alert('judge')</script>" in page.sections["On queries that were not learned from"]
    assert f"local:{evil('task')}" in page.sections["Why"]
    assert " ".join(evil(part) for part in ("by", "action", "detail")) in page.sections["Audit trail"]
    assert "<script" not in page.html
    assert "<img" not in page.html


def test_names_of_all_kinds_are_shown_as_text(sqlite_url, parsed, evil):
    """A tenant in title and heading; control characters of ids and notes are question marks."""
    tenant = evil("tenant")
    observed(sqlite_url, "acme:\x1bq", tenant=tenant)
    published(sqlite_url, turned(), tenant=tenant, note="a\x1b[2Jb")

    page = parsed(page_of(gather(sqlite_url, tenant=tenant)))

    title = f"Offsets of store, tenant {tenant}"
    assert f"{title} {title}" in page.sections[""]
    assert [text in page.html for text in ("acme:?q", "a?[2Jb", "<script")] == [True, True, False]
    assert [character for character in page.html if not character.isprintable() and character != "\n"] == []


def test_texts_come_before_ids(report):
    """A list of documents is read by their texts; an id stands behind, quietly."""
    listed = [shown for example in report.effect.examples for shown in example.candidates[:10] if shown.text]
    html = page_of(report)

    assert listed
    assert [shown.document for shown in listed if f'{escape(shown.text)} <span class="quiet">' not in html] == []


def test_digests_of_texts_are_told_as_texts(store, sqlite_url):
    """Neither lists nor evidence show an id that was made of a text that the store has; `versions` does not either."""
    shown = [replace(document, doc_id=store.text_id(document.text)) for document in fan()]
    query = store.text_id("which way?")
    observed(sqlite_url, query, shown, query="which way?", at=NOON)
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", f"into many lists rises {shown[5].doc_id}, {'0' * 32}")
    published(sqlite_url, Offsets([task_offset("default", [0.0, 2.0], evidence)], width=2))

    html = page_of(gather(sqlite_url))
    listed = CliRunner().invoke(main, ["store", "versions", "--store", sqlite_url]).output

    assert "which way?" in html
    assert escape("into many lists rises 'text 5', " + "0" * 32) in html
    assert [name for name in (query, *(document.doc_id for document in shown)) if name in html + listed] == []


def test_the_page_can_be_read_by_everybody(page):
    """A language, a width for phones, headings in order, headers of tables, titles of drawings, nothing left open."""
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    drawings, titles = page.all("svg"), page.all("title")

    assert page.unclosed == []
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert levels.count(1) == 1
    assert {header["scope"] for header in page.all("th")} == {"col", "row"}
    assert len(drawings) >= 4
    assert len(titles) == len(drawings) + 1
    assert {svg["role"] for svg in drawings} == {"img"}
    assert len(page.all("summary")) == len(page.all("details")) > 1  # which every browser opens by keys


def test_the_same_store_gives_the_same_page(url, report):
    """Byte for byte, whoever reads it, as of a moment that may be given."""
    html = page_of(report)

    assert html == page_of(gather(url, at=NOON))
    assert "read 2026-03-20 12:00" in html


@pytest.mark.slow
def test_the_page_stays_small(store, sqlite_url):
    """However much there is, and however long it is: under 1 MB."""
    rng = np.random.default_rng(0)
    quotes = '"' * 500
    pool = rng.normal(size=(300, 2))
    for number in range(60):
        candidates = [
            Candidate(f"{quotes}{d}", pool[d], '"' * 20_000, float(rng.random())) for d in range(60 * (number < 9))
        ]
        query = Served(f"{quotes}{number}", np.array([1.0, 0.0]), candidates, '"' * 20_000, f"{quotes}t", at=NOON)
        store.observe([query], judge=f"{quotes}{number}")
        reason = Evidence(9, 0.1, (0.05, 0.15), "published", '"' * 5000)
        tasks = [task_offset(f"{quotes}{task}", [0.0, 2.0], reason) for task in range(40)]
        store.registry.publish(Offsets(tasks, width=2), by=quotes, note='"' * 5000, embedder="")
        store.changes.note(quotes, quotes, '"' * 5000)
    store.registry.publish(turned(f"{quotes}t"), by=quotes)

    report = gather(sqlite_url)

    assert (len(report.versions), len(report.changes), len(report.effect.examples)) == (20, 50, 5)
    assert len(page_of(report).encode()) < 1_000_000


@pytest.mark.parametrize(
    ("amounts", "heights", "top"),
    [([2.0, 0.0, 4.0], [58.0, 116.0], 12.0), ([-3.0, 1.0], [87.0, 29.0], 12.0), ([-2.0, -4.0], [58.0, 116.0], 12.0)],
)
def test_bars_are_as_high_as_their_amounts(amounts, heights, top, parsed):
    """Half the amount, half the height; none for nothing; from the least to the greatest the drawing is full."""
    bars = parsed(drawing.bars("amounts", amounts, str, "1 Mar", "3 Mar")).all("rect")

    assert [float(bar["height"]) for bar in bars] == heights
    assert min(float(bar["y"]) for bar in bars) == top


# The command


def tttembed(*arguments):
    """What the command does with *arguments*."""
    return CliRunner().invoke(main, ["report", *(str(argument) for argument in arguments)])


def test_the_command_writes_the_page_and_prints_the_same_as_json(sqlite_url, tmp_path, parsed):
    """One line, or one JSON object, with the page or without it."""
    plain, beside = tmp_path / "plain.html", tmp_path / "beside.html"
    published(sqlite_url, turned())
    observed(sqlite_url, "q")

    line = tttembed("--store", sqlite_url, "--html", plain)
    with_page = tttembed("--store", sqlite_url, "--html", beside, "--json")
    alone = tttembed("--store", sqlite_url, "--json")

    facts = json.loads(with_page.stdout)
    assert (line.exit_code, line.output) == (0, f"Report: {plain}\n")
    assert (facts["live"]["version"]["number"], facts["judges"], len(facts["days"])) == (1, [["j", 6]], 30)
    assert json.loads(alone.stdout)["live"] == facts["live"]
    assert ["Version 1 is live" in parsed(file.read_text()).sections[""] for file in (plain, beside)] == [True, True]


@pytest.mark.slow
def test_a_terminal_shows_how_far_the_report_is(store, sqlite_url, planted, tmp_path):
    """The fifths are counted on stderr; what the command prints stays as it is."""
    store.observe(rewarded(planted(12), range(12)), judge="j")
    terminal, end = pty.openpty()
    arguments = ["--store", sqlite_url, "--html", str(tmp_path / "page.html")]
    command = [sys.executable, "-m", "tttembed_rag", "report", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=end, text=True, timeout=120, check=True)
    os.close(end)
    shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)

    assert done.stdout == f"Report: {tmp_path / 'page.html'}\n"
    assert "held-out fifths" in shown
    assert "100%" in shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--store", "{url}"], "expected --html OUT.html, --json, or both"),
        (["--store", "{url}", "--html", "{folder}/absent/out.html"], "expected a file in an existing folder"),
        (["--store", "{url}", "--tenant", "nobody", "--json"], "got 'nobody'"),
        (["--store", "sqlite:///{folder}/absent.db", "--json"], "found no file"),
        (["--store", "mysql://user:secret@host/db", "--json"], "expected sqlite:///FILE"),
    ],
)
def test_bad_input_is_one_line(url, tmp_path, arguments, reason):
    """With exit code 2, no trace, no password, and nothing made."""
    result = tttembed(*(argument.format(url=url, folder=tmp_path) for argument in arguments))

    assert result.exit_code == 2
    (line,) = [line for line in result.output.splitlines() if line.startswith("Error")]
    assert reason in line
    assert "secret" not in result.output
    assert list(tmp_path.iterdir()) == []
