"""Deleting queries that were observed, and everything that may have been learned from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from sqlalchemy import ColumnElement, Connection, exists, func, select, union

from tttembed_rag.errors import InputError
from tttembed_store.sql import schema
from tttembed_store.sql.log.due import mark_due
from tttembed_store.sql.log.observing import EVERYTHING, Kind, forgotten_id, update_progress
from tttembed_store.sql.log.sources import HAS_SOURCE, take_back
from tttembed_store.sql.records import Forgotten
from tttembed_store.sql.rows import delete_among, ids_of, in_parts, insert_all, rows_among
from tttembed_store.sql.versions.changes import write_line
from tttembed_store.sql.versions.registry import announce
from tttembed_store.sql.work.states import DERIVED, MEMORY, REMEMBERED

# The action of an expiry in the log of changes.
_EXPIRE = "expire"
# Names of sources that a name without rewards is compared with, at most.
_COMPARED = 10_000


def forget(
    connection: Connection,
    salt: bytes,
    kind: Kind | None,
    things: Mapping[str, Sequence[str]],
    *,
    tenant: str,
    unseen: bool,
    by: str,
    now: float,
) -> Forgotten:
    """As `Store.forget`, of *things*, each with the names that it may have, or (None) of all of a tenant.

    What was served until *now* and is written later is left out: see `observing.write_entries`.
    """
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    names = [name for named in things.values() for name in named]
    keys = [EVERYTHING] if kind is None else [forgotten_id(salt, kind, name) for name in names]
    if kind == "source":
        for source in things if not unseen else ():
            _check_source(connection, salt, tenant, owner, source, things[source])
        rewards, queries = take_back(connection, owner, names)
        update_progress(connection, queries)
        gone = Forgotten(rewards=rewards)
    elif kind == "document":
        gone = _forget_documents(connection, owner, names)
    else:
        gone = _forget_queries(connection, owner, names if kind == "query" else None)
    rows = [{"tenant": owner, "query": key, "at": now} for key in keys]
    insert_all(connection, schema.forgotten, rows, replace=True)
    # Versions may have learned from rewards of an unseen source that were dropped since: nothing tells of these now.
    learned_from = kind is None or gone.queries or gone.rewards or (kind == "source" and unseen)
    if learned_from or _has_expired(connection, owner):
        gone = replace(gone, versions=_unlearn(connection, tenant, owner))
    many = f"{len(things)} {'queries' if kind == 'query' else f'{kind}s'}"
    what = "all of the tenant" if kind is None else f"a {kind}" if len(things) == 1 else many
    count = f"{gone.rewards} rewards" if kind in ("source", "document") else f"{gone.queries} queries"
    write_line(connection, by, "forget", f"{what}: {count}, {gone.versions} versions", tenant)
    return gone


def _forget_queries(connection: Connection, owner: int, names: Sequence[str] | None) -> Forgotten:
    """Delete the queries of a tenant with the ids *names*, or (None) all."""
    q = schema.queries
    chosen = select(q.c.id).where(q.c.tenant == owner).order_by(q.c.id)
    if names is None:
        numbers = connection.execute(chosen).scalars().all()
    else:
        numbers = [number for (number,) in rows_among(connection, chosen, q.c.name, names)]
    pairs, rewards, _ = _delete_queries(connection, numbers)
    of_tenant = schema.documents.c.tenant == owner
    # Also documents that a query was shown before it was shown too many others: no pair tells of them any more.
    documents = _delete_documents(connection, of_tenant if names is None else of_tenant & _unseen())
    return Forgotten(len(numbers), documents, pairs, rewards)


def _forget_documents(connection: Connection, owner: int, names: Sequence[str]) -> Forgotten:
    """Delete a tenant's documents with *names*."""
    d, p = schema.documents.c, schema.pairs
    counts, touched = Counter[str](), set[int]()
    for part in in_parts(names):
        which = (d.tenant == owner) & d.name.in_(part)
        numbers = connection.execute(select(d.id).where(which)).scalars().all()
        queries = connection.execute(select(p.c.query).where(p.c.document.in_(numbers)).distinct()).scalars().all()
        for table in (schema.rewards, p):
            of_part = table.c.document.in_(numbers)
            counts[table.name] += delete_among(connection, table, table.c.query, queries, of_part)
        counts["documents"] += _delete_documents(connection, which)
        touched.update(queries)
    update_progress(connection, sorted(touched))
    return Forgotten(documents=counts["documents"], pairs=counts["pairs"], rewards=counts["rewards"])


def _check_source(
    connection: Connection, salt: bytes, tenant: str, owner: int, source: str, names: Sequence[str]
) -> None:
    """Refuse a *source* that has none of *names* in the store, and was not forgotten before."""
    q, r, f = schema.queries, schema.rewards, schema.forgotten
    of_tenant = select(r.c.source).distinct().join(q, q.c.id == r.c.query).where(q.c.tenant == owner, HAS_SOURCE)
    keys = [forgotten_id(salt, "source", name) for name in names]
    before = select(f.c.at).where(f.c.tenant == owner, f.c.query.in_(keys))
    known = (statement.limit(1) for statement in (of_tenant.where(r.c.source.in_(names)), before))
    if any(connection.execute(statement).first() for statement in known):
        return
    near = get_close_matches(source, connection.execute(of_tenant.limit(_COMPARED)).scalars().all())
    meant = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
    raise InputError(
        f"source: expected one that has rewarded queries of tenant {tenant!r}, got {source!r}{meant}; nothing "
        "was deleted; `unseen` allows one without rewards, and deletes all versions of the tenant"
    )


