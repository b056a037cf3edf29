"""What workers are asking judges at this moment: each may spend what it has reserved, and none asks what another asks.

A reservation belongs to a lease, and ends with it: that of a worker that was killed ends by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from tttembed_rag.judging.spending import Budget
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database, keyed_digest
from tttembed_rag.stores.leasing import check_lease
from tttembed_rag.stores.records import Lease, Spend
from tttembed_rag.stores.rows import insert, set_fact
from tttembed_rag.stores.work.answers import spent_on

# The fact that holds the reservations, a JSON object by the name of the lease.
_ASKING = "asking"
# Bytes that stand for a query that a judge is asked about.
_QUERY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Reserved:
    """What a worker may ask and spend.

    Attributes:
        budget: Caps on what it may spend, None where the day has no cap.

        more: Whether the day's budget holds more than that.

        elsewhere: Texts of queries that another worker asks the same judge about now.
    """

    budget: Budget
    more: bool
    elsewhere: frozenset[str]


class Reservations:
    """The reservations of all workers of a store.

    Args:
        database: The database of the store.

        salt: Key of the hashes that stand for queries.
    """

    def __init__(self, database: Database, salt: bytes) -> None:
        self._database = database
        self._salt = salt

    def reserve(self, lease: Lease, judge: str, wanted: Spend, caps: Budget, queries: Iterable[str]) -> Reserved:
        """Set aside of the day's budget what *judge* is asked next, instead of what *lease* has reserved before.

        Args:
            lease: The lease that the caller works under.

            judge: Fingerprint of the judge.

            wanted: The most that the caller may spend; less is granted where less is left.

            caps: The day's budget of all judges and workers.

            queries: Texts of the queries that the judge is asked about.

        Raises:
            LeaseLost: Another owner has taken over the *lease*; nothing was changed.
        """
        facts = schema.facts
        ids = {query: self._id(judge, query) for query in queries}
        with self._database.write("observing") as connection:
            check_lease(connection, lease)
            connection.execute(insert(connection, facts).values(name=_ASKING, value="{}").on_conflict_do_nothing())
            chosen = select(facts.c.value).where(facts.c.name == _ASKING).with_for_update()
            now = self._database.now(connection)
            others = _running(connection, json.loads(connection.execute(chosen).scalar_one()), now)
            others.pop(lease.name, None)
            spent = spent_on(connection, datetime.fromtimestamp(now, UTC).date())
            granted: dict[str, float | None] = {}
            more = False
            for name in (field.name for field in fields(Budget)):
                cap, most = getattr(caps, name), getattr(wanted, name)
                if cap is None:
                    granted[name] = None
                    continue
                left = max(0.0, cap - getattr(spent, name) - sum(one[name] for one in others.values()))
                granted[name] = min(left, most)
                more |= left > most
            taken = {query for one in others.values() for query in one["queries"]}
            elsewhere = frozenset(query for query, number in ids.items() if number in taken)
            mine = {name: amount or 0.0 for name, amount in granted.items()}
            asks = sorted(set(ids.values()) - taken)
            reserved = {**others, lease.name: {"token": lease.token, **mine, "queries": asks}}
            set_fact(connection, _ASKING, json.dumps(reserved))
        return Reserved(Budget(**granted), more, elsewhere)

    def _id(self, judge: str, query: str) -> str:
        parts = (judge.encode(), query.encode("utf-8", "surrogatepass"))
        return keyed_digest(*parts, key=self._salt)[:_QUERY_BYTES].hex()


def forget_reservations(connection: Connection, now: float) -> None:
    """Delete the reservations of leases that have ended or were revoked, with the hashes of the queries in them."""
    facts = schema.facts
    chosen = select(facts.c.value).where(facts.c.name == _ASKING).with_for_update()
    if (reserved := connection.execute(chosen).scalar()) is not None:
        set_fact(connection, _ASKING, json.dumps(_running(connection, json.loads(reserved), now)))


def _running(connection: Connection, reserved: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The reservations of leases that are still held."""
    t = schema.leases
    held = select(t.c.name, t.c.token).where(t.c.name.in_(list(reserved)), t.c.owner != "", t.c.expires > now)
    tokens = {name: token for name, token in connection.execute(held)}  # noqa: C416 (rows, not pairs)
    return {name: one for name, one in reserved.items() if tokens.get(name) == one["token"]}
