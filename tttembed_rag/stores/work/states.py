"""States: JSON texts that a worker keeps in a store, by tenant and name.

The store knows their names because forgetting deletes the states that were derived from rewards.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from tttembed_rag.rewards.names import checked_name
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.leasing import check_lease
from tttembed_rag.stores.records import Lease, checked_json
from tttembed_rag.stores.rows import ids_of, insert

# How far the worker is with a tenant: a JSON object.
MEMORY = "worker"
# The queries that the worker has learned from, and the trial of the live version.
LEARNED, TRIAL = "learned", "trial"
# The comparisons of fresh traffic with what was learned from, oldest first: a JSON list for reports.
DRIFT = "drift"
# The identity of the tenant's embedding model.
PROBE = "probe"
# The requests that a search over tools has learned from.
TOOLS = "tools"
# The batches that were sent to a batch service and have no results yet: see `openbatches`.
BATCHES = "batches"

# States that are derived from rewards: forgetting deletes them.
DERIVED = (LEARNED, TRIAL, DRIFT, TOOLS)
# Fields of `MEMORY` that outlive forgetting: since when what was served is learned from.
REMEMBERED = ("since",)


class States:
    """The states of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str, *, tenant: str = "") -> str | None:
        """The JSON text that is kept under a name; None where there is none."""
        with self._database.read() as connection:
            return read_state(connection, name, tenant)

    def set(self, name: str, value: str | None, *, tenant: str = "", lease: Lease | None = None) -> None:
        """Keep a JSON text under a name; None deletes it.

        Raises:
            LeaseLost: Another owner has taken over the *lease*; nothing was changed.
        """
        checked_name("name", name)
        checked_name("tenant", tenant, empty=True)
        with self._database.write("observing") as connection:
            check_lease(connection, lease)
            write_state(connection, name, None if value is None else checked_json("value", value), tenant)


def read_state(connection: Connection, name: str, tenant: str) -> str | None:
    """The text that is kept under a name; None where there is none."""
    table, tenants = schema.states, schema.tenants
    value = select(table.c.value).join(tenants, tenants.c.id == table.c.tenant)
    return connection.execute(value.where(tenants.c.name == tenant, table.c.name == name)).scalar()


def write_state(connection: Connection, name: str, value: str | None, tenant: str) -> None:
    """Keep a text under a name; None deletes it."""
    table = schema.states
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    if value is None:
        connection.execute(table.delete().where(table.c.tenant == owner, table.c.name == name))
        return
    made = insert(connection, table).values(tenant=owner, name=name, value=value)
    connection.execute(made.on_conflict_do_update(index_elements=["tenant", "name"], set_={"value": value}))
