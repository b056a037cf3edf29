"""What many workers on one store gain: the rate of verdicts of a slow judge on loopback, by the number of workers.

    python benchmarks/workers.py [--workers 1,2,4] [--tenants 8] [--queries 8] [--seconds 1]

Workers are processes of their own on one PostgreSQL that is started here (pip install pgserver). Each has one call in
flight. Time runs from the first call to the last answer, as the judge sees it, and each verdict must be paid for once.
Nothing is learned meanwhile: a fit keeps a processor busy, a judge does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import numpy as np
from tttembed_store import Candidate, Served, open_store

from tttembed_rag.judges.examination import answers

DEPTH = 10
WORK = """
import sys
import time

from tttembed_rag.judges import HttpJudge
from tttembed_store import open_store
from tttembed_store import Worker

with open_store(sys.argv[1]) as store:
    judge = HttpJudge(sys.argv[2], "cohere")
    worker = Worker(store, judge, concurrency=1, min_new=10**9)
    store.judge_queue.tenants(judge.fingerprint)
    print("ready", flush=True)
    sys.stdin.readline()
    while store.judge_queue.tenants(judge.fingerprint):
        worker.round()
        time.sleep(0.1)
"""


class SlowJudge(BaseHTTPRequestHandler):
    """A reranker that takes its time for a request, however many come at once."""

    protocol_version = "HTTP/1.1"
    seconds = 1.0
    # When each call came, and when it was answered.
    calls: ClassVar[list[tuple[float, float]]] = []

    def do_POST(self) -> None:
        """Answer a request of Cohere's rerank protocol."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        came = time.perf_counter()
        examined = answers().get(asked["query"])
        if examined is None:
            time.sleep(self.seconds)
        scores = [0.9 if examined in (None, text) else 0.1 for text in asked["documents"]]
        results = [{"index": place, "relevance_score": score} for place, score in enumerate(scores)]
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if examined is None:
            self.calls.append((came, time.perf_counter()))

    def log_message(self, *_: object) -> None:
        """Nothing."""


def measured(url: str, judge: str, options: argparse.Namespace, workers: int) -> float:
    """Seconds that *workers* take for all queries of all tenants."""
    vector = np.ones(8)
    shown = [Candidate(f"d{place}", vector, f"document {place}") for place in range(DEPTH)]
    pairs = options.tenants * options.queries * DEPTH
    with open_store(url) as store:
        before = store.judge_queue.spent().pairs
        for tenant in (f"{workers} workers, tenant {number}" for number in range(options.tenants)):
            names = [f"query {number} of {tenant}" for number in range(options.queries)]
            store.observe([Served(name, vector, shown, name, tenant=tenant, embedder="b") for name in names])
        command = [sys.executable, "-c", WORK, url, judge]
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
            for _ in range(workers)
        ]
        for process in processes:
            process.stdout.readline()
        SlowJudge.calls.clear()
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.close()
        for process in processes:
            process.wait()
        took = max(end for _, end in SlowJudge.calls) - min(begin for begin, _ in SlowJudge.calls)
        paid = store.judge_queue.spent().pairs - before
    if paid not in (pairs, pairs + 48):  # the examination of the judge is paid for once
        raise SystemExit(f"expected {pairs} verdicts paid for, got {paid}")
    return took


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--tenants", type=int, default=8)
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="how long the judge takes for a query")
    options = parser.parse_args()
    from pgserver import get_server

    SlowJudge.seconds = options.seconds
    server = ThreadingHTTPServer(("127.0.0.1", 0), SlowJudge)
    Thread(target=server.serve_forever, daemon=True).start()
    judge = f"http://127.0.0.1:{server.server_port}"
    with tempfile.TemporaryDirectory() as folder:
        postgres = get_server(Path(folder) / "postgres")
        try:
            print(f"{'workers':>8}{'seconds':>10}{'verdicts/s':>12}{'times one':>11}")
            first = 0.0
            for count in map(int, options.workers.split(",")):
                took = measured(postgres.get_uri(), judge, options, count)
                first = first or took
                rate = options.tenants * options.queries * DEPTH / took
                print(f"{count:>8}{took:>10.1f}{rate:>12.0f}{first / took:>11.2f}", flush=True)
        finally:
            postgres.cleanup()
    server.shutdown()


if __name__ == "__main__":
    main()
