"""Live offsets: which offsets each tenant is served, replaced in one step while queries are answered."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol
from zlib import crc32

from tttembed_rag.errors import InputError, VectorError, check_text
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS, few
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import Offset, TextId
from tttembed_rag.rewards import DEFAULT_TASK
from tttembed_rag.serving.context import current_query_id, current_tenant
from tttembed_rag.system import telemetry

# Why nothing is served where the environment says so.
SWITCHED_OFF = "TTTEMBED_OFF is set"

_log = logging.getLogger(__name__)
# Tasks without offsets that are named in the log at most.
_MOST_WARNED = 20


def switched_off() -> bool:
    """Whether the environment variable ``TTTEMBED_OFF`` turns offsets off; empty and 0 do not."""
    return os.environ.get("TTTEMBED_OFF", "0") not in ("", "0")


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What one tenant is served, whole.

    Attributes:
        offsets: None is base vectors, bit for bit.
        reason: Why base vectors are served; None where offsets are.
        version: Number of the version in its store; None where nothing was published, or not by a store.
        embedder: Fingerprint of the model the offsets were learned for; empty where it is not known.
        error: Why the store could not be read just now; None where it was.
        age: Seconds since the store last answered; None before it ever did, and without a store.
        owner: The tenant whose offsets they are; empty for the shared ones.
        text_id: Text to its id in the store; None without one.
    """

    offsets: Offsets | None = None
    reason: str | None = "nothing was published"
    version: int | None = None
    embedder: str = ""
    error: str | None = None
    age: float | None = None
    owner: str = ""
    text_id: TextId | None = field(default=None, repr=False)

    @classmethod
    def of(cls, offsets: Offsets | None, owner: str = "") -> Snapshot:
        """*offsets* of this process and of the tenant *owner*, unless it is switched off."""
        if switched_off():
            return cls(reason=SWITCHED_OFF)
        return cls() if offsets is None else cls(checked_offsets(offsets), reason=None, owner=owner)


_NOBODYS = Snapshot(reason="a tenant is required, and none was said")


class Source(Protocol):
    """Where live offsets come from. Both are called while queries wait: no lock, no input or output."""

    def snapshot(self, tenant: str) -> Snapshot:
        """What *tenant* is served now."""

    def status(self, tenant: str) -> Snapshot:
        """What *tenant* is served now, with the present age and error."""

    def closed(self) -> Source:
        """A frozen copy: it goes on serving what this source served last."""


class Published:
    """Offsets published in this process: the tenants' own, and those for all others.

    Args:
        snapshots: By tenant; ``""`` are the shared ones.
    """

    def __init__(self, snapshots: Mapping[str, Snapshot]) -> None:
        self._snapshots = {"": Snapshot(), **snapshots}

    def snapshot(self, tenant: str) -> Snapshot:
        """The tenant's own offsets, else the shared ones."""
        return self._snapshots.get(tenant) or self._snapshots[""]

    status = snapshot

    def closed(self) -> Published:
        """Itself: it follows nobody."""
        return self

    def publish(self, offsets: Offsets | None, tenant: str) -> Offsets | None:
        """Replace the offsets of *tenant*; gives those it was served until now."""
        new, before = Snapshot.of(offsets, tenant), self.snapshot(tenant).offsets
        if before is not None and offsets is not None and offsets.width != before.width:
            raise VectorError(f"offsets: expected width {before.width}, got {offsets.width}")
        self._snapshots[tenant] = new  # one step, so that a reader finds the old snapshot or the new one
        return before


