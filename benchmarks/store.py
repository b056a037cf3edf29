"""What a store takes and holds: insert rate, size, and how long reading takes as it grows.

    python benchmarks/store.py [--observations 20000] [--documents 2000] [--only sqlite] [--folder DIR]
    python benchmarks/store.py --idle 100000     a round of the worker where so many tenants have nothing new

An observation is a query with its base vector, *depth* candidates with vectors and texts, and for every second query
a reward for each candidate. A few documents are shown often and most seldom, as in real traffic: how often falls with
their rank (Zipf). They are a tenth as many as observations, unless --documents says so. SQLite and a PostgreSQL that is
started here (pip install pgserver) are measured, or a database that --url names, which must be empty.

At the end other processes read what a worker learns from, show versions and write a report, with the memory they took
at most, and one query is forgotten, which writes SQLite's file anew. A million observations take minutes and some GB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text
from tttembed_store import Candidate, Served, Store, Worker, open_store

from tttembed_rag import fit
from tttembed_rag.testing import FakeJudge, word_overlap

JUDGE = "benchmark"
# At its end a process tells the most memory that it had, in kB, as Linux counts it.
PEAK = """
import atexit, pathlib, re, sys

atexit.register(lambda: print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]))
"""
# What a worker learns from.
READ = """
from tttembed_store import open_store

with open_store(sys.argv[1]) as store:
    store.rewards(sys.argv[2], last=10_000)
"""
# One rewarded query of each tenant, which a worker has looked at.
IDLE = """
INSERT INTO tenants (name) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)
SELECT 'tenant ' || i FROM n;
INSERT INTO queries (tenant, task, name, text, seen, last_at)
SELECT id, 'default', 'query', 'what is asked?', 1, 0 FROM tenants WHERE name > '';
INSERT INTO progress (query, judge, tenant, rewards, waiting, at)
SELECT q.id, j.id, q.tenant, 1, 0, 0 FROM queries AS q CROSS JOIN judges AS j;
INSERT INTO changes (tenant, judge, rewards, marks, looked)
SELECT p.tenant, p.judge, 1, 1, 1 FROM progress AS p
"""
COMMAND = """
from tttembed_rag.cli import main

main()
"""


class Traffic:
    """Served queries without end, the same in every run."""

    def __init__(self, documents: int, depth: int, width: int) -> None:
        self.rng = np.random.default_rng(0)
        self.vectors = self.rng.standard_normal((documents, width), dtype=np.float32)
        self.texts = [f"text of document {row} " * 10 for row in range(documents)]
        self.depth, self.width, self.count = depth, width, 0

    def take(self, count: int) -> list[Served]:
        """The next *count* of them."""
        vectors = self.rng.standard_normal((count, self.width), dtype=np.float32)
        rewards = self.rng.random((count, self.depth))
        return [self._one(vector, given.tolist()) for vector, given in zip(vectors, rewards, strict=True)]

    def _one(self, vector: NDArray[np.float32], rewards: list[float]) -> Served:
        self.count += 1
        given = rewards if self.count % 2 else [None] * self.depth
        return Served(
            f"query-{self.count:08}",
            vector,
            [
                Candidate(f"document-{row:08}", self.vectors[row], self.texts[row], reward)
                for row, reward in zip(self._shown(), given, strict=True)
            ],
            query=f"what is asked in query {self.count}?",
            task=f"task {self.count % 4}",
            at=1.7e9 + self.count,
            embedder="benchmark",
        )

    def _shown(self) -> list[int]:
        """Ranks of *depth* documents, with probabilities about 1 / rank."""
        shown: dict[int, None] = {}
        while len(shown) < self.depth:
            shown |= dict.fromkeys((len(self.vectors) ** self.rng.random(2 * self.depth) - 1).astype(int).tolist())
        return list(shown)[: self.depth]


def seconds(call: Any, repeats: int = 3) -> float:
    """The median of some calls, after one."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def fill(store: Store, traffic: Traffic, count: int, batch: int) -> float:
    """Observations a second of *count* observations in batches; making them is not counted."""
    spent = 0.0
    for start in range(0, count, batch):
        served = traffic.take(min(batch, count - start))
        before = time.perf_counter()
        store.observe(served, judge=JUDGE)
        spent += time.perf_counter() - before
    return count / spent


