"""Several judges as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
from tttembed_rag.models.fingerprints import fingerprint_of
from tttembed_rag.models.usage import Usage
from tttembed_rag.rewards.scales import Scale


class EnsembleJudge:
    """The average or the median of the rewards of several judges, each mapped by its own scale.

    A document without a score from every judge has none: the other judges alone would be another judge.

    Args:
        judges: At least two judges, none unbounded.
        how: ``average`` or ``median``.
    """

    scale = Scale("probability")

    def __init__(self, judges: Sequence[Judge], *, how: Literal["average", "median"] = "average") -> None:
        if not isinstance(judges, Sequence) or len(judges) < 2:
            raise InputError(f"judges: expected a list of at least two, got {judges!r:.80}")
        if how not in ("average", "median"):
            raise InputError(f"how: expected average or median, got {how!r}")
        for judge in map(checked_judge, judges):
            judge.scale.check_calibrated()
        self._judges = tuple(judges)
        self._merge = np.mean if how == "average" else np.median
        self.documents_per_call = min(documents_per_call(judge) for judge in judges)
        self.fingerprint = fingerprint_of(how, "+".join(sorted(judge.fingerprint for judge in judges)))

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
        merged: NDArray[np.float64] = self._merge(np.array(rewards), axis=0)
        return [None if np.isnan(value) else float(value) for value in merged]
