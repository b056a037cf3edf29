"""The store: what was served, what was said of it, and which offsets are live, for any number of processes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, func, or_, select, text

from tttembed_rag.errors import InputError, StoreError
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.observations import Observation, Served
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.rewards import Rewards
from tttembed_rag.stores import answers, forgetting, leasing, observing, publishing, reading, rows, schema
from tttembed_rag.stores.database import Database, TextIds
from tttembed_rag.stores.migrating import migrate, salt_of
from tttembed_rag.stores.observing import Batch, QueryKey
from tttembed_rag.stores.publishing import Alias
from tttembed_rag.stores.records import (
    AuditLine,
    Counts,
    Forgotten,
    Lease,
    Serving,
    Spend,
    Version,
    checked_json,
    checked_name,
    checked_reward,
    cleaned,
    is_name,
    row_of,
)

# A fact that is set in a store that keeps no texts.
_NO_TEXTS = "no_texts"


def open_store(url: str, *, texts: bool = True, create: bool = True) -> Store:
    """The store at *url*, made if absent, its tables brought up to date.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql+psycopg://USER:PASSWORD@HOST/NAME``.

        texts: False keeps no text of a query or document; a store that was made so stays so.

        create: False makes no store where none is.

    Raises:
        StoreError: There is something else, it comes from a newer package, or it holds texts and must not.

        StoreUnavailable: It cannot be reached now.
    """
    database = Database(url)
    try:
        migrate(database, create=create)
        return Store(database, texts=_keeps_texts(database, wanted=texts))
    except BaseException:
        database.close()
        raise


class Store:
    """Observations, rewards and published offsets in one database; from any thread and process.

    Every call is one transaction: what it returned for is there, whatever happens after. A call that
    raises `StoreUnavailable` changed nothing that it reports, and may be made again.

    Args:
        database: A database with the tables of this package.

        texts: Whether texts are kept.
    """

    def __init__(self, database: Database, *, texts: bool = True) -> None:
        self._database = database
        self._texts = texts
        with database.read() as connection:
            self._salt = salt_of(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self._database.name!r})"

    @property
    def name(self) -> str:
        """Its URL, without a password and without what follows a question mark, which may hold one."""
        return self._database.name

    @property
    def texts(self) -> bool:
        """Whether it keeps texts of queries and documents."""
        return self._texts

    def close(self) -> None:
        """Let every connection go."""
        self._database.close()

    # Observing

    @property
    def text_id(self) -> TextIds:
        """Gives an id for a text that nobody without this store can find out; needs the store no more."""
        return TextIds(self._salt)

    def observe(self, served: Iterable[Served], *, judge: str = "") -> int:
        """Write what was served, all or nothing; returns how many of *served* were written.

        A query seen before (the same tenant, task and id) is merged: its candidates are joined, what is
        new replaces what was known. Without texts, an id that is the text itself becomes its `text_id`.
        What was served before it was forgotten, and comes late, is left out.

        Args:
            served: Queries with their candidates.

            judge: Fingerprint of who gave the candidates' rewards; needed where there are any.

        Raises:
            InputError: A name, vector or reward is not what was expected; nothing was written.
        """
        batch = Batch(served, checked_name("judge", judge, empty=True))
        if not self._texts:
            batch.without_texts(self.text_id)
        with self._database.write("observing") as connection:
            return observing.observe(connection, batch, self._salt)

    def reward(self, judge: str, rewards: Mapping[QueryKey, Mapping[str, float]]) -> int:
        """Write verdicts on pairs that were observed, all or nothing; returns how many.

        Args:
            judge: Fingerprint of who gave them.

            rewards: In [0, 1], by (tenant, task, query id) and document id; a pair that is not there (any
                more) is left out.
        """
        checked_name("judge", judge)
        for given in rewards.values():
            for value in given.values():
                checked_reward("rewards", value)
        if not self._texts:
            rewards = {key: dict(said) for key, said in self._hashed(rewards)}
        with self._database.write("observing") as connection:
            return observing.reward(connection, judge, rewards)

    def _hashed(
        self, rewards: Mapping[QueryKey, Mapping[str, float]]
    ) -> Iterator[tuple[QueryKey, Mapping[str, float]]]:
        """*rewards* under the ids as given and, as ids that were texts are kept, under their `text_id`."""
        for (tenant, task, query), said in rewards.items():
            both = {**{self.text_id(document): value for document, value in said.items()}, **said}
            yield (tenant, task, self.text_id(query)), both
            yield (tenant, task, query), both

    # Judging

    def waiting(self, judge: str, *, tenant: str = "", limit: int = 1000) -> list[Observation]:
        """Pairs with both texts that *judge* has neither scored nor declined, of at most *limit* queries.

        Newest queries come first. Ids are plain and the store's own: `judged` takes verdicts by them.
        """
        number = self._asking(judge)
        while True:
            with self._database.read() as connection:
                found = reading.waiting_for(connection, number, tenant, limit)
                declined = self._declined(connection, judge, found)
            if not declined:
                return found
            with self._database.write("observing") as connection:
                owner = rows.found(connection, schema.tenants, tenant)
                observing.reward_by_id(connection, judge, declined, tenant=owner)

    def waiting_tenants(self, judge: str) -> list[str]:
        """Tenants for whom `waiting` of *judge* may find pairs, sorted; one look-up."""
        number = self._asking(judge)
        with self._database.read() as connection:
            return reading.waiting_tenants(connection, number)

    def _asking(self, judge: str) -> int:
        """The id of a judge, for which pairs wait from now on."""
        checked_name("judge", judge)
        with self._database.read() as connection:
            number = observing.judge_id(connection, judge)
        if number is None:
            with self._database.write("forgetting") as connection:
                number = observing.start_asking(connection, judge)
        return number

    def judged(self, judge: str, rewards: Mapping[str, Mapping[str, float]], *, tenant: str = "") -> int:
        """Write the rewards of `waiting` pairs of *tenant*; returns how many were written.

        Pairs that the judge declined are known from `answers`, and do not wait any more.

        Args:
            judge: Fingerprint of the judge that gave them.

            rewards: In [0, 1], by query id and document id as `waiting` gave them.

            tenant: The tenant whose pairs they are.
        """
        checked_name("judge", judge)
        given = {
            row_of(query): {row_of(document): checked_reward("rewards", value) for document, value in said.items()}
            for query, said in rewards.items()
        }
        with self._database.write("observing") as connection:
            owner = rows.found(connection, schema.tenants, tenant)
            return observing.reward_by_id(connection, judge, given, tenant=owner)

    def answers(self, about: Sequence[Observation] = ()) -> answers.StoredAnswers:
        """Where judges' paid answers are kept for all processes.

        Args:
            about: What is asked about, as `waiting` gave it. Answers are kept as long as their queries are: one
                about a query that was forgotten meanwhile, or about anything else but the probe of a judge, is
                counted as spent and not kept.
        """
        return answers.StoredAnswers(self._database, self._salt, about)

    def spent(self, day: date | None = None) -> Spend:
        """What judges were paid on a day by UTC, today if none is named."""
        with self._database.read() as connection:
            today = datetime.fromtimestamp(self._database.now(connection), UTC).date()
            return answers.spent(connection, day or today)

    # Learning

    def rewards(
        self,
        judge: str,
        *,
        tenant: str = "",
        embedder: str | None = None,
        last: int | None = None,
        since: float | None = None,
        before: float | None = None,
    ) -> Rewards:
        """Rewards of *judge*, ready for a fit; the same whatever the order they came in.

        Args:
            judge: Whose.

            tenant: Of which tenant; "" also learns from tenants that share, whose ids then begin with
                their tenant, a colon and a NUL, which no id of its own can have.

            embedder: Of which embedding model; None is the model of the newest rewarded query.

            last: Of the last served queries, how many; None is all.

            since: Only of queries last served at this Unix second or later.

            before: Only of queries last served before it.

        Raises:
            RewardError: There are none.
        """
        wanted = reading.Selection(
            judge=judge, tenant=tenant, embedder=embedder, last=_last(last), since=since, before=before
        )
        with self._database.read() as connection:
            return reading.rewards_of(connection, wanted)

    def embedder(self, judge: str, *, tenant: str = "", last: int = 1, since: float | None = None) -> str | None:
        """Fingerprint of the embedding model of most queries that *judge* rewarded of late; None: no vectors.

        Args:
            judge: Whose rewards.

            tenant: As for `rewards`.

            last: Of how many queries, the last served ones; 1 is what `rewards` takes where none is named. Of
                two models with as many it is that of the newest query.

            since: Of those last served at this Unix second or later.
        """
        wanted = reading.Selection(judge=judge, tenant=tenant, last=_last(last), since=since)
        with self._database.read() as connection:
            return reading.embedder_of(connection, wanted)

    def judge(self, *, tenant: str = "", last: int = 1, since: float | None = None) -> str | None:
        """Fingerprint of the judge of most of the last rewarded queries; None: no rewards. As for `embedder`."""
        wanted = reading.Selection(judge="", tenant=tenant, last=_last(last), since=since)
        with self._database.read() as connection:
            return reading.judge_of(connection, wanted)

    def budget(
        self,
        judge: str,
        *,
        tenant: str = "",
        embedder: str | None = None,
        last: int | None = None,
        since: float | None = None,
    ) -> int:
        """How many rewards `rewards` would read, without reading them: damaged vectors and missing ones count.

        The arguments are those of `rewards`; only queries that *embedder* served last count, None is any.
        """
        wanted = reading.Selection(judge=judge, tenant=tenant, embedder=embedder, last=_last(last), since=since)
        with self._database.read() as connection:
            return reading.budget_of(connection, wanted)

    def judges(self, *, tenant: str | None = "") -> list[tuple[str, int]]:
        """Fingerprints of judges and how many rewards `rewards` has of them, or (None) all, the busiest first."""
        with self._database.read() as connection:
            return reading.judges_of(connection, tenant)

    def counts(self, tenant: str | None = None) -> Counts:
        """How much a tenant has, or all; counts rows, so it takes seconds where there are many."""
        with self._database.read() as connection:
            return reading.counts_of(connection, tenant, self._size(connection))

    # Tenants

    def tenants(self) -> list[str]:
        """Every tenant that was ever named, sorted; the shared one, "", among them."""
        with self._database.read() as connection:
            return sorted(connection.execute(select(schema.tenants.c.name)).scalars())

    def share(self, tenant: str, allowed: bool, *, by: str) -> None:
        """Allow the shared scope to learn from *tenant*, or no more; nothing flows up until it is allowed.

        What a worker is learning when it is allowed no more is not published.
        """
        checked_name("tenant", tenant)
        checked_name("by", by)
        values = {"shares": True, "shared_once": True} if allowed else {"shares": False}
        with self._database.write("publishing") as connection:
            rows.ids_of(connection, schema.tenants, [tenant])
            connection.execute(schema.tenants.update().where(schema.tenants.c.name == tenant).values(**values))
            if not allowed:
                leasing.end(connection)
            rows.note(connection, by, "share", "allowed" if allowed else "not allowed", tenant)

    # Versions

    def publish(
        self,
        offsets: Offsets,
        *,
        by: str,
        tenant: str = "",
        note: str = "",
        embedder: str = "",
        probe: str = "",
        rewarded: int | None = None,
        lease: Lease | None = None,
        instead_of: int | None = None,
        alias: Alias = "live",
    ) -> Version:
        """Keep *offsets* as a new version and serve them, at once for every reader.

        Args:
            offsets: What was learned.

            by: Who publishes.

            tenant: For whom; "" serves every tenant without a live version of its own.

            note: Why.

            embedder: Fingerprint of the model whose vectors they were learned from.

            probe: JSON text to find again with the version.

            rewarded: Rewarded queries they were learned from; None takes the most that one offset, or the
                private ones together, were learned from.

            lease: Under which the caller works; refused if somebody has taken it over.

            instead_of: Number of the version that must still be live, 0 for none; None replaces any.

            alias: ``live``, or ``candidate`` to wait for `promote`.

        Raises:
            LeaseLost: Somebody has; nothing was changed.

            Superseded: Another version is live; nothing was changed.
        """
        if alias not in ("live", "candidate"):
            raise InputError(f"alias: expected live or candidate, got {alias!r}")
        facts = {
            "by": checked_name("by", by),
            "note": cleaned(note),
            "embedder": checked_name("embedder", embedder, empty=True),
            "probe": checked_json("probe", probe) if probe else "",
            "rewarded": _rewarded(offsets) if rewarded is None else int(rewarded),
        }
        checked_name("tenant", tenant, empty=True)
        with self._database.write("publishing") as connection:
            publishing.check_lease(connection, lease)
            publishing.check_live(connection, tenant, instead_of)
            return publishing.publish(connection, offsets, self._load, tenant=tenant, alias=alias, **facts)

    def promote(self, *, by: str, tenant: str = "", note: str = "", lease: Lease | None = None) -> Version:
        """Serve the candidate."""
        with self._database.write("publishing") as connection:
            publishing.check_lease(connection, lease)
            return publishing.promote(
                connection, self._load, tenant=_tenant(tenant), by=checked_name("by", by), why=cleaned(note)
            )

    def rollback(
        self,
        *,
        by: str,
        tenant: str = "",
        note: str = "",
        to: int | None = None,
        lease: Lease | None = None,
        instead_of: int | None = None,
    ) -> Version:
        """Serve again the version that the live one replaced, or version *to*; called twice, it goes back twice.

        What was rolled back is on no way back any more, unless it goes live again.

        Args:
            by: Who does it.

            tenant: For whom.

            note: Why.

            to: A version that was live before.

            lease: As for `publish`.

            instead_of: As for `publish`.

        Raises:
            StoreError: There is none before it, or *to* was never live.

            LeaseLost: As for `publish`.

            Superseded: As for `publish`.
        """
        with self._database.write("publishing") as connection:
            publishing.check_lease(connection, lease)
            publishing.check_live(connection, _tenant(tenant), instead_of)
            return publishing.roll_back(
                connection, self._load, tenant=_tenant(tenant), by=checked_name("by", by), why=cleaned(note), to=to
            )

    def version(self, which: str | int = "live", *, tenant: str = "") -> Version | None:
        """The version of an alias (``live``, ``candidate``, ``previous``) or number; None if there is none."""
        with self._database.read() as connection:
            return publishing.version(connection, self._load, which, tenant)

    def versions(self, *, tenant: str = "", limit: int = 50) -> list[Version]:
        """The newest versions of a tenant, newest first."""
        with self._database.read() as connection:
            return publishing.versions(connection, self._load, tenant, limit)

    def aliases(self, *, tenant: str = "") -> dict[str, int]:
        """Aliases of a tenant with the numbers of the versions they stand for."""
        with self._database.read() as connection:
            return publishing.aliases(connection, tenant)

    # Serving

    def generation(self, *, tenant: str = "") -> int:
        """A number that rises whenever what *tenant* is served may change; one look-up."""
        return self.generations([_tenant(tenant)])[tenant]

    def generations(self, tenants: Collection[str]) -> dict[str, int]:
        """The `generation` of each of *tenants*, one look-up for all; a name that no store can hold is left out."""
        with self._database.read() as connection:
            return publishing.generations(connection, [tenant for tenant in tenants if is_name(tenant)])

    def serving(self, *, tenant: str = "") -> Serving:
        """What a process must serve to *tenant*, read in one moment."""
        checked_name("tenant", tenant, empty=True)
        with self._database.read() as connection:
            return publishing.serving(connection, self._load, tenant)

    def halt(
        self,
        *,
        by: str,
        tenant: str | None = None,
        note: str = "",
        lease: Lease | None = None,
        yielding: bool = False,
    ) -> bool:
        """Serve base vectors, to one tenant or (None) to all, until `resume`; returns whether that was written.

        Args:
            by: Who halts.

            tenant: Whom.

            note: Why.

            lease: As for `publish`.

            yielding: Leaves a halt by somebody else as it is.

        Raises:
            LeaseLost: As for `publish`.
        """
        with self._database.write("publishing") as connection:
            publishing.check_lease(connection, lease)
            who, why = checked_name("by", by), cleaned(note)
            return publishing.halt(connection, tenant=_tenants(tenant), by=who, why=why, yielding=yielding)

    def resume(
        self,
        *,
        by: str,
        tenant: str | None = None,
        note: str = "",
        lease: Lease | None = None,
        yielding: bool = False,
    ) -> bool:
        """Serve again what is live; returns whether that was written.

        A halt of all and one of a tenant are resumed each by itself. The arguments are those of `halt`.
        """
        with self._database.write("publishing") as connection:
            publishing.check_lease(connection, lease)
            who, why = checked_name("by", by), cleaned(note)
            return publishing.resume(connection, tenant=_tenants(tenant), by=who, why=why, yielding=yielding)

    def halted(self, *, tenant: str = "", own: bool = False) -> str | None:
        """Why base vectors are served to *tenant*, maybe empty; None if they are not.

        With *own* a halt of all is left aside, and only one of the tenant itself counts.
        """
        with self._database.read() as connection:
            return publishing.halted(connection, tenant, own=own)

    # The record

    def audit(self, *, tenant: str | None = None, limit: int = 100) -> list[AuditLine]:
        """The newest changes, newest first; those that concern one tenant, or all."""
        table = schema.audit
        chosen = select(table.c.at, table.c.tenant, table.c.by, table.c.action, table.c.detail)
        if tenant is not None:
            chosen = chosen.where(or_(table.c.tenant == _tenant(tenant), table.c.tenant.is_(None)))
        with self._database.read() as connection:
            return [AuditLine(*row) for row in connection.execute(chosen.order_by(table.c.id.desc()).limit(limit))]

    def note(self, by: str, action: str, detail: str = "", *, tenant: str = "") -> None:
        """Write an audit line of the caller's own."""
        checked_name("by", by)
        checked_name("action", action)
        with self._database.write("observing") as connection:
            rows.note(connection, by, action, cleaned(detail), _tenant(tenant))

    def state(self, name: str, *, tenant: str = "") -> str | None:
        """JSON text kept under a name; None where there is none."""
        table, tenants = schema.states, schema.tenants
        value = select(table.c.value).join(tenants, tenants.c.id == table.c.tenant)
        with self._database.read() as connection:
            return connection.execute(value.where(tenants.c.name == tenant, table.c.name == name)).scalar()

    def set_state(self, name: str, value: str | None, *, tenant: str = "", lease: Lease | None = None) -> None:
        """Keep JSON text under a name; None deletes it.

        Raises:
            LeaseLost: As for `publish`.
        """
        checked_name("name", name)
        table = schema.states
        with self._database.write("observing") as connection:
            publishing.check_lease(connection, lease)
            owner = rows.ids_of(connection, schema.tenants, [checked_name("tenant", tenant, empty=True)])[tenant]
            if value is None:
                connection.execute(table.delete().where(table.c.tenant == owner, table.c.name == name))
                return
            kept = {"value": checked_json("value", value)}
            made = rows.insert(connection, table).values(tenant=owner, name=name, **kept)
            connection.execute(made.on_conflict_do_update(index_elements=["tenant", "name"], set_=kept))

    # Leases

    def lease(self, name: str, owner: str, seconds: float) -> Lease | None:
        """The right to do *name* alone for some seconds, an hour at most; None while another owner holds it.

        An owner that asks again is given a new lease; the old one is lost.
        """
        checked_name("name", name)
        checked_name("owner", owner)
        with self._database.write("observing") as connection:
            now = self._database.now(connection)
            return leasing.take(connection, name, owner, now=now, seconds=_lasting(seconds))

    def renew(self, lease: Lease, seconds: float) -> Lease | None:
        """The same lease, from now for some seconds; None if somebody has taken it over."""
        with self._database.write("observing") as connection:
            now = self._database.now(connection)
            return leasing.renew(connection, lease, now=now, seconds=_lasting(seconds))

    def release(self, lease: Lease) -> None:
        """Let others have it at once; nothing if somebody has taken it over."""
        with self._database.write("observing") as connection:
            leasing.release(connection, lease)

    # Forgetting

    def forget(self, *, tenant: str, query_id: str | None = None, by: str) -> Forgotten:
        """Delete a query, in all its tasks, or all of a tenant, and whatever was learned from it.

        Every version of the tenant goes, and of the shared tenant if this one ever shared; the next fit is
        what it would be had the deleted never been seen. The audit goes on saying when, who and what; its details
        of these tenants, which may name tasks and queries, are emptied. Nothing of it comes back late: neither what
        was served before and still waits to be written, nor a judge's answer, nor what a worker is learning. On
        SQLite no byte of it stays in the file, which is written anew for that and needs its own size of free disk;
        on PostgreSQL its space is free to be overwritten. What was served before is told from what was served later
        by the clocks of the hosts that serve and of the database's, which must agree.

        Args:
            tenant: Whose; "" is the shared tenant.

            query_id: The id of a query, or its text where it was captured without an id; None is all of the tenant.

            by: Who asks for it.

        Raises:
            StoreUnavailable: It is deleted, but a reader keeps its bytes from being overwritten; call again.
        """
        checked_name("by", by)
        checked_name("tenant", tenant, empty=True)
        names = None
        if query_id is not None:  # an id may have been made of the text
            names = [name for name in (query_id, self.text_id(query_id)) if is_name(name)]
        with self._database.write("forgetting") as connection:
            now = self._database.now(connection)
            gone = forgetting.forget(connection, self._salt, tenant=tenant, names=names, by=by, now=now)
        self._database.scrub()
        return gone

    def expire(self, before: float, *, by: str) -> int:
        """Delete queries last served before a Unix second, and paid answers as old; returns the queries.

        Versions learned from them stay: this is about age, `forget` about consent.
        """
        checked_name("by", by)
        with self._database.write("forgetting") as connection:
            return forgetting.expire(connection, before, by=by)

    def _load(self, number: int) -> Offsets:
        with self._database.read() as connection:
            return publishing.load(connection, number)

    def _declined(
        self, connection: Connection, judge: str, observations: Iterable[Observation]
    ) -> dict[int, dict[int, float | None]]:
        """The pairs that *judge* answered without a score, by the ids of rows."""
        pairs = {
            pair_key(judge, one.query, text): (row_of(one.query_id), row_of(document))
            for one in observations
            for document, text in one.candidates
        }
        found: dict[int, dict[int, float | None]] = {}
        for key, paid in answers.known(connection, self._salt, list(pairs)).items():
            if paid.score is None:
                query, document = pairs[key]
                found.setdefault(query, {})[document] = None
        return found

    def _size(self, connection: Connection) -> int:
        if self._database.is_sqlite:
            pages, size = (
                connection.execute(text(f"PRAGMA {name}")).scalar_one() for name in ("page_count", "page_size")
            )
            return int(pages * size)
        return int(connection.execute(select(func.pg_database_size(func.current_database()))).scalar_one())


def _keeps_texts(database: Database, *, wanted: bool) -> bool:
    """Whether a store keeps texts: one that was made without them stays so."""
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


def _rewarded(offsets: Offsets) -> int:
    private = sum(offset.scope == "query" for offset in offsets.values())
    return max([private, *(offset.n for offset in offsets.values())])


def _tenant(tenant: str) -> str:
    return checked_name("tenant", tenant, empty=True)


def _tenants(tenant: str | None) -> str | None:
    return None if tenant is None else _tenant(tenant)


def _last(count: int | None) -> int | None:
    if count is not None and count < 1:
        raise InputError(f"last: expected at least 1 query, got {count}")
    return count


def _lasting(seconds: float) -> float:
    if not 0 < seconds <= leasing.LONGEST:
        raise InputError(f"seconds: expected a number in (0, {leasing.LONGEST:g}], got {seconds}")
    return seconds
