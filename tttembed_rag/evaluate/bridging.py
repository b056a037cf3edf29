"""What a bridge keeps of the old model's rankings, by verdicts that it did not learn from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tttembed_rag.embedders.bridge import Bridge
from tttembed_rag.evaluate.collection import Collection, pooled_rewards
from tttembed_rag.evaluate.measures import mean_interval
from tttembed_rag.gate.fit import fit
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

_FOLDS = 5
# Fewer judged queries prove nothing.
LEAST_QUERIES = 20


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """nDCG@10 (n,) of judged queries by the old model, through the bridge, and with offsets; each query held out."""

    old: Float64
    bridge: Float64
    offsets: Float64

    @classmethod
    def joined(cls, parts: Iterable[Kept]) -> Kept | None:
        """What was kept of several tasks; None of none."""
        arrays = [(each.old, each.bridge, each.offsets) for each in parts]
        return cls(*map(np.concatenate, zip(*arrays, strict=True))) if arrays else None

    def proof(self, served: Float64, share: float) -> str:
        """What proves that what is *served* keeps this *share* of the old model's mean, by the interval; else empty."""
        if len(self.old) < LEAST_QUERIES or mean_interval(served - share * self.old)[0] < 0:
            return ""
        return (
            f"keeps {share:.0%} of the old model's nDCG@10 on {len(self.old)} held-out queries: {self._change(served)}"
        )

    @property
    def lines(self) -> list[str]:
        """What people read."""
        ways = {"bridge": self.bridge, "bridge and offsets": self.offsets}
        head = f"nDCG@10 of {len(self.old)} held-out judged queries: {self.old.mean():.3f} by the old model"
        return [head, *(f"  {way:<20}{of.mean():.3f}, {self._change(of)}" for way, of in ways.items())]

    def _change(self, served: Float64) -> str:
        low, high = mean_interval(served - self.old)
        share = served.mean() / max(float(self.old.mean()), 1e-9)
        return f"{share:.0%}, {(served - self.old).mean():+.3f} [{low:+.3f}, {high:+.3f}]"


def asked_by(collection: Collection, query_vectors: FloatArray) -> Collection:
    """The *collection*, its index and verdicts, with other vectors (M, d) of its queries."""
    return Collection.of(
        collection.dataset,
        collection.doc_vectors,
        query_vectors,
        embedder=collection.embedder,
        judge=collection.judge,
        scores=None if collection.simulated else collection.scores,
        sources=collection.sources,
        scale=collection.scale,
    )


def kept_by(
    bridge: Bridge,
    collection: Collection,
    queries: FloatArray,
    rows: IntArray,
    *,
    depth: int = 10,
    trusted: bool | None = None,
) -> Kept:
    """What a *bridge* of documents keeps of a *collection* under the old model, cross-fitted over its judged *rows*.

    The vectors (M, e) of its *queries* by the new model cross the bridge, which a fold learns from all others: their
    vectors by both models move its middles, and their verdicts give offsets, which serve where their gate lets them.
    """
    order = np.random.default_rng(0).permutation(rows)
    base, moved = collection.raw.copy(), collection.raw.copy()
    for fold in np.array_split(order, min(_FOLDS, len(order))):
        others, rest = np.setdiff1d(np.arange(len(queries)), fold), np.setdiff1d(rows, fold)
        crossing = bridge.towards(queries[others], collection.query_vectors[others]) if len(others) else bridge
        crossed = asked_by(collection, crossing.apply(queries))
        base[fold] = moved[fold] = crossed.raw[fold]
        if len(rest):
            offsets = fit(pooled_rewards([crossed], [rest], depth), trusted=trusted)
            steered = offsets.apply(crossed.query_vectors, task=collection.dataset.name)
            moved[fold] = crossed.measure(steered, fold)[fold]
    measured = rows[collection.measured[rows]]
    return Kept(collection.raw[measured], base[measured], moved[measured])
