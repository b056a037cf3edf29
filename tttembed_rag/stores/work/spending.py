"""What judges cost, by day."""

from __future__ import annotations

from datetime import date

from sqlalchemy import Connection, func, select

from tttembed_rag.judging.spending import Budget
from tttembed_rag.stores import schema
from tttembed_rag.stores.records import Spend
from tttembed_rag.stores.rows import insert


def spent_on(connection: Connection, day: date) -> Spend:
    """What judges were paid on a day, by UTC, and what they may still be paid for calls under way."""
    table = schema.spending
    sums = select(*(func.coalesce(func.sum(table.c[name]), 0) for name in ("pairs", "tokens", "usd")))
    pairs, tokens, usd = connection.execute(sums.where(table.c.day == day)).one()
    return Spend(int(pairs), float(tokens), float(usd))


def is_within(caps: Budget, spend: Spend) -> bool:
    """Whether so much may be spent in a day."""
    return caps.admits(pairs=spend.pairs, tokens=spend.tokens, usd=spend.usd)


def count_spending(connection: Connection, judge: int, day: date, spend: Spend) -> None:
    """Add to what a judge, by its id, was paid on a day."""
    table = schema.spending
    made = insert(connection, table).values(day=day, judge=judge, pairs=spend.pairs, tokens=spend.tokens, usd=spend.usd)
    sums = {name: table.c[name] + made.excluded[name] for name in ("pairs", "tokens", "usd")}
    connection.execute(made.on_conflict_do_update(index_elements=["day", "judge"], set_=sums))
