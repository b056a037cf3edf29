"""The offsets of one process, replaced in one step while queries are answered."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS, few
from tttembed_rag.offsets.offset import Offset
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.columns import DEFAULT_TASK
from tttembed_rag.serving.context import current_query_id, current_tenant

# Why nothing is served where the environment says so.
SWITCHED_OFF = "TTTEMBED_OFF is set"

_log = logging.getLogger(__name__)
# Tasks without offsets that are named in the log at most.
_MOST_WARNED = 20


def switched_off() -> bool:
    """Whether the environment variable ``TTTEMBED_OFF`` turns offsets off; empty and 0 do not."""
    return os.environ.get("TTTEMBED_OFF", "0") not in ("", "0")


@runtime_checkable
class OffsetSupplier(Protocol):
    """What hands out the offsets that are live: `LiveOffsets` of this process, or what follows a store."""

    def serving(self, query: str, task: str | None, /) -> tuple[Offsets | None, Offset | None]:
        """The live offsets, and the one in them that serves *query*; None is the base vector.

        It is called while a query waits: without a lock, without input or output.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What is served at one moment.

    Attributes:
        offsets: None is base vectors, bit for bit.
        reason: Why base vectors are served; None where offsets are.
    """

    offsets: Offsets | None = None
    reason: str | None = "nothing was published"

    @classmethod
    def of(cls, offsets: Offsets | None) -> Snapshot:
        """*offsets* that are served now, unless the environment switches them off."""
        if switched_off():
            return cls(reason=SWITCHED_OFF)
        return cls() if offsets is None else cls(checked_offsets(offsets), reason=None)


class LiveOffsets:
    """The offsets that are served, replaced in one step while queries are answered.

    The environment variable ``TTTEMBED_OFF=1`` turns all offsets off. A private offset serves no query of a tenant, as
    its verdicts came from a query without one. `tttembed_store.follow` serves each tenant its own offsets.

    Args:
        offsets: The first ones; None before anything was learned.
    """

    def __init__(self, offsets: Offsets | None = None) -> None:
        self._now = Snapshot.of(offsets)
        self._lookup = Lookup()

    @property
    def current(self) -> Offsets | None:
        """What is served now; None for base vectors."""
        return self._now.offsets

    @property
    def status(self) -> Snapshot:
        """What is served now, and why base vectors are where they are."""
        return self._now

    def serving(self, query: str, task: str | None) -> tuple[Offsets | None, Offset | None]:
        """What is served now, and the offset in it that serves *query*; None for its base vector."""
        offsets = self._now.offsets
        if offsets is None:
            return None, None
        names = [] if current_tenant() or not isinstance(query, str) else [current_query_id(), query]
        return offsets, self._lookup.find(offsets, task, [name for name in names if name])

    def depth(
        self, task: str | None = None, *, today: int = 10, loss: float = CERTIFIED_LOSS, words: bool = False
    ) -> int:
        """How many of the first documents of a list need a reranker, as `Offsets.depth` says of what is served now.

        It is *today* where base vectors are served.
        """
        return self._lookup.depth(self.current, task, today=today, loss=loss, words=words)

    def publish(self, offsets: Offsets | None) -> Offsets | None:
        """Serve *offsets* from the next query on; returns those served until now, for a way back.

        Args:
            offsets: None takes them away.

        Raises:
            InputError: They are no `Offsets`.
            VectorError: They are of another width.
        """
        new, before = Snapshot.of(offsets), self._now.offsets
        if before is not None and offsets is not None and offsets.width != before.width:
            raise VectorError(f"offsets: expected width {before.width}, got {offsets.width}")
        self._now = new  # one step, so that a reader finds the old snapshot or the new one
        return before

    def __repr__(self) -> str:
        return f"base vectors: {self._now.reason}" if self._now.offsets is None else repr(self._now.offsets)


class Lookup:
    """Finds the offset of a query in live offsets, and names each task that they hold nothing of in the log, once.

    Most often, the rewards of such a task were logged under another name.
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def find(self, offsets: Offsets, task: str | None, names: list[str]) -> Offset | None:
        """The offset that serves a query of a *task*; its private one is looked up by *names*, the likeliest first."""
        offset = offsets.find(task, *(names if offsets.has_private else ()))
        if offset is None:
            self._warn(offsets, task)
        return offset

    def depth(self, offsets: Offsets | None, task: str | None, *, today: int, loss: float, words: bool) -> int:
        """`Offsets.depth` of what is served; *today* where *offsets* are None."""
        offsets = offsets or Offsets((), width=1)
        if offsets.find(task) is None:
            self._warn(offsets, task)
        return offsets.depth(task, today=today, loss=loss, words=words)

    def _warn(self, offsets: Offsets, task: str | None) -> None:
        task = task or DEFAULT_TASK
        if not offsets.tasks or task in offsets.tasks or task in self._warned or len(self._warned) >= _MOST_WARNED:
            return
        self._warned.add(task)
        _log.warning(
            "task %r: base vectors are served: the offsets hold nothing of it, but of %s. Were its rewards "
            "logged under another task?",
            task,
            few([repr(name) for name in sorted(offsets.tasks)]),
        )


def checked_offsets(offsets: Offsets) -> Offsets:
    """*offsets* as they came, or an InputError that names them ``offsets``."""
    if not isinstance(offsets, Offsets):
        raise InputError(f"offsets: expected tttembed_rag Offsets, got {type(offsets).__name__}")
    return offsets
