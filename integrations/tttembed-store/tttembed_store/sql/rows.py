"""Statements that several parts of a store share: rows made where they are missing, long lists in parts, leases."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, Table, and_, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from tttembed_rag.errors import LeaseLost, VectorError
from tttembed_store.sql import schema
from tttembed_store.sql.records import Lease

ItemT = TypeVar("ItemT")
_LEASES = schema.leases.c
_FACT = select(schema.facts.c.value).where(schema.facts.c.name == bindparam("name"))
# Values in one statement: below the limits on bound parameters of both databases.
AT_ONCE = 1000


def insert_in(dialect: str, table: Table) -> Any:
    """An INSERT of the *dialect* of that name, which knows ON CONFLICT."""
    return (sqlite if dialect == "sqlite" else postgresql).insert(table)


def insert_all(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, replace: bool = False
) -> None:
    """INSERT *rows* of the same columns past SQLAlchemy's conversions, which saves half of the time.

    Their values are numbers, texts and bytes, which drivers take as they are. With *replace* they replace rows of the
    same primary keys; else rows that are there stay.
    """
    if rows:
        connection.exec_driver_sql(_insert_all(connection.dialect.name, table, tuple(rows[0]), replace=replace), rows)


@cache
def _insert_all(dialect: str, table: Table, columns: tuple[str, ...], *, replace: bool) -> str:
    keys = [column.name for column in table.primary_key]
    new = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in keys)
    values = ", ".join(f":{name}" if dialect == "sqlite" else f"%({name})s" for name in columns)
    conflict = f"({', '.join(keys)}) DO UPDATE SET {new}" if replace else "DO NOTHING"
    named = f"{table.name} ({', '.join(columns)})"
    return f"INSERT INTO {named} VALUES ({values}) ON CONFLICT {conflict}"  # noqa: S608 - names of the schema alone


def in_parts(items: Sequence[ItemT], size: int = AT_ONCE) -> Iterator[Sequence[ItemT]]:
    """*items*, at most *size* at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def rows_among(
    connection: Connection, statement: Select[Any], column: ColumnElement[Any], values: Collection[Any]
) -> Iterator[Any]:
    """The rows of *statement* of which a *column* has one of *values*, however many there are."""
    for part in in_parts(list(values)):
        yield from connection.execute(statement.where(column.in_(part)))


def delete_among(
    connection: Connection,
    table: Table,
    column: ColumnElement[Any],
    values: Collection[Any],
    *which: ColumnElement[bool],
) -> int:
    """Delete the rows of which a *column* has one of *values*, however many there are; gives how many went."""
    parts = (table.delete().where(column.in_(part), *which) for part in in_parts(list(values)))
    return sum(connection.execute(part).rowcount for part in parts)


def id_of(connection: Connection, table: Table, name: str) -> int | None:
    """The id of a name; None where there is none."""
    return connection.execute(_id_of(table), {"name": name}).scalar()


@cache
def _id_of(table: Table) -> Any:
    return select(table.c.id).where(table.c.name == bindparam("name"))


def ids_of(connection: Connection, table: Table, names: Iterable[str], **new: Any) -> dict[str, int]:
    """Names with their ids; missing rows are made with the values *new*."""
    distinct = sorted(set(names))
    ids = {name: number for name in distinct if (number := id_of(connection, table, name)) is not None}
    for name in distinct:
        if name not in ids:
            insert_all(connection, table, [{"name": name, **new}])
            ids[name] = connection.execute(_id_of(table), {"name": name}).scalar_one()
    return ids


def embedder_id(connection: Connection, name: str, width: int) -> int:
    """The id of an embedding model, made where it is missing; all its vectors have one width."""
    e = schema.embedders
    number = ids_of(connection, e, [name], width=width)[name]
    if (expected := connection.execute(select(e.c.width).where(e.c.id == number)).scalar_one()) != width:
        raise VectorError(f"vector: expected width {expected} as of all vectors of embedder {name!r}, got {width}")
    return number


def fact(connection: Connection, name: str) -> str | None:
    """The value of a fact; None where it is not set."""
    return connection.execute(_FACT, {"name": name}).scalar()


def set_fact(connection: Connection, name: str, value: str | None) -> None:
    """Set a fact; None deletes it."""
    facts = schema.facts
    if value is None:
        connection.execute(facts.delete().where(facts.c.name == name))
    else:
        insert_all(connection, facts, [{"name": name, "value": value}], replace=True)


def check_lease(connection: Connection, lease: Lease | None) -> None:
    """Refuse a change by the owner of a lease that is lost; None is a caller that works under no lease.

    The lease is locked until the transaction ends: nobody takes it over, and nobody revokes it, before.

    Raises:
        LeaseLost: Another owner has taken it over, or it was revoked.
    """
    if lease is None or connection.execute(select(_LEASES.name).where(is_lease(lease)).with_for_update()).first():
        return
    holder = connection.execute(select(_LEASES.owner).where(_LEASES.name == lease.tenant)).scalar()
    raise LeaseLost(
        f"lease of tenant {lease.tenant!r}: expected to be held by {lease.owner!r}, got "
        f"{'nobody' if holder is None else repr(holder)}; nothing was changed"
    )


def is_lease(lease: Lease) -> ColumnElement[bool]:
    """Whether a row is that of *lease*, not of a later one of its tenant."""
    return and_(_LEASES.name == lease.tenant, _LEASES.token == lease.token)
