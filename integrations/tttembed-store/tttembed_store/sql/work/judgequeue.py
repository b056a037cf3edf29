"""The queue of a judge: pairs that wait for its verdict, the answers that it was paid for, and the spend."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, and_, exists, func, select

from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.judging.covering import MOST_COMPARED, covering
from tttembed_rag.judging.spending import Budget, Price
from tttembed_rag.rewards.names import checked_name, cleaned
from tttembed_rag.rewards.observations import Served
from tttembed_rag.vectors.checks import unit
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database, keyed_digest
from tttembed_store.sql.log.observing import reward_rows, update_progress
from tttembed_store.sql.records import TOOL_CALLS, Lease, Spend, checked_reward, row_of
from tttembed_store.sql.rows import delete_among, id_of, ids_of, insert_all, rows_among
from tttembed_store.sql.versions.changes import write_line
from tttembed_store.sql.work.answers import DailyAccount, StoredAnswers, paid_answers, spent_on

# Seconds until a judge is asked about a query again that it failed at, twice as long each time up to the longest.
_FIRST_WAIT, _LONGEST_WAIT = 300.0, 86_400.0
# Characters of a reason that are kept.
_LONGEST_WHY = 500


class JudgeQueue:
    """What judges have to score, and what they answered.

    Queries and documents have plain ids here, the store's own: `judged` takes rewards by the ids that `waiting` gave.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def waiting(
        self,
        judge: str,
        *,
        tenant: str = "",
        limit: int = 1000,
        due: bool = False,
        without: Collection[str] = (),
        covering: bool = False,
        queries: Collection[str] | None = None,
    ) -> list[Served]:
        """Pairs of *tenant* with both texts that *judge* has neither scored nor declined, of at most *limit* queries.

        The application recorded them; those that feedback alone named wait for no judge. A document's first text makes
        the pairs wait of those queries that are served from then on.

        The newest queries come first, and those that the judge failed at last; with *due*, only such of them as it is
        time to ask about again. Queries that are in *without*, by the ids that this method gave, are left out, and so
        are others with the same text.

        With *covering* those of the newest come first of which verdicts say most about what is asked. Where *queries*
        are named by the ids that this method gave, they alone are looked at, all of them.

        Queries with rewards of calls of tools wait for no judge.
        """
        number = self._number(judge)
        left_out = {row_of(query) for query in without}
        named = None if queries is None else [row_of(query) for query in queries]
        while True:
            with self._database.read() as connection:
                owner = id_of(connection, schema.tenants, tenant)
                if named is None:
                    now = self._database.now(connection) if due else math.inf
                    choose = (
                        partial(_most_telling, connection, self._database.salt, owner, number) if covering else None
                    )
                    rows = _waiting(connection, number, owner, limit, now, left_out, choose)
                else:
                    rows = list(rows_among(connection, _of_progress(number, owner), schema.queries.c.id, named))
                waiting = _with_texts(connection, number, rows)
                declined = self._declined(connection, judge, waiting)
            if not declined:
                return waiting
            self._write(judge, declined, tenant)

    def tenants(self, judge: str) -> list[str]:
        """Tenants for which `waiting` of *judge* may find pairs, sorted; others cost nothing."""
        number = self._number(judge)
        t, progress = schema.tenants, schema.progress
        first = select(func.min(progress.c.tenant)).where(progress.c.waiting > 0)
        # From tenant to tenant: an index holds those for which pairs wait, for whichever judge.
        step = select(first.scalar_subquery().label("tenant")).cte(recursive=True)
        following = first.where(progress.c.tenant > step.c.tenant).correlate(step).scalar_subquery()
        step = step.union_all(select(following).where(step.c.tenant.is_not(None)))
        waits = exists().where(progress.c.tenant == t.c.id, progress.c.judge == number, progress.c.waiting > 0)
        with self._database.read() as connection:
            some = [tenant for tenant in connection.execute(select(step.c.tenant)).scalars() if tenant is not None]
            return sorted(name for (name,) in rows_among(connection, select(t.c.name).where(waits), t.c.id, some))

    def judged(self, judge: str, rewards: Mapping[str, Mapping[str, float]], *, tenant: str = "") -> int:
        """Write the rewards of `waiting` pairs, in [0, 1] by the ids given there; gives how many were written.

        Pairs that the judge declined are known from `answers`, and do not wait any more.
        """
        checked_name("judge", judge)
        checked = {
            row_of(query): {row_of(document): checked_reward("rewards", value) for document, value in shown.items()}
            for query, shown in rewards.items()
        }
        return self._write(judge, checked, tenant)

    def failed(self, judge: str, reasons: Mapping[str, str], *, tenant: str = "") -> None:
        """Note why *judge*, which is well, failed at queries of `waiting`: they are set aside, longer each time."""
        whys = {row_of(query): cleaned(why)[:_LONGEST_WHY] for query, why in reasons.items()}
        q, f = schema.queries, schema.failures
        with self._database.write("observing") as connection:
            number = ids_of(connection, schema.judges, [judge])[judge]
            owner, now = id_of(connection, schema.tenants, tenant), self._database.now(connection)
            before = select(q.c.id, func.coalesce(f.c.count, 0)).where(q.c.tenant == owner)
            before = before.outerjoin(f, (f.c.query == q.c.id) & (f.c.judge == number))
            rows = [
                {
                    "query": query,
                    "judge": number,
                    "count": count + 1,
                    "due_at": now + min(_FIRST_WAIT * 2.0 ** min(count, 30), _LONGEST_WAIT),
                    "why": whys[query],
                }
                for query, count in rows_among(connection, before, q.c.id, sorted(whys))
            ]
            insert_all(connection, f, rows, replace=True)

    def failures(self, tenant: str | None = None) -> list[tuple[str, str, int]]:
        """Judges, why they failed the last time at queries of a tenant or (None) all, and at how many."""
        f, j, q = schema.failures, schema.judges, schema.queries
        count = func.count()
        counted = select(j.c.name, f.c.why, count).join(j, j.c.id == f.c.judge).group_by(j.c.name, f.c.why)
        with self._database.read() as connection:
            if tenant is not None:
                counted = counted.join(q, q.c.id == f.c.query)
                counted = counted.where(q.c.tenant == id_of(connection, schema.tenants, tenant))
            rows = connection.execute(counted.order_by(count.desc(), j.c.name, f.c.why))
            return [(judge, why, queries) for judge, why, queries in rows]

    def ask_again(self, judge: str, *, by: str, tenant: str | None = None) -> int:
        """Let pairs wait again that *judge* declined or failed at, of a tenant or (None) all; gives how many declined.

        It heals what a fault of the judge's server, or of a proxy before it, has done.
        """
        checked_name("judge", judge)
        checked_name("by", by)
        q, r, f, answers = schema.queries, schema.rewards, schema.failures, schema.answers
        with self._database.write("forgetting") as connection:
            number = ids_of(connection, schema.judges, [judge])[judge]
            owned = select(q.c.id)
            if tenant is not None:
                owned = owned.where(q.c.tenant == id_of(connection, schema.tenants, tenant))
            connection.execute(f.delete().where(f.c.judge == number, f.c.query.in_(owned)))
            # Answers without a score would decline the pairs anew.
            of_judge = (answers.c.judge == number) & answers.c.score.is_(None)
            connection.execute(answers.delete().where(of_judge, answers.c.query.in_(owned)))
            refused = (r.c.judge == number) & r.c.value.is_(None)
            declined = select(r.c.query).where(refused, r.c.query.in_(owned)).distinct()
            queries = connection.execute(declined.order_by(r.c.query)).scalars().all()
            count = delete_among(connection, r, r.c.query, queries, refused)
            update_progress(connection, queries)
            write_line(connection, by, "ask again", f"{count} declined pairs of {judge}", tenant)
        return count

    def answers(self, about: Sequence[Served] = (), *, day: date | None = None) -> StoredAnswers:
        """A place that keeps the paid answers of judges *about* what `waiting` gave, as long as its queries are there.

        One about a query that was forgotten, or about anything else but a judge's examination, counts as spent and is
        not kept. They count on the *day* by UTC on which they were asked for, None on that on which they come.
        """
        return StoredAnswers(self._database, about, day=day)

    def account(self, judge: str, about: Sequence[Served], *, caps: Budget, price: Price, lease: Lease) -> DailyAccount:
        """The account of a run that asks *judge* *about* what `waiting` gave, as far as the *caps* of a day (UTC) go.

        What is asked about under the *lease*, nobody else asks about while it is held.
        """
        return DailyAccount(self._database, judge, about, caps=caps, price=price, lease=lease)

    def spent(self, day: date | None = None) -> Spend:
        """What judges were paid on a day by UTC, today if none is named, and may still be paid for calls under way."""
        with self._database.read() as connection:
            today = self._database.today(connection)
            return spent_on(connection, day or today)

    def _number(self, judge: str) -> int:
        """The id of a judge; pairs wait for it from now on."""
        checked_name("judge", judge)
        j = schema.judges
        with self._database.read() as connection:
            number = connection.execute(select(j.c.id).where(j.c.name == judge, j.c.asks)).scalar()
        if number is not None:
            return int(number)
        with self._database.write("forgetting") as connection:  # concurrent writers may not have seen this judge yet
            number = ids_of(connection, j, [judge])[judge]
            if connection.execute(j.update().where(j.c.id == number, ~j.c.asks).values(asks=True)).rowcount:
                queries = connection.execute(select(schema.queries.c.id)).scalars().all()
                update_progress(connection, queries)
        return number

    def _write(self, judge: str, rewards: Mapping[int, Mapping[int, float | None]], tenant: str) -> int:
        with self._database.write("observing") as connection:
            mine = schema.queries.c.tenant == id_of(connection, schema.tenants, tenant)
            written = reward_rows(connection, judge, rewards, among=mine, now=self._database.now(connection))
            number, f = ids_of(connection, schema.judges, [judge])[judge], schema.failures
            delete_among(connection, f, f.c.query, sorted(rewards), f.c.judge == number)
            return written

    def _declined(
        self, connection: Connection, judge: str, observations: Iterable[Served]
    ) -> dict[int, dict[int, float | None]]:
        """The pairs that *judge* answered without a score, by the ids of rows."""
        pairs = {
            pair_key(judge, served.query, candidate.text): (row_of(served.query_id), row_of(candidate.doc_id))
            for served in observations
            for candidate in served.candidates
        }
        declined: dict[int, dict[int, float | None]] = {}
        for key, paid in paid_answers(connection, self._database.salt, list(pairs)).items():
            if paid.score is None:
                query, document = pairs[key]
                declined.setdefault(query, {})[document] = None
        return declined


