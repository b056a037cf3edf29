"""Paid answers of judges, shared by all processes of a store, and what judges cost by day."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict
from datetime import date
from functools import wraps
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection, func, select

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.judges.examination import examination_keys
from tttembed_rag.judging.cache import Paid
from tttembed_rag.judging.spending import Budget
from tttembed_rag.rewards.observations import Served
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database, keyed_digest
from tttembed_store.sql.records import Spend, row_of
from tttembed_store.sql.rows import ids_of, in_parts, insert_all, insert_in

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
        self._asked: dict[str, dict[bytes, list[int]]] = {}

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
        if judge not in self._asked:
            queries_of: dict[bytes, list[int]] = {}
            for served in self._about:
                for shown in served.candidates:
                    queries_of.setdefault(pair_key(judge, served.query, shown.text), []).append(row_of(served.query_id))
            self._asked[judge] = queries_of
        about = {pair: self._asked[judge][pair] for pair in pairs if pair in self._asked[judge]}
        q = schema.queries.c.id  # none is forgotten while the connection's transaction writes
        parts = in_parts(sorted({query for queries in about.values() for query in queries}))
        there = {query for part in parts for query in connection.execute(select(q).where(q.in_(part))).scalars()}
        owners: dict[bytes, int | None] = dict.fromkeys(set(pairs).intersection(examination_keys(judge)))
        return owners | {pair: query for pair, queries in about.items() for query in queries if query in there}


def paid_answers(connection: Connection, salt: bytes, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
    """The answers that were paid for and kept, of *pairs*."""
    table = schema.answers
    names = {keyed_digest(salt, pair): pair for pair in pairs}
    return {
        names[bytes(pair)]: Paid(score, tokens, usd)
        for part in in_parts(list(names))
        for pair, score, tokens, usd in connection.execute(
            select(table.c.pair, table.c.score, table.c.tokens, table.c.usd).where(table.c.pair.in_(part))
        )
    }


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
