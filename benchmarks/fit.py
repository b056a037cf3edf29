"""The fit against the paper's recipe in PyTorch, in one run on the same threads: ratios, never bare times.

    python benchmarks/fit.py [--repeats 3] [--rows shared,private,...] [--json OUT.json]

The rival is full-batch Adam, 300 steps, learning rate .01, with autograd, batched over queries. It is given
the faster of two formulations: similarities of the normalised sum, or x·z once and v·z in every step. A row
that would take minutes runs fewer steps and is scaled up, and says so. Data are synthetic: unit vectors,
candidates around their query, rewards with a preference that all queries share.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tttembed_rag import Offsets, Rewards, fit

STEPS = 300
TARGETS = {"one vector, numpy": 5.0, "batch of 1000, numpy, each": 1.5, "one vector, Python list": 40.0}


@dataclass(frozen=True)
class Row:
    """One workload: seconds of ours and of the rival, and how much lower our objective is."""

    workload: str
    target: float
    seconds: list[float]
    rival_seconds: list[float]
    objective_difference: float | None
    note: str = ""

    @property
    def ratio(self) -> float:
        """Median rival seconds over median seconds."""
        return statistics.median(self.rival_seconds) / statistics.median(self.seconds)

    def __str__(self) -> str:
        ours = "".join(f"{f(self.seconds) * 1e3:>10.2f}" for f in (min, statistics.median, max))
        gap = "" if self.objective_difference is None else f"{self.objective_difference:>+10.1e}"
        rival_ms = statistics.median(self.rival_seconds) * 1e3
        return (
            f"{self.workload:<50}{ours}{rival_ms:>11.0f}{self.ratio:>8.0f}x{self.target:>7.0f}x{gap:>11}  {self.note}"
        )


@dataclass(frozen=True)
class Data:
    """Queries (n, d), documents (u, d), candidate rows (n, k) and rewards (n, k)."""

    queries: np.ndarray
    documents: np.ndarray
    rows: np.ndarray
    rewards: np.ndarray

    @property
    def judged(self) -> Rewards:
        """The same as rewards."""
        return Rewards.from_indexed(self.queries, self.documents, self.rows, self.rewards)

    def one(self, q: int) -> Data:
        """One of the queries, with its own candidates."""
        rows = np.arange(self.rows.shape[1])[None]
        return Data(self.queries[q : q + 1], self.documents[self.rows[q]], rows, self.rewards[q : q + 1])


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of unit length."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def make(n: int, k: int, d: int, *, unique: int | None = None, seed: int = 0) -> Data:
    """Candidates of their own for every query, or *unique* documents drawn by all."""
    rng = np.random.default_rng(seed)
    if unique is None:
        queries = unit(rng.standard_normal((n, d), dtype=np.float32))
        noise = rng.standard_normal((n, k, d), dtype=np.float32) / np.float32(np.sqrt(d))
        documents = unit(0.6 * queries[:, None] + 0.8 * noise).reshape(-1, d)
        rows = np.arange(n * k).reshape(n, k)
    else:
        documents = unit(rng.standard_normal((unique, d), dtype=np.float32))
        rows = np.array([rng.choice(unique, k, replace=False) for _ in range(n)])
        centres = np.array([documents[row].sum(axis=0) for row in rows])
        queries = unit(centres + rng.standard_normal((n, d), dtype=np.float32) / 30)
    taste = (documents @ rng.standard_normal(d, dtype=np.float32))[rows] / np.sqrt(d)
    relevance = np.array([documents[row] @ query for row, query in zip(rows, queries, strict=True)])
    score = 20 * (relevance - relevance.mean()) + 20 * taste + rng.standard_normal((n, k))
    return Data(queries, documents, rows, (1 / (1 + np.exp(-score))).astype(np.float32))


def adam(data: Data, *, private: bool, folded: bool, steps: int) -> tuple[float, float]:
    """Seconds of *steps* steps, and the mean objective after them, of the paper's recipe in PyTorch."""
    import torch

    x, r, z = (torch.from_numpy(part) for part in (data.queries, data.rewards, data.documents))
    index = torch.from_numpy(data.rows)
    teacher = torch.log_softmax(r / 0.02, 1)
    v = torch.zeros_like(x) if private else torch.zeros(x.shape[1])
    v.requires_grad_()
    optimizer = torch.optim.Adam([v], lr=0.01)
    began = time.perf_counter()
    candidates = z[index]
    base = torch.bmm(candidates, x[:, :, None])[:, :, 0]

    def objective() -> Any:
        if not folded:
            moved = torch.nn.functional.normalize(x + v, dim=1)
            similarity = torch.bmm(candidates, moved[:, :, None])[:, :, 0]
        elif private:
            length = (1 + 2 * (x * v).sum(1) + (v * v).sum(1)).sqrt()
            similarity = (base + torch.bmm(candidates, v[:, :, None])[:, :, 0]) / length[:, None]
        else:
            length = (1 + 2 * (x @ v) + v @ v).sqrt()
            similarity = (base + (z @ v)[index]) / length[:, None]
        student = torch.log_softmax(similarity / 0.05, 1)
        losses = (teacher.exp() * (teacher - student)).sum(1)
        ridge = 0.3 * (v * v).sum()
        return losses.sum() + ridge if private else losses.mean() + ridge

    for _ in range(steps):
        optimizer.zero_grad()
        objective().backward()
        optimizer.step()
    seconds = time.perf_counter() - began
    return seconds, float(objective().detach()) / (len(x) if private else 1)


