"""The fit against the paper's recipe in PyTorch, in one run on the same threads: ratios, never bare times.

    python benchmarks/fit.py [--repeats 3] [--rows shared,private,...] [--json OUT.json] [--plot OUT.png]

The rival is full-batch Adam, 300 steps, learning rate .01, with autograd, batched over queries. It is given
the faster of two formulations: similarities of the normalised sum, or x·z once and v·z in every step. A row
that would take minutes runs fewer steps and is scaled up, and says so. Data are synthetic: unit vectors,
candidates around their query, rewards with a preference that all queries share. Rivals that tune something
else on the same rewards (NUDGE the documents, an adapter a matrix) have rows of their own: with their time, what
they gain on queries they did not see.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
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


def copy_bandwidth() -> float:
    """Bytes a second that a large copy moves, read and written."""
    source = np.ones(1 << 27, np.float32)
    target = np.empty_like(source)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - began)
    return 2 * source.nbytes / min(seconds)


def shared(repeats: int) -> Iterator[Row]:
    """One offset for all queries, and how far its time is from that of moving the vectors once an evaluation."""
    bandwidth = copy_bandwidth()
    for d in (384, 1024):
        data = make(1000, 10, d)
        rewards = data.judged
        work = partial(fit, rewards, scope="task", gate=False)
        seconds, mine = timed(3 * repeats, work)
        theirs, reached = rival(data, private=False, repeats=repeats)
        evaluations = work()["task:default"].certificate.evaluations
        floor = (evaluations + 1) * data.documents.nbytes / bandwidth
        note = f"{evaluations} evaluations, {statistics.median(seconds) / floor:.1f}x the time to move their bytes"
        yield Row(f"one shared offset, 1000 x 10 x {d}", 40, seconds, theirs, mine - reached, note)


def documents(repeats: int) -> Iterator[Row]:
    """One offset, documents shared between queries."""
    data = make(2000, 100, 1024, unique=20_000)
    seconds, _ = timed(repeats, partial(fit, data.judged, scope="task", gate=False))
    theirs, _ = rival(data, private=False, steps=10)
    name = "shared documents, 2000 x 100, 20,000 unique x 1024"
    yield Row(name, 100, seconds, theirs, None, "rival: 10 steps, scaled")


def private(repeats: int) -> Iterator[Row]:
    """One offset per query."""
    for n, k, target in ((1000, 10, 100), (200, 100, 20)):
        data = make(n, k, 1024)
        seconds, mine = timed(3 * repeats, partial(fit, data.judged, scope="query", gate=False))
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


def stored(folder: Path, n: int, d: int) -> None:
    """Vectors and rewards of *n* queries with 10 candidates each, written a part at a time."""
    shapes = {"queries": (n, d), "documents": (n * 10, d), "rewards": (n, 10)}
    files = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.float32, shape=shape)
        for name, shape in shapes.items()
    }
    for start in range(0, n, 10_000):
        part = make(min(10_000, n - start), 10, d, seed=start)
        for name, file in files.items():
            block = getattr(part, name)
            first = start * len(file) // n
            file[first : first + len(block)] = block


def loaded(folder: Path, tasks: int, mode: str | None) -> Rewards:
    """What `stored` wrote, as rewards: in memory, or memory-mapped with mode *r*."""
    queries, documents, values = (
        np.load(folder / f"{name}.npy", mmap_mode=mode) for name in ("queries", "documents", "rewards")
    )
    n = len(queries)
    names = [f"task {q * tasks // n}" for q in range(n)]
    return Rewards.from_indexed(queries, documents, np.arange(n * 10).reshape(n, 10), values, names)


def held_bytes(which: str = "VmHWM") -> int:
    """Memory of this process as Linux counts it, mapped pages included: the most so far, or with *VmRSS* now."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition(f"{which}:")[2].split()[0]) * 1024


