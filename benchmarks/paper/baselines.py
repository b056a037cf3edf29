"""The rivals and us on the same rewarded pairs, with paired tests corrected for their number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.cells import Columns
from benchmarks.paper.completion import COMPLETIONS
from benchmarks.paper.design import (
    ALL,
    FUSED,
    INTERVALS,
    RERANK,
    SHARES,
    Design,
    Study,
    StudyOptions,
    by_set,
    curves,
)
from benchmarks.paper.documentrivals import DocumentRival, document_rivals
from benchmarks.paper.estimates import holm, paired_p, task_means
from benchmarks.paper.rivals import RIVALS
from benchmarks.paper.semanticcache import CACHES
from benchmarks.paper.tables import Entry, StudyReport, Table
from benchmarks.paper.workload import Judged, Workload
from tttembed_rag import Rewards
from tttembed_rag.errors import InputError
from tttembed_rag.evaluate.collection import Collection, pooled_rewards
from tttembed_rag.vectors.checks import IntArray, unit
from tttembed_rag.vectors.rows import Float64

# Rewarded queries per task, then all of them.
BREADTHS = (4, 16, 64, 200)
OURS = "auto"
# The same where the judge is declared: no rival asks who vouches for it.
DECLARED = "auto, declared"
_SEARCHES = {"query": "2 if judged", "auto": "1, 2 if judged", RERANK: "1", FUSED: "1, 2 if judged"}


def baselines_study(workload: Workload, options: StudyOptions) -> Study:
    """Every rival on *workload*; of those that move documents, the ones that are installed."""
    design = Design.of(workload, options)
    names = contestants(options)
    breadths = design.breadths(BREADTHS)
    cells = [
        design.drawn("rivals", partial(measured_all, design), queries=workload.per_task(n), seed=seed, methods=names)
        for n in breadths
        for seed in options.seeds
    ]

    def report(results: Sequence[Columns]) -> StudyReport:
        gained = design.gains(results, names)
        judged = [
            np.array([workload.mask(workload.drawn(workload.per_task(n), seed)) for seed in options.seeds])
            for n in breadths
        ]
        heads = design.headed(breadths)
        curve = [task_means(values, workload.tasks) for values in gained]
        parts = {
            "rewarded queries": [
                task_means(np.where(rewarded, values, np.nan), workload.tasks)
                for values, rewarded in zip(gained, judged, strict=True)
            ],
            "queries without rewards": [
                task_means(np.where(rewarded, np.nan, values), workload.tasks)
                for values, rewarded in zip(gained[:-1], judged[:-1], strict=True)
            ],
        }
        tables = [
            Table(
                f"Everyone on the same pairs, by rewarded queries per set, depth {options.depth}; {design.source}",
                ("method", *heads, "searches"),
                tuple((name, *(row[i] for row in curve), _searches(name)) for i, name in enumerate(names)),
                (
                    INTERVALS,
                    "All queries, rewarded or not. (documents): it moves document vectors and writes to the index.",
                ),
            ),
            *(
                Table(
                    f"The same on {part} alone",
                    ("method", *heads[: len(rows)]),
                    tuple((name, *(row[i] for row in rows)) for i, name in enumerate(names)),
                )
                for part, rows in parts.items()
            ),
            kept(design, names, heads[:-1], list(zip(gained[:-1], judged[:-1], strict=True))),
            _tests(workload, names, heads, gained, OURS, "all queries"),
            _tests(
                workload,
                names,
                heads[:-1],
                [np.where(rewarded, np.nan, values) for values, rewarded in zip(gained[:-1], judged[:-1], strict=True)],
                DECLARED,
                "queries without rewards",
            ),
            *(
                Table(f"By set, {head}", ("method", *workload.names, "mean"), turned(by_set(workload, values), names))
                for head, values in zip(heads, gained, strict=True)
            ),
        ]
        return StudyReport(tuple(tables), curves(names, design.counts(breadths), curve), "rewarded queries per set")

    return Study(tuple(cells), report)


# A collection, the rows of its judged queries and their rewards to nDCG@10 of every query.
Measure: TypeAlias = Callable[[Collection, IntArray, Rewards], Float64]


def rivals_of(options: StudyOptions) -> dict[str, Measure]:
    """The rivals, completed matrices, caches, and rivals that move documents, of those that the *options* name.

    Raises:
        InputError: The options name another.
    """
    searched = {name: partial(_searched, move) for name, move in document_rivals().items()}
    moved = {name: entrant.measure for name, entrant in RIVALS.items()}
    everyone: dict[str, Measure] = {**moved, **COMPLETIONS, **CACHES, **searched}
    if unknown := set(options.methods) - set(everyone):
        raise InputError(f"methods: expected some of {', '.join(everyone)}, got {', '.join(sorted(unknown))}")
    return {name: measure for name, measure in everyone.items() if name in (options.methods or everyone)}


def contestants(options: StudyOptions) -> list[str]:
    """Everything that is measured on the same pairs: ours, and the rivals."""
    return [*ALL, DECLARED, *rivals_of(options)]


def measured_all(design: Design, judged: Judged) -> Columns:
    """nDCG@10 of every query of the workload of *design* under each of `contestants`."""
    workload, options = design.workload, design.options
    columns = design.scopes(judged, options.depth)
    columns[DECLARED] = workload.served(options.fit(workload.rewards(judged, options.depth), "auto", trusted=True))
    for name, measure in rivals_of(options).items():
        columns[name] = workload.measured(partial(_measured, options.depth, measure), judged)
    return columns


def _measured(depth: int, measure: Measure, collection: Collection, rows: IntArray) -> Float64:
    """nDCG@10 (M,) of a rival that learns from the rewards of *rows*; raw without any."""
    return measure(collection, rows, pooled_rewards([collection], [rows], depth)) if len(rows) else collection.raw


def _searched(move: DocumentRival, collection: Collection, rows: IntArray, rewards: Rewards) -> Float64:
    """nDCG@10 (M,) of a search by dot product over the documents that a rival moved."""
    scores = unit(collection.query_vectors).astype(np.float64) @ move(collection, rows, rewards).T
    everyone = np.arange(len(collection.raw))
    return collection.graded(everyone, np.argsort(-scores, axis=1, kind="stable")[:, :10])


def kept(
    design: Design, names: Sequence[str], heads: Sequence[str], parts: Sequence[tuple[Float64, NDArray[np.bool_]]]
) -> Table:
    """The shares of direct rerank's gain on queries without rewards; *parts* are gains and which were rewarded."""
    reranked = design.reranked()
    shares = [design.shares(np.where(rewarded, np.nan, values), reranked) for values, rewarded in parts]
    return Table(
        "Share of direct rerank's gain kept on queries without rewards",
        ("method", *heads),
        tuple((name, *(row[i] for row in shares)) for i, name in enumerate(names)),
        (SHARES,),
    )


