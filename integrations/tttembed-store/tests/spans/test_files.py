"""Spans from files: what the SDK prints, what Phoenix exports, and `tttembed store import`."""

import json

import pytest
from click.testing import CliRunner
from tttembed_store.spans.files import read_spans, served_in, span_of
from tttembed_store.spans.reading import Reader, children_first

from tttembed_rag.cli import main

TEXTS = ["wash wool cold", "boil the kettle"]


def record(number, *, parent=None, kind="RETRIEVER", **attributes):
    """A span as Phoenix and the SDK write it."""
    return {
        "name": "retrieve",
        "context": {"trace_id": "0xt1", "span_id": f"0x{number}"},
        "parent_id": None if parent is None else f"0x{parent}",
        "start_time": f"2026-11-22T09:00:{number:02}Z",
        "attributes": {"openinference.span.kind": kind, "input.value": "wool"} | attributes,
    }


def flat(texts=TEXTS, prefix="retrieval.documents", **more):
    """Documents by dotted names."""
    return {f"{prefix}.{n}.document.content": text for n, text in enumerate(texts)} | more


NESTED = {"retrieval": {"documents": [{"document": {"content": text}} for text in TEXTS]}}
LISTED = {"retrieval.documents": [{"document.content": text, "document.score": 0.5} for text in TEXTS]}


def texts(served):
    """The texts of the candidates."""
    return [candidate.text for candidate in served.candidates]


def run(*arguments):
    """The command's exit code and output."""
    result = CliRunner().invoke(main, list(map(str, arguments)))
    return result.exit_code, result.output


@pytest.mark.parametrize("attributes", [flat(), NESTED, LISTED], ids=["flat", "nested", "listed"])
def test_all_ways_to_write_attributes_are_read(attributes):
    """Dotted names, nested objects and lists of documents are the same."""
    ((_, served),) = served_in([span_of(record(1, **attributes))], Reader())

    assert (served.query, texts(served)) == ("wool", TEXTS)
    assert served.at == pytest.approx(1795338001.0)


def test_children_come_first_in_any_order():
    """A retriever that asked another one is recognised, whatever the order of the file."""
    inner, outer = record(2, parent=1, **flat()), record(1, **flat(TEXTS[:1]))

    for records in ([inner, outer], [outer, inner]):
        spans = list(map(span_of, records))
        assert [span.span_id for span in children_first(spans)] == ["2", "1"]
        assert [texts(served) for _, served in served_in(spans, Reader())] == [TEXTS]


@pytest.mark.parametrize("shape", ["lines", "marked", "list", "printed"])
def test_files_of_json_are_read(tmp_path, shape):
    """JSON lines, one list, objects printed one after another; Windows writes a mark of byte order before each file."""
    records = [record(1, **flat()), record(2, **flat(**{"input.value": "tea"}))]
    text = {
        "lines": "\n".join(map(json.dumps, records)),
        "marked": "\ufeff" + json.dumps(records),
        "list": json.dumps(records),
        "printed": "\n".join(json.dumps(record, indent=4) for record in records),
    }[shape]
    (tmp_path / "spans.jsonl").write_text(text + "\n", encoding="utf-8")

    queries = served_in(read_spans(tmp_path / "spans.jsonl"), Reader())

    assert [served.query for _, served in queries] == ["wool", "tea"]