def whole_job(folder: Path, repeats: int) -> tuple[list[float], float]:
    """Seconds for global, 15 task and all query offsets, and peak memory over the bytes of the candidates.

    The memory is that of vectors, rewards and offsets: what the interpreter held before is not counted.
    """
    before = held_bytes("VmRSS")
    rewards = loaded(folder, 15, None)
    seconds, memory = [], 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        for scope in ("global", "task", "query"):
            objective_of(fit(rewards, scope=scope, gate=False))
        seconds.append(time.perf_counter() - began)
        memory = memory or (held_bytes() - before) / rewards.doc_vectors.nbytes
    return seconds, memory


def paper(repeats: int) -> Iterator[Row]:
    """The paper's full size in a process of its own: global, 15 task and all query offsets of 12,263 queries."""
    n, part = 12_263, 600
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, mp_context=spawn) as process:
        stored(Path(folder), n, 1024)
        seconds, memory = process.submit(whole_job, Path(folder), repeats).result()
    small = make(part, 10, 1024)
    one_each, one_shared = (rival(small, private=each, steps=30)[0][0] for each in (True, False))
    note = f"goal 10 s; peak memory {memory:.2f} times the candidates; rival: 30 steps of {part} queries, scaled"
    theirs = [(one_each + 2 * one_shared) * n / part]
    yield Row("the paper's full size, 12,263 x 10 x 1024", 1, seconds, theirs, None, note)


def grown(folder: Path) -> tuple[float, float]:
    """Seconds for one shared offset of memory-mapped vectors, checks included, and peak memory in GiB."""
    began = time.perf_counter()
    rewards = loaded(folder, 1, "r")
    objective_of(fit(rewards, scope="task", gate=False))
    return time.perf_counter() - began, held_bytes() / 2**30


def growth(largest: int) -> Iterator[tuple[int, float, float]]:
    """(queries, seconds, peak GiB) of one shared offset at width 384, vectors memory-mapped from disk."""
    spawn = multiprocessing.get_context("spawn")
    for n in (size for size in (1_000, 10_000, 100_000, 1_000_000) if size <= largest):
        with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, mp_context=spawn) as process:
            stored(Path(folder), n, 384)
            yield n, *process.submit(grown, Path(folder)).result()


@dataclass(frozen=True)
class Peer:
    """Another way to learn from the same rewards: its seconds, and its gain on queries it did not see."""

    name: str
    seconds: float
    gain: float

    def __str__(self) -> str:
        return f"{self.name:<50}{self.seconds * 1e3:>10.1f} ms, held-out gain {self.gain:+.4f} nDCG@10 of rewards"


def judged_ndcg(rewards: np.ndarray, scores: np.ndarray) -> float:
    """Mean nDCG@10 of judged candidates (n, k) in the order of *scores*, rewards as gains."""
    discount = 1 / np.log2(np.arange(2, rewards.shape[1] + 2))
    ranked = np.take_along_axis(rewards, np.argsort(-scores, axis=1, kind="stable"), axis=1)
    return float(np.mean((ranked @ discount) / (-np.sort(-rewards, axis=1) @ discount)))


def peers() -> Iterator[Peer]:
    """Ours, a linear query adapter and NUDGE, on 1000 rewarded queries; 250 more queries to try them on."""
    data, learn = make(1250, 10, 384, unique=10_000), 1000
    rows, rewards, queries = data.rows[learn:], data.rewards[learn:], data.queries[learn:]

    def gain(moved: np.ndarray, documents: np.ndarray) -> float:
        scores, raw = (np.matvec(z[rows], x) for z, x in ((documents, moved), (data.documents, queries)))
        return judged_ndcg(rewards, scores) - judged_ndcg(rewards, raw)

    seen = Data(data.queries[:learn], data.documents, data.rows[:learn], data.rewards[:learn])
    began = time.perf_counter()
    offsets = fit(seen.judged, scope="task", gate=False)
    yield Peer("one shared offset (ours)", time.perf_counter() - began, gain(offsets.apply(queries), data.documents))
    for epochs in (1, 4):
        began = time.perf_counter()
        matrix = adapter(seen, epochs)
        seconds = time.perf_counter() - began
        yield Peer(f"linear query adapter, {epochs} epochs", seconds, gain(unit(queries @ matrix), data.documents))
    if not find_spec("nudge"):
        print("NUDGE: not measured, nudge-ft is not installed")
        return
    import nudge

    # It needs relevant documents and a validation part: each query's best candidate, one query in five.
    best = seen.rows[np.arange(learn), seen.rewards.argmax(axis=1)][:, None].tolist()
    fifth = learn // 5
    validation = {"q_embs": seen.queries[:fifth], "q_ans_indx": best[:fifth]}
    training = {"q_embs": seen.queries[fifth:], "q_ans_indx": best[fifth:]}
    for name, method in (("NUDGE-M", nudge.NUDGEM), ("NUDGE-N", nudge.NUDGEN)):
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            moved = method().finetune_embeddings(data.documents.copy(), training, validation)
        yield Peer(f"{name} (moves documents)", time.perf_counter() - began, gain(queries, moved))


