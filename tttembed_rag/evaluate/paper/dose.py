"""The dose n / (n + 1) against fixed ones: regret to the best dose in hindsight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tttembed_rag.evaluate.intervals import task_means
from tttembed_rag.evaluate.paper.cells import Cell, Columns
from tttembed_rag.evaluate.paper.design import INTERVALS, Options, Study, cell, each, gains, inputs, lines, source
from tttembed_rag.evaluate.paper.tables import Entry, Report, Table
from tttembed_rag.evaluate.paper.workload import Workload
from tttembed_rag.offsets.lookup import Offsets

# Rewarded queries per task, then all of them.
BREADTHS = (1, 16, 128)
FIXED = tuple(round(0.1 * step, 1) for step in range(1, 11))
RULE = "n/(n+1)"
DOSES = (*(f"{alpha:g}" for alpha in FIXED), RULE)


def dose(workload: Workload, options: Options) -> Study:
    """Task offsets of *workload* under every dose."""
    content = inputs(workload)
    breadths = (*(options.breadths or BREADTHS), len(workload))
    cells = [_doses(workload, options, content, n, seed) for n in breadths for seed in options.seeds]

    def report(results: Sequence[Columns]) -> Report:
        found = [task_means(gains(workload, some, DOSES), workload.tasks) for some in each(results, options)]
        means = np.array([[estimate.mean for estimate in row] for row in found])
        regret = (means.max(axis=1, keepdims=True) - means).mean(axis=0)
        heads = [f"n={'all' if n == len(workload) else n}" for n in breadths]
        rows: tuple[tuple[Entry, ...], ...] = tuple(
            (name, *(row[i] for row in found), f"{regret[i]:.2f}") for i, name in enumerate(DOSES)
        )
        lowest = DOSES[int(np.argmin(regret))]
        table = Table(
            f"Task offsets under fixed doses and the rule; {source(workload)}",
            ("alpha", *heads, "oracle regret"),
            rows,
            (INTERVALS, f"Regret: mean gap to the best dose of each column, in hindsight; lowest: {lowest}."),
        )
        counts = [float(min(n, len(workload) / len(workload.names))) for n in breadths]
        return Report((table,), lines(DOSES, counts, found), "rewarded queries per task")

    return Study(tuple(cells), report)


def _doses(workload: Workload, options: Options, content: str, rewarded: int, seed: int) -> Cell:
    """One fit of *rewarded* queries per task, served at every dose."""
    queries = workload.per_task(rewarded)
    drawn_by = 0 if queries == workload.per_task(len(workload)) else seed

    def measure() -> Columns:
        offsets = options.fit(workload.rewards(workload.drawn(queries, drawn_by), options.depth), "task")
        columns = {f"{alpha:g}": workload.served(_at(offsets, alpha)) for alpha in FIXED}
        return {**columns, RULE: workload.served(offsets)}

    settings = {"cell": "doses", "inputs": content, "queries": queries, "depth": options.depth, "seed": drawn_by}
    return cell(settings, options, measure)


def _at(offsets: Offsets, alpha: float) -> Offsets:
    """The same offsets at one dose."""
    return Offsets([replace(offset, alpha=alpha) for offset in offsets.values()], width=offsets.width)
