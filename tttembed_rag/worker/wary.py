"""A judge that is not trusted: it may raise anything, and answer nonsense."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tttembed_rag.errors import JudgeError
from tttembed_rag.judges.contract import Judge, Scores, blocks, documents_per_call, forecast_of
from tttembed_rag.models.usage import Usage

_log = logging.getLogger(__name__)


class Wary:
    """A judge with scores that are sensible or None: NaN and scores off its scale count as declined.

    An error of any kind is a `JudgeError` (also `SystemExit`, and a `CancelledError` of its own making), and so is an
    answer without any score for several documents: a server in trouble says NaN to everything. Those pairs are asked
    about again another day.

    Args:
        judge: The judge to ask.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.scale = judge.scale
        self.fingerprint = judge.fingerprint
        self.documents_per_call = documents_per_call(judge)
        self.blocks = blocks(judge)

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """The judge's forecast."""
        return forecast_of(self._judge, query, documents)

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """The judge's sensible scores."""
        with self._told():
            return self._sensible(self._judge.score(query, documents), len(documents))

    async def ascore(self, query: str, documents: Sequence[str]) -> Scores:
        """The same, without blocking the event loop."""
        with self._told():
            return self._sensible(await self._judge.ascore(query, documents), len(documents))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Around a call: any error is a `JudgeError`."""
        try:
            yield
        except JudgeError:
            raise
        except (Exception, asyncio.CancelledError, SystemExit) as exc:
            raise JudgeError(f"{self.fingerprint}: {type(exc).__name__}:", str(exc)) from exc

    def _sensible(self, answer: Sequence[float | None], documents: int) -> Scores:
        """The scores of an answer, checked once; None where there is none and where it is nonsense."""
        if len(answer) != documents:
            raise JudgeError(f"{self.fingerprint}: expected {documents} scores, got {len(answer)}")
        numbers = np.array([_number(score) for score in answer], dtype=np.float64)
        held = self.scale.holds(numbers)
        scores = [score if holds else None for score, holds in zip(numbers.tolist(), held.tolist(), strict=True)]
        nonsense = sum(score is None and given is not None for score, given in zip(scores, answer, strict=True))
        if scores.count(None) == documents and (nonsense or documents > 1):
            raise JudgeError(f"{self.fingerprint}: expected scores on its scale {self.scale}, got {answer[0]!r:.40}")
        if nonsense:
            _log.warning("%s: %d of %d scores are off its scale %s", self.fingerprint, nonsense, documents, self.scale)
        return scores


def _number(score: float | None) -> float:
    """A score as a number, NaN where it is none."""
    try:
        return math.nan if score is None else float(score)
    except (TypeError, ValueError):
        return math.nan
