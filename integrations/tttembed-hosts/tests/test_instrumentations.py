"""Spans of real frameworks with the real instrumentation of OpenInference, beside the native adapters."""

import asyncio
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from tests.adapters.worlds import PAGES, UNGATED, Words
from tttembed_rag import Offset, Offsets, context
from tttembed_rag.testing import FakeLog

trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra spans: the OpenTelemetry SDK is not installed")

from tttembed_store.spans.processor import TTTSpanProcessor  # noqa: E402 - it needs the SDK
from tttembed_store.sql import open_store  # noqa: E402 - likewise

DOCUMENTS = [*PAGES, "wool shrinks when hot"]


@contextmanager
def instrumented(framework, log):
    """A block whose spans of a *framework* are told to *log*, by the processor that it gives."""
    module = f"openinference.instrumentation.{framework.lower()}"
    instrument = pytest.importorskip(module, reason=f"OpenInference of {framework} is not installed")
    processor, provider = TTTSpanProcessor(log), trace.TracerProvider()
    provider.add_span_processor(processor)
    instrumentor = getattr(instrument, f"{framework.replace('_', '')}Instrumentor")()
    instrumentor.instrument(tracer_provider=provider)
    try:
        yield processor
        processor.force_flush()
    finally:
        instrumentor.uninstrument()


def calls_of(log):
    """What a log was told, without the objects."""
    return [(call.query, call.documents, call.scores, call.task) for call in log.calls]


class TestLangChain:
    """The same chain, seen by its own callbacks and by its spans."""

    @pytest.fixture
    def chain(self):
        """A chain with two retrievers in an ensemble, compressed, over a store with stemmed word vectors."""
        pytest.importorskip("langchain_classic", reason="LangChain is not installed")
        from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
        from langchain_classic.retrievers.document_compressors import EmbeddingsFilter
        from langchain_core.runnables import RunnableLambda
        from langchain_core.vectorstores import InMemoryVectorStore

        from tests.adapters.langchain_driver import Model

        words = Model(Words())
        stores = [InMemoryVectorStore(words) for _ in range(2)]
        for part, into in enumerate(stores):
            into.add_texts([f"{text} {part}" for text in DOCUMENTS])
        ensemble = EnsembleRetriever(retrievers=[store.as_retriever(search_kwargs={"k": 2}) for store in stores])
        compressed = ContextualCompressionRetriever(
            base_compressor=EmbeddingsFilter(embeddings=words, k=2), base_retriever=ensemble
        )
        return RunnableLambda(lambda query: query.lower()) | compressed

    @pytest.mark.parametrize("metadata", [{}, {"tttembed_task": "billing"}])
    def test_both_taps_tell_the_same(self, chain, metadata):
        """Queries, documents, order and tasks are those of the native adapter, sync, in batches and with a task."""
        from langchain_tttembed import RewardCallbackHandler

        native, tapped = FakeLog(), FakeLog()
        config = {"callbacks": [RewardCallbackHandler(native)], "metadata": metadata}
        with instrumented("LangChain", tapped):
            chain.invoke("Wash wool", config)
            with context(task="sales"):
                chain.batch(["hot kettle", "mill river"], config)

        assert len(native.calls) == 6
        assert sorted(calls_of(tapped), key=repr) == sorted(calls_of(native), key=repr)
        assert {call.task for call in native.calls} == ({"billing"} if metadata else {None, "sales"})


@pytest.mark.slow
class TestHaystack:
    """A real pipeline of Haystack, seen by its spans."""

    @pytest.mark.parametrize("embedders", [1, 2])
    def test_a_retriever_asked_by_a_vector(self, embedders, tmp_path, monkeypatch):
        """The query is the one text that was embedded; of several, it is not known which, and none is made up."""
        pytest.importorskip("haystack", reason="Haystack is not installed")
        from haystack import Document, Pipeline, component
        from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
        from haystack.document_stores.in_memory import InMemoryDocumentStore
        from haystack_integrations.components.embedders.tttembed import TTTTextEmbedder

        @component
        class Ones:
            """A vector of ones for any text."""

            @component.output_types(embedding=list[float])
            def run(self, text: str):
                """The vector."""
                return {"embedding": [1.0, 1.0]}

        monkeypatch.setattr(sys.modules[__name__], "Ones", Ones, raising=False)  # where the instrumentation looks
        store = InMemoryDocumentStore()
        store.write_documents([Document(content=text, embedding=[1.0, 0.5]) for text in DOCUMENTS])
        pipeline, url = Pipeline(), f"sqlite:///{tmp_path}/ttt.db"
        open_store(url).close()
        for number in range(embedders):
            pipeline.add_component(f"text{number}", TTTTextEmbedder(Ones(), store=url))
        pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=4))
        pipeline.connect("text0.embedding", "retriever.query_embedding")
        tapped = FakeLog()
        with instrumented("Haystack", tapped) as processor:
            pipeline.run({f"text{number}": {"text": f"wash {number}"} for number in range(embedders)})

        assert [(call.query, set(call.documents)) for call in tapped.calls] == [("wash 0", set(DOCUMENTS))] * (
            2 - embedders
        )
        assert processor.counts.without_query == embedders - 1


@pytest.mark.slow
class TestLlamaIndex:
    """The same query engine, seen by its own events and by its spans."""

    def test_both_taps_tell_the_same(self):
        """Queries, documents and order are those of the native adapter, sync, async and nested; vectors are bare."""
        pytest.importorskip("llama_index.core", reason="LlamaIndex is not installed")
        from llama_index.core import Document, MockEmbedding, VectorStoreIndex
        from llama_index.core.instrumentation import get_dispatcher
        from llama_index.core.llms import MockLLM
        from llama_index.core.query_engine import RetrieverQueryEngine
        from llama_index.core.retrievers import QueryFusionRetriever
        from llama_index.embeddings.tttembed import TTTEmbedding
        from llama_index.postprocessor.tttembed import RewardEventHandler

        offsets = Offsets([Offset("global", np.float32([0.5, -0.5, 0.2, 0]), 0.9, 9, UNGATED)], width=4)
        index = VectorStoreIndex.from_documents(
            [Document(text=text) for text in DOCUMENTS],
            embed_model=TTTEmbedding(MockEmbedding(embed_dim=4), offsets=offsets),
        )
        retriever, model = index.as_retriever(similarity_top_k=3), MockLLM()
        fused = QueryFusionRetriever([retriever], llm=model, num_queries=1, similarity_top_k=3, use_async=False)
        engine = RetrieverQueryEngine.from_args(retriever, llm=model)
        native, tapped = FakeLog(), FakeLog()
        handler, dispatcher = RewardEventHandler(native), get_dispatcher()
        dispatcher.add_event_handler(handler)
        try:
            with instrumented("Llama_Index", tapped):
                engine.query("wash wool")
                with context(task="sales"):
                    asyncio.run(retriever.aretrieve("hot kettle"))
                fused.retrieve("mill river")
        finally:
            dispatcher.event_handlers.remove(handler)

        assert {call.query: len(call.documents) for call in native.calls} == {
            "wash wool": 3,
            "hot kettle": 3,
            "mill river": 3,
        }
        assert set(map(repr, calls_of(tapped))) == set(map(repr, calls_of(native)))
        assert [list(call.known.vector) for call in tapped.calls] == 3 * [[0.5, 0.5, 0.5, 0.5]]  # base vectors
