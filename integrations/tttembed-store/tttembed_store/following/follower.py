"""Live offsets that follow a store: what it publishes is served within seconds, and what it loses goes on being served.

One thread for each store and process asks for the generations of all tenants in one read, and reads a version only
where its tenant's generation changed. A halt of all is one flag, and tenants without a version of their own are served
the shared snapshot, so both reach any number of tenants in one look. Queries never wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod, WeakValueDictionary, finalize

from tttembed_rag.errors import StoreUnavailable, TTTEmbedError
from tttembed_rag.offsets.offset import TextId
from tttembed_rag.serving.live import SWITCHED_OFF, switched_off
from tttembed_rag.system import telemetry
from tttembed_store.background import Loop, checked_interval
from tttembed_store.following.reached import Reached
from tttembed_store.following.tenants import Published, TenantOffsets, TenantSnapshot

if TYPE_CHECKING:
    from tttembed_store.sql import Store, TenantState

_log = logging.getLogger(__name__)
# Tenants that ask before they were read are remembered until the next look: at most so many.
_MOST_WANTED = 20_000
# Seconds after which a store that says nothing is said not to answer.
_PATIENCE = 5.0
# The part of the time that looking takes, since queries wait for the interpreter meanwhile: one in a hundred notices.
# And for how many seconds it puts off the next look at most.
_SHARE, _LONGEST_REST = 0.01, 2.0
_NOT_READ = TenantSnapshot(reason="not read from the store yet")
# Stands for the shared snapshot, at tenants that were read and have neither a live version nor a halt of their own.
_SHARED = TenantSnapshot(reason="the shared offsets are served")
_LEFT = TenantSnapshot(reason="the store is no longer followed")


def follow(
    store: Store | str,
    *,
    tenant: str | None = None,
    tenants: Iterable[str] = (),
    every: float = 2.0,
    embedder: str = "",
    tenant_required: bool = False,
    base_share: float = 0.0,
) -> TenantOffsets:
    """Live offsets that *store* decides: its live versions, replaced while queries are answered.

    Nothing published, halted, switched off by ``TTTEMBED_OFF=1``, or learned for another embedding
    model: base vectors, bit for bit. While the store is away, or hangs, the last version stays, one line is logged, and
    `TenantOffsets.status` has the error, and the age of the last answer. A forked child follows by itself, and so does
    another process that unpickles them, where the store was named by its URL.

    Args:
        store: An open store, or its URL; a server need not be reachable yet, and a file must be there.
        tenant: Whose offsets are served; None is the caller's ``with context(..., tenant=...)``.
        tenants: Tenants to read now. One that is met later is served base vectors until it was
            read, which takes a few milliseconds.
        every: Seconds between two looks at the store, > 0; of several for one store, the shortest holds. Looks are
            further apart where they would take more than a hundredth of the time: of versions that come faster, the
            newest is read.
        embedder: Fingerprint of the embedding model that is wrapped; empty does not look.
        tenant_required: Whether a query without a tenant is served its base vector, and counted in
            `TenantOffsets.without_tenant`, instead of the shared offsets.
        base_share: Share of queries, in [0, 1], that are served their base vector, chosen by their text: what they find
            depends on no offset, for the price of their gain.

    Raises:
        InputError: *every* is not above 0, or longer than a thread can wait, or *base_share* is no share.
        StoreError: It is no store of this package.
    """
    follower, error = _following(store, checked_interval("every", every), {"", tenant or "", *tenants})
    if error is not None and not isinstance(error, StoreUnavailable):
        raise error
    follower.start()
    return TenantOffsets(
        follower, tenant=tenant, embedder=embedder, tenant_required=tenant_required, base_share=base_share
    )


class Follower:
    """What every tenant is served according to a store, read *every* so many seconds; made by `follow`."""

    def __init__(self, store: Store | str, every: float) -> None:
        self.every = every
        self._store = Reached(store, "store of live offsets", records=False)
        # Why base vectors are served to all, as a snapshot; None where they are not.
        self._off: TenantSnapshot | None = None
        # The generations that the store says, and those that were read; none before the first look.
        self._own: Mapping[str, int] = {}
        self._read: dict[str, int] = {}
        self._snapshots: dict[str, TenantSnapshot] = {}
        self._errors: dict[str, str] = {}
        self._wanted: set[str] = set()
        self._due = 0.0
        # Since when an answer of the store is waited for.
        self._asked: float | None = None
        # The thread must not keep alive whom nobody asks any more.
        look = WeakMethod(self.round, lambda _: loop.wake())
        loop = self._loop = Loop("tttembed-follow", lambda: None if (mine := look()) is None else mine())
        finalize(self, self._store.close).atexit = False
        telemetry.watch(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, a follower of its own."""
        if not isinstance(self._store.source, str):
            raise TypeError("pickle: expected offsets that follow a store by its URL, got an open store")
        return _unpickled, (self._store.source, self.every, tuple(self._snapshots))

    def snapshot(self, tenant: str) -> TenantSnapshot:
        """What *tenant* is served now; base vectors until it was read for the first time."""
        if self._loop.asleep:
            self._loop.start()
        if self._asked is not None and (waited := time.monotonic() - self._asked) > _PATIENCE:
            self._store.failed(StoreUnavailable(f"nothing came back for {waited:.0f} s"))
        if self._off is not None:
            return self._off
        tenant = self._key(tenant)
        now = self._snapshots.get(tenant)
        if now is not None:
            return now
        if tenant not in self._wanted and len(self._wanted) < _MOST_WANTED:
            self._wanted.add(tenant)
            self._loop.wake()
        return _NOT_READ

    def _key(self, tenant: str) -> str:
        """The tenant under whose name the snapshot for *tenant* stands: itself, or the shared one."""
        # A name from a request costs nothing here, however many there are.
        unknown = bool(self._own) and tenant not in self._own
        return "" if unknown or self._snapshots.get(tenant) is _SHARED else tenant

    def start(self) -> None:
        """Look at the store from now on."""
        self._due = time.monotonic() + self.every
        self._loop.start()
        self._loop.wake()

    def status(self, tenant: str) -> TenantSnapshot:
        """What *tenant* is served now, since when that is known, and what is wrong."""
        now = self.snapshot(tenant)
        return replace(now, age=self._store.age, error=self._store.error or self._errors.get(self._key(tenant)))

    def closed(self) -> Published:
        """What was served last, for good."""
        if self._off is not None:
            return Published({"": self._off})
        read = dict(self._snapshots)
        return Published({"": _LEFT, **{tenant: read.get(self._key(tenant), _LEFT) for tenant in self._own}})

    def refresh(self, tenants: Collection[str] = ()) -> TTTEmbedError | None:
        """Read what changed of the tenants that are followed, and of *tenants*; gives why that failed."""
        with self._loop.working:
            if switched_off():
                self._off = TenantSnapshot(reason=SWITCHED_OFF)
                return None
            began, self._asked = time.perf_counter(), time.monotonic()
            try:
                store = self._store.store()
                now = store.generations()
                self._off = None if now.halted is None else _halted(now.halted)
                self._own = now.own
                for tenant in self._snapshots.keys() - now.own.keys():
                    for by_tenant in (self._snapshots, self._read, self._errors):
                        by_tenant.pop(tenant, None)
                for tenant in {"", *tenants, *self._snapshots} & now.own.keys():
                    if self._read.get(tenant) != now.own[tenant]:
                        self._refresh_one(store, tenant)
                self._store.answered()
            except TTTEmbedError as error:
                self._store.failed(error)
                return error
            finally:
                self._asked = None
            telemetry.record("tttembed.refresh.duration", time.perf_counter() - began)
            return None

    def measure(self) -> Iterator[telemetry.Point]:
        """Version and age, for telemetry."""
        if (age := self._store.age) is not None:
            yield telemetry.Point("tttembed.refresh.age", age, {})
        for tenant, now in dict(self._snapshots).items():
            if now.version is not None and self._off is None:
                yield telemetry.Point("tttembed.refresh.version", now.version, {"tenant": tenant})

    def round(self) -> float:
        """One look at the store; gives the seconds until the next. A tenant that is new wakes the thread earlier."""
        wanted, self._wanted = self._wanted, set()
        if wanted or time.monotonic() >= self._due:
            busy = time.thread_time()
            if self.refresh(wanted) is not None:
                self._wanted |= wanted
            rest = min((time.thread_time() - busy) / _SHARE, _LONGEST_REST)
            self._due = time.monotonic() + max(self.every, rest)
        return max(0.0, self._due - time.monotonic())

    def _refresh_one(self, store: Store, tenant: str) -> None:
        self._asked = time.monotonic()
        try:
            with telemetry.span("refresh", tenant=tenant) as note:
                now = store.serving(tenant=tenant, own=True)
                before = self._snapshots.get(tenant, _NOT_READ).version
                after = _snapshot_of(now, tenant, store.text_id)
                # One assignment in a dict: a reader finds the old snapshot or the new one.
                self._snapshots[tenant] = after
                note(version=after.version or 0, generation=now.generation)
            if now.version is not None and after.version not in (None, before):
                telemetry.record("tttembed.refresh.lag", max(0.0, time.time() - now.version.at))
            self._read[tenant] = now.generation
            self._errors.pop(tenant, None)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged version or an impossible name must not stop the others
            if self._errors.get(tenant) != str(error):
                self._errors[tenant] = str(error)
                _log.warning("tenant %r: what it was served last stays: %s", tenant, error)
            self._snapshots.setdefault(tenant, _NOT_READ)


