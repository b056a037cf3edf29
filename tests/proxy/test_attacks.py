"""Callers and addresses that mean harm: one caller holds up no other, and secrets reach nobody."""

import asyncio
import contextlib
import http.client
import json
import logging
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from click.testing import CliRunner
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from tttembed_rag import LiveOffsets
from tttembed_rag.cli import main
from tttembed_rag.proxy import Sender, Senders, proxy_app
from tttembed_rag.proxy.bounded import BoundedProtocol


class Impatient(BoundedProtocol):
    """Waits for a caller no longer than a test may take."""

    seconds = unread_seconds = 0.5


@pytest.fixture
def address(service, tools):
    """Host and port of a proxy whose callers are bounded."""
    app = proxy_app(service.url, LiveOffsets(tools.offsets_of()), models=[tools.MODEL])
    with tools.running(app, http=Impatient, h11_max_incomplete_event_size=65_536) as url:
        yield "127.0.0.1", int(url.rpartition(":")[2])


def fed(address, head, part):
    """The first line that comes back from a caller who sends *head*, and *part* again and again; empty where cut."""
    with socket.create_connection(address, 10) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head)
        for _ in range(2**21 // len(part)):
            connection.sendall(part)
        return connection.recv(100).split(b"\r\n")[0]
    return b""


def connected(address):
    """A connection that fails where it would have to be made anew."""
    connection = http.client.HTTPConnection(*address, timeout=10)
    connection.connect()
    connection.auto_open = 0
    return connection


CUT = (b"HTTP/1.1 400 Bad Request", b"")
ENDLESS = {
    "a path": (b"GET /", b"a" * 1000),
    "a header": (b"GET / HTTP/1.1\r\nhost: a\r\nx-big: ", b"a" * 1000),
    "many headers": (b"GET / HTTP/1.1\r\nhost: a\r\n", b"x-one: 1\r\n" * 100),
    "a trailer": (b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-big: ", b"a" * 1000),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_a_head_without_end_is_cut(address, what):
    """A caller with a long body is heard all the same."""
    answer = fed(address, *ENDLESS[what])
    ready = httpx.post(f"http://127.0.0.1:{address[1]}/other", content=b"x" * 300_000)

    assert answer in CUT
    assert ready.json()["size"] == 300_000


WHOLE = b"GET /x HTTP/1.1\r\nhost: a\r\n\r\n"
STALLED = {
    "nothing": b"",
    "a head": b"GET / HT",
    "a second head": WHOLE + b"GET /y HT",
    "an empty line after a request": WHOLE + b"\r\n",
    "a body of ours": b"POST /v1/steer HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n[",
    "a body for the service": b"POST /other HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\n[",
    "a second body": WHOLE + b"POST /v1/steer HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n",
}


@pytest.mark.parametrize("what", STALLED)
def test_a_request_that_does_not_come_ends_its_connection(address, what):
    """Meanwhile and afterwards, others are answered."""
    sent = STALLED[what]
    with socket.create_connection(address, 10) as connection:
        connection.sendall(sent)
        with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}") as other:
            status = [other.get("/x").status_code]
            began = time.monotonic()
            while connection.recv(65_536):
                pass
            took = time.monotonic() - began
            status.append(other.get("/x").status_code)

    assert took < 3
    assert status == [201, 201]


def test_a_slow_request_is_answered(address):
    """A connection may pause between two requests, and a body may take long, as long as its parts come."""
    connection = connected(address)
    connection.request("GET", "/x")
    connection.getresponse().read()

    def parts():
        for _ in range(4):
            time.sleep(0.6 * Impatient.seconds)
            yield b"x" * 10

    time.sleep(1.5 * Impatient.seconds)
    connection.request("POST", "/other", parts(), {"content-length": "40"})
    with connection.getresponse() as answer:
        size = json.load(answer)["size"]
    connection.close()

    assert size == 40


def test_a_slow_service_ends_no_callers_connection(tools):
    """A caller who would send more waits for a service that does not read."""

    async def slow(request):
        await asyncio.sleep(2 * Impatient.seconds)
        return JSONResponse({"size": len(await request.body())})

    with (
        tools.running(Starlette(routes=[Route("/other", slow, methods=["POST"])])) as service,
        tools.running(proxy_app(service, LiveOffsets(), models=[tools.MODEL]), http=Impatient) as url,
    ):
        answer = httpx.post(f"{url}/other", content=b"x" * 30_000_000, timeout=30)

    assert answer.json() == {"size": 30_000_000}


def test_a_caller_who_offers_another_protocol_is_steered(address, tools):
    """Java's client offers HTTP/2 with every request: its query is read, and so is its next on that connection."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAABAAMAAABk"}
    body = json.dumps({"model": tools.MODEL, "input": "wash wool"})
    connection = connected(address)
    answers = []
    for _ in range(2):
        connection.request("POST", "/v1/embeddings", body, offer | {"x-ttt-role": "query"})
        with connection.getresponse() as answer:
            answers.append((answer.status, answer.headers["x-ttt-version"], len(json.load(answer)["data"])))
    connection.close()

    assert answers == [(200, "file", 1)] * 2


def test_the_command_reads_heads_so(service, tools, tmp_path):
    """`tttembed serve` itself cuts a head without end."""
    tools.offsets_of().save(tmp_path / "offsets.safetensors")
    arguments = [
        "serve",
        service.url,
        "--model",
        "m",
        "--port",
        "0",
        "--offsets",
        str(tmp_path / "offsets.safetensors"),
    ]
    command = [sys.executable, "-m", "tttembed_rag", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        port = int(process.stdout.readline().split()[0].rpartition(":")[2])
        answer = fed(("127.0.0.1", port), *ENDLESS["a header"])
        process.terminate()

    assert answer in CUT


@pytest.mark.parametrize(
    "upstream",
    [
        "http://me:secret@host",
        "http://secret@host",
        "http://me:secret@host/v1",
        "http://host?key=secret",
        "http://host#secret",
        "me:secret@host",
        "host?key=secret",
        "//me:secret@host",
        "http://me:secret@host:port",
        "x://a:secret@b",
    ],
)
def test_an_upstream_with_a_secret_is_refused_without_it(tmp_path, tools, upstream):
    """Its address is told to every caller when it does not answer."""
    tools.offsets_of().save(tmp_path / "offsets.safetensors")
    done = CliRunner().invoke(
        main, ["serve", upstream, "--model", "m", "--offsets", str(tmp_path / "offsets.safetensors")]
    )

    assert done.exit_code == 2
    assert "Error: upstream: expected an address " in done.output
    assert "secret" not in done.output


@pytest.mark.parametrize("header", ["api-key", "x-api-key", "authorization"])
def test_a_callers_key_stays_with_the_proxy(proxied, service, header):
    """Where the proxy sends its own key to the service, the service is not sent the caller's beside it."""
    senders = Senders({"callers-key": Sender("acme")})
    value = "Bearer callers-key" if header == "authorization" else "callers-key"
    proxied(senders=senders, upstream_key="ours").post(
        "/v1/embeddings", json={"model": "small", "input": "a"}, headers={header: value}
    )

    assert "callers-key" not in json.dumps(service.asked[0][0])
    assert service.asked[0][0]["authorization"] == "Bearer ours"


@pytest.mark.parametrize("path", ["/other", "/v1/embeddings", "/v1/steer"])
def test_a_caller_who_leaves_is_no_fault(proxied, path, caplog, monkeypatch):
    """A body that breaks off is neither a service that does not answer nor an error of the proxy."""
    url = proxied().base_url
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "handlers", [caplog.handler])
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nabc".encode())
        time.sleep(0.1)
    with httpx.Client(base_url=url) as other:
        assert other.get("/x").status_code == 201
    time.sleep(0.3)

    assert not caplog.text


def test_all_bodies_at_once_are_bounded(service, tools):
    """While nothing more fits, requests pass as they came; later they are steered again."""
    app = proxy_app(service.url, LiveOffsets(tools.offsets_of()), models=[tools.MODEL], limit=1000)
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n"
    asked = {"model": tools.MODEL, "input": "where is my order"}
    with tools.running(app, http=BoundedProtocol) as url, httpx.Client(base_url=url) as other:

        def versions():
            answer = other.post("/v1/embeddings", json=asked, headers={"x-ttt-role": "query"})
            own = other.post("/v1/steer", json={"vectors": []})
            return answer.status_code, answer.headers["x-ttt-version"], own.status_code

        def crowded():
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))))
            connection.sendall(head + b"x" * 1000)
            return versions()

        before = versions()
        with contextlib.ExitStack() as stack:
            during = until(crowded, (200, "base", 503))
        after = until(versions, before)

    assert before == (200, "file", 200)
    assert during == (200, "base", 503)
    assert after == before


