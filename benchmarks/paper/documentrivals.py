"""Rivals that move document vectors instead of query vectors: they must write to the index.

Each is given a collection, the rows of its rewarded queries and their rewards, and returns the document vectors (N, d)
that it would index; unit query vectors are compared with them by dot product. A rewarded query's *best* documents are
the candidates with its highest reward, where that is above zero: they stand for its labels, its clicks or its outcomes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

from tttembed_rag import Rewards
from tttembed_rag.evaluate.collection import Collection
from tttembed_rag.vectors.checks import FloatArray, IntArray, unit
from tttembed_rag.vectors.rows import Float64

DocumentRival: TypeAlias = Callable[[Collection, IntArray, Rewards], FloatArray]


def best_documents(collection: Collection, rows: IntArray, rewards: Rewards) -> list[list[int]]:
    """Rows of the best documents of each rewarded query; none where no candidate has a reward above zero."""
    pairs = zip(rows.tolist(), rewards.depths.tolist(), strict=True)
    judged = (collection.candidates(query, depth) for query, depth in pairs)
    scored = ((documents, collection.scale.to_unit(scores)) for documents, scores in judged)
    return [documents[(values == values.max()) & (values > 0)].tolist() for documents, values in scored]


def oats(
    collection: Collection,
    rows: IntArray,
    rewards: Rewards,
    *,
    alpha: float = 0.3,
    beta: float = 0.1,
    rounds: int = 3,
    least: int = 1,
) -> FloatArray:
    """OATS (Chen et al. 2026, arXiv 2603.13426): tools move toward the centroid of the queries that they served.

    unit((1 - alpha) z + alpha mean(successes) - beta mean(failures)), three times over. That the paper interpolates
    toward the centroid of successes, offline, stands in its abstract; the term of failures (a tool that ranked first
    and failed), alpha, beta and the rounds are those of a public implementation of it. That one waits for four
    successes of a tool; one is enough here, because few tools have four among some hundred rewarded queries (on the
    mean of four development collections it gains as much at 200 and 600 of them, and more at fewer). A success of ours
    is to be among a rewarded query's best documents.
    """
    documents = unit(collection.doc_vectors.astype(np.float64))
    queries = unit(rewards.query_vectors.astype(np.float64))
    best = best_documents(collection, rows, rewards)
    first = collection.base[rows, 0].tolist()
    judged = [set(collection.candidates(q, d)[0].tolist()) for q, d in zip(rows, rewards.depths.tolist(), strict=True)]
    failed = [[d] if d in known and d not in liked else [] for d, known, liked in zip(first, judged, best, strict=True)]
    successes, served = _centroids(best, queries, len(documents))
    failures, _ = _centroids(failed, queries, len(documents))
    moving = served >= least
    for _ in range(rounds):
        documents[moving] = unit((1 - alpha) * documents[moving] + alpha * successes[moving] - beta * failures[moving])
    return documents


def nudge(collection: Collection, rows: IntArray, rewards: Rewards, *, method: str) -> FloatArray:
    """NUDGE-M or NUDGE-N (Zeighami et al. 2025), by its authors' package; a fifth of the queries validates."""
    package: Any = import_module("nudge")  # benchmarks/requirements.txt brings it
    documents = unit(collection.doc_vectors)
    best = best_documents(collection, rows, rewards)
    labels = [found for found in best if found]
    if len(labels) < 2:
        return documents
    fifth = max(1, len(labels) // 5)
    queries = unit(rewards.query_vectors)[[bool(found) for found in best]]
    parts = [{"q_embs": queries[s], "q_ans_indx": labels[s]} for s in (slice(fifth, None), slice(fifth))]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return np.asarray(getattr(package, method)().finetune_embeddings(documents, *parts), dtype=np.float32)


def _centroids(served: list[list[int]], queries: FloatArray, documents: int) -> tuple[Float64, IntArray]:
    """Mean vector (N, d) of the queries that each document served, zero where none, and their number (N,)."""
    document = np.array([row for found in served for row in found], dtype=np.intp)
    query = np.repeat(np.arange(len(served)), [len(found) for found in served])
    total = np.zeros((documents, queries.shape[1]))
    np.add.at(total, document, queries[query])
    count = np.bincount(document, minlength=documents)
    return total / np.maximum(count, 1)[:, None], count


def document_rivals() -> Mapping[str, DocumentRival]:
    """Those whose package is installed, as tables name them."""
    nudges = {f"NUDGE-{m} (documents)": partial(nudge, method=f"NUDGE{m}") for m in "MN"} if find_spec("nudge") else {}
    return {"OATS (documents)": oats, **nudges}
