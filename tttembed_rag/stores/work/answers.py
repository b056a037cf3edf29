"""Paid answers of judges, shared by all processes of a store, and what was spent on which day."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import wraps
from typing import TypeVar

from sqlalchemy import Connection, func, select

from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.judges.contract import PROBE_BAD, PROBE_GOOD, PROBE_QUERY
from tttembed_rag.judging.cache import Paid
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.rewards.observations import Observation
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database, keyed_digest
from tttembed_rag.stores.records import Spend, row_of
from tttembed_rag.stores.rows import ids_of, in_parts, insert

ResultT = TypeVar("ResultT")

# Seconds to wait before each further attempt to keep answers while the store is not available: they were paid for.
_WAITS = (0.05, 0.5, 2.0)


def _patiently(put: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """*put*, tried again while the store is not available for a moment."""

    @wraps(put)
    def again(*arguments: object) -> ResultT:
        for wait in _WAITS:
            try:
                return put(*arguments)
            except StoreUnavailable:
                time.sleep(wait)
        return put(*arguments)

    return again


class StoredAnswers:
    """Paid answers by pair; what an answer cost is counted on the day it came, even where it is not kept.

    An answer belongs to the query it was given about, and is kept as long as the query is: an answer that comes late,
    after its query was forgotten, is not kept.

    Args:
        database: The database of the store.

        salt: Key of the hashes that stand for pairs.

        about: What is asked about; answers to anything else but the probe of a judge are not kept.

        day: The day on which their costs count; None is the day on which they come.
    """

    def __init__(
        self, database: Database, salt: bytes, about: Sequence[Observation] = (), *, day: date | None = None
    ) -> None:
        self._database = database
        self._salt = salt
        self._about = about
        self._day = day
        # By judge, the pairs that are asked about, each with the ids of its queries.
        self._asked: dict[str, dict[bytes, list[int]]] = {}

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """The answers that are kept, of *pairs*."""
        with self._database.read() as connection:
            return paid_answers(connection, self._salt, pairs)

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Keep the *answers* of the judge with that fingerprint, all or none; a first answer stays.

        Their cost is counted once, also where the store was lost before it said that it had.
        """
        if answers:
            self._put(judge, answers, os.urandom(32), [])

    @_patiently
    def _put(self, judge: str, answers: Mapping[bytes, Paid], receipt: bytes, attempts: list[float]) -> None:
        """Try once; what is written has the time of its attempt, by which a later one knows that it was written.

        Where none of the answers was kept, a row under the address *receipt*, which no pair has, stands for them.
        """
        probes = {pair_key(judge, PROBE_QUERY, text) for text in (PROBE_GOOD, PROBE_BAD)} & answers.keys()
        about = {pair: queries for pair, queries in self._pairs(judge).items() if pair in answers}
        with self._database.write("observing") as connection:
            now = self._database.now(connection)
            number = ids_of(connection, schema.judges, [judge])[judge]
            there = _there(connection, sorted({query for queries in about.values() for query in queries}))
            owners: dict[bytes, int | None] = dict.fromkeys(probes)
            owners |= {pair: query for pair, queries in about.items() for query in queries if query in there}
            rows = [
                {
                    "pair": _keyed(self._salt, pair),
                    "query": owners[pair],
                    "judge": number,
                    "score": answers[pair].score,
                    "tokens": answers[pair].tokens,
                    "usd": answers[pair].usd,
                    "at": now,
                }
                for pair in sorted(owners)
            ]
            written = [_keyed(self._salt, pair) for pair in owners]
            if rows:
                connection.execute(insert(connection, schema.answers).on_conflict_do_nothing(), rows)
            if attempts and _is_written(connection, [*written, receipt], attempts):
                return
            if not _is_written(connection, written, [now]):
                unkept = {"query": None, "judge": number, "score": 0.0, "tokens": 0.0, "usd": 0.0}
                connection.execute(insert(connection, schema.answers).values(pair=receipt, at=now, **unkept))
            attempts.append(now)
            paid = answers.values()
            spend = Spend(len(answers), sum(one.tokens for one in paid), sum(one.usd for one in paid))
            count_spending(connection, number, self._day or datetime.fromtimestamp(now, UTC).date(), spend)

    def _pairs(self, judge: str) -> dict[bytes, list[int]]:
        if judge not in self._asked:
            pairs: dict[bytes, list[int]] = {}
            for one in self._about:
                for _, text in one.candidates:
                    pairs.setdefault(pair_key(judge, one.query, text), []).append(row_of(one.query_id))
            self._asked[judge] = pairs  # whole: other threads may be looking
        return self._asked[judge]


def _is_written(connection: Connection, pairs: Sequence[bytes], attempts: Sequence[float]) -> bool:
    """Whether one of the *attempts* has written some of *pairs* although nothing was heard of it."""
    table = schema.answers
    written = select(table.c.pair).where(table.c.at.in_(attempts))
    return any(connection.execute(written.where(table.c.pair.in_(part))).first() for part in in_parts(pairs))


def _there(connection: Connection, queries: Sequence[int]) -> set[int]:
    """Which of *queries* are there; none is forgotten while the connection's transaction writes."""
    table = schema.queries
    there = set[int]()
    for part in in_parts(queries):
        there.update(connection.execute(select(table.c.id).where(table.c.id.in_(part))).scalars())
    return there


def _keyed(salt: bytes, pair: bytes) -> bytes:
    """The bytes that stand for a pair in this store; without its salt they cannot be found by trying texts."""
    return keyed_digest(pair, key=salt)


def paid_answers(connection: Connection, salt: bytes, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
    """The answers that were paid for and kept, of *pairs*."""
    table = schema.answers
    names = {_keyed(salt, pair): pair for pair in pairs}
    return {
        names[bytes(pair)]: Paid(score, tokens, usd)
        for part in in_parts(list(names))
        for pair, score, tokens, usd in connection.execute(
            select(table.c.pair, table.c.score, table.c.tokens, table.c.usd).where(table.c.pair.in_(part))
        )
    }


def spent_on(connection: Connection, day: date) -> Spend:
    """What judges were paid on a day, by UTC."""
    table = schema.spending
    sums = select(*(func.coalesce(func.sum(table.c[name]), 0) for name in ("pairs", "tokens", "usd")))
    pairs, tokens, usd = connection.execute(sums.where(table.c.day == day)).one()
    return Spend(int(pairs), float(tokens), float(usd))


def count_spending(connection: Connection, judge: int, day: date, spend: Spend) -> None:
    """Add to what a judge, by its id, was paid on a day."""
    table = schema.spending
    made = insert(connection, table).values(day=day, judge=judge, pairs=spend.pairs, tokens=spend.tokens, usd=spend.usd)
    sums = {name: table.c[name] + made.excluded[name] for name in ("pairs", "tokens", "usd")}
    connection.execute(made.on_conflict_do_update(index_elements=["day", "judge"], set_=sums))
