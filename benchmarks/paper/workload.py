"""Several collections, each a task, measured together: one array over all their queries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tttembed_rag import Rewards
from tttembed_rag.errors import DataError
from tttembed_rag.evaluate.collection import Collection, check_workload, pooled_rewards
from tttembed_rag.evaluate.experiment import served, served_and_fused
from tttembed_rag.judging.plan import water_fill
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

# Judged queries of each collection, as rows.
Judged = Sequence[IntArray]


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Collections of one width and different names; results are arrays over the N queries of all, set after set.

    Attributes:
        collections: The collections; the name of each is its task.
        tasks: (N,) number of each query's collection.
        raw: (N,) nDCG@10 of the base order.
        pools: Rows of each collection's queries that have a judged document.
    """

    collections: tuple[Collection, ...]
    tasks: IntArray
    raw: Float64
    pools: tuple[IntArray, ...]

    @classmethod
    def of(cls, collections: Sequence[Collection]) -> Workload:
        """The workload of *collections*, checked."""
        check_workload(collections)
        pools = tuple(
            np.flatnonzero([len(collection.candidates(q, 1)[0]) for q in range(len(collection.raw))])
            for collection in collections
        )
        if empty := next((c for c, pool in zip(collections, pools, strict=True) if not pool.size), None):
            raise DataError(f"{empty.dataset.name}: expected queries with a judged document, got none")
        sizes = [len(collection.raw) for collection in collections]
        raw = np.concatenate([collection.raw for collection in collections])
        return cls(tuple(collections), np.repeat(np.arange(len(sizes)), sizes), raw, pools)

    def __len__(self) -> int:
        """Queries of all collections."""
        return len(self.raw)

    @property
    def names(self) -> list[str]:
        """Names of the collections."""
        return [collection.dataset.name for collection in self.collections]

    def drawn(self, queries: int, seed: int) -> list[IntArray]:
        """Rewarded rows of each collection: *queries* by water-filling; more queries only ever add some.

        Seed 0 has the paper's permutations (1000 + task).
        """
        filled = water_fill([len(pool) for pool in self.pools], queries, seed=1000 * (seed + 1))
        return [pool[rows] for pool, rows in zip(self.pools, filled, strict=True)]

    def per_task(self, queries: int) -> int:
        """Rewarded queries in all, when every task gives *queries* or all it has."""
        return sum(min(queries, len(pool)) for pool in self.pools)

    def rewards(self, judged: Judged, depth: int) -> Rewards:
        """The rewards of *judged* at *depth*."""
        return pooled_rewards(self.collections, judged, depth)

    def budget(self, judged: Judged, depth: int) -> int:
        """Rewarded pairs."""
        return sum(len(c.candidates(q, depth)[0]) for c, rows in self.each(judged) for q in rows.tolist())

    def each(self, judged: Judged) -> Iterator[tuple[Collection, IntArray]]:
        """Every collection with its judged rows."""
        return zip(self.collections, judged, strict=True)

    def measured(self, measure: Callable[[Collection, IntArray], Float64], judged: Judged) -> Float64:
        """nDCG@10 (N,) by *measure*, which takes each collection with its judged rows."""
        return np.concatenate([measure(collection, rows) for collection, rows in self.each(judged)])

    def served(self, offsets: Offsets) -> Float64:
        """nDCG@10 (N,) of new searches with *offsets*."""
        return np.concatenate([served(c, offsets, c.dataset.name)[0] for c in self.collections])

    def fused(self, offsets: Offsets, judged: Judged, depth: int) -> Float64:
        """nDCG@10 (N,) as served; judged queries that an offset moves in the order of judge and search together."""

        def measure(collection: Collection, rows: IntArray) -> Float64:
            task = collection.dataset.name
            measured = served(collection, offsets, task)[0].copy()
            ids = collection.query_ids[rows].tolist()
            moved = rows[[offsets.find(task, query_id) is not None for query_id in ids]]
            measured[moved] = served_and_fused(collection, offsets, task, moved, depth)[moved]
            return measured

        return self.measured(measure, judged)

    def reranked(self, judged: Judged, depth: int) -> Float64:
        """nDCG@10 (N,) after direct rerank of *judged* at *depth*."""
        return self.measured(lambda collection, rows: collection.measure_reranked(rows, depth), judged)

    def mask(self, rows: Judged) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(N,) whether a query is among *rows* of its collection."""
        return np.concatenate([np.isin(np.arange(len(c.raw)), of_set) for c, of_set in self.each(rows)])

    def only(self, names: Sequence[str]) -> Workload:
        """The same with only some of the collections."""
        return Workload.of([collection for collection in self.collections if collection.dataset.name in names])

    def with_queries(self, moved: Callable[[FloatArray], FloatArray], embedder: str) -> Workload:
        """The same collections under another *embedder*, with query vectors (m, d) that *moved* gives for ours."""
        return Workload.of(
            [
                Collection.of(
                    c.dataset,
                    c.doc_vectors,
                    moved(c.query_vectors),
                    embedder=embedder,
                    judge=c.judge,
                    scores=None if c.simulated else c.scores,
                    scale=c.scale,
                )
                for c in self.collections
            ]
        )

    def manifest(self) -> list[dict[str, Any]]:
        """One record per collection: its names, its sizes, and the hash of its contents."""
        return [
            {
                "dataset": c.dataset.name,
                "sha256": sha256_of(c),
                "documents": len(c.doc_ids),
                "queries": c.query_ids.tolist(),
                "embedder": c.embedder,
                "width": int(c.doc_vectors.shape[1]),
                "rewards": c.judge,
                "simulated": c.simulated,
                "scale": str(c.scale),
            }
            for c in self.collections
        ]


def sha256_of(collection: Collection) -> str:
    """SHA-256 of what a result on this collection depends on: ids, labels, scores, vectors."""
    content = hashlib.sha256()
    labels: list[Mapping[str, Any]] = [collection.dataset.qrels, collection.scores]
    facts = [collection.dataset.name, str(collection.scale), collection.simulated, *labels]
    content.update(json.dumps(facts, sort_keys=True).encode())
    for part in (collection.doc_ids, collection.query_ids):
        content.update(json.dumps(part.tolist()).encode())
    for vectors in (collection.doc_vectors, collection.query_vectors):
        content.update(np.ascontiguousarray(vectors).data)
    return content.hexdigest()
