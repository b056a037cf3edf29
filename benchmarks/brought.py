"""What lists bring to a reranker that reads ten documents: by offsets, sorted by words, and gated by just that.

    python benchmarks/brought.py [--sets a,b] [--judged 16,64,200] [--seeds 0,1,2] [--json OUT.json]
        [--data DIR] [--cache DIR]

Brought is nDCG@10 of ten documents once they are sorted by the labels, on queries that nobody judged: recall, where
one document is good. *offset* and *words* are the change that offsets bring, and that of fifty documents which the
rescorer sorts before the first ten are read; the judge read ten of each list. For the gates the judge read fifty, and
offsets are gated by the judged candidates alone, by nDCG@10 of the ten that the search serves, and by what these ten
bring: how many are published, what they change, and what they claim. Labels with a little noise are the judge, and
all-MiniLM-L6-v2 searches. About 5 minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harm import CONFIRMATION, DEVELOPMENT, HERE, HOLDOUT, QRELS, Bench, bench, judged
from tttembed_rag import Offsets, fit
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.fitting.measures import dcg

JUDGE, READ, SORTED, ASKED = "qrels+.05", 10, 50, 200
GATES: Mapping[str, Mapping[str, bool]] = {
    "candidates": {},
    "served": {"reranked": False},
    "brought": {"reranked": True},
}


def measured(searched: Bench, count: int, seed: int) -> dict[str, Any] | None:
    """One cell; None where the collection has fewer queries to judge."""
    collection = searched.collection
    pool, held = split(collection, seed, HOLDOUT)
    if len(pool) < 0.75 * count:
        return None
    pool, held, name = pool[:count], held[:ASKED], collection.dataset.name
    before = _brought(searched, held, _found(searched, held, None, READ))
    ten, fifty = (judged(pooled_rewards([collection], [pool], depth), JUDGE, seed) for depth in (READ, SORTED))
    offsets = fit(ten, trusted=True)
    lists = {"offset": _found(searched, held, offsets, READ), "words": _by_words(searched, held, offsets)}
    row: dict[str, Any] = {"collection": name, "judged": count, "seed": seed}
    row |= {which: float((_brought(searched, held, found) - before).mean()) for which, found in lists.items()}
    for gate, settings in GATES.items():
        search = partial(_ids, searched) if settings else None
        gated = fit(fifty, trusted=True, served=search, **settings)
        evidence = gated[f"local:{name}"].evidence
        change = _brought(searched, held, _found(searched, held, gated, READ)) - before
        published = evidence.verdict == "published"
        row[gate] = {"published": published, "change": float(change.mean()), "claimed": evidence.gain}
    return row


def _ids(searched: Bench, vector: np.ndarray, _: str) -> list[str]:
    """What the application's search gives its reranker."""
    near = np.argsort(-(searched.unit_docs @ vector.astype(np.float32)), kind="stable")[:READ]
    found: list[str] = searched.collection.doc_ids[near].tolist()
    return found


def _found(searched: Bench, rows: np.ndarray, offsets: Offsets | None, count: int) -> np.ndarray:
    """(rows, count) what a search with *offsets* finds."""
    return _near(searched, rows, offsets)[0][:, :count]


def _near(searched: Bench, rows: np.ndarray, offsets: Offsets | None) -> tuple[np.ndarray, np.ndarray]:
    """(rows, 50) what a search with *offsets* finds, and the similarities."""
    collection = searched.collection
    queries = collection.query_vectors[rows]
    queries = queries if offsets is None else offsets.apply(queries, task=collection.dataset.name)
    unit = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
    similarities = unit @ searched.unit_docs.T
    found = np.argsort(-similarities, axis=1, kind="stable")[:, :SORTED]
    return found, np.take_along_axis(similarities, found, axis=1)


def _by_words(searched: Bench, rows: np.ndarray, offsets: Offsets) -> np.ndarray:
    """(rows, 10) the first of fifty documents that the rescorer sorts."""
    dataset = searched.collection.dataset
    found, scores = _near(searched, rows, offsets)
    if (rescorer := offsets.rescorer(dataset.name)) is None:
        return found[:, :READ]
    texts = np.array(list(dataset.documents.values()), dtype=object)
    asked = (dataset.queries[query] for query in searched.collection.query_ids[rows].tolist())
    orders = [
        rescorer.order(query, texts[near].tolist(), one) for query, near, one in zip(asked, found, scores, strict=True)
    ]
    return np.take_along_axis(found, np.array(orders), axis=1)[:, :READ]


def _brought(searched: Bench, rows: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(rows,) nDCG@10 of the documents *found* (rows, k), sorted by the labels."""
    collection = searched.collection
    values = np.zeros(len(rows))
    for place, (row, documents) in enumerate(zip(rows.tolist(), found, strict=True)):
        labels = collection.dataset.qrels.get(str(collection.query_ids[row]), {})
        gains = [labels.get(str(collection.doc_ids[document]), 0) for document in documents.tolist()]
        both = [np.array([sorted(one, reverse=True)], dtype=np.float64) for one in (gains, labels.values() or [0])]
        served, ideal = (float(dcg(one)[0]) for one in both)
        values[place] = served / ideal if ideal > 0 else 0.0
    return values


def summed_up(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means of the cells; of the gates also the worst change, and what the published ones change and claim."""
    found: dict[str, Any] = {"cells": len(rows)}
    found |= {which: float(np.mean([row[which] for row in rows])) for which in ("offset", "words")}
    for gate in GATES:
        ours = [row[gate] for row in rows]
        served = [one for one in ours if one["published"]]
        found[gate] = {
            "published": len(served) / len(ours),
            "change": float(np.mean([one["change"] for one in ours])),
            "worst": float(min(one["change"] for one in ours)),
            "served": float(np.mean([one["change"] for one in served])) if served else 0.0,
            "claimed": float(np.mean([one["claimed"] for one in served])) if served else 0.0,
        }
    return found


def main() -> None:
    """Measure and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "harm", help="vectors made here")
    parser.add_argument("--json", type=Path, help="the figures")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=[*DEVELOPMENT, *CONFIRMATION])
    for name, default in (("judged", [16, 64, 200]), ("seeds", [0, 1, 2])):
        parser.add_argument(f"--{name}", type=lambda text: [int(part) for part in text.split(",")], default=default)
    args = parser.parse_args()
    grounds = {name: bench(args.data, args.cache, name, "minilm", QRELS) for name in args.sets}
    cells = [measured(grounds[name], *of) for name, *of in product(args.sets, args.judged, args.seeds)]
    found = {str(n): summed_up([one for one in cells if one and one["judged"] == n]) for n in args.judged}
    print("judged  cells  offset   words   gated by   published  change   worst   published ones: change  claimed")
    for n, of in found.items():
        for gate in GATES:
            told = of[gate]
            head = f"{n:>6}  {of['cells']:>5}  {of['offset']:>+6.3f}  {of['words']:>+6.3f}"
            print(
                f"{head}   {gate:<10} {told['published']:>8.0%}  {told['change']:>+6.3f}  {told['worst']:>+6.3f}"
                f"   {told['served']:>+22.3f}  {told['claimed']:>+7.3f}"
            )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
