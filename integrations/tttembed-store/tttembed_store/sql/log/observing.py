"""Writing what was served, and the rewards of it.

On PostgreSQL many transactions write at once. All of them lock rows in one order, so that no two wait for each other:
tenants, embedders and judges, then documents, then queries, then what belongs to these. Rows of one kind are locked in
the order of their names.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, Connection, Table, and_, bindparam, case, collate, func, or_, select, true

from tttembed_rag.rewards.observations import MAX_DEPTH, Served
from tttembed_store.sql import schema
from tttembed_store.sql.database import keyed_digest
from tttembed_store.sql.log.due import add_written, mark_due
from tttembed_store.sql.log.entries import DocumentKey, Entries, QueryKey, merged
from tttembed_store.sql.log.sources import Row, write_rewards
from tttembed_store.sql.records import AUDIT, checksum
from tttembed_store.sql.rows import (
    delete_among,
    embedder_id,
    id_of,
    ids_of,
    in_parts,
    insert_all,
    insert_in,
    rows_among,
)

# What every transaction asks, built once: of some queries, their pairs and owners; and of some names, the documents of
# one tenant.
_some: ColumnElement[Any] = bindparam("some_queries", expanding=True)
_p, _q, _r, _d = (table.c for table in (schema.pairs, schema.queries, schema.rewards, schema.documents))
_PAIRS = select(_p.query, _p.document, _p.recorded).where(_p.query.in_(_some))
_OWNERS = select(_q.id, _q.tenant).where(_q.id.in_(_some))
_DOCUMENTS = select(_d.name, _d.id, _d.text, _d.recorded).where(
    _d.tenant == bindparam("one_tenant"), _d.name.in_(bindparam("names", expanding=True))
)
_SPOKEN = select(_r.document, _r.source).where(_r.query == bindparam("one")).order_by(_r.at.desc(), _r.document.desc())
# Seconds that the clock of a host may be ahead of the database's.
_AHEAD = 300.0
# In `schema.forgotten`, the query that stands for all queries of a tenant.
EVERYTHING = b""
# The queries that were written, each with the rewards that were, as `merged` gives them.
Written: TypeAlias = dict[QueryKey, Mapping[tuple[str, str], object]]
# A document that was spoken of, and the source.
_Word: TypeAlias = tuple[int, str]
# What may be forgotten, and what its id there begins with: no name holds a NUL.
Kind = Literal["query", "source", "document"]
_BEGINS: dict[Kind, str] = {"query": "", "source": "\0", "document": "\0\0"}


def forgotten_id(salt: bytes, kind: Kind, name: str) -> bytes:
    """The bytes that stand for a query, a source or a document in `schema.forgotten`."""
    return keyed_digest(salt, f"{_BEGINS[kind]}{name}".encode("utf-8", "surrogatepass"))


def write_entries(connection: Connection, entries: Entries, salt: bytes, now: float) -> Written:
    """Write entries, but for what was forgotten since it was served."""
    tenants = ids_of(connection, schema.tenants, (tenant for tenant, _, _ in entries.queries))
    _leave_out_forgotten(connection, entries, tenants, salt)
    if not entries.queries:
        return {}
    shown = {key: merged(servings, recorded=entries.recorded) for key, servings in entries.queries.items()}
    keys = sorted({(key[0], doc_id) for key, (places, _) in shown.items() for doc_id in places})
    embedders = _embedders(connection, entries, keys)
    rewarded = any(rewards for _, rewards in shown.values())
    judges = ids_of(connection, schema.judges, [entries.judge] if rewarded else [])
    documents = _write_documents(connection, entries, keys, tenants, embedders)
    queries = _write_queries(connection, entries, tenants, embedders, now)
    there: dict[int, dict[int, bool]] = defaultdict(dict)
    for numbers in in_parts(sorted(queries.values())):
        for query, document, recorded in connection.execute(_PAIRS, {"some_queries": numbers}):
            there[query][document] = recorded
    written, pairs, rows = Written(), list[dict[str, int]](), list[Row]()
    for key, (places, rewards) in shown.items():
        query, number_of = queries[key], {name: documents[key[0], name] for name in places}
        before, new = there[query], dict.fromkeys(number_of.values(), entries.recorded)
        spoken = [(number_of[name], source) for name, source in rewards]
        room = _make_room(connection, query, before, new, spoken)
        pairs += [
            {"query": query, "document": number_of[name], "place": place, "recorded": entries.recorded}
            for name, place in places.items()
            if number_of[name] in room and entries.recorded > before.get(number_of[name], -1)
        ]
        written[key] = kept = {of: reward for of, reward in rewards.items() if number_of[of[0]] in room}
        rows += [(query, number_of[name], value, source, silent) for (name, source), (value, silent) in kept.items()]
    insert_all(connection, schema.pairs, pairs, replace=True)
    touched = sorted(queries.values())
    if rows:
        _write_rewards(connection, judges[entries.judge], rows, touched, now)
    else:
        update_progress(connection, touched)
    return written


def _make_room(
    connection: Connection, query: int, there: Mapping[int, bool], new: Mapping[int, bool], spoken: Iterable[_Word]
) -> Collection[int]:
    """The documents that a query, which is locked, keeps of those *there* and the *new* ones: `MAX_DEPTH` at most.

    What the application recorded, which each says, comes first, and the newest of that. Feedback has the rest of the
    room, in turns: the newest document of which each source has *spoken*, the second newest, and so on.
    """
    if len(room := there.keys() | new.keys()) > MAX_DEPTH:
        newest = [*new, *sorted(there, reverse=True)]  # ids rise with time
        own = dict.fromkeys(document for document in newest if new.get(document) or there.get(document))
        turns, of_source = dict[int, int](), Counter[str]()
        for document, source in dict.fromkeys([*spoken, *map(tuple, connection.execute(_SPOKEN, {"one": query}))]):
            if document not in own:
                turns[document] = min(turns.get(document, MAX_DEPTH), of_source[source])
                of_source[source] += 1
        room = set([*own, *sorted(turns, key=turns.__getitem__)][:MAX_DEPTH])
    for table in (schema.rewards, schema.pairs):
        delete_among(connection, table, table.c.document, there.keys() - room, table.c.query == query)
    return room


def reward_named(
    connection: Connection, judge: str, rewards: Mapping[QueryKey, Mapping[str, float]], source: str, now: float
) -> int:
    """Write the rewards of pairs that are there, by the names of queries and documents; gives how many those are."""
    q, d, t, p = schema.queries, schema.documents, schema.tenants, schema.pairs
    shown = select(p.c.query, p.c.document, d.c.name).join(q, q.c.id == p.c.query).join(t, t.c.id == q.c.tenant)
    shown = shown.join(d, d.c.id == p.c.document)
    there: dict[int, dict[int, float | None]] = defaultdict(dict)
    for (tenant, task, name), of_documents in sorted(rewards.items(), key=itemgetter(0)):
        of_query = shown.where(t.c.name == tenant, q.c.task == task, q.c.name == name)
        for query, document, doc_id in rows_among(connection, of_query, d.c.name, of_documents):
            there[query][document] = of_documents[doc_id]
    return reward_rows(connection, judge, there, source=source, now=now)


def reward_rows(
    connection: Connection,
    judge: str,
    rewards: Mapping[int, Mapping[int, float | None]],
    *,
    now: float,
    source: str = "",
    among: ColumnElement[bool] | None = None,
) -> int:
    """The same by the ids of rows, of queries *among* some; None is the reward of a pair that the judge declined."""
    number = ids_of(connection, schema.judges, [judge])[judge]
    q, p = schema.queries, schema.pairs
    there: list[Row] = []
    queries: list[int] = []
    for numbers in in_parts(list(rewards)):
        locked = _locked_queries(connection, q.c.id.in_(numbers) & (true() if among is None else among))
        queries += locked
        there += [
            (query, document, rewards[query][document], source, False)
            for query, document in connection.execute(select(p.c.query, p.c.document).where(p.c.query.in_(locked)))
            if document in rewards[query]
        ]
    _write_rewards(connection, number, there, queries, now)
    return len(there)


def _write_rewards(
    connection: Connection, judge: int, rewards: Sequence[Row], queries: Sequence[int], now: float
) -> None:
    """Write rewards that came *now*, and count again the progress of *queries*.

    A reward of the same source replaces the old one, and both count as a change. The queries are locked: nobody else
    writes rewards of theirs.
    """
    changed = Counter(write_rewards(connection, judge, rewards, now))
    changes = Counter[int]()
    for numbers in in_parts(sorted(changed)):
        for query, tenant in connection.execute(_OWNERS, {"some_queries": numbers}):
            changes[tenant] += changed[query]
    update_progress(connection, queries)
    add_written(connection, {(tenant, judge): count for tenant, count in changes.items()})  # last, as others wait
    if changes and judge == id_of(connection, schema.judges, AUDIT):  # every worker asks trusted labels
        mark_due(connection, changes)


def update_progress(connection: Connection, queries: Sequence[int]) -> None:
    """Count again the rewards and the waiting pairs of *queries*, for every judge that asks or has answered."""
    for numbers in in_parts(queries):
        for statement in _recount():
            connection.execute(statement, {"some_queries": numbers})


@cache
def _recount() -> tuple[Any, Any]:
    """The statements that delete the progress of some queries, and that count it."""
    q, p, d, r, j = schema.queries, schema.pairs, schema.documents, schema.rewards, schema.judges
    progress = schema.progress
    waits = and_(p.c.recorded, q.c.text.is_not(None), d.c.text.is_not(None), r.c.query.is_(None), j.c.asks)
    counted = (
        select(q.c.id, j.c.id, q.c.tenant, func.count(r.c.value), func.sum(case((waits, 1), else_=0)), q.c.last_at)
        .select_from(
            q.join(p, p.c.query == q.c.id)
            .join(d, d.c.id == p.c.document)
            .join(j, true())
            .outerjoin(r, and_(r.c.query == q.c.id, r.c.judge == j.c.id, r.c.document == p.c.document))
        )
        .where(q.c.id.in_(_some), or_(r.c.query.is_not(None), waits))
        .group_by(q.c.id, j.c.id, q.c.tenant, q.c.last_at)
    )
    columns = ["query", "judge", "tenant", "rewards", "waiting", "at"]
    return progress.delete().where(progress.c.query.in_(_some)), progress.insert().from_select(columns, counted)


def _leave_out_forgotten(connection: Connection, entries: Entries, tenants: Mapping[str, int], salt: bytes) -> None:
    """Drop the queries of *entries* that were served, at least once, before they were forgotten.

    Of the others, documents that were forgotten since are dropped, and rewards by such sources.
    """
    table = schema.forgotten
    first = {key: min(_times(servings)) for key, servings in entries.queries.items()}
    least = min(first.values(), default=0.0)
    names = {number: name for name, number in tenants.items()}
    when: dict[tuple[str, bytes], float] = {}
    since = select(table.c.tenant, table.c.query, table.c.at).where(table.c.at >= least)
    for tenant, query, at in rows_among(connection, since, table.c.tenant, names):
        when[names[tenant], bytes(query)] = at
    if not when:
        return

    def is_late(kind: Kind, tenant: str, name: str, at: float) -> bool:
        ids = EVERYTHING, forgotten_id(salt, kind, name)
        return any(at <= when.get((tenant, digest), -math.inf) for digest in ids)

    def kept(served: Served, at: float) -> Served:
        candidates = [
            candidate for candidate in served.candidates if not is_late("document", served.tenant, candidate.doc_id, at)
        ]
        if served.source and is_late("source", served.tenant, served.source, at):
            candidates = [replace(candidate, reward=None) for candidate in candidates]
        return replace(served, candidates=candidates)

    entries.queries = {
        key: [kept(served, first[key]) for served in servings]
        for key, servings in entries.queries.items()
        if not is_late("query", key[0], key[2], first[key])
    }


def _times(servings: Sequence[Served]) -> list[float]:
    return [served.at for served in servings if served.at is not None]


def _embedders(connection: Connection, entries: Entries, keys: Collection[DocumentKey]) -> dict[str, int]:
    """The embedders of queries, and of documents with some *keys*, with their ids; vectors of each have one width."""
    shown, queries = set(keys), entries.queries
    widths = {(name, len(vector) // 4) for (key, name), vector in entries.query_vectors.items() if key in queries}
    widths |= {(name, len(vector) // 4) for (key, name), vector in entries.document_vectors.items() if key in shown}
    return {embedder: embedder_id(connection, embedder, width) for embedder, width in sorted(widths)}


def _write_queries(
    connection: Connection, entries: Entries, tenants: Mapping[str, int], embedders: Mapping[str, int], now: float
) -> dict[QueryKey, int]:
    """The queries with their ids; they stay locked until the transaction ends."""
    rows: list[dict[str, Any]] = []
    for (tenant, task, name), servings in sorted(entries.queries.items(), key=itemgetter(0)):
        last = max(_times(servings))
        rows.append(
            {
                "tenant": tenants[tenant],
                "task": task,
                "name": name,
                "text": next((served.query for served in reversed(servings) if served.query), None),
                "embedder": embedders.get([served.embedder for served in servings if served.at == last][-1]),
                "seen": len(servings),
                "last_at": min(last, now + _AHEAD),  # the clock of the host that served it may be ahead
                "recorded": entries.recorded,
            }
        )
    names = {number: name for name, number in tenants.items()}
    written = connection.execute(_query_upsert(connection.dialect.name), rows).all()
    ids = {(names[row.tenant], row.task, row.name): row.id for row in written}
    texts = {ids[names[row["tenant"]], row["task"], row["name"]]: row["text"] for row in rows}
    _renew_texts(connection, schema.queries, written, texts, recorded=entries.recorded)
    own = [
        {"query": ids[key], "embedder": embedders[embedder], "vector": vector, "checksum": checksum(vector)}
        for (key, embedder), vector in entries.query_vectors.items()
        if key in ids
    ]
    insert_all(connection, schema.query_vectors, own, replace=True)
    return ids


@cache
def _query_upsert(dialect: str) -> Any:
    """The statement that writes queries and merges those that are there, but for their texts: the last replaces.

    It gives the id, tenant, task and name of each, and the text that stands there.
    """
    table = schema.queries
    made = insert_in(dialect, table)
    new = made.excluded
    newer = new.last_at >= table.c.last_at
    merged = {
        "embedder": case((newer, func.coalesce(new.embedder, table.c.embedder)), else_=table.c.embedder),
        "seen": table.c.seen + new.seen,
        "last_at": case((newer, new.last_at), else_=table.c.last_at),
    }
    made = made.on_conflict_do_update(index_elements=["tenant", "task", "name"], set_=merged)
    return made.returning(*(table.c[name] for name in ("id", "tenant", "task", "name", "text", "recorded")))


def _renew_texts(
    connection: Connection, table: Table, rows: Iterable[Any], texts: Mapping[int, str | None], *, recorded: bool
) -> None:
    """Give *rows* of a *table*, as they are stored, the *texts* that came, by id; with a text go its vectors.

    What the application *recorded* replaces what was there, and what feedback brought is not taken over where it says
    nothing; feedback replaces nothing.
    """
    vectors = schema.query_vectors if table is schema.queries else schema.document_vectors
    for row in rows:
        stored, came = row.text if row.recorded == recorded else None, texts.get(row.id)
        text = (came or stored) if recorded else (stored or came)
        if recorded >= row.recorded and (text, recorded) != (row.text, row.recorded):
            connection.execute(table.update().where(table.c.id == row.id).values(text=text, recorded=recorded))
            if row.text not in (None, text):
                connection.execute(vectors.delete().where(next(iter(vectors.primary_key)) == row.id))


def _write_documents(
    connection: Connection,
    entries: Entries,
    keys: Sequence[DocumentKey],
    tenants: Mapping[str, int],
    embedders: Mapping[str, int],
) -> dict[DocumentKey, int]:
    """The documents with their ids, in order. Most are there already and unchanged; these cost no write."""
    table = schema.documents
    ids: dict[DocumentKey, int] = {}
    for tenant, of_tenant in groupby(keys, key=itemgetter(0)):
        owner, names = tenants[tenant], [name for _, name in of_tenant]
        stored = _stored_documents(connection, owner, names)
        if missing := [name for name in names if name not in stored]:
            rows = [
                {"tenant": owner, "name": name, "text": entries.texts.get((tenant, name)), "recorded": entries.recorded}
                for name in missing
            ]
            insert_all(connection, table, rows)
            stored |= _stored_documents(connection, owner, missing)
        ids |= {(tenant, name): stored[name].id for name in names}
        texts = {ids[tenant, name]: entries.texts.get((tenant, name)) for name in names}
        _renew_texts(connection, table, (stored[name] for name in names), texts, recorded=entries.recorded)
    _write_document_vectors(connection, entries, ids, embedders)
    return ids


def _write_document_vectors(
    connection: Connection, entries: Entries, ids: Mapping[DocumentKey, int], embedders: Mapping[str, int]
) -> None:
    """Write the vectors of documents that are missing, were others, or are damaged.

    The old vector itself is compared: damage leaves the checksum beside it as it was.
    """
    table = schema.document_vectors
    new = {
        (ids[key], embedders[embedder]): (vector, checksum(vector))
        for (key, embedder), vector in entries.document_vectors.items()
        if key in ids
    }
    for old in rows_among(connection, table.select(), table.c.document, {document for document, _ in new}):
        if new.get((old.document, old.embedder)) == (bytes(old.vector), bytes(old.checksum)):
            del new[old.document, old.embedder]
    rows = [
        {"document": document, "embedder": embedder, "vector": vector, "checksum": own}
        for (document, embedder), (vector, own) in sorted(new.items())
    ]
    insert_all(connection, table, rows, replace=True)


def _stored_documents(connection: Connection, tenant: int, names: Sequence[str]) -> dict[str, Any]:
    """The documents that are there, by name: id, text, and whether the application recorded it."""
    return {
        row.name: row
        for part in in_parts(names)
        for row in connection.execute(_DOCUMENTS, {"one_tenant": tenant, "names": part})
    }


def _locked_queries(connection: Connection, which: ColumnElement[bool]) -> Sequence[int]:
    """The ids of some queries, locked until the transaction ends in the order in which `_write_queries` locks them."""
    q, t = schema.queries, schema.tenants
    order: Sequence[ColumnElement[str]] = (t.c.name, q.c.task, q.c.name)
    if connection.dialect.name == "postgresql":
        order = [collate(column, "C") for column in order]  # as Python sorts
    chosen = select(q.c.id).join(t, t.c.id == q.c.tenant).where(which).order_by(*order)
    return connection.execute(chosen.with_for_update(of=q, key_share=True)).scalars().all()