def test_parquet_of_a_data_frame_is_read(tmp_path):
    """A column for each attribute, documents as lists: what Phoenix's data frame becomes in Parquet."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rows = {
        "context.span_id": ["1", "2"],
        "context.trace_id": ["t", "t"],
        "parent_id": [None, "1"],
        "span_kind": ["CHAIN", "RETRIEVER"],
        "start_time": pandas.to_datetime(["2026-11-22T09:00:00Z"] * 2),
        "attributes.input.value": ["wool", "wool"],
        "attributes.retrieval.documents": [None, [{"document.content": text} for text in TEXTS]],
    }
    pandas.DataFrame(rows).to_parquet(tmp_path / "spans.parquet")

    ((_, served),) = served_in(read_spans(tmp_path / "spans.parquet"), Reader())

    assert (served.query, texts(served)) == ("wool", TEXTS)


def test_what_the_sdk_prints_is_read(tmp_path):
    """`span.to_json()` of the real SDK."""
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the OpenTelemetry SDK is not installed")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    provider = trace.TracerProvider()
    with (tmp_path / "spans.jsonl").open("w", encoding="utf-8") as out:
        provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter(out=out)))
        attributes = {"openinference.span.kind": "RETRIEVER", "input.value": "wool"} | flat()
        provider.get_tracer("test").start_span("retrieve", attributes=attributes).end()

    ((_, served),) = served_in(read_spans(tmp_path / "spans.jsonl"), Reader())

    assert (served.query, texts(served)) == ("wool", TEXTS)


def test_what_a_collector_writes_is_read(tmp_path):
    """OTLP as JSON by the real encoder, a line for each batch, beside a line of logs."""
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the OpenTelemetry SDK is not installed")
    encoder = pytest.importorskip(
        "opentelemetry.exporter.otlp.json.common.trace_encoder", reason="the JSON encoder of OTLP is not installed"
    )
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider, kept = trace.TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("test")
    vector = {"embedding.embeddings.0.embedding.text": "wool", "embedding.embeddings.0.embedding.vector": [0.5, -2.0]}
    outer = {"openinference.span.kind": "RETRIEVER", "input.value": "wool"} | flat(TEXTS[:1])
    with tracer.start_as_current_span("outer", attributes=outer):
        tracer.start_span("embed", attributes={"openinference.span.kind": "EMBEDDING"} | vector).end()
        fields = {"openinference.span.kind": "RETRIEVER", "input.value": "wool", "top": 7, "hybrid": True} | flat()
        tracer.start_span("retrieve", attributes=fields).end()
    lines = [encoder.encode_spans([span]).to_json() for span in kept.get_finished_spans()]
    (tmp_path / "traces.jsonl").write_text("\n".join(['{"resourceLogs": []}', *lines]), encoding="utf-8")

    spans = read_spans(tmp_path / "traces.jsonl")
    ((_, served),) = served_in(spans, Reader())

    assert [dict(span.attributes) for span in spans] == [
        {key: list(value) if isinstance(value, tuple) else value for key, value in span.attributes.items()}
        for span in kept.get_finished_spans()
    ]
    assert (served.query, texts(served), served.vector.tolist()) == ("wool", TEXTS, [0.5, -2.0])
    assert served.at == pytest.approx(kept.get_finished_spans()[1].start_time / 1e9)


def test_import_puts_spans_into_a_store(tmp_path, store, sqlite_url):
    """Queries wait for a judge; what was cut is counted; the same file again adds nothing."""
    lines = [record(1, **flat()), record(2, **flat(["x" * 50, "whole"], **{"input.value": "tea"}))]
    (tmp_path / "spans.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    options = ("--spans", "--cut-at", 50, "--store", sqlite_url, "--json")
    arguments = ("store", "import", tmp_path / "spans.jsonl", *options)

    first, second = run(*arguments), run(*arguments)

    assert first == second == (0, '{"queries": 2, "without_vectors": 5, "left_out": 1, "without_query": 0}\n')
    assert (store.counts().queries, store.counts().pairs, store.counts().rewards) == (2, 3, 0)


def test_a_span_without_a_time_brings_nothing_back(tmp_path, store, sqlite_url):
    """It counts as older than whatever was forgotten; another query of the same file is written."""
    lines = [record(1, **flat()), record(2, **flat(**{"input.value": "tea"}))]
    for line in lines:
        del line["start_time"]
    (tmp_path / "spans.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    arguments = ("store", "import", tmp_path / "spans.jsonl", "--spans", "--store", sqlite_url)

    before = run(*arguments)[0], store.counts().queries
    store.forget(tenant="", query_id="wool", by="me")
    after = run(*arguments)[0], store.counts().queries

    assert (before, after) == ((0, 2), (0, 1))


def test_import_keeps_scores_of_a_declared_reranker(tmp_path, store, sqlite_url):
    """A reranker's logits become rewards by the scale that was said."""
    prefix = "reranker.output_documents"
    scores = {f"{prefix}.0.document.score": 0.0, f"{prefix}.1.document.score": 3.0}
    fields = flat(prefix=prefix, **scores, **{"reranker.model_name": "m", "reranker.query": "wool"})
    (tmp_path / "s.jsonl").write_text(json.dumps(record(1, kind="RERANKER", **fields)), encoding="utf-8")

    options = ("--spans", "--store", sqlite_url, "--scores-of", "m", "--scale", "logit")
    code, output = run("store", "import", tmp_path / "s.jsonl", *options)

    ids = store.text_id("wool"), store.text_id(TEXTS[0]), store.text_id(TEXTS[1])
    verdicts = store.history.verdicts("", judge="m", query_ids=[ids[0]])
    assert (code, output.startswith("1 queries of")) == (0, True)
    assert verdicts == {(ids[0], ids[1]): 0.5, (ids[0], ids[2]): pytest.approx(0.952574)}
    assert store.trusted("m")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "a"}', "span 1: expected context.span_id, trace_id and attributes"),
        ("[3]", "span 1: expected context.span_id, trace_id and attributes"),
        ("no JSON", "expected spans as JSON lines or Parquet"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}', "object 1: expected resourceSpans as OTLP"),
        ('{"resourceSpans": 3}', "object 1: expected resourceSpans as OTLP"),
        ('{"context": {"span_id": "1", "trace_id": "t"}, "start_time": 1' + "0" * 400 + "}", "span 1: expected"),
        ('{"context": {"span_id": "1", "trace_id": "t"}, "start_time": NaN}', "start_time: expected nanoseconds"),
        ('{"attributes": ' + "[" * 100_000 + "]" * 100_000 + "}", "expected spans as JSON lines or Parquet"),
        (None, "a.jsonl: expected a file of spans, found none"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_another_file_is_refused(tmp_path, sqlite_url, text, message):
    """Exit code 2, and a last line that says what was expected and where."""
    if text is not None:
        (tmp_path / "a.jsonl").write_text(text, encoding="utf-8")

    code, output = run("store", "import", tmp_path / "a.jsonl", "--spans", "--store", sqlite_url)

    assert code == 2
    assert message in output.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.jsonl", "--spans", "--scores-of", "m"), "expected --scores-of and --scale together"),
        (("a.jsonl", "--scores-of", "m", "--scale", "logit"), "--scores-of: expected spans"),
        (("http://localhost/p",), "project: expected phoenix+http://HOST/PROJECT, or https"),
    ],
)
def test_bad_options_end_with_one_line(arguments, message, sqlite_url):
    """Exit code 2, and what was expected."""
    code, output = run("store", "import", *arguments, "--store", sqlite_url)

    assert code == 2
    assert message in output
