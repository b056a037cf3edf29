"""The log of changes: one line for each change of a store, written in the transaction of the change."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, or_, select

from tttembed_rag.rewards.names import checked_name, cleaned
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database
from tttembed_store.sql.records import Change

_table = schema.changes


class Changes:
    """Who changed what in a store, and when."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def lines(self, *, tenant: str | None = None, limit: int = 100) -> list[Change]:
        """The newest changes, newest first: those of all tenants, or those that concern one tenant."""
        chosen = select(_table.c.at, _table.c.tenant, _table.c.by, _table.c.action, _table.c.detail)
        if tenant is not None:
            chosen = chosen.where(_concerns([checked_name("tenant", tenant, empty=True)]))
        with self._database.read() as connection:
            return [Change(*row) for row in connection.execute(chosen.order_by(_table.c.id.desc()).limit(limit))]

    def note(self, by: str, action: str, detail: str = "", *, tenant: str = "") -> None:
        """Write a line of the caller's own."""
        checked_name("by", by)
        checked_name("action", action)
        checked_name("tenant", tenant, empty=True)
        with self._database.write("observing") as connection:
            write_line(connection, by, action, cleaned(detail), tenant)

    def last(self, actions: Sequence[str], tenants: Sequence[str]) -> float | None:
        """When one of *actions* last concerned one of *tenants*, in Unix seconds; None where none ever did."""
        newest = select(_table.c.at).where(_table.c.action.in_(actions), _concerns(tenants))
        with self._database.read() as connection:
            return connection.execute(newest.order_by(_table.c.id.desc()).limit(1)).scalar()


def write_line(connection: Connection, by: str, action: str, detail: str = "", tenant: str | None = "") -> None:
    """Write a line in the transaction of the change that it tells of; tenant None concerns all tenants."""
    line = {"at": time.time(), "tenant": tenant, "by": by, "action": action, "detail": detail}
    connection.execute(_table.insert().values(**line))


def _concerns(tenants: Sequence[str]) -> ColumnElement[bool]:
    return or_(_table.c.tenant.in_(tenants), _table.c.tenant.is_(None))
