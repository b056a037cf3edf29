"""Leases: who may do something alone, for how long, and a number that outs whoever lost it."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, select

from tttembed_rag.stores import schema
from tttembed_rag.stores.records import Lease
from tttembed_rag.stores.rows import insert
from tttembed_rag.stores.states import WORKER_LEASE

# Seconds that a lease may last: one that ends later was taken by a clock that was wrong, and holds nobody up.
LONGEST = 3600.0

_table = schema.leases


def take(connection: Connection, name: str, owner: str, *, now: float, seconds: float) -> Lease | None:
    """A lease that nobody else holds at *now*; None if somebody does."""
    unheld = {"name": name, "owner": "", "token": 0, "expires": 0.0}
    connection.execute(insert(connection, _table).values(**unheld).on_conflict_do_nothing())
    row = connection.execute(select(_table).where(_table.c.name == name).with_for_update()).one()
    if now < row.expires <= now + LONGEST and row.owner != owner:
        return None
    taken = Lease(name, owner, row.token + 1, now + seconds)
    _write(connection, taken)
    return taken


def renew(connection: Connection, lease: Lease, *, now: float, seconds: float) -> Lease | None:
    """The same lease for longer; None if somebody has taken it over."""
    if not _is_held(connection, lease):
        return None
    renewed = replace(lease, expires=now + seconds)
    _write(connection, renewed)
    return renewed


def release(connection: Connection, lease: Lease) -> None:
    """Let others have it; nothing if somebody has taken it over."""
    if _is_held(connection, lease):
        _write(connection, replace(lease, owner="", expires=0.0))


def end(connection: Connection) -> None:
    """Revoke the worker's lease: what it is learning now can no longer be published."""
    ended = {"owner": "", "token": _table.c.token + 1, "expires": 0.0}
    connection.execute(_table.update().where(_table.c.name == WORKER_LEASE).values(**ended))


def _is_held(connection: Connection, lease: Lease) -> bool:
    held = select(_table.c.owner, _table.c.token).where(_table.c.name == lease.name).with_for_update()
    row = connection.execute(held).first()
    return row is not None and (row.owner, row.token) == (lease.owner, lease.token)


def _write(connection: Connection, lease: Lease) -> None:
    values = {"owner": lease.owner, "token": lease.token, "expires": lease.expires}
    connection.execute(_table.update().where(_table.c.name == lease.name).values(**values))
