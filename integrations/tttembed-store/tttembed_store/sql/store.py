"""The store: what was served, the rewards of it, and what is served next, for any number of processes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import get_args
from uuid import uuid4

from sqlalchemy import select

from tttembed_rag.errors import InputError, StoreError
from tttembed_rag.judges.examination import has_passed
from tttembed_rag.rewards.names import checked_name, is_name
from tttembed_rag.rewards.observations import Served
from tttembed_rag.rewards.rewards import Rewards
from tttembed_store.sql import forgetting, rows, schema
from tttembed_store.sql.database import Database, TextIds
from tttembed_store.sql.history import History
from tttembed_store.sql.leasing import Leases
from tttembed_store.sql.log import observing, reading
from tttembed_store.sql.log.due import Due
from tttembed_store.sql.log.entries import Entries, QueryKey, with_text_ids
from tttembed_store.sql.log.observing import Kind
from tttembed_store.sql.log.vectors import StoredVectors
from tttembed_store.sql.making import make, prepare
from tttembed_store.sql.records import Counts, Forgotten, Generations, TenantState, checked_reward
from tttembed_store.sql.versions.changes import Changes
from tttembed_store.sql.versions.registry import Registry
from tttembed_store.sql.work.judgequeue import JudgeQueue
from tttembed_store.sql.work.openbatches import OpenBatches
from tttembed_store.sql.work.states import States

# The fact that is set in a store that keeps no texts.
_NO_TEXTS = "no_texts"


def open_store(url: str, *, texts: bool = True, create: bool = True) -> Store:
    """The store at *url*, made if absent.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql+psycopg://USER:PASSWORD@HOST/NAME``.
        texts: False keeps no text of a query or document; a store that was made so stays so.
        create: False makes no store where none is.

    Raises:
        StoreError: There is something else, or it holds texts and must not.
        StoreUnavailable: It cannot be reached now, or a newer package has made it what this one cannot use.
    """
    database = Database(url)
    try:
        prepare(database, create=create)
        return Store(database, texts=_keeps_texts(database, wanted=texts))
    except BaseException:
        database.close()
        raise


def memory_store() -> Store:
    """A new store in the memory of this process: nothing of it is in a file, and all of it goes when it is closed."""
    database = Database(f"sqlite:///file:/{uuid4().hex}?vfs=memdb&uri=true")
    with database.write("making") as connection:
        make(connection)
    return Store(database)


class Store(AbstractContextManager["Store"]):
    """Observations, rewards and published offsets in one database; from any thread and process.

    Every call is one transaction: once it has returned, its change is there to stay. A call that raises
    `StoreUnavailable` changed nothing that it reports, and may be made again; after `StoreReplaced`, which says that
    another store is there now, by whoever opens that.

    Args:
        database: A database with the tables of this package.
        texts: Whether texts are kept.

    Attributes:
        name: The URL, without a password and without the part after a question mark, which may hold one.
        texts: Whether it keeps texts of queries and documents.
        text_id: Gives the id of a text, which cannot be guessed without this store; works while the store is away.
        registry: The published versions: publishing and taking back, which one is live, and whether it is halted.
        judge_queue: The pairs that wait for a judge, and what judges were paid.
        changes: Who changed what, and when.
        history: What a report reads.
        vectors: Which vectors are missing, and making them.
    """

    def __init__(self, database: Database, *, texts: bool = True) -> None:
        database.recognise()
        self._database = database
        self.name = database.name
        self.texts = texts
        self.text_id = TextIds(database.salt)
        self.registry = Registry(database)
        self.judge_queue = JudgeQueue(database)
        self.open_batches = OpenBatches(database)
        self.changes = Changes(database)
        self.leases = Leases(database)
        self.due = Due(database)
        self.states = States(database)
        self.history = History(database)
        self.vectors = StoredVectors(database)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.name!r})"

    def close(self) -> None:
        """Let every connection go."""
        self._database.close()

    def observe(self, served: Iterable[Served], *, judge: str = "") -> int:
        """Write served queries, all or nothing; gives how many of *served* were written.

        A query seen before (the same tenant, task and id) is merged: new values replace old ones, and its last 200
        candidates stay. An empty id is the `text_id` of its text. Without texts, an id that is the text, or has blanks
        or letters beyond ASCII, becomes its `text_id`, and so does a task that is the text. Queries served before they
        were forgotten are left out.

        Args:
            served: Queries with their candidates.
            judge: Fingerprint of the judge that gave the candidates' rewards; needed where there are any.

        Raises:
            InputError: A name, vector or reward is not what was expected; nothing was written.
        """
        entries, written = self._write(served, judge, recorded=True)
        return sum(key in written for key, _ in entries.served)

    def feedback(self, served: Iterable[Served], *, judge: str) -> list[int]:
        """Write what anybody said of documents, as `observe` does; gives how many rewards of each query were written.

        It replaces nothing that the application recorded, and waits for no judge. What the application recorded keeps
        its place among the 200 candidates of a query; the rest of the room is shared by the sources, in turns: the
        newest document of each, the second newest, and so on.
        """
        entries, written = self._write(served, judge, recorded=False)
        return [
            sum((candidate.doc_id, query.source) in written.get(key, ()) for candidate in query.candidates)
            for key, query in entries.served
        ]

    def _write(self, served: Iterable[Served], judge: str, *, recorded: bool) -> tuple[Entries, observing.Written]:
        judge = checked_name("judge", judge, empty=True)
        entries = Entries(served, judge, self.text_id, keeps_texts=self.texts, recorded=recorded)
        with self._database.write("observing") as connection:
            now = self._database.now(connection)
            return entries, observing.write_entries(connection, entries, self._database.salt, now)

    def reward(self, judge: str, rewards: Mapping[QueryKey, Mapping[str, float]], *, source: str = "") -> int:
        """Write rewards of pairs that were observed, all or nothing; gives how many were written.

        Args:
            judge: Fingerprint of the judge that gave them.
            rewards: In [0, 1], by (tenant, task, query id) and document id; a pair that is not there (any
                more) is left out.
            source: Who gave them, such as a user or an agent; empty for the judge itself. Rewards of distinct sources
                stand side by side, of the last 32 of each pair; a new one replaces that of the same source.
        """
        checked_name("judge", judge)
        checked_name("source", source, empty=True)
        checked: Mapping[QueryKey, Mapping[str, float]] = {
            query: {document: checked_reward("rewards", value) for document, value in shown.items()}
            for query, shown in rewards.items()
        }
        if not self.texts:
            checked, source = with_text_ids(checked, self.text_id), source and self.text_id(source)
        with self._database.write("observing") as connection:
            return observing.reward_named(connection, judge, checked, source, self._database.now(connection))

    def trust(self, judge: str, trusted: bool | None) -> None:
        """Say whether *judge* is vouched for, to all who learn from its rewards; see `tttembed_rag.Rewards`.

        What was said comes before an examination. False stays until None takes it back: True does not change it.
        """
        table = schema.judges
        with self._database.write("observing") as connection:
            number = rows.ids_of(connection, table, [checked_name("judge", judge)])[judge]
            change = table.update().where(table.c.id == number).values(trusted=trusted)
            connection.execute(change.where(table.c.trusted.is_not(False)) if trusted else change)

    def trusted(self, judge: str) -> bool | None:
        """Whether *judge* is vouched for: what was said, else True if it passed its examination, and None if not."""
        declared = select(schema.judges.c.trusted).where(schema.judges.c.name == checked_name("judge", judge))
        with self._database.read() as connection:
            trusted: bool | None = connection.execute(declared).scalar()
        return (has_passed(judge, self.judge_queue.answers().get) or None) if trusted is None else trusted

    def rewards(
        self,
        judge: str,
        *,
        tenant: str = "",
        embedder: str | None = None,
        last: int | None = None,
        since: float | None = None,
    ) -> Rewards:
        """Rewards of *judge*, ready for a fit; the order in which they came does not matter.

        Damaged vectors and rewards are left out; a line in the log says how many.

        Args:
            judge: Fingerprint of the judge.
            tenant: The tenant that was served; "" is the shared tenant.
            embedder: Fingerprint of the embedding model; None is the model of the newest rewarded query.
            last: The number of queries, the last served ones of each source; None is all.
            since: Only queries last served at this Unix second or later.

        Raises:
            RewardError: There are none.
        """
        with self._database.read() as connection:
            rewards = reading.selected_rewards(connection, judge, tenant, embedder=embedder, last=last, since=since)
        return replace(rewards, trusted=self.trusted(judge), declared_by="its store")

    def embedder(self, judge: str, *, tenant: str = "", last: int = 1, since: float | None = None) -> str | None:
        """Fingerprint of the embedding model of most queries that *judge* rewarded of late; None: no vectors.

        The arguments are those of `rewards`, which takes the model of the *last* one query where none is named. Of two
        models with as many queries it is that of the newest query.
        """
        with self._database.read() as connection:
            return reading.embedder_of_most(connection, judge, tenant, last=last, since=since)

    def judge(self, *, tenant: str = "", last: int = 1, since: float | None = None) -> str | None:
        """Fingerprint of the judge of most of the last rewarded queries; None: no rewards. As for `embedder`.

        Never ``audit``, as its rewards are trusted labels; one that sources alone speak for only beside no other.
        """
        with self._database.read() as connection:
            return reading.judge_of_most(connection, tenant, last=last, since=since)

    def written(self, judge: str, *, tenant: str = "") -> int:
        """How many rewards of *judge* for *tenant* were ever written that were new, or differed from those before.

        It rises with corrections too.
        """
        with self._database.read() as connection:
            return reading.count_written(connection, judge, tenant)

    def judges(self, *, tenant: str | None = "") -> list[tuple[str, int]]:
        """Fingerprints of judges, the busiest first, with how many rewards of theirs a fit for *tenant* may read.

        None counts the rewards of all tenants.
        """
        with self._database.read() as connection:
            return reading.judges_of(connection, tenant)

    def counts(self, tenant: str | None = None) -> Counts:
        """How much a tenant has, or (None) all tenants; counts rows, so it takes seconds where there are many."""
        with self._database.read() as connection:
            return reading.counts_of(connection, tenant, self._database.size(connection))

    def generations(self) -> Generations:
        """Whether all tenants are halted, and a number for each that rises with what is its own; one look-up."""
        return self.registry.generations()

    def serving(self, *, tenant: str = "", own: bool = False) -> TenantState:
        """What a process must serve to *tenant*, read in one moment.

        Args:
            tenant: A tenant; "" is the shared one, whom all others without a live version of their own are served.
            own: Read what is said of *tenant* alone, not of the shared tenant nor of all.
        """
        checked_name("tenant", tenant, empty=True)
        return self.registry.serving(tenant, own=own)

    def tenants(self) -> list[str]:
        """Every tenant that was ever named, sorted, the shared tenant, "", among them."""
        with self._database.read() as connection:
            return sorted(connection.execute(select(schema.tenants.c.name)).scalars())

    def has_tenants(self) -> bool:
        """Whether any tenant but the shared one was ever named."""
        with self._database.read() as connection:
            named = select(schema.tenants.c.id).where(schema.tenants.c.name > "").limit(1)
            return connection.execute(named).scalar() is not None

    def forget(
        self,
        *,
        tenant: str,
        query_id: str | Collection[str] | None = None,
        source: str | Collection[str] | None = None,
        document_id: str | Collection[str] | None = None,
        unseen: bool = False,
        by: str,
    ) -> Forgotten:
        """Delete queries, what sources said, documents, or all of a tenant, and all that was learned from it.

        Every version of the tenant goes; the next fit is what it would be had the deleted never been seen. The log of
        changes goes on saying when, who and what, without details of the tenant. Nothing comes back late, neither what
        was served before and is written later, nor a judge's answer, nor what a worker is learning; the clocks of hosts
        and database must agree on what is late. On SQLite no byte of it stays in the file, which is written anew in its
        own size, so forget many names by one call; PostgreSQL may overwrite its space.

        Args:
            tenant: The tenant that was served; "" is the shared tenant.
            query_id: The id of a query, or several; or its text where it was captured without an id.
            source: A source, such as a user, or several: the rewards that it gave are deleted, the queries stay.
            document_id: A document, or several, with texts, vectors and rewards; no version goes where none has a
                reward.
            unseen: Whether a source may be one without rewards: they were dropped, have expired, or still wait to be
                written. All versions go then, too, as they may have learned from it.
            by: The name of the one who asks for it.

        Raises:
            InputError: Things of two kinds are named, or the store holds no reward of a source, which was not forgotten
                before; nothing was deleted.
            StoreUnavailable: It is deleted, but a reader keeps its bytes from being overwritten; call again.
        """
        checked_name("by", by)
        checked_name("tenant", tenant, empty=True)
        named: dict[Kind, Collection[str]] = {
            kind: [names] if isinstance(names, str) else list(names)
            for kind, names in zip(get_args(Kind), (query_id, source, document_id), strict=True)
            if names is not None
        }
        if len(named) > 1:
            raise InputError(f"source: expected queries, sources or documents, got {len(named)} of these")
        kind, things = next(iter(named.items()), (None, ()))
        if kind and not things:
            return Forgotten()
        for name in things if kind == "source" else ():
            checked_name("source", name, empty=True)
        # An id may stand for the text.
        names = {thing: [name for name in (thing, self.text_id(thing)) if is_name(name)] for thing in things}
        with self._database.write("forgetting") as connection:
            now, salt = self._database.now(connection), self._database.salt
            gone = forgetting.forget(connection, salt, kind, names, tenant=tenant, unseen=unseen, by=by, now=now)
        self._database.scrub()
        return gone

    def expire(self, before: float, *, by: str) -> int:
        """Delete queries last served before a Unix second, and paid answers as old; gives how many queries.

        A query that is asked again keeps its old rewards. Versions learned from what is deleted stay: this is about
        age, `forget` about consent.
        """
        checked_name("by", by)
        with self._database.write("forgetting") as connection:
            return forgetting.expire_queries(connection, before, by=by)

    def keep_newest(self, most: int) -> None:
        """Keep the newest queries of each tenant in turns, *most* in all; tenants without any go too, if not served."""
        with self._database.write("forgetting") as connection:
            forgetting.keep_newest(connection, most)


def _keeps_texts(database: Database, *, wanted: bool) -> bool:
    """Whether a store keeps texts: a store that was made without them stays so."""
    with database.read() as connection:
        if rows.fact(connection, _NO_TEXTS) is not None:
            return False
        if wanted:
            return True
    with database.write("forgetting") as connection:
        for table in (schema.queries, schema.documents):
            if connection.execute(select(table.c.id).where(table.c.text.is_not(None)).limit(1)).scalar() is not None:
                raise StoreError(
                    f"{database.name}: expected a store without texts, found some (forget them, or use another)"
                )
        rows.set_fact(connection, _NO_TEXTS, str(int(time.time())))
    return False
