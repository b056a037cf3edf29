"""The completed matrix: what is known stays, and what is not comes from like queries, or from nowhere."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.paper.completion import COMPLETIONS, by_factors, by_kernel
from tttembed_rag import Scale
from tttembed_rag.evaluate.collection import Collection, pooled_rewards
from tttembed_rag.evaluate.datasets import Dataset

DOCUMENTS, QUERIES, WIDTH = 40, 30, 16
JUDGED = np.arange(20)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of unit length."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def collection() -> Collection:
    """Thirty queries that are nearly one; the judge and the labels like the same document of the first ten."""
    rng = np.random.default_rng(5)
    docs = unit(rng.standard_normal((DOCUMENTS, WIDTH))).astype(np.float32)
    queries = unit(docs[:10].mean(axis=0) + 0.005 * rng.standard_normal((QUERIES, WIDTH))).astype(np.float32)
    order = np.argsort(-queries @ docs.T, axis=1)
    wanted = int(order[0, 7])
    scores = {f"q{q}": {f"d{d}": 0.9 if d == wanted else 0.1 for d in order[q, :10]} for q in range(QUERIES)}
    qrels = {f"q{q}": {f"d{wanted}": 1.0} for q in range(QUERIES)}
    names = {f"d{d}": "" for d in range(DOCUMENTS)}
    dataset = Dataset("alike", names, dict.fromkeys(qrels, ""), qrels)
    return Collection.of(dataset, docs, queries, embedder="random", judge="likes", scores=scores, scale=Scale())


def test_a_kernel_estimate_by_hand() -> None:
    """The mean of what like queries have of the document, weighed by likeness and pulled to zero by a tenth."""
    known, present = np.array([[0.4, 0.0], [-0.2, 0.6]]), np.array([[1.0, 0.0], [1.0, 1.0]])
    kernel = np.array([[0.5, 1.0]])

    estimates = by_kernel(known, present)(kernel)

    assert estimates == pytest.approx(np.array([[0.0 / 1.6, 0.6 / 1.1]]))


def test_factors_find_a_matrix_of_low_rank() -> None:
    """Where deviations have rank two, entries that were left out come back from the others."""
    rng = np.random.default_rng(1)
    whole = rng.standard_normal((40, 2)) @ rng.standard_normal((2, 30))
    present = (rng.uniform(size=whole.shape) < 0.8).astype(float)

    estimates = by_factors(whole * present, present)(1e6 * np.eye(40))

    hidden = present == 0
    assert np.corrcoef(estimates[hidden], whole[hidden])[0, 1] > 0.9


@pytest.mark.parametrize("name", COMPLETIONS)
def test_like_queries_share_what_was_judged(collection: Collection, name: str) -> None:
    """Queries that nobody judged find the document first that judged ones like them were given."""
    others = np.setdiff1d(np.arange(QUERIES), JUDGED)

    found = COMPLETIONS[name](collection, JUDGED, pooled_rewards([collection], [JUDGED], 10))

    assert collection.raw[others].mean() < 0.6
    assert found[others].mean() > 0.95
    assert found[JUDGED] == pytest.approx(1.0)


@pytest.mark.parametrize("name", COMPLETIONS)
def test_one_judged_query_says_nothing_of_others(collection: Collection, name: str) -> None:
    """With nothing to leave out, estimates count nothing: only the judged query is ordered anew."""
    one = JUDGED[:1]

    found = COMPLETIONS[name](collection, one, pooled_rewards([collection], [one], 10))

    assert np.array_equal(found[1:], collection.raw[1:])
    assert found[0] == 1.0