def rival(data: Data, *, private: bool, repeats: int = 1, steps: int = STEPS) -> tuple[list[float], float]:
    """Seconds of the faster formulation, scaled to 300 steps, and the lowest objective reached."""
    runs = {f: [adam(data, private=private, folded=f, steps=steps) for _ in range(repeats)] for f in (False, True)}
    seconds = [[run[0] * STEPS / steps for run in of_one] for of_one in runs.values()]
    return min(seconds, key=statistics.median), min(run[1] for of_one in runs.values() for run in of_one)


def timed(repeats: int, work: Callable[[], Offsets]) -> tuple[list[float], float]:
    """Seconds of each repeat after one that warms up, and the mean certified objective."""
    offsets = work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return seconds, objective_of(offsets)


def objective_of(offsets: Offsets) -> float:
    """Mean certified objective; stops the benchmark where a fit did not converge."""
    certificates = [offset.certificate for offset in offsets.values() if offset.certificate]
    if not certificates or not all(certificate.converged for certificate in certificates):
        raise SystemExit("a fit did not converge")
    return statistics.fmean(certificate.objective for certificate in certificates)


def shared(repeats: int) -> Iterator[Row]:
    """One offset for all queries."""
    for d in (384, 1024):
        data = make(1000, 10, d)
        rewards = data.judged
        seconds, mine = timed(3 * repeats, lambda rewards=rewards: fit(rewards, scope="task", gate=False))
        theirs, reached = rival(data, private=False, repeats=repeats)
        yield Row(f"one shared offset, 1000 x 10 x {d}", 40, seconds, theirs, mine - reached)


def documents(repeats: int) -> Iterator[Row]:
    """One offset, documents shared between queries."""
    data = make(2000, 100, 1024, unique=20_000)
    rewards = data.judged
    seconds, _ = timed(repeats, lambda: fit(rewards, scope="task", gate=False))
    theirs, _ = rival(data, private=False, steps=10)
    name = "shared documents, 2000 x 100, 20,000 unique x 1024"
    yield Row(name, 100, seconds, theirs, None, "rival: 10 steps, scaled")


def private(repeats: int) -> Iterator[Row]:
    """One offset per query."""
    for n, k, target in ((1000, 10, 100), (200, 100, 20)):
        data = make(n, k, 1024)
        rewards = data.judged
        seconds, mine = timed(3 * repeats, lambda rewards=rewards: fit(rewards, scope="query", gate=False))
        theirs, reached = rival(data, private=True)
        yield Row(f"{n} private offsets, {k} x 1024", target, seconds, theirs, mine - reached)


def request(repeats: int) -> Iterator[Row]:
    """One private offset inside a request: arrays in, shifted query vector out."""
    data = make(300, 10, 1024)
    parts = [data.one(q) for q in range(300)]
    seconds, reached = [], []
    for part in parts:
        began = time.perf_counter()
        offsets = fit(part.judged, scope="query", gate=False)
        offsets.apply(part.queries[0], query_id="0")
        seconds.append(time.perf_counter() - began)
        reached.append(objective_of(offsets))
    runs = [rival(part, private=True) for part in parts[: 2 * repeats]]
    gap = statistics.fmean(reached[: len(runs)]) - statistics.fmean(run[1] for run in runs)
    p99 = float(np.percentile(seconds, 99)) * 1e3
    name = "one private offset in a request, 10 x 1024"
    yield Row(name, 300, seconds[1:], [run[0][0] for run in runs], gap, f"p99 {p99:.2f} ms")


