"""Does a floor refuse what has no answer, and how many answers does it lose?

    python benchmarks/nothing.py [--sets a,b] [--embedders minilm,e5] [--judges qrels,ce-minilm-multi] [--judged 100,200]
        [--seeds 0,1,2] [--json OUT.json]

A collection's queries are judged ten deep with a declared judge, and at most 300 others are searched with their offsets.
An *alien* query is one of another collection, of 50 each (the four collections of tools are no aliens to each other); a
*hard* one is an own query whose right documents were taken out of the index. An answer is a document among the first ten
that labels call right, and it is lost where the query is refused. On *day one* the judged queries have no verdicts.

Rivals have the same queries and the same bound (at most 5 % of requests lose an answer, 90 %): a constant on the cosine,
the first cosine less the median, the share of the query's words that the best document has, and of the cross-encoder's
cells its own score of the first three documents, which is a judge's call at every request. ECE is the expected
calibration error of `relevance` in ten bins, in the judge's terms. About 10 minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from harm import HERE, NOISE, Bench, bench, has_vectors, judged
from scipy.special import betaincinv

from benchmarks.depth import SETS, scores_of
from tttembed_rag import Offsets, Rewards, fit
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.gate.floors import first_floor
from tttembed_rag.offsets.floor import LIST, LOST, knowledge
from tttembed_rag.offsets.rescorer import Vocabulary

TOOLS = ("metatool", "seal-tools", "bfcl-functions", "apibench-hf")
QUERIES, ALIENS, BINS, FIRST = 300, 50, 10, 3
KINDS = ("lost", "alien", "hard")

# Query, texts, cosines and rows of what was found for it.
Found: TypeAlias = tuple[str, list[str], np.ndarray, np.ndarray]


def searched(
    ground: Bench, vectors: np.ndarray, queries: Sequence[str], without: Sequence[set[int]] = ()
) -> list[Found]:
    """What a search with *vectors* finds, *without* some documents of each query."""
    similarities = vectors @ ground.unit_docs.T
    for row, gone in enumerate(without):
        similarities[row, list(gone)] = -2
    order = np.argsort(-similarities, axis=1)[:, :LIST]
    texts = np.array(list(ground.collection.dataset.documents.values()), dtype=object)
    return [
        (query, texts[rows].tolist(), found[rows], rows)
        for query, rows, found in zip(queries, order, similarities, strict=True)
    ]


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def texts_of(ground: Bench, rows: np.ndarray) -> list[str]:
    return [ground.collection.dataset.queries[query] for query in ground.collection.query_ids[rows].tolist()]


def aliens_of(name: str, grounds: dict[str, Bench], seed: int) -> tuple[np.ndarray, list[str]]:
    """Vectors and texts of queries of other collections."""
    vectors, texts = [], []
    for other, ground in grounds.items():
        if other == name or (name in TOOLS and other in TOOLS):
            continue
        rows = np.random.default_rng(seed).permutation(len(ground.collection.query_ids))[:ALIENS]
        vectors.append(unit(ground.collection.query_vectors[rows]))
        texts += texts_of(ground, rows)
    return np.concatenate(vectors), texts


def cut_of(scores: np.ndarray, answered: np.ndarray) -> float:
    """The score below which at most 5 % of requests have an answer and are refused, with 90 % confidence."""
    n, refused = len(scores), 0
    while betaincinv(refused + 1, n - refused, 0.9) <= LOST:
        refused += 1
    lowest = np.sort(scores[answered])
    return float(lowest[min(refused, len(lowest)) - 1]) if refused and len(lowest) else -np.inf


def auroc(above: np.ndarray, below: np.ndarray) -> float:
    """How likely one of those *above* has the higher score."""
    return float((above[:, None] > below).mean() + (above[:, None] == below).mean() / 2)


def calibration(likely: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error in bins of equal width."""
    of = np.minimum((likely * BINS).astype(int), BINS - 1)
    return float(sum(abs((likely - right)[of == place].sum()) for place in range(BINS)) / len(likely))


