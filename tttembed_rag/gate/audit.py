"""An audit: a few trusted labels correct what the judge claims of an offset.

A hash orders the queries, and says which `PAIRS` documents of each may be labelled. A query counts where all of these
are, and labels count as far in the order as `LABELLED` of the queries do: who labels chooses neither documents by their
place or by what the judge says of them, nor queries where it is right.

Prediction-powered inference (Angelopoulos et al. 2023, arXiv 2301.09633). The change of DCG@10 of the judged candidates
is a sum over all judged pairs, sum_p c_p y_p, of known changes c of the discount of a place and labels y that only the
sample has. Rewards r predict the labels as a + b r, by least squares: the sum of the predictions is known, and the
sample corrects it by an estimate of the sum of c (y - a - b r). The sample has two stages, m of M queries and k of the
K documents of each, so that this sum is estimated by M / m times that of (K / k) c (y - a - b r), with the variance of
Cochran (1977, Sampling Techniques, chapter 11). Whether other queries would gain as these do was asked before, of
held-out rewards; here the judged queries are the population, so that the error is that of the labels alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.measures import dcg, discounts
from tttembed_rag.fitting.merging import one_row_each
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.thresholds import LEVEL
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import FloatArray
from tttembed_rag.vectors.copies import same_text
from tttembed_rag.vectors.rows import Float64, UnitRows

# Trusted labels in [0, 1] by (query id, document id).
Labels: TypeAlias = Mapping[tuple[str, str], float]
# Documents of a query that may be labelled. Of queries whose first three of ten alone are labelled, one in 120 counts.
PAIRS = 3
# The least share of the queries drawn so far that is labelled: the rest came later, or nobody could tell.
LABELLED = 0.8
# Fewer labels decide nothing, and a line says what they are.
LEAST = 30
# Queries that the variance counts for in which labels are as uncertain as a draw of good or bad: few labels of a yes/no
# judge lie on a line by chance all too often. The 90 % interval holds the change in nine of ten draws of 30, 50 and 100
# labels (`benchmarks/poison.py biased`).
_UNSEEN = 2
# Least DCG that labels are taken to have: one good document of the first place in a hundred queries.
_LEAST_IDEAL = 0.01
# A change below this is rounding.
_ROUNDING = 1e-12
# Numbers that are fitted to the labels: a and b.
_SLOPES = 2


@dataclass(frozen=True, slots=True)
class Audited:
    """What judge and labels say of an offset, as a change of nDCG@10 of the judged candidates.

    Attributes:
        claimed: The mean by the judge's rewards.
        corrected: That mean, corrected by the labels.
        error: The standard error of *corrected*, by what is not labelled; infinite where labels of too few queries
            count.
        labels: Labels that count, of queries whose order the offset changes.
        queries: How many queries these are.
        ignored: Labels of these queries and others that do not count.
        unit: What *corrected* is multiplied with to be nDCG@10 of the labels: it is divided by the DCG of the judge's
            order in the judge's rewards, and labels may be on another scale.
    """

    claimed: float
    corrected: float
    error: float
    labels: int
    queries: int
    ignored: int = 0
    unit: float = 1.0

    @property
    def decides(self) -> bool:
        """Whether so many labels count that they decide."""
        return self.labels >= LEAST

    def confirms(self, level: float) -> bool:
        """Whether the corrected change is above zero at a one-sided *level*."""
        return self._change.below(level) > _ROUNDING

    def refutes(self, level: float) -> bool:
        """Whether the labels decide, and do not confirm the change."""
        return self.decides and not self.confirms(level)

    def interval(self, level: float) -> tuple[float, float]:
        """The bounds of the corrected change, each at a one-sided *level*, as far as nDCG can change at all."""
        low, high = np.clip([self._change.below(level), self._change.above(level)], -1.0, 1.0).tolist()
        return low, high

    @property
    def _change(self) -> Gain:
        return Gain(self.corrected, self.error, max(self.queries - _SLOPES, 1))

    def __str__(self) -> str:
        low, high = self.interval(LEVEL)
        mean = np.clip(self.corrected, -1.0, 1.0)
        finding = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]" if self.error < math.inf else "too little"
        judge = f"the judge claims {self.claimed:+.3f} on what it judged, {self.labels} trusted labels say {finding}"
        ignored = f", {self.ignored} labels that `tttembed audit draw` did not ask for are ignored"
        return judge + ignored * bool(self.ignored)


def check_labels(labels: Labels | None) -> None:
    """Refuse labels that are none.

    Raises:
        InputError: One is not a number in [0, 1], or not of a query and a document.
    """
    if not isinstance(labels, Mapping | None):
        raise InputError(f"audit: expected labels by query id and document id, got {type(labels).__name__}")
    for key, label in (labels or {}).items():
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key)):
            raise InputError(f"audit: expected pairs of a query id and a document id, got {key!r}")
        if isinstance(label, bool) or not isinstance(label, int | float) or not 0 <= label <= 1:
            raise InputError(f"audit: expected labels in [0, 1], got {label!r} for {key!r}")


def audited(rewards: Rewards, voices: Float64, offsets: FloatArray, labels: Labels) -> Audited:
    """What trusted *labels* say of *offsets* (n, d); those of pairs that `audit_sample` did not draw are ignored."""
    grid = Grid.of(rewards)
    moved = rewards.queries.unit + offsets
    scores = rewards.documents.similarities(UnitRows(moved, np.ones(len(moved), moved.dtype)), grid.slots)
    return audited_orders(rewards, grid, voices, grid.base, scores, labels_on(rewards, grid, labels))


def audited_orders(
    rewards: Rewards, grid: Grid, voices: Float64, before: Float64, after: Float64, labels: tuple[Float64, int]
) -> Audited:
    """What the *labels* of `labels_on` say of candidates in the order of scores *after* (n, k) in place of *before*."""
    places = np.where(grid.present, discounts(grid, after) - discounts(grid, before), 0.0)
    ideal = mean_ideal(grid, voices)
    change = (voices / voices.sum())[:, None] / ideal * places
    known, ignored = labels
    moved = change.any(axis=1)
    labelled = np.isfinite(known) & moved[:, None]
    drawn = labelled.sum(axis=1)
    audit = drawn > 0
    claimed, n, m = float((change * grid.rewards).sum()), int(moved.sum()), int(audit.sum())
    if m <= _SLOPES:
        return Audited(claimed, claimed, math.inf, int(drawn.sum()), m, ignored)
    predictors = np.stack([np.ones(labelled.sum()), grid.rewards[labelled]], axis=1)
    a, b = np.linalg.lstsq(predictors, known[labelled], rcond=None)[0].tolist()
    rest = np.where(labelled, change * (known - a - b * grid.rewards), 0.0)[audit]
    k, depths = drawn[audit], rewards.depths[audit]
    totals = depths / k * rest.sum(axis=1)
    corrected = a * float(change.sum()) + b * claimed + n * float(totals.mean())
    deviations = np.where(labelled[audit], rest - rest.sum(axis=1, keepdims=True) / k[:, None], 0.0)
    within = (deviations**2).sum(axis=1) / np.maximum(k - 1, 1)
    sampled = n * (n - m) / m * totals.var(ddof=_SLOPES) + n / m * float(depths * (depths / k - 1) @ within)
    good = (known[labelled].sum() + 2) / (len(predictors) + 4)  # the share of good labels, by Agresti and Coull (1998)
    squares = np.maximum(rewards.depths / PAIRS, 1.0) @ (change**2).sum(axis=1)
    unseen = n / m * float(squares) * good * (1 - good)
    error = math.sqrt((m * sampled + _UNSEEN * unseen) / (m + _UNSEEN))
    unit = ideal / max(mean_ideal(grid, voices, a + b * grid.rewards), _LEAST_IDEAL)
    return Audited(claimed, corrected, error, len(predictors), m, ignored, unit)


def confirmed_order(rewards: Rewards, labels: Labels) -> float:
    """How far *labels* confirm the order that *rewards* give the labelled pairs: Gini's correlation, in [0, 1].

    It is cov(y, rank of r) / cov(y, rank of y), with labels y, and rewards r above the mean of their query, and 0 where
    they disagree (Schechtman and Yitzhaki 1987). Only the order of the rewards counts, so a judge with another scale
    loses nothing. Where labels are good or bad it is 2 AUC - 1. It is 1 where all labels are equal, which tells
    nothing, and where fewer than `LEAST` count.
    """
    from scipy.stats import rankdata

    grid = Grid.of(rewards)
    known, _ = labels_on(rewards, grid, labels)
    labelled = np.isfinite(known)
    if labelled.sum() < LEAST:
        return 1.0
    above = grid.rewards - (np.where(grid.present, grid.rewards, 0.0).sum(axis=1) / rewards.depths)[:, None]
    y = known[labelled] - known[labelled].mean()
    spread = float(y @ rankdata(y))
    return min(1.0, max(0.0, float(y @ rankdata(above[labelled])) / spread)) if spread > 0 else 1.0


def audit_sample(rewards: Rewards, count: int) -> list[tuple[str, str]]:
    """Pairs worth a person's minute: query and document ids of at most *count* judged pairs, query by query.

    A fixed hash draws the queries, and `PAIRS` documents of each, which is what `fit(..., audit=)` takes the labels of
    them for. More pairs are those of fewer and further ones, and no query is drawn in part.
    """
    rewards = one_row_each(rewards)
    pairs: list[tuple[str, str]] = []
    for row in _in_order(rewards):
        documents = rewards.candidates[rewards.starts[row] : rewards.starts[row + 1]]
        query, names = str(rewards.query_ids[row]), rewards.doc_ids[documents]
        drawn = names[_auditable(query, names.tolist())].tolist()
        if len(pairs) + len(drawn) > count:
            break
        pairs += [(query, name) for name in drawn]
    return pairs


def _in_order(rewards: Rewards) -> list[int]:
    """The rows of queries in the order in which they are drawn."""
    return sorted(range(len(rewards)), key=lambda row: _hash(str(rewards.query_ids[row])))


def _auditable(query: str, documents: Sequence[str]) -> list[int]:
    """Which of the *documents* that were judged for a query may be labelled: those with the least hashes."""
    return sorted(range(len(documents)), key=lambda place: _hash(query, documents[place]))[:PAIRS]


def _hash(*names: str) -> bytes:
    """A hash that no key protects: who gives rewards and knows the ids can tell which pairs are never labelled."""
    return blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=8).digest()


def mean_ideal(grid: Grid, voices: Float64, gains: Float64 | None = None) -> float:
    """The mean DCG@10 of the best order by the judge's rewards, or by other *gains* (n, k)."""
    gains = grid.rewards if gains is None else np.maximum(gains, 0.0)
    ideal = dcg(-np.sort(-np.where(grid.present, gains, 0.0), axis=1))
    return max(float(voices @ ideal / voices.sum()), np.finfo(np.float64).tiny)


