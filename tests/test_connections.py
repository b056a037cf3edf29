"""Connections of every client that asks a service, where a process forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from tests.test_services import WELL
from tttembed_rag.clients.endpoint import Address
from tttembed_rag.clients.openaiclient import openai_client
from tttembed_rag.embedders import open_embedder
from tttembed_rag.judges import open_judge

ports = []  # of the client, for each request

class Handler(BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", 1 << 16

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        ports.append(self.client_address[1])
        data = json.dumps(WELL).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST
    def log_message(self, *_): pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
judges = {spec: open_judge(f"{spec}?url={url}/v1") for spec in ("openai:m", "anthropic:m", "cohere:m")}
judges["gemini:m"] = open_judge(f"gemini:m?url={url}")
models = {f"{kind}:m": open_embedder(f"{kind}:m?url={url}/v1") for kind in ("openai", "voyage")}
models["gemini:m"] = open_embedder(f"gemini:gemini-embedding-001?url={url}")
files = openai_client(Address.of(f"{url}/v1"))
asking = {f"judge {name}": lambda judge=judge: judge.score("q", ["d"]) for name, judge in judges.items()}
asking |= {f"model {name}": lambda model=model: model.embed_queries(["q"]) for name, model in models.items()}
asking["batches"] = lambda: files.batches.list()
ports_of = {}
for name, ask in asking.items():
    del ports[:]
    ask()
    ask()
    child = os.fork()
    if child == 0:
        failed = 1
        try:
            ask()
            failed = 0
        finally:
            os._exit(failed)
    status = os.waitpid(child, 0)[1]
    ask()
    ports_of[name] = [status, *ports]
print(json.dumps(ports_of))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_has_connections_of_its_own():
    """No client of ours asks on the connection of its parent, who keeps it."""
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=False)
    ports = json.loads(ran.stdout or "null")

    assert ports, ran.stderr
    assert len(ports) == 8
    for name, (status, first, second, child, last) in ports.items():
        assert (name, status, first, first) == (name, 0, second, last)
        assert child != first, name
