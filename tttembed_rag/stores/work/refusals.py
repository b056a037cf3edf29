"""Queries that a judge fails at although it is well, and pairs that it declined."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, select

from tttembed_rag.rewards.names import cleaned
from tttembed_rag.stores import schema
from tttembed_rag.stores.log.observing import update_progress
from tttembed_rag.stores.rows import id_of, in_parts, insert_all

# Seconds until a judge is asked about a query again that it failed at, twice as long each time up to the longest.
_FIRST_WAIT, _LONGEST_WAIT = 300.0, 6 * 3600.0
# A failure lasts once it came back so often, over so many seconds: a fault of the operator is mended by then.
_OFTEN, _LONG = 3, 12 * 3600.0
# Characters of a reason that are kept.
_LONGEST_WHY = 500


def note_failures(
    connection: Connection, judge: int, reasons: Mapping[int, str], *, tenant: int | None, now: float
) -> set[int]:
    """Write why *judge* failed at queries of a tenant, by their ids; gives those at which its failures last."""
    q, f = schema.queries, schema.failures
    lasting = set[int]()
    for numbers in in_parts(sorted(reasons)):
        before = select(q.c.id, f.c.count, f.c.first_at).outerjoin(f, (f.c.query == q.c.id) & (f.c.judge == judge))
        rows = []
        for query, count, first in connection.execute(before.where(q.c.id.in_(numbers), q.c.tenant == tenant)).all():
            often, since = (count or 0) + 1, now if first is None else first
            wait = min(_FIRST_WAIT * 2.0 ** min(often - 1, 30), _LONGEST_WAIT)
            why = cleaned(reasons[query])[:_LONGEST_WHY]
            rows.append(
                {"query": query, "judge": judge, "count": often, "first_at": since, "due_at": now + wait, "why": why}
            )
            if often >= _OFTEN and now - since >= _LONG:
                lasting.add(query)
        insert_all(connection, f, rows, replace=True)
    return lasting


def forget_failures(connection: Connection, judge: int, queries: list[int]) -> None:
    """Forget that *judge* ever failed at *queries*: it has answered."""
    f = schema.failures
    for numbers in in_parts(queries):
        connection.execute(f.delete().where(f.c.judge == judge, f.c.query.in_(numbers)))


def forget_refusals(connection: Connection, judge: int, tenant: str | None) -> int:
    """Let all pairs wait again that *judge* declined or failed at, of a tenant or (None) all; gives how many declined.

    Answers without a score are forgotten too: they would decline the pairs anew.
    """
    q, r, f, answers = schema.queries, schema.rewards, schema.failures, schema.answers
    owned = select(q.c.id)
    if tenant is not None:
        owned = owned.where(q.c.tenant == id_of(connection, schema.tenants, tenant))
    refused = select(r.c.query).where(r.c.judge == judge, r.c.value.is_(None), r.c.query.in_(owned))
    queries = sorted(set(connection.execute(refused).scalars()))
    connection.execute(f.delete().where(f.c.judge == judge, f.c.query.in_(owned)))
    connection.execute(
        answers.delete().where(answers.c.judge == judge, answers.c.score.is_(None), answers.c.query.in_(owned))
    )
    count = 0
    for numbers in in_parts(queries):
        gone = r.delete().where(r.c.judge == judge, r.c.value.is_(None), r.c.query.in_(numbers))
        count += connection.execute(gone).rowcount
    update_progress(connection, queries, judge=judge)
    return count
