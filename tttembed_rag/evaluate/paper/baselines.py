"""The rivals and us on the same rewarded pairs, with paired tests corrected for their number."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

import numpy as np

from tttembed_rag.evaluate.collection import Collection, pooled_rewards
from tttembed_rag.evaluate.intervals import holm, paired_p, task_means
from tttembed_rag.evaluate.paper.cells import Cell, Columns
from tttembed_rag.evaluate.paper.design import (
    ALL,
    FUSED,
    INTERVALS,
    RERANK,
    Options,
    Study,
    by_set,
    cell,
    each,
    gains,
    inputs,
    lines,
    scopes,
    source,
)
from tttembed_rag.evaluate.paper.rivals import RIVALS, Entrant, nudged
from tttembed_rag.evaluate.paper.tables import Entry, Report, Table
from tttembed_rag.evaluate.paper.workload import Workload
from tttembed_rag.vectors.checks import IntArray
from tttembed_rag.vectors.rows import Float64

# Rewarded queries per task, then all of them.
BREADTHS = (4, 16, 64, 200)
NUDGE = {"NUDGE-M (documents)": "NUDGEM", "NUDGE-N (documents)": "NUDGEN"}
OURS = "auto"
_SEARCHES = {"query": "2 if judged", "auto": "1, 2 if judged", RERANK: "1", FUSED: "1, 2 if judged"}


def baselines(workload: Workload, options: Options) -> Study:
    """Every rival on *workload*; NUDGE where `nudge-ft` is installed."""
    content = inputs(workload)
    moved = list(NUDGE) if find_spec("nudge") else []
    names = [*ALL, *RIVALS, *moved]
    breadths = (*(options.breadths or BREADTHS), len(workload))
    cells = [_rivals(workload, options, content, n, seed, moved) for n in breadths for seed in options.seeds]

    def report(results: Sequence[Columns]) -> Report:
        found = [gains(workload, some, names) for some in each(results, options)]
        judged = [
            np.array([workload.mask(workload.drawn(workload.per_task(n), seed)) for seed in options.seeds])
            for n in breadths
        ]
        heads = [f"n={'all' if n == breadths[-1] else n}" for n in breadths]
        curve = [task_means(values, workload.tasks) for values in found]
        parts = {
            "rewarded queries": [
                task_means(np.where(mine, values, np.nan), workload.tasks)
                for values, mine in zip(found, judged, strict=True)
            ],
            "queries without rewards": [
                task_means(np.where(mine, np.nan, values), workload.tasks)
                for values, mine in zip(found[:-1], judged[:-1], strict=True)
            ],
        }
        tables = [
            Table(
                f"Everyone on the same pairs, by rewarded queries per set, depth {options.depth}; {source(workload)}",
                ("method", *heads, "searches"),
                tuple((name, *(row[i] for row in curve), _searches(name)) for i, name in enumerate(names)),
                (INTERVALS, "All queries, rewarded or not. NUDGE moves documents: it needs to write to the index."),
            ),
            *(
                Table(
                    f"The same on {part} alone",
                    ("method", *heads[: len(rows)]),
                    tuple((name, *(row[i] for row in rows)) for i, name in enumerate(names)),
                )
                for part, rows in parts.items()
            ),
            _tests(workload, names, heads, found),
            *(
                Table(f"By set, {head}", ("method", *workload.names, "mean"), _turned(by_set(workload, values), names))
                for head, values in zip(heads, found, strict=True)
            ),
        ]
        counts = [float(min(n, len(workload) / len(workload.names))) for n in breadths]
        return Report(tuple(tables), lines(names, counts, curve), "rewarded queries per set")

    return Study(tuple(cells), report)


def _turned(rows: Sequence[tuple[Entry, ...]], names: Sequence[str]) -> tuple[tuple[Entry, ...], ...]:
    """Methods as rows, sets as columns."""
    return tuple((name, *(row[i] for row in rows)) for i, name in enumerate(names, 1))


def _searches(name: str) -> str:
    return RIVALS[name].searches if name in RIVALS else _SEARCHES.get(name, "1")


def _tests(workload: Workload, names: Sequence[str], heads: Sequence[str], found: Sequence[Float64]) -> Table:
    """Auto minus each other method, with the corrected p value of every comparison of the table."""
    ours, others = names.index(OURS), [i for i, name in enumerate(names) if name != OURS]
    differences = [values[[ours]] - values[others] for values in found]
    estimates = [task_means(some, workload.tasks) for some in differences]
    p = [[paired_p(pair.mean(axis=0), workload.tasks) for pair in some] for some in differences]
    corrected = np.reshape(holm(list(np.ravel(p))), np.shape(p))
    rows = []
    for row, i in enumerate(others):
        entries: list[Entry] = [names[i]]
        for column in range(len(heads)):
            entries += [estimates[column][row], f"{corrected[column, row]:.3f}"]
        rows.append(tuple(entries))
    return Table(
        f"{OURS} minus each of the others, all queries",
        ("method", *(name for head in heads for name in (head, f"p {head}"))),
        tuple(rows),
        (f"p: paired t test of the mean over sets, corrected by Holm for {corrected.size} comparisons.",),
    )


def _rivals(workload: Workload, options: Options, content: str, rewarded: int, seed: int, moved: Sequence[str]) -> Cell:
    """Ours and every rival on one draw of *rewarded* queries per task."""
    queries = workload.per_task(rewarded)
    drawn_by = 0 if queries == workload.per_task(len(workload)) else seed

    def measure() -> Columns:
        judged = workload.drawn(queries, drawn_by)
        columns = dict(scopes(workload, options, judged, options.depth))
        for name, entrant in RIVALS.items():
            columns[name] = workload.measured(partial(_moved, options.depth, entrant), judged)
        for name in moved:
            columns[name] = workload.measured(partial(_nudged, options.depth, NUDGE[name]), judged)
        return columns

    settings = {"cell": "rivals", "inputs": content, "queries": queries, "depth": options.depth, "seed": drawn_by}
    return cell({**settings, "documents": list(moved)}, options, measure)


def _moved(depth: int, entrant: Entrant, collection: Collection, rows: IntArray) -> Float64:
    """nDCG@10 of a collection's queries searched with a rival's vectors."""
    if not len(rows):
        return collection.raw
    rewards = pooled_rewards([collection], [rows], depth)
    searched = np.arange(len(collection.raw)) if entrant.everyone else rows
    return collection.measure(entrant.move(collection, rows, rewards), searched)


def _nudged(depth: int, method: str, collection: Collection, rows: IntArray) -> Float64:
    """nDCG@10 of a collection's queries over documents that NUDGE moved; it needs two rewarded queries."""
    if len(rows) < 2:
        return collection.raw
    return nudged(collection, rows, pooled_rewards([collection], [rows], depth), method=method)
