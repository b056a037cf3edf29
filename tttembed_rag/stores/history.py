"""What a report reads from the tables of a store beyond what `Store` answers; each reading is bounded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta

import numpy as np
from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from tttembed_rag.stores import AuditLine, Candidate, Served, Version, schema
from tttembed_rag.stores.answers import spent
from tttembed_rag.stores.records import Day
from tttembed_rag.stores.rows import found, in_parts

_DAY_SECONDS = 86_400
# Characters read of a text.
_TEXT = 1000


def days(connection: Connection, tenant: str, *, last: date, count: int) -> list[Day]:
    """The *count* days up to *last*, oldest first; the shared tenant's include those of tenants that share."""
    t, q, done = schema.tenants, schema.queries, schema.progress
    mine = t.c.name == tenant
    owners = connection.execute(select(t.c.id).where(mine if tenant else or_(mine, t.c.shares))).scalars().all()
    # Named one by one, judges let the index by age be used.
    judges = connection.execute(select(schema.judges.c.id)).scalars().all()
    told = []
    for day in (last - timedelta(days=ago) for ago in reversed(range(count))):
        start = datetime.combine(day, time(), UTC).timestamp()

        def within(at: ColumnElement[float], start: float = start) -> ColumnElement[bool]:
            return and_(at >= start, at < start + _DAY_SECONDS)

        queries = select(func.count()).select_from(q).where(q.c.tenant.in_(owners), within(q.c.last_at))
        rewards = select(func.coalesce(func.sum(done.c.rewards), 0)).where(
            done.c.tenant.in_(owners), done.c.judge.in_(judges), within(done.c.at)
        )
        served, rewarded = (int(connection.execute(chosen).scalar_one()) for chosen in (queries, rewards))
        told.append(Day(day, served, rewarded, spent(connection, day)))
    return told


def live_since(connection: Connection, version: Version) -> float:
    """When *version* went live last, in Unix seconds."""
    line, what = schema.audit, f"version {version.number} is live"
    chosen = select(line.c.at).where(
        line.c.tenant == version.tenant,
        line.c.action.in_(("publish", "promote", "rollback")),
        or_(line.c.detail == what, line.c.detail.startswith(f"{what}:")),
    )
    at = connection.execute(chosen.order_by(line.c.id.desc()).limit(1)).scalar()
    return version.at if at is None else at


def halted_since(connection: Connection, tenants: Sequence[str]) -> float | None:
    """When one of *tenants* or all were halted last, in Unix seconds."""
    line = schema.audit
    chosen = select(line.c.at).where(line.c.action == "halt", or_(line.c.tenant.in_(tenants), line.c.tenant.is_(None)))
    return connection.execute(chosen.order_by(line.c.id.desc()).limit(1)).scalar()


def changes(connection: Connection, tenant: str, limit: int) -> list[AuditLine]:
    """The newest changes that concern *tenant*, those of all tenants among them, newest first."""
    line = schema.audit
    chosen = select(line.c.at, line.c.tenant, line.c.by, line.c.action, line.c.detail).where(
        or_(line.c.tenant == tenant, line.c.tenant.is_(None))
    )
    return [AuditLine(*row) for row in connection.execute(chosen.order_by(line.c.id.desc()).limit(limit))]


def recent(
    connection: Connection, tenant: str, *, width: int, embedder: str, judge: str, limit: int, depth: int
) -> list[Served]:
    """The last served queries with vectors, newest first, each with its first candidates that have vectors.

    Args:
        connection: An open transaction.

        tenant: Whose.

        width: Of the vectors.

        embedder: Fingerprint of the model they come from; empty is whichever it was.

        judge: Whose rewards come along.

        limit: Queries at most.

        depth: Candidates at most, of each.
    """
    q, e, own = schema.queries, schema.embedders, schema.query_vectors
    newest = (
        select(q.c.id, q.c.name, func.substr(q.c.text, 1, _TEXT).label("text"), q.c.task, q.c.last_at, own.c.vector)
        .join(e, e.c.id == q.c.embedder)
        .join(own, and_(own.c.query == q.c.id, own.c.embedder == q.c.embedder))
        .where(q.c.tenant == found(connection, schema.tenants, tenant), e.c.width == width)
        .order_by(q.c.last_at.desc(), q.c.id.desc())
        .limit(limit)
    )
    if embedder:
        newest = newest.where(e.c.name == embedder)
    rows = connection.execute(newest).all()
    shown = _candidates(connection, [row.id for row in rows], found(connection, schema.judges, judge), depth)
    return [
        Served(row.name, _vector(row.vector), shown[row.id], row.text, row.task, tenant, row.last_at) for row in rows
    ]


def _candidates(
    connection: Connection, queries: Sequence[int], judge: int | None, depth: int
) -> dict[int, list[Candidate]]:
    q, p, d, v, r = schema.queries, schema.pairs, schema.documents, schema.document_vectors, schema.rewards
    shown: dict[int, list[Candidate]] = defaultdict(list)
    for some in in_parts(queries):
        rows = connection.execute(
            select(p.c.query, d.c.name, func.substr(d.c.text, 1, _TEXT), v.c.vector, r.c.value)
            .join(q, q.c.id == p.c.query)
            .join(d, d.c.id == p.c.document)
            .join(v, and_(v.c.document == p.c.document, v.c.embedder == q.c.embedder))
            .outerjoin(r, and_(r.c.query == p.c.query, r.c.judge == judge, r.c.document == p.c.document))
            .where(p.c.query.in_(some), p.c.place < depth)
            .order_by(p.c.query, p.c.place, d.c.id)
        )
        for query, name, text, vector, value in rows:
            shown[query].append(Candidate(name, _vector(vector), text, value))
    return shown


def _vector(stored: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.frombuffer(stored, dtype="<f4").astype(np.float32, copy=False)
