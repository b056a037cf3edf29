"""What the second search of `TwoPass` gains over direct rerank.

    python benchmarks/twopass.py [--data FOLDER] [--rewards NAME] [--depth 10] [--json OUT.json]

For each BEIR folder below FOLDER with stored MiniLM vectors and scores of a judge (default: ../shared/data beside the
checkout, a small real cross-encoder): nDCG@10 of three answers that cost the same judged documents: direct rerank of
the first search, two searches whose judged documents stand in the order of their rewards, and two searches that order
them by judge and search together, as `RewardRetriever` does; and the milliseconds of learning between the searches.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tttembed_rag.adapting import in_reward_order
from tttembed_rag.evaluate.files import load_beir, load_scores, load_vectors
from tttembed_rag.evaluate.measures import Graded, mean_interval
from tttembed_rag.serving.twopass import FirstPass
from tttembed_rag.vectors.checks import unit

K = 10
HERE = Path(__file__).resolve().parent


def answers(base: np.ndarray, units: np.ndarray, rewards: dict[int, float], depth: int) -> tuple[dict[str, Any], float]:
    """The lists (k,) of document rows that each way gives one query, and the seconds spent on learning."""
    found = np.argsort(-(units @ base), kind="stable")[: max(K, depth)]
    judged = np.array([row for row in found[:depth] if row in rewards])
    said = np.array([rewards[row] for row in judged])
    by_row = dict(zip(judged.tolist(), said.tolist(), strict=True))
    raw, rerank = found[:K], in_reward_order(found.tolist(), by_row)[:K]
    first = FirstPass(judged.tolist(), said, key=int)
    if not first.informative:
        return {"raw": raw, "rerank": rerank, "by reward": rerank, "two passes": rerank}, 0.0
    started = time.perf_counter()
    turned = np.array(first.turned(base, units[judged]))
    seconds = time.perf_counter() - started
    again = np.argsort(-(units @ turned), kind="stable")[: max(K, depth)].tolist()
    by_reward = in_reward_order(again, by_row)
    return {"raw": raw, "rerank": rerank, "by reward": by_reward[:K], "two passes": first.merged(again)[:K]}, seconds


def second_search(folders: Sequence[Path], name: str, depth: int) -> list[dict[str, Any]]:
    """nDCG@10 of each way on each collection."""
    rows = []
    print(f"Two searches against direct rerank of the same {depth} documents, judge {name}: nDCG@{K} change over raw")
    titles = f"{'rerank':>9}{'by reward':>11}{'two passes':>12}{'over rerank [95%]':>26}{'ms':>7}{'99%':>7}"
    print(f"{'set':<20}{'queries':>8}{'raw':>7}{titles}")
    for folder in folders:
        scores = load_scores(folder, name)
        data = load_beir(folder).only(scores)
        documents, queries = load_vectors(folder, "minilm", data)
        units, keys = unit(documents), list(data.documents)
        place = {key: row for row, key in enumerate(keys)}
        lists: dict[str, list[Sequence[int]]] = {}
        seconds = []
        for query, base in zip(data.queries, queries, strict=True):
            ways, spent = answers(base, units, {place[key]: score for key, score in scores[query].items()}, depth)
            seconds.append(spent)
            for way, found in ways.items():
                lists.setdefault(way, []).append(found)
        graded = Graded.of(data.qrels, list(data.queries), keys)
        ndcg = {way: graded(np.arange(len(ranked)), np.array(ranked)) for way, ranked in lists.items()}
        over = ndcg["two passes"] - ndcg["rerank"]
        low, high = mean_interval(over, level=0.95)
        raw = float(ndcg["raw"].mean())
        delta = {way: float(values.mean()) - raw for way, values in ndcg.items() if way != "raw"}
        ms = np.array(seconds) * 1e3
        print(
            f"{folder.name:<20}{len(data.queries):>8}{raw:>7.3f}{delta['rerank']:>+9.4f}{delta['by reward']:>+11.4f}"
            f"{delta['two passes']:>+12.4f}{over.mean():>+10.4f} [{low:+.3f}, {high:+.3f}]{np.median(ms):>7.2f}"
            f"{np.quantile(ms, 0.99):>7.2f}",
            flush=True,
        )
        rows.append(
            {
                "dataset": folder.name,
                "rewards": name,
                "depth": depth,
                "queries": len(data.queries),
                "raw_ndcg10": raw,
                "delta": delta,
                "over_rerank": float(over.mean()),
                "interval": [low, high],
                "learning_ms": float(np.median(ms)),
                "learning_ms_99": float(np.quantile(ms, 0.99)),
            }
        )
    better = sum(row["over_rerank"] > 0 for row in rows)
    fused = sum(row["delta"]["two passes"] > row["delta"]["by reward"] for row in rows)
    sure = sum(row["interval"][0] > 0 for row in rows)
    print(f"above rerank on {better} of {len(rows)}, surely on {sure}; above the order of rewards on {fused}")
    return rows


def main() -> None:
    """Print the table; write its rows where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--rewards", default="ce-minilm-multi", help="Scores to read, scores/NAME.tsv.")
    parser.add_argument("--depth", type=int, default=10, help="Documents judged.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    stored = sorted(options.data.glob(f"*/scores/{options.rewards}.tsv"))
    rows = second_search([file.parents[1] for file in stored], options.rewards, options.depth)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