def cells(
    name: str, grounds: dict[str, Bench], embedder: str, judge: str, count: int, seed: int
) -> list[dict[str, Any]]:
    """A row for the floor, for day one and for each rival; none where the collection has fewer queries."""
    ground = grounds[name]
    collection = ground.collection
    pool, _ = split(collection, seed, 0.3)
    if len(pool) < min(count, 150):
        return []
    pool = pool[:count]
    rewards: Rewards = judged(pooled_rewards([collection], [pool], LIST), judge, seed)
    offsets = fit(replace(rewards, trusted=True))
    rows = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(collection.query_ids)), pool))[:QUERIES]
    scores = scores_of(ground, judge, seed)
    column = {document: place for place, document in enumerate(collection.doc_ids.tolist())}
    qrels = [collection.dataset.qrels[query] for query in collection.query_ids[rows].tolist()]
    best = max(1.0, *(max(grades.values()) for grades in collection.dataset.qrels.values()))
    right = [{column[key]: grade / best for key, grade in of.items() if grade > 0 and key in column} for of in qrels]
    own_vectors, own_texts = unit(collection.query_vectors[rows]), texts_of(ground, rows)
    alien_vectors, alien_texts = aliens_of(name, grounds, seed)

    def lists(live: Offsets) -> dict[str, tuple[np.ndarray, list[Found]]]:
        steered = unit(live.apply(own_vectors, task=name))
        alien = searched(ground, unit(live.apply(alien_vectors, task=name)), alien_texts)
        return {
            "own": (own_vectors, searched(ground, steered, own_texts)),
            "hard": (own_vectors, searched(ground, steered, own_texts, [set(of) for of in right])),
            "alien": (alien_vectors, alien),
        }

    def row(
        policy: str, live: dict[str, Any], best_of: Callable[..., float], cut: float, **more: Any
    ) -> dict[str, Any]:
        best = {
            kind: np.array([best_of(vector, *found) for vector, found in zip(*of, strict=True)])
            for kind, of in live.items()
        }
        answered = np.array(
            [
                any(own.get(int(place), 0) >= 0.5 for place in found[3])
                for own, found in zip(right, live["own"][1], strict=True)
            ]
        )
        own = best["own"]
        return {
            "set": name, "embedder": embedder, "judge": judge, "judged": count, "seed": seed, "policy": policy,
            "queries": int(answered.sum()), "lost": float((own[answered] < cut).mean()),
            "requests lost": float((answered & (own < cut)).mean()),
            **{kind: float((best[kind] < cut).mean()) for kind in ("alien", "hard")},
            **{f"auroc {kind}": auroc(own[answered], best[kind]) for kind in ("alien", "hard")},
            **more,
        }  # fmt: skip

    found = lists(offsets)
    table = []

    def relevance(live: Offsets) -> Callable[..., np.ndarray]:
        return lambda vector, query, texts, cosines, _: live.relevance(
            cosines, vector=vector, query=query, texts=texts, task=name
        )

    ours = relevance(offsets)
    if offsets.relevance([0.5], task=name) is not None:
        each = [(vector, one) for vector, one in zip(*found["own"], strict=True)]
        likely = np.concatenate([ours(vector, *one) for vector, one in each])
        liked = np.concatenate([scores[row, one[3]] >= 0.5 for row, (_, one) in zip(rows, each, strict=True)])
        error = calibration(likely, liked)
        cut = offsets.floor(name)
        table.append(row("floor", found, lambda *one: ours(*one).max(), -np.inf if cut is None else cut, ece=error))
    pool_vectors, pool_texts = unit(collection.query_vectors[pool]), texts_of(ground, pool)
    base = searched(ground, pool_vectors, pool_texts)
    day = first_floor(pool_vectors, [of[:3] for of in base], task=name)
    cut = day.floor(name)
    first = relevance(day)
    plain = lists(day)
    table.append(row("day one", plain, lambda *one: first(*one).max(), -np.inf if cut is None else cut))
    known = Vocabulary.of(rewards.doc_texts.tolist())
    answers = np.array([(scores[row, one[3]] >= 0.5).any() for row, one in zip(pool, base, strict=True)])
    rivals: dict[str, Callable[..., float]] = {
        "constant cosine": lambda _, __, ___, cosines, ____: float(cosines[0]),
        "first less median": lambda _, __, ___, cosines, ____: float(cosines[0] - np.median(cosines)),
        "words covered": lambda _, query, texts, ____, _____: float(knowledge(known, query, texts, ____)[:, 2].max()),
    }
    for policy, best_of in rivals.items():
        own = np.array([best_of(vector, *one) for vector, one in zip(pool_vectors, base, strict=True)])
        table.append(row(policy, plain, best_of, cut_of(own, answers)))
    return table


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The means of some *rows*, and in how many of them more was lost than sampling explains."""
    parts = ("lost", "requests lost", "alien", "hard", "auroc alien", "auroc hard")
    mean = {part: round(float(np.mean([row[part] for row in rows])), 4) for part in parts}
    most = [LOST + 1.645 * np.sqrt(LOST * (1 - LOST) / row["queries"]) for row in rows]
    broken = float(np.mean([row["lost"] > bound for row, bound in zip(rows, most, strict=True)]))
    errors = [row["ece"] for row in rows if "ece" in row]
    named = {name: rows[0][name] for name in ("embedder", "judge", "judged", "policy")}
    return {**named, "cells": len(rows), **mean, "broken": round(broken, 4)} | (
        {"ece": round(float(np.mean(errors)), 4)} if errors else {}
    )


def main() -> None:
    """Print a line for each policy, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE / ".cache")
    for name, default in (("sets", SETS), ("embedders", ("minilm", "e5")), ("judges", (QRELS, "ce-minilm-multi"))):
        parser.add_argument(f"--{name}", type=lambda text: text.split(","), default=list(default))
    for name, default in (("judged", [100, 200]), ("seeds", [0, 1, 2])):
        parser.add_argument(f"--{name}", type=lambda text: [int(part) for part in text.split(",")], default=default)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    table = []
    for embedder, judge in product(args.embedders, args.judges):
        sets = [name for name in args.sets if has_vectors(args.data, name, embedder)]
        source = QRELS if judge in NOISE else judge
        grounds = {name: bench(args.data, args.cache, name, embedder, source) for name in sets}
        rows = [
            row
            for name, count, seed in product(sets, args.judged, args.seeds)
            for row in cells(name, grounds, embedder, judge, count, seed)
        ]
        for count, policy in product(args.judged, dict.fromkeys(row["policy"] for row in rows)):
            if mine := [row for row in rows if (row["judged"], row["policy"]) == (count, policy)]:
                table.append(summed(mine))
                print(table[-1], flush=True)
    if args.json:
        args.json.write_text("[\n" + ",\n".join(map(json.dumps, table)) + "\n]\n")


if __name__ == "__main__":
    main()
