"""An audit: a few trusted labels correct what the judge claims of an offset.

Prediction-powered inference, tuned (PPI++: Angelopoulos, Duchi and Zrnic 2023, arXiv 2311.01453). The change of DCG@10
of the judged candidates is a sum over all N judged pairs, sum_p c_p y_p, of known changes c of the discount of a place
and labels y that only a sample of m pairs has. Rewards r predict the labels as a + b r: the sum of the predictions is
known, and the sample corrects it by N times its mean of c (y - a - b r). PPI++ takes the a and b with which that varies
least; b = 1 is plain prediction-powered inference. Whether other queries would gain as these do was asked before, of
held-out rewards; here the judged queries are the population, so that the error is that of the labels alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.merging import one_row_each
from tttembed_rag.fitting.objectives import PADDING
from tttembed_rag.gate.thresholds import LEVEL, LISTED
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.copies import same_text
from tttembed_rag.vectors.rows import Float64, UnitRows

# Trusted labels in [0, 1] by (query id, document id).
Labels: TypeAlias = Mapping[tuple[str, str], float]
# Labels that tell, at least. Two slopes are taken from them and the rest is an error: fewer labels, good or bad, of a
# yes/no judge that is half right lie on a line by chance all too often, and the error is zero.
_LEAST = 10
# A change below this is rounding.
_ROUNDING = 1e-12
# Numbers that are fitted to the labels: a and b.
_SLOPES = 2


@dataclass(frozen=True, slots=True)
class Audited:
    """What judge and labels say of an offset, as a change of nDCG@10 of the judged candidates.

    Attributes:
        claimed: The mean by the judge's rewards.

        found: That mean, corrected by the labels.

        error: The standard error of *found*, by what is not labelled; infinite where too few labels tell, or all are
            equal.

        labels: Labelled pairs whose place the offset changes.
    """

    claimed: float
    found: float
    error: float
    labels: int

    def confirms(self, level: float) -> bool:
        """Whether the corrected change is above zero at a one-sided *level*."""
        return self.found - self._half_width(level) > _ROUNDING

    def _half_width(self, level: float) -> float:
        """Student's t quantile of a one-sided *level*, times the error."""
        from scipy.special import stdtrit

        return float(-stdtrit(max(self.labels, _LEAST) - _SLOPES, level)) * self.error

    def __str__(self) -> str:
        half = self._half_width(LEVEL)
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
    known = _on_grid(rewards, grid, labels)
    told = np.isfinite(known) & (change != 0)
    total = np.array([change.sum(), (change * grid.rewards).sum()])
    claimed, n, m = float(total[1]), np.count_nonzero(change), int(told.sum())
    if m < _LEAST or np.ptp(known[told]) == 0:
        return Audited(claimed, claimed, math.inf, m)
    predictors = change[told][:, None] * np.stack([np.ones(m), grid.rewards[told]], axis=1)
    slopes = np.linalg.lstsq(predictors, change[told] * known[told], rcond=None)[0]
    rest = change[told] * known[told] - predictors @ slopes
    found = float(total @ slopes + n * rest.mean())
    error = n * math.sqrt(float(rest.var(ddof=_SLOPES)) / m * (1.0 - m / n))
    return Audited(claimed, found, error, m)


def confirmed_order(rewards: Rewards, labels: Labels) -> float:
    """How far *labels* confirm the order that *rewards* give the labelled pairs: Gini's correlation, in [0, 1].

    It is cov(y, rank of r) / cov(y, rank of y), with labels y, and rewards r above the mean of their query, and 0 where
    they disagree (Schechtman and Yitzhaki 1987). Only the order of the rewards counts, so a judge with another scale
    loses nothing. Where labels are good or bad it is 2 AUC - 1. It is 1 where all labels are equal: they tell nothing.
    """
    from scipy.stats import rankdata

    grid = Grid.of(rewards)
    known = _on_grid(rewards, grid, labels)
    told = np.isfinite(known)
    above = grid.rewards - (np.where(grid.present, grid.rewards, 0.0).sum(axis=1) / rewards.depths)[:, None]
    y = known[told] - known[told].mean() if told.any() else known[told]
    spread = float(y @ rankdata(y))
    return min(1.0, max(0.0, float(y @ rankdata(above[told])) / spread)) if spread > 0 else 1.0


def audit_sample(rewards: Rewards, offsets: Offsets, count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs worth a person's minute: query and document ids of at most *count* judged pairs whose place changes.

    Every such pair is drawn with the same chance, which is what `fit(..., audit=)` takes the labels of them for: none
    twice, however many sources rewarded it.

    Args:
        rewards: Judged candidates.

        offsets: What was learned from them, with or without a gate.

        count: Pairs to draw.

        seed: Of the draw.
    """
    rewards = one_row_each(rewards)
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


def _on_grid(rewards: Rewards, grid: Grid, labels: Labels) -> Float64:
    """(n, k) the label of each candidate, or of a copy of its text that is no candidate; NaN where there is none."""
    known = np.full(grid.slots.shape, np.nan)
    numbers = {name: number for number, name in enumerate(rewards.doc_ids.tolist())}
    given: dict[str, dict[int, float]] = defaultdict(dict)
    for (query, name), label in labels.items():
        if name in numbers:
            given[query][numbers[name]] = label
    asked = [(row, given[query]) for row, query in enumerate(rewards.query_ids.tolist()) if query in given]
    if not asked:
        return known
    shown = {row: grid.slots[row, grid.present[row]].tolist() for row, _ in asked}
    used = np.array(sorted({number for row, own in asked for number in (*shown[row], *own)}))
    text = dict(zip(used.tolist(), same_text(rewards.documents.rows(used)).tolist(), strict=True))
    for row, own in asked:
        of_copies = {text[number]: label for number, label in own.items() if number not in shown[row]}
        found = [own.get(number, of_copies.get(text[number], np.nan)) for number in shown[row]]
        known[row, grid.present[row]] = found
    return known
