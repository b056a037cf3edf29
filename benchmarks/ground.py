"""A collection where some queries may be rewarded by many, and what others are shown afterwards: see `poison.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from harm import HOLDOUT, QRELS, Bench, bench, judged

from tttembed_rag import Offsets, Rewards
from tttembed_rag.evaluate.collection import pooled_rewards, split

JUDGE = "qrels+.05"
# Queries that a user asked, where users are sources.
PER_USER = 3


@dataclass(frozen=True)
class Ground:
    """A collection under an embedder, half of whose queries may be rewarded; the others show what happens.

    Attributes:
        bench: What searches.
        pool: Rows of queries that may be rewarded.
        held: Rows of other people's queries.
    """

    bench: Bench
    pool: np.ndarray
    held: np.ndarray
    seed: int

    @classmethod
    def of(cls, data: Path, cache: Path, name: str, embedder: str, judge: str = QRELS, seed: int = 0) -> Ground:
        """The ground of one collection."""
        searched = bench(data, cache, name, embedder, judge)
        return cls(searched, *split(searched.collection, seed, HOLDOUT), seed)

    @cached_property
    def unit(self) -> np.ndarray:
        """(M, d) unit query vectors."""
        vectors = self.bench.collection.query_vectors
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    def rewards(self, count: int, judge: str = JUDGE, depth: int = 10) -> Rewards:
        """The rewards of the first *count* queries of the pool."""
        rows = self.pool[:count]
        return judged(pooled_rewards([self.bench.collection], [rows], depth), judge, self.seed)

    def moved(self, offsets: Offsets | None, rows: np.ndarray) -> np.ndarray:
        """(rows, d) unit query vectors as served."""
        queries = self.unit[rows]
        return queries if offsets is None else offsets.apply(queries, task=self.bench.collection.dataset.name)

    def change(self, offsets: Offsets) -> float:
        """Mean change of nDCG@10 of other people's queries."""
        moves = (self.moved(offsets, self.held) - self.unit[self.held]) @ self.bench.unit_docs.T
        return float((self.bench.ndcg(self.held, moves) - self.bench.ndcg(self.held, 0.0)).mean())

    def places(self, offsets: Offsets | None, document: int, rows: np.ndarray) -> np.ndarray:
        """(rows,) place of a document in the search of each query, from 0 on."""
        scores = self.moved(offsets, rows) @ self.bench.unit_docs.T
        return np.asarray((scores > scores[:, document, None]).sum(axis=1))

    def exposure(self, offsets: Offsets | None, document: int, first: int = 10) -> float:
        """Share of other people's queries that a document does not serve, but whose *first* results hold it."""
        return float((self.places(offsets, document, self.strangers(document)) < first).mean())

    def strangers(self, document: int) -> np.ndarray:
        """Rows of other people's queries that a document does not serve."""
        collection = self.bench.collection
        name = str(collection.doc_ids[document])
        return np.array(
            [q for q in self.held if not collection.dataset.qrels.get(str(collection.query_ids[q]), {}).get(name)]
        )

    def planted(self, document: int, near: int = 20) -> Ground:
        """The same with a *document* written for the middle of some questions."""
        vectors = self.bench.collection.doc_vectors.copy()
        some = np.random.default_rng(self.seed + document).choice(self.pool, near)
        vectors[document] = self.unit[some].mean(axis=0)
        return replace(self, bench=Bench.of(replace(self.bench.collection, doc_vectors=vectors)))

    def targets(self, count: int) -> list[int]:
        """Documents that an attacker may want to lift: neither in everybody's lists nor in none."""
        counts = np.bincount(self.bench.collection.base[self.pool][:, :10].ravel(), minlength=len(self.bench.unit_docs))
        common = np.flatnonzero(counts >= 3)
        return np.random.default_rng(self.seed).permutation(common)[:count].tolist()


def poisoned(
    ground: Ground,
    honest: int,
    fakes: Sequence[tuple[np.ndarray, str]],
    target: int,
    depth: int = 10,
    rewordings: Sequence[np.ndarray] = (),
    asked: int = 0,
) -> Rewards:
    """*honest* rewarded queries, each user giving `PER_USER`, and *fakes*: query vectors with the source of each.

    A fake is shown what a search finds, and the *target*; its source says 1 to the target and 0 to all else. The
    *rewordings* of the query in row *asked* come from a user each, who says what the labels say.
    """
    base = ground.rewards(honest)
    collection = ground.bench.collection
    queries = [*base.query_vectors, *(vector for vector, _ in fakes), *rewordings]
    documents = collection.doc_vectors
    place = {name: row for row, name in enumerate(collection.doc_ids.tolist())}
    own = np.array([place[name] for name in base.doc_ids.tolist()])
    rows = [own[part] for part in np.split(base.candidates, base.starts[1:-1])]
    values = np.split(base.values, base.starts[1:-1])
    for vector, _ in fakes:
        found = np.argsort(-(ground.bench.unit_docs @ vector))[:depth]
        shown = found if target in found else np.append(found[:-1], target)
        rows.append(shown)
        values.append((shown == target).astype(float))
    relevant = collection.dataset.qrels.get(str(collection.query_ids[asked]), {})
    for vector in rewordings:
        shown = np.argsort(-(ground.bench.unit_docs @ vector))[:depth]
        rows.append(shown)
        labels = [relevant.get(str(collection.doc_ids[document]), 0) for document in shown.tolist()]
        values.append(np.minimum(1.0, np.array(labels) / collection.scale.high))
    return Rewards.from_indexed(
        np.array(queries),
        documents,
        rows,
        values,
        [collection.dataset.name] * len(queries),
        [
            *base.query_ids.tolist(),
            *(f"fake {i}" for i in range(len(fakes))),
            *(f"reworded {i}" for i in range(len(rewordings))),
        ],
        sources=[
            *(f"user {i // PER_USER}" for i in range(len(base))),
            *(source for _, source in fakes),
            *(f"near user {i}" for i in range(len(rewordings))),
        ],
        doc_ids=collection.doc_ids.tolist(),
    )


def reworded(query: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """(count, d) unit vectors at cosine .96 of a *query*."""
    noise = rng.standard_normal((count, len(query)))
    vectors = query + 0.29 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)
