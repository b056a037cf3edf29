"""Reading what is learned from: rewards ready for a fit, and pairs that wait for a judge."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Select, Table, and_, exists, func, or_, select, true

from tttembed_rag.errors import RewardError, StoreError
from tttembed_rag.observations import Observation
from tttembed_rag.offsets.values import named_for
from tttembed_rag.rewards import Rewards
from tttembed_rag.stores import schema
from tttembed_rag.stores.records import Counts, checksum
from tttembed_rag.stores.rows import found, in_parts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which rewards are learned from.

    Attributes:
        judge: Whose.

        tenant: Of which tenant; "" also learns from tenants that share.

        embedder: Of which embedding model; None is the model of the newest rewarded query.

        last: Of how many queries, the last served ones; None is all.

        since: Of queries served at this Unix second or later.

        before: Of queries served before it.
    """

    judge: str
    tenant: str = ""
    embedder: str | None = None
    last: int | None = None
    since: float | None = None
    before: float | None = None


def rewards_of(connection: Connection, wanted: Selection) -> Rewards:
    """The selected rewards, in an order that depends on nothing but what they are.

    Damaged vectors and rewards are left out, and a line in the log tells how many.

    Raises:
        RewardError: There are none.
    """
    judge = found(connection, schema.judges, wanted.judge)
    chosen = _chosen(wanted, judge)
    embedder = _embedder(connection, wanted, chosen)
    q, r, own = schema.queries, schema.rewards, schema.query_vectors
    of_documents = schema.document_vectors
    with_vectors = (
        chosen.add_columns(schema.tenants.c.name.label("tenant"), q.c.task, q.c.name, own.c.vector, own.c.checksum)
        .join(schema.tenants, schema.tenants.c.id == q.c.tenant)
        .join(own, and_(own.c.query == q.c.id, own.c.embedder == embedder))
        .where(
            exists()
            .where(r.c.query == q.c.id, r.c.judge == judge, r.c.value.is_not(None))
            .where(of_documents.c.document == r.c.document, of_documents.c.embedder == embedder)
        )
    )
    last = [number for _, number in _last(connection, wanted.tenant, with_vectors, wanted.last)]
    served = [row for some in in_parts(last) for row in connection.execute(with_vectors.where(q.c.id.in_(some)))]
    sound = [row for row in served if checksum(row.vector) == row.checksum]
    given = _given(connection, [row.id for row in sound], judge, embedder)
    damaged = {"query vectors": len(served) - len(sound), **given.damaged}
    if any(damaged.values()):
        told = ", ".join(f"{count} {what}" for what, count in damaged.items())
        _log.warning("tenant %r: damaged, and left out of what is learned: %s", wanted.tenant, told)
    rows = sorted((row for row in sound if row.id in given.values), key=lambda row: (row.tenant, row.task, row.name))
    if not rows:
        raise RewardError(
            f"rewards: expected rewards of judge {wanted.judge!r} and vectors for tenant {wanted.tenant!r}, got none"
        )
    order = {
        document: place for place, (document, _) in enumerate(sorted(given.names.items(), key=lambda item: item[1]))
    }
    judged = [sorted((order[document], value) for document, value in given.values[row.id]) for row in rows]
    return Rewards.from_indexed(
        _matrix([row.vector for row in rows]),
        _matrix([given.vectors[document] for document in order]),
        candidates=[[place for place, _ in pairs] for pairs in judged],
        rewards=[[value for _, value in pairs] for pairs in judged],
        tasks=[row.task for row in rows],
        query_ids=[named_for(wanted.tenant, row.tenant, row.name) for row in rows],
        judge=wanted.judge,
    )


@dataclass(frozen=True, slots=True)
class _Given:
    # Documents by id: tenant and name, which order them; vectors; (document, reward) by query; what is damaged.
    names: dict[int, tuple[str, str]]
    vectors: dict[int, bytes]
    values: dict[int, list[tuple[int, float]]]
    damaged: dict[str, int]


def _chosen(wanted: Selection, judge: int | None) -> Select[Any]:
    """The ids of queries that *judge* has rewarded in the time that is wanted, of all tenants."""
    q, done = schema.queries, schema.progress
    chosen = select(q.c.id).join(done, and_(done.c.query == q.c.id, done.c.judge == judge, done.c.rewards > 0))
    if wanted.since is not None:
        chosen = chosen.where(done.c.at >= wanted.since)
    if wanted.before is not None:
        chosen = chosen.where(done.c.at < wanted.before)
    return chosen


