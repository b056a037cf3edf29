"""A real Phoenix: spans in by OTLP, read back, and verdicts written onto their documents.

Runs against the server that TTTEMBED_TEST_PHOENIX names (http://HOST:6006), or one that it starts where Phoenix is
installed.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from contextlib import ExitStack

import httpx
import pytest
from click.testing import CliRunner
from tttembed_store import Candidate, Served

from tttembed_rag import InputError
from tttembed_rag.cli import main
from tttembed_rag.testing import FakeLog, eventually

pytest.importorskip("phoenix.client", reason="the extra phoenix: arize-phoenix-client is not installed")

from tttembed_hosts.phoenix import PhoenixProject
from tttembed_store.spans.files import served_in
from tttembed_store.spans.reading import Reader

TEXTS = ["wash wool cold", "boil the kettle"]


def free_ports(count):
    """Ports where nothing listens."""
    with ExitStack() as held:
        return [held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory):
    """The address of a running Phoenix."""
    if url := os.environ.get("TTTEMBED_TEST_PHOENIX"):
        yield url
        return
    if shutil.which("phoenix") is None:
        pytest.skip("Phoenix: no server is installed, and TTTEMBED_TEST_PHOENIX names none")
    port, grpc_port = free_ports(2)
    own = {"PHOENIX_WORKING_DIR": str(tmp_path_factory.mktemp("phoenix")), "PHOENIX_HOST": "127.0.0.1"}
    own |= {"PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(grpc_port), "PHOENIX_TELEMETRY_ENABLED": "false"}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(["phoenix", "serve"], env={**os.environ, **own}, **silent)
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/healthz").status_code == 200:
                break
        except httpx.TransportError:
            time.sleep(0.5)
    yield url
    process.terminate()
    process.wait(30)


@pytest.fixture
def project(phoenix):
    """A project with one retrieval, and its address."""
    name = f"tttembed-{uuid.uuid4().hex[:8]}"
    client = PhoenixProject.open(f"phoenix+{phoenix}/{name}")._client
    documents = [{"document": {"content": text, "score": 0.5}} for text in TEXTS]
    span = {
        "name": "retrieve",
        "context": {"trace_id": uuid.uuid4().hex, "span_id": uuid.uuid4().hex[:16]},
        "span_kind": "RETRIEVER",
        "start_time": "2026-11-22T09:00:00Z",
        "end_time": "2026-11-22T09:00:01Z",
        "status_code": "OK",
        "attributes": {"input": {"value": "wool"}, "retrieval": {"documents": documents}},
    }
    client.spans.log_spans(project_identifier=name, spans=[span])
    opened = PhoenixProject(client, name)
    until = time.monotonic() + 30
    while True:
        try:
            if opened.spans():
                return f"phoenix+{phoenix}/{name}", opened
        except Exception:  # noqa: BLE001 - the project appears with its first span
            assert time.monotonic() < until
        time.sleep(0.1)


def run(*arguments):
    """The command's exit code and output."""
    result = CliRunner().invoke(main, list(map(str, arguments)))
    return result.exit_code, result.output


def test_spans_are_imported_judged_and_annotated(project, store, sqlite_url):
    """The whole way: a project into a store, a judge's rewards, and back onto the documents."""
    url, opened = project

    imported = run("store", "import", url, "--store", sqlite_url, "--json")
    query, documents = store.text_id("wool"), [store.text_id(text) for text in TEXTS]
    rewarded = [
        Candidate(name, text=text, reward=value) for name, text, value in zip(documents, TEXTS, (1, 0.25), strict=True)
    ]
    store.observe([Served(query, None, rewarded, "wool")], judge="my-judge")
    annotated = run("store", "annotate", url, "--store", sqlite_url, "--json")

    assert imported == (0, '{"queries": 1, "without_vectors": 3, "left_out": 0, "without_query": 0}\n')
    assert json.loads(annotated[1]) == {"annotations": 2, "retrievals": 1, "judge": "my-judge"}
    (span,) = panels_of(url)
    assert span["spanId"] == opened.spans()[0].span_id
    assert {one["documentPosition"]: one["score"] for one in span["documentEvaluations"]} == {0: 1.0, 1: 0.25}
    assert span["documentRetrievalMetrics"] == [{"evaluationName": "my-judge", "ndcg": 1.0, "precision": 1.0}]


