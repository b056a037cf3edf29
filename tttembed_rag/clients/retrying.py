"""Asking a service again: after failures that pass, and about fewer texts where it takes no more or refuses one."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tttembed_rag.errors import JudgeError, check_count, require

ResultT = TypeVar("ResultT")

EXTRA = "judges"
# Statuses that pass: timeouts, too many requests, servers in trouble.
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504, 529}
# Texts that are refused alone, before any is taken, until it is believed that the texts are not why.
_ENOUGH = 8


class BusyError(JudgeError):
    """A service that could not answer now; *retry_after* are the seconds that it asked to wait, if it said so."""

    def __init__(self, brief: str, detail: str = "", retry_after: float | None = None) -> None:
        super().__init__(brief, detail)
        self.retry_after = retry_after


class RefusedError(JudgeError):
    """A request that a service refuses for good: nothing was done."""


class RefusedTextsError(RefusedError):
    """A request that a service refuses for what stands in it: one of its texts, their number or their size."""


class TooLargeError(RefusedTextsError):
    """A request that a service, or a proxy before it, refuses for its size."""


# The statuses of requests that are refused for what stands in them.
_REFUSED = {400: RefusedTextsError, 413: TooLargeError, 422: RefusedTextsError}


def refusal(status: object) -> type[JudgeError]:
    """The error for a *status* of a client that is the user's own."""
    return _REFUSED.get(status, JudgeError) if isinstance(status, int) else JudgeError


@dataclass(frozen=True, slots=True)
class Patience:
    """How a service is asked again.

    Attributes:
        attempts: Requests for one answer at most, the first included.
        first_wait: Seconds that bound the first wait; the bound doubles with each attempt.
        longest_wait: Seconds of a wait at most; a service that asks for more is given up.
        timeout: Seconds that clients wait for the next part of an answer.
        sleep: Waits so many seconds; a test gives that of a clock of its own.
    """

    attempts: int = 6
    first_wait: float = 1.0
    longest_wait: float = 120.0
    timeout: float = 120.0
    sleep: Callable[[float], None] = field(default=time.sleep, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_count("attempts", self.attempts)

    def caller(self) -> Any:
        """A `tenacity.Retrying` that tries again after a `BusyError`: each wait is at least its `retry_after`."""
        tenacity = require("tenacity", EXTRA)
        jitter = tenacity.wait_random_exponential(multiplier=self.first_wait, max=self.longest_wait)

        def passes(exc: BaseException) -> bool:
            return isinstance(exc, BusyError) and (exc.retry_after or 0.0) <= self.longest_wait

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(passes),
            wait=lambda state: max(jitter(state), state.outcome.exception().retry_after or 0.0),
            stop=tenacity.stop_after_attempt(self.attempts),
            sleep=self.sleep,
            reraise=True,
        )


def check_status(status: int, headers: Mapping[str, str], brief: str, detail: str) -> None:
    """Return for success; raise `BusyError` for a status that passes, and for others `RefusedError` or `JudgeError`."""
    if status in _PASSING:
        raise BusyError(brief, detail, _seconds(headers.get("retry-after", "").strip()))
    if 400 <= status < 500:
        raise _REFUSED.get(status, RefusedError)(brief, detail)
    if not 200 <= status < 300:
        raise JudgeError(brief, detail)


def _seconds(retry_after: str) -> float | None:
    """Seconds to wait, given as a number or a date."""
    for seconds in (float, lambda date: email.utils.parsedate_to_datetime(date).timestamp() - time.time()):
        with suppress(ValueError):
            return max(0.0, seconds(retry_after))
    return None


class Portions:
    """Requests with *most* texts at most, and with fewer once it has shown that a service takes no more."""

    def __init__(self, most: int) -> None:
        check_count("batch_size", most)
        self.most = most

    def ask(
        self, texts: Sequence[str], ask: Callable[[Sequence[str]], Sequence[ResultT]]
    ) -> list[ResultT | RefusedTextsError]:
        """What *ask* gives for each of *texts*: asked in halves where they are refused, down to a text alone.

        A text that is refused alone has its error. Where both halves are taken as they are, their number was too large.

        Raises:
            RefusedError: Text after text is refused, and none is taken.
        """
        return self._halved(texts, ask, [])

    def _halved(
        self, texts: Sequence[str], ask: Callable[[Sequence[str]], Sequence[ResultT]], taken: list[bool]
    ) -> list[ResultT | RefusedTextsError]:
        try:
            results: list[ResultT | RefusedTextsError] = list(ask(texts))
            taken.append(True)
        except RefusedTextsError as exc:
            if len(texts) > 1:
                half, before = (len(texts) + 1) // 2, taken.count(False)
                results = [
                    *self._halved(texts[:half], ask, taken),
                    *self._halved(texts[half:], ask, taken),
                ]
                if taken.count(False) == before:
                    self.most = min(self.most, half)
                return results
            taken.append(False)
            if len(taken) == _ENOUGH and not any(taken):
                raise RefusedError(exc.brief, exc.answer) from exc
            return [exc]
        return results
