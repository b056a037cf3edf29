"""The contract of every reward model: scores for the documents of one query."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from inspect import iscoroutine
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tttembed_rag.clients.retrying import RefusedError, RefusedTextsError
from tttembed_rag.clients.usage import Usage, estimated_tokens
from tttembed_rag.errors import InputError, JudgeError
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.system.background import DaemonThreads, Waiter

# One score per document, on the judge's scale; None is a document that was not judged.
Scores = list[float | None]

# A query and its documents.
Request = tuple[str, Sequence[str]]

ArgumentT = TypeVar("ArgumentT")
ResultT = TypeVar("ResultT")

_log = logging.getLogger(__name__)
# Documents in a call to a judge that names no number.
_AT_ONCE = 32
# The threads of judges that event loops wait for; so many that no retrieval lacks one.
_THREADS = DaemonThreads(4096)


class Judge(Protocol):
    """A reward model: scores documents for one query on a declared scale.

    It may have more. `forecast(query, documents)` is an upper estimate of the usage of a call, and `documents_per_call`
    how many of a query to ask about at once: a paid judge that answers one by one says 1. A judge that is faster with
    several queries at once has `score_many(requests)`, and says by `pairs_per_call` how many pairs to ask about.
    """

    @property
    def scale(self) -> Scale:
        """What its scores mean."""

    @property
    def fingerprint(self) -> str:
        """A text of everything that decides its scores: model, revision, prompt, instruction. No secrets."""

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One score per document, in order; None where it did not judge (never 0 instead)."""


class ByRequests(ABC):
    """A base class of judges that score several requests at once."""

    def score(self, query: str, documents: Sequence[str]) -> Scores:
        """One score per document, in order; None where it did not judge: never of a document without text."""
        return self.score_many([(query, documents)])[0]

    @abstractmethod
    def score_many(self, requests: Sequence[Request]) -> list[Scores]:
        """The scores of each of *requests*, in order."""


def forecast_of(judge: Judge, requests: Sequence[Request]) -> Usage:
    """An upper estimate of the usage of *requests*: the judge's own, or one call for each with every text in it."""
    forecast: Callable[[str, Sequence[str]], Usage] = getattr(judge, "forecast", _estimate)
    return sum((forecast(query, texts) for query, texts in requests), Usage())


def _estimate(query: str, texts: Sequence[str]) -> Usage:
    return Usage(1, sum(estimated_tokens(query, text) for text in texts))


def documents_per_call(judge: Judge) -> int:
    """The number of documents of a query that a call to *judge* should hold."""
    return int(getattr(judge, "documents_per_call", _AT_ONCE))


def pairs_per_call(judge: Judge) -> int:
    """The number of pairs of several queries that a call to *judge* should hold; 0: it is asked query by query."""
    return int(getattr(judge, "pairs_per_call", 0))


def checked_judge(judge: Any) -> Any:
    """*judge* as it came, or an InputError that names what it lacks."""
    lacking = [name for name in ("scale", "fingerprint", "score") if not hasattr(judge, name)]
    if not lacking and not isinstance(judge, type):
        return judge
    got = f"{type(judge).__name__} without {', '.join(lacking)}"
    if isinstance(judge, type):
        got = f"the class {judge.__name__}"
    elif callable(judge):
        got += "; make one of a function from prompt to answer with RubricJudge"
    raise InputError(f"judge: expected an object with score, scale and fingerprint, got {got}")


def side_by_side(
    call: Callable[[ArgumentT], ResultT], arguments: Sequence[ArgumentT], concurrency: int
) -> list[ResultT]:
    """The results of *call* for all *arguments*, at most *concurrency* at once in threads; the first error is raised.

    Calls that have not begun when one fails are not made, and one that hangs keeps no process from ending. Usage is
    reported to the meter around this call.
    """
    if len(arguments) < 2 or concurrency < 2:
        return list(map(call, arguments))
    results: dict[int, ResultT] = {}
    waiting = iter(enumerate(arguments))

    def work() -> None:
        try:
            for place, argument in waiting:
                results[place] = call(argument)
        finally:  # after a failure nothing waits any more
            deque(waiting, maxlen=0)

    threads = DaemonThreads(concurrency)
    for worker in [threads.submit(copy_context().run, work) for _ in range(min(concurrency, len(arguments)))]:
        worker.result()
    return [results[place] for place in range(len(arguments))]


