"""Spans of OpenTelemetry become observations and rewards: the real SDK, and the real instrumentation of LangChain."""

import json
import logging
import threading
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from tttembed_store import StoreLog
from tttembed_store.spans.reading import Reader, Span

from tttembed_rag import Evidence, InputError, Offset, Offsets, context
from tttembed_rag.testing import FakeLog

trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra spans: the OpenTelemetry SDK is not installed")

from tttembed_store.spans.processor import TTTSpanProcessor  # noqa: E402 - it needs the SDK

DOCUMENTS = ["wash wool cold", "boil the kettle", "river past the mill", "wool shrinks when hot"]


def provided(log, *, limits=None, **options):
    """A processor, and a tracer of spans that it sees."""
    processor = TTTSpanProcessor(log, **options)
    provider = trace.TracerProvider(span_limits=limits)
    provider.add_span_processor(processor)
    return processor, provider.get_tracer("test")


def shown(texts, prefix="retrieval.documents", **more):
    """Attributes of documents as OpenInference flattens them."""
    return {f"{prefix}.{n}.document.content": text for n, text in enumerate(texts)} | {
        f"{prefix}.{n}.document.{key}": values[n] for key, values in more.items() for n in range(len(texts))
    }


def retriever(query="wool", texts=DOCUMENTS, **more):
    """Attributes of a RETRIEVER span."""
    return {"openinference.span.kind": "RETRIEVER", "input.value": query, **shown(texts), **more}


def reranker(model="reranker", scores=(0.9, 0.1)):
    """Attributes of a RERANKER span."""
    documents = shown(DOCUMENTS[: len(scores)], "reranker.output_documents", score=list(scores))
    return {"openinference.span.kind": "RERANKER", "reranker.query": "wool", "reranker.model_name": model, **documents}


def calls_of(log):
    """What a log was told, without the objects."""
    return [(one.query, one.documents, one.scores, one.task) for one in log.calls]


