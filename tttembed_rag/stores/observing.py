"""Writing what was served and what was said of it.

On PostgreSQL many do so at once. Everybody takes rows in one order, so that no two wait for each other: tenants,
embedders and judges, then documents, then queries, then what belongs to these; those of a kind in the order of their
names, documents that are there already in that of their ids.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby

from numpy.typing import ArrayLike
from sqlalchemy import ColumnElement, Connection, and_, case, collate, func, or_, select, true

from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.observations import Served
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import digest
from tttembed_rag.stores.records import checked_name, checked_reward, checked_vectors, checksum, cleaned
from tttembed_rag.stores.rows import found, ids_of, in_parts, insert, insert_all

# A query by tenant, task and id; a document by tenant and id.
QueryKey = tuple[str, str, str]
_DocumentKey = tuple[str, str]
# A vector with its argument's name, and where it goes.
_Given = tuple[str, ArrayLike, dict[str, bytes], str]

# In `schema.forgotten`, for all queries of a tenant.
EVERYTHING = b""


@dataclass(slots=True)
class _Document:
    text: str | None = None
    vectors: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Query:
    embedder: str
    at: float
    first: float
    text: str | None = None
    seen: int = 0
    vectors: dict[str, bytes] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)


class Batch:
    """Served queries, checked and merged: each query and each document once.

    Args:
        served: What was served.

        judge: Whose rewards the candidates carry; empty where they carry none.

    Raises:
        InputError: An id, vector or reward is not what was expected; the message names it.
    """

    def __init__(self, served: Iterable[Served], judge: str) -> None:
        self.judge = judge
        self.queries: dict[QueryKey, _Query] = {}
        self.documents: dict[_DocumentKey, _Document] = {}
        given: list[_Given] = []
        for one in served:
            self._add(one, given)
        checked = checked_vectors([(argument, vector) for argument, vector, _, _ in given])
        for (_, _, vectors, embedder), vector in zip(given, checked, strict=True):
            vectors[embedder] = vector

    def _add(self, one: Served, given: list[_Given]) -> None:
        """Merge *one*, but leave its vectors in *given*: all of a batch are checked at once."""
        tenant = checked_name("tenant", one.tenant, empty=True)
        key = (tenant, checked_name("task", one.task), checked_name("query_id", one.query_id))
        embedder = checked_name("embedder", one.embedder, empty=True)
        at = time.time() if one.at is None else float(one.at)
        if not math.isfinite(at):
            raise InputError(f"at: expected Unix seconds, got {at}")
        query = self.queries.setdefault(key, _Query(embedder, at, at))
        query.seen += 1
        query.first = min(query.first, at)
        if at >= query.at:
            query.at, query.embedder = at, embedder
        if one.query is not None:
            query.text = cleaned(one.query)
        if one.vector is not None:
            given.append(("vector", one.vector, query.vectors, embedder))
        for place, candidate in enumerate(one.candidates):
            doc_id = checked_name("doc_id", candidate.doc_id)
            query.places.setdefault(doc_id, place)
            if (document := self.documents.get((tenant, doc_id))) is None:
                document = self.documents[tenant, doc_id] = _Document()
            if candidate.text is not None:
                document.text = cleaned(candidate.text)
            if candidate.vector is not None:
                given.append(("candidates", candidate.vector, document.vectors, embedder))
            if candidate.reward is not None:
                if not self.judge:
                    raise InputError("judge: expected the fingerprint of who gave the rewards, got none")
                query.rewards[doc_id] = checked_reward("reward", candidate.reward)

    def without_texts(self, anonymous: Callable[[str], str]) -> None:
        """Drop every text; an id that is one becomes what *anonymous* makes of it."""
        named = {
            (tenant, name): anonymous(name) if name == document.text else name
            for (tenant, name), document in self.documents.items()
        }
        for (tenant, _, _), query in self.queries.items():
            query.places = {named[tenant, name]: place for name, place in query.places.items()}
            query.rewards = {named[tenant, name]: reward for name, reward in query.rewards.items()}
        self.documents = {(key[0], named[key]): document for key, document in self.documents.items()}
        self.queries = {
            (tenant, task, anonymous(name) if name == query.text else name): query
            for (tenant, task, name), query in self.queries.items()
        }
        for query in self.queries.values():
            query.text = None
        for document in self.documents.values():
            document.text = None

    def leave_out(self, queries: AbstractSet[QueryKey]) -> None:
        """Drop *queries*, and the documents that no other query was shown."""
        self.queries = {key: query for key, query in self.queries.items() if key not in queries}
        shown = {(tenant, name) for (tenant, _, _), query in self.queries.items() for name in query.places}
        self.documents = {key: document for key, document in self.documents.items() if key in shown}


def hashed(salt: bytes, query_id: str) -> bytes:
    """What stands for a query id that was forgotten."""
    return digest(query_id.encode("utf-8", "surrogatepass"), key=salt)


def observe(connection: Connection, batch: Batch, salt: bytes) -> int:
    """Write a batch without what was forgotten since it was served; returns how often its queries were served."""
    tenants = ids_of(connection, schema.tenants, (tenant for tenant, _, _ in batch.queries))
    if late := _forgotten(connection, batch, tenants, salt):
        batch.leave_out(late)
    if not batch.queries:
        return 0
    embedders = _embedders(connection, batch)
    rewarded = any(query.rewards for query in batch.queries.values())
    judges = ids_of(connection, schema.judges, [batch.judge] if rewarded else [])
    documents, changed = _write_documents(connection, batch, tenants, embedders)
    others = _shown(connection, changed)
    queries = _write_queries(connection, batch, tenants, embedders, others)
    made = [
        {"query": queries[key], "document": documents[key[0], doc_id], "place": place}
        for key, query in batch.queries.items()
        for doc_id, place in query.places.items()
    ]
    insert_all(connection, schema.pairs, made)
    given = [
        (queries[key], documents[key[0], doc_id], reward)
        for key, query in batch.queries.items()
        for doc_id, reward in query.rewards.items()
    ]
    if given:
        write_rewards(connection, judges[batch.judge], given)
    update_progress(connection, sorted({*queries.values(), *others.values()}))
    return sum(query.seen for query in batch.queries.values())


def reward(connection: Connection, judge: str, rewards: Mapping[QueryKey, Mapping[str, float]]) -> int:
    """Write verdicts on pairs that are there; returns how many those are."""
    number = ids_of(connection, schema.judges, [judge])[judge]
    queries, pairs = schema.queries, schema.pairs
    given, touched = [], []
    for key in sorted(rewards):
        tenant, task, query_id = key
        wanted = rewards[key]
        called = (schema.tenants.c.name == tenant) & (queries.c.task == task) & (queries.c.name == query_id)
        if not (there := _held(connection, called)):
            continue
        (query,) = there
        touched.append(query)
        for some in in_parts(list(wanted)):
            shown = connection.execute(
                select(pairs.c.document, schema.documents.c.name)
                .join(schema.documents, schema.documents.c.id == pairs.c.document)
                .where(pairs.c.query == query, schema.documents.c.name.in_(some))
            )
            given += [(query, document, checked_reward("rewards", wanted[name])) for document, name in shown]
    write_rewards(connection, number, given)
    update_progress(connection, touched)
    return len(given)


def reward_by_id(
    connection: Connection, judge: str, rewards: Mapping[int, Mapping[int, float | None]], *, tenant: int | None
) -> int:
    """The same by the ids of rows of one tenant; None is a pair that the judge declined."""
    number = ids_of(connection, schema.judges, [judge])[judge]
    queries, pairs = schema.queries, schema.pairs
    given: list[tuple[int, int, float | None]] = []
    touched: list[int] = []
    for some in in_parts(sorted(rewards)):
        there = _held(connection, queries.c.id.in_(some) & (queries.c.tenant == tenant))
        touched += there
        shown = connection.execute(select(pairs.c.query, pairs.c.document).where(pairs.c.query.in_(there)))
        given += [
            (query, document, rewards[query][document]) for query, document in shown if document in rewards[query]
        ]
    write_rewards(connection, number, given)
    update_progress(connection, touched)
    return len(given)


def write_rewards(connection: Connection, judge: int, given: Sequence[tuple[int, int, float | None]]) -> None:
    """Write (query, document, reward) of one judge; a new verdict replaces the old one."""
    rows = [{"query": query, "judge": judge, "document": document, "value": value} for query, document, value in given]
    insert_all(connection, schema.rewards, rows, replace=True)


def update_progress(connection: Connection, queries: Sequence[int], *, judge: int | None = None) -> None:
    """Count again what was said of *queries* and what waits, for every judge that asks or has spoken."""
    q, p, d, r, j = schema.queries, schema.pairs, schema.documents, schema.rewards, schema.judges
    legible = and_(q.c.text.is_not(None), d.c.text.is_not(None))
    mine = true() if judge is None else j.c.id == judge
    for some in in_parts(queries):
        old = schema.progress.delete().where(schema.progress.c.query.in_(some))
        connection.execute(old if judge is None else old.where(schema.progress.c.judge == judge))
        waits = and_(legible, r.c.query.is_(None), j.c.asks)
        counted = (
            select(
                q.c.id,
                j.c.id,
                q.c.tenant,
                func.count(r.c.value),
                func.sum(case((waits, 1), else_=0)),
                q.c.last_at,
            )
            .select_from(
                q.join(p, p.c.query == q.c.id)
                .join(d, d.c.id == p.c.document)
                .join(j, mine)
                .outerjoin(r, and_(r.c.query == q.c.id, r.c.judge == j.c.id, r.c.document == p.c.document))
            )
            .where(q.c.id.in_(some), or_(r.c.query.is_not(None), waits))
            .group_by(q.c.id, j.c.id, q.c.tenant, q.c.last_at)
        )
        columns = ["query", "judge", "tenant", "rewards", "waiting", "at"]
        connection.execute(schema.progress.insert().from_select(columns, counted))


def _forgotten(connection: Connection, batch: Batch, tenants: Mapping[str, int], salt: bytes) -> set[QueryKey]:
    """The queries of a batch that were served, at least once, before they were forgotten."""
    table = schema.forgotten
    first = min((query.first for query in batch.queries.values()), default=0.0)
    names = {number: name for name, number in tenants.items()}
    when: dict[tuple[str, bytes], float] = {}
    for some in in_parts(list(names)):
        since = select(table.c.tenant, table.c.query, table.c.at).where(table.c.tenant.in_(some), table.c.at >= first)
        when |= {(names[tenant], bytes(query)): at for tenant, query, at in connection.execute(since)}
    if not when:
        return set()

    def is_late(tenant: str, name: str, at: float) -> bool:
        return any(at <= when.get((tenant, query), -math.inf) for query in (EVERYTHING, hashed(salt, name)))

    return {key for key, query in batch.queries.items() if is_late(key[0], key[2], query.first)}


def _embedders(connection: Connection, batch: Batch) -> dict[str, int]:
    """The batch's embedders with their ids; vectors of one embedder have one width."""
    widths: dict[str, set[int]] = defaultdict(set)
    for vectors in (entry.vectors for entries in (batch.queries, batch.documents) for entry in entries.values()):
        for embedder, vector in vectors.items():
            widths[embedder].add(len(vector) // 4)
    known: dict[str, int] = {}
    for embedder in sorted(widths):
        width = min(widths[embedder])
        known |= ids_of(connection, schema.embedders, [embedder], width=width)
        expected = connection.execute(
            select(schema.embedders.c.width).where(schema.embedders.c.name == embedder)
        ).scalar_one()
        if other := widths[embedder] - {expected}:
            raise VectorError(
                f"vector: expected width {expected} as of all vectors of embedder {embedder!r}, got {min(other)}"
            )
    return known


def _write_queries(
    connection: Connection,
    batch: Batch,
    tenants: Mapping[str, int],
    embedders: Mapping[str, int],
    others: Mapping[QueryKey, int],
) -> dict[QueryKey, int]:
    """The queries with their ids; no other writer changes them, nor the *others*, until we are done."""
    table = schema.queries
    made = insert(connection, table)
    newer = made.excluded.last_at >= table.c.last_at
    made = made.on_conflict_do_update(
        index_elements=["tenant", "task", "name"],
        set_={
            "text": func.coalesce(made.excluded.text, table.c.text),
            "embedder": case((newer, func.coalesce(made.excluded.embedder, table.c.embedder)), else_=table.c.embedder),
            "seen": table.c.seen + made.excluded.seen,
            "first_at": case(
                (made.excluded.first_at < table.c.first_at, made.excluded.first_at), else_=table.c.first_at
            ),
            "last_at": case((newer, made.excluded.last_at), else_=table.c.last_at),
        },
    ).returning(table.c.id, table.c.tenant, table.c.task, table.c.name)
    names = {number: name for name, number in tenants.items()}
    ids: dict[QueryKey, int] = {}
    for mine, keys in groupby(sorted({*batch.queries, *others}), batch.queries.__contains__):
        if not mine:
            for some in in_parts([others[key] for key in keys]):
                _held(connection, table.c.id.in_(some))
            continue
        rows = [
            {
                "tenant": tenants[tenant],
                "task": task,
                "name": name,
                "text": query.text,
                "embedder": embedders.get(query.embedder),
                "seen": query.seen,
                "first_at": query.first,
                "last_at": query.at,
            }
            for tenant, task, name in keys
            for query in [batch.queries[tenant, task, name]]
        ]
        ids |= {(names[tenant], task, name): number for number, tenant, task, name in connection.execute(made, rows)}
    own = [
        {"query": ids[key], "embedder": embedders[embedder], "vector": vector, "checksum": checksum(vector)}
        for key, query in batch.queries.items()
        for embedder, vector in query.vectors.items()
    ]
    insert_all(connection, schema.query_vectors, own, replace=True)
    return ids


def _write_documents(
    connection: Connection, batch: Batch, tenants: Mapping[str, int], embedders: Mapping[str, int]
) -> tuple[dict[_DocumentKey, int], list[int]]:
    """The documents with their ids, and the ids of those that had no text and have one now.

    Most are known and unchanged, and cost no write.
    """
    table, vectors = schema.documents, schema.document_vectors
    ids: dict[_DocumentKey, int] = {}
    changed: list[int] = []
    for tenant, number in sorted(tenants.items()):
        mine = {name: document for (owner, name), document in sorted(batch.documents.items()) if owner == tenant}
        texts = _known_documents(connection, number, list(mine))
        if missing := [name for name in mine if name not in texts]:
            rows = [{"tenant": number, "name": name, "text": mine[name].text} for name in missing]
            insert_all(connection, table, rows)
            texts |= _known_documents(connection, number, missing)
        if connection.dialect.name == "postgresql":  # the only one where another writes at the same time
            texts |= _held_documents(connection, texts, mine)
        ids |= {(tenant, name): known for name, (known, _) in texts.items()}
        for name, document in mine.items():
            known, text = texts[name]
            if document.text not in (None, text):
                connection.execute(table.update().where(table.c.id == known).values(text=document.text))
                if text is None:
                    changed.append(known)
    wanted = {
        (ids[key], embedders[embedder]): (vector, checksum(vector))
        for key, document in batch.documents.items()
        for embedder, vector in document.vectors.items()
    }
    for some in in_parts(sorted({document for document, _ in wanted})):
        there = select(vectors.c.document, vectors.c.embedder, vectors.c.checksum).where(vectors.c.document.in_(some))
        for document, embedder, stored in connection.execute(there):
            if (new := wanted.get((document, embedder))) and new[1] == bytes(stored):
                del wanted[document, embedder]
    made = [
        {"document": document, "embedder": embedder, "vector": vector, "checksum": known}
        for (document, embedder), (vector, known) in sorted(wanted.items())
    ]
    insert_all(connection, vectors, made, replace=True)
    return ids, changed


def _known_documents(connection: Connection, tenant: int, names: Sequence[str]) -> dict[str, tuple[int, str | None]]:
    """Id and text by name of those that are there."""
    table = schema.documents
    rows = select(table.c.name, table.c.id, table.c.text).where(table.c.tenant == tenant)
    return {
        name: (number, text)
        for some in in_parts(names)
        for name, number, text in connection.execute(rows.where(table.c.name.in_(some)))
    }


def _held_documents(
    connection: Connection, known: Mapping[str, tuple[int, str | None]], wanted: Mapping[str, _Document]
) -> dict[str, tuple[int, str | None]]:
    """Those without a text, and those that are given another one: nobody else changes it until we are done."""
    table = schema.documents
    new = {number for name, (number, text) in known.items() if wanted[name].text not in (None, text)}
    bare = {number for number, text in known.values() if text is None}
    rows = select(table.c.name, table.c.id, table.c.text).order_by(table.c.id)
    rows = rows.with_for_update(read=not new, key_share=bool(new))
    return {
        name: (number, text)
        for some in in_parts(sorted(new | bare))
        for name, number, text in connection.execute(rows.where(table.c.id.in_(some)))
    }


def _shown(connection: Connection, documents: Sequence[int]) -> dict[QueryKey, int]:
    """The queries that were shown any of *documents*; whoever holds these lets nobody show them to others."""
    q, t, pairs = schema.queries, schema.tenants, schema.pairs
    keys = (
        select(t.c.name, q.c.task, q.c.name, q.c.id).join(t, t.c.id == q.c.tenant).join(pairs, pairs.c.query == q.c.id)
    )
    return {
        (tenant, task, name): number
        for some in in_parts(documents)
        for tenant, task, name, number in connection.execute(keys.where(pairs.c.document.in_(some)).distinct())
    }


def _held(connection: Connection, which: ColumnElement[bool]) -> Sequence[int]:
    """The ids of some queries, that no other writer changes until we are done.

    They are taken in the order of their keys, as by `_write_queries`.
    """
    q, t = schema.queries, schema.tenants
    order: Sequence[ColumnElement[str]] = (t.c.name, q.c.task, q.c.name)
    if connection.dialect.name == "postgresql":
        order = [collate(column, "C") for column in order]  # as Python sorts
    chosen = select(q.c.id).join(t, t.c.id == q.c.tenant).where(which).order_by(*order)
    return connection.execute(chosen.with_for_update(of=q, key_share=True)).scalars().all()


def start_asking(connection: Connection, judge: str) -> int:
    """The id of a judge that asks for work; what waits for it is counted from now on."""
    number = ids_of(connection, schema.judges, [judge])[judge]
    if not connection.execute(select(schema.judges.c.asks).where(schema.judges.c.id == number)).scalar_one():
        connection.execute(schema.judges.update().where(schema.judges.c.id == number).values(asks=True))
        everyone = connection.execute(select(schema.queries.c.id).order_by(schema.queries.c.id)).scalars().all()
        update_progress(connection, everyone, judge=number)
    return number


def judge_id(connection: Connection, judge: str) -> int | None:
    """The id of a judge that asked before; None where it has not."""
    number = found(connection, schema.judges, judge)
    asks = select(schema.judges.c.asks).where(schema.judges.c.id == number)
    return number if number is not None and connection.execute(asks).scalar() else None
