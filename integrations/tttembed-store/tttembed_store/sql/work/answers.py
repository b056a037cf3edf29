"""Paid answers of judges, shared by all processes of a store, and what judges cost by day.

Each call is charged before it is made, and what it did not cost is given back after it. A charge counts as spent, on
its day, with the most that its call may cost. So the caps of a day hold at every instant, for any number of workers,
and through kills: what a worker that was killed may have spent stays counted.

Beside a charge stand the pairs that its call asks about, and no other call asks about them as long as the lease under
which it was charged is held. They come back when that lease ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from datetime import date
from functools import wraps
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection, exists, func, select

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.judges.examination import examination_keys
from tttembed_rag.judging.cache import Paid
from tttembed_rag.judging.spending import BUDGET_ENDED, Budget, Charge, Price
from tttembed_rag.rewards.observations import Served
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database, keyed_digest
from tttembed_store.sql.records import Lease, Spend, row_of
from tttembed_store.sql.rows import ids_of, insert_all, insert_in, rows_among

ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")

# Seconds to wait before each further attempt to keep answers while the store is not available: they were paid for.
_WAITS = (0.05, 0.5, 2.0)


def patiently(put: Callable[ParametersT, ResultT]) -> Callable[ParametersT, ResultT]:
    """*put*, tried again while the store is not available for a moment."""

    @wraps(put)
    def again(*arguments: ParametersT.args, **options: ParametersT.kwargs) -> ResultT:
        for wait in _WAITS:
            try:
                return put(*arguments, **options)
            except StoreUnavailable:
                time.sleep(wait)
        return put(*arguments, **options)

    return again


class StoredAnswers:
    """Paid answers by pair; what an answer costs is counted on its day, even where it is not kept.

    Its arguments are those of `JudgeQueue.answers`.
    """

    def __init__(self, database: Database, about: Sequence[Served] = (), *, day: date | None = None) -> None:
        self._database = database
        self._about = about
        self._day = day
        # By judge, the pairs that are asked about, each with the ids of its queries.
        self._queries_of: dict[str, dict[bytes, list[int]]] = {}

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The answers that are kept, of *pairs*."""
        with self._database.read() as connection:
            return paid_answers(connection, self._database.salt, pairs)

    @patiently
    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Keep the *answers* of the judge with that fingerprint, all or none; a first answer stays.

        The cost of those that are the first is counted, and of those that are not kept.
        """
        if not answers:
            return
        with self._database.write("observing") as connection:
            paid = [answers[pair] for pair in answers.keys() - self.keep(connection, judge, answers)]
            number = ids_of(connection, schema.judges, [judge])[judge]
            day = self._day or self._database.today(connection)
            spend = Spend(len(paid), sum(answer.tokens for answer in paid), sum(answer.usd for answer in paid))
            count_spending(connection, number, day, spend)

    def keep(self, connection: Connection, judge: str, answers: Mapping[bytes, Paid]) -> AbstractSet[bytes]:
        """Keep *answers* within a transaction, and count nothing; gives those that were there before."""
        owners = self.owners(connection, judge, list(answers))
        before = paid_answers(connection, self._database.salt, list(owners)).keys()
        number = ids_of(connection, schema.judges, [judge])[judge]
        now = self._database.now(connection)
        rows = [
            {
                "pair": keyed_digest(self._database.salt, pair),
                "query": owners[pair],
                "judge": number,
                "score": answers[pair].score,
                "tokens": answers[pair].tokens,
                "usd": answers[pair].usd,
                "at": now,
            }
            for pair in sorted(owners.keys() - before)
        ]
        insert_all(connection, schema.answers, rows)
        return before

    def owners(self, connection: Connection, judge: str, pairs: Sequence[bytes]) -> dict[bytes, int | None]:
        """Those of *pairs* that may be kept, each with a query that it is about; None for its examination."""
        if judge not in self._queries_of:
            queries_of: dict[bytes, list[int]] = {}
            for served in self._about:
                for shown in served.candidates:
                    queries_of.setdefault(pair_key(judge, served.query, shown.text), []).append(row_of(served.query_id))
            self._queries_of[judge] = queries_of
        about = {pair: self._queries_of[judge][pair] for pair in pairs if pair in self._queries_of[judge]}
        q = schema.queries.c.id  # none is forgotten while the connection's transaction writes
        numbers = {query for queries in about.values() for query in queries}
        there = {query for (query,) in rows_among(connection, select(q), q, numbers)}
        owners: dict[bytes, int | None] = dict.fromkeys(set(pairs).intersection(examination_keys(judge)))
        return owners | {pair: query for pair, queries in about.items() for query in queries if query in there}


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
            for (name,) in list(rows_among(connection, select(table.c.pair), table.c.pair, names)):
                names.pop(bytes(name), None)
        return list(names.values())


def _lapse(connection: Connection, judge: int, now: float) -> None:
    """Let the pairs of charges come back whose lease is not held any more; what they may have cost stays counted."""
    c, held = schema.charges.c, schema.leases.c
    is_held = exists().where(held.name == c.lease, held.token == c.token, held.expires > now)
    connection.execute(schema.charges.delete().where(c.judge == judge, ~is_held))


def paid_answers(connection: Connection, salt: bytes, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
    """The answers that were paid for and kept, of *pairs*."""
    table = schema.answers
    names = {keyed_digest(salt, pair): pair for pair in pairs}
    paid = select(table.c.pair, table.c.score, table.c.tokens, table.c.usd)
    rows = rows_among(connection, paid, table.c.pair, names)
    return {names[bytes(pair)]: Paid(score, tokens, usd) for pair, score, tokens, usd in rows}


def spent_on(connection: Connection, day: date) -> Spend:
    """What judges were paid on a day, by UTC, and what they may still be paid for calls under way."""
    table = schema.spending
    sums = select(*(func.coalesce(func.sum(table.c[name]), 0) for name in ("pairs", "tokens", "usd")))
    pairs, tokens, usd = connection.execute(sums.where(table.c.day == day)).one()
    return Spend(int(pairs), float(tokens), float(usd))


def count_within(connection: Connection, caps: Budget, judge: int, day: date, most: Spend) -> bool:
    """Count the *most* that a judge, by its id, may now cost as spent on a day, unless that could exceed its *caps*."""
    spend = spent_on(connection, day) + most
    if not caps.admits(pairs=spend.pairs, tokens=spend.tokens, usd=spend.usd):
        return False
    count_spending(connection, judge, day, most)
    return True


def count_spending(connection: Connection, judge: int, day: date, spend: Spend) -> None:
    """Add to what a judge, by its id, was paid on a day."""
    table = schema.spending
    made = insert_in(connection.dialect.name, table).values(day=day, judge=judge, **asdict(spend))
    sums = {name: table.c[name] + made.excluded[name] for name in ("pairs", "tokens", "usd")}
    connection.execute(made.on_conflict_do_update(index_elements=["day", "judge"], set_=sums))
