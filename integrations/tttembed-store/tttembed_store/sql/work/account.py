"""What judges cost: each call is charged before it is made, and what it did not cost is given back after it.

A charge counts as spent, on its day, with the most that its call may cost. So the caps of a day hold at every instant,
for any number of workers, and through kills: what a worker that was killed may have spent stays counted.

Beside a charge stand the pairs that its call asks about, and no other call asks about them as long as the lease under
which it was charged is held. They come back when that lease ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

from sqlalchemy import Connection, exists, select

from tttembed_rag.clients.usage import Usage
from tttembed_rag.judging.cache import Paid
from tttembed_rag.judging.spending import BUDGET_ENDED, Budget, Charge, Price
from tttembed_rag.rewards.observations import Served
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database, keyed_digest
from tttembed_store.sql.records import Lease, Spend
from tttembed_store.sql.rows import ids_of, in_parts, insert_all
from tttembed_store.sql.work.answers import StoredAnswers, count_spending, count_within, patiently, spent_on


class DailyAccount:
    """The account of a run that is paid for from the budget of a day, over all judges and workers of a store.

    Its arguments are those of `JudgeQueue.account`. A charge raises `LeaseLost` where another owner has the lease.
    """

    def __init__(
        self, database: Database, judge: str, about: Sequence[Served], *, caps: Budget, price: Price, lease: Lease
    ) -> None:
        self._database, self._judge = database, judge
        self._answers = StoredAnswers(database, about)
        self._caps, self.price, self._lease = caps, price, lease
        self.running, self.ended = 0, BUDGET_ENDED
        self.get = self._answers.get

    def charge(self, pairs: Sequence[bytes], estimate: Usage, *, least: int = 1, anew: bool = False) -> Charge | None:
        """Charge for a call about *pairs*; None where a cap of the day has no room for *least* of them."""
        with self._database.write("spending", self._lease) as connection:
            number = ids_of(connection, schema.judges, [self._judge])[self._judge]
            _lapse(connection, number, self._database.now(connection))
            owners = self._answers.owners(connection, self._judge, pairs)
            fresh = list(pairs) if anew else self._fresh(connection, list(owners))
            if not fresh:
                return Charge((), Usage())
            today = self._database.today(connection)
            spent = spent_on(connection, today)
            room = len(fresh) if self._caps.pairs is None else min(len(fresh), int(self._caps.pairs) - spent.pairs)
            if room < least or not count_within(
                connection, self._caps, number, today, Spend(room, estimate.tokens, self.price.of(estimate))
            ):
                is_full = self._caps.pairs is not None and room < 1
                self.ended = f"budget: {self._caps.pairs:g} pairs of today are spent" if is_full else BUDGET_ENDED
                return None
            charge = Charge(fresh[:room], estimate, today.isoformat())
            held = {"key": charge.key, "judge": number, "lease": self._lease.tenant, "token": self._lease.token}
            connection.execute(schema.charges.insert().values(**held))
            if not anew:
                rows = [
                    {"pair": keyed_digest(self._database.salt, pair), "charge": charge.key, "query": owners[pair]}
                    for pair in charge.pairs
                ]
                insert_all(connection, schema.asking, rows)
        self.running += 1
        return charge

    @patiently
    def settle(self, charge: Charge, used: Usage, answers: Mapping[bytes, Paid]) -> None:
        """Keep *answers*, and replace what was charged by what was *used*; once, also where the store is away amid it.

        The pairs of a call without an answer count where it was paid for. Where the charge has lapsed, it stays.
        """
        pairs = len(charge.pairs) if answers or used != Usage() else 0
        cost = Spend(pairs, used.tokens, self.price.of(used))
        highest = Spend(len(charge.pairs), charge.usage.tokens, self.price.of(charge.usage))
        table = schema.charges
        with self._database.write("observing") as connection:
            number = ids_of(connection, schema.judges, [self._judge])[self._judge]
            # Its row goes with the difference: whoever tries again, unheard, finds none, and gives nothing back twice.
            if connection.execute(table.delete().where(table.c.key == charge.key)).rowcount:
                count_spending(connection, number, date.fromisoformat(charge.day), cost - highest)
            self._answers.keep(connection, self._judge, answers)
        self.running -= 1

    def _fresh(self, connection: Connection, pairs: Sequence[bytes]) -> list[bytes]:
        """Those of *pairs* that have no answer yet, and that no other call asks about."""
        names = {keyed_digest(self._database.salt, pair): pair for pair in pairs}
        for table in (schema.answers, schema.asking):
            for part in in_parts(list(names)):
                known = connection.execute(select(table.c.pair).where(table.c.pair.in_(part))).scalars().all()
                for name in known:
                    names.pop(bytes(name), None)
        return list(names.values())


def _lapse(connection: Connection, judge: int, now: float) -> None:
    """Let the pairs of charges come back whose lease is not held any more; what they may have cost stays counted."""
    c, held = schema.charges.c, schema.leases.c
    is_held = exists().where(held.name == c.lease, held.token == c.token, held.expires > now)
    connection.execute(schema.charges.delete().where(c.judge == judge, ~is_held))
