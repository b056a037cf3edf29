"""What every study is made of: its options, its cells, and how their outcomes become rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.evaluate.intervals import Estimate, task_means
from tttembed_rag.evaluate.paper.cells import Cell, Columns, content_hash
from tttembed_rag.evaluate.paper.tables import Entry, Line, Report
from tttembed_rag.evaluate.paper.workload import Judged, Workload
from tttembed_rag.fitting.recipe import ObjectiveName, SolverName
from tttembed_rag.gate.deciding import fit
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import AnyScope
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.rows import Float64

# Everything that serves offsets, then what does not; `auto` is gated, the others are the paper's plain rule.
PLAIN: tuple[AnyScope, ...] = ("global", "task", "query")
SCOPES = (*PLAIN, "auto")
RERANK = "direct rerank"
# A new search with what auto serves, its judged documents then by what judge and search say together.
FUSED = "auto + judge"
ALL = (*SCOPES, RERANK, FUSED)
INTERVALS = (
    "Changes of nDCG@10 x 100 over raw retrieval, sets weighing the same; [95 % interval] by bootstrap over queries "
    "and seeds."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a study is run.

    Attributes:
        depth: Rewarded candidates per query, where a study does not vary it.

        seeds: Seeds of the draw of rewarded queries; 0 is the paper's.

        breadths: Rewarded queries at each point, in all or per task as the study counts; () is its own grid.

        objective: Objective of the fits, where a study does not vary it.

        solver: Solver of the fits.
    """

    depth: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)
    breadths: tuple[int, ...] = ()
    objective: ObjectiveName = "kd"
    solver: SolverName = "exact"

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds: expected numbers >= 0, got {self.seeds}")
        if min(self.depth, *self.breadths, 1) < 1:
            raise InputError(f"depth and breadths: expected numbers >= 1, got {self.depth} and {self.breadths}")

    def fit(self, rewards: Rewards, scope: AnyScope, *, objective: ObjectiveName | None = None) -> Offsets:
        """Offsets of one scope: `auto` gated, the others ungated."""
        chosen = objective or self.objective
        return fit(rewards, scope=scope, gate=scope == "auto", objective=chosen, solver=self.solver)


@dataclass(frozen=True, slots=True)
class Study:
    """Cells to measure, and what their columns say together."""

    cells: tuple[Cell, ...]
    report: Callable[[Sequence[Columns]], Report]


def inputs(workload: Workload) -> str:
    """SHA-256 of the contents of a workload."""
    return content_hash([[part["dataset"], part["sha256"]] for part in workload.manifest()])


def cell(settings: Mapping[str, Any], options: Options, measure: Callable[[], Columns]) -> Cell:
    """A cell of *settings*, under what of the *options* every fit depends on."""
    return Cell({"objective": options.objective, "solver": options.solver, **settings}, measure)


def point(workload: Workload, options: Options, content: str, *, queries: int, depth: int, seed: int) -> Cell:
    """Every scope and direct rerank on the same rewarded pairs: *queries* by water-filling, to *depth*."""
    everyone = workload.per_task(len(workload))
    queries = min(queries, everyone)
    drawn_by = 0 if queries == everyone else seed  # all are all, whatever the seed

    def measure() -> Columns:
        return scopes(workload, options, workload.drawn(queries, drawn_by), depth)

    settings = {"cell": "scopes", "inputs": content, "queries": queries, "depth": depth, "seed": drawn_by}
    return cell(settings, options, measure)


def scopes(workload: Workload, options: Options, judged: Judged, depth: int) -> Columns:
    """nDCG@10 of every query under each scope, direct rerank, and both together."""
    rewards = workload.rewards(judged, depth)
    columns = {str(scope): workload.served(options.fit(rewards, scope)) for scope in PLAIN}
    offsets = options.fit(rewards, "auto")
    columns["auto"] = workload.served(offsets)
    columns[RERANK] = workload.reranked(judged, depth)
    columns[FUSED] = workload.fused(offsets, judged, depth)
    return columns


def each(results: Sequence[Columns], options: Options) -> list[Sequence[Columns]]:
    """The results of each cell under all seeds; cells come seed by seed."""
    seeds = len(options.seeds)
    return [results[first : first + seeds] for first in range(0, len(results), seeds)]


def gains(workload: Workload, results: Sequence[Columns], columns: Sequence[str]) -> Float64:
    """Changes (C, S, N) of nDCG@10 of *columns*, x 100, S results of one cell under S seeds."""
    return 100.0 * np.array([[found[name] - workload.raw for found in results] for name in columns])


def by_set(workload: Workload, values: Float64) -> list[tuple[Entry, ...]]:
    """A row for each set and one for their mean: estimates of the columns of *values* (C, S, N)."""
    rows: list[tuple[Entry, ...]] = []
    for number, name in enumerate(workload.names):
        mine = workload.tasks == number
        rows.append((name, *task_means(values[:, :, mine], workload.tasks[mine])))
    return [*rows, ("mean", *task_means(values, workload.tasks))]


def lines(columns: Sequence[str], x: Sequence[float], rows: Sequence[Sequence[Estimate]]) -> tuple[Line, ...]:
    """One line per column through *rows* of estimates at *x*."""
    return tuple(Line(name, tuple(x), tuple(row[i] for row in rows)) for i, name in enumerate(columns))


def bars(columns: Sequence[str], rows: Sequence[Sequence[Entry]]) -> tuple[Line, ...]:
    """One set of points per column over the names that *rows* begin with; NaN is left out."""
    return tuple(
        Line(name, tuple(str(row[0]) for row in rows), tuple(e for row in rows if isinstance(e := row[i], Estimate)))
        for i, name in enumerate(columns, 1)
    )


def source(workload: Workload) -> str:
    """Whose rewards and whose vectors these are, in words."""
    judges = sorted({c.judge_named for c in workload.collections})
    embedders = sorted({c.embedder for c in workload.collections})
    return f"rewards: {', '.join(judges)}; embedder: {', '.join(embedders)}; {len(workload)} queries"
