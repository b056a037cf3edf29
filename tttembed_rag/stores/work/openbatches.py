"""Open batches: requests that a worker has sent to a batch service, and that have no results yet.

The most that a batch may cost counts as spent from before it is sent, on that day, and is given back once its answers
are counted instead, on the same day. So the caps of a day hold however late results come, and a worker that is killed
between any two steps leaves a batch that the next one finds here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

from sqlalchemy import Connection, select

from tttembed_rag.judging.batching.openbatch import GIVEN_UP, OpenBatch
from tttembed_rag.judging.spending import Budget
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.leasing import check_lease
from tttembed_rag.stores.records import Lease, Spend
from tttembed_rag.stores.rows import ids_of
from tttembed_rag.stores.work.answers import count_spending, is_within, spent_on
from tttembed_rag.stores.work.states import BATCHES, read_state, write_state


class OpenBatches:
    """The open batches of a store, by tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, tenant: str) -> list[OpenBatch]:
        """The open batches of a tenant, oldest first."""
        with self._database.read() as connection:
            return _read(connection, tenant)

    def tenants(self, judge: str) -> set[str]:
        """Tenants with an open batch that *judge* is asked by."""
        table, tenants = schema.states, schema.tenants
        names = select(tenants.c.name).join(table, tenants.c.id == table.c.tenant).where(table.c.name == BATCHES)
        with self._database.read() as connection:
            some = connection.execute(names).scalars().all()
            return {name for name in some if any(one.judge == judge for one in _read(connection, name))}

    def asked_about(self, judge: str, tenant: str) -> set[str]:
        """The queries of a tenant that *judge* is asked about by open batches that may still end."""
        with self._database.read() as connection:
            now, ours = self._database.now(connection), _read(connection, tenant)
        young = [one for one in ours if one.judge == judge and now - one.at < GIVEN_UP]
        return {query for one in young for query in one.queries}

    def books(self, tenant: str, judge: str, *, caps: Budget, lease: Lease) -> TenantBooks:
        """The open batches of a tenant that *judge* is asked by, written under a *lease* and the *caps* of a day."""
        return TenantBooks(self._database, tenant, judge, caps, lease)


class TenantBooks:
    """The open batches of a tenant and a judge: `Books` in a store, under the caps of a day.

    Each method that writes raises `LeaseLost` where another owner has taken over the lease; nothing was changed then.
    """

    def __init__(self, database: Database, tenant: str, judge: str, caps: Budget, lease: Lease) -> None:
        self._database, self._tenant, self._judge = database, tenant, judge
        self._caps, self._lease = caps, lease

    def now(self) -> float:
        """Unix seconds by the clock of the database."""
        with self._database.read() as connection:
            return self._database.now(connection)

    def open(self) -> list[OpenBatch]:
        """The open batches, oldest first."""
        with self._database.read() as connection:
            return [one for one in _read(connection, self._tenant) if one.judge == self._judge]

    def add(self, batch: OpenBatch) -> OpenBatch | None:
        """Write a batch down before it is sent, and count it as spent; None where a cap refuses it."""
        with self._database.write("spending") as connection:
            check_lease(connection, self._lease)
            judge = ids_of(connection, schema.judges, [batch.judge])[batch.judge]
            today = self._database.today(connection)
            most = Spend(batch.pairs, batch.tokens, batch.usd)
            if not is_within(self._caps, spent_on(connection, today) + most):
                return None
            count_spending(connection, judge, today, most)
            batch = replace(batch, day=today.isoformat())
            _write(connection, self._tenant, [*_read(connection, self._tenant), batch])
            return batch

    def note(self, batch: OpenBatch) -> OpenBatch:
        """Write down what is known of a batch by now."""
        with self._database.write("observing") as connection:
            check_lease(connection, self._lease)
            _change(connection, self._tenant, lambda one: batch if one.key == batch.key else one)
        return batch

    def close(self, batch: OpenBatch, *, lost: float = 0.0) -> None:
        """Take a batch off the list, and give back what was counted for it, but for a share *lost* in [0, 1]."""
        with self._database.write("observing") as connection:
            check_lease(connection, self._lease)
            if not _change(connection, self._tenant, lambda one: None if one.key == batch.key else one):
                return
            judge = ids_of(connection, schema.judges, [batch.judge])[batch.judge]
            share = lost - 1.0
            back = Spend(round(share * batch.pairs), share * batch.tokens, share * batch.usd)
            count_spending(connection, judge, batch.date, back)


def _change(connection: Connection, tenant: str, change: Callable[[OpenBatch], OpenBatch | None]) -> bool:
    """Replace each batch of a tenant by what *change* makes of it; gives whether any is another one now."""
    before = _read(connection, tenant)
    after = [changed for one in before if (changed := change(one)) is not None]
    _write(connection, tenant, after)
    return before != after


def _read(connection: Connection, tenant: str) -> list[OpenBatch]:
    return [OpenBatch.of(record) for record in json.loads(read_state(connection, BATCHES, tenant) or "[]")]


def _write(connection: Connection, tenant: str, batches: list[OpenBatch]) -> None:
    write_state(connection, BATCHES, json.dumps([asdict(one) for one in batches]) if batches else None, tenant)
