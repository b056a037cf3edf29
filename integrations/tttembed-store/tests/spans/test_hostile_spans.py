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
    ids = [{"context": {"span_id": str(number), "trace_id": "t"}} for number in range(len(attributes))]
    return "\n".join(json.dumps(one | {"attributes": fields}) for one, fields in zip(ids, attributes, strict=True))


class Spans:
    """A client of Phoenix with the spans of a project of three."""

    def get_spans(self, *, project_identifier, start_time, limit):
        """As many as are asked for, where there are."""
        spans = [{"context": {"span_id": str(number), "trace_id": "t"}} for number in range(3)]
        return spans[:limit]


@pytest.mark.parametrize(("limit", "cut"), [(2, True), (3, True), (4, False)])
def test_a_project_of_more_spans_than_the_limit_is_told(caplog, limit, cut):
    """As many spans as the limit may be fewer than there are: one line says so."""
    project = PhoenixProject(SimpleNamespace(spans=Spans()), "mine")

    assert len(project.spans(limit=limit)) == min(limit, 3)
    assert (f"project 'mine': only its newest {limit} spans were read" in caplog.text) is cut


@pytest.mark.parametrize("span", [{"a": 1}, 5, None])
def test_spans_that_are_none_are_one_error(span):
    """Whatever stands in the list of a project, its command ends with one line."""
    client = SimpleNamespace(get_spans=lambda **_: [span])
    with pytest.raises(DataError, match="project 'mine': expected spans of Phoenix"):
        PhoenixProject(SimpleNamespace(spans=client), "mine").spans()


@pytest.mark.parametrize(
    "hostile",
    [
        FINE | {"retrieval.documents.².document.content": "x"},
        FINE | {f"retrieval.documents.{'9' * 5000}.document.content": "x"},
        FINE | {"input.value": DEEP, "input.mime_type": "application/json"},
        {"gen_ai.operation.name": "retrieval", "input.value": "x", "gen_ai.retrieval.documents": DEEP},
        FINE | {"metadata": DEEP},
        FINE | {"metadata": '{"tttembed_task": "bil'},
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
    assert ("tea", ["kettle"], None) in [(one.query, texts(one), one.vector) for _, one in read]


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
    ("said", "documents", "left_out"),
    [
        ('[{"document.content": "kettle"}, {"docu', None, 1),
        ('[{"document.content": "kettle"}, {"document": {"content": "cup"}}]', ["kettle", "cup"], 0),
        ([{"document.content": "kettle"}, None], ["kettle"], 1),
    ],
    ids=["cut", "JSON", "gaps"],
)
def test_documents_in_one_attribute_are_read_or_counted(said, documents, left_out):
    """A table may hold them as JSON or with gaps; what was cut is counted as left out."""
    reader = Reader()
    fields = {"openinference.span.kind": "RETRIEVER", "input.value": "tea", "retrieval.documents": said}

    queries = served_in([Span("1", "t", None, fields)], reader)

    assert [texts(served) for _, served in queries] == [documents] * (documents is not None)
    assert reader.left_out == left_out


def test_parents_in_a_circle_are_read():
    """Every span is there once."""
    spans = [Span(one, "t", parent, {}) for one, parent in (("a", "b"), ("b", "a"), ("c", "a"), ("d", "d"))]

    assert sorted(one.span_id for one in children_first(spans)) == ["a", "b", "c", "d"]


def test_the_deepest_spans_come_first():
    """A chain of spans, each below the one before it; of a deeper one, all below the 500th level are one."""
    spans = [Span(str(number), "t", str(number - 1) if number else None, {}) for number in range(2_000)]

    ordered = [int(one.span_id) for one in children_first(spans)]

    assert sorted(ordered[:1_500]) == list(range(500, 2_000))
    assert ordered[1_500:] == list(reversed(range(500)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"context": {"span_id": "1", "trace_id": "t"}, "start_time": 1' + "0" * 400 + "}", "span 1: expected"),
        ('{"context": {"span_id": "1", "trace_id": "t"}, "start_time": NaN}', "start_time: expected nanoseconds"),
        ('{"attributes": ' + DEEP + "}", "expected spans as JSON lines or Parquet"),
    ],
    ids=["huge time", "no time", "deep"],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path, sqlite_url, text, message):
    """Exit code 2, and what was expected."""
    (tmp_path / "spans.jsonl").write_text(text, encoding="utf-8")

    result = CliRunner().invoke(
        main, ["store", "import", str(tmp_path / "spans.jsonl"), "--spans", "--store", sqlite_url]
    )

    assert result.exit_code == 2
    assert message in result.output.splitlines()[-1]