def until(ask, expected):
    """What *ask* gives, as soon as it is what is *expected*, or after some seconds."""
    latest = time.monotonic() + 5
    while (got := ask()) != expected and time.monotonic() < latest:
        time.sleep(0.01)
    return got


def test_an_answer_that_is_not_read_ends_its_connection(tools):
    """The service sees that nothing more is wanted."""
    ended = threading.Event()

    async def endless(_):
        async def parts():
            try:
                while True:
                    yield b"x" * 100_000
                    await asyncio.sleep(0)
            finally:
                ended.set()

        return StreamingResponse(parts())

    with (
        tools.running(Starlette(routes=[Route("/other", endless)])) as service,
        tools.running(proxy_app(service, LiveOffsets(), models=[tools.MODEL]), http=Impatient) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as connection,
    ):
        connection.sendall(b"GET /other HTTP/1.1\r\nhost: a\r\n\r\n")
        left = ended.wait(10)

    assert left


@pytest.mark.slow
def test_an_answer_that_is_read_slowly_is_read_to_its_end(address):
    """However long that takes, as long as some of it is read now and then."""
    body = json.dumps({"vectors": [[0.123456789] * 1000] * 800}).encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        connection.connect(address)
        connection.sendall(
            b"POST /v1/steer HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        connection.sendall(body)
        parts, began = [], time.monotonic()
        while part := connection.recv(131_072):
            parts.append(part)
            time.sleep(0.02)
        took = time.monotonic() - began

    answer = b"".join(parts).partition(b"\r\n\r\n")[2]
    assert took > 2 * Impatient.seconds
    assert len(json.loads(answer)["vectors"]) == 800