class TestReading:
    """What is read of a span."""

    def test_a_retriever_is_observed(self):
        """Query and documents, in their order."""
        log = FakeLog()
        processor, tracer = provided(log)

        tracer.start_span("retrieve", attributes=retriever()).end()

        assert processor.force_flush()
        assert calls_of(log) == [("wool", tuple(DOCUMENTS), None, None)]

    @pytest.mark.parametrize(
        "attributes",
        [
            {"input.value": json.dumps({"query": "wool", "top_k": 3}), "input.mime_type": "application/json"},
            {"input.value": json.dumps("wool"), "input.mime_type": "application/json"},
            {"input.value": json.dumps({"any": "wool"}), "input.mime_type": "application/json"},
            *(
                {"input.value": json.dumps(asked), "input.mime_type": "application/json"}
                for asked in (
                    {"args": ["wool"], "kwargs": {"k": 4}},
                    {"args": ["wool", "manuals"], "kwargs": {"collection": "manuals"}},
                    {"args": [], "kwargs": {"query": "wool", "collection": "manuals"}},
                    {"args": ["manuals"], "kwargs": {"question": "wool"}},
                    {"args": [{"query": "wool", "lang": "en"}], "kwargs": {}},
                    {"query_bundle": {"query_str": "wool", "image_path": None}, "mode": "hybrid"},
                    ["wool"],
                )
            ),
        ],
    )
    def test_a_query_in_json_is_found(self, attributes):
        """An input in JSON is looked into, in the ways in which decorators write what a function was asked."""
        log = FakeLog()
        processor, tracer = provided(log)

        tracer.start_span("retrieve", attributes=retriever() | attributes).end()
        processor.force_flush()

        assert [one.query for one in log.calls] == ["wool"]

    def test_only_the_innermost_retriever_counts(self):
        """A retriever that asked another one, however far below, hands on what was observed there."""
        log = FakeLog()
        processor, tracer = provided(log)

        with (
            tracer.start_as_current_span("ensemble", attributes=retriever(texts=DOCUMENTS[:1])),
            tracer.start_as_current_span("chain", attributes={"openinference.span.kind": "CHAIN"}),
        ):
            for _ in range(2):
                tracer.start_span("retrieve", attributes=retriever()).end()
        processor.force_flush()

        assert [len(one.documents) for one in log.calls] == [4, 4]
        assert processor.counts.nested == 1

    def test_scores_of_a_declared_reranker_are_recorded(self):
        """The declared model's scores go to the log, another model's do not."""
        log = FakeLog()
        processor, tracer = provided(log, scores_of="reranker")

        for model in ("reranker", "another"):
            tracer.start_span("rerank", attributes=reranker(model)).end()
        processor.force_flush()

        assert calls_of(log) == [("wool", tuple(DOCUMENTS[:2]), (0.9, 0.1), None)]
        assert (processor.counts.recorded, processor.counts.undeclared) == (1, 1)
        assert log.trusted

    def test_scores_without_a_declaration_are_left(self):
        """A reranker's scores have no scale of their own."""
        log = FakeLog()
        processor, tracer = provided(log)

        tracer.start_span("rerank", attributes=reranker()).end()
        processor.force_flush()

        assert (log.calls, log.trusted) == ([], None)

    @pytest.mark.parametrize("text", ["__REDACTED__", "x" * 40, "", None])
    def test_a_text_that_is_not_whole_is_never_judged(self, text):
        """Redacted, cut and missing documents are left out, and counted."""
        log = FakeLog()
        processor, tracer = provided(log, cut_at=40)
        texts = ["whole", *([] if text is None else [text])]
        attributes = retriever(texts=texts) | ({"retrieval.documents.1.document.id": "d"} if text is None else {})

        tracer.start_span("retrieve", attributes=attributes).end()
        processor.force_flush()

        assert calls_of(log) == [("wool", ("whole",), None, None)]
        assert processor.counts.left_out == 1

    def test_a_query_that_is_not_whole_is_not_observed(self):
        log = FakeLog()
        processor, tracer = provided(log)

        tracer.start_span("retrieve", attributes=retriever("__REDACTED__")).end()
        processor.force_flush()

        assert log.calls == []
        assert (processor.counts.left_out, processor.counts.without_query) == (0, 1)

    @pytest.mark.parametrize("text", ["null", "{}", '{"args": [], "kwargs": {"k": 4}}', '{"a": "x", "b": "y"}', "[3]"])
    def test_a_query_that_is_not_understood_is_counted(self, text):
        """Nothing in JSON becomes the text of a query that nobody asked."""
        log = FakeLog()
        processor, tracer = provided(log)

        tracer.start_span("retrieve", attributes=retriever(text) | {"input.mime_type": "application/json"}).end()
        processor.force_flush()

        assert log.calls == []
        assert (processor.counts.left_out, processor.counts.without_query) == (0, 1)

    def test_the_limit_of_the_sdk_counts_as_a_cut(self):
        """What the SDK itself shortened is recognised by its length."""
        log = FakeLog()
        processor, tracer = provided(log, limits=trace.SpanLimits(max_span_attribute_length=15))

        tracer.start_span("retrieve", attributes=retriever()).end()
        processor.force_flush()

        assert log.calls[0].documents == ("wash wool cold",)

    def test_lost_attributes_are_said(self, caplog):
        """The SDK keeps 128 attributes of a span; where documents are lost by that, one line says so."""
        log = FakeLog()
        processor, tracer = provided(log, limits=trace.SpanLimits(max_span_attributes=4))

        for _ in range(2):
            tracer.start_span("retrieve", attributes=dict(reversed(retriever().items()))).end()
        processor.force_flush()

        assert [len(one.documents) for one in log.calls] == [2, 2]
        assert caplog.text.count("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT above 6") == 1

    def test_texts_are_looked_up_by_id(self):
        """Documents without a whole text are asked for by their id, once for all of a span."""
        log, asked = FakeLog(), []

        def texts(ids):
            asked.append(ids)
            return {"b": "boil the kettle"}

        processor, tracer = provided(log, texts=texts)
        documents = json.dumps([{"id": "a", "score": 0.5}, {"id": "b", "score": 0.4}])
        attributes = {"gen_ai.operation.name": "retrieval", "gen_ai.retrieval.query.text": "tea"}

        tracer.start_span("search", attributes=attributes | {"gen_ai.retrieval.documents": documents}).end()
        processor.force_flush()

        assert calls_of(log) == [("tea", ("boil the kettle",), None, None)]
        assert asked == [["a", "b"]]

    @pytest.mark.parametrize("as_json", [True, False])
    def test_memories_that_were_recalled_are_retrieved_documents(self, as_json):
        """OpenTelemetry's spans of `search_memory`, with their contents where the application records them."""
        log = FakeLog()
        processor, tracer = provided(log)
        records = [{"id": "m1", "content": "the kettle is new", "score": 0.8}, {"id": "m2", "score": 0.7}]
        attributes = {"gen_ai.operation.name": "search_memory", "gen_ai.memory.query.text": "tea"}
        flat = {f"gen_ai.memory.records.{n}.{key}": one[key] for n, one in enumerate(records) for key in one}

        said = {"gen_ai.memory.records": json.dumps(records)} if as_json else flat
        tracer.start_span("search_memory", attributes=attributes | said).end()
        tracer.start_span("add_memory", attributes=said | {"gen_ai.operation.name": "upsert_memory"}).end()
        processor.force_flush()

        assert calls_of(log) == [("tea", ("the kettle is new",), None, None)]

    def test_the_task_is_that_of_the_span_then_of_the_caller(self):
        """Metadata of the span come first."""
        log = FakeLog()
        processor, tracer = provided(log)
        metadata = json.dumps({"tttembed_task": "billing"})

        with context(task="sales", tenant="acme"):
            tracer.start_span("retrieve", attributes=retriever(metadata=metadata)).end()
            tracer.start_span("retrieve", attributes=retriever()).end()
        tracer.start_span("retrieve", attributes=retriever()).end()
        processor.force_flush()

        assert [one.task for one in log.calls] == ["billing", "sales", None]


