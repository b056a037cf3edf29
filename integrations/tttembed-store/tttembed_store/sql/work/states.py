"""States: values of JSON that a worker keeps in a store, by tenant and name.

The store knows their names because forgetting deletes the states that were derived from rewards.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import select

from tttembed_rag.rewards.names import checked_name
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database
from tttembed_store.sql.records import Lease
from tttembed_store.sql.rows import ids_of, insert_all

# How far the worker is with a tenant: a JSON object.
MEMORY = "worker"
# The queries that the worker has learned from, and the trial of the live version.
LEARNED, TRIAL = "learned", "trial"
# The identity of the tenant's embedding model.
PROBE = "probe"
# What workers look with, of no tenant: the judge that is learned from, and the probe of the embedding model.
BASIS = "looked with"

# States that are derived from rewards: forgetting deletes them.
DERIVED = (LEARNED, TRIAL)
# Fields of `MEMORY` that outlive forgetting: since when what was served is learned from.
REMEMBERED = ("since",)

_table = schema.states


class States:
    """The states of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str, *, tenant: str = "") -> Any:
        """The value that is kept under a name; None where there is none."""
        tenants = schema.tenants
        value = select(_table.c.value).join(tenants, tenants.c.id == _table.c.tenant)
        with self._database.read() as connection:
            text = connection.execute(value.where(tenants.c.name == tenant, _table.c.name == name)).scalar()
        return None if text is None else json.loads(text)

    def set(self, name: str, value: Any, *, tenant: str = "", lease: Lease | None = None) -> None:
        """Keep a value of JSON under a name.

        Raises:
            LeaseLost: Another owner has taken over the *lease*; nothing was changed.
        """
        checked_name("name", name)
        checked_name("tenant", tenant, empty=True)
        with self._database.write("observing", lease) as connection:
            owner = ids_of(connection, schema.tenants, [tenant])[tenant]
            row = {"tenant": owner, "name": name, "value": json.dumps(value)}
            insert_all(connection, _table, [row], replace=True)
