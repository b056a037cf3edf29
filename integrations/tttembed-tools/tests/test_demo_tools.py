"""The demo of a search over tools: its story and its rows, on a small world of tools."""

import re

import numpy as np
import pytest
from tttembed_tools.demo.tools import office, run_tool_demo, unserved

from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.testing import FakeEmbedder

TOPICS = [
    f"{colour}{thing}"
    for colour in ("red", "blue", "green", "black", "white", "grey")
    for thing in ("mail", "file", "talk", "note", "call", "list", "form", "song", "road", "tree")
]


@pytest.fixture(scope="module")
def story():
    """What the demo says and its rows, where only the tools of one suite are ever used."""
    tools = {
        f"<i>{suite}_{topic}": f"{suite}_{topic}: Handle a {topic} in the {suite} suite"
        for topic in TOPICS
        for suite in ("acme", "zeta")
    }
    requests = {topic: f"please handle my {topic}" for topic in TOPICS}
    library = Dataset("suites", tools, requests, {topic: {f"<i>zeta_{topic}": 1.0} for topic in TOPICS})
    lines = []
    rows = run_tool_demo((0, 1), lines.append, library=lambda _: library, embedder=FakeEmbedder())
    return lines, rows


def test_the_search_gets_better_with_requests_seen(story):
    """Requests nobody asked before find the tool that works first, after half of the others were seen."""
    _, rows = story
    by_count = {count: np.mean([row["ndcg10"] for row in rows if row["seen"] == count]) for count in (0, 25, 30)}

    assert by_count[0] < 0.9 < by_count[25]
    assert by_count[30] > 0.9
    assert [row["moves"] for row in rows if row["seen"] == 30] == [True, True]


def test_the_story_has_a_line_for_each_count(story):
    """Each count has its means, the change and the worst split, as in the rows."""
    lines, rows = story
    last = [row for row in rows if row["seen"] == 30]
    first = {row["split"]: row["ndcg10"] for row in rows if row["seen"] == 0}
    changes = [row["ndcg10"] - first[row["split"]] for row in last]
    means = [np.mean([row[name] for row in last]) for name in ("first", "ndcg10")]

    assert lines[0] == "120 tools of suites, 60 requests; people used the right tool"
    assert [
        "30", f"{means[0]:.3f}", f"{means[1]:.3f}", f"{np.mean(changes):+.3f}", f"{min(changes):+.3f}", "2/2"
    ] in [line.split() for line in lines]  # fmt: skip


def test_the_request_that_gained_most_is_explained(story):
    """What it finds now, where that stood before, and what moved it."""
    why = next(line for line in story[0] if line.startswith("The request that gained most"))

    topic = re.search(r"'please handle my (\w+)'", why)[1]
    assert re.search(
        rf"^#1 <i>zeta_{topic} \(was #\d+; helped with|^#1 <i>zeta_{topic} \(was #\d+\)", why, re.MULTILINE
    )
    assert why.count(" nDCG@10 [") == 1


def test_the_story_says_for_how_many_requests_nothing_fits():
    """Of those that no tool serves nearly all, and hardly any of those held out, once 45 requests were seen."""
    topics = [f"{owner} {topic}" for owner in ("my", "her") for topic in TOPICS]
    tools = {
        f"{suite}_{topic}": f"{suite}: Handle a {topic} in the {suite} suite" for topic in TOPICS for suite in "ab"
    }
    right = {topic: {f"a_{topic.split()[1]}": 1.0} for topic in topics}
    library = Dataset("suites", tools, {topic: f"please handle {topic}" for topic in topics}, right)
    lines = []

    rows = run_tool_demo((0,), lines.append, library=lambda _: library, embedder=FakeEmbedder())

    assert [(row["none"], row["lost"]) for row in rows[:2]] == [(0, 0)] * 2
    assert rows[-1]["none"] > 0.9
    assert rows[-1]["lost"] < 0.2
    refused = f'{rows[-1]["none"]:.0%} are answered "none", and {rows[-1]["lost"]:.0%} of others.'
    assert [line for line in lines if line.endswith(refused)]


def test_each_part_of_what_was_learned_has_a_line(story):
    """The weight of BM25 alone, the offsets alone and both together."""
    lines, rows = story
    last = [row for row in rows if row["seen"] == 30]
    start = np.mean([row["ndcg10"] for row in rows if row["seen"] == 0])

    assert f"{'as found at first':<34} {start:.3f}  +0.000" in lines
    for title, name in (
        ("the learned weight of BM25 alone", "by_weight"),
        ("the offsets alone", "by_offsets"),
        ("both, as served", "ndcg10"),
    ):
        value = np.mean([row[name] for row in last])
        assert f"{title:<34} {value:.3f}  {value - start:+.3f}" in lines


def test_a_part_alone_is_the_search_with_the_other_as_it_was(story):
    """Where the weight of BM25 stays, the offsets alone find what is served, and the weight alone what was found."""
    _, rows = story
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
    for dataset in offices:
        used = {name for right in dataset.qrels.values() for name in right}
        assert len(used) == 32
        assert len({name.partition(".")[0] for name in used}) == 4
        assert {len(right) for right in dataset.qrels.values()} == {1}
    assert len(set(unserved())) == 40
    assert len({frozenset(name for right in dataset.qrels.values() for name in right) for dataset in offices}) > 1
    assert not [text for text in offices[0].queries.values() if any(name in text.casefold() for name in servers)]
