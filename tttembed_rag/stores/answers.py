"""Paid answers of judges, shared by all processes of a store, and what was spent on which day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime

from sqlalchemy import Connection, func, select

from tttembed_rag.judges.cache import Paid
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database, digest
from tttembed_rag.stores.records import Spend
from tttembed_rag.stores.rows import ids_of, in_parts, insert


class StoredAnswers:
    """Answers by pair; what they cost is counted on the day they came, also where another answer came first.

    Args:
        database: Where.

        salt: Key of the hashes that stand for pairs.
    """

    def __init__(self, database: Database, salt: bytes) -> None:
        self._database = database
        self._salt = salt

    def get(self, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
        """What is known of *pairs*."""
        with self._database.read() as connection:
            return known(connection, self._salt, pairs)

    def put(self, judge: str, answers: Mapping[bytes, Paid]) -> None:
        """Keep the *answers* of the judge with that fingerprint, all or none; a first answer stays."""
        if not answers:
            return
        with self._database.write("observing") as connection:
            now = self._database.now(connection)
            number = ids_of(connection, schema.judges, [judge])[judge]
            rows = [
                {
                    "pair": keyed(self._salt, pair),
                    "judge": number,
                    "score": paid.score,
                    "tokens": paid.tokens,
                    "usd": paid.usd,
                    "at": now,
                }
                for pair, paid in sorted(answers.items(), key=lambda item: item[0])
            ]
            connection.execute(insert(connection, schema.answers).on_conflict_do_nothing(), rows)
            _count(connection, number, datetime.fromtimestamp(now, UTC).date(), answers)


def keyed(salt: bytes, pair: bytes) -> bytes:
    """What stands for a pair in this store: without its salt, nobody finds out by trying texts."""
    return digest(pair, key=salt)


def known(connection: Connection, salt: bytes, pairs: Sequence[bytes]) -> dict[bytes, Paid]:
    """What is known of *pairs*."""
    table = schema.answers
    names = {keyed(salt, pair): pair for pair in pairs}
    return {
        names[bytes(pair)]: Paid(score, tokens, usd)
        for some in in_parts(list(names))
        for pair, score, tokens, usd in connection.execute(
            select(table.c.pair, table.c.score, table.c.tokens, table.c.usd).where(table.c.pair.in_(some))
        )
    }


def spent(connection: Connection, day: date) -> Spend:
    """What was spent on a day, by UTC."""
    table = schema.spending
    sums = select(*(func.coalesce(func.sum(table.c[name]), 0) for name in ("pairs", "tokens", "usd")))
    pairs, tokens, usd = connection.execute(sums.where(table.c.day == day)).one()
    return Spend(int(pairs), float(tokens), float(usd))


def _count(connection: Connection, judge: int, day: date, answers: Mapping[bytes, Paid]) -> None:
    table = schema.spending
    made = insert(connection, table).values(
        day=day,
        judge=judge,
        pairs=len(answers),
        tokens=sum(paid.tokens for paid in answers.values()),
        usd=sum(paid.usd for paid in answers.values()),
    )
    sums = {name: table.c[name] + made.excluded[name] for name in ("pairs", "tokens", "usd")}
    connection.execute(made.on_conflict_do_update(index_elements=["day", "judge"], set_=sums))
