"""Strategies of accounts that `benchmarks/poison.py` measures, on a small collection."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.evaluate.datasets import Dataset
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary


@pytest.fixture
def voters(monkeypatch):
    """The strategies, and the ground of sixty queries over eighty documents, of which each query wants one."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    strategies, harm, ground = (importlib.import_module(name) for name in ("voters", "harm", "ground"))
    rng = np.random.default_rng(0)
    documents, wanted = rng.standard_normal((80, 16)), rng.integers(0, 8, 60)
    queries = documents[wanted] + 0.8 * rng.standard_normal((60, 16))
    names = {f"q{i}": f"question {i}" for i in range(60)}
    labels = {f"q{i}": {f"d{d}": 1.0} for i, d in enumerate(wanted.tolist())}
    dataset = Dataset("small", {f"d{d}": f"document {d}" for d in range(80)}, names, labels)
    collection = Collection.of(dataset, documents.astype("f4"), queries.astype("f4"), embedder="none")
    monkeypatch.setattr(strategies, "HONEST", 24)
    rows = np.arange(60)
    return strategies, ground.Ground(harm.Bench.of(collection), rows[:42], rows[42:], 0)


def test_a_stuffed_document_rises_in_lists_that_are_sorted_by_words(voters, monkeypatch):
    """Its place is told as it is, and with the words of queries; without a rescorer there is no row."""
    _, ground = voters
    stuffing = importlib.import_module("stuffing")
    vocabulary = Vocabulary.of(ground.bench.collection.dataset.documents.values())
    evidence = Evidence(9, None, None, "published", "made up for a test")
    rescorer = Rescorer(np.array([1.0, 10.0, 0.0, 0.0]), vocabulary, evidence)
    offsets = Offsets([Offset("local", np.zeros(16), 0.0, 9, evidence, task="small", rescorer=rescorer)], width=16)
    monkeypatch.setattr(stuffing, "fit", lambda *_, **__: offsets)
    rows = {row["written"]: row for row in stuffing.PARTS["stuffed"](lambda: [("small", ground)])}

    assert rows["as it is"]["first ten"] == 0.0
    assert rows["the query"]["median place"] < 3
    assert rows["twenty queries"]["median place"] < rows["as it is"]["median place"]
    monkeypatch.setattr(stuffing, "fit", lambda *_, **__: Offsets([], width=16))
    assert list(stuffing.PARTS["stuffed"](lambda: [("small", ground)])) == []


def test_a_trial_prints_its_rows(voters, monkeypatch):
    """Harmless and skewed gains of each offset, and what is helpful or harmful by its mean gain."""
    trial = importlib.import_module("trial")
    monkeypatch.setattr(trial, "FRESH", 100)
    monkeypatch.setattr(trial, "BEFORE", 40)
    rows = list(trial.rows("small", voters[1], 2))

    assert {row["kind"] for row in rows} >= {"harmless", "skewed"}
    assert len({row["offset"] for row in rows}) == 12
    assert all(0 <= row["taken back"] <= 1 for row in rows)


def test_labels_that_somebody_chose_decide_nothing(voters, monkeypatch):
    """Those that the hash drew do; of labels by place, too few count."""
    poison = importlib.import_module("poison")
    monkeypatch.setattr(poison, "DRAWS", 1)
    rows = list(poison.biased(lambda: [("small", voters[1])]))
    counted = {row["design"]: row["counted"] for row in rows if row["count"] == 100}

    assert len(rows) == 105
    assert counted["first three"] < 30 < counted["drawn"]
    assert not any(row["decides"] for row in rows if row["design"] == "first three")


def test_an_overrated_document_is_followed_through_a_store(voters):
    """Its place before, at the most, and what the rounds cost others."""
    _, ground = voters
    poison = importlib.import_module("poison")
    raw, last, most, worst, change = poison._looped(ground, ground.targets(1)[0], 1.0, rounds=2, each=20)
    (few, many) = poison.clean(lambda: [("small", ground)])

    assert most >= max(raw, last)
    assert worst <= change
    assert (few["rewarded"], many["rewarded"]) == (64, 200)


def test_a_taste_that_has_turned_is_counted_in_queries(voters, monkeypatch):
    """What was learned of the first suite holds the second one back, and the row says for how many queries."""
    _, ground = voters
    tastes = importlib.import_module("tastes")
    for name, value in {"EACH": 16, "BEFORE": (2,), "AFTER": 2}.items():
        monkeypatch.setattr(tastes, name, value)
    rows = list(tastes.flip(lambda: [("small", ground)]))
    whole = [row for row in rows if row["changes"] == "everything"]

    assert [row["queries before"] for row in rows] == [32, 32]
    assert all(row["after the flip"] < row["base"] for row in whole)
    assert {row["until right"] for row in whole} <= {16, 32}


@pytest.mark.parametrize(
    ("module", "part", "settings"),
    [
        ("callers", "flood", 3),
        ("callers", "selfcall", 4),
        ("voters", "takeover", 10),
        ("voters", "second", 4),
        ("voters", "veto", 4),
        ("voters", "demotion", 3),
    ],
)
def test_a_part_prints_its_rows(voters, monkeypatch, module, part, settings):
    """A row for each setting, with figures that are shares; a flood of calls is longer than the search's window."""
    module = importlib.import_module(module)
    for name, value in {"HONEST": 24, "FLOOD": 30, "ROUNDS": 1, "LAST": 40}.items():
        monkeypatch.setattr(module, name, value, raising=False)
    rows = list(module.PARTS[part](lambda: [("small", voters[1])]))

    assert len({tuple(row[name] for name in module.GROUPS[part]) for row in rows}) == settings
    assert all(0 <= row.get(name, 0) <= 1 for row in rows for name in ("first three", "recall@5"))
    assert max(row.get("requests", 0) for row in rows) <= 40
