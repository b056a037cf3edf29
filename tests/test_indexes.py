"""FAISS search against brute force."""

from __future__ import annotations

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


@pytest.mark.parametrize(("length", "dtype"), [(1.0, np.float64), (1000.0, np.float64), (1.0, np.float32)])
def test_flat_ranks_like_brute_force(length: float, dtype: type[np.floating]) -> None:
    """Documents come by cosine similarity, whatever the norm and the dtype of documents and queries."""
    expected = cosines(QUERIES, DOCUMENTS)

    similarities, rows = FaissIndex.from_vectors(DOCUMENTS.astype(dtype)).search(length * QUERIES.astype(dtype), 10)

    assert np.argsort(-expected, axis=1)[:, :10].tolist() == rows.tolist()
    np.testing.assert_allclose(-np.sort(-expected, axis=1)[:, :10], similarities, atol=1e-6)


def test_k_beyond_the_documents_lists_each_once() -> None:
    index = FaissIndex.from_vectors(DOCUMENTS[:7])

    _, rows = index.search(QUERIES, 100)

    assert [list(range(7))] * len(QUERIES) == np.sort(rows, axis=1).tolist()


def test_documents_stay_as_they_are() -> None:
    """Indexing normalises a copy, never the caller's array."""
    documents = DOCUMENTS.astype(np.float32)
    before = documents.copy()

    FaissIndex.from_vectors(documents)

    assert before.tobytes() == documents.tobytes()


BAD_VECTORS = {
    "vectors: expected finite, non-zero vectors, got a zero vector in row 0": (0 * DOCUMENTS, QUERIES),
    "vectors: expected a matrix (N, d) with N > 0, got shape (0, 12)": (DOCUMENTS[:0], QUERIES),
    "vectors: expected a matrix (N, d) with N > 0, got shape (12,)": (DOCUMENTS[0], QUERIES),
    "queries: expected finite, non-zero vectors, got a zero vector in row 0": (DOCUMENTS, 0 * QUERIES),
    "queries: expected shape (m, 12), got (20, 5)": (DOCUMENTS, QUERIES[:, :5]),
    "queries: expected shape (m, 12), got (12,)": (DOCUMENTS, QUERIES[0]),
}


@pytest.mark.parametrize(("message", "vectors"), BAD_VECTORS.items())
def test_bad_vectors_are_refused(message: str, vectors: tuple[np.ndarray, np.ndarray]) -> None:
    """What cannot be searched or ranked is refused with the argument, what was expected and what came."""
    documents, queries = vectors
    with pytest.raises(VectorError) as caught:
        FaissIndex.from_vectors(documents).search(queries, 3)

    assert message == str(caught.value)


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_one_is_refused(k: int) -> None:
    """A search for no documents is an input error that names k."""
    index = FaissIndex.from_vectors(DOCUMENTS)

    with pytest.raises(InputError, match=r"^k: expected .*"):
        index.search(QUERIES, k)


def test_missing_faiss_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without faiss the error is an ImportError that says what to install."""
    monkeypatch.setitem(sys.modules, "faiss", None)

    with pytest.raises(ImportError, match=r"^faiss is not installed; run: pip install 'tttembed-rag\[eval\]'$"):
        FaissIndex.from_vectors(DOCUMENTS)
