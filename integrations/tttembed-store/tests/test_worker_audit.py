"""Trusted labels in a store: the worker serves what they confirm, and the spreadsheet goes there and back."""

from __future__ import annotations

import csv
import itertools
import time
from dataclasses import replace

import pytest
from click.testing import CliRunner
from tttembed_store import Worker

from tests.traffic import rewarded
from tttembed_rag.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture
def judged(planted, store):
    """A store in which a reranker judged 60 queries well, and what it said of each pair."""
    queries = rewarded(planted(60, strength=0.9), range(60), at=time.time())
    store.observe(queries, judge="reranker")
    return {(query.query_id, shown.doc_id): shown.reward for query in queries for shown in query.candidates}


def draw(store, sheet, count=100):
    """The pairs of the spreadsheet that `audit draw` writes, and what it says."""
    done = CliRunner().invoke(main, ["audit", "draw", store.name, "--out", str(sheet), "--count", str(count)])
    with sheet.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file)), done.output


def read(store, sheet, pairs):
    """What `audit read` says of the spreadsheet with these rows."""
    with sheet.open("w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, pairs[0])
        rows.writeheader()
        rows.writerows(pairs)
    return CliRunner().invoke(main, ["audit", "read", str(sheet), "--store", store.name]).output


def actions(worker):
    """What a round did, with what it said."""
    return [(step.action, step.detail) for step in worker.round()]


def label(store, rewards, *, honest):
    """A person says of every pair what the reranker said, or the opposite."""
    labels = {}
    for (query, document), value in rewards.items():
        labels.setdefault(("", "task", query), {})[document] = value if honest else 1 - value
    store.reward("audit", labels)


def test_labels_decide_on_what_is_live(judged, store):
    """Labels that deny the judge withdraw what it taught at once, corrected ones bring it back; no reward is new."""
    worker = Worker(store, scope="task", min_new=50)
    first = actions(worker)
    label(store, judged, honest=False)
    denied = actions(worker)
    idle = actions(worker)
    label(store, judged, honest=True)
    confirmed = actions(worker)

    assert [first[-1][0], denied[-1][0], idle[-1][0], confirmed[-1][0]] == [
        "published",
        "withdrawn",
        "learned nothing",
        "published",
    ]
    assert "[TTT-G05]" in denied[-1][1]
    assert "vouched for by trusted labels" in confirmed[-1][1]
    assert store.judge() == "reranker"


def test_a_spreadsheet_goes_there_and_back(judged, store, tmp_path):
    """`audit draw` draws pairs of what was judged, with their texts; `audit read` brings the labels back."""
    sheet = tmp_path / "pairs.csv"
    pairs, drawn = draw(store, sheet, 30)
    labels = [pair | {"label": judged[pair["query_id"], pair["doc_id"]]} for pair in pairs]
    kept = read(store, sheet, [*labels, {"query_id": "nobody's", "doc_id": "d0", "label": 1}])

    assert drawn == f"{sheet}: 30 pairs to label\n"
    assert all(pair["query"] == f"query {pair['query_id'][1:]}" for pair in pairs)
    assert all(pair["document"] == f"document {pair['doc_id'][1:]}" for pair in pairs)
    assert kept == "30 of 31 labels are in the store\n"
    assert store.history.verdicts("", judge="audit") == {
        (pair["query_id"], pair["doc_id"]): judged[pair["query_id"], pair["doc_id"]] for pair in pairs
    }


def test_texts_and_ids_are_no_formulas_in_a_spreadsheet(planted, store, tmp_path):
    """A captured text or id that begins like a formula gets an apostrophe, and the labels find their pairs again."""
    begins = ("=", "+", "-", "@", "\t", "\r", "'=", "'", "")
    marks = itertools.cycle(begins)
    begun = {"name": "=q", "texts": lambda text: next(marks) + text}
    queries = rewarded(planted(20, strength=0.9), range(20), at=time.time(), **begun)
    store.observe(queries, judge="reranker")
    pairs, _ = draw(store, tmp_path / "pairs.csv")
    kept = read(store, tmp_path / "pairs.csv", [pair | {"label": 1} for pair in pairs])

    assert len(pairs) == 60
    assert not [cell for pair in pairs for cell in pair.values() if cell.startswith(begins[:6])]
    assert kept == f"{len(pairs)} of {len(pairs)} labels are in the store\n"


def test_only_what_a_person_can_label_is_drawn(planted, store, tmp_path):
    """Pairs of the tenant itself, each with both texts."""
    queries = rewarded(planted(40, strength=0.9), range(40), at=time.time())
    store.observe((replace(query, tenant="acme" if row % 2 else "") for row, query in enumerate(queries)), judge="j")
    pairs, _ = draw(store, tmp_path / "pairs.csv")

    assert len(store.rewards("j")) == 20
    assert len(pairs) == 60
    assert all(pair["query"] and pair["document"] for pair in pairs)
