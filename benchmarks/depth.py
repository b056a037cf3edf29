"""How deep must a reranker still look at a steered list? What is certified, and what it loses on other queries.

    python benchmarks/depth.py [--sets a,b] [--embedders minilm,e5] [--judge qrels+.05] [--judged 64,200] [--seeds 0,1]
        [--loss .01] [--words]

A collection's queries are judged ten deep, offsets are learned with a declared judge, and `Offsets.depth` says how deep
is deep enough. All other queries are then searched with their offsets, and the first documents that it names are
reranked; against them stands the base list with ten reranked. Losses are of nDCG@10, once by the labels and once by the
judge's own scores (a query of which the judge likes little weighs less). A certificate is broken where a mean loss is
above the one allowed. With --words fifty documents are sorted by the rescorer before the first of them are reranked,
and its certificate is taken. The stored scores of the cross-encoder reach fifty documents deep; what it never scored
counts as bad. About 6 minutes on one core.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from harm import HERE, NOISE, Bench, bench, has_vectors, judged

from tttembed_rag import Offsets, fit
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.fitting.measures import dcg

SETS = (
    *("metatool", "seal-tools", "bfcl-functions", "cranfield"),
    *("apibench-hf", "chroma-chunks", "hotpotqa-dev500", "scifact"),
)
# Documents that are reranked today, and those that words sort.
TODAY, SORTED = 10, 50


@dataclass(frozen=True)
class Cell:
    """One collection with so many queries judged, and what its certificate was worth.

    Attributes:
        labels: (10,) mean loss by labels of reranking 1 to 10 documents of the steered list.
        judge: (10,) the same by the judge's scores.
    """

    name: str
    count: int
    seed: int
    served: bool
    depth: int
    labels: np.ndarray
    judge: np.ndarray

    def __str__(self) -> str:
        lost = f"{self.labels[self.depth - 1]:+.3f} by labels, {self.judge[self.depth - 1]:+.3f} by the judge"
        served = "steered" if self.served else "base vectors"
        return f"{self.name:<16}{self.count:>5} judged, seed {self.seed}, {served}: rerank {self.depth:>2}, lost {lost}"


def scores_of(ground: Bench, judge: str, seed: int) -> np.ndarray:
    """(M, N) rewards of every pair: labels with their noise, or those of a stored judge, 0 where it never looked."""
    collection = ground.collection
    column = {name: row for row, name in enumerate(collection.doc_ids.tolist())}
    table = np.zeros((len(collection.query_ids), len(column)), np.float32)
    for row, query in enumerate(collection.query_ids.tolist()):
        documents = [name for name in collection.scores.get(query, {}) if name in column]
        for name, reward in collection.rewards_of(query, documents).items():
            table[row, column[name]] = reward
    if noise := NOISE.get(judge):
        table += np.float32(noise) * np.random.default_rng(seed + 1).standard_normal(table.shape, np.float32)
    return table.clip(0, 1)


def reranked(listed: np.ndarray, scores: np.ndarray, depth: int) -> np.ndarray:
    """Lists (m, 10) with their first *depth* in the order of *scores* (m, N)."""
    first = listed[:, :depth]
    order = np.argsort(-np.take_along_axis(scores, first, axis=1), axis=1, kind="stable")
    return np.concatenate([np.take_along_axis(first, order, axis=1), listed[:, depth:]], axis=1)


def sorted_by_words(ground: Bench, offsets: Offsets, rows: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """(m, 10) the first of `SORTED` documents that a search with *vectors* (m, d) finds, in the rescorer's order."""
    dataset = ground.collection.dataset
    similarities, found = ground.collection.index.search(vectors, SORTED)
    if (rescorer := offsets.rescorer(dataset.name)) is None:
        return found[:, :TODAY]
    texts = np.array(list(dataset.documents.values()), dtype=object)
    queries = (dataset.queries[query] for query in ground.collection.query_ids[rows].tolist())
    each = zip(queries, found, similarities, strict=True)
    orders = [rescorer.order(query, texts[near].tolist(), scores) for query, near, scores in each]
    return np.take_along_axis(found, np.array(orders), axis=1)[:, :TODAY]


