"""Live offsets of many tenants: each is served its own, or the shared ones where it has none, and never another's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from zlib import crc32

from tttembed_rag.errors import InputError, check_text
from tttembed_rag.offsets.evidence import CERTIFIED_LOSS
from tttembed_rag.offsets.offset import TextId
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.serving.context import context_value, current_tenant
from tttembed_rag.serving.live import NOT_PUBLISHED, SWITCHED_OFF, Lookup, checked_offsets, switched_off
from tttembed_rag.system import telemetry

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class TenantSnapshot:
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
    reason: str | None = NOT_PUBLISHED
    version: int | None = None
    embedder: str = ""
    error: str | None = None
    age: float | None = None
    owner: str = ""
    text_id: TextId | None = field(default=None, repr=False)

    @classmethod
    def of(cls, offsets: Offsets, owner: str = "", embedder: str = "") -> TenantSnapshot:
        """*offsets* of the tenant *owner*, learned for *embedder*, unless the environment switches them off."""
        if switched_off():
            return cls(reason=SWITCHED_OFF)
        return cls(checked_offsets(offsets), reason=None, owner=owner, embedder=embedder)


_WITHOUT_TENANT = TenantSnapshot(reason="a tenant is required, and none was said")


class SnapshotReader(Protocol):
    """What knows the snapshots of tenants. They are asked for while queries wait: no lock, no input or output."""

    def snapshot(self, tenant: str) -> TenantSnapshot:
        """What *tenant* is served now."""

    def status(self, tenant: str) -> TenantSnapshot:
        """What *tenant* is served now, with the present age and error."""

    def closed(self) -> SnapshotReader:
        """A frozen copy: it goes on giving what was served last."""


class Published:
    """Snapshots that stay as they are: the tenants' own, and the one for all others.

    Args:
        snapshots: By tenant; ``""`` is the shared one.
    """

    def __init__(self, snapshots: Mapping[str, TenantSnapshot]) -> None:
        self._snapshots = {"": TenantSnapshot(), **snapshots}

    def snapshot(self, tenant: str) -> TenantSnapshot:
        """The tenant's own snapshot, else the shared one."""
        return self._snapshots.get(tenant) or self._snapshots[""]

    status = snapshot

    def closed(self) -> Published:
        """Itself: it follows nobody."""
        return self


class TenantOffsets:
    """The live offsets of many tenants: of a store where `follow` made them, or of a file.

    The tenant of a query is the one these offsets are fixed to, else the caller's ``with context(..., tenant=...)``.
    The environment variable ``TTTEMBED_OFF=1`` turns all offsets off. The options are those of `follow`.

    Args:
        reader: What knows the snapshots of the tenants.

    Raises:
        InputError: *base_share* is no share, or *tenant* no name.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        *,
        tenant: str | None = None,
        embedder: str = "",
        tenant_required: bool = False,
        base_share: float = 0.0,
    ) -> None:
        if not 0.0 <= base_share <= 1.0:
            raise InputError(f"base_share: expected a share in [0, 1], got {base_share!r}")
        check_text("tenant", tenant)
        self._reader, self._tenant, self._embedder = reader, tenant, embedder
        self._required, self._base_share = tenant_required, base_share
        self._without_tenant = telemetry.Tallies("")
        # Versions of another model that the log has named; None is one where either model is not known.
        self._named: set[int | None] = set()

    @classmethod
    def of_file(cls, path: str | Path, *, embedder: str = "") -> TenantOffsets:
        """Those of a file, for all tenants, unless they were learned for another model than *embedder*."""
        offsets = Offsets.load(path)
        learned_for = str(offsets.settings.get("embedder", ""))
        return cls(Published({"": TenantSnapshot.of(offsets, embedder=learned_for)}), embedder=embedder)

    def for_tenant(self, tenant: str | None) -> TenantOffsets:
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
        return self._now(self._reader.snapshot).offsets

    @property
    def status(self) -> TenantSnapshot:
        """What the tenant is served now and why, how old that knowledge is, and what is wrong."""
        return self._now(self._reader.status)

    def serving(self, query: str, task: str | None) -> Lookup:
        """What the tenant is served now, and the offset in it that serves *query*."""
        now = self._now(self._reader.snapshot)
        if now is _WITHOUT_TENANT:
            self._without_tenant.add("")
        if now.offsets is None or self._keeps_base(query):
            return Lookup(None, reason=now.reason or "it is of the share of queries that keep their base vector")
        names = self._names(query, now) if now.offsets.has_private else []  # a text's id takes a hash
        return Lookup(now.offsets, now.offsets.find(task, *names))

    def depth(
        self, task: str | None = None, *, today: int = 10, loss: float = CERTIFIED_LOSS, words: bool = False
    ) -> int:
        """How many of the first documents of a list need a reranker, as `Offsets.depth` says of what is served now.

        It is *today* where base vectors are served. Queries of `base_share` are always: rerank these as today.
        """
        return (self.current or Offsets((), width=1)).depth(task, today=today, loss=loss, words=words)

    def close(self) -> None:
        """Follow no longer; what was served last stays."""
        self._reader = self._reader.closed()

    def _keeps_base(self, query: str) -> bool:
        """Whether *query* is of the share that keeps its base vector."""
        share = self._base_share
        return bool(share) and crc32(str(query).encode("utf-8", "replace")) < share * 2**32

    def _whose(self) -> str | None:
        """The tenant of the present query; None where one is required and none was said."""
        tenant = current_tenant() if self._tenant is None else self._tenant
        return None if self._required and not tenant else tenant

    def _now(self, read: Callable[[str], TenantSnapshot]) -> TenantSnapshot:
        """What the tenant is served as *read*, or base vectors where it was learned for another embedding model.

        The log names each such version, and says once that one of both models is not known.
        """
        tenant = self._whose()
        if tenant is None:
            return _WITHOUT_TENANT
        now = read(tenant)
        if now.embedder == self._embedder or now.offsets is None:
            return now
        foreign = f"learned for {now.embedder}, not for {self._embedder}" if now.embedder and self._embedder else None
        key = now.version if foreign else None
        is_first = key not in self._named
        self._named.add(key)
        if foreign:
            if is_first:
                _log.warning("version %s: base vectors are served: %s", now.version, foreign)
            return replace(now, offsets=None, reason=foreign)
        if is_first:
            _log.warning(
                "version %s was learned for %s and is served to %s: publish with --embedder, follow with embedder=",
                now.version,
                now.embedder or "a model that it does not name",
                self._embedder or "whatever model is wrapped",
            )
        return now

    def _names(self, query: str, now: TenantSnapshot) -> list[str]:
        """How what is served *now* may name *query*, the likeliest first.

        By the id that the caller's `context` gives, that id in the store, the text's id in the store, the text. Private
        offsets are those of queries of their owner: another tenant's queries may have the same ids.
        """
        if not isinstance(query, str) or now.owner != (self._whose() or ""):
            return []
        query_id = context_value("query_id") or ""
        hashed = [now.text_id(text) for text in (query_id, query) if text] if now.text_id is not None else []
        return [name for name in (query_id, *hashed, query) if name]

    def __repr__(self) -> str:
        now = self.status
        return f"base vectors: {now.reason}" if now.offsets is None else repr(now.offsets)
