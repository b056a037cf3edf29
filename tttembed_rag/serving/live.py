"""The offsets of one process, replaced in one step while queries are answered."""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol, runtime_checkable

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.serving.context import context_value, current_tenant

# Why nothing is served where the environment says so, and before anything was learned.
SWITCHED_OFF, NOT_PUBLISHED = "TTTEMBED_OFF is set", "nothing was published"


def switched_off() -> bool:
    """Whether the environment variable ``TTTEMBED_OFF`` turns offsets off; empty and 0 do not."""
    return os.environ.get("TTTEMBED_OFF", "0") not in ("", "0")


class Lookup(NamedTuple):
    """What one query is served.

    Attributes:
        offsets: The offsets that are live for it; None is base vectors, bit for bit.
        offset: The one in them that serves the query; None is its base vector.
        reason: Why no offsets are live; empty where some are.
    """

    offsets: Offsets | None
    offset: Offset | None = None
    reason: str = ""


@runtime_checkable
class OffsetSupplier(Protocol):
    """What hands out the offsets that are live: `LiveOffsets` of this process, or what follows a store."""

    def serving(self, query: str, task: str | None, /) -> Lookup:
        """What *query* is served now.

        It is called while a query waits: without a lock, without input or output.
        """


class LiveOffsets:
    """The offsets that are served, replaced in one step while queries are answered.

    The environment variable ``TTTEMBED_OFF=1`` turns all offsets off. A private offset serves no query of a tenant, as
    its verdicts came from a query without one. `tttembed_store.follow` serves each tenant its own offsets.

    Args:
        offsets: The first ones; None before anything was learned.
        reason: Why there are none yet.
    """

    def __init__(self, offsets: Offsets | None = None, *, reason: str = NOT_PUBLISHED) -> None:
        self._now = _live(offsets, reason)

    @property
    def current(self) -> Offsets | None:
        """What is served now; None for base vectors."""
        return self._now.offsets

    def serving(self, query: str, task: str | None) -> Lookup:
        """What is served now, and the offset in it that serves *query*."""
        now = self._now  # read once: it may be replaced meanwhile
        if (offsets := now.offsets) is None:
            return now
        return Lookup(offsets, offsets.find(task, *(names_of(query) if offsets.has_private else ())))

    def depth(
        self, task: str | None = None, *, today: int = 10, loss: float = CERTIFIED_LOSS, words: bool = False
    ) -> int:
        """`Offsets.depth` of what is served now; *today* where base vectors are served."""
        return (self.current or Offsets((), width=1)).depth(task, today=today, loss=loss, words=words)

    def publish(self, offsets: Offsets | None) -> Offsets | None:
        """Serve *offsets* from the next query on; returns those served until now, for a way back.

        Args:
            offsets: None takes them away.

        Raises:
            InputError: They are no `Offsets`.
            VectorError: They are of another width.
        """
        new, before = _live(offsets), self._now.offsets
        if before is not None and offsets is not None and offsets.width != before.width:
            raise VectorError(f"offsets: expected width {before.width}, got {offsets.width}")
        self._now = new  # one step, so that a reader finds the old offsets or the new ones
        return before

    def __repr__(self) -> str:
        return f"base vectors: {self._now.reason}" if self._now.offsets is None else repr(self._now.offsets)


def names_of(query: str) -> list[str]:
    """How private offsets of no tenant may name *query*, the likeliest first; nothing within a tenant's `context`."""
    if not isinstance(query, str) or current_tenant():
        return []
    return [name for name in (context_value("query_id"), query) if name]


def _live(offsets: Offsets | None, reason: str = NOT_PUBLISHED) -> Lookup:
    """*offsets* that are live from now on, unless the environment switches them off; for a *reason* there are none."""
    if switched_off():
        return Lookup(None, reason=SWITCHED_OFF)
    return Lookup(None, reason=reason) if offsets is None else Lookup(checked_offsets(offsets))


def checked_offsets(offsets: Offsets) -> Offsets:
    """*offsets* as they came, or an InputError that names them ``offsets``."""
    if not isinstance(offsets, Offsets):
        raise InputError(f"offsets: expected tttembed_rag Offsets, got {type(offsets).__name__}")
    return offsets
