"""nDCG, recall and reciprocal rank against a few lines of reference; bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tttembed_rag import InputError
from tttembed_rag.evaluate.intervals import mean_interval
from tttembed_rag.evaluate.measures import Evaluator, Graded

GRADES = {"a": 3, "b": 1, "c": 0, "d": 2}


def dcg(grades: Sequence[float]) -> float:
    """Discounted cumulative gain with linear gains of the first ten grades."""
    return sum(grade / math.log2(rank + 1) for rank, grade in enumerate(grades[:10], 1))


def ndcg(ranked: Sequence[str], grades: Mapping[str, float]) -> float:
    """DCG of a ranked list over the DCG of the best one."""
    return dcg([grades.get(d, 0) for d in ranked]) / dcg(sorted(grades.values(), reverse=True))


def measured(name: str, ranked: Sequence[str], grades: Mapping[str, float] = GRADES) -> float:
    """One measure of one query."""
    return float(Evaluator({"q": grades}, [name])({"q": ranked})[name][0])


@given(
    grades=st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.integers(0, 4), min_size=1).filter(
        lambda grades: any(grades.values())
    ),
    ranked=st.permutations("abcdefghijklmnopqrstuv"),
)
def test_ndcg_has_linear_gains(grades: dict[str, int], ranked: list[str]) -> None:
    """nDCG@10 discounts graded gains by log2(rank + 1), as they are, not as powers of two."""
    expected = ndcg(ranked, grades)

    actual = measured("nDCG@10", ranked, grades)

    assert expected == pytest.approx(actual, abs=1e-6)


def test_ndcg_by_hand() -> None:
    """A grade of 1 before a grade of 3 gives (1 + 3 / log2(3)) / (3 + 2 / log2(3) + 1 / 2)."""
    expected = (1 + 3 / math.log2(3)) / (3 + 2 / math.log2(3) + 1 / 2)

    assert expected == pytest.approx(measured("nDCG@10", ["b", "a"]), abs=1e-6)


def test_ndcg_looks_at_ten() -> None:
    """A relevant document at rank 11 counts for nothing."""
    ranked = [f"n{i}" for i in range(10)] + ["a"]

    assert measured("nDCG@10", ranked) == 0.0


@pytest.mark.parametrize(("k", "expected"), [(1, 0.0), (2, 1 / 3), (3, 2 / 3), (4, 1.0)])
def test_recall_is_the_share_of_relevant_found(k: int, expected: float) -> None:
    """R@k is the share of documents of positive grade among the first k."""
    assert expected == pytest.approx(measured(f"R@{k}", ["c", "b", "d", "a"]))


@pytest.mark.parametrize(
    ("ranked", "expected"), [(["a", "c"], 1.0), (["c", "n", "b"], 1 / 3), (["c"] + [f"n{i}" for i in range(9)], 0.0)]
)
def test_reciprocal_rank_is_of_the_first_relevant(ranked: list[str], expected: float) -> None:
    """RR@10 is one over the rank of the first document of positive grade, 0 without one in ten."""
    assert expected == pytest.approx(measured("RR@10", ranked))


@pytest.mark.parametrize("ranked", [["z", "a"], ["a", "z"]])
def test_lists_count_in_the_given_order(ranked: list[str]) -> None:
    """The order of the list decides, never the order of the document ids."""
    expected = 1.0 / (1 + ranked.index("z"))

    assert expected == pytest.approx(measured("RR@10", ranked, {"z": 1}))


def test_long_lists_count_in_the_given_order() -> None:
    """No two ranks collapse into a tie in a list of 5,000."""
    ranked = [f"n{i}" for i in range(4000)] + ["z", "a"] + [f"m{i}" for i in range(998)]

    assert measured("RR@5000", ranked, {"z": 1}) == pytest.approx(1 / 4001)


def test_negative_grades_count_as_zero() -> None:
    """A grade below 0 is worth as much as no grade, to the list and to the ideal."""
    grades = {"a": 2, "b": -3, "c": 1}
    expected = ndcg(["b", "c", "a"], {"a": 2, "c": 1})

    assert expected == pytest.approx(measured("nDCG@10", ["b", "c", "a"], grades), abs=1e-6)


def test_fractional_grades_are_refused() -> None:
    """A grade that would be rounded is an input error, not another grade."""
    with pytest.raises(InputError, match=r"^qrels: expected whole grades, got 0\.5$"):
        Evaluator({"q": {"a": 1.0, "b": 0.5}})


def test_a_query_without_relevant_documents_scores_zero() -> None:
    """Where nothing is relevant nDCG is 0, not undefined."""
    assert measured("nDCG@10", ["a", "b"], {"a": 0, "b": -1}) == 0.0


def test_queries_absent_from_the_run_are_nan() -> None:
    """A query that was not ranked is NaN; the ranked one keeps its place in qrels order."""
    evaluator = Evaluator({"missing": {"a": 1}, "ranked": {"a": 1}, "gone": {"b": 1}})

    values = evaluator({"ranked": ["a"]})["nDCG@10"]

    np.testing.assert_array_equal([np.nan, 1.0, np.nan], values)


def test_queries_absent_from_the_labels_are_ignored() -> None:
    """A ranked query without labels does not disturb the others."""
    values = Evaluator({"q": {"a": 1}})({"other": ["a"], "q": ["b", "a"]})["nDCG@10"]

    np.testing.assert_allclose([1 / math.log2(3)], values, atol=1e-6)


def test_measures_come_under_their_names() -> None:
    """Every measure asked for comes back under the name it was asked by."""
    values = Evaluator({"q": GRADES}, ["RR@10", "nDCG@10", "R@100"])({"q": ["a"]})

    assert {name: round(float(value[0]), 4) for name, value in values.items()} == {
        "RR@10": 1.0,
        "nDCG@10": round(ndcg(["a"], GRADES), 4),
        "R@100": round(1 / 3, 4),
    }


def test_interval_is_deterministic() -> None:
    """The same differences give the same interval, whatever was asked in between."""
    differences = np.random.default_rng(1).standard_normal(40)
    expected = mean_interval(differences)
    for n in range(10, 30):
        mean_interval(differences[:n])

    assert expected == mean_interval(differences)


def test_interval_covers_about_as_often_as_it_says() -> None:
    """Of 400 samples of 60 differences, the 95% interval covers the true mean in 90 to 98 of 100."""
    samples = 0.1 + np.random.default_rng(2).standard_normal((400, 60))

    intervals = [mean_interval(sample) for sample in samples]

    covered = np.mean([low <= 0.1 <= high for low, high in intervals])
    assert 0.90 <= covered <= 0.98


def test_interval_is_as_wide_as_the_standard_error() -> None:
    """The 95% interval reaches about 1.96 standard errors to either side of the mean."""
    differences = np.random.default_rng(3).standard_normal(200)
    reach = 1.96 * differences.std() / math.sqrt(200)

    low, high = mean_interval(differences)

    assert low == pytest.approx(differences.mean() - reach, abs=0.02)
    assert high == pytest.approx(differences.mean() + reach, abs=0.02)


def test_interval_widens_with_the_level() -> None:
    """A surer interval contains a less sure one."""
    differences = np.random.default_rng(4).standard_normal(50)

    narrow, wide = mean_interval(differences, level=0.5), mean_interval(differences, level=0.99)

    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_no_change_has_no_width() -> None:
    """Differences that are all 0 have the interval [0, 0]."""
    assert mean_interval(np.zeros(30)) == (0.0, 0.0)


def test_no_differences_have_no_interval() -> None:
    """The mean of nothing is NaN on both ends, without a warning."""
    low, high = mean_interval(np.empty(0))

    assert (math.isnan(low), math.isnan(high)) == (True, True)


# nDCG@10 on rows of documents


@given(seed=st.integers(0, 1000), depth=st.integers(1, 30))
def test_rows_are_measured_like_names(seed: int, depth: int) -> None:
    """On arrays of rows nDCG@10 is the library's: graded, negative and absent labels, short lists."""
    rng = np.random.default_rng(seed)
    docs, queries = [f"d{d}" for d in range(30)], ["a", "b", "c"]
    qrels = {q: {f"d{d}": int(rng.integers(-1, 4)) for d in rng.permutation(40)[:12].tolist()} for q in queries}
    ranked = np.array([rng.permutation(30)[:depth] for _ in queries])
    expected = Evaluator(qrels)({q: [docs[d] for d in row] for q, row in zip(queries, ranked.tolist(), strict=True)})

    assert expected["nDCG@10"] == pytest.approx(Graded.of(qrels, queries, docs)(np.arange(3), ranked))


def test_rows_of_some_queries_are_measured() -> None:
    """Which query a list is for is said by its row."""
    graded = Graded.of({"a": {"x": 1}, "b": {"y": 1}}, ["a", "b"], ["x", "y"])

    assert graded(np.array([1, 0]), np.array([[0], [0]])).tolist() == [0.0, 1.0]


def test_fractional_grades_are_refused_on_rows_too() -> None:
    """Grades are whole numbers."""
    with pytest.raises(InputError, match=r"expected whole grades, got 0\.5"):
        Graded.of({"a": {"x": 0.5}}, ["a"], ["x"])