def turned(rows: Sequence[tuple[Entry, ...]], names: Sequence[str]) -> tuple[tuple[Entry, ...], ...]:
    """Methods as rows, sets as columns."""
    return tuple((name, *(row[i] for row in rows)) for i, name in enumerate(names, 1))


def _searches(name: str) -> str:
    """How many searches a method needs per query."""
    return RIVALS[name].searches if name in RIVALS else _SEARCHES.get(name, "1")


def _tests(
    workload: Workload, names: Sequence[str], heads: Sequence[str], gained: Sequence[Float64], name: str, part: str
) -> Table:
    """The method *name* minus each other one, with the corrected p value of every comparison of the table."""
    ours, others = names.index(name), [i for i, other in enumerate(names) if other != name]
    differences = [values[[ours]] - values[others] for values in gained]
    estimates = [task_means(pairs, workload.tasks) for pairs in differences]
    p = [[paired_p(_over_seeds(pair), workload.tasks) for pair in pairs] for pairs in differences]
    corrected = np.reshape(holm(list(np.ravel(p))), np.shape(p))
    rows = []
    for row, i in enumerate(others):
        entries: list[Entry] = [names[i]]
        for column in range(len(heads)):
            entries += [estimates[column][row], f"{corrected[column, row]:.3f}"]
        rows.append(tuple(entries))
    return Table(
        f"{name} minus each of the others, {part}",
        ("method", *(column for head in heads for column in (head, f"p {head}"))),
        tuple(rows),
        (f"p: paired t test of the mean over sets, corrected by Holm for {corrected.size} comparisons.",),
    )


def _over_seeds(values: Float64) -> Float64:
    """Means (N,) over the seeds of *values* (S, N) that measured a query; NaN where none did."""
    measured = np.isfinite(values)
    count = measured.sum(axis=0)
    total = np.where(measured, values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0))
