"""Queries without rewards, by two splits: other queries, and queries for documents that no reward is about.

A method that moves documents, or learns which documents are liked, may gain on new queries for the same documents and
nothing on queries for others: new tools, new articles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from benchmarks.paper.baselines import contestants, kept, measured_all, turned
from benchmarks.paper.cells import Columns
from benchmarks.paper.design import INTERVALS, Design, Study, StudyOptions, by_set, curves
from benchmarks.paper.estimates import task_means
from benchmarks.paper.tables import Curve, StudyReport, Table
from benchmarks.paper.workload import Workload
from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import Collection, split
from tttembed_rag.vectors.checks import IntArray

# Rewarded queries per task.
BREADTHS = (64, 200)
# Share of the queries that is never rewarded, by the usual split.
HOLDOUT = 0.3
# Share of the relevant documents that no reward is about, by the other.
UNSEEN = 0.5

# A collection and a seed to: the collection as its rewards see it, the queries to draw from, the queries to measure.
Split: TypeAlias = Callable[[Collection, int], tuple[Collection, IntArray, IntArray]]


def by_queries(collection: Collection, seed: int) -> tuple[Collection, IntArray, IntArray]:
    """The usual split: some queries are never rewarded."""
    return collection, *split(collection, seed, HOLDOUT)


def by_documents(collection: Collection, seed: int) -> tuple[Collection, IntArray, IntArray]:
    """Half of the relevant documents are in no reward; measured are queries for those alone, rewarded for the others.

    Queries for documents of both halves are left out.
    """
    draw, qrels = np.random.default_rng(seed), collection.dataset.qrels
    relevant = [{doc for doc, grade in qrels[str(q)].items() if grade > 0} for q in collection.query_ids]
    documents = draw.permutation(sorted(set().union(*relevant)))
    unseen = frozenset(documents[: round(UNSEEN * len(documents))].tolist())
    seen = replace(collection, unjudged=unseen)
    order = draw.permutation(len(relevant)).tolist()
    pool = [q for q in order if relevant[q].isdisjoint(unseen) and len(seen.candidates(q, 1)[0])]
    measured = [q for q in order if relevant[q] and relevant[q] <= unseen]
    return seen, np.array(pool, dtype=np.intp), np.array(measured, dtype=np.intp)


SPLITS: dict[str, Split] = {"other queries": by_queries, "unseen documents": by_documents}


def unseen_study(workload: Workload, options: StudyOptions) -> Study:
    """Every method on queries without rewards of *workload*, by both splits.

    Raises:
        DataError: A set has no query for unseen documents alone, or none to learn from.
    """
    design = Design.of(workload, options)
    breadths = options.breadths or BREADTHS
    names = contestants(options)
    for collection in workload.collections:
        for seed in options.seeds:
            _, pool, measured = by_documents(collection, seed)
            if not (pool.size and measured.size):
                raise DataError(
                    f"{collection.dataset.name}: expected queries for seen and for unseen documents alone, "
                    f"got {pool.size} and {measured.size} of {len(collection.raw)}"
                )

    def measure(separate: Split, rewarded: int, seed: int) -> Columns:
        seen, pools, measured = zip(*(separate(c, seed) for c in workload.collections), strict=True)
        of_seen = replace(design, workload=replace(workload, collections=seen))
        columns = measured_all(of_seen, [pool[:rewarded] for pool in pools])
        population = workload.mask(measured)
        return {name: np.where(population, columns[name], np.nan) for name in names}

    cells = [
        design.cell("unseen", partial(measure, separate, n, seed), split=name, rewarded=n, seed=seed, methods=names)
        for name, separate in SPLITS.items()
        for n in breadths
        for seed in options.seeds
    ]

    def report(results: Sequence[Columns]) -> StudyReport:
        gained = design.gains(results, names)
        heads = [f"n={n}" for n in breadths]
        tables: list[Table] = []
        lines: tuple[Curve, ...] = ()
        for number, name in enumerate(SPLITS):
            of_split = gained[number * len(breadths) : (number + 1) * len(breadths)]
            means = [task_means(values, workload.tasks) for values in of_split]
            tables += [
                Table(
                    f"Queries without rewards: {name}; by rewarded queries per set, depth {options.depth}; "
                    f"{design.source}",
                    ("method", *heads),
                    tuple((method, *(row[i] for row in means)) for i, method in enumerate(names)),
                    (INTERVALS, _NOTE) if number else (INTERVALS,),
                ),
                kept(design, names, heads, [(values, np.isnan(values[0])) for values in of_split]),
                Table(
                    f"By set: {name}, {heads[-1]}",
                    ("method", *workload.names, "mean"),
                    turned(by_set(workload, of_split[-1]), names),
                ),
            ]
            lines = curves(names, [float(n) for n in breadths], means)
        return StudyReport(tuple(tables), lines, "rewarded queries per set", f"{name}: change of nDCG@10 x 100")

    return Study(tuple(cells), report)


_NOTE = "Unseen documents: relevant documents that no reward is about; the queries measured have no other relevant one."
