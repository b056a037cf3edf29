"""Exposure: in how many lists a document stands, and which documents sources would move in too many.

Whoever may vote may vote for one document, or against one, everywhere: held-out votes of the same voters agree, so no
loss says that anything is wrong. What gives it away is that one document enters, or leaves, the lists of everybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting.voices import best_pairs, questions_won
from tttembed_rag.gate.thresholds import EXPOSED_QUERIES, MOST_MOVED, MOST_MOVED_QUERIES, PLACES_EXPOSED
from tttembed_rag.rewards.rewards import Rewards
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

    def changes(self, rewards: Rewards, voices: Float64, offsets: FloatArray) -> Float64:
        """(p,) by how much *offsets* (n, d) change the share of queries (n *voices*) whose list holds a document."""
        rows = np.random.default_rng(0).permutation(len(rewards))[:EXPOSED_QUERIES]
        places = min(PLACES_EXPOSED, max(1, len(self.pool) // PLACES_EXPOSED))
        change = np.zeros(len(self.pool))
        for block in np.array_split(rows, -(-len(rows) // _BLOCK_ROWS)):
            unit = rewards.queries.rows(block).unit
            for sign, queries in ((-1.0, unit), (1.0, unit + offsets[block].astype(unit.dtype))):
                top = np.argpartition(-(queries @ self.pool.T), places - 1, axis=1)[:, :places]
                change += sign * np.bincount(top.ravel(), np.repeat(voices[block], places), minlength=len(change))
        return np.asarray(change / voices[rows].sum())

    def moved(self, rewards: Rewards, voices: Float64, offsets: FloatArray) -> list[int]:
        """Documents that sources rewarded, that are the best of several questions, and enter or leave too many lists.

        A document that is the best of fewer questions is no suspect: votes for other documents may move it, as where
        all users share a habit.
        """
        most = max(MOST_MOVED, MOST_MOVED_QUERIES / float(voices.sum()))
        several = questions_won(self.rewards, self.document, best_pairs(self.rewards)) > MOST_MOVED_QUERIES
        several &= np.bincount(self.document[self._by_sources], minlength=len(self.pool)) > 0
        if not several.any():
            return []
        change = np.abs(self.changes(rewards, voices, offsets))
        return list(np.flatnonzero(several & (change > most)).tolist())

    def without(self, documents: Iterable[int]) -> Rewards | None:
        """The rewards less what sources say of some *documents*; None where nothing else was judged."""
        kept = ~(self._by_sources & np.isin(self.document, list(documents)))
        return self.rewards.only(kept) if kept.any() else None

    @property
    def _by_sources(self) -> NDArray[np.bool_]:
        """(N,) whether a source gave each pair, and not the declared judge."""
        return np.repeat(self.rewards.sources != "", self.rewards.depths)
