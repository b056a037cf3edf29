"""The dose n / (n + 1) against fixed ones: regret to the best dose in hindsight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.paper.cells import Columns
from benchmarks.paper.design import INTERVALS, Design, Study, StudyOptions, curves
from benchmarks.paper.tables import Entry, StudyReport, Table
from benchmarks.paper.workload import Judged, Workload
from tttembed_rag.offsets.offsets import Offsets

# Rewarded queries per task, then all of them.
BREADTHS = (1, 16, 128)
FIXED = tuple(round(0.1 * step, 1) for step in range(1, 11))
RULE = "n/(n+1)"
DOSES = (*(f"{alpha:g}" for alpha in FIXED), RULE)


def dose_study(workload: Workload, options: StudyOptions) -> Study:
    """Task offsets of *workload* under every dose."""
    design = Design.of(workload, options)
    breadths = design.breadths(BREADTHS)

    def measure(judged: Judged) -> Columns:
        offsets = options.fit(workload.rewards(judged, options.depth), "task")
        fixed = {f"{alpha:g}": workload.served(_at(offsets, alpha)) for alpha in FIXED}
        return {**fixed, RULE: workload.served(offsets)}

    cells = [
        design.drawn("doses", measure, queries=workload.per_task(n), seed=seed)
        for n in breadths
        for seed in options.seeds
    ]

    def report(results: Sequence[Columns]) -> StudyReport:
        gained = design.means(results, DOSES)
        means = np.array([[estimate.mean for estimate in row] for row in gained])
        regret = (means.max(axis=1, keepdims=True) - means).mean(axis=0)
        rows: tuple[tuple[Entry, ...], ...] = tuple(
            (name, *(row[i] for row in gained), f"{regret[i]:.2f}") for i, name in enumerate(DOSES)
        )
        lowest = DOSES[int(np.argmin(regret))]
        table = Table(
            f"Task offsets under fixed doses and the rule; {design.source}",
            ("alpha", *design.headed(breadths), "oracle regret"),
            rows,
            (INTERVALS, f"Regret: mean gap to the best dose of each column, in hindsight; lowest: {lowest}."),
        )
        return StudyReport((table,), curves(DOSES, design.counts(breadths), gained), "rewarded queries per task")

    return Study(tuple(cells), report)


def _at(offsets: Offsets, alpha: float) -> Offsets:
    """The same offsets at one dose."""
    return Offsets([replace(offset, alpha=alpha) for offset in offsets.values()], width=offsets.width)
