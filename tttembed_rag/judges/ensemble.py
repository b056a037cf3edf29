"""Several judges as one, and how far a judge agrees with itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError
from tttembed_rag.judges.contract import Judge, Scores, documents_per_call, forecast_of, rewards_of
from tttembed_rag.judges.spending import Usage
from tttembed_rag.models.fingerprints import fingerprint_of
from tttembed_rag.scales import Scale


class EnsembleJudge:
    """The average or the median of the rewards of several judges, each mapped by its own scale.

    A document that one of them did not judge is not judged: the others alone would be another judge.

    Args:
        judges: At least two judges, none unbounded.

        how: ``average`` or ``median``.
    """

    scale = Scale("probability")

    def __init__(self, judges: Sequence[Judge], *, how: Literal["average", "median"] = "average") -> None:
        if len(judges) < 2:
            raise InputError(f"judges: expected at least two, got {len(judges)}")
        if how not in ("average", "median"):
            raise InputError(f"how: expected average or median, got {how!r}")
        for judge in judges:
            judge.scale.check_calibrated()
        self._judges = tuple(judges)
        self._merge = np.mean if how == "average" else np.median
        self.documents_per_call = min(documents_per_call(judge) for judge in judges)
        self.fingerprint = fingerprint_of(how, "+".join(sorted(judge.fingerprint for judge in judges)))

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One merged reward per document, in [0, 1]; None where a judge has none."""
        return self._merged([judge.score(query, documents) for judge in self._judges])

    async def ascore(self, query: str, documents: Sequence[str]) -> Scores:
        """The same, all judges at once."""
        return self._merged(await asyncio.gather(*(judge.ascore(query, documents) for judge in self._judges)))

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """What all of them will use."""
        return sum((forecast_of(judge, query, documents) for judge in self._judges), Usage())

    def _merged(self, columns: Sequence[Scores]) -> Scores:
        rewards = [rewards_of(judge, column) for judge, column in zip(self._judges, columns, strict=True)]
        merged: NDArray[np.float64] = self._merge(np.array(rewards), axis=0)
        return [None if np.isnan(value) else float(value) for value in merged]


def noise_of(judge: Judge, pairs: Sequence[tuple[str, Sequence[str]]], *, times: int = 2) -> float:
    """Standard deviation of one reward of *judge* when it is asked the same again, in [0, 1].

    Zero for a judge that repeats itself: that says nothing about whether it is right.

    Args:
        judge: Any calibrated judge; it is asked directly, past any cache.

        pairs: Queries with documents.

        times: How often each is asked, at least twice.

    Raises:
        InputError: No pair was judged every time.
    """
    if times < 2:
        raise InputError(f"times: expected at least 2, got {times}")
    variances = []
    for query, documents in pairs:
        asked = np.array([rewards_of(judge, judge.score(query, documents)) for _ in range(times)])
        variances.append(asked[:, ~np.isnan(asked).any(axis=0)].var(axis=0, ddof=1))
    pooled = np.concatenate(variances) if variances else np.empty(0)
    if not pooled.size:
        raise InputError("pairs: expected one that is judged every time, found none")
    return float(np.sqrt(pooled.mean()))
