"""Gain against budget of every scope and of direct rerank, and the area under it (the paper's main figure)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.paper.cells import Columns
from benchmarks.paper.curves import area_weights, breadth_grid
from benchmarks.paper.design import (
    ALL,
    INTERVALS,
    PLAIN,
    RERANK,
    Design,
    Study,
    StudyOptions,
    by_set,
    curves,
)
from benchmarks.paper.estimates import Estimate, task_means
from benchmarks.paper.tables import Entry, StudyReport, Table
from benchmarks.paper.workload import Workload
from tttembed_rag.vectors.rows import Float64

# Depths of full coverage, after all queries have the depth of the grid.
FULL_DEPTHS = (30, 100)
# Upper ends of the areas under the curves, as normalised budgets.
AREAS = (100.0, 8.0)


def budget_study(workload: Workload, options: StudyOptions) -> Study:
    """The gain-budget curves of *workload*."""
    design = Design.of(workload, options)
    everyone = workload.per_task(len(workload))
    breadths = sorted(set(options.breadths)) or breadth_grid(len(workload.names), everyone)
    points: list[tuple[int, int]] = []
    normalised: list[float] = []
    for queries, depth in [*((m, options.depth) for m in breadths), *((everyone, depth) for depth in FULL_DEPTHS)]:
        pairs = workload.budget(workload.drawn(queries, 0), depth) / len(workload)
        if not normalised or pairs > normalised[-1]:  # a depth without further judged pairs adds no point
            points.append((min(queries, everyone), depth))
            normalised.append(pairs)
    cells = [
        design.point(queries=queries, depth=depth, seed=seed) for queries, depth in points for seed in options.seeds
    ]

    def report(results: Sequence[Columns]) -> StudyReport:
        return _report(design, points, normalised, np.array(design.gains(results, ALL)))

    return Study(tuple(cells), report)


def _report(design: Design, points: list[tuple[int, int]], b: list[float], gained: Float64) -> StudyReport:
    """Tables and curves of gains (points, columns, seeds, N) at normalised budgets *b*."""
    workload = design.workload
    curve = [task_means(values, workload.tasks) for values in gained]
    best = [max(row[: len(PLAIN)], key=lambda e: e.mean) for row in curve]
    rows: tuple[tuple[Entry, ...], ...] = tuple(
        (f"{at:.4g}", m, depth, *row, PLAIN[row.index(top)])
        for at, (m, depth), row, top in zip(b, points, curve, best, strict=True)
    )
    deepest = f"rewards end at b = {b[-1]:.4g}; areas to a larger b end there"
    by_budget = Table(
        f"Gain by budget b (rewarded pairs per query); {design.source}",
        ("b", "queries", "depth", *ALL, "best scope"),
        rows,
        (INTERVALS, "global, task, query: the paper's plain rule; auto: gated, the default."),
    )
    areas = [_areas(workload, b, gained, upto, deepest) for upto in AREAS if upto > b[0] and len(b) > 1]
    tables = (by_budget, *areas, _operating_points(points, b, curve, best))
    return StudyReport(tables, curves(ALL, b, curve), "normalised budget b")


def _areas(workload: Workload, b: list[float], gained: Float64, upto: float, deepest: str) -> Table:
    """AUBC of every column on every set, and of the envelope of the plain scopes."""
    weights = area_weights(b, upto)
    rows = by_set(workload, np.tensordot(weights, gained, 1))
    per_set = [_set_mean(gained, workload.tasks == t) for t in range(len(workload.names))]
    envelopes = [float(weights @ means[:, : len(PLAIN)].max(axis=1)) for means in per_set]
    mean_curve = np.mean(per_set, axis=0)
    envelopes.append(float(weights @ mean_curve[:, : len(PLAIN)].max(axis=1)))
    full: list[tuple[Entry, ...]] = []
    for row, envelope in zip(rows, envelopes, strict=True):
        estimates = [e for e in row if isinstance(e, Estimate)]
        winner = ALL[int(np.argmax([e.mean for e in estimates]))]
        full.append((*row, Estimate(envelope, np.nan, np.nan), winner))
    on_the_mean = " and on the mean" if _first_of(rows[-1], ALL[:-1]) == "auto" else ", not on the mean"
    leads = sum(_first_of(row, ALL[:-1]) == "auto" for row in rows[:-1])
    return Table(
        f"AUBC@{upto:g}: mean gain over log b",
        ("set", *ALL, "envelope", "highest"),
        tuple(full),
        (
            f"auto is the highest of {', '.join(ALL[:-1])} on {leads} of {len(rows) - 1} sets{on_the_mean}.",
            f"Envelope: the best plain scope at each budget, in hindsight; {deepest}.",
        ),
    )


def _set_mean(gained: Float64, of_set: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Float64:
    """Means (points, columns) over seeds and the queries of one set."""
    return np.asarray(gained[..., of_set].mean(axis=(2, 3)))


def _first_of(row: tuple[Entry, ...], columns: Sequence[str]) -> str:
    """The column of the highest estimate in a row."""
    means = [entry.mean for entry in row[1 : 1 + len(columns)] if isinstance(entry, Estimate)]
    return columns[int(np.argmax(means))]


def _operating_points(
    points: list[tuple[int, int]], b: list[float], curve: list[list[Estimate]], best: list[Estimate]
) -> Table:
    """The best plain scope against direct rerank: at the first budgets, at full coverage, and at the last."""
    covered = max((i for i, (_, depth) in enumerate(points) if depth == points[0][1]), default=0)
    rows = []
    for at in dict.fromkeys((int(np.argmin(np.abs(np.log(b) - np.log(1e-2)))), covered, len(b) - 1)):
        row, rerank = curve[at], curve[at][ALL.index(RERANK)]
        difference = Estimate(best[at].mean - rerank.mean, np.nan, np.nan)
        rows.append((f"{b[at]:.4g}", PLAIN[row.index(best[at])], best[at], row[ALL.index("auto")], rerank, difference))
    return Table(
        "Scope-optimal operating points: near b = .01, at full coverage, and at the largest budget",
        ("b", "best scope", "its gain", "auto", RERANK, "best - direct"),
        tuple(rows),
        ("The best scope is picked on the mean curve, in hindsight.",),
    )