def _last(
    connection: Connection, tenant: str, chosen: Select[Any], count: int | None, *facts: ColumnElement[Any]
) -> list[tuple[Any, ...]]:
    """The last served of the *chosen* queries of *tenant*, "" with all that share, newest first: time, id and *facts*.

    Tenant by tenant: an index has the order then, and what is older is not looked at.
    """
    q, done = schema.queries, schema.progress
    found = chosen.with_only_columns(done.c.at, q.c.id, *facts)
    newest = found.order_by(done.c.at.desc(), done.c.query.desc()).limit(count)
    owners = connection.execute(_owners(tenant)).scalars().all()
    rows = [tuple(row) for owner in owners for row in connection.execute(newest.where(done.c.tenant == owner))]
    return sorted(rows, reverse=True)[:count]


def _owners(tenant: str) -> Select[Any]:
    """The ids of the tenants that *tenant* learns from."""
    t = schema.tenants
    mine = t.c.name == tenant
    return select(t.c.id).where(mine if tenant else or_(mine, t.c.shares))


def judge_of(connection: Connection, wanted: Selection) -> str | None:
    """Who has rewarded most of the last rewarded queries, whoever *wanted* names; of two the newer. None: nobody."""
    done, j = schema.progress, schema.judges
    spoken = exists().where(done.c.judge == j.c.id, done.c.tenant.in_(_owners(wanted.tenant)), done.c.rewards > 0)
    # Judge by judge, for the same reason as tenant by tenant.
    rows = sorted(
        (
            (at, query, judge)
            for judge in connection.execute(select(j.c.id).where(spoken)).scalars().all()
            for at, query in _last(connection, wanted.tenant, _chosen(wanted, judge), wanted.last)
        ),
        reverse=True,
    )
    last = set(list(dict.fromkeys(query for _, query, _ in rows))[: wanted.last])
    number = _most([judge for _, query, judge in rows if query in last])
    return connection.execute(select(j.c.name).where(j.c.id == number)).scalar()


def embedder_of(connection: Connection, wanted: Selection) -> str | None:
    """The fingerprint of the model of most of the last rewarded queries; of two the newer. None: no vectors."""
    chosen = _chosen(wanted, found(connection, schema.judges, wanted.judge))
    number = _prevailing(connection, wanted.tenant, chosen, wanted.last)
    names = select(schema.embedders.c.name).where(schema.embedders.c.id == number)
    return connection.execute(names).scalar()


def budget_of(connection: Connection, wanted: Selection) -> int:
    """How many rewards the wanted queries have that were last served by the wanted embedder."""
    chosen = _chosen(wanted, found(connection, schema.judges, wanted.judge))
    if wanted.embedder is not None:
        chosen = chosen.where(schema.queries.c.embedder == found(connection, schema.embedders, wanted.embedder))
    rows = _last(connection, wanted.tenant, chosen, wanted.last, schema.progress.c.rewards)
    return sum(rewards for _, _, rewards in rows)


def _embedder(connection: Connection, wanted: Selection, chosen: Select[Any]) -> int | None:
    if wanted.embedder is not None:
        return found(connection, schema.embedders, wanted.embedder)
    return _prevailing(connection, wanted.tenant, chosen, 1)


def _prevailing(connection: Connection, tenant: str, chosen: Select[Any], last: int | None) -> int | None:
    q = schema.queries
    rows = _last(connection, tenant, chosen.where(q.c.embedder.is_not(None)), last, q.c.embedder)
    return _most([embedder for _, _, embedder in rows])


def _most(numbers: Sequence[int]) -> int | None:
    """The one that comes most often, of two the one that comes first; None of none."""
    return Counter(numbers).most_common(1)[0][0] if numbers else None


def _given(connection: Connection, queries: Sequence[int], judge: int | None, embedder: int | None) -> _Given:
    r, d, v, t = schema.rewards, schema.documents, schema.document_vectors, schema.tenants
    said: list[tuple[int, int, Any]] = []
    for some in in_parts(queries):
        rows = connection.execute(
            select(r.c.query, r.c.document, r.c.value)
            .join(v, and_(v.c.document == r.c.document, v.c.embedder == embedder))
            .where(r.c.query.in_(some), r.c.judge == judge, r.c.value.is_not(None))
        )
        said += [(query, document, value) for query, document, value in rows]
    sound = [one for one in said if _is_reward(one[2])]
    wanted = sorted({document for _, document, _ in sound})
    names: dict[int, tuple[str, str]] = {}
    vectors: dict[int, bytes] = {}
    for some in in_parts(wanted):
        for number, tenant, name, vector, known in connection.execute(
            select(d.c.id, t.c.name, d.c.name, v.c.vector, v.c.checksum)
            .join(t, t.c.id == d.c.tenant)
            .join(v, and_(v.c.document == d.c.id, v.c.embedder == embedder))
            .where(d.c.id.in_(some))
        ):
            if checksum(vector) == known:
                names[number], vectors[number] = (tenant, name), vector
    values: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for query, document, value in sound:
        if document in vectors:
            values[query].append((document, value))
    damaged = {"document vectors": len(wanted) - len(vectors), "rewards": len(said) - len(sound)}
    return _Given(names, vectors, dict(values), damaged)


