"""What a wrapper of LangChain or LlamaIndex adds to a query.

    python integrations/overhead.py [--json OUT.json]

The microseconds that a wrapper adds to `embed_query` at width 1024, with an offset and without, against the same call
unwrapped and a wrapper that only asks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
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

WIDTH = 1024
GOAL_US = 40.0


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


def main() -> None:
    """Print the table; write its rows where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = overhead()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
