"""Statements that several parts of a store need: rows made where they are missing, long lists in parts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from tttembed_rag.stores import schema

ItemT = TypeVar("ItemT")
# Values of one statement: below the limits on bound parameters of both databases.
AT_ONCE = 1000


def insert(connection: Connection, table: Table) -> Any:
    """An INSERT of the connection's dialect, which knows ON CONFLICT."""
    return (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(table)


def in_parts(items: Sequence[ItemT], size: int = AT_ONCE) -> Iterator[Sequence[ItemT]]:
    """*items*, at most *size* at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def found(connection: Connection, table: Table, name: str) -> int | None:
    """The id of a name; None where there is none."""
    return connection.execute(select(table.c.id).where(table.c.name == name)).scalar()


def ids_of(connection: Connection, table: Table, names: Iterable[str], **new: Any) -> dict[str, int]:
    """Names with their ids; missing rows are made with the values *new*."""
    wanted = sorted(set(names))
    known = {name: number for name in wanted if (number := found(connection, table, name)) is not None}
    for name in wanted:
        if name not in known:
            connection.execute(insert(connection, table).values(name=name, **new).on_conflict_do_nothing())
            known[name] = connection.execute(select(table.c.id).where(table.c.name == name)).scalar_one()
    return known


def fact(connection: Connection, name: str) -> str | None:
    """The value of a fact; None where it is not set."""
    return connection.execute(select(schema.facts.c.value).where(schema.facts.c.name == name)).scalar()


def set_fact(connection: Connection, name: str, value: str | None) -> None:
    """Set a fact; None deletes it."""
    facts = schema.facts
    if value is None:
        connection.execute(facts.delete().where(facts.c.name == name))
        return
    made = insert(connection, facts).values(name=name, value=value)
    connection.execute(made.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


def note(connection: Connection, by: str, action: str, detail: str = "", tenant: str | None = "") -> None:
    """An audit line, in the transaction of what it tells of."""
    line: Mapping[str, Any] = {"at": time.time(), "tenant": tenant, "by": by, "action": action, "detail": detail}
    connection.execute(schema.audit.insert().values(**line))
