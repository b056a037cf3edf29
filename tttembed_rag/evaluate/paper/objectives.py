"""Knowledge distillation, reverse KL and Softmax-GRPO over budgets, at every scope."""

from __future__ import annotations

from collections.abc import Sequence

from tttembed_rag.evaluate.intervals import Estimate, task_means
from tttembed_rag.evaluate.paper.cells import Cell, Columns
from tttembed_rag.evaluate.paper.design import (
    INTERVALS,
    PLAIN,
    Options,
    Study,
    cell,
    each,
    gains,
    inputs,
    lines,
    source,
)
from tttembed_rag.evaluate.paper.tables import Entry, Report, Table
from tttembed_rag.evaluate.paper.workload import Workload
from tttembed_rag.fitting.recipe import ObjectiveName

OBJECTIVES: tuple[ObjectiveName, ...] = ("kd", "reverse_kl", "softmax_grpo")
# Rewarded queries per task, then all of them: the four budgets of the paper's ablation.
BREADTHS = (1, 16, 128)
COLUMNS = tuple(f"{objective} {scope}" for scope in PLAIN for objective in OBJECTIVES)


def objectives(workload: Workload, options: Options) -> Study:
    """Every objective on the same rewards of *workload*."""
    content = inputs(workload)
    breadths = (*(options.breadths or BREADTHS), len(workload))
    cells = [_objectives(workload, options, content, n, seed) for n in breadths for seed in options.seeds]

    def report(results: Sequence[Columns]) -> Report:
        found = [task_means(gains(workload, some, COLUMNS), workload.tasks) for some in each(results, options)]
        rows: list[tuple[Entry, ...]] = []
        for n, row in zip(breadths, found, strict=True):
            for objective in OBJECTIVES:
                mine: list[Estimate] = [row[COLUMNS.index(f"{objective} {scope}")] for scope in PLAIN]
                rows.append(("all" if n == breadths[-1] else str(n), objective, *mine))
        table = Table(
            f"Objectives by rewarded queries per set, depth {options.depth}; {source(workload)}",
            ("rewarded", "objective", *PLAIN),
            tuple(rows),
            (INTERVALS, f"The paper's plain rule, solver {options.solver}; every candidate has a real reward."),
        )
        counts = [float(min(n, len(workload) / len(workload.names))) for n in breadths]
        return Report((table,), lines(COLUMNS, counts, found), "rewarded queries per task")

    return Study(tuple(cells), report)


def _objectives(workload: Workload, options: Options, content: str, rewarded: int, seed: int) -> Cell:
    """Every objective and scope on one draw of *rewarded* queries per task."""
    queries = workload.per_task(rewarded)
    drawn_by = 0 if queries == workload.per_task(len(workload)) else seed

    def measure() -> Columns:
        rewards = workload.rewards(workload.drawn(queries, drawn_by), options.depth)
        return {
            f"{objective} {scope}": workload.served(options.fit(rewards, scope, objective=objective))
            for scope in PLAIN
            for objective in OBJECTIVES
        }

    settings = {"cell": "objectives", "inputs": content, "queries": queries, "depth": options.depth, "seed": drawn_by}
    return cell(settings, options, measure)