def _waiting(
    connection: Connection,
    judge: int,
    tenant: int | None,
    limit: int,
    now: float,
    left_out: Collection[int],
    choose: Callable[[Sequence[Any], int], Sequence[Any]] | None,
) -> list[Any]:
    """The newest queries with pairs that *judge* has not answered, both texts known, or those that *choose* takes.

    Behind them come the queries that it failed at and that are due by *now*.
    """
    q, progress, failures = schema.queries, schema.progress, schema.failures
    failed = and_(failures.c.query == progress.c.query, failures.c.judge == judge)
    tools = select(schema.judges.c.id).where(schema.judges.c.name == TOOL_CALLS).scalar_subquery()
    calls = exists().where(schema.rewards.c.query == q.c.id, schema.rewards.c.judge == tools)
    waiting = _of_progress(judge, tenant).where(~calls)
    newest = waiting.where(~exists().where(failed)).order_by(progress.c.at.desc(), progress.c.query.desc())
    due = waiting.join(failures, failed).where(failures.c.due_at <= now).order_by(failures.c.due_at, failures.c.query)
    texts = {text for (text,) in rows_among(connection, select(q.c.text), q.c.id, left_out)}
    queries: list[Any] = []
    for stage in (newest, due):
        if (wanted := limit - len(queries)) > 0:
            # Without copies of what is left out there are enough of them; with copies the next call finds the others.
            chosen = choose if stage is newest else None
            among = wanted if chosen is None else max(wanted, MOST_COMPARED)
            rows = connection.execute(stage.limit(among + len(left_out)))
            some = [row for row in rows if row.id not in left_out and row.text not in texts]
            queries += some[:wanted] if chosen is None else chosen(some, wanted)
    return queries


