"""DSPy: searches steered, the corpus bit for bit, saved and loaded."""

import numpy as np
import pytest
from tttembed_hosts.dspy import steer

from tttembed_rag import Evidence, InputError, Offset, Offsets
from tttembed_rag.testing import FakeEmbedder, FakeLog

# Importing DSPy takes seconds.
pytestmark = pytest.mark.slow

CORPUS = ["wash wool cold", "boil the kettle", "river past the mill"]
WIDTH = 16


def offsets_of(task):
    vector = np.random.default_rng(0).normal(size=WIDTH).astype(np.float32) / 2
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    return Offsets([Offset("task", vector, 0.9, 9, evidence, task=task)], width=WIDTH)


def words(texts):
    return FakeEmbedder(width=WIDTH).embed_queries(texts)


@pytest.fixture(scope="module")
def dspy():
    """The package."""
    return pytest.importorskip("dspy", reason="DSPy is not installed")


@pytest.fixture
def retriever(dspy):
    return dspy.retrievers.Embeddings(corpus=CORPUS, embedder=dspy.Embedder(words, caching=False), k=3)


def best(vectors):
    """Indices of the corpus by nearness to vectors (n, d)."""
    return np.argsort(-(vectors @ words(CORPUS).T), axis=1).tolist()


def test_searches_are_steered_and_the_corpus_is_not(retriever):
    """The order is that of the steered vector; the corpus keeps its vectors, bit for bit."""
    before = retriever.corpus_embeddings.copy()

    steered = steer(retriever, offsets=offsets_of("billing"), task="billing")

    expected = best(offsets_of("billing").apply(words(["wool"]), task="billing"))
    assert [steered("wool").indices] == expected
    np.testing.assert_array_equal(steered.corpus_embeddings, before)


def test_a_function_names_the_task_of_each_query(retriever):
    """One thread of DSPy searches for all callers: each query still gets the offset of its own task."""
    steered = steer(retriever, offsets=offsets_of("billing"), task=lambda query: query.partition(" ")[0])

    found = [steered(query).indices for query in ("billing wool", "other wool")]

    turned = offsets_of("billing").apply(words(["billing wool"]), task="billing")
    assert found == [*best(turned), *best(words(["other wool"]))]


def test_a_saved_retriever_is_steered_again(dspy, retriever, tmp_path):
    """Saved and loaded with the embedder itself, then steered: the same answers."""
    steered = steer(retriever, offsets=offsets_of("billing"), task="billing")
    steered.save(str(tmp_path / "index"))

    loaded = dspy.retrievers.Embeddings.from_saved(str(tmp_path / "index"), dspy.Embedder(words, caching=False))
    again = steer(loaded, offsets=offsets_of("billing"), task="billing")

    assert again("wool").indices == steered("wool").indices


def test_other_objects_are_refused(retriever):
    """Nothing but a retriever with its corpus embedded, and that once."""
    with pytest.raises(InputError, match="retriever: expected a dspy Embeddings retriever, got list"):
        steer([], offsets=offsets_of("a"))
    with pytest.raises(InputError, match="steered already"):
        steer(steer(retriever, offsets=offsets_of("a")), offsets=offsets_of("a"))


def test_what_retrieve_finds_is_captured_by_its_spans(dspy, retriever):
    """The real instrumentation has a span of `dspy.Retrieve`, and none of a retriever that is asked directly."""
    instrument = pytest.importorskip(
        "openinference.instrumentation.dspy", reason="OpenInference of DSPy is not installed"
    )
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the OpenTelemetry SDK is not installed")
    from tttembed_store.spans.processor import TTTSpanProcessor

    log, provider = FakeLog(), trace.TracerProvider()
    processor = TTTSpanProcessor(log)
    provider.add_span_processor(processor)
    instrumentor = instrument.DSPyInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        retriever("wool")
        with dspy.context(rm=lambda _, k: [dspy.Example(long_text=text) for text in CORPUS[:k]]):
            dspy.Retrieve(k=2)("kettle")
        processor.force_flush()
    finally:
        instrumentor.uninstrument()

    assert [(one.query, list(one.documents)) for one in log.calls] == [("kettle", CORPUS[:2])]
