"""The gain of queries and tasks without rewards: 80/20 held-out queries, and leave one task out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.paper.cells import Cell, Columns
from benchmarks.paper.design import (
    INTERVALS,
    SHARES,
    Design,
    Study,
    StudyOptions,
    by_set,
    dots,
    gains,
    shares_by_set,
)
from benchmarks.paper.estimates import task_means
from benchmarks.paper.tables import Entry, StudyReport, Table
from benchmarks.paper.workload import Workload
from tttembed_rag.evaluate.collection import split
from tttembed_rag.offsets.offset import AnyScope

HOLDOUT = 0.2
# Rewarded queries per task at each point; the last is the whole pool of 80 %.
BREADTHS = (4, 16, 64)
SHARED: tuple[AnyScope, ...] = ("global", "task", "local", "auto")
UNSEEN: tuple[AnyScope, ...] = ("global", "auto")


def transfer_study(workload: Workload, options: StudyOptions) -> Study:
    """Held-out queries and held-out tasks of *workload*; without several sets the first alone."""
    design = Design.of(workload, options)
    breadths = design.breadths(BREADTHS)
    seen = [_held_out_queries(design, n, seed) for n in breadths for seed in options.seeds]
    tasks = range(len(workload.names)) if len(workload.names) > 1 else ()
    unseen = [_held_out_task(design, task) for task in tasks]

    def report(results: Sequence[Columns]) -> StudyReport:
        gained = design.gains(results[: len(seen)], SHARED)
        values = gained[-1]
        names = [f"held-out: {scope}" for scope in SHARED]
        if unseen:
            parts = [gains(workload, [columns], UNSEEN) for columns in results[len(seen) :]]
            merged = np.nanmax(parts, axis=0)  # each query is measured in the one part that left its task out
            values = np.concatenate([values, np.repeat(merged, len(options.seeds), axis=1)])
            names += [f"task left out: {scope}" for scope in UNSEEN]
        rows = by_set(workload, values)
        whole = Table(
            f"Transfer to queries and tasks without rewards, 80 % of the queries rewarded; {design.source}",
            ("set", *names),
            tuple(rows),
            (INTERVALS, "auto is gated, and zero where it abstains; the others are published without evidence."),
        )
        curve: list[tuple[Entry, ...]] = [
            (("all 80 %" if n == breadths[-1] else str(n)), *task_means(of_breadth, workload.tasks))
            for n, of_breadth in zip(breadths, gained, strict=True)
        ]
        growing = Table(
            "Gain on held-out queries by rewarded queries per set, mean of sets",
            ("rewarded", *SHARED),
            tuple(curve),
        )
        kept = Table(
            "Share of direct rerank's gain kept on held-out queries, 80 % of the queries rewarded",
            ("set", *SHARED),
            tuple(shares_by_set(design, gained[-1])),
            (SHARES,),
        )
        reranked = design.reranked()
        keeping = Table(
            "The same by rewarded queries per set, mean of sets",
            ("rewarded", *SHARED),
            tuple((row[0], *design.shares(of, reranked)) for row, of in zip(curve, gained, strict=True)),
        )
        return StudyReport((whole, growing, kept, keeping), dots(names, rows), "")

    return Study((*seen, *unseen), report)


def _held_out_queries(design: Design, rewarded: int, seed: int) -> Cell:
    """Shared offsets of *rewarded* queries per task, on the 20 % that none of them is from."""
    workload, options = design.workload, design.options

    def measure() -> Columns:
        pools, held = zip(*(split(c, seed, HOLDOUT) for c in workload.collections), strict=True)
        rewards = workload.rewards([pool[:rewarded] for pool in pools], options.depth)
        untouched = workload.mask(held)
        return {
            str(scope): np.where(untouched, workload.served(options.fit(rewards, scope)), np.nan) for scope in SHARED
        }

    return design.cell("held-out queries", measure, rewarded=rewarded, holdout=HOLDOUT, seed=seed)


def _held_out_task(design: Design, task: int) -> Cell:
    """The global offset of all other tasks on one."""
    workload, options = design.workload, design.options

    def measure() -> Columns:
        judged = [pool if t != task else pool[:0] for t, pool in enumerate(workload.pools)]
        rewards = workload.rewards(judged, options.depth)
        left_out = workload.tasks == task
        return {
            str(scope): np.where(left_out, workload.served(options.fit(rewards, scope)), np.nan) for scope in UNSEEN
        }

    return design.cell("held-out task", measure, task=workload.names[task])
