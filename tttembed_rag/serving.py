"""Serving in a process: which task and tenant a query belongs to, which offsets are live, the vector that goes out.

The task of a query is, in this order: what the wrapper was fixed to, what the caller said by
`with scope(...)`, what a resolver answers. Nothing remembers the last one: where none of the three
names a task, the query is one without a task. Its tenant is what the live offsets are fixed to, else
what the caller said; a query without a tenant is served what all share. Its private offset is found by
the id that the caller said, else by its text: whoever asks the same text again is served it.

A context follows asyncio tasks and `asyncio.to_thread`, not a plain thread pool and no background
task that was started earlier (LangGraph's stores search in such): fix the scope of a wrapper there.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from tttembed_rag import queryids, telemetry
from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.offsets import Offsets

__all__ = [
    "LiveOffsets",
    "Published",
    "Router",
    "ScopeSource",
    "Snapshot",
    "Source",
    "Steering",
    "checked_scope",
    "current_query_id",
    "current_scope",
    "current_tenant",
    "resolve_scope",
    "scope",
    "switched_off",
]


@runtime_checkable
class Router(Protocol):
    """Names tasks by base query vectors, such as `tttembed_rag.routing.CentroidRouter`."""

    def route(self, vector: Any, /) -> str | None:
        """The task of a base query vector (d,), None where it is unsure."""
        ...


# A task key, a function from query text to task key or None, a router, or None.
ScopeSource: TypeAlias = str | Callable[[str], str | None] | Router | None

# Why nothing is served where the environment says so.
SWITCHED_OFF = "TTTEMBED_OFF is set"

_log = logging.getLogger(__name__)
_task: ContextVar[str | None] = ContextVar("tttembed_rag.scope", default=None)
_tenant: ContextVar[str] = ContextVar("tttembed_rag.tenant", default="")


@contextmanager
def scope(task: str | None, *, tenant: str | None = None, query_id: str | None = None) -> Iterator[None]:
    """Queries embedded inside the block belong to *task*; None says nothing about them.

    Args:
        task: Their task key.

        tenant: Whose they are; None leaves the tenant of the block around.

        query_id: The id of your own that the one query of the block is recorded and found under; empty for that of
            its text, None leaves that of the block around.

    Raises:
        InputError: *task*, *tenant* or *query_id* is neither a string nor None.
    """
    if not isinstance(task, str | None):
        raise InputError(f"task: expected a task key or None, got {type(task).__name__}")
    _check_tenant(tenant)
    if not isinstance(query_id, str | None):
        raise InputError(f"query_id: expected an id or None, got {type(query_id).__name__}")
    tokens = _task.set(task), _tenant.set(_tenant.get() if tenant is None else tenant)
    id_token = queryids.given.set(queryids.given.get() if query_id is None else query_id)
    try:
        yield
    finally:
        _task.reset(tokens[0])
        _tenant.reset(tokens[1])
        queryids.given.reset(id_token)


def current_scope() -> str | None:
    """The task of the innermost `with scope(...)` around the caller; None outside any."""
    return _task.get()


def current_tenant() -> str:
    """The tenant of the innermost `with scope(..., tenant=...)` around the caller; empty outside any."""
    return _tenant.get()


def current_query_id() -> str:
    """The id of the innermost `with scope(..., query_id=...)` around the caller; empty outside any."""
    return queryids.given.get()


def switched_off() -> bool:
    """Whether the environment variable ``TTTEMBED_OFF`` turns offsets off; empty and 0 do not."""
    return os.environ.get("TTTEMBED_OFF", "0") not in ("", "0")


def checked_scope(source: ScopeSource) -> ScopeSource:
    """*source* as it came, or an InputError that names it ``scope``."""
    if not (source is None or isinstance(source, str | Router) or callable(source)):
        raise InputError(f"scope: expected a task key, a function, a router or None, got {type(source).__name__}")
    return source


def resolve_scope(source: ScopeSource, query: str, vector: Any = None) -> str | None:
    """The task of *query*: a fixed *source*, else the caller's `scope`, else what *source* answers.

    A router is asked about the base *vector*, and where none is at hand names no task. A resolver
    that fails, or answers anything but a text, names no task; the failure is logged.
    """
    if isinstance(source, str):
        return source
    task = _task.get()
    if task is not None or source is None:
        return task
    try:
        if isinstance(source, Router):
            return None if vector is None else source.route(vector)
        answer = source(query)
    except Exception:  # noqa: BLE001 - the caller's code: whatever it raises, the query is answered
        _log.exception("%r named no task", source)
        return None
    return answer if isinstance(answer, str) else None


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What one tenant is served, whole.

    Attributes:
        offsets: None is base vectors, bit for bit.

        reason: Why base vectors are served; None where offsets are.

        version: Number of the version in its store; None where nothing was published, or not by a store.

        generation: The store's count of changes when this was read; None where it was not read from one.

        embedder: Fingerprint of the model the offsets were learned for; empty where it is not known.

        error: Why the store could not be read just now; None where it was.

        age: Seconds since the store last answered; None before it ever did, and without a store.

        owner: The tenant whose offsets they are; empty for the shared ones.

        text_id: Text to its id in the store; None without one.
    """

    offsets: Offsets | None = None
    reason: str | None = "nothing was published"
    version: int | None = None
    generation: int | None = None
    embedder: str = ""
    error: str | None = None
    age: float | None = None
    owner: str = ""
    text_id: queryids.TextId | None = field(default=None, repr=False)

    @classmethod
    def of(cls, offsets: Offsets | None, owner: str = "") -> Snapshot:
        """*offsets* of this process and of the tenant *owner*, unless it is switched off."""
        if switched_off():
            return cls(reason=SWITCHED_OFF)
        return cls() if offsets is None else cls(_checked_offsets(offsets), reason=None, owner=owner)

    def find_id(self, query: str, task: str | None, tenant: str) -> str | None:
        """The id under which the offsets serve *query* of *tenant* a private one; None where they do not."""
        if self.offsets is None:
            return None
        owner, text_id = self.owner, self.text_id
        return queryids.find_id(self.offsets, query, task, tenant=tenant, owner=owner, text_id=text_id)


