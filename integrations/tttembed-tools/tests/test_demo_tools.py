"""The demo of a search over tools: its story, its rows and its report, on a small world of tools."""

import re

import numpy as np
import pytest
from tttembed_tools.demo.office import office, unserved
from tttembed_tools.demo.tools import run_tool_demo

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
    rows = run_tool_demo((0, 1), out, lines.append, library=lambda _: library, embedder=FakeEmbedder())
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
    means = [np.mean([row[name] for row in last]) for name in ("first", "ndcg10")]

    assert lines[0] == "120 tools of suites, 60 requests; people used the right tool"
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
        assert re.match(rf"  right: <i>zeta_{asked}, #\d+ -> #\d+$", right)
        assert f"Right: <strong>&lt;i&gt;zeta_{asked}</strong>, #" in html
    assert re.search(r"\(\d+ of 30 gain\): ", said[0][0])
    assert said[0][1].endswith("#2 -> #1")
    assert [line.count(" nDCG@10 [") for line in lines if line.startswith("Why: ")] == [1]


def test_points_are_filled_where_something_is_served(story):
    """Offsets or another weight, in one split at least: before the first request, nothing is."""
    _, rows, html = story
    served = {row["seen"] for row in rows if row["moves"] or row["weight"] != 0.35}
    figure = html.partition("How many requests it takes")[2]

    assert re.findall(r'class="(filled|hollow)"', figure) == [
        "filled" if seen in served else "hollow" for seen in sorted({row["seen"] for row in rows})
    ]


def test_the_report_is_one_file_that_escapes_texts(story):
    """Drawings, table and three explained requests; hostile texts are shown as text."""
    _, _, html = story
    _, _, explained = html.partition("Three requests that nobody asked before, and why</h2>")

    assert html.count("<svg") == 2
    assert explained.count("<h3>") == 3
    assert "&lt;i&gt;" in html
    assert [part for part in ("<i>", "<script", "<link", "<img", "url(http") if part in html] == []


def test_the_report_answers_first_what_requests_held_out_gain(story):
    """In one sentence, the mean of the splits, as in the rows."""
    _, rows, html = story
    (before, found), (after, first) = (
        [np.mean([row[name] for row in rows if row["seen"] == seen]) for name in ("ndcg10", "first")]
        for seen in (0, 30)
    )

    assert f"first for {100 * first:.0f} % of other requests instead of {100 * found:.0f} %" in html
    assert f"nDCG@10 is {after:.3f} instead of {before:.3f} ({after - before:+.3f}, in the worst split" in html


def test_the_story_says_for_how_many_requests_nothing_fits(tmp_path):
    """Of those that no tool serves nearly all, and hardly any of those held out, once 45 requests were seen."""
    topics = [f"{one} {topic}" for one in ("my", "her") for topic in TOPICS]
    tools = {
        f"{suite}_{topic}": f"{suite}: Handle a {topic} in the {suite} suite" for topic in TOPICS for suite in "ab"
    }
    right = {topic: {f"a_{topic.split()[1]}": 1.0} for topic in topics}
    library = Dataset("suites", tools, {topic: f"please handle {topic}" for topic in topics}, right)
    lines = []

    rows = run_tool_demo((0,), tmp_path, lines.append, library=lambda _: library, embedder=FakeEmbedder())

    assert [(row["none"], row["lost"]) for row in rows[:2]] == [(0, 0)] * 2
    assert rows[-1]["none"] > 0.9
    assert rows[-1]["lost"] < 0.2
    told = f'{rows[-1]["none"]:.0%} are answered "none", and {rows[-1]["lost"]:.0%} of others.'
    assert [line for line in lines if line.endswith(told)]
    assert f"nothing for {100 * rows[-1]['none']:.0f} % of requests" in (tmp_path / "report.html").read_text("utf-8")


def test_each_part_of_what_was_learned_has_a_bar(story):
    """The weight of BM25 alone, the offsets alone and both together, in the story and on the page."""
    lines, rows, html = story
    last = [row for row in rows if row["seen"] == 30]
    start = np.mean([row["ndcg10"] for row in rows if row["seen"] == 0])
    bars = re.findall(r'text-anchor="end">([\d.]+)</text>', html.partition("How many requests it takes")[0])[:4]

    assert bars[0] == f"{start:.3f}"
    for bar, title, name in (
        (bars[1], "the learned weight of BM25 alone", "by_weight"),
        (bars[2], "the offsets alone", "by_offsets"),
        (bars[3], "both, as served", "ndcg10"),
    ):
        value = np.mean([row[name] for row in last])
        assert bar == f"{value:.3f}"
        assert f"{title:<34} {value:.3f}  {value - start:+.3f}" in lines


def test_a_part_alone_is_the_search_with_the_other_as_it_was(story):
    """Where the weight of BM25 stays, the offsets alone find what is served, and the weight alone what was found."""
    _, rows, _ = story
    start = {row["split"]: row["ndcg10"] for row in rows if row["seen"] == 0}
    stayed = [row for row in rows if row["weight"] == 0.35]

    assert [row for row in stayed if row["moves"]]
    assert [row["by_offsets"] for row in stayed] == [row["ndcg10"] for row in stayed]
    assert [row["by_weight"] for row in stayed] == [start[row["split"]] for row in stayed]


def test_an_office_has_two_tools_for_each_job_and_uses_one():
    """64 tools of eight servers; each split's office uses all or none of a server, and no request names one."""
    offices = [office(seed) for seed in range(6)]
    servers = {name.partition(".")[0] for name in offices[0].documents}

    assert (len(offices[0].documents), len(servers), len(offices[0].queries)) == (64, 8, 192)
    for one in offices:
        used = {name for right in one.qrels.values() for name in right}
        assert len(used) == 32
        assert len({name.partition(".")[0] for name in used}) == 4
        assert {len(right) for right in one.qrels.values()} == {1}
    assert len(set(unserved())) == 40
    assert len({frozenset(name for right in one.qrels.values() for name in right) for one in offices}) > 1
    assert not [text for text in offices[0].queries.values() if any(name in text.casefold() for name in servers)]
