"""What the adapters cost and what the second search gains.

    python benchmarks/adapters.py [--data FOLDER] [--rewards NAME] [--depth 10] [--json OUT.json]

First the microseconds a wrapper adds to `embed_query` at width 1024, against the same call unwrapped and a wrapper that
only asks. Then, for each
BEIR folder below FOLDER with stored MiniLM vectors and scores of a judge (default: ../shared/data beside the checkout,
a small real cross-encoder), nDCG@10 of three answers that cost the same judged documents: direct rerank of the first
search, two searches whose judged documents stand in the order of their rewards, and two searches that order them by
judge and search together, as `RewardRetriever` does; and the milliseconds of learning between the searches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_tttembed import TTTEmbeddings
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.embeddings.tttembed import TTTEmbedding

from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.evaluate.files import load_beir, load_scores, load_vectors
from tttembed_rag.evaluate.intervals import mean_interval
from tttembed_rag.evaluate.measures import Graded
from tttembed_rag.serving import FirstPass, in_reward_order
from tttembed_rag.vectors.checks import unit

WIDTH = 1024
GOAL_US = 40.0
K = 10
HERE = Path(__file__).resolve().parent


class Given(Embeddings):
    """A model that takes no time."""

    def __init__(self, vector: list[float]) -> None:
        self.vector = vector

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vector for each."""
        return [self.vector for _ in texts]

    def embed_query(self, text: str) -> list[float]:  # noqa: ARG002
        """The vector."""
        return self.vector


class Asking(Embeddings):
    """A wrapper that only asks the wrapped model."""

    def __init__(self, model: Embeddings) -> None:
        self._model = model

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """What it says."""
        return self._model.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """What it says."""
        return self._model.embed_query(text)


class GivenModel(BaseEmbedding):
    """The same for LlamaIndex."""

    vector: list[float]

    def _get_query_embedding(self, query: str) -> list[float]:  # noqa: ARG002
        return self.vector

    def _get_text_embedding(self, text: str) -> list[float]:  # noqa: ARG002
        return self.vector

    async def _aget_query_embedding(self, query: str) -> list[float]:  # noqa: ARG002
        return self.vector


class AskingModel(BaseEmbedding):
    """A wrapper for LlamaIndex that only asks: what the framework's own events and spans cost, once more."""

    _model: BaseEmbedding = PrivateAttr()

    def __init__(self, model: BaseEmbedding) -> None:
        super().__init__()
        self._model = model

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._model.get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._model.get_text_embedding(text)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await self._model.aget_query_embedding(query)


def microseconds(calls: dict[str, Callable[[], Any]], *, rounds: int = 60, repeats: int = 500) -> dict[str, float]:
    """Median over rounds, taken in turns, of the mean time of a call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(repeats):
                call()
            times[name].append((time.perf_counter() - started) / repeats * 1e6)
    return {name: statistics.median(some) for name, some in times.items()}


def overhead() -> list[dict[str, Any]]:
    """What a wrapper adds to a query, with an offset and without."""
    draw = np.random.default_rng(0)
    vector = draw.normal(size=WIDTH).tolist()
    evidence = Evidence(4, None, None, "ungated", "made for a benchmark")
    offsets = Offsets([Offset("task", draw.normal(size=WIDTH), 0.8, 4, evidence, task="t")], width=WIDTH)
    rows = []
    print(f"embed_query at width {WIDTH}, median microseconds (goal: a LangChain wrapper adds at most {GOAL_US:g})")
    titles = "".join(f"{case:>10}{'adds':>8}" for case in ("only asks", "offset", "no offset"))
    print(f"{'framework':<14}{'unwrapped':>10}{titles}")
    for name, model, asking, wrapper, method in (
        ("LangChain", Given(vector), Asking, TTTEmbeddings, "embed_query"),
        ("LlamaIndex", GivenModel(vector=vector), AskingModel, TTTEmbedding, "get_query_embedding"),
    ):
        steered, plain = (getattr(wrapper(model, offsets=offsets, task=task), method) for task in ("t", "unknown"))
        bare, asks = getattr(model, method), getattr(asking(model), method)
        calls = {"bare": bare, "asks": asks, "steered": steered, "plain": plain}
        us = microseconds({case: partial(call, "q") for case, call in calls.items()})
        added = {case: us[case] - us["bare"] for case in calls if case != "bare"}
        columns = "".join(f"{us[case]:>10.1f}{more:>+8.1f}" for case, more in added.items())
        print(f"{name:<14}{us['bare']:>10.1f}{columns}")
        rows.append({"framework": name, "width": WIDTH, "unwrapped_us": us["bare"], **added})
    return rows


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
    print(f"\nTwo searches against direct rerank of the same {depth} documents, judge {name}: nDCG@{K} change over raw")
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
    """Print both tables; write the rows where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--rewards", default="ce-minilm-multi", help="Scores to read, scores/NAME.tsv.")
    parser.add_argument("--depth", type=int, default=10, help="Documents judged.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = overhead()
    stored = sorted(options.data.glob(f"*/scores/{options.rewards}.tsv"))
    rows += second_search([file.parents[1] for file in stored], options.rewards, options.depth) if stored else []
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