def _of_progress(judge: int, tenant: int | None) -> Select[Any]:
    q, progress = schema.queries, schema.progress
    waiting = select(q.c.id, q.c.text, q.c.task, q.c.seen, q.c.embedder).join(progress, progress.c.query == q.c.id)
    return waiting.where(progress.c.tenant == tenant, progress.c.judge == judge, progress.c.waiting > 0)


def _with_texts(connection: Connection, judge: int, queries: Sequence[Any]) -> list[Served]:
    """*queries* with the documents that *judge* has not answered about."""
    p, d, r = schema.pairs, schema.documents, schema.rewards
    texts: dict[int, list[tuple[str, str]]] = defaultdict(list)
    waiting = (
        select(p.c.query, d.c.id, d.c.text)
        .join(d, d.c.id == p.c.document)
        .outerjoin(r, and_(r.c.query == p.c.query, r.c.judge == judge, r.c.document == p.c.document))
        .where(p.c.recorded, d.c.text.is_not(None), r.c.query.is_(None))
        .order_by(p.c.query, p.c.place, d.c.id)
    )
    for query, document, text in rows_among(connection, waiting, p.c.query, [query.id for query in queries]):
        texts[query].append((f"d{document}", text))
    return [Served.of_texts(f"q{query.id}", query.text, texts[query.id], query.task) for query in queries]