def adapter(data: Data, epochs: int) -> np.ndarray:
    """A linear query adapter (d, d) from the identity: Adam, rate .001, 10 queries a step, the same distillation."""
    import torch

    x, r, z = (torch.from_numpy(part) for part in (data.queries, data.rewards, data.documents))
    index, teacher = torch.from_numpy(data.rows), torch.softmax(r / 0.02, 1)
    matrix = torch.eye(x.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([matrix], lr=0.001)
    shuffled = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for some in torch.randperm(len(x), generator=shuffled).split(10):
            moved = torch.nn.functional.normalize(x[some] @ matrix, dim=1)
            student = torch.log_softmax(torch.bmm(z[index[some]], moved[:, :, None])[:, :, 0] / 0.05, 1)
            optimizer.zero_grad()
            (-(teacher[some] * student).sum(1).mean()).backward()
            optimizer.step()
    return matrix.detach().numpy()


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


def plotted(table: list[dict[str, Any]], target: Path) -> None:
    """Two panels: ratios beside their goals, and seconds over queries."""
    from matplotlib.figure import Figure

    ratios = [row for row in table if "ratio" in row]
    sizes = [row for row in table if row["workload"] == "memory-mapped"]
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = [row["workload"] for row in ratios]
    left.barh(names, [row["ratio"] for row in ratios], color="#4477aa")
    left.plot([row["target"] for row in ratios], names, "|", color="black", markersize=16, label="goal")
    left.set(xscale="log", xlabel="times faster than the rival")
    left.invert_yaxis()
    left.legend(loc="lower right")
    right.loglog([row["queries"] for row in sizes], [row["seconds"] for row in sizes], "o-", color="#4477aa")
    right.set(xlabel="rewarded queries, 10 candidates each", ylabel="seconds, memory-mapped, d = 384")
    figure.savefig(target, dpi=150)


ROWS = {
    "shared": shared,
    "documents": documents,
    "private": private,
    "request": request,
    "paper": paper,
}


def main() -> None:
    """Print the table; write it as JSON and as a plot where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", default=",".join([*ROWS, "apply", "peers", "growth"]))
    parser.add_argument("--largest", type=int, default=100_000, help="largest memory-mapped fit, in queries")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
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
    for peer in peers() if "peers" in chosen else ():
        print(peer, flush=True)
        table.append({"workload": f"peer: {peer.name}", "seconds": peer.seconds, "gain": peer.gain})
    for n, seconds, memory in growth(args.largest) if "growth" in chosen else ():
        each = f"{seconds / n * 1e6:6.1f} us a query, peak {memory:.1f} GiB with the mapped pages"
        print(f"memory-mapped, {n:>9,} x 10 x 384: {seconds:8.2f} s, {each}", flush=True)
        table.append({"workload": "memory-mapped", "queries": n, "seconds": seconds, "peak_gib": memory})
    if args.json:
        args.json.write_text(json.dumps(table, indent=1), encoding="utf-8")
    if args.plot:
        plotted(table, args.plot)


if __name__ == "__main__":
    main()
