"""The registry: publish and roll back versions of offsets, halt or resume what is served, and what is served now."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from sqlalchemy import Connection, Select, and_, bindparam, case, or_, select

from tttembed_rag.errors import OffsetFileError, StoreError, Superseded
from tttembed_rag.offsets.offsets import Offsets
from tttembed_rag.rewards.names import checked_name, cleaned
from tttembed_store.sql import schema
from tttembed_store.sql.database import Database
from tttembed_store.sql.log.due import mark_due
from tttembed_store.sql.records import Generations, Lease, TenantState, Version
from tttembed_store.sql.rows import fact, ids_of, set_fact
from tttembed_store.sql.versions.changes import write_line

# Names of the facts that say why all tenants are halted, and who halted them.
_HALTED, _HALTED_BY = "halted", "halted_by"
_v, _t = schema.versions, schema.tenants
# Of a tenant and the version that is live for it.
_IS_LIVE = and_(_v.c.number == _t.c.live, _v.c.tenant == _t.c.id)
# The columns of a version without its content.
_FACTS = (
    *(_v.c.number, _t.c.name.label("tenant"), _v.c.at, _v.c.by, _v.c.note, _v.c.embedder),
    *(_v.c.width, _v.c.rewarded, _v.c.kept, _v.c.served, _v.c.probe, _v.c.evidence),
)
# Built once, as followers ask it again and again: building a statement takes longer than answering it.
_EVERYWHERE = select(schema.facts.c.value).where(schema.facts.c.name == _HALTED).scalar_subquery().label("everywhere")
_GENERATIONS = select(_t.c.name, _t.c.generation, _EVERYWHERE).where(or_(_t.c.generation > 0, _t.c.name == ""))
_SERVING = (
    select(_t.c.generation, _t.c.halted, _EVERYWHERE, *_FACTS)
    .outerjoin(_v, _IS_LIVE)
    .where(or_(_t.c.name == bindparam("tenant"), _t.c.name == ""))
)
_CONTENT = select(_v.c.content, _v.c.digest).where(_v.c.number == bindparam("number"))


class Registry:
    """The versions of offsets in a store: what was published for each tenant, what is live, and what is halted.

    A version never changes. Two aliases stand for versions of a tenant: ``live`` is served, and ``previous`` is what it
    replaced. Every change leaves a line in the log of changes.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

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
    ) -> Version:
        """Keep *offsets* as a new version and serve them, at once for every reader.

        Args:
            offsets: What was learned.
            by: The name of the one who publishes.
            tenant: The tenant that is served; "" serves every tenant without a live version of its own.
            note: The reason.
            embedder: Fingerprint of the model that made the vectors they were learned from; empty takes the one that
                the offsets carry.
            probe: JSON text to find again with the version.
            rewarded: Rewarded queries they were learned from; None takes the most that one offset, or the
                private ones together, were learned from.
            lease: The lease that the caller works under; the change is refused if another owner has taken it over.
            instead_of: Number of the version that must still be live, 0 for none; None replaces any.

        Raises:
            LeaseLost: Another owner has the lease; nothing was changed.
            Superseded: Another version is live; nothing was changed.
        """
        content = offsets.to_bytes()
        facts = {
            "by": by,
            "note": cleaned(note),
            "embedder": checked_name("embedder", embedder or str(offsets.settings.get("embedder", "")), empty=True),
            "width": offsets.width,
            "rewarded": _rewarded(offsets) if rewarded is None else int(rewarded),
            "kept": len(offsets),
            "served": sum(offset.in_use for offset in offsets.values()),
            "probe": cleaned(probe),
            "digest": hashlib.sha256(content).digest(),
            "content": content,
            "evidence": cleaned(_evidence_of(offsets)),
        }

        def made(connection: Connection, owner: int, *_: object) -> int:
            new = _v.insert().values(tenant=owner, at=time.time(), **facts)
            return int(connection.execute(new.returning(_v.c.number)).scalar_one())

        return self._serve("publish", made, by=by, tenant=tenant, note=note, lease=lease, instead_of=instead_of)

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

        A version that was rolled back is on no way back any more, unless it goes live again. The other arguments are
        those of `publish`.

        Raises:
            StoreError: There is none before it, or *to* was never live.
            LeaseLost: As for `publish`.
            Superseded: As for `publish`.
        """

        def behind(_: Connection, __: int, live: int | None, replaced: Mapping[int, int | None]) -> int:
            number = replaced[live] if to is None and live is not None else to
            if number is None:
                raise StoreError(
                    f"rollback: expected a version before of tenant {tenant!r}, found none; a halt serves base vectors"
                )
            if number not in replaced:
                raise StoreError(f"rollback: expected a version of tenant {tenant!r} that was live, got {number}")
            return number

        return self._serve("rollback", behind, by=by, tenant=tenant, note=note, lease=lease, instead_of=instead_of)

    def version(self, which: str | int = "live", *, tenant: str = "") -> Version | None:
        """The version of an alias (``live``, ``previous``) or number; None if there is none."""
        with self._database.read() as connection:
            number = which if isinstance(which, int) else _aliases(connection, tenant).get(which)
            row = connection.execute(_versions(tenant).where(_v.c.number == number)).first()
        return None if row is None else self._version(row)

    def versions(self, *, tenant: str = "", limit: int = 50) -> list[Version]:
        """The newest versions of a tenant, newest first."""
        with self._database.read() as connection:
            newest = connection.execute(_versions(tenant).order_by(_v.c.number.desc()).limit(limit)).all()
        return [self._version(row) for row in newest]

    def aliases(self, *, tenant: str = "") -> dict[str, int]:
        """Aliases of a tenant with the numbers of the versions they stand for."""
        with self._database.read() as connection:
            return _aliases(connection, tenant)

    def halt(self, *, by: str, tenant: str | None = None, note: str = "", lease: Lease | None = None) -> bool:
        """Serve base vectors, to one tenant or (None) to all, until `resume`; gives whether that was written.

        The arguments are those of `publish`. Who works under a lease leaves a halt by another name as it is.

        Raises:
            LeaseLost: As for `publish`.
        """
        return self._switch("halt", by, tenant, note, lease)

    def resume(self, *, by: str, tenant: str | None = None, note: str = "", lease: Lease | None = None) -> bool:
        """Serve again what is live; gives whether that was written.

        A halt of all tenants and a halt of one tenant are resumed each by itself. The arguments are those of `halt`.
        """
        return self._switch("resume", by, tenant, note, lease)

    def halted(self, *, tenant: str = "", own: bool = False) -> str | None:
        """The `TenantState.halted` of *tenant*; with *own* as in `Store.serving`."""
        return self.serving(tenant, own=own).halted

    def generations(self) -> Generations:
        """See `Store.generations`."""
        with self._database.read() as connection:
            rows = connection.execute(_GENERATIONS).all()
        # The shared tenant has a row whenever all tenants are halted: `_switch` makes it.
        everywhere = next((row.everywhere for row in rows), None)
        return Generations(everywhere, {"": 0} | {row.name: row.generation for row in rows})

    def serving(self, tenant: str, *, own: bool) -> TenantState:
        """See `Store.serving`."""
        with self._database.read() as connection:
            rows = {row.tenant: row for row in connection.execute(_SERVING, {"tenant": tenant})}
        chosen = [rows[name] for name in dict.fromkeys([tenant] if own else [tenant, ""]) if name in rows]
        generation = sum(row.generation for row in chosen)
        if chosen and chosen[0].number is not None:
            chosen = chosen[:1]
        reasons = [*(row.everywhere for row in chosen if not own), *(row.halted for row in chosen)]
        why = next((reason for reason in reasons if reason is not None), None)
        live = next((self._version(row) for row in chosen if row.number is not None), None)
        return TenantState(generation, live, why)

    def _version(self, row: Any) -> Version:
        """The version that a row with `_FACTS` describes."""
        return Version(**{column.name: getattr(row, column.name) for column in _FACTS}, _load=self._offsets)

    def _offsets(self, number: int) -> Offsets:
        """The offsets of a version, checked."""
        with self._database.read() as connection:
            row = connection.execute(_CONTENT, {"number": number}).first()
        if row is None:
            raise StoreError(f"version {number}: expected its offsets, found none (forgotten since)")
        content = bytes(row.content)
        if hashlib.sha256(content).digest() != bytes(row.digest):
            raise StoreError(f"version {number}: expected the offsets that were published, got damaged ones")
        try:
            return Offsets.from_bytes(content, f"version {number}")
        except OffsetFileError as exc:
            raise StoreError(str(exc)) from exc

    def _serve(
        self,
        action: Literal["publish", "rollback"],
        choose: Callable[[Connection, int, int | None, Mapping[int, int | None]], int],
        *,
        by: str,
        tenant: str,
        note: str,
        lease: Lease | None,
        instead_of: int | None,
    ) -> Version:
        """Serve the version that *choose* gives, if the caller still may.

        It is told the id of the tenant, the number of the live version, and what each version replaced. A version that
        lies on the way back from the live one keeps the version that it replaced itself.
        """
        checked_name("by", by)
        checked_name("tenant", tenant, empty=True)
        with self._database.write("publishing", lease) as connection:
            owner = ids_of(connection, _t, [tenant])[tenant]
            live = _aliases(connection, tenant).get("live")
            if instead_of not in (None, live or 0):
                raise Superseded(
                    f"version: expected {instead_of or 'none'} of tenant {tenant!r} to be live, "
                    f"found {live or 'none'}; nothing was changed"
                )
            of_tenant = select(_v.c.number, _v.c.replaced).where(_v.c.tenant == owner)
            replaced = {row.number: row.replaced for row in connection.execute(of_tenant)}
            number = choose(connection, owner, live, replaced)
            behind, step = set[int](), live
            while step is not None and step not in behind:
                behind.add(step)
                step = replaced.get(step)
            if number not in behind:
                connection.execute(_v.update().where(_v.c.number == number).values(replaced=live))
            connection.execute(_t.update().where(_t.c.id == owner).values(live=number))
            announce(connection, tenant)
            why = f": {cleaned(note)}" if note else ""
            write_line(connection, by, action, f"version {number} is live{why}", tenant)
            if lease is None:  # by a person: a worker looks at what is live now
                mark_due(connection, [owner])
            return self._version(connection.execute(_versions(tenant).where(_v.c.number == number)).one())

    def _switch(
        self, action: Literal["halt", "resume"], by: str, tenant: str | None, note: str, lease: Lease | None
    ) -> bool:
        checked_name("by", by)
        name = checked_name("tenant", tenant or "", empty=True)
        why = cleaned(note)
        values = (why, by) if action == "halt" else (None, None)
        with self._database.write("publishing", lease) as connection:
            owner = ids_of(connection, _t, [name])[name]
            if tenant is None:
                holder = fact(connection, _HALTED_BY)
            else:
                holder = connection.execute(select(_t.c.halted_by).where(_t.c.id == owner)).scalar()
            if lease is not None and holder != by and not (action == "halt" and holder is None):
                return False
            if tenant is None:
                set_fact(connection, _HALTED, values[0])
                set_fact(connection, _HALTED_BY, values[1])
            else:
                connection.execute(_t.update().where(_t.c.id == owner).values(halted=values[0], halted_by=values[1]))
                if lease is None:
                    mark_due(connection, [owner])
            announce(connection, name)
            write_line(connection, by, action, why, tenant)
        return True


def announce(connection: Connection, tenant: str) -> None:
    """Say that what *tenant* is served has changed.

    Its generation rises, to one that it never had: not in a copy of the store from before either.
    """
    now = time.time_ns() // 1000
    risen = case((_t.c.generation < now, now), else_=_t.c.generation + 1)
    connection.execute(_t.update().where(_t.c.name == tenant).values(generation=risen))


def _versions(tenant: str) -> Select[Any]:
    """The statement that reads the versions of a tenant."""
    return select(*_FACTS).join(_t, _t.c.id == _v.c.tenant).where(_t.c.name == tenant)


def _aliases(connection: Connection, tenant: str) -> dict[str, int]:
    """The numbers of the ``live`` version of a tenant and of the ``previous`` one, which it replaced, if any."""
    aliases = select(_v.c.number.label("live"), _v.c.replaced.label("previous")).join(_t, _IS_LIVE)
    rows = connection.execute(aliases.where(_t.c.name == tenant)).mappings()
    return {alias: number for row in rows for alias, number in row.items() if number is not None}


def _evidence_of(offsets: Offsets) -> str:
    """The evidence of the shared offset that learned from most queries, and how many others are served, in one line."""
    shared = [offset for offset in offsets.values() if offset.query_id is None]
    if not shared:
        return "no shared offset"
    first = max(shared, key=lambda offset: (offset.served, offset.n))
    others = sum(offset.served for offset in shared) - first.served
    more = f" (and {others} more)" if others else ""
    return f"{first.key}: {first.evidence}{more}"


def _rewarded(offsets: Offsets) -> int:
    """The most rewarded queries that one offset, or the private ones together, were learned from."""
    private = sum(offset.scope == "query" for offset in offsets.values())
    return max([private, *(offset.n for offset in offsets.values())])
