"""What serving and capture cost a request, and how soon a published version is served.

    python benchmarks/serve.py [--rows apply,capture,lag,...] [--seconds 5] [--postgres URL] [--json OUT.json]

Applying is measured at width 1024 in 64 threads that wait for something else between two queries, as threads of a
server do, while another thread wakes every 10 ms: to do nothing and to publish, ten times in turn; the ratio is the
median of ten. `following` is the same with a store that another process publishes to: there the reading of each version
is measured too. Stores are SQLite in a temporary folder, and PostgreSQL: a server of pgserver's, or any by URL.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import numpy as np

from tttembed_rag import Evidence, LiveOffsets, Offset, Offsets, telemetry
from tttembed_rag.following import follow
from tttembed_rag.serving import Steering
from tttembed_rag.storelog import Known, StoreLog
from tttembed_rag.stores import open_store

WIDTH, THREADS, PAUSE, EVERY = 1024, 64, 0.05, 0.01
DRAW = np.random.default_rng(0)
BASE = DRAW.normal(size=WIDTH).tolist()
VECTORS = DRAW.normal(size=(12, WIDTH)) / 30
EVIDENCE = Evidence(64, None, None, "ungated", "made for a benchmark")
DOCUMENTS = [f"document {number}: " + "a passage of some length " * 8 for number in range(10)]

# Publishes to a store until its input ends: one version for each line, answered by its number and the time.
PUBLISHER = """
import sys, time
import numpy as np
from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.stores import open_store

draw, evidence = np.random.default_rng(1), Evidence(64, None, None, "ungated", "made for a benchmark")
with open_store(sys.argv[1]) as store:
    for line in sys.stdin:
        vector = draw.normal(size=int(line)).astype(np.float32) / 30
        version = store.publish(Offsets([Offset("global", vector, 0.9, 64, evidence)], width=int(line)), by="benchmark")
        print(version.number, time.time(), flush=True)
"""


@dataclass(frozen=True)
class Row:
    """One measured value, what it should be at most, and what else there is to know."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    note: str = ""
    details: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"{self.goal:g}"
        return f"{self.name:<52}{self.value:>10.3g} {self.unit:<10}{goal:>6}  {self.note}"


def offsets_of(number: int) -> Offsets:
    """Offsets that nobody used before: a task's and a global one."""
    shared = Offset("global", VECTORS[number % 12], 0.9, 64, EVIDENCE)
    own = Offset("task", VECTORS[(number + 1) % 12], 0.9, 64, EVIDENCE, task="billing")
    return Offsets([shared, own], width=WIDTH)


