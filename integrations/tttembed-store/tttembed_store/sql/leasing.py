"""Leases: the right of one owner to work for a tenant alone for a while, as long as its row is there."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from sqlalchemy import or_

from tttembed_rag.errors import InputError, StoreError
from tttembed_rag.rewards.names import checked_name
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database
from tttembed_store.sql.records import Lease
from tttembed_store.sql.rows import insert_in, is_lease

_log = logging.getLogger(__name__)

# Seconds that a lease lasts at most. A lease that seems to last longer was taken by a wrong clock, and is ignored.
LONGEST = 3600.0

_table = schema.leases


class Leases:
    """The leases of a store, named by their tenants, by the clock of its database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, tenant: str, owner: str, seconds: float) -> Lease | None:
        """The right to work for *tenant* alone for some seconds, an hour at most; None while another owner has it.

        An owner that asks again is given a new lease; the old one is lost.
        """
        checked_name("owner", owner)
        _check_seconds(seconds)
        with self._database.write("observing") as connection:
            now = self._database.now(connection)
            is_free = or_(_table.c.owner == owner, _table.c.expires <= now, _table.c.expires > now + LONGEST)
            connection.execute(_table.delete().where(_table.c.name == tenant, is_free))
            lease = Lease(tenant, owner, secrets.randbits(62))
            values = {"name": tenant, "owner": owner, "token": lease.token, "expires": now + seconds}
            made = insert_in(connection.dialect.name, _table).values(**values).on_conflict_do_nothing()
            return lease if connection.execute(made.returning(_table.c.name)).first() else None

    def renew(self, lease: Lease, seconds: float) -> bool:
        """Let the lease last from now for some seconds; gives whether it is not lost."""
        _check_seconds(seconds)
        with self._database.write("observing") as connection:
            expires = self._database.now(connection) + seconds
            return bool(connection.execute(_table.update().where(is_lease(lease)).values(expires=expires)).rowcount)

    def release(self, lease: Lease) -> None:
        """Let other owners take the lease at once; no effect if it is lost."""
        with self._database.write("observing") as connection:
            connection.execute(_table.delete().where(is_lease(lease)))

    @contextmanager
    def held(self, tenant: str, owner: str, seconds: float) -> Iterator[Lease | None]:
        """A block with the right to work for *tenant* alone, None while another owner has it.

        The lease lasts for some seconds at a time, and a thread renews it three times in each. Where it is lost all the
        same, the store refuses changes under it.
        """
        lease = self.take(tenant, owner, seconds)
        if lease is None:
            yield None
            return
        left = Event()

        def renew() -> None:
            held = True
            while held and not left.wait(seconds / 3):
                try:
                    held = self.renew(lease, seconds)
                except StoreError as exc:
                    _log.warning("the lease was not renewed: %s", exc)

        thread = Thread(target=renew, name="tttembed-lease", daemon=True)
        thread.start()
        try:
            yield lease
        finally:
            left.set()
            thread.join(seconds)
            try:
                self.release(lease)
            except StoreError as exc:
                _log.warning("the lease was not given back, it ends by itself in %g s: %s", seconds, exc)


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= LONGEST:
        raise InputError(f"seconds: expected a number in (0, {LONGEST:g}], got {seconds}")