def paper(repeats: int) -> Iterator[Row]:
    """The paper's full size: global, 15 task and all query offsets of 12,263 queries."""
    n, part = 12_263, 600
    data = make(n, 10, 1024)
    tasks = [f"task {q * 15 // n}" for q in range(n)]
    rewards = Rewards.from_indexed(data.queries, data.documents, data.rows, data.rewards, tasks)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        for scope in ("global", "task", "query"):
            fit(rewards, scope=scope, gate=False)
        seconds.append(time.perf_counter() - began)
    small = make(part, 10, 1024)
    one_each, one_shared = (rival(small, private=each, steps=30)[0][0] for each in (True, False))
    note = f"target 10 s; rival: 30 steps of {part} queries, scaled"
    theirs = [(one_each + 2 * one_shared) * n / part]
    yield Row("the paper's full size, 12,263 x 10 x 1024", 1, seconds, theirs, None, note)


def growth(largest: int) -> Iterator[tuple[int, float]]:
    """(queries, seconds) of one shared offset at width 384, vectors memory-mapped from disk."""
    for n in (size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= largest):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "documents.npy")
            stored = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n * 10, 384))
            queries, values = np.empty((n, 384), np.float32), np.empty((n, 10), np.float32)
            for start in range(0, n, 10_000):
                block = make(min(10_000, n - start), 10, 384, seed=start)
                rows = slice(start, start + len(block.queries))
                queries[rows], values[rows] = block.queries, block.rewards
                stored[start * 10 : start * 10 + len(block.documents)] = block.documents
            del stored
            mapped = np.load(path, mmap_mode="r")
            began = time.perf_counter()
            rewards = Rewards.from_indexed(queries, mapped, np.arange(n * 10).reshape(n, 10), values)
            objective_of(fit(rewards, scope="task", gate=False))
            yield n, time.perf_counter() - began


def applied() -> Iterator[tuple[str, float]]:
    """(call, microseconds) of applying an offset at width 1024."""
    data = make(1000, 10, 1024)
    offsets = fit(data.judged, scope="task", gate=False)
    one, plain = data.queries[0], data.queries[0].tolist()
    calls = (lambda: offsets.apply(one), lambda: offsets.apply(data.queries), lambda: offsets.apply(plain))
    for name, call, vectors in zip(TARGETS, calls, (1, 1000, 1), strict=True):
        seconds = []
        for _ in range(2000 // min(vectors, 20)):
            began = time.perf_counter()
            call()
            seconds.append((time.perf_counter() - began) / vectors)
        yield name, statistics.median(seconds) * 1e6


ROWS = {"shared": shared, "documents": documents, "private": private, "request": request, "paper": paper}


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", default=",".join([*ROWS, "apply", "growth"]))
    parser.add_argument("--largest", type=int, default=100_000, help="largest memory-mapped fit, in queries")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chosen, table = args.rows.split(","), []
    print(
        f"{'workload':<50}{'min ms':>10}{'median':>10}{'max':>10}{'rival':>11}{'ratio':>9}{'goal':>8}{'objective':>11}"
    )
    for row in (row for name, measure in ROWS.items() if name in chosen for row in measure(args.repeats)):
        print(row, flush=True)
        table.append({**asdict(row), "ratio": row.ratio})
    for name, micros in applied() if "apply" in chosen else ():
        print(f"apply, {name:<43}{micros:>10.2f} us, goal {TARGETS[name]:g}", flush=True)
        table.append({"workload": f"apply, {name}", "microseconds": micros})
    for n, seconds in growth(args.largest) if "growth" in chosen else ():
        print(f"memory-mapped, {n:>9,} x 10 x 384: {seconds:8.2f} s, {seconds / n * 1e6:6.1f} us a query", flush=True)
        table.append({"workload": "memory-mapped", "queries": n, "seconds": seconds})
    if args.json:
        args.json.write_text(json.dumps(table, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