def labels_on(rewards: Rewards, grid: Grid, labels: Labels) -> tuple[Float64, int]:
    """(n, k) the label of each candidate that counts, else NaN; and how many labels of these queries do not count.

    A label of a copy of a text counts where the candidate itself has none.
    """
    known = np.full(grid.slots.shape, np.nan)
    numbers = {name: number for number, name in enumerate(rewards.doc_ids.tolist())}
    by_query: dict[str, dict[int, float]] = defaultdict(dict)
    for (query, name), label in labels.items():
        if name in numbers:
            by_query[query][numbers[name]] = label
    rows = [(row, query) for row, query in enumerate(rewards.query_ids.tolist()) if query in by_query]
    if not rows:
        return known, 0
    shown = {row: grid.slots[row, grid.present[row]].tolist() for row, _ in rows}
    used = np.array(sorted({number for row, query in rows for number in (*shown[row], *by_query[query])}))
    text = dict(zip(used.tolist(), same_text(rewards.documents.rows(used)).tolist(), strict=True))
    for row, query in rows:
        own = by_query[query]
        of_copies = {text[number]: label for number, label in own.items() if number not in shown[row]}
        drawn = _auditable(query, rewards.doc_ids[shown[row]].tolist())
        numbers_drawn = [shown[row][place] for place in drawn]
        labels_drawn = [own.get(number, of_copies.get(text[number], math.nan)) for number in numbers_drawn]
        if not any(map(math.isnan, labels_drawn)):
            known[row, drawn] = labels_drawn
    order = np.array(_in_order(rewards))
    complete = np.isfinite(known[order]).any(axis=1)
    enough = np.cumsum(complete) >= LABELLED * np.arange(1, len(order) + 1)
    known[order[np.flatnonzero(enough)[-1] + 1 if enough.any() else 0 :]] = np.nan
    return known, sum(len(by_query[query]) for _, query in rows) - int(np.isfinite(known).sum())
