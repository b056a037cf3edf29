"""Open batches: requests that were sent to a batch service, or are about to be, and that have no results yet."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from datetime import date
from typing import Any, Protocol, Self

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

    def add(self, batch: OpenBatch, keys: AbstractSet[bytes]) -> OpenBatch | None:
        """Write a batch about pairs with these *keys* down before it is sent, and count it as spent.

        None where a cap refuses it.
        """

    def note(self, batch: OpenBatch) -> OpenBatch:
        """Write down what is known of a batch by now."""

    def close(self, batch: OpenBatch, *, lost: float = 0.0) -> None:
        """Strike a batch off, and give back what was counted for it, but for a share *lost* in [0, 1]."""
