"""History: what a store did day by day, and the queries it served last; each reading is bounded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Connection, and_, func, select, tuple_

from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_store.sql import schema
from tttembed_store.sql.database import TEXT_ID, Database
from tttembed_store.sql.log.reading import in_turns
from tttembed_store.sql.log.sources import HAS_SOURCE, BySource, Pair, mean, rewards_of
from tttembed_store.sql.records import Day
from tttembed_store.sql.rows import id_of, rows_among
from tttembed_store.sql.work.answers import spent_on

_DAY_SECONDS = 86_400
# Characters that are read of a text.
_TEXT = 1000
# Characters of a text that name its document in a sentence.
_NAMED = 60


class History:
    """What reports read from a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def visible(self, offsets: Offsets, *, owner: str, tenant: str) -> Offsets:
        """The *offsets* of *owner* that *tenant* may know of: of another those of its own tasks and of all."""
        if owner == tenant or not tenant:
            return offsets
        q, t = schema.queries, schema.tenants
        with self._database.read() as connection:
            own = select(q.c.task).join(t, t.c.id == q.c.tenant).where(t.c.name == tenant).distinct()
            tasks = set(connection.execute(own).scalars())
        kept = [
            offset
            for offset in offsets.values()
            if offset.query_id is None and (offset.task is None or offset.task in tasks)
        ]
        return Offsets(kept, width=offsets.width)

    def days(self, tenant: str, *, last: date, count: int) -> list[Day]:
        """The *count* days up to *last*, oldest first."""
        q, progress = schema.queries, schema.progress
        served = select(func.count()).select_from(q)
        rewarded = select(func.coalesce(func.sum(progress.c.rewards), 0))
        days = []
        with self._database.read() as connection:
            number = id_of(connection, schema.tenants, tenant)
            # Named one by one, judges let the index by age be used.
            judges = connection.execute(select(schema.judges.c.id)).scalars().all()
            mine = rewarded.where(progress.c.tenant == number, progress.c.judge.in_(judges))
            for day in (last - timedelta(days=ago) for ago in reversed(range(count))):
                start = datetime.combine(day, time(), UTC).timestamp()
                queries, rewards = (
                    connection.execute(chosen.where(at >= start, at < start + _DAY_SECONDS)).scalar_one()
                    for chosen, at in ((served.where(q.c.tenant == number), q.c.last_at), (mine, progress.c.at))
                )
                days.append(Day(day, int(queries), int(rewards), spent_on(connection, day)))
        return days

    def verdicts(
        self, tenant: str, *, judge: str, query_ids: Sequence[str] | None = None
    ) -> dict[tuple[str, str], float]:
        """The rewards that *judge* gave to documents of *tenant*, by (query id, document id); None is all queries."""
        q, d, r = schema.queries, schema.documents, schema.rewards
        rewarded = (
            select(q.c.id, q.c.name, d.c.name, r.c.value)
            .join(r, r.c.query == q.c.id)
            .join(d, d.c.id == r.c.document)
            .where(r.c.value.is_not(None))
            .order_by(q.c.id, r.c.document)
        )
        with self._database.read() as connection:
            rewarded = rewarded.where(
                q.c.tenant == id_of(connection, schema.tenants, tenant),
                r.c.judge == id_of(connection, schema.judges, judge),
            )
            if query_ids is None:
                rows: Iterable[Any] = connection.execute(rewarded)
            else:
                rows = rows_among(connection, rewarded, q.c.name, query_ids)
            of_sources: dict[tuple[int, str, str], list[float]] = defaultdict(list)
            for number, query, document, value in rows:
                of_sources[number, query, document].append(value)
        return {(query, document): mean(values) for (_, query, document), values in of_sources.items()}

    def tasks(self, tenant: str) -> dict[str, list[str]]:
        """The tasks of each query of *tenant* by its id."""
        tasks: dict[str, list[str]] = defaultdict(list)
        for name, task in self._of_queries(tenant, schema.queries.c.task):
            tasks[name].append(task)
        return dict(tasks)

    def document_texts(self, tenant: str, names: Collection[str]) -> dict[str, str]:
        """The texts of documents of *tenant* by their ids, where texts are kept."""
        return self._of_documents(tenant, names, schema.documents.c.text)

    def in_words(self, tenant: str, sentence: str) -> str:
        """The *sentence* with the beginnings of texts in place of the ids of *tenant*'s documents that they became."""
        texts = self.document_texts(tenant, set(TEXT_ID.findall(sentence)))
        for name, text in texts.items():
            sentence = sentence.replace(name, repr(text[:_NAMED]))
        return sentence

    def document_lengths(self, tenant: str, names: Collection[str]) -> dict[str, int]:
        """The characters of those texts."""
        return self._of_documents(tenant, names, func.length(schema.documents.c.text))

    def document_arrivals(self, tenant: str, names: Collection[str]) -> dict[str, int]:
        """A number of each document of *tenant*, larger for one that was first served later than another."""
        return self._of_documents(tenant, names, schema.documents.c.id)

    def _of_documents(self, tenant: str, names: Collection[str], wanted: ColumnElement[Any]) -> dict[str, Any]:
        """What is *wanted* of documents by their names, where there is such a thing."""
        d = schema.documents
        with self._database.read() as connection:
            owner = id_of(connection, schema.tenants, tenant)
            named = select(d.c.name, wanted).where(d.c.tenant == owner, wanted.is_not(None))
            return dict(map(tuple, rows_among(connection, named, d.c.name, names)))

    def texts(self, tenant: str) -> dict[str, str]:
        """The text of each query of *tenant* by its id, where texts are kept."""
        return dict(self._of_queries(tenant, schema.queries.c.text))

    def _of_queries(self, tenant: str, wanted: ColumnElement[Any]) -> list[tuple[str, Any]]:
        """What is *wanted* of the queries of *tenant*, where there is such a thing, each with its name."""
        q = schema.queries
        with self._database.read() as connection:
            owner = id_of(connection, schema.tenants, tenant)
            named = select(q.c.name, wanted).where(q.c.tenant == owner, wanted.is_not(None))
            return [(name, value) for name, value in connection.execute(named)]

    def recent(
        self,
        tenant: str,
        *,
        width: int,
        embedder: str,
        judge: str,
        depth: int,
        limit: int | None = None,
        names: Sequence[tuple[str, str]] | None = None,
        by_source: bool = False,
    ) -> list[Served]:
        """The last served queries with vectors (*width*,) of *embedder* (empty is any), newest first.

        Each has its first *depth* candidates that have vectors, with rewards of *judge*: the mean of all sources or,
        with *by_source*, once for each source. Of the queries, too, each source has its share then: see `in_turns`.
        They are *limit* queries at most, with *names* only those of these tasks and ids.
        """
        q, e, own = schema.queries, schema.embedders, schema.query_vectors
        newest = (
            select(q.c.id, q.c.name, func.substr(q.c.text, 1, _TEXT).label("text"), q.c.task, q.c.last_at, own.c.vector)
            .join(e, e.c.id == q.c.embedder)
            .join(own, and_(own.c.query == q.c.id, own.c.embedder == q.c.embedder))
            .where(e.c.width == width)
        )
        if embedder:
            newest = newest.where(e.c.name == embedder)
        if names is not None:
            newest = newest.where(tuple_(q.c.task, q.c.name).in_(names))
        with self._database.read() as connection:
            newest = newest.where(q.c.tenant == id_of(connection, schema.tenants, tenant))
            number = id_of(connection, schema.judges, judge)
            if by_source:
                newest = newest.where(
                    q.c.id.in_(in_turns(newest.with_only_columns(q.c.last_at, q.c.id), number, limit))
                )
            newest = newest.order_by(q.c.last_at.desc(), q.c.id.desc())
            rows = connection.execute(newest.limit(limit)).all()
            shown = _candidates(connection, [row.id for row in rows], depth)
            rewards = rewards_of(connection, number, [row.id for row in rows])
        return [
            Served(
                row.name, _vector(row.vector), candidates, row.text or "", row.task, tenant, row.last_at, source=source
            )
            for row in rows
            for source, candidates in _rewarded(row.id, shown[row.id], rewards, by_source=by_source).items()
        ]

    def of_source(
        self, tenant: str, source: str, embedder: str, judge: str, *, least: float, limit: int
    ) -> list[tuple[str, str, np.ndarray[Any, np.dtype[np.float32]], str, float]]:
        """The last rewards of a *source* of *least* or more, oldest first: task, text, vector, document, value."""
        q, e, own = schema.queries, schema.embedders, schema.query_vectors
        r, d, t, j = schema.rewards, schema.documents, schema.tenants, schema.judges
        rewarded = select(q.c.task, q.c.text, own.c.vector, d.c.name, r.c.value).where(
            *(HAS_SOURCE, r.c.source == source, t.c.name == tenant, j.c.name == judge, e.c.name == embedder),
            *(r.c.query == q.c.id, r.c.document == d.c.id, r.c.judge == j.c.id, q.c.tenant == t.c.id),
            *(own.c.query == q.c.id, own.c.embedder == e.c.id, q.c.text.is_not(None), r.c.value >= least),
        )
        with self._database.read() as connection:
            rows = connection.execute(rewarded.order_by(r.c.at.desc()).limit(limit)).all()
        return [(task, text, _vector(vector), name, value) for task, text, vector, name, value in reversed(rows)]


