"""The fit against the paper's recipe in PyTorch, in one run on the same threads: ratios, never bare times.

    python benchmarks/fit.py [--repeats 3] [--rows shared,private,...] [--json OUT.json] [--plot OUT.png]

The rival is full-batch Adam, 300 steps, learning rate .01, with autograd, batched over queries; it is
given the better of two formulations (similarities of the normalised sum, or x·z computed once and v·z per
step). Where a row would take minutes it runs fewer steps and is scaled up; the row says so.
Data are synthetic: unit vectors, candidates around their query, rewards with a shared preference.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tttembed_rag import Offset, Rewards, fit

PAPER = dict(ridge=0.3, teacher=0.02, student=0.05, steps=300, rate=0.01)


@dataclass(frozen=True)
class Row:
    """One workload: seconds of ours and of the rival, their ratio, and the objectives reached."""

    workload: str
    target: float | None
    seconds: tuple[float, ...]
    rival_seconds: tuple[float, ...]
    objective: float
    rival_objective: float
    note: str = ""

    @property
    def ratio(self) -> float:
        """Median rival seconds over median seconds."""
        return statistics.median(self.rival_seconds) / statistics.median(self.seconds)

    def __str__(self) -> str:
        low, mid, high = min(self.seconds), statistics.median(self.seconds), max(self.seconds)
        goal = f"{self.target:g}x" if self.target else "-"
        return (
            f"{self.workload:<44}{low * 1e3:>10.2f}{mid * 1e3:>10.2f}{high * 1e3:>10.2f}"
            f"{statistics.median(self.rival_seconds) * 1e3:>12.0f}{self.ratio:>8.0f}x{goal:>7}"
            f"{self.objective - self.rival_objective:>+11.1e}  {self.note}"
        )


def make(n: int, k: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit queries (n, d), unit candidates (n, k, d) around them, rewards (n, k) with a shared preference."""
    rng = np.random.default_rng(seed)
    queries = unit(rng.standard_normal((n, d), dtype=np.float32))
    noise = rng.standard_normal((n, k, d), dtype=np.float32) / np.float32(np.sqrt(d))
    candidates = unit(0.6 * queries[:, None] + 0.8 * noise)
    return queries, candidates, judged(rng, queries, candidates)


def make_shared(n: int, k: int, u: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Queries (n, d), unique documents (u, d), candidate rows (n, k) and rewards (n, k)."""
    rng = np.random.default_rng(0)
    documents = unit(rng.standard_normal((u, d), dtype=np.float32))
    rows = np.array([rng.choice(u, k, replace=False) for _ in range(n)])
    queries = unit(np.array([documents[row].sum(axis=0) for row in rows]) + rng.standard_normal((n, d), dtype=np.float32) / 30)
    rewards = np.array([judged(rng, query[None], documents[row][None])[0] for query, row in zip(queries, rows, strict=True)])
    return queries, documents, rows, rewards


def judged(rng: np.random.Generator, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """Rewards in [0, 1]: relevance, a preference all queries share, and noise."""
    d = queries.shape[1]
    taste = np.random.default_rng(7).standard_normal(d).astype(np.float32) / np.float32(np.sqrt(d))
    relevance = np.matmul(candidates, queries[:, :, None])[..., 0]
    score = 20 * (relevance - relevance.mean()) + 20 * candidates @ taste + rng.standard_normal(relevance.shape)
    return (1 / (1 + np.exp(-score))).astype(np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of unit length."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def adam(queries, documents, rewards, *, private: bool, rows=None, steps: int, folded: bool) -> tuple[float, float]:  # noqa: ANN001
    """Seconds and final mean objective of the paper's recipe in PyTorch."""
    import torch

    x, r = torch.from_numpy(queries), torch.from_numpy(rewards)
    z = torch.from_numpy(documents)
    n, k = r.shape
    flat = z.reshape(-1, z.shape[-1])
    index = torch.from_numpy(rows) if rows is not None else None
    teacher = torch.log_softmax(r / PAPER["teacher"], 1)
    v = torch.zeros_like(x) if private else torch.zeros(x.shape[1])
    v.requires_grad_()
    optimizer = torch.optim.Adam([v], lr=PAPER["rate"])
    loss = torch.zeros(())
    began = time.perf_counter()
    block = z if rows is None else z[index]
    base = torch.bmm(block, x[:, :, None])[:, :, 0] if folded else None
    for _ in range(steps + 1):  # the last pass only evaluates
        optimizer.zero_grad()
        if not folded:
            moved = torch.nn.functional.normalize(x + v, dim=1)
            similarity = torch.bmm(block, moved[:, :, None])[:, :, 0]
        else:
            if private:
                length = (1 + 2 * (x * v).sum(1) + (v * v).sum(1)).sqrt()
                product = torch.bmm(block, v[:, :, None])[:, :, 0]
            else:
                length = (1 + 2 * (x @ v) + v @ v).sqrt()
                product = (flat @ v).reshape(n, k) if index is None else (flat @ v)[index]
            similarity = (base + product) / length[:, None]
        student = torch.log_softmax(similarity / PAPER["student"], 1)
        losses = (teacher.exp() * (teacher - student)).sum(1)
        ridge = PAPER["ridge"] * (v * v)
        loss = losses.sum() + ridge.sum() if private else losses.mean() + ridge.sum()
        if _ == steps:
            break
        loss.backward()
        optimizer.step()
    return time.perf_counter() - began, float(loss) / (n if private else 1)


def rival(repeats: int, *args, private: bool, rows=None, steps: int = 300) -> tuple[tuple[float, ...], float]:  # noqa: ANN002, ANN001
    """Seconds of the faster formulation, scaled to 300 steps, and the objective after 300 (or *steps*) steps."""
    best: list[tuple[float, ...]] = []
    objective = float("inf")
    for folded in (False, True):
        runs = [adam(*args, private=private, rows=rows, steps=steps, folded=folded) for _ in range(repeats)]
        best.append(tuple(seconds * PAPER["steps"] / steps for seconds, _ in runs))
        objective = min(objective, *(value for _, value in runs))
    return min(best, key=statistics.median), objective


def timed(repeats: int, work: Callable[[], object]) -> tuple[tuple[float, ...], object]:
    """Seconds of each repeat after one that warms up, and the last result."""
    result = work()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - began)
    return tuple(seconds), result


