"""Spans that nobody should write: each is left out or told in one line, and nothing beside it is lost."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from tttembed_hosts.phoenix import PhoenixProject
from tttembed_store.spans.files import read_spans, served_in
from tttembed_store.spans.reading import Reader, Span, children_first

from tttembed_rag.cli import main
from tttembed_rag.errors import DataError
from tttembed_rag.rewards.scales import Scale

FINE = {
    "openinference.span.kind": "RETRIEVER",
    "input.value": "tea",
    "retrieval.documents.0.document.content": "kettle",
}
DEEP = "[" * 100_000 + "]" * 100_000


def nested(levels):
    """Attributes below attributes."""
    return {"a": nested(levels - 1)} if levels else 1


def embedded(vector):
    """The attributes of an EMBEDDING span of the query of `FINE`."""
    prefix = "embedding.embeddings.0.embedding"
    return {"openinference.span.kind": "EMBEDDING", f"{prefix}.text": "tea", f"{prefix}.vector": vector}


def texts(served):
    """The texts of the candidates that have one."""
    return [candidate.text for candidate in served.candidates if candidate.text]


def lines(*attributes):
    """A file of spans of one trace, each below nothing."""
    return "\n".join(
        json.dumps({"context": {"span_id": str(number), "trace_id": "t"}, "attributes": fields})
        for number, fields in enumerate(attributes)
    )


@pytest.mark.parametrize(("limit", "cut"), [(2, True), (3, True), (4, False)])
def test_a_project_of_more_spans_than_the_limit_is_told(caplog, limit, cut):
    """As many spans as the limit may be fewer than there are: one line says so."""
    spans = [{"context": {"span_id": str(number), "trace_id": "t"}} for number in range(3)]
    client = SimpleNamespace(get_spans=lambda *, limit, **_: spans[:limit])

    assert len(PhoenixProject(SimpleNamespace(spans=client), "mine").spans(limit=limit)) == min(limit, 3)
    assert (f"project 'mine': only its newest {limit} spans were read" in caplog.text) is cut


@pytest.mark.parametrize("span", [{"a": 1}, 5, None])
def test_spans_that_are_none_are_one_error(span):
    """Whatever stands in the list of a project, its command ends with one line."""
    client = SimpleNamespace(get_spans=lambda **_: [span])
    with pytest.raises(DataError, match="project 'mine': expected an answer of Phoenix"):
        PhoenixProject(SimpleNamespace(spans=client), "mine").spans()


@pytest.mark.parametrize(
    "hostile",
    [
        FINE | {"retrieval.documents.².document.content": "x"},
        FINE | {f"retrieval.documents.{'9' * 5000}.document.content": "x"},
        FINE | {"input.value": DEEP, "input.mime_type": "application/json"},
        {"gen_ai.operation.name": "retrieval", "input.value": "x", "gen_ai.retrieval.documents": DEEP},
        nested(300),
        {"openinference.span.kind": ["RETRIEVER"], "input.value": {"a": 1}, "retrieval.documents": [3, None]},
        embedded("abc"),
        embedded([1.0, float("nan")]),
        embedded([[1.0], [2.0, 3.0]]),
        embedded([0.0, 0.0]),
        embedded(["a", None]),
        embedded(7),
    ],
    ids=lambda fields: next((str(key)[:30] for key in fields if fields[key] != FINE.get(key)), ""),
)
def test_a_hostile_span_costs_itself_alone(tmp_path, sqlite_url, hostile):
    """The span beside it is imported."""
    (tmp_path / "spans.jsonl").write_text(lines(hostile, FINE), encoding="utf-8")

    result = CliRunner().invoke(
        main, ["store", "import", str(tmp_path / "spans.jsonl"), "--spans", "--store", sqlite_url]
    )
    read = served_in(read_spans(tmp_path / "spans.jsonl"), Reader())

    assert result.exit_code == 0, result.output
    assert ("tea", ["kettle"], None) in [(query.query, texts(query), query.vector) for _, query in read]


@pytest.mark.parametrize("metadata", [DEEP, '{"tttembed_task": "bil'], ids=["deep", "cut"])
def test_metadata_that_cannot_be_read_costs_the_task_alone(metadata):
    """The query of the span is read without it."""
    ((_, served),) = served_in([Span("1", "t", None, FINE | {"metadata": metadata})], Reader())

    assert (served.query, texts(served), served.task) == ("tea", ["kettle"], "default")


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 10**400, "high", None])
def test_a_score_that_is_no_number_costs_its_document_alone(score):
    """The other documents of the reranker keep theirs."""
    prefix = "reranker.output_documents"
    fields = {"openinference.span.kind": "RERANKER", "reranker.model_name": "m", "reranker.query": "tea"}
    for number, (text, value) in enumerate((("kettle", 0.5), ("cup", score))):
        fields |= {f"{prefix}.{number}.document.content": text, f"{prefix}.{number}.document.score": value}

    ((_, served),) = served_in([Span("1", "t", None, fields)], Reader("m"), Scale())

    assert [(shown.text, shown.reward) for shown in served.candidates] == [("kettle", 0.5), ("", None)]


@pytest.mark.parametrize(
    ("written", "documents", "left_out"),
    [
        ('[{"document.content": "kettle"}, {"docu', None, 1),
        ('[{"document.content": "kettle"}, {"document": {"content": "cup"}}]', ["kettle", "cup"], 0),
        ([{"document.content": "kettle"}, None], ["kettle"], 1),
    ],
    ids=["cut", "JSON", "gaps"],
)
def test_documents_in_one_attribute_are_read_or_counted(written, documents, left_out):
    """A table may hold them as JSON or with gaps; what was cut is counted as left out."""
    reader = Reader()
    fields = {"openinference.span.kind": "RETRIEVER", "input.value": "tea", "retrieval.documents": written}

    queries = served_in([Span("1", "t", None, fields)], reader)

    assert [texts(served) for _, served in queries] == [documents] * (documents is not None)
    assert reader.counts["left_out"] == left_out


def test_parents_in_a_circle_are_read():
    """Every span is there once."""
    spans = [Span(name, "t", parent, {}) for name, parent in (("a", "b"), ("b", "a"), ("c", "a"), ("d", "d"))]

    assert sorted(span.span_id for span in children_first(spans)) == ["a", "b", "c", "d"]


def test_the_deepest_spans_come_first():
    """A chain of spans, each below the one before it; of a deeper one, all below the 500th level are one."""
    spans = [Span(str(number), "t", str(number - 1) if number else None, {}) for number in range(2_000)]

    ordered = [int(span.span_id) for span in children_first(spans)]

    assert sorted(ordered[:1_500]) == list(range(500, 2_000))
    assert ordered[1_500:] == list(reversed(range(500)))