def served(steering: Steering, seconds: float) -> np.ndarray:
    """Microseconds of every query in 64 threads, each of which waits 50 ms between two."""
    taken: list[list[float]] = [[] for _ in range(THREADS)]
    until = time.perf_counter() + seconds

    def serve(mine: list[float], first: float) -> None:
        time.sleep(first)
        while (began := time.perf_counter()) < until:
            steering.apply(BASE, "query")
            mine.append(time.perf_counter() - began)
            time.sleep(PAUSE)

    threads = [Thread(target=serve, args=(mine, PAUSE * n / THREADS)) for n, mine in enumerate(taken)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 1e6 * np.concatenate(taken)


@contextmanager
def every_10_ms(publish: Callable[[int], object]) -> Iterator[list[int]]:
    """Calls *publish* in a thread, beside whatever runs inside; gives the calls so far."""
    calls, done = [0], Event()

    def run() -> None:
        began = time.perf_counter()
        while not done.wait(max(0.0, began + EVERY * (calls[0] + 1) - time.perf_counter())):
            publish(calls[0])
            calls[0] += 1

    thread = Thread(target=run)
    thread.start()
    try:
        yield calls
    finally:
        done.set()
        thread.join()


def compared(name: str, steering: Steering, publish: Callable[[int], object], seconds: float) -> Iterator[Row]:
    """Latency with and without publications, in turn."""
    quiet, busy, calls = [], [], 0
    for _ in range(10):
        with every_10_ms(lambda _: None):
            quiet.append(served(steering, seconds / 10))
        with every_10_ms(publish) as counted:
            busy.append(served(steering, seconds / 10))
        calls += counted[0]
    for q in (50, 99):
        pairs = [(np.percentile(alone, q), np.percentile(beside, q)) for alone, beside in zip(quiet, busy, strict=True)]
        ratio = statistics.median(float(beside / alone) for alone, beside in pairs)
        alone, beside = (float(np.median(some)) for some in zip(*pairs, strict=True))
        note = f"{beside:.0f} us against {alone:.0f} us; {calls} publications in {seconds:g} s"
        values = {"quiet_us": alone, "publishing_us": beside}
        yield Row(f"{name}, p{q} while publishing", ratio, "times", 1.1, note, values)


def apply(seconds: float, stores: dict[str, str]) -> Iterator[Row]:  # noqa: ARG001 - every row is asked alike
    """Offsets of this process, replaced while they are served."""
    live, made = LiveOffsets(offsets_of(0)), [offsets_of(number) for number in range(int(2 * seconds / EVERY))]
    yield from compared("apply", Steering(live, "billing"), lambda _: live.publish(made.pop()), seconds)


def following(seconds: float, stores: dict[str, str]) -> Iterator[Row]:
    """Offsets that follow a store, which another process publishes to."""
    for kind, url in stores.items():
        with publisher(url) as publish:
            publish()
            live = follow(url, every=EVERY)
            yield from compared(f"following {kind}", Steering(live), lambda _, publish=publish: publish(), seconds)
            live.close()


def counting(seconds: float, stores: dict[str, str]) -> Iterator[Row]:  # noqa: ARG001
    """What telemetry adds to a query: which offset it finds is looked up once more, and counted."""
    offsets, calls = offsets_of(0), 100_000

    def count(_: int) -> None:
        telemetry.applied.add(("billing", offsets.find("billing") is not None))

    yield Row("counting a query", timed(count, calls), "us", 1.0)
    yield Row("apply, one thread", timed(lambda _: Steering(offsets, "billing").apply(BASE, "q"), calls // 10), "us")


def timed(call: Callable[[int], object], calls: int) -> float:
    """Microseconds of one of *calls*, the best of three."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        for number in range(calls):
            call(number)
        best = min(best, (time.perf_counter() - began) / calls)
    return 1e6 * best


def capture(seconds: float, stores: dict[str, str]) -> Iterator[Row]:
    """What observing ten documents costs a request, while they are being written."""
    for kind, url in stores.items():
        taken, until = [], time.perf_counter() + seconds / 2
        with StoreLog(url) as log:
            log.observe("first", DOCUMENTS)
            log.flush()
            while time.perf_counter() < until:
                query = f"query {len(taken)}"
                began = time.perf_counter()
                log.observe(query, DOCUMENTS, task="billing")
                taken.append(time.perf_counter() - began)
                time.sleep(0.001)
            log.flush()
            counts = log.counts
        p50, p99 = (1e6 * float(np.percentile(taken, q)) for q in (50, 99))
        note = f"p99 {p99:.0f} us; {counts.written} written, {counts.dropped} dropped, {len(taken)} measured"
        yield Row(f"observe() of 10 documents, {kind}", p50, "us", 20.0, note, {"p99_us": p99})


def writing(seconds: float, stores: dict[str, str]) -> Iterator[Row]:
    """Served queries that one log writes in a second, with all vectors at hand."""
    documents = DRAW.normal(size=(2000, WIDTH)).astype(np.float32)
    for kind, url in stores.items():
        with StoreLog(url, "judge", embedder="benchmark", tenant="writing", capacity=1000) as log:
            log.observe("first", ["document"])
            log.flush()
            began, number = time.perf_counter(), 0
            while time.perf_counter() - began < seconds / 2:
                if log.counts.queued > 900:
                    time.sleep(0.01)
                    continue
                rows = DRAW.integers(len(documents), size=10)
                known = Known(documents[rows[0]], list(documents[rows]), doc_ids=[f"d{row}" for row in rows])
                texts = [f"document {row}" for row in rows]
                log.record(f"query {number}", texts, DRAW.uniform(size=10).tolist(), known=known)
                number += 1
            log.flush()
            taken = time.perf_counter() - began
        yield Row(f"queries written in a second, {kind}", number / taken, "queries/s", None, "10 rewards each")


def lag(seconds: float, stores: dict[str, str]) -> Iterator[Row]:
    """From a publication in another process until it is served here."""
    for kind, url in stores.items():
        with publisher(url) as publish:
            publish()
            for every in (0.05, 2.0):
                live, lags = follow(url, every=every), []
                steering = Steering(live)
                for _ in range(max(5, int(seconds / every / 2)) if every < 1 else 5):
                    time.sleep(float(DRAW.uniform(0, every)))
                    number, at = publish()
                    while (live.status.version or 0) < number:
                        time.sleep(0.0005)
                    steering.apply(BASE, "q")
                    lags.append(1e3 * (time.time() - at))
                note = f"max {max(lags):.0f} ms of {len(lags)}, looking every {every:g} s"
                goal = 1e3 * every + 100
                yield Row(f"refresh lag, {kind}", statistics.median(lags), "ms", goal, note, {"max_ms": max(lags)})
                live.close()
        with open_store(url) as store:
            yield Row(f"one look at the store, {kind}", timed(lambda _, s=store: s.generation(), 300), "us")


@contextmanager
def publisher(url: str) -> Iterator[Callable[[], tuple[int, float]]]:
    """A function that lets another process publish, and gives the version's number and time."""
    command = [sys.executable, "-c", PUBLISHER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603

        def publish() -> tuple[int, float]:
            process.stdin.write(f"{WIDTH}\n")
            process.stdin.flush()
            number, at = process.stdout.readline().split()
            return int(number), float(at)

        yield publish
        process.stdin.close()


@contextmanager
def opened(postgres: str | None) -> Iterator[dict[str, str]]:
    """URLs of the stores to measure: SQLite, and PostgreSQL where there is one."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        urls = {"SQLite": f"sqlite:///{folder}/ttt.db"}
        if postgres:
            urls["PostgreSQL"] = postgres
        elif find_spec("pgserver"):
            import pgserver

            server = stack.enter_context(pgserver.get_server(f"{folder}/postgres", cleanup_mode="stop"))
            name = f"serve_{uuid4().hex}"
            server.psql(f"CREATE DATABASE {name};")
            urls["PostgreSQL"] = server.get_uri(name).replace("postgresql://", "postgresql+psycopg://", 1)
        else:
            print("PostgreSQL: not measured, pgserver is not installed and --postgres is not given")
        yield urls


ROWS = {
    "apply": apply,
    "following": following,
    "counting": counting,
    "capture": capture,
    "writing": writing,
    "lag": lag,
}


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement, about")
    parser.add_argument("--postgres", help="URL of an empty PostgreSQL database; else a server of pgserver")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chosen, table = args.rows.split(","), []
    print(f"{'measured':<52}{'value':>10} {'':<10}{'goal':>6}")
    with opened(args.postgres) as stores:
        for row in (row for name, measure in ROWS.items() if name in chosen for row in measure(args.seconds, stores)):
            print(row, flush=True)
            table.append(asdict(row))
    if args.json:
        args.json.write_text(json.dumps(table, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
