"""Exposure: in how many lists a document stands, and which documents sources or a judge would move in too many.

Whoever may vote may vote for one document, or against one, everywhere, and a judge may overrate one: held-out rewards
agree, so no loss says that anything is wrong. What gives it away is that one enters, or leaves, the lists of everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.fitting.voices import best_pairs, questions_won
from tttembed_rag.gate.thresholds import EXPOSED_QUERIES, MOST_MOVED, MOST_MOVED_QUERIES, PLACES_EXPOSED, VARIES
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray, IntArray
from tttembed_rag.vectors.rows import Float64

# More than what rounding makes of no variance.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Exposure:
    """The judged documents of a task as a small index, in which queries are searched before and after an offset.

    Attributes:
        rewards: The rewards as they were given.
        document: (N,) the document of each pair, the same for copies of one text.
        rows: (p,) the row of each document among those of the rewards.
    """

    rewards: Rewards
    document: IntArray
    rows: IntArray

    @classmethod
    def of(cls, rewards: Rewards) -> Exposure:
        """The index of all that was judged."""
        _, first, document = np.unique(rewards.same_documents, return_index=True, return_inverse=True)
        return cls(rewards, document, rewards.candidates[first])

    @cached_property
    def pool(self) -> FloatArray:
        """(p, d) the unit vector of each document."""
        return self.rewards.documents.rows(self.rows).unit

    def changes(self, rewards: Rewards, voices: Float64, offsets: FloatArray) -> Float64:
        """(p,) by how much *offsets* (n, d) change the share of queries (n *voices*) whose list holds a document."""
        rows = np.random.default_rng(0).permutation(len(rewards))[:EXPOSED_QUERIES]
        places = min(PLACES_EXPOSED, max(1, len(self.pool) // PLACES_EXPOSED))
        unit = rewards.queries.rows(rows).unit
        vectors = unit, unit + offsets[rows].astype(unit.dtype)
        tops = (np.argpartition(-(queries @ self.pool.T), places - 1, axis=1)[:, :places] for queries in vectors)
        before, after = (np.bincount(top.ravel(), np.repeat(voices[rows], places), len(self.pool)) for top in tops)
        return np.asarray((after - before) / voices[rows].sum())

    def moved(self, rewards: Rewards, voices: Float64, offsets: FloatArray) -> IntArray:
        """Documents with doubtful rewards that are the best of several questions, and enter or leave too many lists.

        A document that is the best of fewer questions is no suspect: votes for other documents may move it, as where
        all users share a habit.
        """
        several = questions_won(self.rewards, self.document, best_pairs(self.rewards)) > MOST_MOVED_QUERIES
        several &= np.bincount(self.document, self._doubtful) > 0
        if several.any():
            most = max(MOST_MOVED, MOST_MOVED_QUERIES / float(voices.sum()))
            several &= np.abs(self.changes(rewards, voices, offsets)) > most
        return np.flatnonzero(several)

    def without(self, documents: IntArray) -> Rewards | None:
        """The rewards less the doubtful ones of some *documents*; None where nothing else was judged."""
        kept = ~(self._doubtful & np.isin(self.document, documents))
        return self.rewards.only(kept) if kept.any() else None

    @cached_property
    def _doubtful(self) -> NDArray[np.bool_]:
        """(N,) whether a source gave each reward, or a judge alone that calls the document good whatever is asked."""
        values, named = self.rewards.values, np.repeat(self.rewards.sources != "", self.rewards.depths)
        judged, size = np.bincount(self.document, named) == 0, np.bincount(self.document)
        mean = np.bincount(self.document, values) / size
        deviations = (values - mean[self.document]) ** 2
        within = np.bincount(self.document, deviations) / size
        overrated = judged & (mean > values.mean()) & (within + _ROUNDING < VARIES * deviations.mean())
        return np.asarray(named | overrated[self.document])