class TestVectors:
    """Query vectors of EMBEDDING spans."""

    def embed(self, tracer, text, vector, **more):
        """A span of an embedding model."""
        first = "embedding.embeddings.0.embedding"
        attributes = {"openinference.span.kind": "EMBEDDING", f"{first}.text": text, f"{first}.vector": vector}
        return tracer.start_as_current_span("embed", attributes=attributes | more)

    def known(self, log):
        return [None if one.known is None else one.known.vector.tolist() for one in log.calls]

    def test_the_base_vector_of_the_trace_is_known(self):
        """The vector of the query's text goes along; another text's and another trace's do not."""
        log = FakeLog()
        processor, tracer = provided(log)

        with tracer.start_as_current_span("chain"):
            for text, vector in (("wool", [1.0, 2.0]), ("another", [3.0, 4.0])):
                with self.embed(tracer, text, vector):
                    pass
            tracer.start_span("retrieve", attributes=retriever()).end()
        tracer.start_span("retrieve", attributes=retriever()).end()
        processor.force_flush()

        assert self.known(log) == [[1.0, 2.0], None]

    def test_the_innermost_model_has_the_base_vector(self):
        """A wrapper's span around the model's holds the vector with its offset."""
        log = FakeLog()
        processor, tracer = provided(log)

        with tracer.start_as_current_span("chain"):
            with self.embed(tracer, "wool", [9.0, 9.0]), self.embed(tracer, "wool", [1.0, 2.0]):
                pass
            tracer.start_span("retrieve", attributes=retriever()).end()
        processor.force_flush()

        assert self.known(log) == [[1.0, 2.0]]

    def test_a_steered_vector_is_marked_and_left_out(self):
        """Steering inside a span marks it; its vector is never taken for a base vector."""
        from tttembed_rag import Steering

        offset = Offset("global", np.ones(2, np.float32), 0.9, 9, Evidence(9, 0.1, (0.0, 0.2), "published", "made up"))
        steering = Steering(Offsets([offset], width=2))
        log = FakeLog()
        processor, tracer = provided(log)

        with tracer.start_as_current_span("chain"):
            with self.embed(tracer, "wool", [1.0, 2.0]):
                steering.apply([1.0, 2.0], "wool")
            tracer.start_span("retrieve", attributes=retriever()).end()
        processor.force_flush()

        assert self.known(log) == [None]

    @pytest.mark.parametrize(("texts", "query"), [(["wool", "wool"], "wool"), ([f"wool {n}" for n in range(9)], None)])
    def test_of_a_trace_no_more_is_kept_than_is_asked(self, texts, query):
        reader = Reader()
        embedding = {
            f"embedding.embeddings.{n}.embedding.{key}": value
            for n, text in enumerate(texts)
            for key, value in (("text", text), ("vector", [1.0, 2.0]))
        }
        reader.read(Span("embed", "trace", None, {"openinference.span.kind": "EMBEDDING", **embedding}))

        read = reader.read(Span("retrieve", "trace", None, retriever("<2-dimensional vector>")))

        assert (None if read is None else read[0].query) == query
        assert list(reader._embedded.values()) == [query]

    def test_vectors_can_be_refused(self):
        """Where a proxy steers unseen, no vector of a span is believed."""
        log = FakeLog()
        processor, tracer = provided(log, vectors=False)

        with tracer.start_as_current_span("chain"):
            with self.embed(tracer, "wool", [1.0, 2.0]):
                pass
            tracer.start_span("retrieve", attributes=retriever()).end()
        processor.force_flush()

        assert self.known(log) == [None]


