"""nDCG@10 against a few lines of reference and against ir-measures; bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tttembed_rag import Rewards
from tttembed_rag.evaluate.measures import Graded, mean_interval
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.measures import discounts, gains_of, judged_ndcg

GRADES = {"a": 3, "b": 1, "c": 0, "d": 2}


def dcg(grades: Sequence[float]) -> float:
    """Discounted cumulative gain with linear gains of the first ten grades."""
    return sum(grade / math.log2(rank + 1) for rank, grade in enumerate(grades[:10], 1))


def ndcg(ranked: Sequence[str], grades: Mapping[str, float]) -> float:
    """DCG of a ranked list over the DCG of the best one."""
    return dcg([grades.get(d, 0) for d in ranked]) / dcg(sorted(grades.values(), reverse=True))


def measured(ranked: Sequence[str], grades: Mapping[str, float] = GRADES) -> float:
    """nDCG@10 of one query; the index holds what is ranked and nothing else."""
    return float(Graded.of({"q": grades}, ["q"], ranked)(np.arange(1), np.arange(len(ranked))[None])[0])


@given(
    grades=st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.integers(0, 4), min_size=1).filter(
        lambda grades: any(grades.values())
    ),
    ranked=st.permutations("abcdefghijklmnopqrstuv"),
)
def test_ndcg_has_linear_gains(grades: dict[str, int], ranked: list[str]) -> None:
    """nDCG@10 discounts graded gains by log2(rank + 1), as they are, not as powers of two."""
    expected = ndcg(ranked, grades)

    actual = measured(ranked, grades)

    assert expected == pytest.approx(actual, abs=1e-6)


@pytest.mark.parametrize(
    ("ranked", "grades", "expected"),
    [
        (["b", "a"], GRADES, (1 + 3 / math.log2(3)) / (3 + 2 / math.log2(3) + 1 / 2)),
        ([f"n{i}" for i in range(10)] + ["a"], GRADES, 0.0),
        # A grade below 0 is worth as much as no grade, to the list and to the ideal.
        (["b", "c", "a"], {"a": 2, "b": -3, "c": 1}, ndcg(["b", "c", "a"], {"a": 2, "c": 1})),
        # Where nothing is relevant nDCG is 0, not undefined.
        (["a", "b"], {"a": 0, "b": -1}, 0.0),
    ],
)
def test_ndcg_by_hand(ranked: list[str], grades: dict[str, int], expected: float) -> None:
    assert expected == pytest.approx(measured(ranked, grades), abs=1e-6)


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


def test_rows_of_some_queries_are_measured() -> None:
    graded = Graded.of({"a": {"x": 1}, "b": {"y": 1}}, ["a", "b"], ["x", "y"])

    assert graded(np.array([1, 0]), np.array([[0], [0]])).tolist() == [0.0, 1.0]


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
