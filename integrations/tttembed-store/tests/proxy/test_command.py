"""`tttembed serve` as a process of its own, and the examples of its guide."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from tttembed_store.sql import open_store
from tttembed_tools import LearnedToolSearch

from tests.catalogues import CATALOG, TOPICS, request
from tttembed_rag import Steering
from tttembed_rag.cli import main
from tttembed_rag.embedders import minilm
from tttembed_rag.testing import FakeEmbedder

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "how-to" / "http.md").read_text(encoding="utf-8")
MODEL = "text-embedding-3-small"


def examples(language):
    """The code of the guide in one language."""
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def command(service, tools, tmp_path):
    """Starts the command with more arguments; gives its process and its address."""
    started = []

    def start(*more, environment=()):
        tools.offsets_of().save(tmp_path / "offsets.safetensors")
        arguments = ["serve", service.url, "--model", MODEL, "--port", "0"]
        arguments += ["--offsets", str(tmp_path / "offsets.safetensors"), *more]
        process = subprocess.Popen(
            [sys.executable, "-m", "tttembed_rag", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict(environment)},
        )
        started.append(process)
        return process, process.stdout.readline().split()[0]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_it_serves_until_it_is_told_to_end(command, tools):
    """The first line says where; a query is steered; SIGTERM ends it without a word."""
    process, url = command("--task", "billing", "--key", "ACME=acme/other", environment=[("ACME", "k1")])

    answer = httpx.post(f"{url}/v1/embeddings", json={"model": f"{MODEL}@query", "input": "wash wool"}, timeout=30)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)

    expected = tools.offsets_of().apply(tools.vector_of("wash wool"))
    assert answer.json()["data"][0]["embedding"] == pytest.approx(expected)
    assert process.returncode in (0, -signal.SIGTERM)
    assert errors == ""


@pytest.mark.slow
def test_it_searches_a_catalogue_and_keeps_what_worked(command, tmp_path):
    """A file of tools is searched under its name, and calls are in the store of its own when they are answered."""
    catalog = {"mail_send": "Send a message or an invoice by mail.", "weather": "Tell the weather of a city."}
    (tmp_path / "tools.json").write_text(json.dumps(catalog), encoding="utf-8")
    _, url = command("--catalog", f"office={tmp_path}/tools.json,sqlite:///{tmp_path}/tools.db")

    tools = httpx.post(f"{url}/v1/search/office", json={"query": "send an invoice"}, timeout=60).json()
    used = [{"name": "mail_send", "succeeded": True}]
    body = {"catalogue": "office", "query": "send an invoice", "used": used, "source": "ada"}
    kept = httpx.post(f"{url}/v1/used", json=body, timeout=60).json()

    assert tools == {"tools": ["mail_send", "weather"]}
    assert kept == {"kept": 1, "source": "ada"}
    with open_store(f"sqlite:///{tmp_path}/tools.db") as store:
        assert store.counts("").rewards == 1


@pytest.mark.slow
def test_it_finds_no_tool_where_none_fits_if_it_is_to(command, tmp_path):
    """Below the floor of requests for which a tool worked; others find their tools."""
    place = f"{tmp_path}/tools.json,sqlite:///{tmp_path}/tools.db"
    (tmp_path / "tools.json").write_text(json.dumps(CATALOG), encoding="utf-8")
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=f"sqlite:///{tmp_path}/tools.db", abstain=True) as search:
        for number, topic in enumerate([*TOPICS, *TOPICS]):
            search.used(request(topic), f"zeta_{topic}", source=f"agent {number}")
        search.learn()
    embedder = "python:tttembed_rag.testing:FakeEmbedder"
    _, url = command("--catalog", f"office={place}", "--embed", embedder, "--abstain")

    tools = [
        httpx.post(f"{url}/v1/search/office", json={"query": query}, timeout=60).json()["tools"]
        for query in ("what the weather says", request(TOPICS[0]))
    ]

    assert [len(names) for names in tools] == [0, 5]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_guide_speaks_to_it_with_curl(proxied, tools):
    """Both curl examples of vectors in the guide are answered with steered vectors."""
    url = str(proxied(model=MODEL).base_url)
    of_texts, of_vectors = [block for block in examples("sh") if re.search(r"curl .*/v1/(embeddings|steer)", block)]

    answers = [
        subprocess.run(["sh", "-c", block.replace("http://127.0.0.1:8787", url)], capture_output=True, check=True)
        for block in (of_texts, of_vectors.replace("[0.1, 0.2, 0.3]", json.dumps([0.1] * tools.WIDTH)))
    ]

    expected = tools.offsets_of().apply(tools.vector_of("how do I get a refund?"))
    assert json.loads(answers[0].stdout)["data"][0]["embedding"] == pytest.approx(expected)
    assert json.loads(answers[1].stdout)["steered"] == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_guide_speaks_to_it_with_typescript(proxied, tools, tmp_path):
    """The TypeScript example of the guide runs in node and sees the version that steered it."""
    url = str(proxied(model=MODEL).base_url)
    (block,) = examples("ts")
    (tmp_path / "example.mjs").write_text(block.replace("http://127.0.0.1:8787", url), encoding="utf-8")

    node = subprocess.run(["node", tmp_path / "example.mjs"], capture_output=True, text=True, check=True)

    assert node.stdout == f"file {tools.WIDTH}\n"


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_guides_server_is_one_that_nginx_takes(tmp_path):
    """`nginx -t` finds no fault in the guide's configuration."""
    (block,) = examples("nginx")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)
    whole = f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{folders}{block}}}\n"
    (tmp_path / "nginx.conf").write_text(whole, encoding="utf-8")

    nginx = subprocess.run(["nginx", "-t", "-c", tmp_path / "nginx.conf"], capture_output=True, text=True, check=False)

    assert (nginx.returncode, "test is successful" in nginx.stderr) == (0, True), nginx.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (None, "expected UPSTREAM, an address, or --embed SPEC"),
        ((), "expected either --store URL or --offsets FILE"),
        (("--model", "", "--offsets", "a"), "--model: expected the name of the model at UPSTREAM"),
        (("--store", "sqlite:///a.db", "--offsets", "a"), "expected either --store URL or --offsets FILE"),
        (("--offsets", "missing"), "missing"),
        (("--store", "mysql://a/b"), "mysql"),
        (("--offsets", "a", "--key", "TTTEMBED_NOT_SET=acme"), "--key: expected the name of an environment variable"),
        (("--offsets", "a", "--key", "acme"), "--key: expected ENV=TENANT[/TASK], got 'acme'"),
        (("--offsets", "a", "--upstream-key", "PATH"), "--upstream-key: expected a --key for each caller"),
        (("--offsets", "a", "--catalog", "tools.json"), "--catalog: expected NAME=PATH[,URL] with different names"),
        (("--offsets", "a", "--catalog", "a=b", "--catalog", "a=c"), "--catalog: expected NAME=PATH[,URL] with"),
        (
            ("--store", "sqlite:///a.db", "--catalog", "a=b,sqlite:///a.db"),
            "--catalog: expected a store for a alone, got one that is used already",
        ),
        (
            ("--store", "sqlite:///made.db", "--judge", ""),
            "judge: expected a name to keep feedback under, got an empty one",
        ),
        (("--offsets", "a", "--catalog", "a=missing.json"), "missing.json: expected a JSON file of tools"),
    ],
)
def test_bad_options_end_with_one_line(arguments, message, tmp_path, monkeypatch):
    """Exit code 2, and what was expected."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TTTEMBED_STORE", raising=False)
    open_store("sqlite:///made.db").close()

    named = [] if arguments is None else ["https://api.openai.com", "--model", "small", *arguments]
    result = CliRunner().invoke(main, ["serve", *named])

    assert result.exit_code == 2
    assert message in result.output.splitlines()[-1]


def test_a_port_that_is_taken_is_one_line(tools, tmp_path):
    """Which one stands in it."""
    tools.offsets_of().save(tmp_path / "o")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ["http://127.0.0.1:1", "--model", "small", "--offsets", str(tmp_path / "o"), "--port", port]
        result = CliRunner().invoke(main, ["serve", *arguments])

    assert result.exit_code == 2
    assert re.search(rf"^Error: .*already in use.*{port}", result.output, re.MULTILINE)


@pytest.mark.slow
def test_a_model_of_this_machine_answers_without_an_upstream(tools, tmp_path):
    """Documents come as the model embeds them, queries steered; what it does not serve is refused in one line."""
    offsets = tools.offsets_of(width=384)
    offsets.save(tmp_path / "offsets.safetensors")
    arguments = ["serve", "--embed", "minilm", "--offsets", str(tmp_path / "offsets.safetensors"), "--port", "0"]
    process = subprocess.Popen([sys.executable, "-m", "tttembed_rag", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[0]

        def ask(model, path="embeddings"):
            return httpx.post(f"{url}/v1/{path}", json={"model": model, "input": ["wash wool"]}, timeout=60)

        document, query = ask("minilm").json()["data"][0]["embedding"], ask("minilm@query")
        refused = ask("other").json(), ask("minilm", "completions").json()
    finally:
        process.kill()
        process.communicate()

    expected = minilm().embed_queries(["wash wool"])[0]
    np.testing.assert_allclose(document, expected, atol=1e-6)
    np.testing.assert_allclose(
        query.json()["data"][0]["embedding"], Steering(offsets).apply(expected, "wash wool"), atol=1e-6
    )
    assert query.headers["x-ttt-version"] == "file"
    assert [answer["error"]["message"] for answer in refused] == [
        'tttembed: expected {"model": "minilm", "input": [text, ...]}',
        "tttembed: expected POST /v1/embeddings, got POST /v1/completions",
    ]
