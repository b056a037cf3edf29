"""Spans of OpenTelemetry become observations and rewards, by the real SDK."""

import json
import logging
import threading

import numpy as np
import pytest
from tttembed_store import StoreLog
from tttembed_store.spans import reading
from tttembed_store.spans.reading import Reader, Span

from tests.traffic import recorded
from tttembed_rag import Evidence, InputError, Offset, Offsets, Steering, context
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


def tapped(*spans, limits=None, **options):
    """A log, and what became of spans of these attributes that ended."""
    log = FakeLog()
    processor, tracer = provided(log, limits=limits, **options)
    for attributes in spans:
        tracer.start_span("span", attributes=attributes).end()
    assert processor.force_flush()
    return log, processor.counts


def shown(texts, prefix="retrieval.documents", **more):
    """Attributes of documents as OpenInference flattens them."""
    return {f"{prefix}.{n}.document.content": text for n, text in enumerate(texts)} | {
        f"{prefix}.{n}.document.{key}": values[n] for key, values in more.items() for n in range(len(texts))
    }


def retriever(query="wool", texts=DOCUMENTS, **more):
    """Attributes of a RETRIEVER span."""
    return {"openinference.span.kind": "RETRIEVER", "input.value": query, **shown(texts), **more}


def asked_in_json(text):
    """Attributes of a RETRIEVER span whose input is JSON."""
    return retriever(text, **{"input.mime_type": "application/json"})


def reranker(model="reranker", scores=(0.9, 0.1)):
    """Attributes of a RERANKER span."""
    documents = shown(DOCUMENTS[: len(scores)], "reranker.output_documents", score=list(scores))
    return {"openinference.span.kind": "RERANKER", "reranker.query": "wool", "reranker.model_name": model, **documents}


def embedding(vector, *texts):
    """Attributes of an EMBEDDING span that gives each text the same vector."""
    fields = {"openinference.span.kind": "EMBEDDING"}
    for number, text in enumerate(texts):
        prefix = f"embedding.embeddings.{number}.embedding"
        fields |= {f"{prefix}.text": text, f"{prefix}.vector": vector}
    return fields


def calls_of(log):
    """What a log was told, without the objects."""
    return [(call.query, call.documents, call.scores, call.task) for call in log.calls]


