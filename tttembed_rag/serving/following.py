"""Live offsets that follow a store: what it publishes is served within seconds, and what it loses goes on being served.

One thread for each store and process asks for the generations of all tenants it serves, in one indexed read,
and reads a version only where that changed. Queries never wait for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from weakref import WeakValueDictionary, finalize, ref

from tttembed_rag.errors import StoreUnavailable, TTTEmbedError
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import TextId
from tttembed_rag.serving.context import switched_off
from tttembed_rag.serving.live import SWITCHED_OFF, LiveOffsets, Published, Snapshot
from tttembed_rag.system import telemetry
from tttembed_rag.system.background import Loop, Outage, Reached, checked_interval

__all__ = ["Follower", "ServingStore", "check_url", "follow"]

_log = logging.getLogger(__name__)
# Tenants with something of their own that are followed at once; beyond it the least recently served is forgotten.
_MOST_TENANTS = 20_000
# The part of the time that looking takes, since queries wait for the interpreter meanwhile: one in a hundred notices.
# And for how many seconds it puts off the next look at most.
_SHARE, _LONGEST_REST = 0.01, 2.0
# Seconds, and times between two looks, after which a store that says nothing is said not to answer.
_PATIENCE, _LOOKS = 5.0, 3.0
_NOT_READ = Snapshot(reason="not read from the store yet")
_LEFT = Snapshot(reason="the store is no longer followed")


class ServedVersion(Protocol):
    """A published version."""

    @property
    def number(self) -> int:
        """Its number, strictly increasing."""
        ...

    @property
    def tenant(self) -> str:
        """Whose it is."""
        ...

    @property
    def at(self) -> float:
        """When it was published, in Unix seconds."""
        ...

    @property
    def embedder(self) -> str:
        """Fingerprint of the embedding model it was learned for."""
        ...

    @property
    def offsets(self) -> Offsets:
        """Its offsets, read when they are asked for."""
        ...


class ServedNow(Protocol):
    """What a store says a tenant must be served, in one consistent read."""

    @property
    def generation(self) -> int:
        """Changes with what the tenant is served."""
        ...

    @property
    def version(self) -> ServedVersion | None:
        """The live version; None for base vectors."""
        ...

    @property
    def halted(self) -> str | None:
        """Why everything is switched off; None where it is not."""
        ...


class ServingStore(Protocol):
    """What a store must answer to be followed."""

    def generations(self, tenants: Collection[str]) -> Mapping[str, int]:
        """By tenant, a number that changes with what it is served; cheap. Names it cannot hold are left out."""
        ...

    def own_tenants(self) -> Collection[str]:
        """The tenants that may be served something else than the shared tenant; cheap."""
        ...

    def serving(self, *, tenant: str = "") -> ServedNow:
        """What *tenant* is served."""
        ...

    @property
    def text_id(self) -> TextId:
        """Gives a text's id in this store, also while the store is away; can be pickled."""
        ...


def follow(
    store: ServingStore | str,
    *,
    tenant: str | None = None,
    tenants: Iterable[str] = (),
    every: float = 2.0,
    embedder: str = "",
    tenant_required: bool = False,
    base_share: float = 0.0,
) -> LiveOffsets:
    """Live offsets that *store* decides: its live versions, replaced while queries are answered.

    Nothing published, halted, switched off by ``TTTEMBED_OFF=1``, or learned for another embedding
    model: base vectors, bit for bit. While the store is away, or says nothing for three times *every*
    and 5 s, the last version stays, one line is logged, and `LiveOffsets.status` has the error. A forked child
    follows by itself, and so does another process that unpickles them, where the store was named by its URL.

    Args:
        store: An open store, or its URL; it need not be reachable yet.

        tenant: Whose offsets are served; None is the caller's ``with context(..., tenant=...)``.

        tenants: Tenants to read now. One that is met later is served base vectors until it was
            read, which takes a few milliseconds.

        every: Seconds between two looks at the store, > 0; of several for one store, the shortest holds. Looks are
            further apart where they would take more than a hundredth of the time: of versions that come faster, the
            newest is read.

        embedder: Fingerprint of the embedding model that is wrapped; empty does not look.

        tenant_required: Whether a query without a tenant is served its base vector, and counted in
            `LiveOffsets.without_tenant`, instead of the shared offsets.

        base_share: Share of queries, in [0, 1], that are served their base vector, chosen by their text: what they find
            depends on no offset, for the price of their gain.

    Raises:
        InputError: *every* is not above 0, or longer than a thread can wait, or *base_share* is no share.
        StoreError: It is no store of this package.
    """
    check_url(store)
    follower = _follower_of(store, checked_interval("every", every))
    error = follower.refresh({"", *(() if tenant is None else (tenant,)), *tenants})
    if error is not None and not isinstance(error, StoreUnavailable):
        raise error
    follower.start()
    options: dict[str, Any] = {"tenant_required": tenant_required, "base_share": base_share}
    return LiveOffsets.of(follower, tenant=tenant, embedder=embedder, **options)


