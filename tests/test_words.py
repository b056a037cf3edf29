"""What `benchmarks/words.py` counts, learns and decides by."""

import numpy as np
import pytest
from scipy.optimize import check_grad

from benchmarks.words import AGREEMENT, Learning, Lists, Words, served
from tttembed_rag.fitting.objectives import PADDING, softmax


def test_bm25_is_okapi_with_the_idf_of_the_seen_documents() -> None:
    """A word counts by how few of the seen documents have it, saturating, less in long documents."""
    words = Words.of(["red fox", "red red hen house", "blue_whale"], ["Red fox!", "cow"])
    expected = np.zeros((2, 3))
    idf = {"red": np.log1p(0.5 / 2.5), "fox": np.log1p(1.5 / 1.5)}
    expected[0, 0] = (idf["red"] + idf["fox"]) * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3))
    expected[0, 1] = idf["red"] * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 4 / 3))
    np.testing.assert_allclose(words.bm25(np.arange(2), np.arange(2)), expected)


def test_the_gradient_of_theta_is_that_of_its_objective() -> None:
    """Also where a query has fewer candidates than another."""
    rng = np.random.default_rng(0)
    padding = np.where(np.arange(4) < np.array([4, 3, 2])[:, None], 0.0, PADDING)
    teacher = softmax(rng.standard_normal((3, 4)) + padding)
    learning = Learning(rng.standard_normal((3, 4, 5)), padding, teacher, np.array([1.0, 0.5, 1.0]), np.ones(5))
    wrong = check_grad(lambda t: learning.objective(t)[0], lambda t: learning.objective(t)[1], rng.standard_normal(5))
    assert wrong < 1e-5


def test_agreement_is_the_mean_correlation_of_cosine_and_words() -> None:
    """Of three queries one agrees, one contradicts, and one shares no word with its candidates."""
    cosine = np.array([[3.0, 2, 1], [3, 2, 1], [3, 2, 1]])
    overlap = np.array([[6.0, 4, 2], [1, 2, 3], [0, 0, 0]])
    lists = Lists.of((cosine, overlap, np.ones((3, 3)), cosine), np.ones((3, 3), dtype=bool))
    assert lists.agreement == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, 0.2),
        ({"agreement": AGREEMENT - 0.01}, 0.1),
        ({"fall of words below v": -0.01}, 0.1),
        ({"agreement": 0.0, "fall of v": -0.01}, 0.0),
        ({"believed": False}, 0.0),
    ],
)
def test_words_are_served_where_judge_vectors_and_held_out_queries_agree(
    changed: dict[str, float], expected: float
) -> None:
    """Otherwise v(x) alone is, if it may."""
    row = {"believed": True, "agreement": AGREEMENT, "fall of v": 0.1, "fall of words below v": 0.1}
    assert served({**row, "ungated": {"v": 0.1, "words": 0.2}, **changed}, "words") == expected
