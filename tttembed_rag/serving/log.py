"""`Log`, what taps and logs of served queries share, and `Known`, what a caller may know of a served query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tttembed_rag.errors import InputError
from tttembed_rag.judges.contract import Judge
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.serving.context import context_value
from tttembed_rag.vectors.checks import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What a caller knows of a served query, so that it need not be computed again.

    Attributes:
        vector: Its *base* vector (d,), without any offset.
        document_vectors: (k, d), or (d,) for each of the k documents in order, None where it is not known.
        query_id: Its id; None is the caller's ``with context(..., query_id=...)``, else one made of its text.
        doc_ids: Ids of the documents, in order; None makes them of their texts.
    """

    vector: ArrayLike | None = None
    document_vectors: FloatArray | Sequence[ArrayLike | None] | None = None
    query_id: str | None = None
    doc_ids: Sequence[str] | None = None


class Log(ABC):
    """Where taps put what an application retrieves and scores: a `RewardLog`, a `StoreLog`, or one with a `note`.

    Attributes:
        judge: Fingerprint of the judge that gives the scores.
        trusted: Whether the judge is vouched for: True where its order is served or it passed its examination, False
            where nobody may; None leaves it to the data. Scores of a source are never vouched for.
        declared_by: What serves its order, in words; empty where *trusted* was set by hand.
    """

    judge: str
    trusted: bool | None = None
    declared_by: str = ""

    def declare(self, by: str) -> None:
        """Say that *by* serves the order of the judge, unless *trusted* says something. Who listens does not."""
        if self.trusted is None:
            self.trusted, self.declared_by = True, by

    def check_is_for(self, judge: Judge) -> None:
        """Refuse this log where *judge* is another than its own, with an InputError that names it ``log``."""
        if judge.fingerprint != self.judge:
            raise InputError(f"log: expected one for {judge.fingerprint}, got one for {self.judge}")

    def observe(
        self, query: str, documents: Iterable[str], *, task: str | None = None, known: Known | None = None
    ) -> None:
        """Note that *documents* were shown for *query*, in base order; they wait for a judge.

        They are of a *task*; None is that of the caller's `context`.
        """
        task = context_value("task") if task is None else task
        self.note(query, documents, None, task=task, known=known, source="")

    def record(
        self,
        query: str,
        documents: Sequence[str],
        scores: Sequence[float | None],
        *,
        task: str | None = None,
        known: Known | None = None,
        source: str | None = None,
    ) -> None:
        """Keep the *scores* of *documents*, on the judge's scale; None is one that was not judged.

        They are those of a *source*, such as a user; empty is the judge. None is the source of the caller's `context`,
        and so is a *task* of None.

        Raises:
            InputError: Of a `RewardLog`: not one score per document, or what should be a text is none.
            RewardError: Of a `RewardLog`: a score is off the scale; nothing is kept.
        """
        source = context_value("source") or "" if source is None else source
        task = context_value("task") if task is None else task
        self.note(query, documents, scores, task=task, known=known, source=source)

    @abstractmethod
    def note(
        self,
        query: str,
        documents: Iterable[str],
        scores: Sequence[float | None] | None,
        *,
        task: str | None,
        known: Known | None,
        source: str,
    ) -> None:
        """Keep what came to `observe`, which has no scores, or to `record`; a task of None was named by nobody."""


def list_of(documents: Iterable[str]) -> list[str]:
    """*documents* as a list.

    Raises:
        InputError: They are one text, which would be a document for each of its characters.
    """
    if isinstance(documents, str | bytes):
        raise InputError(f"documents: expected a list of texts, got {type(documents).__name__}")
    return list(documents)


def checked_log(log: object) -> Log:
    """*log* itself.

    Raises:
        InputError: It is no log.
    """
    if not isinstance(log, Log):
        raise InputError(f"log: expected a RewardLog or a StoreLog, got {type(log).__name__}")
    return log


def unit_rewards(scale: Scale, documents: Sequence[object], scores: Sequence[float | None]) -> list[float | None]:
    """A reward in [0, 1] for each score on *scale*, None where there is none.

    Raises:
        InputError: Not one score per document, or one that is no number.
        RewardError: A score is off the scale.
    """
    if len(scores) != len(documents):
        raise InputError(f"scores: expected one per document, {len(documents)}, got {len(scores)}")
    try:
        numbers = np.array([score for score in scores if score is not None], dtype=np.float64)
    except (TypeError, ValueError) as exc:
        raise InputError(f"scores: expected numbers, or None where there is none ({exc})") from exc
    units = iter(scale.to_unit(numbers).tolist())
    return [None if score is None else next(units) for score in scores]
