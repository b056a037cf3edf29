"""Deleting what was observed, and whatever was learned from it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlalchemy import Connection, exists, func, or_, select

from tttembed_rag.judges.cache import pair_key
from tttembed_rag.stores import schema
from tttembed_rag.stores.answers import keyed
from tttembed_rag.stores.publishing import bump
from tttembed_rag.stores.records import Forgotten
from tttembed_rag.stores.rows import found, in_parts, note

# The worker's lease, and the state (a JSON object) with what it remembers of a tenant.
_WORKER = "worker"
# What it goes on remembering: models that changed, halts and rollbacks.
_REMEMBERED = ("since", "halted", "contradicted", "fresh")
# States that are derived from rewards.
_DERIVED = ("learned", "trial", "drift")


def forget(connection: Connection, salt: bytes, *, tenant: str, query_id: str | None, by: str) -> Forgotten:
    """Delete a query in all its tasks, or all of a tenant, and every version that may have learned from it."""
    owner = found(connection, schema.tenants, tenant)
    if owner is None:
        return Forgotten()
    q = schema.queries
    chosen = select(q.c.id).where(q.c.tenant == owner).order_by(q.c.id)
    if query_id is not None:
        chosen = chosen.where(q.c.name == query_id)
    numbers = connection.execute(chosen).scalars().all()
    _delete_answers(connection, salt, numbers)
    pairs, rewards = delete_queries(connection, numbers)
    documents = delete_orphans(connection, owner, everything=query_id is None)
    versions = 0
    if numbers or query_id is None:
        shared = select(schema.tenants.c.shared_once).where(schema.tenants.c.id == owner)
        learners = {tenant, ""} if connection.execute(shared).scalar_one() else {tenant}
        versions = sum(_unlearn(connection, learner) for learner in sorted(learners))
        _end_lease(connection)
    gone = Forgotten(len(numbers), documents, pairs, rewards, versions)
    what = "all of the tenant" if query_id is None else "a query"
    note(connection, by, "forget", f"{what}: {gone.queries} queries, {gone.versions} versions", tenant)
    return gone


def expire(connection: Connection, before: float, *, by: str) -> int:
    """Delete the queries last served before a Unix second, and paid answers as old."""
    q = schema.queries
    old = connection.execute(select(q.c.id).where(q.c.last_at < before).order_by(q.c.id)).scalars().all()
    owners = connection.execute(select(q.c.tenant).where(q.c.last_at < before).distinct()).scalars().all()
    delete_queries(connection, old)
    for owner in owners:
        delete_orphans(connection, owner)
    connection.execute(schema.answers.delete().where(schema.answers.c.at < before))
    if old:
        note(connection, by, "expire", f"{len(old)} queries last served before {before:.0f}", None)
    return len(old)


def delete_queries(connection: Connection, numbers: Sequence[int]) -> tuple[int, int]:
    """Delete queries by id with all that hangs on them; returns pairs and rewards."""
    pairs = rewards = 0
    for some in in_parts(numbers):
        for table in (schema.progress, schema.query_vectors):
            connection.execute(table.delete().where(table.c.query.in_(some)))
        given = schema.rewards.c
        spoken = select(func.count(given.value)).where(given.query.in_(some))
        rewards += connection.execute(spoken).scalar_one()
        connection.execute(schema.rewards.delete().where(given.query.in_(some)))
        pairs += connection.execute(schema.pairs.delete().where(schema.pairs.c.query.in_(some))).rowcount
        connection.execute(schema.queries.delete().where(schema.queries.c.id.in_(some)))
    return pairs, rewards


def delete_orphans(connection: Connection, tenant: int, *, everything: bool = False) -> int:
    """Delete the documents that no query of *tenant* was shown any more."""
    d, v = schema.documents, schema.document_vectors
    chosen = d.c.tenant == tenant
    if not everything:
        chosen = chosen & ~exists().where(schema.pairs.c.document == d.c.id)
    connection.execute(v.delete().where(v.c.document.in_(select(d.c.id).where(chosen))))
    return connection.execute(d.delete().where(chosen)).rowcount


def _unlearn(connection: Connection, tenant: str) -> int:
    """Delete every version of *tenant*, and what was derived from its rewards; returns the versions."""
    owner = found(connection, schema.tenants, tenant)
    aliases, states = schema.aliases, schema.states
    connection.execute(aliases.delete().where(aliases.c.tenant == owner))
    connection.execute(states.delete().where(states.c.tenant == owner, states.c.name.in_(_DERIVED)))
    memory = (states.c.tenant == owner) & (states.c.name == _WORKER)
    if (text := connection.execute(select(states.c.value).where(memory)).scalar()) is not None:
        kept = {name: value for name, value in json.loads(text).items() if name in _REMEMBERED}
        connection.execute(states.update().where(memory).values(value=json.dumps(kept)))
    versions = schema.versions
    gone = connection.execute(versions.delete().where(versions.c.tenant == owner)).rowcount
    bump(connection, tenant)
    return gone


def _end_lease(connection: Connection) -> None:
    """Take the lease from a worker that may be learning from what is gone: it cannot publish that any more."""
    table = schema.leases
    ended = {"owner": "", "token": table.c.token + 1, "expires": 0.0}
    connection.execute(table.update().where(table.c.name == _WORKER).values(**ended))


def _delete_answers(connection: Connection, salt: bytes, numbers: Sequence[int]) -> None:
    """Delete the paid answers to pairs of *numbers*, which lie under hashes of their texts."""
    q, p, d, j, a = schema.queries, schema.pairs, schema.documents, schema.judges, schema.answers
    judges = (
        connection.execute(select(j.c.name).where(or_(j.c.asks, j.c.id.in_(select(a.c.judge).distinct()))))
        .scalars()
        .all()
    )
    for some in in_parts(numbers):
        texts = connection.execute(
            select(q.c.text, d.c.text)
            .join(p, p.c.query == q.c.id)
            .join(d, d.c.id == p.c.document)
            .where(q.c.id.in_(some), q.c.text.is_not(None), d.c.text.is_not(None))
        ).all()
        keys = [keyed(salt, pair_key(judge, query, text)) for judge in judges for query, text in texts]
        for part in in_parts(keys):
            connection.execute(a.delete().where(a.c.pair.in_(part)))
