"""Reading rewards for a fit, and how many there are of which judge and embedding model."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, Select, Table, and_, exists, func, select, true

from tttembed_rag.errors import InputError, RewardError, StoreError
from tttembed_rag.rewards.rewards import Rewards
from tttembed_store.sql import schema
from tttembed_store.sql.log.sources import HAS_SOURCE
from tttembed_store.sql.records import AUDIT, Counts, checksum
from tttembed_store.sql.rows import id_of, rows_among

_log = logging.getLogger(__name__)


def selected_rewards(
    connection: Connection,
    judge: str,
    tenant: str,
    *,
    embedder: str | None,
    last: int | None,
    since: float | None,
) -> Rewards:
    """The rewards that `Store.rewards` selects, in an order that depends on nothing but what they are."""
    number = id_of(connection, schema.judges, judge)
    if embedder is None:
        embedder = embedder_of_most(connection, judge, tenant, last=1, since=since)
    model = None if embedder is None else id_of(connection, schema.embedders, embedder)
    q, r, own, of_documents = schema.queries, schema.rewards, schema.query_vectors, schema.document_vectors
    with_vectors = (
        _rewarded_queries(number, since)
        .add_columns(q.c.task, q.c.name, q.c.text, own.c.vector, own.c.checksum)
        .join(own, and_(own.c.query == q.c.id, own.c.embedder == model))
        .where(
            exists()
            .where(r.c.query == q.c.id, r.c.judge == number, r.c.value.is_not(None))
            .where(of_documents.c.document == r.c.document, of_documents.c.embedder == model)
        )
    )
    chosen = _last_of_each_source(connection, tenant, with_vectors, number, last)
    served = list(rows_among(connection, with_vectors, q.c.id, chosen))
    sound = [row for row in served if checksum(row.vector) == row.checksum]
    documents, rewards, damaged = _judged_documents(connection, [row.id for row in sound], number, model)
    damaged = {"query vectors": len(served) - len(sound)} | damaged
    if any(damaged.values()):
        counts = ", ".join(f"{count} {what}" for what, count in damaged.items())
        _log.warning("tenant %r: damaged, and left out of what is learned: %s", tenant, counts)
    rows = [(row, source) for row in sound for source in rewards.get(row.id, ())]
    if not rows:
        raise RewardError(f"rewards: expected rewards of judge {judge!r} and vectors for tenant {tenant!r}, got none")
    rows.sort(key=lambda pair: (pair[0].task, pair[0].name, pair[1]))
    in_order = sorted(documents.values(), key=lambda document: document.name)
    places = {document.id: place for place, document in enumerate(in_order)}
    pairs = [sorted((places[document], value) for document, value in rewards[row.id][source]) for row, source in rows]
    return Rewards.from_indexed(
        _matrix([row.vector for row, _ in rows]),
        _matrix([document.vector for document in in_order]),
        candidates=[[place for place, _ in of_query] for of_query in pairs],
        rewards=[[value for _, value in of_query] for of_query in pairs],
        tasks=[row.task for row, _ in rows],
        query_ids=[row.name for row, _ in rows],
        judge=judge,
        sources=[source for _, source in rows],
        doc_ids=[document.name for document in in_order],
        query_texts=[row.text or "" for row, _ in rows],
        doc_texts=[document.text or "" for document in in_order],
        embedder=embedder or "",
    )


def judge_of_most(connection: Connection, tenant: str, *, last: int, since: float | None) -> str | None:
    """As `Store.judge`."""
    progress, j = schema.progress, schema.judges
    number = id_of(connection, schema.tenants, tenant)
    spoken = (j.c.name != AUDIT) & exists().where(
        progress.c.judge == j.c.id, progress.c.tenant == number, progress.c.rewards > 0
    )
    # One judge at a time: an index has the order then, and older queries are not looked at.
    rows = sorted(
        (
            (at, query, judge)
            for judge in connection.execute(select(j.c.id).where(spoken)).scalars().all()
            for at, query in _last_served(connection, tenant, _rewarded_queries(judge, since), last)
        ),
        reverse=True,
    )
    own = _judges_themselves(connection, sorted({query for _, query, _ in rows}))
    rows = [row for row in rows if row[2] in own] or rows
    newest = set(list(dict.fromkeys(query for _, query, _ in rows))[:last])
    most = _most_common([judge for _, query, judge in rows if query in newest])
    return connection.execute(select(j.c.name).where(j.c.id == most)).scalar()


def _judges_themselves(connection: Connection, queries: Sequence[int]) -> set[int]:
    """The judges that rewarded any of *queries* themselves, not by the mouth of a source."""
    r = schema.rewards.c
    own = select(r.judge).where(r.value.is_not(None), r.source == "").distinct()
    return {judge for (judge,) in rows_among(connection, own, r.query, queries)}


def embedder_of_most(connection: Connection, judge: str, tenant: str, *, last: int, since: float | None) -> str | None:
    """As `Store.embedder`."""
    q, e = schema.queries, schema.embedders
    rewarded = _rewarded_queries(id_of(connection, schema.judges, judge), since)
    rows = _last_served(connection, tenant, rewarded.where(q.c.embedder.is_not(None)), last, q.c.embedder)
    number = _most_common([embedder for _, _, embedder in rows])
    return connection.execute(select(e.c.name).where(e.c.id == number)).scalar()


def judges_of(connection: Connection, tenant: str | None) -> list[tuple[str, int]]:
    """As `Store.judges`."""
    progress, j = schema.progress, schema.judges
    total = func.sum(progress.c.rewards)
    mine = true() if tenant is None else progress.c.tenant == id_of(connection, schema.tenants, tenant)
    rows = connection.execute(
        select(j.c.name, total)
        .join(progress, progress.c.judge == j.c.id)
        .where(progress.c.rewards > 0, mine)
        .group_by(j.c.name)
        .order_by(total.desc(), j.c.name)
    )
    return [(name, int(count)) for name, count in rows]


def count_written(connection: Connection, judge: str, tenant: str) -> int:
    """As `Store.written`."""
    table = schema.due
    written = select(table.c.rewards).where(
        table.c.judge == id_of(connection, schema.judges, judge),
        table.c.tenant == id_of(connection, schema.tenants, tenant),
    )
    return int(connection.execute(written).scalar() or 0)


def counts_of(connection: Connection, tenant: str | None, size: int) -> Counts:
    """How much there is of *tenant*, or (None) of all tenants."""
    q, d, p, r = schema.queries, schema.documents, schema.pairs, schema.rewards
    owner = None if tenant is None else id_of(connection, schema.tenants, tenant)

    def of_tenant(chosen: Any, table: Table) -> Any:
        if tenant is None:
            return chosen
        owned = table if table in (q, d) else q
        return (chosen if owned is table else chosen.join(q, q.c.id == table.c.query)).where(owned.c.tenant == owner)

    # Query by query, which is the order of the table: nothing is sorted or looked up.
    counted = select(func.count(r.c.value), func.count(r.c.document.distinct())).select_from(r)
    of_query = of_tenant(counted, r).group_by(r.c.query).subquery()
    total = select(*(func.coalesce(func.sum(column), 0) for column in of_query.c))
    rewards, answered = map(int, connection.execute(total).one())
    queries, documents, pairs = (
        int(connection.execute(of_tenant(select(func.count()).select_from(table), table)).scalar_one())
        for table in (q, d, p)
    )
    return Counts(queries, documents, pairs, rewards, pairs - answered, size)


def _rewarded_queries(judge: int | None, since: float | None) -> Select[Any]:
    """The ids of queries that *judge* has rewarded, last served since then, of all tenants."""
    q, progress = schema.queries, schema.progress
    rewarded = and_(progress.c.query == q.c.id, progress.c.judge == judge, progress.c.rewards > 0)
    chosen = select(q.c.id).join(progress, rewarded)
    if since is not None:
        chosen = chosen.where(progress.c.at >= since)
    return chosen


def _last_served(
    connection: Connection, tenant: str, queries: Select[Any], count: int | None, *columns: ColumnElement[Any]
) -> list[tuple[Any, ...]]:
    """Time, id and *columns* of the last served *queries* of *tenant*, newest first."""
    if count is not None and count < 1:
        raise InputError(f"last: expected at least 1 query, got {count}")
    q, progress = schema.queries, schema.progress
    chosen = queries.with_only_columns(progress.c.at, q.c.id, *columns)
    newest = chosen.order_by(progress.c.at.desc(), progress.c.query.desc()).limit(count)
    mine = newest.where(progress.c.tenant == id_of(connection, schema.tenants, tenant))
    return [tuple(row) for row in connection.execute(mine)]


def _last_of_each_source(
    connection: Connection, tenant: str, queries: Select[Any], judge: int | None, count: int | None
) -> list[int]:
    """The ids of *count* of *queries*: the last served ones where no source has spoken of these.

    Else each source has its share, and who speaks most takes no other's place.
    """
    last = [number for _, number in _last_served(connection, tenant, queries, count)]
    r, progress = schema.rewards.c, schema.progress
    if count is None or len(last) < count:
        return last
    if not any(rows_among(connection, select(r.query).where(r.judge == judge, HAS_SOURCE).limit(1), r.query, last)):
        return last
    served = queries.with_only_columns(progress.c.at, schema.queries.c.id)
    served = served.where(progress.c.tenant == id_of(connection, schema.tenants, tenant))
    return list(connection.execute(in_turns(served, judge, count)).scalars())


def in_turns(served: Select[Any], judge: int | None, count: int | None) -> Select[Any]:
    """The ids of *count* queries of *served* (time, id): the newest that each source rewarded, the second newest...

    A query belongs to all of its sources, one of which is *judge* itself.
    """
    r, (at, number) = schema.rewards, served.subquery().c
    spoken = select(at.label("at"), number.label("id"), r.c.source).distinct()
    spoken = spoken.outerjoin(r, and_(r.c.query == number, r.c.judge == judge))
    of = spoken.subquery().c
    turn = func.row_number().over(partition_by=of.source, order_by=(of.at.desc(), of.id.desc())).label("turn")
    ranked = select(of.at, of.id, turn).subquery().c
    first = select(ranked.id).group_by(ranked.id, ranked.at)
    return first.order_by(func.min(ranked.turn), ranked.at.desc(), ranked.id.desc()).limit(count)


def _most_common(numbers: Sequence[int]) -> int | None:
    """The number that comes most often, of two the one that comes first; None of none."""
    return Counter(numbers).most_common(1)[0][0] if numbers else None


def _judged_documents(
    connection: Connection, queries: Sequence[int], judge: int | None, embedder: int | None
) -> tuple[dict[int, Any], dict[int, dict[str, list[tuple[int, float]]]], dict[str, int]]:
    """The documents that *judge* rewarded, by the ids of their rows, and rewards of theirs by query and source.

    The empty source is the judge. Damaged vectors and rewards are left out, and counted by what they are.
    """
    r, d, v = schema.rewards, schema.documents, schema.document_vectors
    judged = (
        select(r.c.query, r.c.document, r.c.source, r.c.value)
        .join(v, and_(v.c.document == r.c.document, v.c.embedder == embedder))
        .where(r.c.judge == judge, r.c.value.is_not(None))
    )
    stored = list(rows_among(connection, judged, r.c.query, queries))
    # SQLite keeps any text in a column of numbers: damage.
    sound = [(*pair, value) for *pair, value in stored if isinstance(value, float) and 0.0 <= value <= 1.0]
    rewarded = sorted({document for _, document, *_ in sound})
    with_vectors = select(d.c.id, d.c.name, d.c.text, v.c.vector, v.c.checksum).join(
        v, and_(v.c.document == d.c.id, v.c.embedder == embedder)
    )
    rows = rows_among(connection, with_vectors, d.c.id, rewarded)
    documents = {row.id: row for row in rows if checksum(row.vector) == row.checksum}
    rewards: dict[int, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for query, document, source, value in sound:
        if document in documents:
            rewards[query][source].append((document, value))
    damaged = {"document vectors": len(rewarded) - len(documents), "rewards": len(stored) - len(sound)}
    return documents, rewards, damaged


def _matrix(vectors: Sequence[bytes]) -> np.ndarray[Any, np.dtype[np.float32]]:
    if len(sizes := sorted({len(vector) for vector in vectors})) > 1 or sizes[0] % 4:
        raise StoreError(f"vectors: expected those of one embedder to have one width, got {sizes} bytes (damaged)")
    return np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1).astype(np.float32, copy=False)
