"""Callers and addresses that mean harm: secrets reach nobody, and a caller who leaves is no fault."""

import http.client
import json
import logging
import socket
import time

import httpx
import pytest
from click.testing import CliRunner

from tttembed_rag.cli import main


def test_a_caller_who_offers_another_protocol_is_steered(proxied, tools):
    """Java's client offers HTTP/2 with every request: its query is read, and so is its next on that connection."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAAAAIAAAABAAMAAABk"}
    body = json.dumps({"model": tools.MODEL, "input": "wash wool"})
    url = proxied().base_url
    connection = http.client.HTTPConnection(url.host, url.port, timeout=10)
    connection.connect()
    connection.auto_open = 0  # it fails where it would have to be made anew
    answers = []
    for _ in range(2):
        connection.request("POST", "/v1/embeddings", body, offer | {"x-ttt-role": "query"})
        with connection.getresponse() as answer:
            answers.append((answer.status, answer.headers["x-ttt-version"], len(json.load(answer)["data"])))
    connection.close()

    assert answers == [(200, "file", 1)] * 2


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
    assert "Error: upstream: expected " in done.output
    assert "secret" not in done.output


@pytest.mark.parametrize(
    "target",
    [
        "*",
        "%2F@127.0.0.1:{port}/latest/meta-data/",
        "%2F.evil.example/x",
        "@127.0.0.1:{port}/x",
        ":{port}/x",
        "http://127.0.0.1:{port}/x",
        "//127.0.0.1:{port}/x",
        "//v1/feedback",
        "/%2Fv1/feedback",
        "/v1//feedback",
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/./feedback",
        "/v1\\feedback",
    ],
)
def test_a_path_that_means_two_things_reaches_nobody(proxied, service, target):
    """Only one that begins with one slash, without empty parts or dots, is compared with the routes and sent on."""
    url = proxied().base_url
    with socket.create_connection((url.host, url.port), timeout=10) as connection:
        line = f"GET {target.format(port=httpx.URL(service.url).port)} HTTP/1.1"
        connection.sendall(f"{line}\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert service.asked == []


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
