"""Breadth against depth: the same budget on many queries or on many documents of few."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.paper.cells import Columns
from benchmarks.paper.design import ALL, INTERVALS, Design, Study, StudyOptions, dots
from benchmarks.paper.tables import Entry, StudyReport, Table
from benchmarks.paper.workload import Workload

# Normalised budgets of the paper, and how deep each of their allocations judges.
BUDGETS = (2, 10)
DEPTHS = (2, 5, 10, 20, 50)


def breadth_depth_study(workload: Workload, options: StudyOptions) -> Study:
    """Allocations of each budget on *workload*: depth k on a share b / k of its queries."""
    design = Design.of(workload, options)
    everyone = workload.per_task(len(workload))
    plan = [(b, depth, max(1, round(b * len(workload) / depth))) for b in BUDGETS for depth in DEPTHS if depth >= b]
    cells = [
        design.point(queries=queries, depth=depth, seed=seed) for _, depth, queries in plan for seed in options.seeds
    ]

    def report(results: Sequence[Columns]) -> StudyReport:
        rows: list[tuple[Entry, ...]] = []
        for (b, depth, queries), means in zip(plan, design.means(results, ALL), strict=True):
            covered = min(queries, everyone) / len(workload)
            rows.append((f"b={b}, depth {depth}", f"{covered:.0%}", *means))
        table = Table(
            f"The same budget broad or deep; {design.source}",
            ("allocation", "queries", *ALL),
            tuple(rows),
            (INTERVALS, "A query with fewer judged documents than the depth gives all it has."),
        )
        return StudyReport((table,), dots(ALL, [(row[0], *row[2:]) for row in rows]), "")

    return Study(tuple(cells), report)
