"""nDCG@10 against a few lines of reference and against ir-measures; bootstrap intervals."""

from __future__ import annotations

import math

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tttembed_rag import Rewards
from tttembed_rag.evaluate.measures import Graded, mean_interval
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.measures import discounts, gains_of, judged_ndcg


def test_interval_is_deterministic() -> None:
    differences = np.random.default_rng(1).standard_normal(40)
    expected = mean_interval(differences)
    for n in range(10, 30):
        mean_interval(differences[:n])

    assert expected == mean_interval(differences)


def test_interval_covers_about_as_often_as_it_says() -> None:
    """Of 400 samples of 60 differences, the 90 % interval covers the true mean in 85 to 95 of 100."""
    samples = 0.1 + np.random.default_rng(2).standard_normal((400, 60))

    intervals = [mean_interval(sample) for sample in samples]

    covered = np.mean([low <= 0.1 <= high for low, high in intervals])
    assert 0.85 <= covered <= 0.95


@pytest.mark.parametrize(("differences", "ends"), [(np.zeros(30), (0.0, 0.0)), (np.empty(0), (math.nan, math.nan))])
def test_no_change_has_no_width_and_no_differences_no_interval(
    differences: np.ndarray, ends: tuple[float, float]
) -> None:
    np.testing.assert_array_equal(mean_interval(differences), ends)


# nDCG@10 on rows of documents


@given(seed=st.integers(0, 1000), depth=st.integers(1, 30))
@settings(deadline=None)
def test_rows_are_measured_like_names(seed: int, depth: int) -> None:
    """On arrays of rows nDCG@10 is the library's: graded, negative and absent labels, short lists."""
    rng = np.random.default_rng(seed)
    docs, queries = [f"d{d}" for d in range(30)], ["a", "b", "c"]
    qrels = {q: {f"d{d}": int(rng.integers(-1, 4)) for d in rng.permutation(40)[:12].tolist()} for q in queries}
    ranked = np.array([rng.permutation(30)[:depth] for _ in queries])
    run = {q: {docs[d]: -float(rank) for rank, d in enumerate(row)} for q, row in zip(queries, ranked, strict=True)}
    known = {q: {doc: max(0, grade) for doc, grade in grades.items()} for q, grades in qrels.items()}
    expected = {score.query_id: score.value for score in ir_measures.iter_calc([ir_measures.nDCG @ 10], known, run)}

    actual = dict(zip(queries, Graded.of(qrels, queries, docs)(np.arange(3), ranked).tolist(), strict=True))

    assert expected == pytest.approx(actual)


@pytest.mark.parametrize(
    ("query", "listed", "expected"),
    [
        ("graded", [1, 0], (1 + 3 / math.log2(3)) / (3 + 2 / math.log2(3) + 1 / 2)),
        # Where nothing is relevant nDCG is 0, not undefined.
        ("nothing", [0, 1], 0.0),
    ],
)
def test_ndcg_by_hand(query: str, listed: list[int], expected: float) -> None:
    """Of one query among others, with linear gains."""
    qrels = {"other": {"a": 1}, "nothing": {"a": 0, "b": -1}, "graded": {"a": 3, "b": 1, "c": 0, "d": 2}}
    graded = Graded.of(qrels, list(qrels), ["a", "b", "c", "d"])

    assert graded(np.array([list(qrels).index(query)]), np.array([listed])).tolist() == pytest.approx([expected])


@given(seed=st.integers(0, 1000))
@settings(deadline=None)
def test_what_is_judged_is_measured_by_one_rule(seed: int) -> None:
    """The gains of a judge's rewards give a search of what was judged the number that held-out evidence has."""
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.01, 0.06, (3, 12))
    documents = rng.standard_normal((12, 4))
    rewards = Rewards.from_arrays(rng.standard_normal((3, 4)), np.stack([documents] * 3), values)
    grid, names = Grid.of(rewards), [str(row) for row in range(12)]
    gains = {str(row): dict(zip(names, gains_of(values[row]).tolist(), strict=True)) for row in range(3)}

    measured = Graded.of(gains, list(gains), names)(np.arange(3), np.argsort(-grid.base, axis=1))

    assert judged_ndcg(grid, grid.base) == pytest.approx(measured)


def test_places_from_the_eleventh_on_count_nothing() -> None:
    """A list of twelve in the order of its scores."""
    vectors = np.eye(12)
    grid = Grid.of(Rewards.from_arrays(vectors[:1], vectors[None], np.full((1, 12), 0.5)))
    weights = discounts(grid, -np.arange(12.0)[None])[0]

    assert weights[0] == 1.0
    assert weights[9] == pytest.approx(1 / math.log2(11))
    assert weights[10:].tolist() == [0.0, 0.0]
