"""Words beside vectors: what a rescorer gains on queries that nobody judged, beside the offset and a hybrid search.

    python benchmarks/words.py [--embedders minilm,static,lsa,e5] [--judges qrels+.05,bm25] [--breadths 16,64,200]
        [--seeds 0,1,2] [--cells OUT.jsonl] [--json OUT.json] [--data DIR] [--cache DIR]

A cell is one collection, embedder, judge, budget and seed: `fit` learns from judged queries, and up to 200 others
search with the offset and sort the first hundred by the rescorer. It is measured where the data vouch for the judge and
where it is declared. Two baselines ask no judge: reciprocal rank fusion with BM25, and standardised BM25 added at a
fixed weight. Collections, embedders and judges are those of `harm.py`. A judge named after an embedder, or `bm25`,
gives the scores of that retriever: it is real, and no better than what it judges. Labels as a judge are a simulation.
With --self-training the rescorer of a declared judge scores up to 500 queries that nobody judged, and offsets alone are
learned from both: one search, and no texts at serving.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harm
from benchmarks.harm import CONFIRMATION, DEVELOPMENT, HERE, HOLDOUT, STORED, Bench, Cell, bench, has_vectors, judged
from tttembed_rag import Offsets, Rewards, fit, tune
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.vectors.bm25 import Keywords

DEPTH = 10
# Candidates of a search that are sorted anew, and held-out queries of a cell, at most.
LISTED, ASKED = 100, 200
# Logged queries that nobody judged, at most, and the temperature at which a rescorer's scores become rewards.
TRAFFIC, TEMPERATURE = 500, 0.05
# Weight of standardised BM25 in a hybrid search without verdicts: the best of .25, .5 and 1 on development.
HYBRID = 0.5
# Those that verdicts choose from.
WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
RETRIEVERS = ("bm25", "static", "lsa")
VOUCHERS: Mapping[str, bool | None] = {"data": None, "declared": True}


@lru_cache(maxsize=4)
def keyword_scores(data: Path, cache: Path, name: str, embedder: str, source: str) -> np.ndarray:
    """(M, N) BM25 of every query and document of a collection, whose idf is of all its documents."""
    dataset = bench(data, cache, name, embedder, source).collection.dataset
    index = Keywords.of(list(dataset.documents.values()))
    return np.array([index.scores(query) for query in dataset.queries.values()])


@lru_cache(maxsize=32)
def rank_fusion(data: Path, cache: Path, name: str, embedder: str, source: str) -> np.ndarray:
    """(M,) nDCG@10 of every query of a collection by reciprocal rank fusion with BM25."""
    return bench(data, cache, name, embedder, source).collection.measure_hybrid()


def measure(cell: Cell, data: Path, cache: Path, *, self_training: bool = False) -> dict[str, Any] | None:
    """Changes of nDCG@10 on held-out queries; None where too few queries can be judged."""
    source = cell.rewards if cell.rewards in STORED else QRELS
    b = bench(data, cache, cell.workload, cell.embedder, source)
    pool, held = split(b.collection, cell.seed, HOLDOUT)
    if len(pool) < 0.75 * cell.breadth:
        return None
    unjudged = pool[cell.breadth :][:TRAFFIC] if self_training else None
    pool, held = pool[: cell.breadth], held[:ASKED]
    bm25 = keyword_scores(data, cache, cell.workload, cell.embedder, source)
    rewards = pooled_rewards([b.collection], [pool], cell.depth)
    first = b.collection.base[held][:, : cell.depth]
    if cell.rewards in RETRIEVERS:
        scores = bm25 if cell.rewards == "bm25" else bench(data, cache, cell.workload, cell.rewards, QRELS).similarities
        rewards = _judged_by(scores, rewards, pool, b.collection.doc_ids)
        direct = _graded(b, held, first, np.take_along_axis(scores[held], first, axis=1))
    else:
        rewards = judged(rewards, cell.rewards, cell.seed)
        direct = b.collection.measure_reranked(held, cell.depth)[held]
    raw, fused = b.collection.raw[held], rank_fusion(data, cache, cell.workload, cell.embedder, source)[held]
    legs = _legs(b, bm25)

    def added(weight: float) -> np.ndarray:
        return _graded(b, held, b.collection.base[held], (legs[0] + weight * legs[1])[held])

    unlearned = {"fixed weight": added(HYBRID), "rank fusion": fused, "direct": direct}
    changes = {name: float((found - raw).mean()) for name, found in unlearned.items()}
    published, said = {}, {}
    for voucher, trusted in VOUCHERS.items():
        offsets = fit(rewards, trusted=trusted)
        rescorer = offsets[f"local:{cell.workload}"].rescorer
        published[voucher] = rescorer is not None and rescorer.served
        changes[f"weight, {voucher}"] = float((added(_tuned(b, rewards, legs, trusted)) - raw).mean())
        said[voucher] = None if rescorer is None else rescorer.evidence.reason
        for name, found in _served(b, held, offsets, cell.workload).items():
            changes[f"{name}, {voucher}"] = float((found - raw).mean())
    if unjudged is not None:
        taught = fit(_taught(b, rewards, offsets, unjudged), trusted=True)
        changes["v, self-training"] = float((_served(b, held, taught, cell.workload)["v"] - raw).mean())
    return {**asdict(cell), "changes": changes, "published": published, "said": said}


def _taught(b: Bench, rewards: Rewards, offsets: Offsets, unjudged: np.ndarray) -> Rewards:
    """The *rewards*, and those that the rescorer gives what it and the search put among the first ten of other queries.

    A reward is 1 for the best of a list and less by the temperature times how far the score lies below that.
    """
    collection, task = b.collection, b.collection.dataset.name
    if (rescorer := offsets.rescorer(task)) is None or not len(unjudged):
        return rewards
    texts = np.array(list(collection.dataset.documents.values()), dtype=object)
    queries = offsets.apply(collection.query_vectors[unjudged], task=task)
    queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    similarities = queries.astype(np.float32) @ b.unit_docs.T
    candidates, values = [], []
    for row, near in zip(unjudged.tolist(), similarities, strict=True):
        top = np.argsort(-near, kind="stable")[:LISTED]
        scores = rescorer.scores(collection.dataset.queries[collection.query_ids[row]], texts[top].tolist(), near[top])
        kept = np.union1d(np.argsort(-scores)[:DEPTH], np.arange(DEPTH))
        candidates.append(top[kept])
        values.append(np.clip(1 + TEMPERATURE * (scores[kept] - scores.max()), 0, 1))
    more = Rewards.from_indexed(
        collection.query_vectors[unjudged],
        collection.doc_vectors,
        candidates,
        values,
        [task] * len(unjudged),
        collection.query_ids[unjudged].tolist(),
        judge=rewards.judge,
        doc_ids=collection.doc_ids.tolist(),
    )
    return Rewards.joined([rewards, more])


def _served(b: Bench, held: np.ndarray, offsets: Offsets, task: str) -> dict[str, np.ndarray]:
    """nDCG@10 (held,) of a search with the offset, and of its first hundred in the order of the rescorer."""
    queries = offsets.apply(b.collection.query_vectors[held], task=task)
    queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    similarities = queries.astype(np.float32) @ b.unit_docs.T
    top = np.argsort(-similarities, axis=1, kind="stable")[:, :LISTED]
    scores = np.take_along_axis(similarities, top, axis=1)
    rescorer, dataset = offsets.rescorer(task), b.collection.dataset
    found = scores
    if rescorer is not None:
        texts = np.array(list(dataset.documents.values()), dtype=object)
        asked = (dataset.queries[query] for query in b.collection.query_ids[held].tolist())
        each = zip(asked, top, scores, strict=True)
        found = np.array([rescorer.scores(query, texts[rows].tolist(), near) for query, rows, near in each])
    return {"v": _graded(b, held, top, scores), "words": _graded(b, held, top, found)}


def _graded(b: Bench, rows: np.ndarray, top: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """(rows,) nDCG@10 of the lists *top* (rows, k) in the order of *scores* (rows, k)."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    return b.collection.graded(rows, np.take_along_axis(top, order, axis=1))


