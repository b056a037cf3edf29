"""Several embedding models on one workload: is another one better on these queries?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.evaluate.measures import mean_interval


def compared(workloads: Mapping[str, Sequence[Collection]]) -> list[dict[str, Any]]:
    """A row for each data set and model, the first model's first: nDCG@10 of all queries, and the change to the first.

    The interval is a paired bootstrap over queries. `unjudged` is the share of a model's first ten documents that have
    no verdict: where it is larger, documents that nobody was asked about cost the model a part of its nDCG@10.
    """
    rows = []
    first = next(iter(workloads.values()))
    for name, collections in workloads.items():
        for base, collection in zip(first, collections, strict=True):
            measured = base.measured & collection.measured
            change = (collection.raw - base.raw)[measured]
            low, high = mean_interval(change)
            row = {"dataset": collection.dataset.name, "embedder": name, "queries": int(measured.sum())}
            row |= {"ndcg10": float(collection.raw[measured].mean()), "delta": float(change.mean())}
            rows.append(row | {"ci_low": low, "ci_high": high, "unjudged": _unjudged(collection)})
    return rows


def _unjudged(collection: Collection) -> float:
    judged = collection.scores if not collection.simulated else collection.dataset.qrels
    lists = zip(collection.query_ids.tolist(), collection.doc_ids[collection.base[:, :10]].tolist(), strict=True)
    return float(np.mean([doc not in judged.get(query, {}) for query, docs in lists for doc in docs]))


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each of the rows of `compared`, and what the interval says."""
    first = rows[0]["embedder"]
    lines = [f"{'data set':<24}{'queries':>8}{'nDCG@10':>9}{'unjudged':>10}  model"]
    for row in rows:
        line = f"{row['dataset']:<24.24}{row['queries']:>8}{row['ndcg10']:>9.3f}{row['unjudged']:>10.0%}"
        line += f"  {row['embedder']}"
        if row["embedder"] != first:
            low, high = row["ci_low"], row["ci_high"]
            verdict = "better" if low > 0 else "worse" if high < 0 else "not proven to differ"
            line += f": {row['delta']:+.3f} [{low:+.3f}, {high:+.3f}], {verdict}"
        lines.append(line)
    return [*lines, f"unjudged: of the first ten documents. Changes are to {first}, paired by query, at 90 %."]