def _rewarded(
    query: int, shown: Mapping[int, Candidate], rewards: Mapping[Pair, BySource], *, by_source: bool
) -> dict[str, list[Candidate]]:
    """The candidates *shown* for a query with the rewards of each source, or under the empty one with their mean."""
    of_source: dict[str, dict[int, float]] = defaultdict(dict)
    for document in shown:
        stored = rewards.get((query, document), {}).items()
        values = {source: value for source, (value, _) in stored if value is not None}
        if values and not by_source:
            values = {"": mean(values.values())}
        for source, value in values.items():
            of_source[source][document] = value
    return {
        source: [replace(candidate, reward=of_source[source].get(document)) for document, candidate in shown.items()]
        for source in sorted(of_source) or [""]
    }


def _candidates(connection: Connection, queries: Sequence[int], depth: int) -> dict[int, dict[int, Candidate]]:
    """By query and the row of its document, the candidates in base order."""
    q, p, d, v = schema.queries, schema.pairs, schema.documents, schema.document_vectors
    shown: dict[int, dict[int, Candidate]] = defaultdict(dict)
    candidates = (
        select(p.c.query, d.c.id, d.c.name, func.substr(d.c.text, 1, _TEXT), v.c.vector)
        .join(q, q.c.id == p.c.query)
        .join(d, d.c.id == p.c.document)
        .join(v, and_(v.c.document == p.c.document, v.c.embedder == q.c.embedder))
        .where(p.c.place < depth)
        .order_by(p.c.query, p.c.place, d.c.id)
    )
    for query, document, name, text, vector in rows_among(connection, candidates, p.c.query, queries):
        shown[query][document] = Candidate(name, _vector(vector), text or "")
    return shown


def _vector(stored: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.frombuffer(stored, dtype="<f4").astype(np.float32, copy=False)
