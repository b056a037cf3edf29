"""The demo of a search over tools: its story, its rows and its report, on a small world of tools."""

import re

import numpy as np
import pytest

from tttembed_rag.demo.tools import run_tool_demo
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.testing import FakeEmbedder

TOPICS = [
    f"{colour}{thing}"
    for colour in ("red", "blue", "green", "black", "white", "grey")
    for thing in ("mail", "file", "talk", "note", "call", "list", "form", "song", "road", "tree")
]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """What the demo says, its rows and its report, where only the tools of one suite are ever used."""
    tools = {
        f"<i>{suite}_{topic}": f"{suite}_{topic}: Handle a {topic} in the {suite} suite"
        for topic in TOPICS
        for suite in ("acme", "zeta")
    }
    requests = {topic: f"please handle my {topic}" for topic in TOPICS}
    library = Dataset("suites", tools, requests, {topic: {f"<i>zeta_{topic}": 1.0} for topic in TOPICS})
    out, lines = tmp_path_factory.mktemp("demo") / "deep", []
    rows = run_tool_demo((0, 1), out, lines.append, library=library, embedder=FakeEmbedder())
    return lines, rows, (out / "report.html").read_text(encoding="utf-8")


def test_the_search_gets_better_with_requests_seen(story):
    """Requests nobody asked before find the tool that works first, after half of the others were seen."""
    _, rows, _ = story
    by_count = {count: np.mean([row["ndcg10"] for row in rows if row["seen"] == count]) for count in (0, 25, 30)}

    assert by_count[0] < 0.9 < by_count[25]
    assert by_count[30] > 0.9
    assert [row["moves"] for row in rows if row["seen"] == 30] == [True, True]


def test_the_story_has_a_line_for_each_count(story):
    """Each count has its means, the change and the worst split, as in the rows."""
    lines, rows, _ = story
    last = [row for row in rows if row["seen"] == 30]
    first = {row["split"]: row["ndcg10"] for row in rows if row["seen"] == 0}
    changes = [row["ndcg10"] - first[row["split"]] for row in last]
    means = [np.mean([row[name] for row in last]) for name in ("recall5", "ndcg10")]

    assert lines[0] == "120 tools (suites), 60 requests; people used the right tool"
    assert [
        "30", f"{means[0]:.3f}", f"{means[1]:.3f}", f"{np.mean(changes):+.3f}", f"{min(changes):+.3f}", "2/2"
    ] in [line.split() for line in lines]  # fmt: skip


def test_three_samples_say_which_they_are(story):
    """The best, the middle of those that changed and the worst: each with the right tool, its ranks, and how many."""
    lines, _, html = story
    said = [line.split("\n") for line in lines if "\n  right: " in line]

    assert [title.partition(" (")[0] for title, _ in said] == ["Gained most", "In between", "Lost most"]
    for title, right in said:
        (asked,) = re.findall(r"please handle my (\w+)", title)
        assert re.match(rf"  right: <i>zeta_{asked}, #\d+ -> #\d+; ", right)
        assert f"Right: <strong>&lt;i&gt;zeta_{asked}</strong>, #" in html
    assert re.search(r"\(\d+ of 30 gain\): ", said[0][0])
    assert "#2 -> #1; " in said[0][1]


def test_points_are_filled_where_something_is_served(story):
    """Offsets or another weight, in one split at least: before the first request, nothing is."""
    _, rows, html = story
    served = {row["seen"] for row in rows if row["moves"] or row["weight"] != 0.35}
    figure = html.partition("How many requests it takes")[2]

    assert re.findall(r'class="(filled|hollow)"', figure) == [
        "filled" if seen in served else "hollow" for seen in sorted({row["seen"] for row in rows})
    ]


def test_the_report_is_one_file_that_escapes_texts(story):
    """Drawings, lists, table and three explained requests; hostile texts are shown as text."""
    _, _, html = story
    _, _, explained = html.partition("three requests that nobody asked before</h2>")

    assert html.count("<svg") == 3
    assert explained.count("<h3>") == 3
    assert "&lt;i&gt;" in html
    assert [part for part in ("<i>", "<script", "<link", "<img", "url(http") if part in html] == []


def test_the_report_answers_first_what_requests_held_out_gain(story):
    """In one sentence, of the first split, as in the rows; the lists show the tool that works on its way up."""
    _, rows, html = story
    raw, served = (row["ndcg10"] for row in rows if row["split"] == 0 and row["seen"] in (0, 30))

    assert f"goes from {raw:.3f} to {served:.3f} ({served - raw:+.3f}, 90 % interval" in html
    assert '<span class="reward good">1.00</span>\n<span class="from quiet">&uarr; from 2</span>' in html
