"""Judges made of judges: several as one, and one whose unbounded scores get a meaning that was learned from labels."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.clients.fingerprints import fingerprint_of
from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import InputError
from tttembed_rag.judges.contract import (
    Judge,
    Scores,
    ascored,
    checked_judge,
    checked_rewards,
    documents_per_call,
    forecast_of,
    scored,
)
from tttembed_rag.rewards.scales import Scale


class EnsembleJudge:
    """The average of the rewards of several judges, each mapped by its own scale.

    A document without a score from every judge has none: the other judges alone would be another judge.

    Args:
        judges: At least two judges, none unbounded.
    """

    scale = Scale("probability")

    def __init__(self, judges: Sequence[Judge]) -> None:
        if not isinstance(judges, Sequence) or len(judges) < 2:
            raise InputError(f"judges: expected a list of at least two, got {judges!r:.80}")
        for judge in map(checked_judge, judges):
            judge.scale.check_calibrated()
        self._judges = tuple(judges)
        self.documents_per_call = min(documents_per_call(judge) for judge in judges)
        self.fingerprint = fingerprint_of("average", "+".join(sorted(judge.fingerprint for judge in judges)))

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One merged reward per document, in [0, 1]; None where a judge has none."""
        return self._merged([scored(judge, query, documents) for judge in self._judges])

    async def ascore(self, query: str, documents: Sequence[str]) -> Scores:
        """The same, all judges at once."""
        return self._merged(await asyncio.gather(*(ascored(judge, query, documents) for judge in self._judges)))

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """The usage of all judges together."""
        return sum((forecast_of(judge, query, documents) for judge in self._judges), Usage())

    def _merged(self, columns: Sequence[Scores]) -> Scores:
        rewards = [checked_rewards(judge, column) for judge, column in zip(self._judges, columns, strict=True)]
        return [None if np.isnan(value) else float(value) for value in np.mean(rewards, axis=0)]


@dataclass(frozen=True, slots=True)
class Calibration:
    """P(relevant | score) = logistic(slope * score + intercept), after Platt.

    Attributes:
        slope: Above zero: a larger score is better.
        intercept: Log odds at score zero.
    """

    slope: float
    intercept: float

    @classmethod
    def fit(cls, scores: Sequence[float], relevant: Sequence[bool]) -> Calibration:
        """The most likely calibration of *scores* (n,) with labels (n,).

        Labels are softened as Platt does, so that separable scores have a finite slope.

        Raises:
            InputError: Only one kind of label, or larger scores are not better.
        """
        from scipy.optimize import minimize

        s, y = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=np.bool_)
        if s.ndim != 1 or s.shape != y.shape or not np.isfinite(s).all():
            raise InputError(f"scores: expected finite numbers, one per label, got {s.shape} for {y.shape}")
        good, bad = int(y.sum()), int((~y).sum())
        if not (good and bad):
            raise InputError(f"relevant: expected both kinds of label, got {good} relevant and {bad} not")
        centre, width = float(s.mean()), float(s.std()) or 1.0
        x, t = (s - centre) / width, np.where(y, (good + 1) / (good + 2), 1 / (bad + 2))

        def loss(ab: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            z = ab[0] * x + ab[1]
            off = 1 / (1 + np.exp(-np.clip(z, -700, 700))) - t
            return float((np.logaddexp(0, z) - t * z).sum()), np.array([off @ x, off.sum()])

        a, b = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B").x
        if not a > 0:
            raise InputError("scores: expected larger ones for relevant documents, got the opposite")
        return cls(float(a / width), float(b - a * centre / width))


class CalibratedJudge:
    """A judge with its scores turned into probabilities, which may be compared with those of other judges.

    Args:
        judge: Any judge, unbounded or not.
        calibration: The probability that a score stands for.
    """

    scale = Scale("probability")

    def __init__(self, judge: Judge, calibration: Calibration) -> None:
        self._judge = judge
        self._calibration = calibration
        self.documents_per_call = documents_per_call(judge)
        self.blocks = getattr(judge, "blocks", False)
        self.fingerprint = fingerprint_of("calibrated", judge.fingerprint, calibration=calibration)

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One probability per document; None where the judge has none."""
        return self._calibrated(self._judge.score(query, documents))

    async def ascore(self, query: str, documents: Sequence[str]) -> Scores:
        """The same, without blocking."""
        return self._calibrated(await self._judge.ascore(query, documents))

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """The usage of the judge."""
        return forecast_of(self._judge, query, documents)

    def _calibrated(self, scores: Scores) -> Scores:
        odds, to_unit = self._calibration, Scale("logit").to_unit
        return [
            None if score is None else float(to_unit(np.array([odds.slope * score + odds.intercept]))[0])
            for score in scores
        ]