def _legs(b: Bench, bm25: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Similarity and BM25 (M, 100) of the raw search's lists, each less its mean and over its mean deviation."""
    top = b.collection.base
    legs = (np.take_along_axis(scores, top, axis=1) for scores in (b.similarities, bm25))
    centred = (leg - leg.mean(axis=1, keepdims=True) for leg in legs)
    near, overlap = (leg / max(float(leg.std(axis=1).mean()), 1e-9) for leg in centred)
    return near, overlap


def _tuned(b: Bench, rewards: Rewards, legs: tuple[np.ndarray, np.ndarray], trusted: bool | None) -> float:
    """The weight of BM25 that verdicts prefer for a search that adds both legs, where today's is 0."""
    rows = {query: row for row, query in enumerate(b.collection.query_ids.tolist())}

    def search(weight: float, _: np.ndarray, query: str) -> list[str]:
        row = rows[query]
        order = np.argsort(-(legs[0][row] + weight * legs[1][row]), kind="stable")
        return b.collection.doc_ids[b.collection.base[row][order]].tolist()

    without_texts = replace(rewards, query_texts=np.full(len(rewards), "", dtype=object))
    return tune(without_texts, search, WEIGHTS, trusted=trusted).setting


def _judged_by(scores: np.ndarray, rewards: Rewards, pool: np.ndarray, doc_ids: np.ndarray) -> Rewards:
    """*rewards* as *scores* (M, N) give them, from the middle document (0) to the best of two thousand (1)."""
    row = {doc: place for place, doc in enumerate(doc_ids.tolist())}
    rows = np.array([row[doc] for doc in rewards.doc_ids.tolist()])
    low, high = np.quantile(scores[pool], [0.5, 0.9995])
    values = scores[np.repeat(pool, rewards.depths), rows[rewards.candidates]]
    return replace(rewards, values=np.clip((values - low) / max(high - low, 1e-9), 0, 1).astype(np.float64))


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print mean changes by embedder, judge and budget, and how far behind the offset the words of a collection fall.

    Means are of collections, each the mean of its seeds.
    """
    for embedder, judge in sorted({(row["embedder"], row["rewards"]) for row in rows}):
        mine = [row for row in rows if (row["embedder"], row["rewards"]) == (embedder, judge)]
        print(f"\n{embedder}, {judge} as judge: mean change of nDCG@10 on queries that nobody judged")
        breadths = sorted({row["breadth"] for row in mine})
        print(f"  {'':<16}" + "".join(f"{breadth:>8}" for breadth in breadths))
        means = [_by_collection([row for row in mine if row["breadth"] == breadth]) for breadth in breadths]
        for name in means[0]:
            print(f"  {name:<16}" + "".join(f"{np.mean(list(one[name].values())):>+8.3f}" for one in means))
        for voucher in VOUCHERS:
            pairs = [(one[f"words, {voucher}"], one[f"v, {voucher}"]) for one in means]
            behind = [min((words[name] - v[name], name) for name in words) for words, v in pairs]
            told = ", ".join(
                f"{breadth}: {worst:+.3f} ({name})" for breadth, (worst, name) in zip(breadths, behind, strict=True)
            )
            print(f"  words least beside v, {voucher}: {told}")
            lost = np.mean([row["changes"][f"words, {voucher}"] < -0.01 for row in mine])
            served = np.mean([row["published"][voucher] for row in mine])
            print(f"  cells below -.01, {voucher}: {lost:.0%}; published {served:.0%}")


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By embedder and judge: by judged queries the mean changes of collections, and how far words fall behind v.

    `cells` are all fits, `lost` the share of them that lose more than .01, by who vouches.
    """
    found: dict[str, Any] = {}
    for embedder, judge in sorted({(row["embedder"], row["rewards"]) for row in rows}):
        mine = [row for row in rows if (row["embedder"], row["rewards"]) == (embedder, judge)]
        by_breadth = {}
        for breadth in sorted({row["breadth"] for row in mine}):
            of = _by_collection([row for row in mine if row["breadth"] == breadth])
            means = {name: float(np.mean(list(values.values()))) for name, values in of.items()}
            behind = {v: min(of[f"words, {v}"][name] - of[f"v, {v}"][name] for name in of["direct"]) for v in VOUCHERS}
            by_breadth[str(breadth)] = {"means": means, "behind": behind}
        lost = {v: float(np.mean([row["changes"][f"words, {v}"] < -0.01 for row in mine])) for v in VOUCHERS}
        published = {v: sum(row["published"][v] for row in mine) for v in VOUCHERS}
        found[f"{embedder}, {judge}"] = {
            "judged queries": by_breadth,
            "cells": len(mine),
            "lost": lost,
            "published": published,
        }
    return found


def _by_collection(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By what is measured and by collection, the mean of its seeds."""
    names = sorted({row["workload"] for row in rows})
    return {
        what: {
            name: float(np.mean([row["changes"][what] for row in rows if row["workload"] == name])) for name in names
        }
        for what in rows[0]["changes"]
    }


def main() -> None:
    """Measure what is missing and print the tables of both halves of the collections."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "harm", help="vectors made here")
    parser.add_argument("--cells", type=Path, help="JSON lines, one per cell; read first, appended to")
    parser.add_argument("--json", type=Path, help="the figures of all collections together")
    parser.add_argument("--self-training", action="store_true", help="offsets that a rescorer taught, too")
    for name, values in {
        "sets": [*DEVELOPMENT, *CONFIRMATION],
        "embedders": ["minilm"],
        "judges": ["qrels+.05", "ce-minilm-multi"],
    }.items():
        parser.add_argument(f"--{name}", type=lambda s: s.split(","), default=values)
    for name, numbers in {"breadths": [16, 64, 200], "seeds": [0, 1, 2]}.items():
        parser.add_argument(f"--{name}", type=lambda s: [int(part) for part in s.split(",")], default=numbers)
    args = parser.parse_args()
    known = args.cells.read_text(encoding="utf-8").splitlines() if args.cells and args.cells.is_file() else []
    rows = {Cell(*(row[name] for name in Cell.__dataclass_fields__)): row for row in map(json.loads, known)}
    grid = product(args.sets, args.embedders, args.judges, args.breadths, [DEPTH], args.seeds)
    wanted = [cell for cell in (Cell(*which) for which in grid) if has_vectors(args.data, cell.workload, cell.embedder)]
    measured = partial(measure, self_training=args.self_training)
    for cell in wanted:
        at_hand = cell.rewards in (*harm.NOISE, *RETRIEVERS, *harm.NO_SIGNAL, harm.UNASKED, harm.INVERTED)
        stored = (args.data / cell.workload / "scores" / f"{cell.rewards}.tsv").is_file()
        if cell in rows or not (at_hand or stored) or (row := measured(cell, args.data, args.cache)) is None:
            continue
        rows[cell] = row
        if args.cells:
            with args.cells.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(row)}\n")
    if args.json:
        of_all = figures([rows[cell] for cell in wanted if cell in rows])
        args.json.write_text(json.dumps(of_all, indent=1) + "\n", encoding="utf-8")
    for half, names in {"development": DEVELOPMENT, "confirmation": CONFIRMATION}.items():
        if mine := [rows[cell] for cell in wanted if cell in rows and cell.workload in names]:
            print(f"\n{half}: {len(mine)} cells")
            show(mine)


if __name__ == "__main__":
    main()
