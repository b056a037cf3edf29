"""Reward models on the same pairs: what each is worth to direct rerank and to offsets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import Collection, label_scale
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.evaluate.files import load_beir, load_scores, load_vectors
from tttembed_rag.evaluate.intervals import task_means
from tttembed_rag.evaluate.paper.cells import Cell, Columns
from tttembed_rag.evaluate.paper.design import (
    ALL,
    INTERVALS,
    RERANK,
    Options,
    Study,
    bars,
    cell,
    gains,
    inputs,
    scopes,
    source,
)
from tttembed_rag.evaluate.paper.tables import Entry, Report, Table
from tttembed_rag.evaluate.paper.workload import Workload
from tttembed_rag.scales import Scale


def open_on_same_pairs(folders: Sequence[Path], vectors: str, judges: Sequence[tuple[str, Scale]]) -> list[Workload]:
    """One workload per judge, over the queries and pairs that all of *judges* scored; labels score every pair."""
    opened: list[list[Collection]] = [[] for _ in judges]
    for folder in folders:
        dataset = load_beir(folder)
        scores = {name: dataset.qrels if name == QRELS else load_scores(folder, name) for name, _ in judges}
        common = {query: set(dataset.documents) for query in dataset.queries}
        for name in scores.keys() - {QRELS}:
            common = {query: documents & scores[name].get(query, {}).keys() for query, documents in common.items()}
        dataset = dataset.only({query for query, documents in common.items() if documents})
        docs, queries = load_vectors(folder, vectors, dataset)
        for place, (name, scale) in zip(opened, judges, strict=True):
            given, least = scores[name], 0.0 if name == QRELS else -np.inf
            kept = {q: {d: max(least, given[q].get(d, 0.0)) for d in common[q]} for q in dataset.queries}
            place.append(
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
    return [Workload.of(collections) for collections in opened]


def judges(workloads: Sequence[Workload], options: Options) -> Study:
    """Every judge of *workloads* at full coverage of the same pairs."""
    if len({tuple(workload.raw) for workload in workloads}) > 1:
        raise DataError("judges: expected the same queries for every judge, got different ones")
    cells = [_judged(workload, options) for workload in workloads]

    def report(results: Sequence[Columns]) -> Report:
        found = {
            w.collections[0].judge: task_means(gains(w, [columns], ALL), w.tasks)
            for w, columns in zip(workloads, results, strict=True)
        }
        best_first = sorted(found.items(), key=lambda item: -item[1][ALL.index(RERANK)].mean)
        rows: list[tuple[Entry, ...]] = [(judge, *estimates) for judge, estimates in best_first]
        first = workloads[0]
        raw = task_means(100 * first.raw[None, None], first.tasks)[0].mean
        table = Table(
            f"Reward models on the same pairs, depth {options.depth}, raw {raw:.2f}; {source(first).split('; ', 1)[1]}",
            ("judge", *ALL),
            tuple(rows),
            (INTERVALS, "A dash: scores without a declared scale can reorder, but nothing can be learned from them."),
        )
        return Report((table,), bars(ALL, rows), "")

    return Study(tuple(cells), report)


def _judged(workload: Workload, options: Options) -> Cell:
    """One judge at full coverage; only direct rerank where its scores have no scale."""

    def measure() -> Columns:
        if all(c.scale.kind != "unbounded" for c in workload.collections):
            return scopes(workload, options, workload.pools, options.depth)
        nothing = {name: np.full(len(workload), np.nan) for name in ALL}
        return {**nothing, RERANK: workload.reranked(workload.pools, options.depth)}

    return cell({"cell": "judges", "inputs": inputs(workload), "depth": options.depth}, options, measure)
