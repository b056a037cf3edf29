"""Breadth against depth: the same budget on many queries or on many documents of few."""

from __future__ import annotations

from collections.abc import Sequence

from tttembed_rag.evaluate.intervals import task_means
from tttembed_rag.evaluate.paper.cells import Columns
from tttembed_rag.evaluate.paper.design import ALL, INTERVALS, Options, Study, bars, each, gains, inputs, point, source
from tttembed_rag.evaluate.paper.tables import Entry, Report, Table
from tttembed_rag.evaluate.paper.workload import Workload

# Normalised budgets of the paper, and how deep each of their allocations judges.
BUDGETS = (2, 10)
DEPTHS = (2, 5, 10, 20, 50)


def breadth_depth(workload: Workload, options: Options) -> Study:
    """Allocations of each budget on *workload*: depth k on a share b / k of its queries."""
    everyone = workload.per_task(len(workload))
    plan = [(b, depth, max(1, round(b * len(workload) / depth))) for b in BUDGETS for depth in DEPTHS if depth >= b]
    content = inputs(workload)
    cells = [
        point(workload, options, content, queries=queries, depth=depth, seed=seed)
        for _, depth, queries in plan
        for seed in options.seeds
    ]

    def report(results: Sequence[Columns]) -> Report:
        rows: list[tuple[Entry, ...]] = []
        for (b, depth, queries), some in zip(plan, each(results, options), strict=True):
            values = gains(workload, some, ALL)
            covered = min(queries, everyone) / len(workload)
            rows.append((f"b={b}, depth {depth}", f"{covered:.0%}", *task_means(values, workload.tasks)))
        table = Table(
            f"The same budget broad or deep; {source(workload)}",
            ("allocation", "queries", *ALL),
            tuple(rows),
            (INTERVALS, "A query with fewer judged documents than the depth gives all it has."),
        )
        return Report((table,), bars(ALL, [(row[0], *row[2:]) for row in rows]), "")

    return Study(tuple(cells), report)