def objective_of(offsets: object) -> float:
    """Mean certified objective; a fit that did not converge is a failure of the benchmark."""
    certificates = [offset.certificate for offset in offsets.values() if isinstance(offset, Offset)]  # type: ignore[attr-defined]
    assert all(certificate.converged for certificate in certificates), "a fit did not converge"
    return statistics.fmean(certificate.objective for certificate in certificates)


def shared(repeats: int) -> Iterator[Row]:
    """One offset for all queries."""
    for d in (384, 1024):
        data = make(1000, 10, d)
        rewards = Rewards.from_arrays(*data)
        seconds, offsets = timed(3 * repeats, lambda rewards=rewards: fit(rewards, scope="task", gate=False))
        rival_seconds, rival_objective = rival(repeats, *data, private=False)
        yield Row(f"one shared offset, 1000 x 10 x {d}", 40, seconds, rival_seconds, objective_of(offsets), rival_objective)


def documents(repeats: int) -> Iterator[Row]:
    """One offset, documents shared between queries."""
    queries, docs, rows, values = make_shared(2000, 100, 20_000, 1024)
    rewards = Rewards.from_indexed(queries, docs, rows, values)
    seconds, offsets = timed(repeats, lambda: fit(rewards, scope="task", gate=False))
    steps = 10
    rival_seconds, _ = rival(1, queries, docs, values, private=False, rows=rows, steps=steps)
    mine = objective_of(offsets)
    yield Row(
        "shared documents, 2000 x 100, 20,000 unique, 1024", 100, seconds, rival_seconds, mine, mine,
        f"rival: {steps} steps, scaled",
    )


def private(repeats: int) -> Iterator[Row]:
    """One offset per query."""
    for n, k, target in ((1000, 10, 100), (200, 100, 20)):
        data = make(n, k, 1024)
        rewards = Rewards.from_arrays(*data)
        seconds, offsets = timed(3 * repeats, lambda rewards=rewards: fit(rewards, scope="query", gate=False))
        rival_seconds, rival_objective = rival(1, *data, private=True)
        yield Row(f"{n} private offsets, k {k}, 1024", target, seconds, rival_seconds, objective_of(offsets), rival_objective)


def request(repeats: int) -> Iterator[Row]:
    """One private offset inside a request: arrays in, shifted query vector out."""
    queries, candidates, values = make(300, 10, 1024)

    def serve(q: int) -> object:
        rewards = Rewards.from_arrays(queries[q : q + 1], candidates[q : q + 1], values[q : q + 1])
        offsets = fit(rewards, scope="query", gate=False)
        offsets.apply(queries[q], query_id="0")
        return offsets

    seconds, mine = [], []
    serve(0)
    for q in range(300):
        began = time.perf_counter()
        offsets = serve(q)
        seconds.append(time.perf_counter() - began)
        mine.append(objective_of(offsets))
    rival_runs = [rival(1, queries[q : q + 1], candidates[q : q + 1], values[q : q + 1], private=True) for q in range(3 * repeats)]
    p99 = float(np.percentile(seconds, 99)) * 1e3
    yield Row(
        "one private offset in a request, k 10, 1024", 300, tuple(seconds), tuple(run[0][0] for run in rival_runs),
        statistics.fmean(mine[: 3 * repeats]), statistics.fmean(run[1] for run in rival_runs), f"p99 {p99:.2f} ms",
    )


