"""An audit: a few trusted labels correct what the judge claims of an offset.

Prediction-powered inference (Angelopoulos et al. 2023, Science 382, Eq. 1): the mean by the judge over all rewarded
queries, plus the mean difference between label and reward where both are known. The change of DCG@10 of the judged
candidates is linear in their rewards, so that the difference of one pair corrects it whatever its query's others are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.objectives import PADDING
from tttembed_rag.gate.thresholds import AUDIT_LEVEL, LEVEL, LISTED
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.rows import Float64, UnitRows

# Trusted labels in [0, 1] by (query id, document id).
Labels: TypeAlias = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Audited:
    """What judge and labels say of an offset, as a change of nDCG@10 of the judged candidates.

    Attributes:
        claimed: The mean by the judge's rewards.

        found: That mean, corrected by the labels.

        error: The standard error of *found*; infinite where fewer than two labels tell.

        labels: Labelled pairs whose place the offset changes.
    """

    claimed: float
    found: float
    error: float
    labels: int

    def confirms(self) -> bool:
        """Whether the corrected change is above zero at `AUDIT_LEVEL`."""
        return self.found - _normal(AUDIT_LEVEL) * self.error > 0

    def __str__(self) -> str:
        half = _normal(LEVEL) * self.error
        return (
            f"the judge claims {self.claimed:+.3f} on what it judged, {self.labels} trusted labels say "
            f"{self.found:+.3f} [{self.found - half:+.3f}, {self.found + half:+.3f}]"
        )


def check_labels(labels: Labels | None) -> None:
    """Refuse labels that are none.

    Raises:
        InputError: One is not a number in [0, 1], or not of a query and a document.
    """
    for key, label in (labels or {}).items():
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key)):
            raise InputError(f"audit: expected pairs of a query id and a document id, got {key!r}")
        if isinstance(label, bool) or not isinstance(label, int | float) or not 0 <= label <= 1:
            raise InputError(f"audit: expected labels in [0, 1], got {label!r} for {key!r}")


def audited(rewards: Rewards, voices: Float64, offsets: FloatArray, labels: Labels) -> Audited:
    """What *labels* say of *offsets*.

    Args:
        rewards: n rewarded queries.

        voices: (n,) how much each counts.

        offsets: (n, d) what moves each query.

        labels: Trusted labels of some of the judged pairs: a sample of those whose place changes.
    """
    grid = Grid.of(rewards)
    change = (voices / voices.sum())[:, None] / _mean_ideal(grid, voices) * _changes(rewards, grid, offsets)
    of_query = (change * grid.rewards).sum(axis=1)
    differences = _differences(rewards, grid, labels)
    told = np.isfinite(differences) & (change != 0)
    claimed, n, m = float(of_query.sum()), len(of_query), int(told.sum())
    if m < 2:
        return Audited(claimed, claimed, math.inf, m)
    pairs = np.count_nonzero(change) * change[told] * differences[told]
    error = math.sqrt(n * float(of_query.var(ddof=1)) + float(pairs.var(ddof=1)) / m)
    return Audited(claimed, claimed + float(pairs.mean()), error, m)


def audit_sample(rewards: Rewards, offsets: Offsets, count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs worth a person's minute: query and document ids of at most *count* judged pairs whose place changes.

    Every such pair is drawn with the same chance, which is what `fit(..., audit=)` takes the labels of them for.

    Args:
        rewards: Judged candidates.

        offsets: What was learned from them, with or without a gate.

        count: Pairs to draw.

        seed: Of the draw.
    """
    unit = rewards.queries.unit
    served = offsets.apply(unit, task=rewards.tasks.tolist(), query_id=rewards.query_ids.tolist())
    shared = offsets.apply(unit, task=rewards.tasks.tolist())
    grid = Grid.of(rewards)
    moved = [(_changes(rewards, grid, queries - unit) != 0) & grid.present for queries in (served, shared)]
    rows, columns = np.nonzero(moved[0] | moved[1])
    drawn = np.random.default_rng(seed).permutation(len(rows))[:count]
    names = rewards.doc_ids[grid.slots[rows[drawn], columns[drawn]]]
    return list(zip(rewards.query_ids[rows[drawn]].tolist(), names.tolist(), strict=True))


def _changes(rewards: Rewards, grid: Grid, offsets: FloatArray) -> Float64:
    """(n, k) by how much *offsets* change the discount of each candidate's place."""
    moved = rewards.queries.unit + offsets
    scores = rewards.documents.similarities(UnitRows(moved, np.ones(len(moved), moved.dtype)), grid.slots)
    return np.where(grid.present, _discounts(grid, scores) - _discounts(grid, grid.base), 0.0)


def _discounts(grid: Grid, scores: Float64) -> Float64:
    """(n, k) 1 / log2(place + 2) of each candidate in order of *scores*, 0 from place `LISTED` on."""
    order = np.argsort(np.where(grid.present, -scores, -PADDING), axis=1, kind="stable")
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.arange(order.shape[1])[None], axis=1)
    return np.where(place < LISTED, 1.0 / np.log2(place + 2.0), 0.0)


def _mean_ideal(grid: Grid, voices: Float64) -> float:
    """The mean DCG@10 of the judge's own order, which gives the change its scale."""
    best = -np.sort(-np.where(grid.present, grid.rewards, 0.0), axis=1)[:, :LISTED]
    ideal = best @ (1.0 / np.log2(np.arange(best.shape[1]) + 2.0))
    return max(float(voices @ ideal / voices.sum()), np.finfo(np.float64).tiny)


def _differences(rewards: Rewards, grid: Grid, labels: Labels) -> Float64:
    """(n, k) label minus reward; NaN where there is no label."""
    differences = np.full(grid.slots.shape, np.nan)
    names, queries = rewards.doc_ids, rewards.query_ids.tolist()
    wanted = {query for query, _ in labels}
    for row in (row for row, query in enumerate(queries) if query in wanted):
        for column in np.flatnonzero(grid.present[row]).tolist():
            label = labels.get((queries[row], str(names[grid.slots[row, column]])))
            if label is not None:
                differences[row, column] = label - grid.rewards[row, column]
    return differences


def _normal(level: float) -> float:
    from scipy.special import ndtri

    return float(-ndtri(level))
