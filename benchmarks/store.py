"""What a store takes and holds: insert rate, size, and how long reading takes as it grows.

    python benchmarks/store.py [--observations 20000] [--depth 10] [--width 384] [--url URL] [--only sqlite] [--normal]

An observation is a query with its base vector, *depth* candidates with vectors and texts, and for every second query
a reward for each candidate. Documents are as many as observations, so that each is shown about *depth* times. SQLite
and a PostgreSQL that is started here (pip install pgserver) are measured, or a database that --url names, which must
be empty. --normal sets SQLite's synchronous=NORMAL, which a power cut may take the last transactions from.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tttembed_rag import fit
from tttembed_rag.stores import Candidate, Served, Store, open_store
from tttembed_rag.stores.database import Database

JUDGE = "benchmark"
BATCHES = (1000, 32, 1)


class Traffic:
    """Served queries without end, the same in every run."""

    def __init__(self, documents: int, depth: int, width: int) -> None:
        self.rng = np.random.default_rng(0)
        self.vectors = self.rng.standard_normal((documents, width), dtype=np.float32)
        self.depth, self.width, self.count = depth, width, 0

    def take(self, count: int) -> list[Served]:
        """The next *count* of them."""
        return [self._one() for _ in range(count)]

    def _one(self) -> Served:
        self.count += 1
        shown = self.rng.choice(len(self.vectors), self.depth, replace=False)
        rewards = self.rng.random(self.depth) if self.count % 2 else [None] * self.depth
        return Served(
            f"query-{self.count:08}",
            self.rng.standard_normal(self.width, dtype=np.float32),
            [
                Candidate(f"document-{row:08}", self.vectors[row], f"text of document {row} " * 10, reward)
                for row, reward in zip(shown.tolist(), rewards, strict=True)
            ],
            query=f"what is asked in query {self.count}?",
            task=f"task {self.count % 4}",
            at=1.7e9 + self.count,
            embedder="benchmark",
        )


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
    traffic = Traffic(options.observations, options.depth, options.width)
    store.waiting(JUDGE, limit=1)  # from now on, what waits is counted
    for part in range(1, 5):
        rate = fill(store, traffic, options.observations // 4, BATCHES[0])
        row = {"store": store.name.partition(":")[0], "observations": traffic.count, "rate_1000": rate}
        if part == 4:
            row |= {"rate_32": fill(store, traffic, 1600, 32), "rate_1": fill(store, traffic, 200, 1)}
            store.publish(fit(store.rewards(JUDGE, last=1000), scope="task", gate=False), by="benchmark")
        row |= {
            "waiting_ms": 1e3 * seconds(lambda: store.waiting(JUDGE, limit=1000)),
            "rewards_ms": 1e3 * seconds(lambda: store.rewards(JUDGE, last=10_000), 1),
            "judges_ms": 1e3 * seconds(store.judges),
            "generation_ms": 1e3 * seconds(store.generation, 50),
            "counts_ms": 1e3 * seconds(store.counts, 1),
            "bytes": store.counts().bytes / traffic.count,
        }
        yield row


def stores(options: argparse.Namespace, folder: Path) -> Iterator[Store]:
    """The stores to measure."""
    if options.url:
        yield open_store(options.url)
        return
    url = f"sqlite:///{folder / 'store.db'}"
    with open_store(url):
        pass
    yield Store(Database(url, synchronous="NORMAL" if options.normal else "FULL"))
    try:
        from pgserver import get_server
    except ImportError:
        print("PostgreSQL: not measured, pgserver is not installed")
        return
    server = get_server(folder / "postgres")
    try:
        yield open_store(server.get_uri())
    finally:
        server.cleanup()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", type=int, default=20_000)
    parser.add_argument("--depth", type=int, default=10)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--url")
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    parser.add_argument("--normal", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = ("observations", "rate_1000", "rate_32", "rate_1", "waiting_ms", "rewards_ms", "judges_ms")
    names += ("generation_ms", "counts_ms", "bytes")
    print(f"{'store':<12}" + "".join(f"{name:>14}" for name in names))
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for store in stores(options, Path(temporary)):
            with store:
                if options.only and not store.name.startswith(options.only):
                    continue
                for row in measure(store, options):
                    cells = (f"{row[name]:>14.4g}" if name in row else f"{'':>14}" for name in names)
                    print(f"{row['store']:<12.12}" + "".join(cells), flush=True)
                    rows.append(row)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
