"""What every study is made of: its workload, its options, its cells, and how their outcomes become rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.paper.cells import Cell, Columns, content_hash
from benchmarks.paper.estimates import Estimate, task_means, task_shares
from benchmarks.paper.tables import Curve, Entry, StudyReport
from benchmarks.paper.workload import Judged, Workload
from tttembed_rag import Rewards
from tttembed_rag.errors import InputError
from tttembed_rag.evaluate.measures import LEAST_GAIN
from tttembed_rag.fitting.objectives import OBJECTIVES
from tttembed_rag.fitting.recipe import Recipe, Solver
from tttembed_rag.gate.fit import fit
from tttembed_rag.offsets.offset import AnyScope
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.vectors.rows import Float64

# Everything that serves offsets, then what does not; `auto` is gated, the others are published without evidence.
PLAIN: tuple[AnyScope, ...] = ("global", "task", "local", "query")
SCOPES = (*PLAIN, "auto")
RERANK = "direct rerank"
# A new search with what auto serves, its judged documents then by what judge and search say together.
FUSED = "auto + judge"
ALL = (*SCOPES, RERANK, FUSED)
INTERVALS = (
    "Changes of nDCG@10 x 100 over raw retrieval, sets weighing the same; [95 % interval] by bootstrap over queries "
    "and seeds."
)
# Least gain of direct rerank, nDCG@10 x 100, that has shares.
LEAST = 100.0 * LEAST_GAIN
SHARES = (
    "Share of the gain that direct rerank would have if each of these queries were judged, in %; on the mean of the "
    f"sets, mean gain over mean gain; - where direct rerank gains less than {LEAST:g}."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """How a study is run.

    Attributes:
        depth: Rewarded candidates per query, where a study does not vary it.
        seeds: Seeds of the draw of rewarded queries; 0 is the paper's.
        breadths: Rewarded queries at each point, in all or per task as the study counts; () is its own grid.
        methods: What is compared beside offsets and direct rerank, by their names in tables; () is everything.
        objective: Name of the objective of the fits, where a study does not vary it.
        solver: Solver of the fits.
    """

    depth: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)
    breadths: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    objective: str = "kd"
    solver: Solver = "exact"

    def __post_init__(self) -> None:
        if not self.seeds or min(self.seeds) < 0:
            raise InputError(f"seeds: expected numbers >= 0, got {self.seeds}")
        if min(self.depth, *self.breadths, 1) < 1:
            raise InputError(f"depth and breadths: expected numbers >= 1, got {self.depth} and {self.breadths}")

    def fit(
        self, rewards: Rewards, scope: AnyScope, *, objective: str | None = None, trusted: bool | None = None
    ) -> Offsets:
        """Offsets of one scope: `auto` gated, the others ungated."""
        recipe = Recipe(objective=OBJECTIVES[objective or self.objective], solver=self.solver)
        return fit(rewards, scope=scope, gate=scope == "auto", recipe=recipe, trusted=trusted)


@dataclass(frozen=True, slots=True)
class Study:
    """Cells to measure, and the report that their columns become."""

    cells: tuple[Cell, ...]
    report: Callable[[Sequence[Columns]], StudyReport]


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """The cells of a study on one workload, and the gains that their columns hold.

    Attributes:
        workload: What is measured on.
        options: How.
        content: SHA-256 of the contents of the workload.
    """

    workload: Workload
    options: StudyOptions
    content: str

    @classmethod
    def of(cls, workload: Workload, options: StudyOptions) -> Design:
        """The design of a study of *workload* under *options*."""
        return cls(workload, options, content_hash([[part["dataset"], part["sha256"]] for part in workload.manifest()]))

    def cell(self, kind: str, measure: Callable[[], Columns], **settings: Any) -> Cell:
        """A cell of that *kind*, identified by the workload, by what every fit depends on, and by *settings*."""
        common = {"cell": kind, "inputs": self.content, "depth": self.options.depth}
        fits = {"objective": self.options.objective, "solver": self.options.solver}
        return Cell({**common, **fits, **settings}, measure)

    def drawn(
        self, kind: str, measure: Callable[[Judged], Columns], *, queries: int, seed: int, **settings: Any
    ) -> Cell:
        """A cell on the rewarded queries that *seed* draws by water-filling; where all are drawn, the seed is 0."""
        everyone = self.workload.per_task(len(self.workload))
        queries, seed = (everyone, 0) if queries >= everyone else (queries, seed)
        return self.cell(
            kind, lambda: measure(self.workload.drawn(queries, seed)), queries=queries, seed=seed, **settings
        )

    def point(self, *, queries: int, depth: int, seed: int) -> Cell:
        """Every scope and direct rerank on the same rewarded pairs: *queries* by water-filling, to *depth*."""
        return self.drawn("scopes", lambda judged: self.scopes(judged, depth), queries=queries, seed=seed, depth=depth)

    def scopes(self, judged: Judged, depth: int) -> dict[str, Float64]:
        """nDCG@10 of every query under each scope, direct rerank, and both together."""
        rewards = self.workload.rewards(judged, depth)
        columns = {str(scope): self.workload.served(self.options.fit(rewards, scope)) for scope in PLAIN}
        offsets = self.options.fit(rewards, "auto")
        columns["auto"] = self.workload.served(offsets)
        columns[RERANK] = self.workload.reranked(judged, depth)
        columns[FUSED] = self.workload.fused(offsets, judged, depth)
        return columns

    def breadths(self, own: Sequence[int]) -> tuple[int, ...]:
        """Rewarded queries per task at each point of a study with a grid of its *own*, all queries the last."""
        return (*(self.options.breadths or own), len(self.workload))

    def counts(self, breadths: Sequence[int]) -> list[float]:
        """*breadths* on the axis of a plot, where all are the queries of a set of mean size."""
        return [float(min(n, len(self.workload) / len(self.workload.names))) for n in breadths]

    def headed(self, breadths: Sequence[int]) -> list[str]:
        """Heads of the columns of a table by *breadths*."""
        return [f"n={'all' if n == breadths[-1] else n}" for n in breadths]

    def gains(self, results: Sequence[Columns], columns: Sequence[str]) -> list[Float64]:
        """Changes (C, S, N) of nDCG@10 x 100 of *columns* for each cell; *results* are cell by cell, seed by seed."""
        seeds = len(self.options.seeds)
        cells = [results[first : first + seeds] for first in range(0, len(results), seeds)]
        return [gains(self.workload, by_seed, columns) for by_seed in cells]

    def means(self, results: Sequence[Columns], columns: Sequence[str]) -> list[list[Estimate]]:
        """The means of those gains over tasks: for each cell one estimate per column."""
        return [task_means(values, self.workload.tasks) for values in self.gains(results, columns)]

    def reranked(self) -> Float64:
        """(N,) change of nDCG@10 x 100 that direct rerank would make if every query were judged."""
        everyone = [np.arange(len(collection.raw)) for collection in self.workload.collections]
        return 100.0 * (self.workload.reranked(everyone, self.options.depth) - self.workload.raw)

    def shares(self, values: Float64, reranked: Float64) -> list[Estimate]:
        """Of the gain that direct rerank would have on the same queries, the part that each of *values* keeps, in %.

        Args:
            values: Changes (C, S, N), NaN where a query is not of the population.
            reranked: (N,) what `reranked` gives.
        """
        whole = np.where(np.isfinite(values[0]), reranked, np.nan)
        return [share.times(100.0) for share in task_shares(values, whole, self.workload.tasks, least=LEAST)]

    @property
    def source(self) -> str:
        """The judge, the embedder and the size of the workload, for the title of a table."""
        judges = sorted({c.judge_named for c in self.workload.collections})
        embedders = sorted({c.embedder for c in self.workload.collections})
        return f"rewards: {', '.join(judges)}; embedder: {', '.join(embedders)}; {len(self.workload)} queries"


def gains(workload: Workload, results: Sequence[Columns], columns: Sequence[str]) -> Float64:
    """Changes (C, S, N) of nDCG@10 of *columns*, x 100, S results of one cell under S seeds."""
    return 100.0 * np.array([[result[name] - workload.raw for result in results] for name in columns])


def by_set(workload: Workload, values: Float64) -> list[tuple[Entry, ...]]:
    """A row for each set and one for their mean: estimates of the columns of *values* (C, S, N)."""
    rows: list[tuple[Entry, ...]] = []
    for number, name in enumerate(workload.names):
        of_set = workload.tasks == number
        rows.append((name, *task_means(values[:, :, of_set], workload.tasks[of_set])))
    return [*rows, ("mean", *task_means(values, workload.tasks))]


def shares_by_set(design: Design, values: Float64) -> list[tuple[Entry, ...]]:
    """A row for each set and one for their mean: the shares of direct rerank's gain of the columns (C, S, N), in %."""
    tasks, reranked = design.workload.tasks, design.reranked()
    rows: list[tuple[Entry, ...]] = []
    for number, name in enumerate(design.workload.names):
        rows.append((name, *design.shares(np.where(tasks == number, values, np.nan), reranked)))
    return [*rows, ("mean", *design.shares(values, reranked))]


def curves(columns: Sequence[str], x: Sequence[float], rows: Sequence[Sequence[Estimate]]) -> tuple[Curve, ...]:
    """One curve per column through *rows* of estimates at *x*."""
    return tuple(Curve(name, tuple(x), tuple(row[i] for row in rows)) for i, name in enumerate(columns))


def dots(columns: Sequence[str], rows: Sequence[Sequence[Entry]]) -> tuple[Curve, ...]:
    """One set of points per column over the names that *rows* begin with; NaN is left out."""
    return tuple(
        Curve(name, tuple(str(row[0]) for row in rows), tuple(e for row in rows if isinstance(e := row[i], Estimate)))
        for i, name in enumerate(columns, 1)
    )
