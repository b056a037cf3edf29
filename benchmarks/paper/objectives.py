"""Knowledge distillation, reverse KL and Softmax-GRPO over budgets, at every scope."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.paper.cells import Columns
from benchmarks.paper.design import INTERVALS, PLAIN, Design, Study, StudyOptions, curves
from benchmarks.paper.tables import Entry, StudyReport, Table
from benchmarks.paper.workload import Judged, Workload
from tttembed_rag.fitting.objectives import OBJECTIVES

# Rewarded queries per task, then all of them: the four budgets of the paper's ablation.
BREADTHS = (1, 16, 128)
COLUMNS = tuple(f"{objective} {scope}" for scope in PLAIN for objective in OBJECTIVES)


def objectives_study(workload: Workload, options: StudyOptions) -> Study:
    """Every objective on the same rewards of *workload*."""
    design = Design.of(workload, options)
    breadths = design.breadths(BREADTHS)

    def measure(judged: Judged) -> Columns:
        rewards = workload.rewards(judged, options.depth)
        return {
            f"{objective} {scope}": workload.served(options.fit(rewards, scope, objective=objective))
            for scope in PLAIN
            for objective in OBJECTIVES
        }

    cells = [
        design.drawn("objectives", measure, queries=workload.per_task(n), seed=seed)
        for n in breadths
        for seed in options.seeds
    ]

    def report(results: Sequence[Columns]) -> StudyReport:
        gained = design.means(results, COLUMNS)
        rows: list[tuple[Entry, ...]] = []
        for n, row in zip(breadths, gained, strict=True):
            for objective in OBJECTIVES:
                estimates = [row[COLUMNS.index(f"{objective} {scope}")] for scope in PLAIN]
                rows.append(("all" if n == breadths[-1] else str(n), objective, *estimates))
        table = Table(
            f"Objectives by rewarded queries per set, depth {options.depth}; {design.source}",
            ("rewarded", "objective", *PLAIN),
            tuple(rows),
            (INTERVALS, f"The paper's plain rule, solver {options.solver}; every candidate has a real reward."),
        )
        return StudyReport((table,), curves(COLUMNS, design.counts(breadths), gained), "rewarded queries per task")

    return Study(tuple(cells), report)
