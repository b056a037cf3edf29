"""An index outlives its model: what queries of another model find through a bridge, as a share of the old model's.

    python benchmarks/bridge.py [--pairs e5:minilm,...] [--sets a,b] [--seeds 0,1] [--cells OUT.jsonl]
        [--json OUT.json] [--data DIR] [--cache DIR] [--speed]

A cell is one collection, an ordered pair of embedders (NEW:OLD) and a split of its queries. All its documents are pairs
(their vectors under both are there); 300 of the queries are logged, of which the first 64 and 200 have verdicts: the
labels, as a declared judge, which is a simulation. nDCG@10 is of queries that are neither. Of 64 and 200 verdicts the
gate decides by what it sees of them whether the bridge with offsets keeps all, or nine tenths, of what the old model
finds; a cell breaks the promise where it said so and the held-out queries say otherwise. Collections and embedders are
those of `harm.py`; the results are of --seeds 0, and of --seeds 1 for the first two pairs. --speed prints what a query
costs through the static model and the bridge, and what a fit does.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harm import HERE, HOLDOUT, embedded, has_vectors
from tttembed_rag import fit
from tttembed_rag.embedders.bridge import Bridge
from tttembed_rag.evaluate.bridging import asked_by, kept_by
from tttembed_rag.evaluate.collection import Collection, pooled_rewards, split
from tttembed_rag.evaluate.files import load_beir
from tttembed_rag.gate.gains import Gain

PAIRS = ("e5:minilm", "minilm:e5", "lsa:minilm", "static:minilm")
# Those with stored vectors of multilingual-e5-small.
SETS = ("metatool", "bfcl-functions", "cranfield", "chroma-chunks", "apibench-hf", "seal-tools")
LOGGED, JUDGED, DEPTH = 300, (64, 200), 10
# Shares of the old model that the gate is asked for.
SHARES = (0.9, 1.0)


def rotation(new: np.ndarray, old: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """What Drift-Adapter and others do: orthogonal Procrustes of centred documents, the mean added again."""
    here, there = new.mean(axis=0), old.mean(axis=0)
    left, _, right = np.linalg.svd((new - here).T @ (old - there), full_matrices=False)
    return (queries - here) @ (left @ right) + there


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors at unit length, as float32."""
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def measure(data: Path, cache: Path, pair: str, name: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One row per split of a collection."""
    dataset = load_beir(data / name)
    (new, queries), (old, logged) = (map(unit, embedded(data, cache, dataset, model)) for model in pair.split(":"))
    collection = Collection.of(dataset, old, logged, embedder=pair)
    began = time.perf_counter()
    bridge = Bridge.learn(new, old)
    seconds = time.perf_counter() - began
    rotated = asked_by(collection, unit(rotation(new, old, queries)))
    plain = asked_by(collection, bridge.apply(queries))
    reembedded = Collection.of(dataset, new, queries, embedder=pair)
    rows = []
    for seed in seeds:
        pool, held = split(collection, seed, HOLDOUT)
        known = pool[:LOGGED]
        crossed = asked_by(collection, bridge.towards(queries[known], logged[known]).apply(queries))
        ways = {"old": collection, "new, index rebuilt": reembedded, "rotation": rotated, "bridge": plain}
        means = {way: float(asked.raw[held].mean()) for way, asked in {**ways, "logged": crossed}.items()}
        gate = {}
        for judged in JUDGED:
            mine = pool[:judged]
            offsets = fit(pooled_rewards([crossed], [mine], DEPTH), trusted=True)
            served = crossed.measure(offsets.apply(crossed.query_vectors, task=name), held)[held]
            means[str(judged)] = float(served.mean())
            kept = kept_by(bridge, collection, queries, mine, depth=DEPTH, trusted=True)
            for share in SHARES:
                truth = Gain.measured(served - share * collection.raw[held], np.ones(len(held)), np.arange(len(held)))
                proven = bool(kept.proof(kept.offsets, share))
                gate[f"{judged}, {share:g}"] = {"proven": proven, "mean": truth.mean, "error": truth.error}
        row = {"pair": pair, "set": name, "seed": seed, "documents": len(old), "seconds": seconds}
        rows.append({**row, "agreement": bridge.agreement, "ndcg": means, "gate": gate})
    return rows


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """By pair, shares of the old model: means of collections, which are means of splits; and what the gate said."""
    table: dict[str, Any] = {}
    for pair in dict.fromkeys(row["pair"] for row in rows):
        mine = [row for row in rows if row["pair"] == pair]
        sets = {name: [row["ndcg"] for row in mine if row["set"] == name] for name in {row["set"] for row in mine}}
        shares = {
            way: float(
                np.mean([np.mean([m[way] for m in of]) / np.mean([m["old"] for m in of]) for of in sets.values()])
            )
            for way in mine[0]["ndcg"]
        }
        table[pair] = {"collections": len(sets), "splits": len(mine), "share": shares}
    verdicts = [verdict for row in rows for verdict in row["gate"].values()]
    proven = [verdict for verdict in verdicts if verdict["proven"]]
    return {
        "pairs": table,
        "gate": {
            "asked": len(verdicts),
            "proven": len(proven),
            "below": sum(verdict["mean"] < 0 for verdict in proven),
            "below beyond chance": sum(verdict["mean"] + 1.645 * verdict["error"] < 0 for verdict in proven),
        },
    }


def show(found: Mapping[str, Any]) -> None:
    """Print the table."""
    ways = ("rotation", "bridge", "logged", *map(str, JUDGED), "new, index rebuilt")
    print(f"{'new on old':<16}{'sets':>5}" + "".join(f"{way:>19}" for way in ways))
    for pair, of in found["pairs"].items():
        shares = "".join(f"{of['share'][way]:>19.0%}" for way in ways)
        print(f"{pair.replace(':', ' on '):<16}{of['collections']:>5}{shares}")
    print("gate: " + ", ".join(f"{value} {name}" for name, value in found["gate"].items()))


def speed(cache: Path) -> dict[str, float]:
    """Microseconds of a query, and seconds of a fit of 20,000 pairs, of one core of this machine."""
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(str(cache / "static-model"))
    rng = np.random.default_rng(0)
    found: dict[str, float] = {}
    for width in (384, 1024):
        new, old = (rng.standard_normal((20_000, width), dtype=np.float32) for _ in range(2))
        began = time.process_time()
        bridge = Bridge.learn(new, old)
        found[f"fit of 20,000 pairs at {width}, s"] = time.process_time() - began
        found[f"bridge of {width}, us"] = _median([lambda row=row, b=bridge: b.apply(row) for row in new[:1000]])
    texts = [f"how do I change the billing address of order {number}" for number in range(1000)]
    found["static model, us"] = _median([lambda text=text: model.encode([text]) for text in texts])
    small = Bridge.learn(rng.standard_normal((500, 256)), rng.standard_normal((500, 384)))
    found["static model and bridge, us"] = _median(
        [lambda text=text: small.apply(model.encode([text])[0]) for text in texts]
    )
    return found


def _median(calls: Sequence[Any]) -> float:
    seconds = []
    for call in calls:
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return 1e6 * float(np.median(seconds))


def main() -> None:
    """Measure what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=HERE.parent / "build" / "harm", help="vectors made here")
    parser.add_argument("--pairs", type=lambda s: s.split(","), default=PAIRS)
    parser.add_argument("--sets", type=lambda s: s.split(","), default=SETS)
    parser.add_argument("--seeds", type=lambda s: [int(part) for part in s.split(",")], default=[0])
    parser.add_argument("--cells", type=Path, help="JSON lines, one per cell; read first, appended to")
    parser.add_argument("--json", type=Path, help="write the figures")
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    if args.speed:
        print("\n".join(f"{name:<36}{value:>10.3g}" for name, value in speed(args.cache).items()))
        return
    known = args.cells.read_text(encoding="utf-8").splitlines() if args.cells and args.cells.is_file() else []
    rows = [json.loads(line) for line in known]
    done = {(row["pair"], row["set"], row["seed"]) for row in rows}
    for seed in args.seeds:
        for pair in args.pairs:
            for name in args.sets:
                if (pair, name, seed) in done or not all(has_vectors(args.data, name, m) for m in pair.split(":")):
                    continue
                rows += (mine := measure(args.data, args.cache, pair, name, [seed]))
                if args.cells:
                    with args.cells.open("a", encoding="utf-8") as file:
                        file.write("".join(f"{json.dumps(row)}\n" for row in mine))
    show(found := figures(rows))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
