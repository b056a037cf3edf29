"""Open batches: requests that were sent to a batch service, or are about to be, and that have no results yet."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any, Protocol, Self

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.errors import JudgeError
from tttembed_rag.system.keyed import KeyedRows

# Seconds after which a batch without an end is given up: services take a day at most, and keep results for a month.
GIVEN_UP = 3 * 86_400.0


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that was sent, or is about to be: what it asks about, and what it may use and cost at most.

    Attributes:
        key: Our own name for it, which the service keeps too.
        at: When it was written down, and then when the service was about to be asked for it, in Unix seconds.
        price: Price of single requests: per million tokens read and written, and per request.
        full: Whether more waited than it holds.
        file: The service's name for the file of its requests; empty before that is uploaded.
        number: The service's name for the batch; empty before that is known.
        day: The day by UTC on which it counts, as ``2026-01-31``; empty where days do not count.
    """

    key: str
    judge: str
    at: float
    queries: tuple[str, ...]
    pairs: int
    tokens: float
    usd: float
    price: tuple[float, float, float]
    full: bool = False
    file: str = ""
    number: str = ""
    day: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The batch that `asdict` made a *record* of, as JSON gives it back."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in record.items() if name in known}
        return cls(**values | {"queries": tuple(values["queries"]), "price": tuple(values["price"])})

    @property
    def date(self) -> date:
        """The day on which it counts."""
        return date.fromisoformat(self.day)


class Books(Protocol):
    """Where the open batches of a judge are written down."""

    def now(self) -> float:
        """Unix seconds, by a clock that all who write here share."""

    def open(self) -> list[OpenBatch]:
        """The open batches, oldest first."""

    def add(self, batch: OpenBatch) -> OpenBatch | None:
        """Write a batch down before it is sent, and count it as spent; None where a cap refuses it."""

    def note(self, batch: OpenBatch) -> OpenBatch:
        """Write down what is known of a batch by now."""

    def close(self, batch: OpenBatch, *, lost: float = 0.0) -> None:
        """Strike a batch off, and give back what was counted for it, but for a share *lost* in [0, 1]."""


class FiledBatches:
    """The open batches of a judge in the file of paid scores: `Books` of one process after the other.

    Each batch has a slot of its own, and the first batch in a slot stays: of two processes that send at once, one is
    refused before it has sent anything.
    """

    def __init__(self, rows: KeyedRows, judge: str) -> None:
        self._rows, self._judge = rows, judge
        self._slots: dict[str, bytes] = {}  # of the batches that were seen, by their keys

    @classmethod
    def at(cls, path: Path | None, judge: str) -> FiledBatches:
        """Those in the file at *path*; None keeps them in memory."""
        columns = ("slot BLOB", "batch TEXT NOT NULL", "open INTEGER NOT NULL")
        return cls(KeyedRows(path, "open_batches", columns, kind="a score cache"), judge)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let the file go."""
        self._rows.close()

    def now(self) -> float:
        """Unix seconds by the clock of this machine."""
        return time.time()

    def open(self) -> list[OpenBatch]:
        """The open batches, oldest first."""
        return [batch for batch, is_open in self._all() if is_open]

    def lost(self) -> tuple[float, float]:
        """Tokens and US dollars of batches that were struck off, and gave no answers for them."""
        closed = [batch for batch, is_open in self._all() if not is_open]
        return sum(batch.tokens for batch in closed), sum(batch.usd for batch in closed)

    def add(self, batch: OpenBatch) -> OpenBatch:
        """Write a batch down before it is sent.

        Raises:
            JudgeError: Another process has sent one since `open` was asked.
        """
        self._slots[batch.key] = slot = self._slot(len(self._slots))
        self._rows.put([(slot, json.dumps(asdict(batch)), 1)])
        ((_, kept, _),) = self._rows.get([slot])
        if json.loads(kept)["key"] != batch.key:
            raise JudgeError(f"{self._judge}: expected one process that sends its batches, found another one")
        return batch

    def note(self, batch: OpenBatch) -> OpenBatch:
        """Write down what is known of a batch by now."""
        self._rows.put([(self._slots[batch.key], json.dumps(asdict(batch)), 1)], replace=True)
        return batch

    def close(self, batch: OpenBatch, *, lost: float = 0.0) -> None:
        """Strike a batch off; what is *lost* stays counted."""
        left = replace(batch, tokens=lost * batch.tokens, usd=lost * batch.usd)
        self._rows.put([(self._slots[batch.key], json.dumps(asdict(left)), 0)], replace=True)

    def _slot(self, number: int) -> bytes:
        return pair_key(self._judge, "batch", str(number))

    def _all(self) -> Iterator[tuple[OpenBatch, bool]]:
        """All batches, and whether each is open."""
        for slot in map(self._slot, count()):
            rows = list(self._rows.get([slot]))
            if not rows:
                return
            ((_, text, is_open),) = rows
            batch = OpenBatch.of(json.loads(text))
            self._slots[batch.key] = slot
            yield batch, bool(is_open)
