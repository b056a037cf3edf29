"""Deleting what was observed, and whatever was learned from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from sqlalchemy import ColumnElement, Connection, exists, func, select

from tttembed_rag.stores import leasing, schema
from tttembed_rag.stores.observing import EVERYTHING, hashed
from tttembed_rag.stores.publishing import bump
from tttembed_rag.stores.records import Forgotten
from tttembed_rag.stores.rows import found, ids_of, in_parts, insert, note
from tttembed_rag.stores.states import DERIVED, MEMORY, REMEMBERED

# In the audit.
_EXPIRE = "expire"


def forget(
    connection: Connection, salt: bytes, *, tenant: str, names: Sequence[str] | None, by: str, now: float
) -> Forgotten:
    """Delete the queries of some ids in all their tasks, or (None) all of a tenant, and what may have learned of them.

    What was served until *now* and is written later is left out: see `observing.observe`.
    """
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    q = schema.queries
    chosen = select(q.c.id).where(q.c.tenant == owner).order_by(q.c.id)
    if names is not None:
        chosen = chosen.where(q.c.name.in_(names))
    numbers = connection.execute(chosen).scalars().all()
    pairs, rewards, shown = _delete_queries(connection, numbers)
    if names is None:
        documents = _delete_documents(connection, schema.documents.c.tenant == owner)
    else:
        documents = _delete_orphans(connection, shown)
    for query in [EVERYTHING] if names is None else [hashed(salt, name) for name in names]:
        made = insert(connection, schema.forgotten).values(tenant=owner, query=query, at=now)
        connection.execute(made.on_conflict_do_update(index_elements=["tenant", "query"], set_={"at": now}))
    versions = 0
    shared = select(schema.tenants.c.shared_once).where(schema.tenants.c.id == owner)
    learners = {tenant, ""} if connection.execute(shared).scalar_one() else {tenant}
    if numbers or names is None or _has_expired(connection, learners):
        versions = sum(_unlearn(connection, learner) for learner in sorted(learners))
        leasing.end(connection)
    gone = Forgotten(len(numbers), documents, pairs, rewards, versions)
    what = "all of the tenant" if names is None else "a query"
    note(connection, by, "forget", f"{what}: {gone.queries} queries, {gone.versions} versions", tenant)
    return gone


def expire(connection: Connection, before: float, *, by: str) -> int:
    """Delete the queries last served before a Unix second, and paid answers as old."""
    q = schema.queries
    old = connection.execute(select(q.c.id).where(q.c.last_at < before).order_by(q.c.id)).scalars().all()
    _, _, shown = _delete_queries(connection, old)
    _delete_orphans(connection, shown)
    for table in (schema.answers, schema.forgotten):
        connection.execute(table.delete().where(table.c.at < before))
    if old:
        note(connection, by, _EXPIRE, f"{len(old)} queries last served before {before:.0f}", None)
    return len(old)


def _delete_queries(connection: Connection, numbers: Sequence[int]) -> tuple[int, int, set[int]]:
    """Delete queries by id with all that hangs on them; returns pairs, rewards, and the documents they were shown."""
    pairs, given = schema.pairs, schema.rewards.c
    gone = rewards = 0
    shown = set[int]()
    for some in in_parts(numbers):
        for table in (schema.progress, schema.query_vectors):
            connection.execute(table.delete().where(table.c.query.in_(some)))
        spoken = select(func.count(given.value)).where(given.query.in_(some))
        rewards += connection.execute(spoken).scalar_one()
        connection.execute(schema.rewards.delete().where(given.query.in_(some)))
        shown.update(connection.execute(select(pairs.c.document).where(pairs.c.query.in_(some)).distinct()).scalars())
        gone += connection.execute(pairs.delete().where(pairs.c.query.in_(some))).rowcount
        connection.execute(schema.queries.delete().where(schema.queries.c.id.in_(some)))
    return gone, rewards, shown


def _delete_orphans(connection: Connection, shown: AbstractSet[int]) -> int:
    """Delete those of the documents *shown* that are shown to no query any more."""
    number = schema.documents.c.id
    unseen = ~exists().where(schema.pairs.c.document == number)
    return sum(_delete_documents(connection, number.in_(some) & unseen) for some in in_parts(sorted(shown)))


def _delete_documents(connection: Connection, which: ColumnElement[bool]) -> int:
    d, v = schema.documents, schema.document_vectors
    connection.execute(v.delete().where(v.c.document.in_(select(d.c.id).where(which))))
    return connection.execute(d.delete().where(which)).rowcount


def _has_expired(connection: Connection, learners: AbstractSet[str]) -> bool:
    """Whether queries have expired that versions of *learners* may have learned from: nobody knows any more which."""
    v, t, a = schema.versions.c, schema.tenants.c, schema.audit.c
    oldest = select(func.min(v.at)).join(schema.tenants, t.id == v.tenant).where(t.name.in_(learners)).scalar_subquery()
    expired = exists().where(a.action == _EXPIRE, a.tenant.is_(None), a.at >= oldest)
    return bool(connection.execute(select(expired)).scalar())


def _unlearn(connection: Connection, tenant: str) -> int:
    """Delete every version of *tenant*, what was derived from its rewards, and what was told of either.

    Returns the versions.
    """
    owner = found(connection, schema.tenants, tenant)
    aliases, states = schema.aliases, schema.states
    connection.execute(aliases.delete().where(aliases.c.tenant == owner))
    connection.execute(states.delete().where(states.c.tenant == owner, states.c.name.in_(DERIVED)))
    memory = (states.c.tenant == owner) & (states.c.name == MEMORY)
    if (text := connection.execute(select(states.c.value).where(memory)).scalar()) is not None:
        kept = {name: value for name, value in json.loads(text).items() if name in REMEMBERED}
        connection.execute(states.update().where(memory).values(value=json.dumps(kept)))
    told = schema.audit  # why versions were published names tasks and queries
    connection.execute(told.update().where(told.c.tenant == tenant).values(detail=""))
    versions = schema.versions
    gone = connection.execute(versions.delete().where(versions.c.tenant == owner)).rowcount
    bump(connection, tenant)
    return gone
