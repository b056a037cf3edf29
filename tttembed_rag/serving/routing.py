"""Which task a query belongs to, told from its vector, for queries whose caller does not say.

A cold start: every known query of a task is on one side, a new query on the other, and between them
the centroid of the task. How sure is sure enough is measured on the known queries themselves, each
one left out of its own centroid, and a router that cannot be sure says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import as_floats, checked_norms, norms


@dataclass(frozen=True, slots=True, eq=False)
class CentroidRouter:
    """The task whose centroid is nearest, or None where that is a guess.

    A query is routed if its nearest centroid is ahead of the second by *margin*, and it is no
    stranger to that task: as near to the centroid as all but a few of the task's own queries were.
    Build it with `of` or `of_rewards`.

    Attributes:
        tasks: t task keys.
        centroids: (t, d) unit vectors, float64: c_t = unit(sum of the unit query vectors of task t).
        margin: Least difference of the cosines with the nearest and the second centroid; infinite
            where the known queries could not be told apart.
        floors: (t,) least cosine with the centroid of each task.
        coverage: Share of the known queries that were routed, each left out of its own centroid.
        precision: Share of these that were routed to their task; 0 where none was.
    """

    tasks: tuple[str, ...]
    centroids: NDArray[np.float64] = field(repr=False)
    margin: float
    floors: NDArray[np.float64] = field(repr=False)
    coverage: float
    precision: float

    @classmethod
    def of(
        cls, query_vectors: ArrayLike, tasks: Sequence[str], *, precision: float = 0.95, strangers: float = 0.02
    ) -> CentroidRouter:
        """A router for the tasks of known queries.

        Tasks with a single query are left out: it cannot be checked against the others.

        Args:
            query_vectors: (n, d) base query vectors of any norm.
            tasks: n task keys.
            precision: Share of routed queries that should reach their task, in (0, 1). One mistake
                is added to those that were counted, so that few queries prove little.
            strangers: Share of a task's own queries that may be taken for strangers, in [0, 1).

        Raises:
            VectorError: A vector is NaN, infinite or zero, or their shape is not (n, d).
            InputError: Not one task per vector, no task with two queries, or a share out of range.
        """
        if not (0.0 < precision < 1.0 and 0.0 <= strangers < 1.0):
            raise InputError(
                f"precision, strangers: expected shares in (0, 1) and [0, 1), got {precision} and {strangers}"
            )
        vectors = as_floats("query_vectors", query_vectors)
        if vectors.ndim != 2 or vectors.shape[0] != len(tasks):
            raise VectorError(f"query_vectors: expected shape ({len(tasks)}, d), one per task, got {vectors.shape}")
        units = vectors / checked_norms("query_vectors", vectors)[:, None].astype(np.float64)
        names, own, counts = np.unique(np.asarray(tasks, dtype=np.str_), return_inverse=True, return_counts=True)
        if not (counts > 1).any():
            raise InputError(f"tasks: expected a task with two queries, got {len(names)} tasks of one")
        kept = (counts > 1)[own]
        names, (units, own) = names[counts > 1], (units[kept], (np.cumsum(counts > 1) - 1)[own[kept]])
        sums = np.zeros((len(names), units.shape[1]))
        np.add.at(sums, own, units)
        centroids = _unit(sums)
        cosines = units @ centroids.T
        rows = np.arange(len(units))
        cosines[rows, own] = np.vecdot(units, _unit(sums[own] - units))  # each left out of its own centroid
        floors = np.array([np.quantile(cosines[own == t, t], strangers, method="lower") for t in range(len(names))])
        nearest, ahead = _nearest(cosines)
        familiar, right = cosines[rows, nearest] >= floors[nearest], nearest == own
        margin = _margin(ahead[familiar], right[familiar], precision)
        routed = familiar & (ahead >= margin)
        found = float(right[routed].mean()) if routed.any() else 0.0
        return cls(tuple(names.tolist()), centroids, margin, floors, float(routed.mean()), found)

    @classmethod
    def of_rewards(cls, rewards: Rewards, *, precision: float = 0.95, strangers: float = 0.02) -> CentroidRouter:
        """A router for the tasks of rewarded queries, as `of` makes it."""
        return cls.of(rewards.query_vectors, rewards.tasks.tolist(), precision=precision, strangers=strangers)

    def route(self, vector: ArrayLike) -> str | None:
        """The task of a base query vector (d,); None where it is unsure.

        Of a vector that is NaN, infinite, zero or of another width it is never sure.
        """
        query = np.asarray(vector, dtype=np.float64)
        if query.shape != self.centroids.shape[1:]:
            return None
        length = norms(query)
        if not (np.isfinite(length) and length > 0):
            return None
        cosines = self.centroids @ (query / length)
        nearest, ahead = _nearest(cosines[None])
        task = int(nearest[0])
        return self.tasks[task] if ahead[0] >= self.margin and cosines[task] >= self.floors[task] else None


def _unit(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Unit vectors; a sum that vanished stays zero, and is near to nothing."""
    lengths = norms(sums)[:, None]
    return np.divide(sums, lengths, out=np.zeros_like(sums), where=lengths > 0)


def _nearest(cosines: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The best column of each row (n, t) and how far it is ahead of the second; -1 stands in for a second."""
    nearest = cosines.argmax(axis=1)
    best = np.take_along_axis(cosines, nearest[:, None], axis=1)[:, 0]
    others = np.where(np.arange(cosines.shape[1]) == nearest[:, None], -1.0, cosines)
    return nearest, best - others.max(axis=1)


def _margin(ahead: NDArray[np.float64], right: NDArray[np.bool_], precision: float) -> float:
    """The smallest margin at which enough are right, one mistake added; infinite where there is none."""
    order = np.argsort(-ahead, kind="stable")
    share = np.cumsum(right[order]) / (np.arange(len(order)) + 2.0)
    last = np.append(np.diff(ahead[order]) != 0, True)  # of those with equal margins: they are routed alike
    enough = np.flatnonzero((share >= precision) & last)
    return float(ahead[order][enough[-1]]) if len(enough) else float("inf")
