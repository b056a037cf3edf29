"""What breaks around the proxy never costs a caller more than the offset: the service's answer, or its error."""

import asyncio
import gzip
import json
import logging
import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from tttembed_store import follow
from tttembed_store.proxy import Callers, proxy_app

from tests.traffic import frozen
from tttembed_rag import InputError
from tttembed_rag.testing import eventually

QUERY = {"x-ttt-role": "query"}


def ask(client, headers=QUERY, **fields):
    """An answer to an OpenAI request."""
    return client.post("/v1/embeddings", json={"model": "small", "input": "wash wool", **fields}, headers=headers)


def test_an_error_of_the_service_is_the_answer(proxied, bare, caplog):
    """Status, body and headers of an error pass as they came, and nobody tries to steer them."""
    answer, direct = ask(proxied(model="busy"), model="busy"), ask(bare, model="busy")

    assert answer.status_code == direct.status_code == 429
    assert answer.content == direct.content
    assert answer.headers["retry-after"] == "7"
    assert "not steered" not in caplog.text


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"model": 3}', b'{"input": "a"}'])
def test_a_malformed_request_is_for_the_service_to_refuse(proxied, bare, body):
    """The proxy hands on what it does not understand."""
    answer = proxied().post("/v1/embeddings", content=body, headers=QUERY)
    direct = bare.post("/v1/embeddings", content=body)

    assert answer.status_code == direct.status_code
    assert answer.content == direct.content


def test_other_requests_pass_as_they_came(proxied):
    """Method, path, query, body and headers arrive unchanged, and so does the answer."""
    answer = proxied().put("/any/path%2Fwith?a=1&b=%20", content=b"x" * 1000, headers={"x-own": "1", "te": "trailers"})

    seen = answer.json()
    assert answer.status_code == 201
    assert answer.headers["x-more"] == "kept"
    assert "x-ttt-version" not in answer.headers
    assert (seen["method"], seen["path"], seen["query"]) == ("PUT", "/any/path%2Fwith", "a=1&b=%20")
    assert seen["size"] == 1000
    assert seen["headers"]["x-own"] == "1"
    assert "te" not in seen["headers"]


def test_a_stream_arrives_part_by_part(proxied, service):
    """The first event of a stream is there before the last was sent."""
    with proxied().stream("POST", "/v1/chat/completions", json={"model": "chat"}) as answer:
        parts = answer.iter_raw()
        first = next(parts)
        service.go.set()
        rest = b"".join(parts)

    assert answer.headers["x-model"] == "chat"
    assert first == b"data: one\n\n"
    assert rest == b"data: two\n\ndata: [DONE]\n\n"