def measure(store: Store, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each quarter of the way, the last with the rates of small batches."""
    traffic = Traffic(options.documents or options.observations // 10, options.depth, options.width)
    store.judge_queue.waiting(JUDGE, limit=1)  # from now on, what waits is counted
    for part in range(1, 5):
        rate = fill(store, traffic, options.observations // 4, 1000)
        row = {"observations": traffic.count, "rate_1000": rate}
        if part == 4:
            row |= {"rate_32": fill(store, traffic, 1600, 32), "rate_1": fill(store, traffic, 200, 1)}
        row |= {
            "waiting_ms": 1e3 * seconds(lambda: store.judge_queue.waiting(JUDGE, limit=1000)),
            "rewards_ms": 1e3 * seconds(lambda: store.rewards(JUDGE, last=10_000), 1),
            "judges_ms": 1e3 * seconds(store.judges),
            "generation_ms": 1e3 * seconds(store.generations, 50),
            "counts_ms": 1e3 * seconds(store.counts, 1),
            "bytes": store.counts().bytes / traffic.count,
        }
        yield row


def elsewhere(what: str, code: str, *arguments: str) -> dict[str, Any]:
    """Seconds and the most memory that another process took."""
    began = time.perf_counter()
    command = [sys.executable, "-c", PEAK + code, *arguments]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603
    return {"what": what, "seconds": time.perf_counter() - began, "peak_mb": int(told.splitlines()[-1]) / 1024}


def whole(store: Store, url: str, folder: Path) -> Iterator[dict[str, Any]]:
    """What people and workers ask of the whole store, and last what deletes."""
    store.registry.publish(fit(store.rewards(JUDGE, last=1000), scope="task", gate=False), by="benchmark")
    yield elsewhere("a process that asks nothing", "import tttembed_store.sql")
    yield elsewhere("rewards of the last 10,000 queries", READ, url, JUDGE)
    yield elsewhere("tttembed show", COMMAND, "show", url)
    yield elsewhere("tttembed report", COMMAND, "report", "--store", url, "--html", str(folder / "report.html"))
    yield elsewhere("tttembed store counts", COMMAND, "store", "counts", "--store", url)
    query = ("--tenant", "", "--query", "query-00000001")
    yield elsewhere("tttembed store forget, of a query", COMMAND, "store", "forget", "--store", url, *query)


def idle(store: Store, count: int) -> dict[str, Any]:
    """The milliseconds of a round of the worker where *count* tenants have nothing new and nothing waits."""
    judge = FakeJudge(word_overlap)
    worker = Worker(store, judge)
    worker.round()
    with store._database.write("forgetting") as connection:  # noqa: SLF001 (as if each had been served and looked at)
        for statement in IDLE.split(";"):
            connection.execute(text(statement), {"count": count} if ":count" in statement else {})
    return {
        "idle tenants": count,
        "round_ms": 1e3 * seconds(worker.round, 20),
        "due_ms": 1e3 * seconds(store.due.tenants, 20),
        "waiting_tenants_ms": 1e3 * seconds(lambda: store.judge_queue.tenants(judge.fingerprint), 20),
    }


def stores(options: argparse.Namespace, folder: Path) -> Iterator[tuple[Store, str]]:
    """The stores to measure, with their URLs."""
    if options.url:
        yield open_store(options.url), options.url
        return
    if options.only != "postgresql":
        url = f"sqlite:///{folder / 'store.db'}"
        yield open_store(url), url
    if options.only == "sqlite":
        return
    try:
        from pgserver import get_server
    except ImportError:
        print("PostgreSQL: not measured, pgserver is not installed")
        return
    server = get_server(folder / "postgres")
    try:
        yield open_store(server.get_uri()), server.get_uri()
    finally:
        server.cleanup()


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", type=int, default=20_000)
    parser.add_argument("--documents", type=int, help="how many there are; else a tenth of the observations")
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--url")
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    parser.add_argument("--folder", type=Path, help="where databases are made; else where temporary files are")
    parser.add_argument("--idle", type=int, metavar="TENANTS", help="measure a round with so many idle tenants instead")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = ("observations", "rate_1000", "rate_32", "rate_1", "waiting_ms", "rewards_ms", "judges_ms")
    names += ("generation_ms", "counts_ms", "bytes")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        for store, url in stores(options, Path(temporary)):
            if options.idle:
                with store:
                    row = {"store": store.name.partition(":")[0], **idle(store, options.idle)}
                print(", ".join(f"{name} {value:.4g}" if name != "store" else value for name, value in row.items()))
                rows.append(row)
                continue
            print(f"{'store':<12}" + "".join(f"{name:>14}" for name in names))
            kind = store.name.partition(":")[0]
            with store:
                for row in measure(store, options):
                    cells = (f"{row[name]:>14.4g}" if name in row else f"{'':>14}" for name in names)
                    print(f"{kind:<12.12}" + "".join(cells), flush=True)
                    rows.append({"store": kind, **row})
                for row in whole(store, url, Path(temporary)):
                    print(
                        f"{kind:<12.12}  {row['what']:<40}{row['seconds']:>8.2f} s{row['peak_mb']:>8.0f} MB", flush=True
                    )
                    rows.append({"store": kind, **row})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
