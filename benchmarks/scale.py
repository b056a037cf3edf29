"""One fit over shards: here, through Ray, and as one fit of all; how long, in how much memory; with actors killed.

    python benchmarks/scale.py [--queries 1000000] [--documents 100000] [--shards 4] [--ways whole,local,ray]
    python benchmarks/scale.py --kills 50

Synthetic: unit documents of width 384 that queries share, ten judged of each query, rewards with a preference that
all queries share; written in shards to a temporary folder, removed afterwards. Every way runs in a process of its
own, which reads the files and learns one ungated offset on both cores. Times are those of reading and of learning,
for Ray on a cluster that runs already; memory is the peak of resident memory of the process and of its actors, without
pages of files, which the system may take back. With --kills small fits run through Ray while an actor is killed at a
random instant; the offsets must have the bits of a fit without kills.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from tttembed_rag import Rewards, fit
from tttembed_rag.scale import fit_sharded

WIDTH, DEPTH = 384, 10
SHARED = ("queries", "documents")


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of unit length."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def write(folder: Path, queries: int, documents: int, shards: int, width: int = WIDTH) -> None:
    """A folder of rewards, of which one shard at a time is in memory, beside the documents."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    docs = unit(rng.standard_normal((documents, width), dtype=np.float32))
    ids = pa.array([f"d{row}" for row in range(documents)], pa.large_string())
    taste = docs @ rng.standard_normal(width, dtype=np.float32) / np.sqrt(width)
    for table in SHARED:
        (folder / table).mkdir(parents=True)

    def save(table: str, part: int, columns: dict[str, pa.Array]) -> None:
        path = folder / table / f"part-{part:05d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=65_536, compression="none", use_dictionary=["query_id"])

    def lists(rows: np.ndarray) -> pa.Array:
        return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])

    for part, rows in enumerate(np.array_split(np.arange(documents), shards)):
        save("documents", part, {"doc_id": ids.take(pa.array(rows)), "vector": lists(docs[rows])})
    for part, rows in enumerate(np.array_split(np.arange(queries), shards)):
        vectors = np.empty((len(rows), width), np.float32)
        # Ten of different tenths of the documents: none twice.
        judged = (rng.random((len(rows), DEPTH)) + np.arange(DEPTH)) * (documents / DEPTH)
        judged = judged.astype(np.int64).clip(max=documents - 1)
        near = np.empty(judged.shape)
        for block in np.array_split(np.arange(len(rows)), max(1, len(rows) // 20_000)):
            theirs = docs[judged[block]]
            noise = rng.standard_normal((len(block), width), dtype=np.float32)
            vectors[block] = unit(theirs.sum(axis=1) + noise / 10)
            near[block] = np.matvec(theirs, vectors[block])
        score = 20 * (near - near.mean()) + 20 * taste[judged] + rng.standard_normal(judged.shape)
        offsets = pa.array(np.arange(0, judged.size + 1, DEPTH), pa.int64())
        columns = {
            "vector": lists(vectors),
            "doc_ids": pa.LargeListArray.from_arrays(offsets, ids.take(pa.array(judged.ravel()))),
            "rewards": pa.LargeListArray.from_arrays(offsets, pa.array((1 / (1 + np.exp(-score))).ravel())),
            "query_id": pa.array([f"q{row}" for row in rows]),
        }
        save("queries", part, columns)


def holders() -> list[int]:
    """Process ids of Ray's actors below this process."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"ray::_Holder" in (entry / "cmdline").read_bytes():
                found += [int(entry.name)] if below(int(entry.name)) else []
        except OSError:  # it ended meanwhile
            continue
    return found


def below(pid: int) -> bool:
    """Whether a process descends from this one."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid > 1


def resident() -> int:
    """Bytes of memory of this process and its actors that is no page of a file."""
    total = 0
    for pid in (os.getpid(), *holders()):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return total


def learn(folder: Path, way: str, *, scratch: bool) -> dict[str, object]:
    """One ungated offset of all rewards, one way; seconds and bytes."""
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    began = read = time.perf_counter()
    if way == "ray":
        import ray

        ray.init(log_to_driver=False, num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        began = time.perf_counter()
    watcher.start()
    if way == "whole":
        rewards = Rewards.from_parquet(folder)
        read = time.perf_counter()
        offset = fit(rewards, scope="global", gate=False, device="cpu")["global"]
    else:
        offset = fit_sharded(folder, scope="global", gate=False, engine=way, scratch=scratch)["global"]
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
        "bytes": peak[0],
        "evaluations": certificate.evaluations,
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
        print(f"{'way':<8}{'read s':>8}{'all s':>8}{'GB':>7}{'evaluations':>13}{'objective':>14}{'norm':>9}")
        for way in [way for _ in range(options.repeats) for way in options.ways.split(",")]:
            command = [sys.executable, __file__, "--one", way, "--within", str(folder)]
            # The whole and the local way have both cores by threads, Ray by two actors.
            environment = os.environ | {"OMP_NUM_THREADS": "1" if way == "ray" else str(os.cpu_count())}
            command += ["--scratch"] if options.scratch else []
            found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)  # noqa: S603 (ourselves)
            row = json.loads(found.stdout.splitlines()[-1])
            read = f"{row['read']:.1f}" if row["read"] else ""
            print(
                f"{way:<8}{read:>8}{row['all']:>8.1f}{row['bytes'] / 1e9:>7.1f}{row['evaluations']:>13}"
                f"{row['objective']:>14.9f}{row['norm']:>9.5f}",
                flush=True,
            )


def kills(trials: int) -> None:
    """So many fits, an actor of each killed at a random instant."""
    import ray

    ray.init(log_to_driver=False, num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "rewards"
        write(folder, 4000, 1000, 4, 64)
        expected = fit_sharded(folder, scope="global", gate=False)["global"].vector.tobytes()
        same = hit = 0
        for seed in range(trials):
            draw = random.Random(seed)
            ended = threading.Event()

            def kill(draw: random.Random = draw, ended: threading.Event = ended) -> None:
                nonlocal hit
                while not (found := sorted(holders())) and not ended.is_set():
                    time.sleep(0.005)
                if not ended.wait(draw.uniform(0, 2.0)) and found:
                    os.kill(draw.choice(found), signal.SIGKILL)
                    hit += 1

            killer = threading.Thread(target=kill)
            killer.start()
            got = fit_sharded(folder, scope="global", gate=False, engine="ray")["global"].vector.tobytes()
            ended.set()
            killer.join()
            same += got == expected
        print(f"{same} of {trials} fits gave the bits of a fit without kills; in {hit} of them an actor was killed")
    ray.shutdown()
    if same < trials:
        raise SystemExit(1)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ways", default="whole,local,ray")
    parser.add_argument("--scratch", action="store_true", help="query vectors of shards in temporary files")
    parser.add_argument("--within", type=Path, help="where the temporary folder is made")
    parser.add_argument("--kills", type=int)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(learn(options.within, options.one, scratch=options.scratch)))
    elif options.kills:
        kills(options.kills)
    else:
        measure(options)


if __name__ == "__main__":
    main()