class TestReading:
    """What is read of a span."""

    def test_a_retriever_is_observed(self):
        """Query and documents, in their order."""
        log, _ = tapped(retriever())

        assert calls_of(log) == [("wool", tuple(DOCUMENTS), None, None)]

    @pytest.mark.parametrize(
        "arguments",
        [
            {"query": "wool", "top_k": 3},
            "wool",
            {"any": "wool"},
            {"args": ["wool"], "kwargs": {"k": 4}},
            {"args": ["wool", "manuals"], "kwargs": {"collection": "manuals"}},
            {"args": [], "kwargs": {"query": "wool", "collection": "manuals"}},
            {"args": ["manuals"], "kwargs": {"question": "wool"}},
            {"args": [{"query": "wool", "lang": "en"}], "kwargs": {}},
            {"query_bundle": {"query_str": "wool", "image_path": None}, "mode": "hybrid"},
            ["wool"],
        ],
    )
    def test_a_query_in_json_is_found(self, arguments):
        """An input in JSON is looked into, in the ways in which decorators write what a function was asked."""
        log, _ = tapped(asked_in_json(json.dumps(arguments)))

        assert [call.query for call in log.calls] == ["wool"]

    @pytest.mark.parametrize(
        "attributes",
        [
            retriever("__REDACTED__"),
            *map(asked_in_json, ("null", "{}", '{"args": [], "kwargs": {"k": 4}}', '{"a": "x", "b": "y"}', "[3]")),
        ],
    )
    def test_a_query_that_is_not_whole_or_not_understood_is_counted(self, attributes):
        """Nothing in JSON becomes the text of a query that nobody asked."""
        log, counts = tapped(attributes)

        assert (log.calls, counts.left_out, counts.without_query) == ([], 0, 1)

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

        assert [len(call.documents) for call in log.calls] == [4, 4]
        assert processor.counts.nested == 1

    def test_scores_of_a_declared_reranker_are_recorded(self):
        """The declared model's scores go to the log, another model's do not."""
        log, counts = tapped(reranker("reranker"), reranker("another"), scores_of="reranker")

        assert calls_of(log) == [("wool", tuple(DOCUMENTS[:2]), (0.9, 0.1), None)]
        assert (counts.recorded, counts.undeclared, log.trusted) == (1, 1, True)

    def test_scores_without_a_declaration_are_left(self):
        """A reranker's scores have no scale of their own."""
        log, _ = tapped(reranker())

        assert (log.calls, log.trusted) == ([], None)

    @pytest.mark.parametrize(
        "document",
        [*({"content": text} for text in ("__REDACTED__", "x" * 40, "")), {"id": "d"}],
    )
    def test_a_text_that_is_not_whole_is_never_judged(self, document):
        """Redacted, cut and missing documents are left out, and counted."""
        more = {f"retrieval.documents.1.document.{name}": value for name, value in document.items()}
        log, counts = tapped(retriever(texts=["whole"], **more), cut_at=40)

        assert calls_of(log) == [("wool", ("whole",), None, None)]
        assert counts.left_out == 1

    def test_the_limit_of_the_sdk_counts_as_a_cut(self):
        """What the SDK itself shortened is recognised by its length."""
        log, _ = tapped(retriever(), limits=trace.SpanLimits(max_span_attribute_length=15))

        assert log.calls[0].documents == ("wash wool cold",)

    def test_lost_attributes_are_told(self, caplog):
        """The SDK keeps 128 attributes of a span; where documents are lost by that, one line says so."""
        last_first = dict(reversed(retriever().items()))
        log, _ = tapped(last_first, last_first, limits=trace.SpanLimits(max_span_attributes=4))

        assert [len(call.documents) for call in log.calls] == [2, 2]
        assert caplog.text.count("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT above 6") == 1

    def test_texts_are_looked_up_by_id(self):
        """Documents without a whole text are asked for by their id, once for all of a span."""
        lookups = []
        documents = json.dumps([{"id": "a", "score": 0.5}, {"id": "b", "score": 0.4}])
        attributes = {"gen_ai.operation.name": "retrieval", "gen_ai.retrieval.query.text": "tea"}

        log, _ = tapped(
            attributes | {"gen_ai.retrieval.documents": documents},
            texts=lambda ids: lookups.append(ids) or {"b": "boil the kettle"},
        )

        assert calls_of(log) == [("tea", ("boil the kettle",), None, None)]
        assert lookups == [["a", "b"]]

    @pytest.mark.parametrize("as_json", [True, False])
    def test_memories_that_were_recalled_are_retrieved_documents(self, as_json):
        """OpenTelemetry's spans of `search_memory`, with their contents where the application records them."""
        records = [{"id": "m1", "content": "the kettle is new", "score": 0.8}, {"id": "m2", "score": 0.7}]
        flat = {f"gen_ai.memory.records.{n}.{key}": row[key] for n, row in enumerate(records) for key in row}
        fields = {"gen_ai.memory.query.text": "tea"} | (
            {"gen_ai.memory.records": json.dumps(records)} if as_json else flat
        )

        log, _ = tapped(
            *(fields | {"gen_ai.operation.name": operation} for operation in ("search_memory", "upsert_memory"))
        )

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

        assert [call.task for call in log.calls] == ["billing", "sales", None]


