"""Deleting queries that were observed, and everything that may have been learned from them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches

from sqlalchemy import ColumnElement, Connection, exists, func, select

from tttembed_rag.errors import InputError
from tttembed_rag.stores import leasing, schema
from tttembed_rag.stores.log.due import mark_due
from tttembed_rag.stores.log.observing import EVERYTHING, document_id, forgotten_id, source_id, update_progress
from tttembed_rag.stores.log.sources import take_back
from tttembed_rag.stores.records import Forgotten
from tttembed_rag.stores.rows import id_of, ids_of, in_parts, insert
from tttembed_rag.stores.versions.audittrail import write_line
from tttembed_rag.stores.versions.registry import announce
from tttembed_rag.stores.work.states import DERIVED, MEMORY, REMEMBERED

# The action of an expiry in the audit trail.
_EXPIRE = "expire"
# Names of sources that a name without rewards is compared with, at most.
_COMPARED = 10_000


def forget_queries(
    connection: Connection, salt: bytes, *, tenant: str, names: Sequence[str] | None, by: str, now: float
) -> Forgotten:
    """Delete the queries with the ids *names*, or (None) all of a tenant, and every version that may know of them.

    Queries that were served until *now* and are written later are left out: see `observing.write_entries`.
    """
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    q = schema.queries
    chosen = select(q.c.id).where(q.c.tenant == owner).order_by(q.c.id)
    if names is not None:
        chosen = chosen.where(q.c.name.in_(names))
    numbers = connection.execute(chosen).scalars().all()
    pairs, rewards, _ = _delete_queries(connection, numbers)
    of_tenant = schema.documents.c.tenant == owner
    # Also documents that a query was shown before it was shown too many others: no pair tells of them any more.
    documents = _delete_documents(connection, of_tenant if names is None else of_tenant & _unseen())
    versions = _unlearned(connection, salt, tenant, names, now, gone=bool(numbers))
    gone = Forgotten(len(numbers), documents, pairs, rewards, versions)
    what = "all of the tenant" if names is None else "a query"
    write_line(connection, by, "forget", f"{what}: {gone.queries} queries, {gone.versions} versions", tenant)
    return gone


def forget_source(
    connection: Connection, salt: bytes, *, tenant: str, names: Sequence[str] | None, unseen: bool, by: str, now: float
) -> Forgotten:
    """Delete what a source with one of *names* said of a tenant's queries, and every version that may know of it.

    What it said until *now* and is written later is left out: see `observing.write_entries`.

    Raises:
        InputError: There is no reward of it, it was not forgotten before, and it is not allowed to be *unseen*; nothing
            was deleted.
    """
    owner, names = id_of(connection, schema.tenants, tenant), names or ()
    q, s = schema.queries, schema.source_rewards
    mine = select(s.c.query, s.c.judge, s.c.document).join(q, q.c.id == s.c.query)
    rows = connection.execute(mine.where(q.c.tenant == owner, s.c.source.in_(names))).all()
    ids = [source_id(name) for name in names]
    if not (rows or unseen or _forgotten_before(connection, salt, owner, ids)):
        near = _near(connection, owner, names[0])
        raise InputError(
            f"source: expected one that has rewarded queries of tenant {tenant!r}, got {names[0]!r}{near}; nothing was "
            "deleted; `unseen` allows one without rewards, and deletes all versions of the tenant"
        )
    by_judge: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for query, judge, document in rows:
        by_judge[judge].add((query, document))
    for judge, pairs in sorted(by_judge.items()):
        take_back(connection, judge, pairs, names)
    update_progress(connection, sorted({query for query, _, _ in rows}))
    # Versions may have learned from rewards of an unseen source that were dropped since: nothing tells of these now.
    versions = _unlearned(connection, salt, tenant, ids, now, gone=bool(rows) or unseen)
    gone = Forgotten(rewards=len(rows), versions=versions)
    write_line(connection, by, "forget", f"a source: {gone.rewards} rewards, {gone.versions} versions", tenant)
    return gone


def forget_document(
    connection: Connection, salt: bytes, *, tenant: str, names: Sequence[str] | None, by: str, now: float
) -> Forgotten:
    """Delete a tenant's document with one of *names*, and every version that may have learned from its rewards.

    What it was shown for until *now* and is written later is left out: see `observing.write_entries`.
    """
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    d, p, given = schema.documents.c, schema.pairs, schema.rewards
    which = (d.tenant == owner) & d.name.in_(names or ())
    numbers = connection.execute(select(d.id).where(which)).scalars().all()
    queries = connection.execute(select(p.c.query).where(p.c.document.in_(numbers)).distinct()).scalars().all()
    rewards = pairs = 0
    for part in in_parts(queries):
        for table in (schema.source_rewards, given, p):
            count = connection.execute(table.delete().where(table.c.query.in_(part), table.c.document.in_(numbers)))
            rewards += count.rowcount * (table is given)
            pairs += count.rowcount * (table is p)
    documents = _delete_documents(connection, which)
    update_progress(connection, queries)
    versions = _unlearned(connection, salt, tenant, [*map(document_id, names or ())], now, gone=bool(rewards))
    gone = Forgotten(documents=documents, pairs=pairs, rewards=rewards, versions=versions)
    write_line(connection, by, "forget", f"a document: {gone.rewards} rewards, {gone.versions} versions", tenant)
    return gone


def _forgotten_before(connection: Connection, salt: bytes, owner: int | None, names: Sequence[str]) -> bool:
    """Whether one of the ids *names* of a tenant was forgotten already."""
    f = schema.forgotten.c
    before = exists().where(f.tenant == owner, f.query.in_([forgotten_id(salt, name) for name in names]))
    return bool(connection.execute(select(before)).scalar())


def _near(connection: Connection, owner: int | None, name: str) -> str:
    """The sources of a tenant that are called almost so, in words; empty where there are none."""
    q, s = schema.queries, schema.source_rewards
    named = select(s.c.source).distinct().join(q, q.c.id == s.c.query).where(q.c.tenant == owner, s.c.source > "")
    near = get_close_matches(name, connection.execute(named.limit(_COMPARED)).scalars().all())
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def _unlearned(
    connection: Connection, salt: bytes, tenant: str, names: Sequence[str] | None, now: float, *, gone: bool
) -> int:
    """Write down what of *tenant* was forgotten *now*, and delete the versions that may know of it; gives how many.

    Those are none where nothing is *gone*: neither was anything deleted, nor may versions have learned from what is not
    there any more. *names* are the ids that were forgotten; None is all of the tenant.
    """
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    for query in [EVERYTHING] if names is None else [forgotten_id(salt, name) for name in names]:
        made = insert(connection, schema.forgotten).values(tenant=owner, query=query, at=now)
        connection.execute(made.on_conflict_do_update(index_elements=["tenant", "query"], set_={"at": now}))
    shared = select(schema.tenants.c.shared_once).where(schema.tenants.c.id == owner)
    learners = {tenant, ""} if connection.execute(shared).scalar_one() else {tenant}
    if not (gone or names is None or _has_expired(connection, learners)):
        return 0
    return unlearn(connection, learners)


def unlearn(connection: Connection, learners: AbstractSet[str]) -> int:
    """Delete what was learned for *learners*, and stop what is being learned; gives how many versions."""
    owners = ids_of(connection, schema.tenants, learners)
    versions = sum(_unlearn(connection, tenant, owner) for tenant, owner in owners.items())
    leasing.revoke(connection, learners)
    mark_due(connection, owners.values())
    return versions


def expire_queries(connection: Connection, before: float, *, by: str) -> int:
    """Delete the queries last served before a Unix second, and paid answers as old."""
    q = schema.queries
    rows = connection.execute(select(q.c.id, q.c.tenant).where(q.c.last_at < before).order_by(q.c.id)).all()
    old = [row.id for row in rows]
    _, _, shown = _delete_queries(connection, old)
    for part in in_parts(sorted(shown)):
        _delete_documents(connection, schema.documents.c.id.in_(part) & _unseen())
    for table in (schema.answers, schema.forgotten):
        connection.execute(table.delete().where(table.c.at < before))
    if old:
        mark_due(connection, {row.tenant for row in rows})
        write_line(connection, by, _EXPIRE, f"{len(old)} queries last served before {before:.0f}", None)
    return len(old)


def _delete_queries(connection: Connection, numbers: Sequence[int]) -> tuple[int, int, set[int]]:
    """Delete queries by id with their pairs, rewards and vectors.

    Returns:
        The number of pairs, the number of rewards, and the ids of the documents that the queries were shown.
    """
    pairs, given = schema.pairs, schema.rewards.c
    gone = rewards = 0
    shown = set[int]()
    for part in in_parts(numbers):
        for table in (schema.progress, schema.query_vectors, schema.source_rewards):
            connection.execute(table.delete().where(table.c.query.in_(part)))
        spoken = select(func.count(given.value)).where(given.query.in_(part))
        rewards += connection.execute(spoken).scalar_one()
        connection.execute(schema.rewards.delete().where(given.query.in_(part)))
        shown.update(connection.execute(select(pairs.c.document).where(pairs.c.query.in_(part)).distinct()).scalars())
        gone += connection.execute(pairs.delete().where(pairs.c.query.in_(part))).rowcount
        connection.execute(schema.queries.delete().where(schema.queries.c.id.in_(part)))
    return gone, rewards, shown


def _unseen() -> ColumnElement[bool]:
    """Documents that no query is shown any more."""
    return ~exists().where(schema.pairs.c.document == schema.documents.c.id)


def _delete_documents(connection: Connection, which: ColumnElement[bool]) -> int:
    d, v = schema.documents, schema.document_vectors
    connection.execute(v.delete().where(v.c.document.in_(select(d.c.id).where(which))))
    return connection.execute(d.delete().where(which)).rowcount


def _has_expired(connection: Connection, learners: AbstractSet[str]) -> bool:
    """Whether versions of *learners* may have learned from queries that have expired since: nothing tells which."""
    v, t, a = schema.versions.c, schema.tenants.c, schema.audit.c
    oldest = select(func.min(v.at)).join(schema.tenants, t.id == v.tenant).where(t.name.in_(learners)).scalar_subquery()
    expired = exists().where(a.action == _EXPIRE, a.tenant.is_(None), a.at >= oldest)
    return bool(connection.execute(select(expired)).scalar())


def _unlearn(connection: Connection, tenant: str, owner: int) -> int:
    """Delete every version of a tenant, the states derived from its rewards, and the details of its audit lines."""
    tenants, states = schema.tenants, schema.states
    connection.execute(tenants.update().where(tenants.c.id == owner).values(live=None))
    connection.execute(states.delete().where(states.c.tenant == owner, states.c.name.in_(DERIVED)))
    memory = (states.c.tenant == owner) & (states.c.name == MEMORY)
    if (text := connection.execute(select(states.c.value).where(memory)).scalar()) is not None:
        kept = {name: value for name, value in json.loads(text).items() if name in REMEMBERED}
        connection.execute(states.update().where(memory).values(value=json.dumps(kept)))
    lines = schema.audit  # their details say why versions were published, and name tasks and queries
    connection.execute(lines.update().where(lines.c.tenant == tenant).values(detail=""))
    versions = schema.versions
    gone = connection.execute(versions.delete().where(versions.c.tenant == owner)).rowcount
    announce(connection, tenant)
    return gone
