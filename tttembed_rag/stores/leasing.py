"""Leases: the right of one owner to do something alone for a while, and a token that tells an owner from later ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, select

from tttembed_rag.errors import InputError, LeaseLost
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database, TextIds
from tttembed_rag.stores.records import Lease, checked_name
from tttembed_rag.stores.rows import insert

# Seconds that a lease lasts at most. A lease that seems to last longer was taken by a wrong clock, and is ignored.
LONGEST = 3600.0

_table = schema.leases


def worker_lease(salt: bytes, tenant: str) -> str:
    """The name of the lease of the worker that works for *tenant*; it does not tell the name of the tenant."""
    return f"worker:{TextIds(salt)(tenant) if tenant else ''}"


class Leases:
    """The leases of a store, by the clock of its database.

    Args:
        database: The database of the store.

        salt: Key of the hashes that stand for tenants.
    """

    def __init__(self, database: Database, salt: bytes) -> None:
        self._database = database
        self._salt = salt

    def take_tenant(self, tenant: str, owner: str, seconds: float) -> Lease | None:
        """The right to work for *tenant* alone; None while another owner has it. As for `take`."""
        return self.take(worker_lease(self._salt, tenant), owner, seconds)

    def take(self, name: str, owner: str, seconds: float) -> Lease | None:
        """The right to do *name* alone for some seconds, an hour at most; None while another owner holds it.

        An owner that asks again is given a new lease; the old one is lost.
        """
        checked_name("name", name)
        checked_name("owner", owner)
        _check_seconds(seconds)
        with self._database.write("observing") as connection:
            now = self._database.now(connection)
            unheld = {"name": name, "owner": "", "token": 0, "expires": 0.0}
            connection.execute(insert(connection, _table).values(**unheld).on_conflict_do_nothing())
            row = connection.execute(select(_table).where(_table.c.name == name).with_for_update()).one()
            if row.owner != owner and now < row.expires <= now + LONGEST:
                return None
            return _written(connection, Lease(name, owner, row.token + 1, now + seconds))

    def renew(self, lease: Lease, seconds: float) -> Lease | None:
        """The same lease, from now for some seconds; None if another owner has taken it over."""
        _check_seconds(seconds)
        with self._database.write("observing") as connection:
            if not _is_held(connection, lease):
                return None
            return _written(connection, replace(lease, expires=self._database.now(connection) + seconds))

    def release(self, lease: Lease) -> None:
        """Let other owners take the lease at once; no effect if one of them has already taken it over."""
        with self._database.write("observing") as connection:
            if _is_held(connection, lease):
                _written(connection, replace(lease, owner="", expires=0.0))


def check_lease(connection: Connection, lease: Lease | None) -> None:
    """Refuse a change by the owner of a lease that was taken over; None is a caller that works under no lease.

    Raises:
        LeaseLost: Another owner has taken it over.
    """
    if lease is None or _is_held(connection, lease):
        return
    row = _row(connection, lease.name)
    held_by = "nobody" if row is None or not row.owner else f"{row.owner!r} (token {row.token})"
    raise LeaseLost(
        f"lease {lease.name!r}: expected to be held by {lease.owner!r} (token {lease.token}), "
        f"got {held_by}; nothing was changed"
    )


def revoke_workers(connection: Connection, salt: bytes, tenants: Iterable[str]) -> None:
    """Revoke the leases of workers: what they are learning for *tenants* now can no longer be published."""
    names = sorted({worker_lease(salt, tenant) for tenant in tenants})
    revoked = {"owner": "", "token": _table.c.token + 1, "expires": 0.0}
    connection.execute(_table.update().where(_table.c.name.in_(names)).values(**revoked))


def _is_held(connection: Connection, lease: Lease) -> bool:
    row = _row(connection, lease.name)
    return row is not None and (row.owner, row.token) == (lease.owner, lease.token)


def _row(connection: Connection, name: str) -> Any:
    """The owner and the token of a lease, locked until the transaction ends."""
    return connection.execute(
        select(_table.c.owner, _table.c.token).where(_table.c.name == name).with_for_update()
    ).first()


def _written(connection: Connection, lease: Lease) -> Lease:
    values = {"owner": lease.owner, "token": lease.token, "expires": lease.expires}
    connection.execute(_table.update().where(_table.c.name == lease.name).values(**values))
    return lease


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= LONGEST:
        raise InputError(f"seconds: expected a number in (0, {LONGEST:g}], got {seconds}")
