"""A real Phoenix: spans in by OTLP, read back, and verdicts written onto their documents.

Runs against the server that TTTEMBED_TEST_PHOENIX names (http://HOST:6006), or one that it starts where Phoenix is
installed.
"""

import json
import os
import shutil
import subprocess
import time
import uuid

import httpx
import pytest
from click.testing import CliRunner

from tttembed_rag import InputError
from tttembed_rag.cli import main
from tttembed_rag.stores import Candidate, Served

pytest.importorskip("phoenix.client", reason="the extra phoenix: arize-phoenix-client is not installed")

from tttembed_rag.hosts.phoenix import PhoenixProject

TEXTS = ["wash wool cold", "boil the kettle"]


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory):
    """The address of a running Phoenix."""
    if url := os.environ.get("TTTEMBED_TEST_PHOENIX"):
        yield url
        return
    if shutil.which("phoenix") is None:
        pytest.skip("Phoenix: no server is installed, and TTTEMBED_TEST_PHOENIX names none")
    folder = str(tmp_path_factory.mktemp("phoenix"))
    environment = {**os.environ, "PHOENIX_WORKING_DIR": folder, "PHOENIX_PORT": "16106", "PHOENIX_GRPC_PORT": "14417"}
    process = subprocess.Popen(["phoenix", "serve"], env=environment, stdout=subprocess.DEVNULL)
    url = "http://127.0.0.1:16106"
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

    imported = run("import", url, "--store", sqlite_url, "--json")
    query, documents = store.text_id("wool"), [store.text_id(text) for text in TEXTS]
    rewarded = [
        Candidate(name, text=text, reward=value) for name, text, value in zip(documents, TEXTS, (1, 0.25), strict=True)
    ]
    store.observe([Served(query, None, rewarded, "wool")], judge="my-judge")
    annotated = run("annotate", url, "--store", sqlite_url, "--json")

    assert imported == (0, '{"queries": 1, "without_vectors": 3, "left_out": 0}\n')
    assert json.loads(annotated[1]) == {"annotations": 2, "retrievals": 1, "judge": "my-judge"}
    (span,) = opened.spans()
    assert scores_of(url, span.span_id) == {0: 1.0, 1: 0.25}


def scores_of(url, span_id):
    """The scores that Phoenix holds for the documents of a span, by position, asked as its own pages ask."""
    address, _, name = url.removeprefix("phoenix+").rpartition("/")
    query = """query ($name: String!) { getProjectByName(name: $name) { spans(first: 9) { edges { node {
        spanId documentEvaluations { documentPosition score } } } } } }"""
    answer = httpx.post(f"{address}/graphql", json={"query": query, "variables": {"name": name}}).json()
    spans = [edge["node"] for edge in answer["data"]["getProjectByName"]["spans"]["edges"]]
    (found,) = [one["documentEvaluations"] for one in spans if one["spanId"] == span_id]
    return {one["documentPosition"]: one["score"] for one in found}


def test_another_address_is_refused():
    """One line says what was expected."""
    with pytest.raises(InputError, match="project: expected phoenix"):
        PhoenixProject.open("http://127.0.0.1:6006/default")