class LiveOffsets:
    """The offsets that are served, replaced in one step while queries are answered.

    Each tenant is served its own offsets, or the shared ones where it has none, and never another's.
    The tenant of a query is the one these offsets are fixed to, else the caller's
    ``with context(..., tenant=...)``. The environment variable ``TTTEMBED_OFF=1`` turns all offsets off.

    Args:
        offsets: The first shared ones; None before anything was learned.
    """

    def __init__(self, offsets: Offsets | None = None) -> None:
        self._source: Source = Published({"": Snapshot.of(offsets)})
        self._tenant: str | None = None
        self._embedder = ""
        self._required = False
        self._base_share = 0.0
        self._without_tenant = telemetry.Tallies("")
        # What the log has told: tasks without offsets, and versions of another model; None is one of no known model.
        self._missed: set[str] = set()
        self._told: set[int | None] = set()

    @classmethod
    def of(
        cls,
        source: Source,
        *,
        tenant: str | None = None,
        embedder: str = "",
        tenant_required: bool = False,
        base_share: float = 0.0,
    ) -> LiveOffsets:
        """Live offsets from *source*, by the options of `tttembed_rag.serving.follow`, which makes those of a store.

        Raises:
            InputError: *base_share* is no share, or *tenant* no name.
        """
        if not 0.0 <= base_share <= 1.0:
            raise InputError(f"base_share: expected a share in [0, 1], got {base_share!r}")
        live = cls()
        live._source, live._embedder, live._required, live._base_share = source, embedder, tenant_required, base_share
        return live.for_tenant(tenant)

    def for_tenant(self, tenant: str | None) -> LiveOffsets:
        """Live offsets of one *tenant*, whatever the caller's context says."""
        check_text("tenant", tenant)
        other = copy(self)
        other._tenant, other._without_tenant = tenant, telemetry.Tallies("")  # noqa: SLF001 - of this class
        return other

    @property
    def without_tenant(self) -> int:
        """Queries that were served their base vector because they came without the tenant that is required."""
        return self._without_tenant.values().get("", 0)

    @property
    def current(self) -> Offsets | None:
        """What the tenant is served now; None for base vectors."""
        return self._now(self._source.snapshot).offsets

    @property
    def status(self) -> Snapshot:
        """What the tenant is served now and why, how old that knowledge is, and what is wrong."""
        return self._now(self._source.status)

    def serving(self, query: str, task: str | None) -> tuple[Offsets | None, Offset | None]:
        """What the tenant is served now, and the offset in it that serves *query*; None for its base vector."""
        now = self._now(self._source.snapshot)
        if now is _NOBODYS:
            self._without_tenant.add("")
        if now.offsets is None or (
            self._base_share and crc32(str(query).encode("utf-8", "replace")) < self._base_share * 2**32
        ):
            return None, None
        offset = now.offsets.find(task, *(self._names(query, now) if now.offsets.has_private else ()))
        if offset is None:
            self._say_missing(now.offsets, task)
        return now.offsets, offset

    def depth(
        self, task: str | None = None, *, today: int = 10, loss: float = CERTIFIED_LOSS, words: bool = False
    ) -> int:
        """How many of the first documents of a list need a reranker, as `Offsets.depth` says of what is served now.

        It is *today* where base vectors are served. Queries of `base_share` are always: rerank these as today.
        """
        offsets = self.current or Offsets((), width=1)
        depth = offsets.depth(task, today=today, loss=loss, words=words)
        if offsets.find(task) is None:
            self._say_missing(offsets, task)
        return depth

    def _say_missing(self, offsets: Offsets, task: str | None) -> None:
        """Log once that *offsets* hold nothing of *task*: most often, it was logged under another name."""
        task = task or DEFAULT_TASK
        if not offsets.tasks or task in offsets.tasks or task in self._missed or len(self._missed) >= _MOST_WARNED:
            return
        self._missed.add(task)
        _log.warning(
            "task %r: base vectors are served: the offsets hold nothing of it, but of %s. Were its rewards "
            "logged under another task?",
            task,
            few([repr(one) for one in sorted(offsets.tasks)]),
        )

    def publish(self, offsets: Offsets | None) -> Offsets | None:
        """Serve *offsets* from the next query on; returns those served until now, for a way back.

        They are the shared ones, or those of the tenant these live offsets are fixed to.

        Args:
            offsets: None takes them away.

        Raises:
            InputError: They are no `Offsets`, or a store decides what is served.
            VectorError: They are of another width.
        """
        if not isinstance(self._source, Published):
            raise InputError("publish: expected offsets of this process, got those of a store: publish there")
        return self._source.publish(offsets, self._tenant or "")

    def close(self) -> None:
        """Follow no longer; what was served last stays."""
        self._source = self._source.closed()

    def _whose(self) -> str | None:
        """The tenant of the present query; None where one is required and none was said."""
        tenant = current_tenant() if self._tenant is None else self._tenant
        return None if self._required and not tenant else tenant

    def _now(self, read: Callable[[str], Snapshot]) -> Snapshot:
        """What the tenant is served as *read*, or base vectors where it was learned for another embedding model.

        The log tells of each such version, and once that one of both models is not known.
        """
        tenant = self._whose()
        if tenant is None:
            return _NOBODYS
        now = read(tenant)
        if now.embedder == self._embedder or now.offsets is None:
            return now
        foreign = f"learned for {now.embedder}, not for {self._embedder}" if now.embedder and self._embedder else None
        key = now.version if foreign else None
        first = key not in self._told
        self._told.add(key)
        if foreign:
            if first:
                _log.warning("version %s: base vectors are served: %s", now.version, foreign)
            return replace(now, offsets=None, reason=foreign)
        if first:
            _log.warning(
                "version %s was learned for %s and is served to %s: publish with --embedder, follow with embedder=",
                now.version,
                now.embedder or "a model that it does not name",
                self._embedder or "whatever model is wrapped",
            )
        return now

    def _names(self, query: str, now: Snapshot) -> list[str]:
        """How what is served *now* may name *query*, the likeliest first.

        By the id that the caller's `context` gives, that id in the store, the text's id in the store, the text. Private
        offsets are those of queries of their owner: another tenant's queries may have the same ids.
        """
        if not isinstance(query, str) or now.owner != (self._whose() or ""):
            return []
        said = current_query_id()
        hashed = [now.text_id(one) for one in (said, query) if one] if now.text_id is not None else []
        return [name for name in (said, *hashed, query) if name]

    def __repr__(self) -> str:
        now = self.status
        return f"base vectors: {now.reason}" if now.offsets is None else repr(now.offsets)


def checked_offsets(offsets: Offsets) -> Offsets:
    """*offsets* as they came, or an InputError that names them ``offsets``."""
    if not isinstance(offsets, Offsets):
        raise InputError(f"offsets: expected tttembed_rag Offsets, got {type(offsets).__name__}")
    return offsets