def _halted(why: str) -> TenantSnapshot:
    return TenantSnapshot(reason=f"halted: {why}")


def _snapshot_of(now: TenantState, tenant: str, text_id: TextId) -> TenantSnapshot:
    if now.halted is not None:
        return _halted(now.halted)
    if (version := now.version) is None:
        return _SHARED if tenant else TenantSnapshot()
    offsets, embedder = version.offsets, version.embedder
    return TenantSnapshot(offsets, None, version.number, embedder, owner=version.tenant, text_id=text_id)


# One for each store, by its identity, or by its URL and the current folder, from which a file may be named.
_followers: WeakValueDictionary[tuple[str | int, str], Follower] = WeakValueDictionary()
_making = Lock()


def _following(store: Store | str, every: float, tenants: Collection[str]) -> tuple[Follower, TTTEmbedError | None]:
    """The follower of a store, which has read what *tenants* are served; or why it could not."""
    key = (store, str(Path.cwd())) if isinstance(store, str) else (id(store), "")
    with _making:
        follower = _followers.get(key)
        if follower is None:
            follower = _followers[key] = Follower(store, every)
        follower.every = min(follower.every, every)
    return follower, follower.refresh(tenants)


def _unpickled(store: str, every: float, tenants: tuple[str, ...]) -> Follower:
    follower, _ = _following(store, every, tenants)
    follower.start()
    return follower
