"""What rewards do for queries and tasks that gave none: 80/20 held-out queries, and leave one task out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tttembed_rag.evaluate.collection import split
from tttembed_rag.evaluate.intervals import task_means
from tttembed_rag.evaluate.paper.cells import Cell, Columns
from tttembed_rag.evaluate.paper.design import (
    INTERVALS,
    Options,
    Study,
    bars,
    by_set,
    cell,
    each,
    gains,
    inputs,
    source,
)
from tttembed_rag.evaluate.paper.tables import Entry, Report, Table
from tttembed_rag.evaluate.paper.workload import Workload
from tttembed_rag.offsets.values import AnyScope

HOLDOUT = 0.2
# Rewarded queries per task at each point; the last is the whole pool of 80 %.
BREADTHS = (4, 16, 64)
SHARED: tuple[AnyScope, ...] = ("global", "task", "auto")
UNSEEN: tuple[AnyScope, ...] = ("global", "auto")


def transfer(workload: Workload, options: Options) -> Study:
    """Held-out queries and held-out tasks of *workload*; without several sets the first alone."""
    content = inputs(workload)
    breadths = (*(options.breadths or BREADTHS), len(workload))
    seen = [_held_out_queries(workload, options, content, n, seed) for n in breadths for seed in options.seeds]
    tasks = range(len(workload.names)) if len(workload.names) > 1 else ()
    unseen = [_held_out_task(workload, options, content, task) for task in tasks]

    def report(results: Sequence[Columns]) -> Report:
        found = [gains(workload, some, SHARED) for some in each(results[: len(seen)], options)]
        values = found[-1]
        names = [f"held-out: {scope}" for scope in SHARED]
        if unseen:
            parts = [gains(workload, [columns], UNSEEN) for columns in results[len(seen) :]]
            merged = np.nanmax(parts, axis=0)  # each query is measured in the one part that left its task out
            values = np.concatenate([values, np.repeat(merged, len(options.seeds), axis=1)])
            names += [f"task left out: {scope}" for scope in UNSEEN]
        rows = by_set(workload, values)
        whole = Table(
            f"Transfer to queries and tasks without rewards, 80 % of the queries rewarded; {source(workload)}",
            ("set", *names),
            tuple(rows),
            (INTERVALS, "global and task: the paper's plain rule; auto: gated, and zero where it abstains."),
        )
        curve: list[tuple[Entry, ...]] = [
            (("all 80 %" if n == breadths[-1] else str(n)), *task_means(some, workload.tasks))
            for n, some in zip(breadths, found, strict=True)
        ]
        growing = Table(
            "Gain on held-out queries by rewarded queries per set, mean of sets",
            ("rewarded", *SHARED),
            tuple(curve),
        )
        return Report((whole, growing), bars(names, rows), "")

    return Study((*seen, *unseen), report)


def _held_out_queries(workload: Workload, options: Options, content: str, rewarded: int, seed: int) -> Cell:
    """Shared offsets of *rewarded* queries per task, on the 20 % that none of them is from."""

    def measure() -> Columns:
        pools, held = zip(*(split(c, seed, HOLDOUT) for c in workload.collections), strict=True)
        rewards = workload.rewards([pool[:rewarded] for pool in pools], options.depth)
        untouched = workload.mask(held)
        return {
            str(scope): np.where(untouched, workload.served(options.fit(rewards, scope)), np.nan) for scope in SHARED
        }

    settings = {"cell": "held-out queries", "inputs": content, "rewarded": rewarded, "depth": options.depth}
    return cell({**settings, "holdout": HOLDOUT, "seed": seed}, options, measure)


def _held_out_task(workload: Workload, options: Options, content: str, task: int) -> Cell:
    """The global offset of all other tasks on one."""

    def measure() -> Columns:
        judged = [pool if t != task else pool[:0] for t, pool in enumerate(workload.pools)]
        rewards = workload.rewards(judged, options.depth)
        mine = workload.tasks == task
        return {str(scope): np.where(mine, workload.served(options.fit(rewards, scope)), np.nan) for scope in UNSEEN}

    settings = {"cell": "held-out task", "inputs": content, "task": workload.names[task], "depth": options.depth}
    return cell(settings, options, measure)