class Follower:
    """What every tenant is served according to a store, read in the background; made by `follow`.

    Args:
        store: The store, or its URL.

        every: Seconds between two looks.
    """

    def __init__(self, store: ServingStore | str, every: float) -> None:
        self.every = every
        self._reached: Reached[ServingStore] = Reached(store, _opened)
        self._snapshots: dict[str, Snapshot] = {}
        self._errors: dict[str, str] = {}
        self._used: set[str] = set()
        # Tenants with something of their own; all others are served what the shared one is. None before the first look.
        self._own: frozenset[str] | None = None
        self._served_at: dict[str, float] = {}
        self._due = 0.0
        self._crowded = False
        self._outage = Outage("store of live offsets")
        self.renew()
        # The thread must not keep alive whom nobody asks any more.
        mine = ref(self, lambda _: loop.wake())
        loop = self._loop = Loop("tttembed-follow", lambda: _round(mine()), lambda: _forked(mine()))
        finalize(self, self._reached.close).atexit = False
        telemetry.watch(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process, a follower of its own."""
        if not isinstance(self._reached.source, str):
            raise TypeError("pickle: expected offsets that follow a store by its URL, got an open store")
        return _unpickled, (self._reached.source, self.every, tuple(self._snapshots))

    def snapshot(self, tenant: str) -> Snapshot:
        """What *tenant* is served now; base vectors until it was read for the first time."""
        now = self._snapshots.get(tenant)
        if now is None and self._own is not None and tenant not in self._own:
            now, tenant = (
                self._snapshots.get(""),
                "",
            )  # a name from a request costs nothing here, however many there are
        if now is None or self._loop.asleep:
            self._loop.start()
        if now is not None:
            self._used.add(tenant)
            self._outage.check()
            return now
        if tenant not in self._used and len(self._used) < 2 * _MOST_TENANTS:
            self._used.add(tenant)
            self._loop.wake()
        return _NOT_READ

    def start(self) -> None:
        """Look at the store from now on."""
        self._due = time.monotonic() + self.every
        self._loop.start()
        self._loop.wake()

    def status(self, tenant: str) -> Snapshot:
        """What *tenant* is served now, since when that is known, and what is wrong."""
        error = self._outage.error or self._errors.get(tenant)
        return replace(self.snapshot(tenant), age=self._outage.age, error=error)

    def closed(self) -> Published:
        """What was served last, for good."""
        unread = dict.fromkeys(self._own or (), _LEFT)
        others = _LEFT if self._own is None else None
        return Published({**unread, "": self.snapshot(""), **self._snapshots}, others=others)

    def refresh(self, tenants: Collection[str]) -> TTTEmbedError | None:
        """Read what *tenants* are served, where it changed; gives why the store could not be read."""
        if not tenants:
            return None
        with self._reading:
            if switched_off():
                self._snapshots = self._snapshots | dict.fromkeys(tenants, Snapshot(reason=SWITCHED_OFF))
                return None
            began = time.perf_counter()
            try:
                self._ask()
                store = self._reached.store()
                self._own = frozenset(store.own_tenants())
                tenants = [tenant for tenant in tenants if not tenant or tenant in self._own]
                self._leave(self._snapshots.keys() - self._own - {""})
                now = store.generations(tenants)
                for tenant in tenants:
                    if tenant not in now or now[tenant] != self._snapshots.get(tenant, _NOT_READ).generation:
                        self._refresh_one(store, tenant)
                self._outage.answered()
            except TTTEmbedError as error:
                self._outage.failed(error)
                return error
            telemetry.record("tttembed.refresh.duration", time.perf_counter() - began)
            return None

    def renew(self) -> None:
        """In a forked child: no other thread holds the lock."""
        self._reading = Lock()

    def measure(self) -> Iterator[telemetry.Point]:
        """Version and age, for telemetry."""
        if (age := self._outage.age) is not None:
            yield telemetry.Point("tttembed.refresh.age", age, {})
        for tenant, now in self._snapshots.items():
            if now.version is not None:
                yield telemetry.Point("tttembed.refresh.version", now.version, {"tenant": tenant})

    def round(self) -> float:
        """One look at the store; gives the seconds until the next.

        A tenant that is new is read at once, all others when their time has come.
        """
        now = time.monotonic()
        used, self._used = self._used, set()
        everybody = now >= self._due
        tenants = used | self._snapshots.keys() if everybody else used - self._snapshots.keys()
        if everybody:
            self._due = now + self.every
        self._served_at |= dict.fromkeys(used, now)
        with self._reading:
            self._forget_idle(tenants)
        busy = time.thread_time()
        self.refresh(tenants)
        if everybody:  # newcomers never put off the look at all others
            rest = min((time.thread_time() - busy) / _SHARE, _LONGEST_REST)
            self._due = max(self._due, time.monotonic() + rest)
        return max(0.0, self._due - time.monotonic())

    def _refresh_one(self, store: ServingStore, tenant: str) -> None:
        before = self._snapshots.get(tenant, _NOT_READ)
        self._ask()
        try:
            with telemetry.span("refresh", tenant=tenant) as note:
                after = self._read(store, tenant)
                note(version=after.version or 0, generation=after.generation or 0)
            self._errors.pop(tenant, None)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a damaged version or an impossible name must not stop the others
            if self._errors.get(tenant) != str(error):
                self._errors[tenant] = str(error)
                _log.warning("tenant %r: what it was served last stays: %s", tenant, error)
            after = before
        # One assignment in a dict: a reader finds the old snapshot or the new one.
        self._snapshots = self._snapshots | {tenant: after}

    def _ask(self) -> None:
        self._outage.asked(_PATIENCE + _LOOKS * self.every)

    def _read(self, store: ServingStore, tenant: str) -> Snapshot:
        now = store.serving(tenant=tenant)
        version = now.version
        if now.halted is not None or version is None:
            reason = "nothing was published" if now.halted is None else f"halted: {now.halted}"
            return Snapshot(reason=reason, generation=now.generation)
        known = next((one for one in self._snapshots.values() if one.version == version.number), None)
        if known is None:
            telemetry.record("tttembed.refresh.lag", max(0.0, time.time() - version.at))
        offsets = version.offsets if known is None else known.offsets
        return Snapshot(
            offsets,
            None,
            version.number,
            now.generation,
            version.embedder,
            owner=version.tenant,
            text_id=store.text_id,
        )

    def _forget_idle(self, tenants: set[str]) -> None:
        """Take the least recently served out of *tenants* and out of what is followed, beyond the most."""
        known = (self._snapshots.keys() | tenants) - {""}
        if len(known) <= _MOST_TENANTS:
            return
        if not self._crowded:
            self._crowded = True
            _log.warning("%d tenants are served: %d are followed at a time", len(known), _MOST_TENANTS)
        idle = sorted(known, key=lambda one: self._served_at.get(one, 0.0))[: len(known) - _MOST_TENANTS]
        tenants.difference_update(idle)
        self._leave(set(idle))

    def _leave(self, idle: Collection[str]) -> None:
        """Follow some tenants no longer."""
        if not idle:
            return
        self._snapshots = {one: now for one, now in self._snapshots.items() if one not in idle}
        for one in idle:
            self._served_at.pop(one, None)
            self._errors.pop(one, None)


def _round(follower: Follower | None) -> float | None:
    return None if follower is None else follower.round()


def _forked(follower: Follower | None) -> None:
    if follower is not None:
        follower.renew()


def check_url(store: object) -> None:
    """Refuse a URL that can never be that of a store; a store itself, and one that is away, passes."""
    if isinstance(store, str):
        from tttembed_rag.stores import checked_url

        checked_url(store)


def _opened(url: str) -> ServingStore:
    from tttembed_rag.stores import open_store

    return open_store(url)


# One for each store, by its URL or identity; a file that is named from the current folder, by that folder too.
_followers: WeakValueDictionary[tuple[str | int, str], Follower] = WeakValueDictionary()
_making = Lock()


def _follower_of(store: ServingStore | str, every: float) -> Follower:
    is_relative = isinstance(store, str) and store.startswith("sqlite:///") and not store.startswith("sqlite:////")
    key = (store if isinstance(store, str) else id(store)), (str(Path.cwd()) if is_relative else "")
    with _making:
        follower = _followers.get(key)
        if follower is None:
            follower = _followers[key] = Follower(store, every)
        follower.every = min(follower.every, every)
        return follower


def _unpickled(store: ServingStore | str, every: float, tenants: tuple[str, ...]) -> Follower:
    follower = _follower_of(store, every)
    follower.refresh(tenants)
    follower.start()
    return follower