def _most_telling(
    connection: Connection, salt: bytes, tenant: int | None, judge: int, rows: Sequence[Any], count: int
) -> Sequence[Any]:
    """The *count* of *rows* of queries of which verdicts say most, beside what *judge* said of the newest others.

    See `tttembed_rag.judging.covering`.
    Queries without a vector of the embedding model that most of them have come last, as they stand.
    """
    if len(rows) <= count:
        return rows
    q, own, progress = schema.queries, schema.query_vectors, schema.progress
    model = Counter(row.embedder for row in rows).most_common(1)[0][0]
    stored = select(q.c.id, q.c.task, own.c.vector).join(own, (own.c.query == q.c.id) & (own.c.embedder == model))
    ids = [row.id for row in rows]
    vectors = {row.id: row.vector for row in rows_among(connection, stored, q.c.id, ids)}
    known = [row for row in rows if row.id in vectors]
    if not known:
        return rows[:count]
    of_judge = (progress.c.tenant == tenant) & (progress.c.judge == judge) & (progress.c.rewards > 0)
    newest = stored.join(progress, progress.c.query == q.c.id).where(of_judge, q.c.id.not_in([row.id for row in known]))
    judged = connection.execute(
        newest.order_by(progress.c.at.desc(), progress.c.query.desc()).limit(MOST_COMPARED)
    ).all()
    blobs = [*(vectors[row.id] for row in known), *(row.vector for row in judged)]
    chosen = covering(
        unit(np.frombuffer(b"".join(blobs), dtype="<f4").reshape(len(blobs), -1)),
        [row.task for row in (*known, *judged)],
        [row.seen for row in known] + [1] * len(judged),
        [keyed_digest(salt, str(row.id).encode()) for row in known] + [b""] * len(judged),
        count,
        judged=np.arange(len(blobs)) >= len(known),
    )
    return [*(known[row] for row in chosen), *(row for row in rows if row.id not in vectors)][:count]
