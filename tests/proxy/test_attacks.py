"""Callers and addresses that mean harm: one caller holds up no other, and secrets reach nobody."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
import uvicorn
from click.testing import CliRunner

from tttembed_rag import LiveOffsets
from tttembed_rag.cli import main
from tttembed_rag.proxy import Sender, Senders, proxy_app
from tttembed_rag.proxy.bounded import BoundedProtocol


class Impatient(BoundedProtocol):
    """Waits for a head no longer than a test may take."""

    seconds = 0.5


@pytest.fixture
def address(service, tools):
    """Host and port of a proxy whose callers are bounded."""
    app = proxy_app(service.url, LiveOffsets(tools.offsets_of()), models=[tools.MODEL])
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=Impatient, log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield listening.getsockname()
    server.should_exit = True
    thread.join(10)
    listening.close()


def fed(address, head, part):
    """The first line that comes back from a caller who sends *head*, and *part* again and again; empty where cut."""
    with socket.create_connection(address, 10) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head)
        for _ in range(2**21 // len(part)):
            connection.sendall(part)
        return connection.recv(100).split(b"\r\n")[0]
    return b""


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


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET /x HTTP/1.1\r\nhost: a\r\n\r\nGET /y HT"])
def test_a_head_that_does_not_come_ends_its_connection(address, sent):
    """Also a second one; meanwhile, and after a pause between two requests, others are answered."""
    with socket.create_connection(address, 10) as connection:
        connection.sendall(sent)
        with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}") as other:
            status = [other.get("/x").status_code]
            began = time.monotonic()
            while connection.recv(65_536):
                pass
            took = time.monotonic() - began
            status.append(other.get("/x").status_code)

    assert took < 5
    assert status == [201, 201]


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


def test_a_caller_who_leaves_is_no_fault_of_the_service(proxied, service, caplog):
    """A body that breaks off on its way to the service is not told as a service that does not answer."""
    url = proxied().base_url
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(b"POST /other HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nabc")
        time.sleep(0.1)
    with httpx.Client(base_url=url) as other:
        assert other.get("/x").status_code == 201
    time.sleep(0.3)

    assert "does not answer" not in caplog.text
