"""FAISS search against brute force."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tttembed_rag import InputError
from tttembed_rag.errors import VectorError
from tttembed_rag.evaluate.index import FaissIndex

RNG = np.random.default_rng(7)
DOCUMENTS = RNG.standard_normal((300, 12)) * RNG.uniform(0.1, 10.0, (300, 1))
QUERIES = RNG.standard_normal((20, 12)) * RNG.uniform(0.1, 10.0, (20, 1))


def cosines(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Cosine similarities (m, N) in float64."""
    units = [a / np.linalg.norm(a, axis=1, keepdims=True) for a in (queries, documents)]
    return units[0] @ units[1].T


def test_flat_ranks_like_brute_force() -> None:
    """The flat index returns the documents of any norm in order of cosine similarity."""
    expected = np.argsort(-cosines(QUERIES, DOCUMENTS), axis=1)[:, :10]

    _, rows = FaissIndex.from_vectors(DOCUMENTS).search(QUERIES, 10)

    assert expected.tolist() == rows.tolist()


def test_similarities_are_cosines() -> None:
    """Similarities are cosines, whatever the norms of documents and queries."""
    expected = -np.sort(-cosines(QUERIES, DOCUMENTS), axis=1)[:, :10]

    similarities, _ = FaissIndex.from_vectors(DOCUMENTS).search(QUERIES, 10)

    np.testing.assert_allclose(expected, similarities, atol=1e-6)


def test_query_norm_changes_nothing() -> None:
    """A query ranks documents the same at a thousand times its length."""
    index = FaissIndex.from_vectors(DOCUMENTS)

    assert index.search(QUERIES, 10)[1].tolist() == index.search(1000.0 * QUERIES, 10)[1].tolist()


def test_float32_and_float64_rank_alike() -> None:
    """The dtype of the vectors does not change the ranking."""
    wide = FaissIndex.from_vectors(DOCUMENTS).search(QUERIES, 10)[1]
    narrow = FaissIndex.from_vectors(DOCUMENTS.astype(np.float32)).search(QUERIES.astype(np.float32), 10)[1]

    assert wide.tolist() == narrow.tolist()


def test_k_beyond_the_documents_lists_each_once() -> None:
    index = FaissIndex.from_vectors(DOCUMENTS[:7])

    _, rows = index.search(QUERIES, 100)

    assert [list(range(7))] * len(QUERIES) == np.sort(rows, axis=1).tolist()


def test_length_is_the_number_of_documents() -> None:
    """An index is as long as its documents are many."""
    assert len(FaissIndex.from_vectors(DOCUMENTS)) == 300


def test_documents_stay_as_they_are() -> None:
    """Indexing normalises a copy, never the caller's array."""
    documents = DOCUMENTS.astype(np.float32)
    before = documents.copy()

    FaissIndex.from_vectors(documents)

    assert before.tobytes() == documents.tobytes()


def test_no_queries_give_no_rows() -> None:
    """A search with no queries returns empty results of the asked width."""
    similarities, rows = FaissIndex.from_vectors(DOCUMENTS).search(QUERIES[:0], 3)

    assert (similarities.shape, rows.shape) == ((0, 3), (0, 3))


def with_entry(value: float) -> np.ndarray:
    """Some documents, row 4 of them filled with one value."""
    documents = DOCUMENTS[:9].copy()
    documents[4] = value
    return documents


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (with_entry(np.nan), "vectors: expected finite, non-zero vectors, got NaN in row 4"),
        (with_entry(np.inf), "vectors: expected finite, non-zero vectors, got infinity in row 4"),
        (with_entry(0.0), "vectors: expected finite, non-zero vectors, got a zero vector in row 4"),
        (DOCUMENTS[:0], "vectors: expected a matrix (N, d) with N > 0, got shape (0, 12)"),
        (DOCUMENTS[0], "vectors: expected a matrix (N, d) with N > 0, got shape (12,)"),
    ],
    ids=["nan", "infinite", "zero", "empty", "one vector"],
)
def test_bad_documents_are_refused(documents: np.ndarray, message: str) -> None:
    """Documents that cannot be searched are refused with the argument, what was expected and what came."""
    with pytest.raises(VectorError) as caught:
        FaissIndex.from_vectors(documents)

    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (with_entry(np.nan), "queries: expected finite, non-zero vectors, got NaN in row 4"),
        (QUERIES[:, :5], "queries: expected shape (m, 12), got (20, 5)"),
        (QUERIES[0], "queries: expected shape (m, 12), got (12,)"),
    ],
    ids=["nan", "wrong width", "one vector"],
)
def test_bad_queries_are_refused(queries: np.ndarray, message: str) -> None:
    """Queries that cannot be ranked are refused with the argument, what was expected and what came."""
    index = FaissIndex.from_vectors(DOCUMENTS)

    with pytest.raises(VectorError) as caught:
        index.search(queries, 3)

    assert message == str(caught.value)


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(k: int) -> None:
    """A search for no documents is an input error that names k."""
    index = FaissIndex.from_vectors(DOCUMENTS)

    with pytest.raises(InputError, match=r"^k: expected .*"):
        index.search(QUERIES, k)


def test_missing_faiss_names_the_install_command() -> None:
    """Without faiss the error is an ImportError that says what to install."""
    code = (
        "import sys; sys.modules['faiss'] = None\n"
        "from tttembed_rag.errors import MissingExtraError\n"
        "from tttembed_rag.evaluate.index import FaissIndex\n"
        "try:\n"
        "    FaissIndex.from_vectors([[1.0, 0.0]])\n"
        "except MissingExtraError as exc:\n"
        "    print(isinstance(exc, ImportError), exc)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout == "True faiss is not installed; run: pip install 'tttembed-rag[eval]'\n"