def panels_of(url):
    """What Phoenix shows of the retrievals of a project, asked as its own pages ask."""
    address, _, name = url.removeprefix("phoenix+").rpartition("/")
    query = """query ($name: String!) { getProjectByName(name: $name) { spans(first: 99) { edges { node {
        spanId spanKind documentEvaluations { documentPosition score }
        documentRetrievalMetrics { evaluationName ndcg precision } } } } } }"""
    answer = httpx.post(f"{address}/graphql", json={"query": query, "variables": {"name": name}}).json()
    spans = [edge["node"] for edge in answer["data"]["getProjectByName"]["spans"]["edges"]]
    return [one for one in spans if one["spanKind"] == "retriever"]


def test_what_langchain_sent_is_what_its_adapter_tells(phoenix):
    """A real retriever, instrumented by OpenInference and sent by OTLP, is read with all that its own callbacks saw."""
    instrument = pytest.importorskip(
        "openinference.instrumentation.langchain", reason="OpenInference of LangChain is not installed"
    )
    exporter = pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="the OTLP exporter is not installed"
    )
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_tttembed import RewardCallbackHandler
    from openinference.semconv.resource import ResourceAttributes
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name, native = f"tttembed-{uuid.uuid4().hex[:8]}", FakeLog()
    texts = [*TEXTS, "a long page " * 2000, "Grüße, 東京 \N{WAVING HAND SIGN}"]
    retriever = InMemoryVectorStore.from_texts(texts, DeterministicFakeEmbedding(size=8)).as_retriever()
    provider = TracerProvider(resource=Resource({ResourceAttributes.PROJECT_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(exporter.OTLPSpanExporter(f"{phoenix}/v1/traces")))
    instrumentor = instrument.LangChainInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        for query in ("wool", "kettle"):
            retriever.invoke(query, {"callbacks": [RewardCallbackHandler(native)], "metadata": {"tttembed_task": "b"}})
        assert provider.force_flush()
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    url = f"phoenix+{phoenix}/{name}"
    eventually(lambda: httpx.get(f"{phoenix}/v1/projects/{name}").status_code == 200 and len(panels_of(url)) == 2)

    read = served_in(PhoenixProject.open(url).spans(), Reader())

    assert [(one.query, tuple(shown.text for shown in one.candidates), one.task) for _, one in read] == [
        (one.query, one.documents, one.task) for one in native.calls
    ]


def test_a_project_that_is_not_there_is_named_in_one_line(phoenix, sqlite_url):
    """Exit code 2, the project, and what the server said."""
    code, said = run("store", "import", f"phoenix+{phoenix}/gone", "--store", sqlite_url)

    assert code == 2
    assert said.splitlines()[-1].startswith(
        "Error: project 'gone': expected an answer of Phoenix (HTTPStatusError: Client error '404 Not Found'"
    )


def test_the_newest_spans_are_read_and_the_limit_is_told(project, caplog):
    _, opened = project

    assert len(opened.spans(limit=1)) == 1
    assert "only its newest 1 spans were read" in caplog.text


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:6006/default", "project: expected phoenix"),
        ("phoenix+http://127.0.0.1:6006/", "project: expected phoenix"),
        ("phoenix+http://me:secret@127.0.0.1:6006/default", "^project: expected no login in the address"),
    ],
)
def test_another_address_is_refused(url, message):
    """One line says what was expected, and shows no password."""
    with pytest.raises(InputError, match=message) as refused:
        PhoenixProject.open(url)

    assert "secret" not in str(refused.value)
