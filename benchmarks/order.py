"""Which queries to judge first: random ones ten deep, or those that cover what is asked, five deep.

    python benchmarks/order.py [--sets a,b] [--judges ce-minilm-multi,qrels+.05] [--seeds 0,1] [--repeats]
        [--pairs 800,1000,1300,2000]

Nobody's queries come back: offsets are learned from so many judged pairs of a declared judge, and nDCG@10 by labels
changes on three tenths of the queries that nobody judges. Printed are the mean gains by pairs, and how many covering
pairs gain what the most random ones do, by a straight line between the budgets.

With --repeats queries come back, the one of rank r in proportion to 1 / r^.8: 64 of a log of 1,500 are judged ten deep,
and the gain is that of 4,000 later requests. Newest first is what a queue does. About 10 minutes on one core.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from harm import HERE, NOISE, Bench, bench, judged

from tttembed_rag import fit
from tttembed_rag.evaluate.collection import pooled_rewards, split
from tttembed_rag.evaluate.datasets import QRELS
from tttembed_rag.judging.covering import MOST_COMPARED, covering
from tttembed_rag.vectors.checks import unit

SETS = (
    *("metatool", "seal-tools", "bfcl-functions", "cranfield"),
    *("apibench-hf", "chroma-chunks", "hotpotqa-dev500", "scifact"),
)
# The gain of the most random pairs is the one to reach.
BUDGETS = (160, 240, 320, 400, 520, 640)
JUDGED, LOGGED, LATER, POPULARITY = 64, 1500, 4000, 0.8


def covered(ground: Bench, rows: np.ndarray, asked: np.ndarray, count: int) -> np.ndarray:
    """The *count* of query *rows* to judge, each asked so often."""
    most = np.argsort(-asked, kind="stable")[:MOST_COMPARED]
    lots = [hashlib.blake2b(str(ground.collection.query_ids[row]).encode()).digest() for row in rows[most]]
    vectors = unit(ground.collection.query_vectors[rows[most]])
    return rows[most][covering(vectors, ["task"] * len(most), asked[most], lots, count)]


def changes(ground: Bench, rows: np.ndarray, depth: int, judge: str, seed: int) -> np.ndarray:
    """(M,) change of nDCG@10 of every query where *rows* are judged to a *depth*."""
    collection = ground.collection
    rewards = judged(pooled_rewards([collection], [rows], depth), judge, seed)
    offsets = fit(replace(rewards, trusted=True))
    vectors = offsets.apply(collection.query_vectors, task=collection.dataset.name)
    return np.asarray(collection.measure(vectors, np.arange(len(vectors))) - collection.raw)


def of_unseen(ground: Bench, judge: str, seed: int, budgets: list[int]) -> Iterator[tuple[str, int, float]]:
    """By rule and pairs, the gain of queries that nobody judged."""
    pool, held = split(ground.collection, seed, 0.3)
    order = {"random": pool, "covering": covered(ground, pool, np.ones(len(pool)), min(len(pool), max(budgets) // 5))}
    for (rule, depth), pairs in product((("random", 10), ("covering", 10), ("random", 5), ("covering", 5)), budgets):
        if pairs // depth <= len(order[rule]):
            gains = changes(ground, order[rule][: pairs // depth], depth, judge, seed)
            yield f"{rule} {depth} deep", pairs, float(gains[held].mean())


def of_traffic(ground: Bench, judge: str, seed: int) -> Iterator[tuple[str, int, float]]:
    """By rule, the gain of later requests where queries come back."""
    rng = np.random.default_rng(seed)
    pool = rng.permutation(split(ground.collection, seed, 0.01)[0])
    share = 1.0 / np.arange(1, len(pool) + 1) ** POPULARITY
    logged, later = (rng.choice(pool, size, p=share / share.sum()) for size in (LOGGED, LATER))
    texts, asked = np.unique(logged, return_counts=True)
    newest = np.array(list(dict.fromkeys(logged[::-1].tolist())))
    rules = {
        "random": rng.permutation(texts)[:JUDGED],
        "newest first": newest[:JUDGED],
        "most asked": texts[np.argsort(-asked, kind="stable")[:JUDGED]],
        "covering": covered(ground, texts, asked.astype(np.float64), JUDGED),
    }
    for rule, rows in rules.items():
        yield rule, 10 * JUDGED, float(changes(ground, rows, 10, judge, seed)[later].mean())


def reached(gains: dict[int, float], wanted: float) -> str:
    """The least pairs that gain what is *wanted*, on straight lines between the budgets."""
    budgets = sorted(gains)
    if gains[budgets[0]] >= wanted:
        return f"at most {budgets[0]}"
    for low, high in pairwise(budgets):
        if gains[low] < wanted <= gains[high]:
            return f"{low + (wanted - gains[low]) / (gains[high] - gains[low]) * (high - low):.0f}"
    return f"more than {budgets[-1]}"


def beside(gains: dict[tuple[str, int], float], rivals: dict[tuple[str, int], float]) -> str:
    """The mean difference to a rival, and its standard error over collections."""
    sets = {name for name, _ in gains.keys() & rivals.keys()}
    of_set = [np.mean([gains[cell] - rivals[cell] for cell in gains if cell[0] == name]) for name in sorted(sets)]
    error = np.std(of_set, ddof=1) / len(of_set) ** 0.5 if len(of_set) > 1 else float("nan")
    return f"{np.mean(of_set):+.4f} ± {error:.4f}"


def main() -> None:
    """Print the mean gain of each rule, and the pairs that a covering rule needs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=list(SETS))
    parser.add_argument("--judges", type=lambda text: text.split(","), default=["ce-minilm-multi", "qrels+.05"])
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1])
    parser.add_argument("--repeats", action="store_true")
    parser.add_argument("--pairs", type=lambda text: [int(part) for part in text.split(",")], default=list(BUDGETS))
    args = parser.parse_args()
    for judge in args.judges:
        of: dict[tuple[str, int], dict[tuple[str, int], float]] = defaultdict(dict)
        for name, seed in product(args.sets, args.seeds):
            ground = bench(args.data, args.data, name, "minilm", QRELS if judge in NOISE else judge)
            found = of_traffic(ground, judge, seed) if args.repeats else of_unseen(ground, judge, seed, args.pairs)
            for rule, pairs, gain in found:
                of[rule, pairs][name, seed] = gain
            print(f"{judge}, {name}, seed {seed}: done", flush=True)
        whole = set.intersection(*(set(cells) for cells in of.values()))  # cells with queries enough for every rule
        mean = {key: float(np.mean([cells[cell] for cell in whole])) for key, cells in of.items()}
        rival = "newest first" if args.repeats else "random 10 deep"
        for rule in dict.fromkeys(rule for rule, _ in mean):
            gains = {pairs: gain for (one, pairs), gain in mean.items() if one == rule}
            told = ", ".join(
                f"{pairs} pairs {gain:+.4f} ({beside(of[rule, pairs], of[rival, pairs])})"
                for pairs, gain in gains.items()
            )
            line = f"{judge}, {len(whole)} cells, {rule} (beside {rival}): {told}"
            if not args.repeats:
                wanted = mean["random 10 deep", max(args.pairs)]
                line += f"; the gain of {max(args.pairs)} random ones: {reached(gains, wanted)} pairs"
            print(line, flush=True)


if __name__ == "__main__":
    main()
