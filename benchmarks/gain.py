"""What offsets gain on real collections: the plain rule and the gate, and query scope with real LLM grades.

    python benchmarks/gain.py [--data FOLDER] [--first N] [--json OUT.json]

FOLDER holds BEIR folders with stored MiniLM vectors; default: ../shared/data beside the checkout.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tttembed_rag import Scale
from tttembed_rag.evaluate.collection import Collection, open_collection
from tttembed_rag.evaluate.experiment import Baseline, ExperimentPlan, Row, run
from tttembed_rag.evaluate.files import load_beir, load_vectors
from tttembed_rag.offsets.offset import AnyScope

SETS = ("metatool", "seal-tools", "cranfield", "scifact")
BUDGETS = (4, 16, 64, 200)
JUDGES = ("llama3.3-70b-4prompts-sum", "llama3-8b-4prompts-sum")
RULES = (("plain rule", "task", False), ("gated task", "task", True), ("auto", "auto", True))
HERE = Path(__file__).resolve().parent


def shared_scopes(data: Path, first: int | None) -> list[Row]:
    """Task scope and auto on held-out queries, rewards simulated by the labels; the *first* queries or all."""
    plan = ExperimentPlan(rewarded=BUDGETS, seeds=(0, 1, 2, 3), scopes=("task", "auto"), baselines=())
    rows = []
    print("Held-out nDCG@10 change, mean of 4 seeds (worst); simulated judge (qrels), depth 10")
    print(f"{'set':<12}{'rule':<14}" + "".join(f"{budget:>18}" for budget in BUDGETS))
    for name in SETS:
        dataset = load_beir(data / name)
        dataset = dataset.only(list(dataset.queries)[:first])
        collection = Collection.of(dataset, *load_vectors(data / name, "minilm", dataset), embedder="minilm")
        mine = [row for row in run([collection], plan) if row["population"] == "heldout"]
        for label, scope, gated in RULES:
            cells = [_deltas(mine, scope, gated=gated, rewarded=budget) for budget in BUDGETS]
            print(f"{name:<12}{label:<14}" + "".join(f"{np.mean(c):>+9.3f} ({min(c):+.3f})" for c in cells))
        rows += mine
    for label, scope, gated in RULES:
        cells = np.array([_deltas(rows, scope, gated=gated, rewarded=budget) for budget in BUDGETS])
        below = f"{np.mean(cells < -0.01):.1%} of {cells.size} cells below -.01"
        print(f"{label}: mean {cells.mean():+.4f}, worst {cells.min():+.3f}, {below}")
    return rows


def private_scope(data: Path) -> list[Row]:
    """Query scope against direct rerank on judged queries, real LLM grades (0 to 12) of a declared judge."""
    rows = []
    print("\ntrec-dl19-passage, judged queries, real LLM grades: nDCG@10 change over raw")
    titles = f"{'direct rerank':>15}{'query scope':>13}{'gated':>8}{'auto':>8}{'fused':>8}"
    print(f"{'judge':<28}{'depth':>6}{'raw':>8}{titles}")
    for judge in JUDGES:
        scale = Scale("rubric", 0, 12)
        collection = open_collection(data / "trec-dl19-passage", vectors="minilm", rewards=judge, scale=scale)
        for depth in (10, 50):
            scopes: tuple[AnyScope, ...] = ("query", "auto")
            baselines: tuple[Baseline, ...] = ("rerank", "fused")
            plan = ExperimentPlan(
                rewarded=(40,),
                depth=depth,
                seeds=(0,),
                holdout=0.05,
                scopes=scopes,
                baselines=baselines,
                trusted=True,
            )
            mine = [row for row in run([collection], plan) if row["population"] == "rewarded"]
            by = {(row["scope"], row["gated"]): row for row in mine}
            values = [by["rerank", False], by["query", False], by["query", True], by["auto", True], by["fused", True]]
            rerank, query, gated, auto, both = (f"{row['delta']:+.3f}" for row in values)
            print(
                f"{judge:<28}{depth:>6}{mine[0]['raw_ndcg10']:>8.3f}{rerank:>15}{query:>13}{gated:>8}{auto:>8}{both:>8}"
            )
            rows += mine
    return rows


def _deltas(rows: Sequence[Row], scope: str, *, gated: bool, rewarded: int) -> list[float]:
    return [row["delta"] for row in rows if (row["scope"], row["gated"], row["rewarded"]) == (scope, gated, rewarded)]


def main() -> None:
    """Print both tables; write the rows where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--first", type=int, help="only the first queries of each set, as some published trials do")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not args.data.is_dir():
        raise SystemExit(f"{args.data}: expected a folder of BEIR folders, found none (see --data)")
    rows = shared_scopes(args.data, args.first) + private_scope(args.data)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
