"""DSPy: searches steered, the corpus bit for bit, saved and loaded."""

import numpy as np
import pytest
from tttembed_hosts.dspy import steer

from tests.adapters.worlds import BILLING, PAGES, WIDTH
from tttembed_rag import InputError
from tttembed_rag.testing import FakeEmbedder, FakeLog

# Importing DSPy takes seconds.
pytestmark = pytest.mark.slow


def words(texts):
    return FakeEmbedder(width=WIDTH).embed_queries(texts)


@pytest.fixture(scope="module")
def dspy():
    """The package."""
    return pytest.importorskip("dspy", reason="DSPy is not installed")


@pytest.fixture
def retriever(dspy):
    return dspy.retrievers.Embeddings(corpus=PAGES, embedder=dspy.Embedder(words, caching=False), k=3)


def best(vectors):
    """Indices of the corpus by nearness to vectors (n, d)."""
    return np.argsort(-(vectors @ words(PAGES).T), axis=1).tolist()


def test_searches_are_steered_and_the_corpus_is_not(retriever):
    """The order is that of the steered vector; the corpus keeps its vectors, bit for bit."""
    before = retriever.corpus_embeddings.copy()

    steered = steer(retriever, offsets=BILLING, task="billing")

    assert [steered("wool").indices] == best(BILLING.apply(words(["wool"]), task="billing"))
    np.testing.assert_array_equal(steered.corpus_embeddings, before)


def test_a_function_names_the_task_of_each_query(retriever):
    """One thread of DSPy searches for all callers: each query still gets the offset of its own task."""
    steered = steer(retriever, offsets=BILLING, task=lambda query: query.partition(" ")[0])

    lists = [steered(query).indices for query in ("billing wool", "other wool")]

    turned = BILLING.apply(words(["billing wool"]), task="billing")
    assert lists == [*best(turned), *best(words(["other wool"]))]


def test_a_saved_retriever_is_steered_again(dspy, retriever, tmp_path):
    """Saved and loaded with the embedder itself, then steered: the same answers."""
    steered = steer(retriever, offsets=BILLING, task="billing")
    steered.save(str(tmp_path / "index"))

    loaded = dspy.retrievers.Embeddings.from_saved(str(tmp_path / "index"), dspy.Embedder(words, caching=False))
    again = steer(loaded, offsets=BILLING, task="billing")

    assert again("wool").indices == steered("wool").indices


def test_other_objects_are_refused(retriever):
    """Nothing but a retriever with its corpus embedded, and that once."""
    with pytest.raises(InputError, match="retriever: expected a dspy Embeddings retriever, got list"):
        steer([], offsets=BILLING)
    with pytest.raises(InputError, match="steered already"):
        steer(steer(retriever, offsets=BILLING), offsets=BILLING)


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
        with dspy.context(rm=lambda _, k: [dspy.Example(long_text=text) for text in PAGES[:k]]):
            dspy.Retrieve(k=2)("kettle")
        processor.force_flush()
    finally:
        instrumentor.uninstrument()

    assert [(call.query, list(call.documents)) for call in log.calls] == [("kettle", PAGES[:2])]
