"""DSPy: searches steered, the corpus bit for bit, saved and loaded."""

import numpy as np
import pytest

dspy = pytest.importorskip("dspy", reason="DSPy is not installed: it does not install beside the pinned versions")

from tttembed_rag import Evidence, InputError, Offset, Offsets  # noqa: E402
from tttembed_rag.hosts.dspy import steer  # noqa: E402
from tttembed_rag.testing import FakeEmbedder  # noqa: E402

CORPUS = ["wash wool cold", "boil the kettle", "river past the mill"]
WIDTH = 16


def offsets_of(task):
    """Offsets with one vector for a task."""
    vector = np.random.default_rng(0).normal(size=WIDTH).astype(np.float32) / 2
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    return Offsets([Offset("task", vector, 0.9, 9, evidence, task=task)], width=WIDTH)


def words(texts):
    """A vector of words each."""
    return FakeEmbedder(width=WIDTH).embed_queries(texts)


def retriever_of():
    """A retriever of DSPy with its corpus embedded."""
    return dspy.retrievers.Embeddings(corpus=CORPUS, embedder=dspy.Embedder(words, caching=False), k=3)


def best(vectors):
    """Indices of the corpus by nearness to vectors (n, d)."""
    return np.argsort(-(vectors @ words(CORPUS).T), axis=1).tolist()


def test_searches_are_steered_and_the_corpus_is_not():
    """The order is that of the steered vector; the corpus keeps its vectors, bit for bit."""
    plain = retriever_of()
    before = plain.corpus_embeddings.copy()

    steered = steer(plain, offsets=offsets_of("billing"), scope="billing")

    expected = best(offsets_of("billing").apply(words(["wool"]), task="billing"))
    assert [steered("wool").indices] == expected
    np.testing.assert_array_equal(steered.corpus_embeddings, before)


def test_a_function_names_the_task_of_each_query():
    """One thread of DSPy searches for all callers: each query still gets the offset of its own task."""
    steered = steer(retriever_of(), offsets=offsets_of("billing"), scope=lambda query: query.partition(" ")[0])

    found = [steered(query).indices for query in ("billing wool", "other wool")]

    turned = offsets_of("billing").apply(words(["billing wool"]), task="billing")
    assert found == [*best(turned), *best(words(["other wool"]))]


def test_a_saved_retriever_is_steered_again(tmp_path):
    """Saved and loaded with the embedder itself, then steered: the same answers."""
    steered = steer(retriever_of(), offsets=offsets_of("billing"), scope="billing")
    steered.save(str(tmp_path / "index"))

    loaded = dspy.retrievers.Embeddings.from_saved(str(tmp_path / "index"), dspy.Embedder(words, caching=False))
    again = steer(loaded, offsets=offsets_of("billing"), scope="billing")

    assert again("wool").indices == steered("wool").indices


def test_other_objects_are_refused():
    """Nothing but a retriever with its corpus embedded, and that once."""
    with pytest.raises(InputError, match="retriever: expected a dspy Embeddings retriever, got list"):
        steer([], offsets=offsets_of("a"))
    with pytest.raises(InputError, match="steered already"):
        steer(steer(retriever_of(), offsets=offsets_of("a")), offsets=offsets_of("a"))
