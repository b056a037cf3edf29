"""Reward models on the same pairs: the gain of direct rerank and of offsets under each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.paper.cells import Columns
from benchmarks.paper.design import ALL, INTERVALS, RERANK, Design, Study, StudyOptions, dots, gains
from benchmarks.paper.estimates import task_means
from benchmarks.paper.tables import Entry, StudyReport, Table
from benchmarks.paper.workload import Workload
from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import Collection, label_scale
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.evaluate.files import load_beir, load_scores, load_vectors
from tttembed_rag.rewards.scales import Scale


def open_on_same_pairs(folders: Sequence[Path], vectors: str, judges: Sequence[tuple[str, Scale]]) -> list[Workload]:
    """One workload per judge, over the queries and pairs that all of *judges* scored; labels score every pair."""
    by_judge: list[list[Collection]] = [[] for _ in judges]
    for folder in folders:
        dataset = load_beir(folder)
        scores = {name: dataset.qrels if name == QRELS else load_scores(folder, name) for name, _ in judges}
        common = {query: set(dataset.documents) for query in dataset.queries}
        for name in scores.keys() - {QRELS}:
            common = {query: documents & scores[name].get(query, {}).keys() for query, documents in common.items()}
        dataset = dataset.only({query for query, documents in common.items() if documents})
        docs, queries = load_vectors(folder, vectors, dataset)
        for collections, (name, scale) in zip(by_judge, judges, strict=True):
            given, least = scores[name], 0.0 if name == QRELS else -np.inf
            kept = {q: {d: max(least, given[q].get(d, 0.0)) for d in common[q]} for q in dataset.queries}
            collections.append(
                Collection.of(
                    dataset,
                    docs,
                    queries,
                    embedder=vectors,
                    judge=f"{name} (simulated judge)" if name == QRELS else name,
                    scores=kept,
                    scale=label_scale(dataset) if name == QRELS else scale,
                )
            )
    return [Workload.of(collections) for collections in by_judge]


def judges_study(workloads: Sequence[Workload], options: StudyOptions) -> Study:
    """Every judge of *workloads* at full coverage of the same pairs."""
    if len({tuple(workload.raw) for workload in workloads}) > 1:
        raise DataError("judges: expected the same queries for every judge, got different ones")
    designs = [Design.of(workload, options) for workload in workloads]
    cells = [design.cell("judges", partial(_measured, design)) for design in designs]

    def report(results: Sequence[Columns]) -> StudyReport:
        by_judge = {
            w.collections[0].judge: task_means(gains(w, [columns], ALL), w.tasks)
            for w, columns in zip(workloads, results, strict=True)
        }
        best_first = sorted(by_judge.items(), key=lambda item: -item[1][ALL.index(RERANK)].mean)
        rows: list[tuple[Entry, ...]] = [(judge, *estimates) for judge, estimates in best_first]
        first = workloads[0]
        raw = task_means(100 * first.raw[None, None], first.tasks)[0].mean
        _, vectors = designs[0].source.split("; ", 1)  # without the judge, which is each row's own
        table = Table(
            f"Reward models on the same pairs, depth {options.depth}, raw {raw:.2f}; {vectors}",
            ("judge", *ALL),
            tuple(rows),
            (INTERVALS, "A dash: scores without a declared scale can reorder, but nothing can be learned from them."),
        )
        return StudyReport((table,), dots(ALL, rows), "")

    return Study(tuple(cells), report)


def _measured(design: Design) -> Columns:
    """One judge at full coverage; only direct rerank where its scores have no scale."""
    workload, depth = design.workload, design.options.depth
    if all(c.scale.kind != "unbounded" for c in workload.collections):
        return design.scopes(workload.pools, depth)
    nothing = {name: np.full(len(workload), np.nan) for name in ALL}
    return {**nothing, RERANK: workload.reranked(workload.pools, depth)}
