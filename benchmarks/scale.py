"""One fit over shards: here, through Ray, and as one fit of all; how long, in how much memory.

    python benchmarks/scale.py [--queries 1000000] [--documents 100000] [--shards 2] [--ways whole,local,ray]

Synthetic: unit documents of width 384 that queries share, ten judged of each query, rewards with a preference that
all queries share; written in shards to a temporary folder, removed afterwards. Every way runs in a process of its
own, which reads the files and learns one ungated offset on both cores. Times are those of reading and of learning,
for Ray on a cluster that runs already. CPU is the processor time of the process and of Ray's, GB their peak of
resident memory without pages of files, which the system may take back. From five million queries on only Ray is asked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import chain
from pathlib import Path

import numpy as np
from tttembed_store import fit_sharded

from tttembed_rag import Rewards, fit

WIDTH, DEPTH = 384, 10
# Rows that are drawn and written at a time.
GROUP = 65_536
# Queries from which on only Ray is asked, and query vectors lie in files.
MANY = 5_000_000


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of unit length."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def write(folder: Path, queries: int, documents: int, shards: int, width: int = WIDTH) -> None:
    """A folder of rewards, of which a few queries at a time are in memory, beside the documents."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    docs = unit(rng.standard_normal((documents, width), dtype=np.float32))
    ids = pa.array([f"d{row}" for row in range(documents)], pa.large_string())
    taste = docs @ rng.standard_normal(width, dtype=np.float32) / np.sqrt(width)

    def lists(rows: np.ndarray) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])

    def judged(rows: np.ndarray) -> pa.Table:
        # Ten of different tenths of the documents: none twice.
        shown = (rng.random((len(rows), DEPTH)) + np.arange(DEPTH)) * (documents / DEPTH)
        shown = shown.astype(np.int64).clip(max=documents - 1)
        vectors = rng.standard_normal((len(rows), width), dtype=np.float32) / 10
        for column in shown.T:
            vectors += docs[column]
        vectors = unit(vectors)
        near = np.stack([np.vecdot(docs[column], vectors) for column in shown.T], axis=1)
        score = 20 * (near - near.mean()) + 20 * taste[shown] + rng.standard_normal(shown.shape)
        offsets = pa.array(np.arange(0, shown.size + 1, DEPTH), pa.int64())
        columns = {
            "vector": lists(vectors),
            "doc_ids": pa.LargeListArray.from_arrays(offsets, ids.take(pa.array(shown.ravel()))),
            "rewards": pa.LargeListArray.from_arrays(offsets, pa.array((1 / (1 + np.exp(-score))).ravel())),
            "query_id": pa.array([f"q{row}" for row in rows]),
        }
        return pa.table(columns)

    def described(rows: np.ndarray) -> pa.Table:
        return pa.table({"doc_id": ids.take(pa.array(rows)), "vector": lists(docs[rows])})

    for name, count, table in (("queries", queries, judged), ("documents", documents, described)):
        (folder / name).mkdir(parents=True)
        for part, rows in enumerate(np.array_split(np.arange(count), shards)):
            some = (table(rows[begin : begin + GROUP]) for begin in range(0, len(rows), GROUP))
            first = next(some)
            path = folder / name / f"part-{part:05d}.parquet"
            with pq.ParquetWriter(path, first.schema, compression="none", use_dictionary=["query_id"]) as file:
                for group in chain([first], some):
                    file.write_table(group)


def below() -> list[int]:
    """Process ids below this one."""
    parents = dict[int, int]()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it ended meanwhile
            if entry.name.isdigit():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])

    def ours(pid: int) -> bool:
        return pid in parents and (parents[pid] == os.getpid() or ours(parents[pid]))

    return [pid for pid in parents if ours(pid)]


def resident(pid: int) -> int:
    """Bytes of memory of a process that are no pages of files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))


def processor(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def learn(folder: Path, way: str) -> dict[str, object]:
    """One ungated offset of all rewards, one way; seconds and bytes."""
    peak, spent, done = [0], dict[int, float](), threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            seen = 0
            for pid in (os.getpid(), *below()):
                try:
                    seen += resident(pid)
                    spent[pid] = processor(pid)
                except OSError:  # it ended
                    continue
            peak[0] = max(peak[0], seen)

    watcher = threading.Thread(target=watch)
    began = read = time.perf_counter()
    if way == "ray":
        import ray

        ray.init("local", log_to_driver=False, num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        began = time.perf_counter()
    before = sum(map(processor, (os.getpid(), *below())))
    watcher.start()
    if way == "whole":
        rewards = Rewards.from_parquet(folder)
        read = time.perf_counter()
        offset = fit(rewards, scope="global", gate=False)["global"]
    else:
        offset = fit_sharded(folder, scope="global", gate=False, engine=way)["global"]
        read = began
    ended = time.perf_counter()
    done.set()
    watcher.join()
    certificate = offset.certificate
    if certificate is None or not certificate.converged:
        raise SystemExit(f"{way}: the fit did not converge")
    return {
        "way": way,
        "read": read - began,
        "all": ended - began,
        "cpu": sum(spent.values()) - before,
        "bytes": peak[0],
        "evaluations": certificate.evaluations,
        "gradient": certificate.gradient_norm,
        "objective": certificate.objective,
        "norm": float(np.linalg.norm(offset.vector)),
    }


def measure(options: argparse.Namespace) -> None:
    """A line for each way."""
    with tempfile.TemporaryDirectory(dir=options.within) as place:
        folder = Path(place) / "rewards"
        began = time.perf_counter()
        write(folder, options.queries, options.documents, options.shards)
        size = sum(file.stat().st_size for file in folder.rglob("*.parquet")) / 1e9
        documents = f"{DEPTH} of {options.documents:,} documents x {WIDTH}"
        print(f"{options.queries:,} queries x {documents}, {options.shards} shards")
        print(f"{size:.1f} GB of Parquet, written in {time.perf_counter() - began:.0f} s; {os.cpu_count()} cores\n")
        print(
            f"{'way':<8}{'read s':>8}{'all s':>8}{'CPU s':>8}{'GB':>7}{'evaluations':>13}{'objective':>14}{'norm':>9}"
            f"{'gradient':>10}"
        )
        for way in [way for _ in range(options.repeats) for way in options.ways.split(",")]:
            command = [sys.executable, __file__, "--one", way, "--within", str(folder)]
            # The whole and the local way have both cores by threads, Ray by two actors.
            environment = os.environ | {"OMP_NUM_THREADS": "1" if way == "ray" else str(os.cpu_count())}
            found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)  # noqa: S603 (ourselves)
            row = json.loads(found.stdout.splitlines()[-1])
            read = f"{row['read']:.1f}" if row["read"] else ""
            used = f"{row['all']:>8.1f}{row['cpu']:>8.1f}{row['bytes'] / 1e9:>7.1f}"
            reached = f"{row['evaluations']:>13}{row['objective']:>14.9f}{row['norm']:>9.5f}{row['gradient']:>10.1e}"
            print(f"{way:<8}{read:>8}{used}{reached}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--documents", type=int, help="a tenth of the queries, if not given")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ways", help="whole,local,ray, if not given; ray from five million queries on")
    parser.add_argument("--within", type=Path, help="where the temporary folder is made")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    many = options.queries >= MANY
    options.documents = options.documents or options.queries // 10
    options.ways = options.ways or ("ray" if many else "whole,local,ray")
    if options.one:
        print(json.dumps(learn(options.within, options.one)))
    else:
        measure(options)


if __name__ == "__main__":
    main()