def test_a_service_that_is_away_is_said_to_be(proxied):
    """Nothing listens there: status 502 and one line that names the service."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"http://127.0.0.1:{taken.getsockname()[1]}"

    answer = ask(proxied(upstream=gone))

    assert answer.status_code == 502
    assert gone in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/other"])
def test_a_body_above_the_limit_passes_as_it_came(proxied, service, path):
    """A long body is not read: the service gets all of it, part by part."""
    body = json.dumps({"model": "small", "input": ["x" * 3_000_000]}).encode()

    answer = proxied(limit=100_000).post(path, content=body, headers=QUERY)

    assert answer.json().get("bytes", answer.json().get("size")) == len(body)


@pytest.mark.slow
def test_a_hundred_megabytes_pass(proxied, service):
    """A body of 100 MB reaches the service whole, also without a length."""
    part = b"x" * 1_000_000

    answer = proxied().post("/v1/embeddings", content=(part for _ in range(100)), headers=QUERY)

    assert answer.json() == {"bytes": 100_000_000}


def test_an_answer_above_the_limit_passes_as_it_came(proxied, bare, caplog):
    """Too long an answer is not steered, and the log says so."""
    with caplog.at_level(logging.WARNING):
        answer = ask(proxied(limit=10_000), input=["x"] * 100)

    assert answer.content == ask(bare, input=["x"] * 100).content
    assert answer.headers["x-ttt-version"] == "base"
    assert "an answer was not steered: it is longer than 10000 bytes" in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"no JSON", b"[]", b'{"data": [{"index": 0, "embedding": "%%"}]}', gzip.compress(b'{"data": []}')],
    ids=["text", "list", "bad base64", "compressed"],
)
def test_a_strange_answer_is_the_answer(proxied, tools, content, caplog):
    """What is no embedding answer passes as it came; the log has the reason."""

    async def strange(_):
        return Response(content, headers={"content-encoding": "gzip"} if content[:2] == b"\x1f\x8b" else {})

    app = Starlette(routes=[Route("/v1/embeddings", strange, methods=["POST"])])
    with tools.running(app) as url:
        client = proxied(upstream=url)
        with client.stream("POST", "/v1/embeddings", json={"model": "small", "input": "a"}, headers=QUERY) as answer:
            raw = b"".join(answer.iter_raw())

    assert answer.status_code == 200
    assert raw == content
    assert "was not steered" in caplog.text
    assert ("Traceback" in caplog.text) == (content[:2] != b"\x1f\x8b")


@pytest.mark.parametrize("near", [False, True])
def test_a_service_is_reached_by_the_proxy_of_the_environment(proxied, serve, monkeypatch, near):
    """Unless the environment says that it is near."""
    away = serve(lambda _, __, ___: (200, {}, {"data": []}))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", away.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1,embed.invalid" if near else "127.0.0.1")

    answer = ask(proxied(upstream="http://embed.invalid"))

    assert answer.status_code == (502 if near else 200)
    assert [path for path, *_ in away.asked] == ([] if near else ["http://embed.invalid/v1/embeddings"])


def test_a_new_version_is_served_at_once(proxied, tools, store, sqlite_url):
    """Answers carry the number of the live version, the next one soon after it was published."""
    store.registry.publish(tools.offsets_of(1), by="test")
    live = follow(sqlite_url, every=0.05)
    client = proxied(live)

    first = ask(client)
    store.registry.publish(tools.offsets_of(2), by="test")
    eventually(lambda: ask(client).headers["x-ttt-version"] == "2")
    second = ask(client)
    live.close()

    assert first.headers["x-ttt-version"] == "1"
    assert first.content != second.content


def test_nothing_published_is_the_answer_of_the_service(proxied, bare):
    """Before the first version, answers are the service's bytes."""
    assert ask(proxied(frozen())).content == ask(bare).content


def test_a_caller_who_leaves_ends_the_request(proxied, service, leaving):
    """The service is not kept waiting for a caller who is gone."""
    with leaving(proxied().base_url, "/v1/embeddings", {"model": "endless", "input": "a"}):
        eventually(lambda: service.asked)

    assert service.left.wait(60)


@pytest.mark.slow
async def test_five_hundred_connections_are_answered(proxied, service, tools):
    """Five hundred callers at once, each on a connection of its own and before a slow service, get their vector."""
    url = str(proxied(model="slow").base_url)
    fields = {"model": "slow", "seconds": 3.0, "input": "a"}

    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=500)) as client:
        requests = [client.post("/v1/embeddings", json=fields, headers=QUERY) for _ in range(500)]
        answers = await asyncio.gather(*requests)

    vectors = {json.dumps(answer.json()["data"][0]["embedding"]) for answer in answers}
    assert [answer.status_code for answer in answers] == [200] * 500
    assert [json.loads(text) for text in vectors] == [pytest.approx(tools.offsets_of().apply(tools.vector_of("a")))]
    assert service.most_at_once == 500


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"upstream": "api.openai.com"}, r"upstream: expected http\(s\)://HOST, got another text"),
        ({"upstream": "https://api.openai.com/v1"}, "upstream: expected the address before /v1"),
        ({"model": ""}, "model: expected the name of a model, got an empty one"),
        ({"limit": 0}, "limit: expected > 0 bytes"),
        ({"keys": {"": None}}, "keys: expected API keys, got an empty one"),
    ],
)
def test_bad_options_are_refused(arguments, message):
    """One line says what was expected; a key that nobody sends would be everybody's."""
    options = {"upstream": "https://api.openai.com", "model": "small", "keys": {}, **arguments}

    with pytest.raises(InputError, match=message):
        proxy_app(options.pop("upstream"), frozen(), callers=Callers(options.pop("keys")), **options)
