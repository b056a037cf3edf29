"""A lease that is kept while work goes on: a thread renews it and notices when it is lost."""

from __future__ import annotations

import logging
import time
from threading import Event, Thread
from typing import Self

from tttembed_rag.errors import LeaseLost, StoreError
from tttembed_rag.stores import Lease, Store

_log = logging.getLogger(__name__)


class Holding:
    """A lease, renewed in the background until it is left.

    Args:
        store: The store of the lease.
        lease: The lease.
        seconds: How long the lease lasts after each renewal; there are three renewals in that time.
        since: When it was asked for, by `time.monotonic`.
    """

    def __init__(self, store: Store, lease: Lease, seconds: float, since: float) -> None:
        self._store = store
        self._lease = lease
        self._seconds = seconds
        self._left, self._lost = Event(), Event()
        self._renewed = since
        self._thread = Thread(target=self._renew, name="tttembed-lease", daemon=True)

    @classmethod
    def take(cls, store: Store, tenant: str, owner: str, seconds: float) -> Holding | None:
        """The right to work for *tenant*, held for *seconds* at a time; None while another owner holds it."""
        since = time.monotonic()
        lease = store.leases.take(tenant, owner, seconds)
        return None if lease is None else cls(store, lease, seconds, since)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join(self._seconds)
        try:
            self._store.leases.release(self._lease)
        except StoreError as exc:
            _log.warning("the lease was not given back, it ends by itself in %g s: %s", self._seconds, exc)

    @property
    def lease(self) -> Lease:
        """The lease, to be handed to the store with every change that is made under it.

        Raises:
            LeaseLost: Another worker has it.
        """
        self.check()
        return self._lease

    def check(self) -> None:
        """Raise an error where the lease is lost.

        Raises:
            LeaseLost: Another worker has it.
        """
        if self._lost.is_set():
            raise LeaseLost(f"lease of tenant {self._lease.tenant!r}: lost to another worker; nothing was changed")

    def _renew(self) -> None:
        while not self._left.wait(self._seconds / 3):
            begun = time.monotonic()
            try:
                held = self._store.leases.renew(self._lease, self._seconds)
            except StoreError as exc:
                _log.warning("the lease was not renewed: %s", exc)
                held = time.monotonic() - self._renewed < self._seconds
            else:
                self._renewed = begun
            if not held:
                self._lost.set()
                return