def _is_reward(value: Any) -> bool:
    return isinstance(value, float) and 0.0 <= value <= 1.0


def _matrix(vectors: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.float32]]:
    if len(sizes := sorted({len(vector) for vector in vectors})) > 1 or sizes[0] % 4:
        raise StoreError(f"vectors: expected those of one embedder to have one width, got {sizes} bytes (damaged)")
    return np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1).astype(np.float32, copy=False)


def waiting_for(connection: Connection, judge: int, tenant: str, limit: int) -> list[Observation]:
    """The newest queries with pairs that *judge* has not answered, both texts known."""
    q, p, d, r, done = schema.queries, schema.pairs, schema.documents, schema.rewards, schema.progress
    owner = found(connection, schema.tenants, tenant)
    newest = (
        select(q.c.id, q.c.text, q.c.task)
        .join(done, done.c.query == q.c.id)
        .where(done.c.tenant == owner, done.c.judge == judge, done.c.waiting > 0)
        .order_by(done.c.at.desc(), done.c.query.desc())
        .limit(limit)
    )
    queries = connection.execute(newest).all()
    texts: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for some in in_parts([query for query, _, _ in queries]):
        rows = connection.execute(
            select(p.c.query, d.c.id, d.c.text)
            .join(d, d.c.id == p.c.document)
            .outerjoin(r, and_(r.c.query == p.c.query, r.c.judge == judge, r.c.document == p.c.document))
            .where(p.c.query.in_(some), d.c.text.is_not(None), r.c.query.is_(None))
            .order_by(p.c.query, p.c.place, d.c.id)
        )
        for query, document, text in rows:
            texts[query].append((f"d{document}", text))
    return [Observation(f"q{query}", text, texts[query], task) for query, text, task in queries]


def waiting_tenants(connection: Connection, judge: int) -> list[str]:
    """Tenants with pairs that *judge* has not answered."""
    t, done = schema.tenants, schema.progress
    waits = exists().where(done.c.tenant == t.c.id, done.c.judge == judge, done.c.waiting > 0)
    return sorted(connection.execute(select(t.c.name).where(waits)).scalars())


def judges_of(connection: Connection, tenant: str | None) -> list[tuple[str, int]]:
    """Judges with how many rewards they gave, to *tenant* or to all, the busiest first."""
    done, j = schema.progress, schema.judges
    total = func.sum(done.c.rewards)
    rows = connection.execute(
        select(j.c.name, total)
        .join(done, done.c.judge == j.c.id)
        .where(done.c.rewards > 0, true() if tenant is None else done.c.tenant.in_(_owners(tenant)))
        .group_by(j.c.name)
        .order_by(total.desc(), j.c.name)
    )
    return [(name, int(count)) for name, count in rows]


def counts_of(connection: Connection, tenant: str | None, size: int) -> Counts:
    """How much there is of *tenant*, or of all."""
    q, d, p, r = schema.queries, schema.documents, schema.pairs, schema.rewards
    owner = None if tenant is None else found(connection, schema.tenants, tenant)

    def of_tenant(chosen: Any, table: Table) -> Any:
        if tenant is None:
            return chosen
        if table in (q, d):
            return chosen.where(table.c.tenant == owner)
        return chosen.join(q, q.c.id == table.c.query).where(q.c.tenant == owner)

    def count(table: Table) -> int:
        return int(connection.execute(of_tenant(select(func.count()).select_from(table), table)).scalar_one())

    # Query by query, which is the order of the table: nothing is sorted or looked up.
    counted = select(func.count(r.c.value).label("rewards"), func.count(r.c.document.distinct()).label("answered"))
    of_query = of_tenant(counted.select_from(r), r).group_by(r.c.query).subquery()
    total = (func.coalesce(func.sum(column), 0) for column in of_query.c)
    rewards, answered = map(int, connection.execute(select(*total)).one())
    pairs = count(p)
    return Counts(count(q), count(d), pairs, rewards, pairs - answered, size)