class TestHarm:
    """A processor never costs the application anything."""

    def test_what_waits_is_bounded(self):
        """A full queue drops spans and counts them; the application does not wait."""
        log, go = FakeLog(), threading.Event()
        processor, tracer = provided(log, texts=lambda _: go.wait(60) and {}, capacity=3)
        slow = {"gen_ai.operation.name": "retrieval", "gen_ai.retrieval.query.text": "tea"}
        slow["gen_ai.retrieval.documents"] = '[{"id": "a"}]'

        for _ in range(20):
            tracer.start_span("search", attributes=slow).end()
        go.set()
        processor.force_flush()

        assert processor.counts.unread >= 14

    def test_the_bytes_that_are_remembered_are_bounded(self, monkeypatch):
        """Of vectors and texts of traces, the oldest are forgotten."""
        monkeypatch.setattr("tttembed_store.spans.reading._VECTORS_BYTES", 100_000)
        reader, key = Reader(), "embedding.embeddings.0.embedding"
        for number in range(100):
            fields = {f"{key}.text": f"wool {number}", f"{key}.vector": [1.0] * 1_000}
            reader.read(Span("embed", str(number), "above", {"openinference.span.kind": "EMBEDDING", **fields}))
        read = [reader.read(Span("r", str(n), None, retriever(f"wool {n}"))) for n in range(100)]

        assert [served.vector is not None for served, _ in read] == [False] * 78 + [True] * 22

    def test_long_texts_and_names_are_remembered_within_the_bytes(self, monkeypatch):
        """Of 24 MB of embedded texts and names of traces no more stays than what the bounds say."""
        monkeypatch.setattr("tttembed_store.spans.reading._VECTORS_BYTES", 500_000)
        monkeypatch.setattr("tttembed_store.spans.reading._TEXTS_BYTES", 500_000)
        reader, key = Reader(), "embedding.embeddings.0.embedding"
        tracemalloc.start()
        try:
            for number in range(600):
                for text in ("wool", "wool", "tea")[: 2 + number % 2]:
                    fields = {f"{key}.text": f"{text} {number}" + "!" * 10_000, f"{key}.vector": [1.0, 2.0]}
                    span = Span("embed", "t" * 20_000 + str(number), "a", {"openinference.span.kind": "EMBEDDING"})
                    reader.read(replace(span, attributes={**span.attributes, **fields}))
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert held < 1_500_000

    def test_a_text_beyond_the_bytes_is_not_taken_for_no_text(self, monkeypatch):
        """Then the next text of the trace is not its only one; a vector beyond the bytes is left out."""
        monkeypatch.setattr("tttembed_store.spans.reading._VECTORS_BYTES", 1_000)
        monkeypatch.setattr("tttembed_store.spans.reading._TEXTS_BYTES", 1_000)
        reader, key = Reader(), "embedding.embeddings.0.embedding"
        for text in ("x" * 2_000, "wool"):
            fields = {f"{key}.text": text, f"{key}.vector": [1.0] * 2_000}
            reader.read(Span("embed", "trace", None, {"openinference.span.kind": "EMBEDDING", **fields}))

        assert reader.read(Span("r", "trace", None, retriever("<2000-dimensional vector>"))) is None
        assert reader.read(Span("r", "trace", None, retriever("wool")))[0].vector is None

    def test_a_log_that_fails_is_logged(self, caplog):
        """Its error goes to the log of the program, and the next span is read."""
        log = FakeLog(error=OSError("full"))
        processor, tracer = provided(log)

        with caplog.at_level(logging.ERROR):
            tracer.start_span("retrieve", attributes=retriever()).end()
            processor.force_flush()
        log.error = None
        tracer.start_span("retrieve", attributes=retriever()).end()
        processor.force_flush()

        assert "a span was not read" in caplog.text
        assert (processor.counts.failed, len(log.calls)) == (1, 1)

    def test_bad_options_are_refused(self):
        """One line says what was expected."""
        with pytest.raises(InputError, match="log: expected a RewardLog or a StoreLog, got str"):
            TTTSpanProcessor("log")
        with pytest.raises(InputError, match="capacity: expected at least 1, got 0"):
            TTTSpanProcessor(FakeLog(), capacity=0)
        with pytest.raises(InputError, match="cut_at: expected at least 1, got 0"):
            TTTSpanProcessor(FakeLog(), cut_at=0)

    def test_what_ends_between_the_steps_of_a_generator_is_nobodys(self, store):
        """A span within a step is that of the generator's tenant, and one between two steps has none."""

        def steps(tenant):
            with context(task="t", tenant=tenant):
                while True:
                    tracer.start_span("retrieve", attributes=retriever(f"{tenant}'s")).end()
                    yield

        log = StoreLog(store, tenant_required=True)
        processor, tracer = provided(log)
        first, second = steps("acme"), steps("bob")
        for one in (first, second, first, second):
            next(one)
        tracer.start_span("retrieve", attributes=retriever("whose?")).end()
        processor.force_flush()
        log.close()
        found = {tenant: store.judge_queue.waiting("j", tenant=tenant) for tenant in ("", "acme", "bob")}

        assert {tenant: [one.query for one in waiting] for tenant, waiting in found.items()} == {
            "": [],
            "acme": ["acme's"],
            "bob": ["bob's"],
        }
        assert (processor.counts.observed, log.counts.without_tenant) == (5, 1)

    def test_who_flushes_is_not_taken_for_who_asked(self, store):
        """A flush reads in its caller's thread what waits of all: a span of nobody stays nobody's."""
        log = StoreLog(store, tenant_required=True)
        processor, tracer = provided(log)

        tracer.start_span("retrieve", attributes=retriever("whose?")).end()
        with context(task="t", tenant="acme"):
            processor.force_flush()
        log.close()

        assert (log.counts.written, log.counts.without_tenant) == (0, 1)

    def test_a_span_without_a_tenant_is_nobodys_in_a_store_with_tenants(self, store, sqlite_url):
        """It ended in a thread that knows no context, and is left out as any other query without a tenant."""
        log = StoreLog(sqlite_url)
        processor, tracer = provided(log)

        def serve():
            tracer.start_span("retrieve", attributes=retriever()).end()

        with context(task="billing", tenant="acme"):
            serve()
            thread = threading.Thread(target=serve)
            thread.start()
            thread.join()
        processor.shutdown()
        log.close()

        assert (store.counts("acme").queries, store.counts("").queries, log.counts.without_tenant) == (1, 0, 1)
