"""Making the tables of a store where none are, and refusing those that this package cannot use."""

from __future__ import annotations

import logging
import secrets

from sqlalchemy import Connection, inspect

from tttembed_rag.errors import StoreError, StoreUnavailable
from tttembed_rag.system.files import make_private
from tttembed_store.sql import schema
from tttembed_store.sql.database import SALT, SCHEMA, Database
from tttembed_store.sql.rows import fact

_log = logging.getLogger(__name__)
# The fact that names the oldest schema whose programs may use the store. A release that only adds tables and columns
# leaves it as it is, so that processes of the release before may still start.
_OLDEST = "oldest_schema"


def prepare(database: Database, *, create: bool = True) -> None:
    """Make the tables of *database* where none are, unless *create* is false.

    Raises:
        StoreError: The tables are of another package, or there are none.
        StoreUnavailable: They are of a newer package that changed what this one reads or writes.
    """
    if database.file is not None:
        if not create:
            database.check_file()
        make_private(database.file)  # it holds users' texts
    with database.read() as connection:
        if _is_ready(connection, database.name, create=create):
            return
    with database.write("making") as connection:
        if _is_ready(connection, database.name, create=create):  # another process was faster
            return
        make(connection)
    _log.warning("%s: no store was there, made one", database.name)


def _is_ready(connection: Connection, name: str, *, create: bool) -> bool:
    """Whether the tables are there, and this package may use them as they are."""
    tables = set(inspect(connection).get_table_names())
    oldest = fact(connection, _OLDEST) if tables >= set(schema.metadata.tables) else None
    if oldest is None:
        if taken := sorted(tables & set(schema.metadata.tables)):
            raise StoreError(f"{name}: expected an empty database or a store, found a foreign table {taken[0]!r}")
        if not create:
            raise StoreError(f"{name}: expected a store, found an empty database")
        return False
    if (made := fact(connection, SCHEMA)) is None or made < schema.HEAD:
        raise StoreError(f"{name}: expected a store of schema {schema.HEAD}, found one of schema {made or 'unknown'}")
    if oldest > schema.HEAD:
        raise StoreUnavailable(
            f"{name}: expected a store that programs of schema {schema.HEAD} may use, found schema "
            f"{made}; upgrade tttembed-rag"
        )
    return True


def make(connection: Connection) -> None:
    """Make the tables, the key of a store's hashes and the shared tenant."""
    schema.metadata.create_all(connection)
    facts = {SALT: secrets.token_hex(32), SCHEMA: schema.HEAD, _OLDEST: schema.HEAD}
    connection.execute(schema.facts.insert(), [{"name": name, "value": value} for name, value in facts.items()])
    connection.execute(schema.tenants.insert().values(name=""))