def measured(ground: Bench, judge: str, count: int, seed: int, loss: float, *, words: bool) -> Cell | None:
    """One cell; None where the collection has fewer queries to judge."""
    collection, name = ground.collection, ground.collection.dataset.name
    pool, _ = split(collection, seed, 0.3)
    if len(pool) < count:
        return None
    rewards = judged(pooled_rewards([collection], [pool[:count]], TODAY), judge, seed)
    offsets = fit(replace(rewards, trusted=True))
    others = np.setdiff1d(np.arange(len(collection.query_ids)), pool[:count])
    scores = scores_of(ground, judge, seed)[others]
    queries = collection.query_vectors[others]
    steered = offsets.apply(queries, task=name)
    steered /= np.linalg.norm(steered, axis=1, keepdims=True)
    lists = collection.index.search(steered, TODAY)[1]
    if words:
        lists = sorted_by_words(ground, offsets, others, steered)
    today = reranked(collection.index.search(queries, TODAY)[1], scores, TODAY)
    right, liked = collection.graded(others, today), dcg(np.take_along_axis(scores, today, axis=1))
    typical = np.maximum(liked, liked.mean())
    by_labels, by_judge = [], []
    for depth in range(1, TODAY + 1):
        shown = reranked(lists, scores, depth)
        by_labels.append(float((right - collection.graded(others, shown)).mean()))
        by_judge.append(float(((liked - dcg(np.take_along_axis(scores, shown, axis=1))) / typical).mean()))
    depth = offsets.depth(name, today=TODAY, loss=loss, words=words)
    served = offsets.find(name) is not None or (words and offsets.rescorer(name) is not None)
    return Cell(name, count, seed, served, depth, np.array(by_labels), np.array(by_judge))


def told(cells: list[Cell], loss: float) -> str:
    """One line on the cells of one number of judged queries."""
    depth = np.array([cell.depth for cell in cells])
    at = {
        "labels": np.array([cell.labels[cell.depth - 1] for cell in cells]),
        "the judge": np.array([cell.judge[cell.depth - 1] for cell in cells]),
    }
    broken = "; ".join(
        f"by {who}: mean loss {lost.mean():+.3f}, broken in {int((lost > loss).sum())}, worst {lost.max():+.3f}"
        for who, lost in at.items()
    )
    five = np.mean([cell.labels[4] for cell in cells])
    return (
        f"{cells[0].count} judged, {len(cells)} cells: certified depth {depth.mean():.1f} instead of {TODAY}, "
        f"{1 - depth.mean() / TODAY:.0%} fewer pairs; {broken}; five deep everywhere: {five:+.3f} by labels"
    )


def main() -> None:
    """Print a line for each cell, and one for each number of judged queries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=list(SETS))
    parser.add_argument("--embedders", type=lambda text: text.split(","), default=["minilm"])
    parser.add_argument("--judge", default="ce-minilm-multi")
    for name, default in (("judged", [64, 200]), ("seeds", [0, 1])):
        parser.add_argument(f"--{name}", type=lambda text: [int(part) for part in text.split(",")], default=default)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--words", action="store_true", help="lists that a rescorer sorts")
    args = parser.parse_args()
    for embedder in args.embedders:
        cells: list[Cell] = []
        for name in (one for one in args.sets if has_vectors(args.data, one, embedder)):
            ground = bench(args.data, args.data, name, embedder, QRELS if args.judge in NOISE else args.judge)
            for count, seed in product(args.judged, args.seeds):
                if cell := measured(ground, args.judge, count, seed, args.loss, words=args.words):
                    cells.append(cell)
                    print(cell, flush=True)
        for count in args.judged:
            if mine := [cell for cell in cells if cell.count == count]:
                print(f"{embedder}: {told(mine, args.loss)}")


if __name__ == "__main__":
    main()
