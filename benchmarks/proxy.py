"""What the steering proxy adds to a request, beside the bare service in the same run.

    python benchmarks/proxy.py [--rate 200] [--seconds 10] [--width 1536] [--json OUT.json]

A service that answers from memory, the proxy and the caller are three processes. The caller sends requests at fixed
times, each at its time however slow the last was, in turn to the service itself and to the proxy; the same request is
sent either way, and a latency is counted from the time the request was due. `direct` is the service alone, so what a
row adds is its percentile less that of the direct row above it. The processor time of the proxy depends less on what
else the machine does. The last row is feedback, each of another user, on ten documents of another query: it is answered
once it is in a store of SQLite beside the proxy. A first turn of it, in which the store is opened, is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import numpy as np
from tttembed_store import open_store

from tttembed_rag import Evidence, Offset, Offsets

SERVICE = """
import base64, json, sys
import numpy as np, orjson, uvicorn

width = int(sys.argv[1])
vector = np.random.default_rng(0).normal(size=width).astype(np.float32)
packed = base64.b64encode(vector.astype("<f4").tobytes()).decode()
def answer(given):
    data = [{"object": "embedding", "index": 0, "embedding": given}]
    return orjson.dumps({"object": "list", "data": data, "model": "small", "usage": {"prompt_tokens": 3}})
floats, texts = answer(vector.tolist()), answer(packed)

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    said = texts if b"base64" in body else floats
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(said)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})

config = uvicorn.Config(app, port=0, log_level="warning", access_log=False, lifespan="off")
listening = config.bind_socket()
listening.listen(2048)
print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
uvicorn.Server(config).run(sockets=[listening])
"""


def started(*arguments: str) -> tuple[subprocess.Popen, str]:
    """A process and the address that it prints first."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)  # noqa: S603
    return process, process.stdout.readline().split()[0]


async def latencies(session: aiohttp.ClientSession, url: str, bodies: list[bytes], headers: dict, rate: float):
    """Milliseconds of a request with each body from when it was due, one every 1 / rate seconds."""
    taken = np.zeros(len(bodies))
    began = time.perf_counter() + 0.05

    async def one(number: int) -> None:
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        async with session.post(url, data=bodies[number], headers=headers) as answer:
            await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}")
        taken[number] = 1e3 * (time.perf_counter() - due)

    await asyncio.gather(*(one(number) for number in range(len(bodies))))
    return taken


def feedback(first: int, n: int) -> list[bytes]:
    """Bodies of feedback, each of another user on ten documents of another query."""
    said = [("thumb", 1), *[("thumb", -1)] * 9]
    return [
        json.dumps(
            {
                "query": f"question {number}",
                "documents": [
                    {"text": f"answer {place} to {number}", signal: value} for place, (signal, value) in enumerate(said)
                ],
                "source": f"user {number}",
            }
        ).encode()
        for number in range(first, first + n)
    ]


def processor_seconds(pid: int) -> float:
    """Seconds of processor that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(service: str, proxy: str, pid: int, rate: float, seconds: float) -> list[dict]:
    """The rows: for each kind of request, direct and through the proxy, in ten turns each."""
    kinds = {
        "floats, no role": ({"model": "small", "input": "a"}, {}),
        "floats, steered": ({"model": "small", "input": "a"}, {"X-TTT-Role": "query"}),
        "base64, steered": ({"model": "small", "input": "a", "encoding_format": "base64"}, {"X-TTT-Role": "query"}),
    }
    turns = 10
    n = int(rate * seconds / turns)
    rows = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for name, (fields, headers) in kinds.items():
            taken: dict[str, list] = {"direct": [], "proxy": []}
            busy = processor_seconds(pid)
            for _ in range(turns):
                for way, url in (("direct", service), ("proxy", proxy)):
                    bodies = [json.dumps(fields).encode()] * n
                    taken[way].append(await latencies(session, f"{url}/v1/embeddings", bodies, headers, rate))
            busy = 1e3 * (processor_seconds(pid) - busy) / (n * turns)
            rows += [row_of(name, way, parts, busy if way == "proxy" else None) for way, parts in taken.items()]
        url = f"{proxy}/v1/feedback"
        await latencies(session, url, feedback(0, n), {}, rate)
        busy = processor_seconds(pid)
        parts = [await latencies(session, url, feedback(turn * n, n), {}, rate) for turn in range(1, turns + 1)]
        rows.append(row_of("feedback", "store", parts, 1e3 * (processor_seconds(pid) - busy) / (n * turns)))
    return rows


def row_of(name: str, way: str, parts: list, processor: float | None) -> dict:
    """What is shown of the latencies of all turns."""
    p50, p99 = np.percentile(np.concatenate(parts), [50, 99])
    # The median of the turns: one turn in which the machine was busy elsewhere does not decide.
    calm = float(np.median([np.percentile(part, 99) for part in parts]))
    return {"request": name, "way": way, "p50": p50, "p99": p99, "p99_of_turns": calm, "processor": processor}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="per row")
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        vector = np.random.default_rng(1).normal(size=chosen.width).astype(np.float32) / 40
        offset = Offset("global", vector, 0.9, 64, Evidence(64, None, None, "ungated", "made for a benchmark"))
        url = f"sqlite:///{folder}/store.db"
        with open_store(url) as store:
            store.registry.publish(Offsets([offset], width=chosen.width), by="benchmark")
        service, address = started("-c", SERVICE, str(chosen.width))
        proxy, steered = started(
            *("-m", "tttembed_rag", "serve", address, "--model", "small", "--port", "0"),
            *("--store", url),
        )
        try:
            rows = asyncio.run(measure(address, steered, proxy.pid, chosen.rate, chosen.seconds))
        finally:
            for process in (proxy, service):
                process.send_signal(signal.SIGTERM)
                process.wait(10)
        with open_store(url) as store:
            counts = store.counts("")
    print(f"{counts.rewards:,} rewards of {counts.queries:,} queries are in the store")
    cores = len(os.sched_getaffinity(0))
    print(f"width {chosen.width}, {chosen.rate:g} requests a second, {cores} cores, ms (load {os.getloadavg()[0]:.1f})")
    print(f"{'request':<18}{'way':<8}{'p50':>8}{'p99':>8}{'p99, median turn':>18}{'added':>8}{'processor':>11}")
    direct = 0.0
    for row in rows:
        direct = row["p99_of_turns"] if row["way"] == "direct" else direct
        direct = 0.0 if row["way"] == "store" else direct
        added = "" if row["way"] == "direct" else f"{row['p99_of_turns'] - direct:>8.2f}{row['processor']:>11.2f}"
        print(
            f"{row['request']:<18}{row['way']:<8}{row['p50']:>8.2f}{row['p99']:>8.2f}"
            f"{row['p99_of_turns']:>18.2f}{added}"
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
