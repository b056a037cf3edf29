"""Bringing a database's tables to what this package reads and writes."""

from __future__ import annotations

import secrets
from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table

from tttembed_rag.errors import StoreError, StoreUnavailable
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.rows import fact, ids_of, set_fact

_SALT = "salt"


def migrate(database: Database, *, to: str = schema.HEAD, create: bool = True, upgrade: bool = True) -> None:
    """Make the tables of *database*, or bring them to revision *to*; nothing if they are there already.

    Args:
        database: The database.

        to: The revision.

        create: False refuses to make tables where none are.

        upgrade: False leaves the tables of an older package as they are, as its processes may be at work.

    Raises:
        StoreError: They are of another package, or there are none.

        StoreUnavailable: They are of a newer package, or must not be brought up from those of an older one.
    """
    if not (create or database.exists()):
        raise StoreError(f"{database.name}: expected a store, found no file")
    database.create()
    with database.read() as connection:
        revision = _revision(connection, database.name)
    if revision == to:
        return
    if revision is None and not create:
        raise StoreError(f"{database.name}: expected a store, found an empty database")
    if revision is not None and not upgrade:
        raise StoreUnavailable(
            f"{database.name}: expected a store of schema {to}, found {revision}: `tttembed migrate`, or the worker, "
            "brings it up to date"
        )
    with database.write("migrating") as connection:
        if _revision(connection, database.name) != to:  # no other process was faster
            _upgrade(connection, to)
        if fact(connection, _SALT) is None:
            set_fact(connection, _SALT, secrets.token_hex(32))
            ids_of(connection, schema.tenants, [""])


def salt_of(connection: Connection) -> bytes:
    """The key of a store's hashes: ids made of texts cannot be guessed without it."""
    salt = fact(connection, _SALT)
    if salt is None:
        raise StoreError("store: expected the salt of its hashes, found none")
    return bytes.fromhex(salt)


def _revision(connection: Connection, name: str) -> str | None:
    """The revision of the tables; None where there are none."""
    tables = set(inspect(connection).get_table_names())
    if "alembic_version" not in tables:
        if taken := sorted(tables & set(schema.metadata.tables)):
            raise StoreError(f"{name}: expected an empty database or a store, found a foreign table {taken[0]!r}")
        return None
    revision = connection.execute(select(column("version_num")).select_from(table("alembic_version"))).scalar()
    if revision is not None and revision not in _revisions():
        raise StoreUnavailable(
            f"{name}: expected a store of schema {schema.HEAD} or older, found {revision[:40]}; upgrade tttembed-rag"
        )
    return None if revision is None else str(revision)


def _revisions() -> set[str]:
    return {path.name.partition("_")[0] for path in (Path(__file__).parent / "migrations" / "versions").glob("0*.py")}


def _upgrade(connection: Connection, to: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    command.upgrade(config, to)
