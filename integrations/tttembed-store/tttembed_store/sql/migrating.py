"""Bringing a database's tables to what this package reads and writes."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from threading import Lock

from sqlalchemy import Connection, column, inspect, select, table

from tttembed_rag.errors import StoreError, StoreUnavailable
from tttembed_rag.system.files import make_private
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database
from tttembed_store.sql.rows import fact

_log = logging.getLogger(__name__)
_SCRIPTS = Path(__file__).parent / "migrations"
# The fact that names the oldest schema whose programs may use the store. A script that only adds tables and columns
# leaves it as it is, so that processes of the release before may still start; any other names its own revision.
_OLDEST = "oldest_schema"
# Alembic keeps what it is doing in a global: two threads would make the tables of two stores in one of them.
_ONE_BY_ONE = Lock()


def migrate(database: Database, *, create: bool = True) -> None:
    """Make the tables of *database*, or bring those of an older package up to date; nothing if they are already.

    Without *create*, no tables are made where none are.

    Raises:
        StoreError: They are of another package, or there are none.
        StoreUnavailable: They are of a newer package that changed what this one reads or writes.
    """
    if database.file is not None:
        if not create:
            database.check_file()
        make_private(database.file)  # it holds users' texts
    with database.read() as connection:
        if _is_ready(connection, database.name, create=create):
            return
    with database.write("migrating") as connection:
        if _is_ready(connection, database.name, create=create):  # another process was faster
            return
        is_new = not inspect(connection).has_table(schema.facts.name)
        _upgrade(connection)
    if is_new:
        _log.warning("%s: no store was there, made one", database.name)


def _is_ready(connection: Connection, name: str, *, create: bool) -> bool:
    """Whether the tables are there, and this package may use them as they are."""
    tables = set(inspect(connection).get_table_names())
    revision: str | None = None
    if "alembic_version" in tables:
        revision = connection.execute(select(column("version_num")).select_from(table("alembic_version"))).scalar()
    if revision is None:
        if taken := sorted(tables & set(schema.metadata.tables)):
            raise StoreError(f"{name}: expected an empty database or a store, found a foreign table {taken[0]!r}")
        if not create:
            raise StoreError(f"{name}: expected a store, found an empty database")
        return False
    known = {path.name.partition("_")[0] for path in _SCRIPTS.glob("versions/0*.py")}
    if revision in known:
        return revision == schema.HEAD
    if "facts" not in tables or fact(connection, _OLDEST) not in known:
        raise StoreUnavailable(
            f"{name}: expected a store that programs of schema {schema.HEAD} may use, found schema {revision[:40]}; "
            "upgrade tttembed-rag"
        )
    return True


def make(connection: Connection) -> None:
    """Make the tables as they are now, the key of a store's hashes and the shared tenant."""
    schema.metadata.create_all(connection)
    facts = [{"name": "salt", "value": secrets.token_hex(32)}, {"name": _OLDEST, "value": schema.HEAD}]
    connection.execute(schema.facts.insert(), facts)
    connection.execute(schema.tenants.insert().values(name=""))


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    with _ONE_BY_ONE:
        command.upgrade(config, schema.HEAD)
