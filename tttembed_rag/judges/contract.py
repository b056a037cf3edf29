"""The contract of every reward model: scores for the documents of one query."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.errors import InputError, JudgeError
from tttembed_rag.models.usage import Usage, estimated_tokens
from tttembed_rag.scales import Scale

# One score per document, on the judge's scale; None is a document that was not judged.
Scores = list[float | None]

ResultT = TypeVar("ResultT")

# Documents in a call to a judge that names no number.
_AT_ONCE = 32


class Judge(Protocol):
    """A reward model: scores documents for one query on a declared scale."""

    @property
    def scale(self) -> Scale:
        """What its scores mean."""

    @property
    def fingerprint(self) -> str:
        """A text of everything that decides its scores: model, revision, prompt, instruction. No secrets."""

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One score per document, in order; None where it did not judge (never 0 instead)."""

    async def ascore(self, query: str, documents: Sequence[str]) -> Scores:
        """The same, without blocking the event loop."""


@runtime_checkable
class Forecasting(Protocol):
    """A judge that can say before a call what it will cost, and how many documents it should hold."""

    @property
    def documents_per_call(self) -> int:
        """Documents to ask about at once; a paid judge that answers one by one says 1."""

    def forecast(self, query: str, documents: Sequence[str]) -> Usage:
        """An upper estimate of the usage of scoring *documents*."""


def forecast_of(judge: Judge, query: str, documents: Sequence[str]) -> Usage:
    """The usage of scoring *documents*; for a judge without a forecast, one request with every text in it."""
    if isinstance(judge, Forecasting):
        return judge.forecast(query, documents)
    return Usage(1, sum(estimated_tokens(query, text) for text in documents))


def documents_per_call(judge: Judge) -> int:
    """The number of documents that a call to *judge* should hold."""
    return judge.documents_per_call if isinstance(judge, Forecasting) else _AT_ONCE


def blocks(judge: Judge) -> bool:
    """Whether *judge* is asked by its plain method, in a thread: its async method would do no more than that."""
    return bool(getattr(judge, "blocks", False))


class Blocking(ABC):
    """A base class for judges that block: their async method is the same call in a thread."""

    blocks = True

    @abstractmethod
    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One score per document, in order."""

    async def ascore(self, query: str, documents: Sequence[str]) -> Scores:
        """The same, in a thread."""
        return await asyncio.to_thread(self.score, query, documents)


def checked_judge(judge: Any) -> Any:
    """*judge* as it came, or an InputError that names what it lacks."""
    lacking = [name for name in ("scale", "fingerprint", "score", "ascore") if not hasattr(judge, name)]
    if lacking:
        hint = "; make one of a function from prompt to answer with RubricJudge" if callable(judge) else ""
        raise InputError(
            f"judge: expected an object with score, ascore, scale and fingerprint, got {type(judge).__name__} without "
            f"{', '.join(lacking)}{hint}"
        )
    return judge


def side_by_side(calls: Sequence[Callable[[], ResultT]], concurrency: int) -> list[ResultT]:
    """The results of *calls* in order, at most *concurrency* of them at once in threads; the first error is raised.

    Calls that have not begun when one fails are not made. Usage is reported to the meter around this call.
    """
    if len(calls) < 2 or concurrency < 2:
        return [call() for call in calls]
    with ThreadPoolExecutor(min(concurrency, len(calls)), "tttembed-judge") as pool:
        futures = [pool.submit(copy_context().run, call) for call in calls]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def checked_rewards(judge: Judge, scores: Sequence[float | None]) -> NDArray[np.float64]:
    """Rewards (n,) in [0, 1] by the judge's declared scale; NaN where it did not judge.

    Raises:
        RewardError: A score is off the scale, or the scale is unbounded.
    """
    values = np.array([np.nan if score is None else score for score in scores], dtype=np.float64)
    judged = np.array([score is not None for score in scores], dtype=np.bool_)
    values[judged] = judge.scale.to_unit(values[judged])
    return values


# A good and a bad document, which no reader of English confuses under any instruction.
PROBE_QUERY = "What is the capital city of France?"
PROBE_GOOD = "The capital city of France is Paris, on the river Seine."
PROBE_BAD = "To remove rust from a bicycle chain, soak it in vinegar overnight and brush it."
# The least difference between the rewards of the good and the bad document, in [0, 1].
PROBE_MARGIN = 0.02


def check_judge(judge: Judge, *, margin: float = PROBE_MARGIN) -> Scores:
    """The judge's scores of a plainly good and a plainly bad document; a judge that cannot tell them apart is refused.

    A reranker behind a wrong prompt template answers fluently and scores at random: this check finds
    out before its scores are paid for.

    Args:
        judge: Any judge with a calibrated scale.

        margin: The least difference between both rewards, in [0, 1].

    Raises:
        JudgeError: The difference is smaller; the message shows both rewards.
    """
    scores = judge.score(PROBE_QUERY, [PROBE_GOOD, PROBE_BAD])
    check_probe(judge, scores, margin=margin)
    return scores


def check_probe(judge: Judge, scores: Sequence[float | None], *, margin: float = PROBE_MARGIN) -> None:
    """Refuse a judge by its *scores* of the good and of the bad document of `check_judge`.

    Raises:
        JudgeError: The difference is smaller than *margin*; the message shows both rewards.
    """
    good, bad = checked_rewards(judge, scores).tolist()
    if not good - bad >= margin:  # NaN too
        raise JudgeError(
            f"{judge.fingerprint}: expected to tell a good from a bad document, got rewards {good:.3f} and {bad:.3f} "
            "(is it a reranker, and does its server apply the model's prompt template?)"
        )
