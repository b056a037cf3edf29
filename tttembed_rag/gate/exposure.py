"""Exposure: in how many lists a document stands, and which documents an offset would lift into too many.

A judge that overrates one document teaches every query to move towards it: held-out rewards of the same judge agree,
so no loss says that anything is wrong. What gives it away is that one document enters the lists of everybody, although
its rewards do not depend on what is asked. A popular document enters many lists too, but its rewards tell the queries
that it answers from those that it does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.gate.signal import agreement_p
from tttembed_rag.gate.thresholds import (
    BELIEVED_LEVEL,
    EXPOSED_QUERIES,
    LISTED,
    MOST_RISE,
    MOST_RISE_OF_SOURCES,
    MOST_RISEN_QUERIES,
    VARIES,
)
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

# Queries that are searched for at a time.
_BLOCK_ROWS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Exposure:
    """The judged documents of a task as a small index, in which queries are searched before and after an offset.

    Attributes:
        rewards: The rewards as they were given.

        document: (N,) the document of each pair, the same for copies of one text.

        pool: (p, d) the unit vector of each document.

        names: p names.
    """

    rewards: Rewards
    document: IntArray
    pool: FloatArray
    names: tuple[str, ...]

    @classmethod
    def of(cls, rewards: Rewards) -> Exposure:
        """The index of all that was judged."""
        _, first, document = np.unique(rewards.same_documents, return_index=True, return_inverse=True)
        rows = rewards.candidates[first]
        return cls(rewards, document, rewards.documents.rows(rows).unit, tuple(rewards.doc_ids[rows].tolist()))

    def rises(self, rewards: Rewards, voices: Float64, offsets: FloatArray) -> Float64:
        """(p,) by how much *offsets* raise the share of queries whose list holds a document.

        Args:
            rewards: n rewarded queries.

            voices: (n,) how much each counts.

            offsets: (n, d) what moves them.
        """
        rows = np.random.default_rng(0).permutation(len(rewards))[:EXPOSED_QUERIES]
        listed = min(LISTED, max(1, len(self.pool) // LISTED))
        rise = np.zeros(len(self.pool))
        for block in np.array_split(rows, -(-len(rows) // _BLOCK_ROWS)):
            unit = rewards.queries.rows(block).unit
            for sign, queries in ((-1.0, unit), (1.0, unit + offsets[block].astype(unit.dtype))):
                top = np.argpartition(-(queries @ self.pool.T), listed - 1, axis=1)[:, :listed]
                rise += sign * np.bincount(top.ravel(), np.repeat(voices[block], listed), minlength=len(rise))
        return np.asarray(rise / voices[rows].sum())

    def risen(self, rewards: Rewards, voices: Float64, offsets: FloatArray) -> list[int]:
        """Documents that rise into too many lists: see `rises`."""
        declared = np.bincount(self.document, self._declared, minlength=len(self.pool)) > 0
        most = np.where(declared, MOST_RISE, MOST_RISE_OF_SOURCES)
        least = np.maximum(most, MOST_RISEN_QUERIES / float(voices.sum()))
        return list(np.flatnonzero(self.rises(rewards, voices, offsets) > least).tolist())

    @property
    def _declared(self) -> NDArray[np.bool_]:
        """(N,) whether the declared judge gave the reward of each pair, not a source."""
        return np.repeat(self.rewards.sources == "", self.rewards.depths)

    def unasked(self, document: int) -> bool:
        """Whether the rewards of a document do not depend on what is asked.

        Their variance is a small part of all, or they are the larger the further the query lies from the document. A
        judge that reads query and document does not reward so; a source that plants a document does. Where the
        declared judge says nothing of the document, the sources alone are not believed. A document with few rewards
        is not asked about: it rises by the rewards of similar ones.
        """
        pairs = np.flatnonzero(self.document == document)
        mine = self.rewards.values[pairs]
        if len(mine) <= MOST_RISEN_QUERIES:
            return False
        if float(mine.var(ddof=1)) <= VARIES * float(self.rewards.values.var()):
            return True
        if not self._declared[pairs].any():
            return True
        query = np.searchsorted(self.rewards.starts, pairs, side="right") - 1
        similarity = np.vecdot(self.rewards.queries.rows(query).unit, self.pool[document])
        return agreement_p(-mine, similarity.astype(np.float64), np.zeros(len(mine), dtype=np.intp)) < BELIEVED_LEVEL

    def without(self, documents: Iterable[int]) -> Rewards | None:
        """The rewards with some documents taken as unjudged; None where nothing else was judged."""
        kept = ~np.isin(self.document, list(documents))
        return self.rewards.only(kept) if kept.any() else None