_FOREIGN = Snapshot(reason="learned for another model")


class Source(Protocol):
    """Where live offsets come from. Both are called while queries wait: no lock, no input or output."""

    def snapshot(self, tenant: str) -> Snapshot:
        """What *tenant* is served now."""
        ...

    def status(self, tenant: str) -> Snapshot:
        """The same, with the present age and error."""
        ...

    def closed(self) -> Source:
        """A source that goes on serving what this one served last."""
        ...


class Published:
    """Offsets published in this process: the tenants' own, and those for all others.

    Args:
        snapshots: By tenant; ``""`` are the shared ones.

        others: What tenants without an own snapshot are served; None is the shared ones.
    """

    def __init__(self, snapshots: Mapping[str, Snapshot], others: Snapshot | None = None) -> None:
        self._snapshots = {"": Snapshot(), **snapshots}
        self._others = others
        self._writing = Lock()

    def __reduce__(self) -> tuple[type[Published], tuple[dict[str, Snapshot], Snapshot | None]]:
        """The same offsets in another process."""
        return Published, (self._snapshots, self._others)

    def snapshot(self, tenant: str) -> Snapshot:
        """The tenant's own offsets, else those for all others."""
        snapshots = self._snapshots
        return snapshots.get(tenant) or self._others or snapshots[""]

    status = snapshot

    def closed(self) -> Published:
        """Itself: it follows nobody."""
        return self

    def publish(self, offsets: Offsets | None, tenant: str) -> Offsets | None:
        """Replace the offsets of *tenant*; gives those it was served until now."""
        new = Snapshot.of(offsets, tenant)
        with self._writing:
            before = self.snapshot(tenant).offsets
            if before is not None and offsets is not None and offsets.width != before.width:
                raise VectorError(f"offsets: expected width {before.width}, got {offsets.width}")
            self._snapshots = self._snapshots | {tenant: new}
        return before


