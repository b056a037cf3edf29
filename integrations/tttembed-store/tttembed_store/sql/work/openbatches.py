"""Open batches: requests that a worker has sent to a batch service, and that have no results yet.

The most that a batch may cost counts as spent from before it is sent, on that day, and is given back once its answers
are counted instead, on the same day. So the caps of a day hold however late results come, and a worker that is killed
between any two steps leaves a batch that the next one finds here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from typing import Any, Self

from sqlalchemy import select

from tttembed_rag.judging.spending import Budget
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database
from tttembed_store.sql.records import Lease, Spend
from tttembed_store.sql.rows import ids_of
from tttembed_store.sql.work.answers import count_spending, count_within

_table = schema.batches

# Seconds after which a batch without an end is given up: services take a day at most, and keep results for a month.
GIVEN_UP = 3 * 86_400.0


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that was sent, or is about to be: what it asks about, and what it may use and cost at most.

    Attributes:
        key: Our own name for it, which the service keeps too.
        at: When it was written down, and then when the service was about to be asked for it, in Unix seconds.
        price: Price of single requests: per million tokens read and written, and per request.
        full: Whether more waited than it holds.
        file: The service's name for the file of its requests; empty before that is uploaded.
        number: The service's name for the batch; empty before that is known.
        day: The day by UTC on which it counts, as ``2026-01-31``; empty before it is written down.
    """

    key: str
    judge: str
    at: float
    queries: tuple[str, ...]
    pairs: int
    tokens: float
    usd: float
    price: tuple[float, float, float]
    full: bool = False
    file: str = ""
    number: str = ""
    day: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """The batch that `asdict` made a *record* of, as JSON gives it back."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in record.items() if name in known}
        return cls(**values | {"queries": tuple(values["queries"]), "price": tuple(values["price"])})

    @property
    def date(self) -> date:
        """The day on which it counts."""
        return date.fromisoformat(self.day)


class OpenBatches:
    """The open batches of a store, by tenant."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, tenant: str, judge: str | None = None) -> list[OpenBatch]:
        """The open batches of a tenant, of all judges or one, oldest first."""
        t = schema.tenants
        with self._database.read() as connection:
            records = select(_table.c.record).join(t, t.c.id == _table.c.tenant).where(t.c.name == tenant)
            batches = [OpenBatch.of(json.loads(record)) for record in connection.execute(records).scalars()]
        return sorted((batch for batch in batches if judge in (None, batch.judge)), key=lambda batch: batch.at)

    def tenants(self, judge: str) -> set[str]:
        """Tenants with an open batch that *judge* is asked by."""
        t, j = schema.tenants, schema.judges
        names = select(t.c.name).join(_table, _table.c.tenant == t.c.id).join(j, j.c.id == _table.c.judge)
        with self._database.read() as connection:
            return set(connection.execute(names.where(j.c.name == judge)).scalars())

    def asked_about(self, judge: str, tenant: str) -> set[str]:
        """The queries of a tenant that *judge* is asked about by open batches that may still end."""
        if not (batches := self.of(tenant, judge)):
            return set()
        with self._database.read() as connection:
            now = self._database.now(connection)
        return {query for batch in batches if now - batch.at < GIVEN_UP for query in batch.queries}

    def books(self, tenant: str, judge: str, *, caps: Budget, lease: Lease) -> TenantBooks:
        """The open batches of a tenant that *judge* is asked by, written under a *lease* and the *caps* of a day."""
        return TenantBooks(self._database, tenant, judge, caps, lease)


class TenantBooks:
    """Where the open batches of a tenant and a judge are written down, under the caps of a day.

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
        return OpenBatches(self._database).of(self._tenant, self._judge)

    def add(self, batch: OpenBatch) -> OpenBatch | None:
        """Write a batch down before it is sent, and count it as spent; None where a cap refuses it."""
        with self._database.write("spending", self._lease) as connection:
            owner = ids_of(connection, schema.tenants, [self._tenant])[self._tenant]
            judge = ids_of(connection, schema.judges, [self._judge])[self._judge]
            today = self._database.today(connection)
            most = Spend(batch.pairs, batch.tokens, batch.usd)
            if not count_within(connection, self._caps, judge, today, most):
                return None
            batch = replace(batch, day=today.isoformat())
            values = {"key": batch.key, "tenant": owner, "judge": judge, "record": json.dumps(asdict(batch))}
            connection.execute(_table.insert().values(**values))
            return batch

    def note(self, batch: OpenBatch) -> OpenBatch:
        """Write down what is known of a batch by now."""
        with self._database.write("observing", self._lease) as connection:
            known = _table.update().where(_table.c.key == batch.key)
            connection.execute(known.values(record=json.dumps(asdict(batch))))
        return batch

    def close(self, batch: OpenBatch, *, lost: float = 0.0) -> None:
        """Take a batch off the list, and give back what was counted for it, but for a share *lost* in [0, 1]."""
        with self._database.write("observing", self._lease) as connection:
            if connection.execute(_table.delete().where(_table.c.key == batch.key)).rowcount:
                judge = ids_of(connection, schema.judges, [self._judge])[self._judge]
                share = lost - 1.0
                back = Spend(round(share * batch.pairs), share * batch.tokens, share * batch.usd)
                count_spending(connection, judge, batch.date, back)
