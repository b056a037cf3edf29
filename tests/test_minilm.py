"""all-MiniLM-L6-v2 as it is packaged, run for real."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest

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
def embedded() -> tuple[np.ndarray, str]:
    """Ten pairs of paraphrases embedded by all-MiniLM-L6-v2, and what that wrote to a piped stderr."""
    code = (
        "import io, sys, numpy; from tttembed_rag.embedders import minilm\n"
        "numpy.save(file := io.BytesIO(), minilm().embed_documents(sys.stdin.read().splitlines()))\n"
        "sys.stdout.buffer.write(file.getvalue())"
    )
    texts = "\n".join(text for pair in PARAPHRASES for text in pair).encode()
    done = subprocess.run([sys.executable, "-c", code], check=True, input=texts, capture_output=True)
    return np.load(io.BytesIO(done.stdout)), done.stderr.decode()


def test_the_packaged_model_gives_unit_vectors(embedded: tuple[np.ndarray, str]) -> None:
    """all-MiniLM-L6-v2, run for real, gives a unit vector of width 384 per text, as float32."""
    vectors, _ = embedded

    assert (vectors.shape, vectors.dtype) == ((20, 384), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)


def test_the_packaged_model_understands_sentences(embedded: tuple[np.ndarray, str]) -> None:
    """Every sentence is nearer to its own paraphrase than to anybody else's."""
    vectors, _ = embedded

    similarities = vectors[0::2] @ vectors[1::2].T

    assert similarities.argmax(axis=1).tolist() == list(range(len(PARAPHRASES)))


def test_embedding_is_quiet_in_a_pipe(embedded: tuple[np.ndarray, str]) -> None:
    """Where no person watches, embedding draws no progress bar."""
    _, stderr = embedded

    assert stderr == ""