def unless_refused(name: str, answers: Sequence[ResultT | RefusedTextsError | None]) -> list[ResultT | None]:
    """The scores in *answers* of the service *name*, None for a document, or a request, that it refuses.

    Raises:
        RefusedTextsError: It refuses the only one.
        RefusedError: It refuses every one of several.
    """
    refused = [answer for answer in answers if isinstance(answer, RefusedTextsError)]
    if refused and len(refused) == len(answers):
        raise refused[0] if len(answers) == 1 else RefusedError(refused[0].brief, refused[0].answer)
    if refused:
        _log.warning("%s: %d of %d are refused, not judged: %s", name, len(refused), len(answers), refused[0].brief)
    return [None if isinstance(answer, RefusedTextsError) else answer for answer in answers]


def scored(judge: Judge, query: str, documents: Sequence[str]) -> Scores:
    """What *judge* answers: one score for each document, None where it did not judge.

    Raises:
        JudgeError: It answers something else, or another number of scores.
        InputError: *query* is no text.
    """
    return scored_many(judge, [(query, documents)])[0]


def scored_many(judge: Judge, requests: Sequence[Request], concurrency: int = 1) -> list[Scores]:
    """The same for each of *requests*, in order; a request that is refused whole is not judged, unless all are.

    A judge without `score_many` is asked about so many at once.
    """
    for query, _ in requests:
        if not isinstance(query, str):
            raise InputError(f"query: expected a text, got {type(query).__name__}")
    many = getattr(judge, "score_many", partial(_one_by_one, judge, concurrency))
    answers = _listed(judge, many(requests), len(requests))
    return [_listed(judge, answer, len(texts)) for (_, texts), answer in zip(requests, answers, strict=True)]


def _one_by_one(judge: Judge, concurrency: int, requests: Sequence[Request]) -> list[Any]:
    def answer_of(request: Request) -> Any:
        try:
            return judge.score(*request)
        except RefusedTextsError as exc:
            return exc

    answers = side_by_side(answer_of, requests, concurrency)
    unless_refused(judge.fingerprint, answers)
    return [
        [None] * len(texts) if isinstance(answer, RefusedTextsError) else answer
        for (_, texts), answer in zip(requests, answers, strict=True)
    ]


async def ascored(judge: Judge, query: str, documents: Sequence[str]) -> Scores:
    """The same as `scored`, in a thread: the event loop is not blocked, and async functions of the judge run on it."""
    waiter = Waiter(asyncio.get_running_loop())
    try:
        return await asyncio.wrap_future(waiter.begin(_THREADS, partial(scored, judge, query, documents)))
    finally:
        waiter.leave()


def _listed(judge: Judge, answer: Any, count: int) -> list[Any]:
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        hint = ": score must not be async" if iscoroutine(answer) else ""
        raise JudgeError(f"{judge.fingerprint}: expected a list of scores, got {type(answer).__name__}{hint}")
    scores = list(answer)
    if len(scores) != count:
        raise JudgeError(f"{judge.fingerprint}: expected {count} scores, got {len(scores)}")
    return scores


def checked_rewards(judge: Judge, scores: Sequence[float | None]) -> NDArray[np.float64]:
    """Rewards (n,) in [0, 1] by the judge's declared scale; NaN where it did not judge.

    Raises:
        JudgeError: A score is neither a number nor None.
        RewardError: A score is off the scale, or the scale is unbounded.
    """
    judged = np.array([score is not None for score in scores], dtype=np.bool_)
    values = np.full(len(scores), np.nan)
    try:
        values[judged] = np.array([score for score in scores if score is not None], dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as exc:
        raise JudgeError(f"{judge.fingerprint}: expected scores that are numbers or None", f"({exc})") from exc
    values[judged] = judge.scale.to_unit(values[judged])
    return values