class LiveOffsets:
    """The offsets that are served, replaced in one step while queries are answered.

    Each tenant is served its own offsets, or the shared ones where it has none, and never another's.
    The tenant of a query is the one these offsets are fixed to, else the caller's
    ``with scope(..., tenant=...)``. The environment variable ``TTTEMBED_OFF=1`` turns all offsets off.

    Args:
        offsets: The first shared ones; None before anything was learned.
    """

    def __init__(self, offsets: Offsets | None = None) -> None:
        self._source: Source = Published({"": Snapshot.of(offsets)})
        self._tenant: str | None = None
        self._embedder = ""
        self._refused: int | None = None

    @classmethod
    def of(cls, source: Source, *, tenant: str | None = None, embedder: str = "") -> LiveOffsets:
        """Live offsets from *source*; `tttembed_rag.following.follow` makes those of a store.

        Args:
            source: Where they come from.

            tenant: Whose offsets are served; None is the caller's `scope`.

            embedder: Fingerprint of the embedding model that is wrapped. Offsets learned for another
                one are not served; empty does not look.
        """
        live = cls()
        _check_tenant(tenant)
        live._source, live._tenant, live._embedder = source, tenant, embedder
        return live

    def for_tenant(self, tenant: str | None) -> LiveOffsets:
        """The same offsets for one *tenant*, whatever the caller's scope says."""
        return LiveOffsets.of(self._source, tenant=tenant, embedder=self._embedder)

    @property
    def current(self) -> Offsets | None:
        """What the tenant is served now; None for base vectors."""
        return self._own(self._source.snapshot(self._whose())).offsets

    def find(self, query: str, task: str | None) -> tuple[Offsets | None, str | None]:
        """What the tenant is served now, and the id of the private offset in it for *query*; None without one."""
        tenant = self._whose()
        now = self._own(self._source.snapshot(tenant))
        return now.offsets, now.find_id(query, task, tenant)

    @property
    def status(self) -> Snapshot:
        """What the tenant is served now and why, how old that knowledge is, and what is wrong."""
        now = self._source.status(self._whose())
        return replace(now, offsets=None, reason=self._foreign_reason(now)) if self._is_foreign(now) else now

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

    def _whose(self) -> str:
        return _tenant.get() if self._tenant is None else self._tenant

    def _own(self, now: Snapshot) -> Snapshot:
        """*now*, or nothing where it was learned for another model; the first of a version is logged."""
        if not self._is_foreign(now):
            return now
        if self._refused != now.version:
            self._refused = now.version
            _log.warning("version %s: base vectors are served: %s", now.version, self._foreign_reason(now))
        return _FOREIGN

    def _is_foreign(self, now: Snapshot) -> bool:
        return now.embedder != self._embedder and bool(self._embedder and now.embedder)

    def _foreign_reason(self, now: Snapshot) -> str:
        return f"learned for {now.embedder}, not for {self._embedder}"

    def __repr__(self) -> str:
        now = self.status
        return f"base vectors: {now.reason}" if now.offsets is None else repr(now.offsets)


class Steering:
    """Query vectors with their private offset, else that of their task; what offsets refuse is served as it came.

    A private offset is that of a query with rewards of its own: it is served wherever the same text is asked again in
    its task, or the caller's ``with scope(..., query_id=...)`` names the id it was recorded under.

    Args:
        offsets: What was learned; `LiveOffsets` where it is replaced while serving.

        scope: A task for every query, a function from query text to task, or a router from base vector
            to task; a caller's `scope` comes before these two. Where no task is named, the default task's or the global
            offset is looked up, as `Offsets.apply` does, and without one the base vector served.

    Raises:
        InputError: *offsets* or *scope* are something else.
    """

    def __init__(self, offsets: Offsets | LiveOffsets, scope: ScopeSource = None) -> None:
        self._live = offsets if isinstance(offsets, LiveOffsets) else LiveOffsets(_checked_offsets(offsets))
        telemetry.start()
        self._scope = checked_scope(scope)
        self._logged: set[str | None] = set()

    def for_scope(self, scope: ScopeSource) -> Steering:
        """The same live offsets for another scope."""
        other = Steering(self._live, scope)
        other._logged = self._logged
        return other

    def task_of(self, query: str, vector: Any = None) -> str | None:
        """The task of *query*; None where nothing names one. A router needs its base *vector*."""
        return resolve_scope(self._scope, query, vector)

    def apply(self, vector: Any, query: str) -> Any:
        """The vector to search with: *vector* (d,) with its offset, as a list of Python floats.

        A vector that the offsets refuse (NaN, zero, another width) is handed back; the first
        refusal of a task is logged.
        """
        # Some providers hand out numpy arrays; stores expect Python floats.
        base = vector.tolist() if isinstance(vector, np.ndarray) else vector
        task = self.task_of(query, base)
        offsets, query_id = self._live.find(query, task)
        steered, served = base, False
        try:
            if offsets is not None:
                steered = offsets.apply(base, task=task, query_id=query_id)
                served = offsets.find(task, query_id) is not None
        except VectorError as error:
            if task not in self._logged:
                self._logged.add(task)
                _log.warning("scope=%r: base vectors are served where the offsets refuse them: %s", task, error)
        telemetry.applied.add((task, served))
        return steered

    def __repr__(self) -> str:
        return f"{self._live!r}, scope={self._scope!r}"


def _check_tenant(tenant: str | None) -> None:
    if not isinstance(tenant, str | None):
        raise InputError(f"tenant: expected a name or None, got {type(tenant).__name__}")


def _checked_offsets(offsets: Offsets) -> Offsets:
    if not isinstance(offsets, Offsets):
        raise InputError(f"offsets: expected tttembed_rag Offsets, got {type(offsets).__name__}")
    return offsets