def _unlearn(connection: Connection, tenant: str, owner: int) -> int:
    """Delete what was learned for *tenant*, and stop what is being learned; gives how many versions.

    With the versions go the states that were derived from rewards, and the details of its changes.
    """
    tenants, states, changes, versions = schema.tenants, schema.states, schema.changes, schema.versions
    connection.execute(tenants.update().where(tenants.c.id == owner).values(live=None))
    connection.execute(states.delete().where(states.c.tenant == owner, states.c.name.in_(DERIVED)))
    memory = (states.c.tenant == owner) & (states.c.name == MEMORY)
    if (text := connection.execute(select(states.c.value).where(memory)).scalar()) is not None:
        kept = {name: value for name, value in json.loads(text).items() if name in REMEMBERED}
        connection.execute(states.update().where(memory).values(value=json.dumps(kept)))
    # Details say why versions were published, and name tasks and queries.
    connection.execute(changes.update().where(changes.c.tenant == tenant).values(detail=""))
    count = connection.execute(versions.delete().where(versions.c.tenant == owner)).rowcount
    announce(connection, tenant)
    # Without its lease, what is being learned for the tenant now can no longer be published.
    connection.execute(schema.leases.delete().where(schema.leases.c.name == tenant))
    mark_due(connection, [owner])
    return count


def expire_queries(connection: Connection, before: float, *, by: str) -> int:
    """Delete the queries last served before a Unix second, and paid answers as old."""
    q = schema.queries
    rows = connection.execute(select(q.c.id, q.c.tenant).where(q.c.last_at < before).order_by(q.c.id)).all()
    old = [row.id for row in rows]
    _delete_with_documents(connection, old)
    for table in (schema.answers, schema.forgotten):
        connection.execute(table.delete().where(table.c.at < before))
    if old:
        mark_due(connection, {row.tenant for row in rows})
        write_line(connection, by, _EXPIRE, f"{len(old)} queries last served before {before:.0f}", None)
    return len(old)


def keep_newest(connection: Connection, most: int) -> None:
    """Delete all but *most* queries, the oldest of who has most first, and tenants of whom nothing is left.

    Those stay that are served something, or had something forgotten that may still come late.
    """
    q, t = schema.queries.c, schema.tenants
    turn = func.row_number().over(partition_by=q.tenant, order_by=(q.last_at.desc(), q.id.desc()))
    beyond = select(q.id).order_by(turn, q.last_at.desc(), q.id.desc()).offset(most)
    _delete_with_documents(connection, connection.execute(beyond).scalars().all())
    known = union(select(q.tenant), select(schema.forgotten.c.tenant))
    connection.execute(t.delete().where(t.c.name > "", t.c.live.is_(None), t.c.id.not_in(known)))


def _delete_with_documents(connection: Connection, numbers: Sequence[int]) -> None:
    """Delete queries by id, and the documents that only they were shown."""
    _, _, shown = _delete_queries(connection, numbers)
    for part in in_parts(sorted(shown)):
        _delete_documents(connection, schema.documents.c.id.in_(part) & _unseen())


def _delete_queries(connection: Connection, numbers: Sequence[int]) -> tuple[int, int, set[int]]:
    """Delete queries by id; gives how many pairs and rewards went with them, and the documents that they were shown."""
    p, r = schema.pairs, schema.rewards.c
    rewards = sum(count for (count,) in rows_among(connection, select(func.count(r.value)), r.query, numbers))
    shown = {document for (document,) in rows_among(connection, select(p.c.document).distinct(), p.c.query, numbers)}
    for table in (schema.progress, schema.query_vectors, schema.rewards):
        delete_among(connection, table, table.c.query, numbers)
    pairs = delete_among(connection, p, p.c.query, numbers)
    delete_among(connection, schema.queries, schema.queries.c.id, numbers)
    return pairs, rewards, shown


def _unseen() -> ColumnElement[bool]:
    """Documents that no query is shown any more."""
    return ~exists().where(schema.pairs.c.document == schema.documents.c.id)


def _delete_documents(connection: Connection, which: ColumnElement[bool]) -> int:
    d, v = schema.documents, schema.document_vectors
    connection.execute(v.delete().where(v.c.document.in_(select(d.c.id).where(which))))
    return connection.execute(d.delete().where(which)).rowcount


def _has_expired(connection: Connection, owner: int) -> bool:
    """Whether versions of a tenant may have learned from queries that have expired since: nothing tells which."""
    v, changes = schema.versions.c, schema.changes.c
    oldest = select(func.min(v.at)).where(v.tenant == owner).scalar_subquery()
    expired = exists().where(changes.action == _EXPIRE, changes.tenant.is_(None), changes.at >= oldest)
    return bool(connection.execute(select(expired)).scalar())
