"""What the default costs: a gated `auto` fit against the plain fit of a task, and what one deep query adds.

    python benchmarks/gated.py [--sizes 200,1000,10000] [--depths 10,200,5000] [--json OUT.json]

Each fit runs in a process of its own, so that its memory is its own; the median of three where it takes less than
three seconds. Data are synthetic, as in `fit.py`: 10 candidates a query at width 384, a preference that all share.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from fit import held_bytes, make

from tttembed_rag import Offsets, Rewards, fit

WIDTH = 384
# A fit that takes longer is not repeated.
LONG_SECONDS = 3.0


@dataclass(frozen=True)
class Cost:
    """Seconds and peak memory of a gated fit, and the seconds of a plain fit of the same task.

    Attributes:
        workload: What was fitted.
        seconds: Of the gated `auto` fit.
        plain_seconds: Of the plain fit.
        peak_gib: The most memory that the process of the gated fit held, in GiB.
    """

    workload: str
    seconds: float
    plain_seconds: float
    peak_gib: float

    def __str__(self) -> str:
        ratio = self.seconds / self.plain_seconds
        return f"{self.workload:<44}{self.seconds:>9.2f} s{ratio:>9.1f} plain fits{self.peak_gib:>8.2f} GiB"


def wide(n: int) -> Rewards:
    """*n* queries with 10 candidates each."""
    return make(n, 10, WIDTH).judged


def deep(depth: int, n: int = 500) -> Rewards:
    """*n* queries with 10 candidates each, and one query with *depth*."""
    one = make(n, 10, WIDTH, unique=20_000)
    rng = np.random.default_rng(1)
    row = rng.permutation(len(one.documents))[:depth]
    return Rewards.from_indexed(
        np.concatenate([one.queries, one.queries[:1] + one.queries[1:2]]),
        one.documents,
        [*one.rows, row],
        [*one.rewards, rng.random(depth)],
    )


def seconds_of(work: Callable[[], Offsets]) -> float:
    """Median of three runs, or of one where that takes long."""
    runs: list[float] = []
    while len(runs) < 3 and (not runs or runs[0] < LONG_SECONDS):
        began = time.perf_counter()
        work()
        runs.append(time.perf_counter() - began)
    return statistics.median(runs)


def measured(workload: str, made: Callable[[], Rewards]) -> Cost:
    """The cost of one workload, measured in this process: the plain fit comes after the memory was read."""
    rewards = made()
    gated = seconds_of(partial(fit, rewards))
    peak = held_bytes() / 2**30
    return Cost(workload, gated, seconds_of(partial(fit, rewards, scope="task", gate=False)), peak)


def main() -> None:
    """Print one line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("sizes", [200, 1000, 10_000]), ("depths", [10, 200, 5000])):
        parser.add_argument(f"--{name}", type=lambda s: [int(part) for part in s.split(",") if part], default=default)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    workloads = {f"{n:,} queries x 10 candidates": partial(wide, n) for n in args.sizes}
    workloads |= {f"500 queries x 10 and one of {depth:,}": partial(deep, depth) for depth in args.depths}
    costs = []
    for name, made in workloads.items():
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            costs.append(process.submit(measured, name, made).result())
        print(costs[-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