def paper(repeats: int) -> Iterator[Row]:
    """The paper's full size: global, 15 task and all query offsets of 12,263 queries."""
    n = 12_263
    queries, candidates, values = make(n, 10, 1024)
    tasks = [f"task {q * 15 // n}" for q in range(n)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rewards = Rewards.from_arrays(queries, candidates, values, tasks)

    def whole() -> None:
        for scope in ("global", "task", "query"):
            fit(rewards, scope=scope, gate=False)

    began = time.perf_counter()
    whole()
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    extra = (after - before) * 1024 / candidates.nbytes
    part = 600
    one_private, _ = rival(1, queries[:part], candidates[:part], values[:part], private=True, steps=60)
    one_shared, _ = rival(1, queries[:part], candidates[:part], values[:part], private=False, steps=60)
    scaled = (one_private[0] + 2 * one_shared[0]) * n / part
    yield Row(
        "paper's full size, 12,263 x 10 x 1024, all scopes", None, (seconds,), (scaled,), 0.0, 0.0,
        f"target 10 s; peak {1 + extra:.2f}x the candidates (target 1.3x); rival scaled from {part} queries, 60 steps",
    )


def refit(repeats: int) -> Iterator[Row]:
    """A refit after 10 new queries on 1000, warm from the offsets served, against a cold fit."""
    data = make(1010, 10, 1024)
    old = fit(Rewards.from_arrays(*(part[:1000] for part in data)), scope="task", gate=False)
    rewards = Rewards.from_arrays(*data)
    warm, offsets = timed(5 * repeats, lambda: fit(rewards, scope="task", gate=False, warm_start=old))
    cold, cold_offsets = timed(5 * repeats, lambda: fit(rewards, scope="task", gate=False))
    yield Row("warm refit, 10 new queries on 1000; rival: cold fit", 5, warm, cold, objective_of(offsets), objective_of(cold_offsets))


def growth(sizes: tuple[int, ...]) -> Iterator[tuple[int, float, float]]:
    """(queries, seconds, peak GiB) of one shared offset at width 384, vectors memory-mapped from disk."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        for n in sizes:
            docs = np.lib.format.open_memmap(f"{folder}/docs.npy", mode="w+", dtype=np.float32, shape=(n * 10, 384))
            queries = np.empty((n, 384), np.float32)
            values = np.empty((n, 10), np.float32)
            for start in range(0, n, 10_000):
                size = min(10_000, n - start)
                block = make(size, 10, 384, seed=start)
                queries[start : start + size], values[start : start + size] = block[0], block[2]
                docs[start * 10 : (start + size) * 10] = block[1].reshape(-1, 384)
            docs.flush()
            del docs
            mapped = np.load(f"{folder}/docs.npy", mmap_mode="r")
            rows = np.arange(n * 10).reshape(n, 10)
            began = time.perf_counter()
            rewards = Rewards.from_indexed(queries, mapped, rows, values)
            offsets = fit(rewards, scope="task", gate=False)
            seconds = time.perf_counter() - began
            objective_of(offsets)
            yield n, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            del mapped, rewards, offsets


def applied() -> Iterator[tuple[str, float, float]]:
    """(call, microseconds, target) of applying an offset at width 1024."""
    queries, candidates, values = make(1000, 10, 1024)
    offsets = fit(Rewards.from_arrays(queries, candidates, values), scope="task", gate=False)
    one, batch, plain = queries[0], queries, queries[0].tolist()
    for name, work, calls, target in (
        ("one vector, numpy", lambda: offsets.apply(one), 1, 5.0),
        ("batch of 1000, numpy, each", lambda: offsets.apply(batch), 1000, 1.5),
        ("one vector, Python list", lambda: offsets.apply(plain), 1, 40.0),
    ):
        seconds = []
        for _ in range(2000 if calls == 1 else 200):
            began = time.perf_counter()
            work()
            seconds.append((time.perf_counter() - began) / calls)
        yield name, statistics.median(seconds) * 1e6, target


ROWS = {"shared": shared, "documents": documents, "private": private, "request": request, "refit": refit, "paper": paper}


def main() -> None:
    """Print the table; write JSON and a plot where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", default=",".join([*ROWS, "apply", "growth"]))
    parser.add_argument("--largest", type=int, default=100_000, help="largest memory-mapped fit, in queries")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    chosen = args.rows.split(",")
    print(f"{'workload':<44}{'min ms':>10}{'median':>10}{'max':>10}{'rival ms':>12}{'ratio':>9}{'goal':>7}{'objective':>11}")
    rows = []
    for name, measure in ROWS.items():
        if name in chosen:
            for row in measure(args.repeats):
                print(row, flush=True)
                rows.append({**asdict(row), "ratio": row.ratio})
    if "apply" in chosen:
        for name, micros, target in applied():
            print(f"apply, {name:<37}{micros:>10.2f} us (target {target:g} us)")
            rows.append({"workload": f"apply, {name}", "microseconds": micros, "target": target})
    if "growth" in chosen:
        sizes = tuple(n for n in (1_000, 10_000, 100_000, 1_000_000) if n <= args.largest)
        for n, seconds, peak in growth(sizes):
            print(f"memory-mapped, {n:>9} x 10 x 384: {seconds:8.2f} s, {seconds / n * 1e6:6.1f} us a query, peak {peak:.1f} GiB")
            rows.append({"workload": "memory-mapped", "queries": n, "seconds": seconds, "peak_gib": peak})
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
