"""What a call to a model used, as the model reports it, and an upper estimate of what it will use."""

from __future__ import annotations

import math
import string
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from operator import add

# A lower estimate of the letters and blanks in a token of Latin prose; a digit or a sign may be a token of its own.
_LEAST_CHARACTERS_PER_TOKEN = 3
# Requests, or tokens, of one call at most: a service that reports more, or fewer than none, is not believed.
MOST_USED = 10**9
_WITHOUT_PROSE = str.maketrans("", "", f"{string.ascii_letters} ")


@dataclass(frozen=True, slots=True)
class Usage:
    """Requests and tokens that were used.

    Attributes:
        requests: Requests that were answered.
        input_tokens: Tokens read.
        output_tokens: Tokens written, thoughts included.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(*map(add, astuple(self), astuple(other)))


def plausible(read: object, written: object) -> Usage | None:
    """The usage of one request, as a service says it; None where it is none that a request can have."""
    counts = [count for count in (read, written) if type(count) is int and 0 <= count <= MOST_USED]
    return Usage(1, *counts) if len(counts) == 2 else None


def estimated_tokens(*texts: str) -> int:
    """An upper estimate of the tokens of *texts*; text outside ASCII counts one token a byte."""
    tokens = 0
    for text in texts:
        if text.isascii():
            signs = len(text.translate(_WITHOUT_PROSE))
            tokens += signs + math.ceil((len(text) - signs) / _LEAST_CHARACTERS_PER_TOKEN)
        else:
            tokens += len(text.encode("utf-8", "replace"))
    return tokens


class Meter:
    """A running total of usage that threads may share; `is_fed` is whether a judge reported any.

    `ended` is how the last answer ended, in the words of its service.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.usage = Usage()
        self.is_fed = False
        self.ended = ""

    def add(self, usage: Usage) -> None:
        """Add *usage* to the total."""
        with self._lock:
            self.usage += usage
            self.is_fed = True


_METER: ContextVar[Meter | None] = ContextVar("tttembed_meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """A meter of all usage that judges report inside the block, also in threads and tasks that it starts."""
    meter = Meter()
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


def report_usage(usage: Usage | None, *, ended: str = "") -> None:
    """Report *usage*, if it is known, to the meter around this call, if there is one. Judges call this.

    *ended* is how the answer ended, in the words of its service.
    """
    if (meter := _METER.get()) is not None:
        meter.ended = ended
        if usage is not None:
            meter.add(usage)