class TestVectors:
    """Query vectors of EMBEDDING spans."""

    @pytest.fixture
    def known(self):
        """`known(embed, ...)`: the base vector of a retrieval in a trace in which *embed* was called with a tracer."""

        def run(embed, **options):
            log = FakeLog()
            processor, tracer = provided(log, **options)
            with tracer.start_as_current_span("chain"):
                embed(tracer)
                tracer.start_span("retrieve", attributes=retriever()).end()
            tracer.start_span("another trace", attributes=retriever()).end()
            processor.force_flush()
            of_trace, of_another = (None if call.known is None else call.known.vector.tolist() for call in log.calls)
            assert of_another is None
            return of_trace

        return run

    def test_the_base_vector_of_the_trace_is_known(self, known):
        """The vector of the query's text goes along; another text's and another trace's do not."""

        def embed(tracer):
            for text, vector in (("wool", [1.0, 2.0]), ("another", [3.0, 4.0])):
                tracer.start_span("embed", attributes=embedding(vector, text)).end()

        assert known(embed) == [1.0, 2.0]

    def test_the_innermost_model_has_the_base_vector(self, known):
        """A wrapper's span around the model's holds the vector with its offset."""

        def embed(tracer):
            with tracer.start_as_current_span("wrapper", attributes=embedding([9.0, 9.0], "wool")):
                tracer.start_span("model", attributes=embedding([1.0, 2.0], "wool")).end()

        assert known(embed) == [1.0, 2.0]

    def test_a_steered_vector_is_marked_and_left_out(self, known):
        """Steering inside a span marks it; its vector is never taken for a base vector."""
        offset = Offset("global", np.ones(2, np.float32), 0.9, 9, Evidence(9, 0.1, (0.0, 0.2), "published", "made up"))
        steering = Steering(Offsets([offset], width=2))

        def embed(tracer):
            with tracer.start_as_current_span("embed", attributes=embedding([1.0, 2.0], "wool")):
                steering.apply([1.0, 2.0], "wool")

        assert known(embed) is None

    def test_vectors_can_be_refused(self, known):
        """Where a proxy steers unseen, no vector of a span is believed."""

        def embed(tracer):
            tracer.start_span("embed", attributes=embedding([1.0, 2.0], "wool")).end()

        assert known(embed, vectors=False) is None

    @pytest.mark.parametrize(
        ("texts", "query"),
        [
            (["wool", "wool"], "wool"),
            ([f"wool {number}" for number in range(9)], None),
            (["x" * 20_001], None),
            (["x" * 20_001, "wool"], None),
        ],
    )
    def test_a_retriever_that_was_asked_by_a_vector_has_the_only_text_of_its_trace(self, monkeypatch, texts, query):
        """Several texts, and one that is too long to be a query, are no query's."""
        monkeypatch.setattr(reading, "_TEXTS_BYTES", 10_000)
        reader = Reader()
        reader.read(Span("embed", "trace", None, embedding([1.0, 2.0], *texts)))

        read = reader.read(Span("retrieve", "trace", None, retriever("<2-dimensional vector>")))

        assert (None if read is None else read[0].query) == query


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

    def test_what_is_remembered_is_bounded(self, monkeypatch):
        """Of vectors of traces, the oldest are forgotten."""
        monkeypatch.setattr(reading, "_VECTORS_BYTES", 100_000)
        reader = Reader()
        for number in range(100):
            reader.read(Span("embed", str(number), "above", embedding([1.0] * 1_000, f"wool {number}")))
        read = [reader.read(Span("r", str(n), None, retriever(f"wool {n}"))) for n in range(100)]

        assert [served.vector is not None for served, _ in read] == [False] * 78 + [True] * 22

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

    @pytest.mark.parametrize(
        ("log", "options", "message"),
        [
            ("log", {}, "log: expected a RewardLog or a StoreLog, got str"),
            (FakeLog(), {"capacity": 0}, "capacity: expected at least 1, got 0"),
            (FakeLog(), {"cut_at": 0}, "cut_at: expected at least 1, got 0"),
        ],
    )
    def test_bad_options_are_refused(self, log, options, message):
        """One line says what was expected."""
        with pytest.raises(InputError, match=message):
            TTTSpanProcessor(log, **options)


class TestTenants:
    """A span is of the tenant of its caller."""

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
        for generator in (first, second, first, second):
            next(generator)
        tracer.start_span("retrieve", attributes=retriever("whose?")).end()
        processor.force_flush()
        log.close()

        assert recorded(store, log) == {"acme": ["acme's"], "bob": ["bob's"]}
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
