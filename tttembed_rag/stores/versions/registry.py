"""The registry: publish and roll back versions of offsets, and halt or resume what is served."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from sqlalchemy import Connection

from tttembed_rag.errors import StoreError, Superseded
from tttembed_rag.offsets.file import Settings
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.rewards.names import checked_name, cleaned
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.leasing import check_lease
from tttembed_rag.stores.log.due import mark_due
from tttembed_rag.stores.records import Lease, Version, checked_json
from tttembed_rag.stores.rows import id_of, ids_of
from tttembed_rag.stores.versions.aliases import (
    Load,
    aliases_of,
    evidence_of,
    go_live,
    halt_of,
    set_halted,
    settings_of,
    version_of_row,
    versions_of,
    way_back,
)
from tttembed_rag.stores.versions.audittrail import write_line


class Registry:
    """The versions of offsets in a store: what was published for each tenant, what is live, and what is halted.

    A version never changes. Two aliases stand for versions of a tenant: ``live`` is served, and ``previous`` is what it
    replaced. Every change leaves a line in the audit trail.
    """

    def __init__(self, database: Database, load: Load) -> None:
        self._database = database
        self._load = load

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
        content, note = offsets.to_bytes(), cleaned(note)
        facts = {
            "by": checked_name("by", by),
            "note": note,
            "embedder": checked_name("embedder", embedder or str(offsets.settings.get("embedder", "")), empty=True),
            "width": offsets.width,
            "rewarded": _rewarded(offsets) if rewarded is None else int(rewarded),
            "kept": len(offsets),
            "served": sum(offset.in_use for offset in offsets.values()),
            "probe": checked_json("probe", probe) if probe else "",
            "digest": hashlib.sha256(content).digest(),
            "content": content,
            "evidence": cleaned(evidence_of(offsets)),
        }
        table = schema.versions
        with self._changing(tenant, lease, instead_of) as (connection, owner):
            made = table.insert().values(tenant=owner, at=time.time(), **facts).returning(table.c.number)
            number = connection.execute(made).scalar_one()
            go_live(connection, owner, number)
            return self._recorded(connection, tenant, owner, number, "publish", by=by, note=note)

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
        checked_name("by", by)
        with self._changing(tenant, lease, instead_of) as (connection, owner):
            number = aliases_of(connection, owner).get("previous") if to is None else to
            if number is None:
                raise StoreError(
                    f"rollback: expected a version before of tenant {tenant!r}, found none; a halt serves base vectors"
                )
            if number not in way_back(connection, owner):
                raise StoreError(f"rollback: expected a version of tenant {tenant!r} that was live, got {number}")
            go_live(connection, owner, number)
            return self._recorded(connection, tenant, owner, number, "rollback", by=by, note=cleaned(note))

    def version(self, which: str | int = "live", *, tenant: str = "") -> Version | None:
        """The version of an alias (``live``, ``previous``) or number; None if there is none."""
        with self._database.read() as connection:
            owner = id_of(connection, schema.tenants, tenant)
            number = which if isinstance(which, int) else aliases_of(connection, owner).get(which)
            chosen = versions_of(owner).where(schema.versions.c.number == number)
            row = connection.execute(chosen).first()
        return None if row is None else version_of_row(row, self._load)

    def settings(self, *, tenant: str = "") -> Settings:
        """How the live version of a tenant was learned, read without its vectors; empty where there is none.

        Raises:
            StoreError: They are damaged.
        """
        with self._database.read() as connection:
            live = aliases_of(connection, id_of(connection, schema.tenants, tenant)).get("live")
            return settings_of(connection, live) or {}

    def versions(self, *, tenant: str = "", limit: int = 50) -> list[Version]:
        """The newest versions of a tenant, newest first."""
        with self._database.read() as connection:
            chosen = versions_of(id_of(connection, schema.tenants, tenant))
            newest = connection.execute(chosen.order_by(schema.versions.c.number.desc()).limit(limit)).all()
        return [version_of_row(row, self._load) for row in newest]

    def aliases(self, *, tenant: str = "") -> dict[str, int]:
        """Aliases of a tenant with the numbers of the versions they stand for."""
        with self._database.read() as connection:
            return aliases_of(connection, id_of(connection, schema.tenants, tenant))

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
        """Why base vectors are served to *tenant*, maybe empty; None if they are not.

        With *own* a halt of all tenants is left aside, and only a halt of this tenant counts.
        """
        with self._database.read() as connection:
            of_all = None if own else halt_of(connection, None)[0]
            return halt_of(connection, tenant)[0] if of_all is None else of_all

    @contextmanager
    def _changing(
        self, tenant: str, lease: Lease | None, instead_of: int | None = None
    ) -> Iterator[tuple[Connection, int]]:
        """A transaction that changes what *tenant* is served, with the id of the tenant, if the caller still may."""
        checked_name("tenant", tenant, empty=True)
        with self._database.write("publishing") as connection:
            check_lease(connection, lease)
            owner = ids_of(connection, schema.tenants, [tenant])[tenant]
            live = aliases_of(connection, owner).get("live", 0)
            if instead_of not in (None, live):
                raise Superseded(
                    f"version: expected {instead_of or 'none'} of tenant {tenant!r} to be live, "
                    f"found {live or 'none'}; nothing was changed"
                )
            yield connection, owner
            if lease is None:  # by a person: a worker looks at what is live now
                mark_due(connection, [owner])

    def _recorded(
        self, connection: Connection, tenant: str, owner: int, number: int, action: str, *, by: str, note: str
    ) -> Version:
        """The version that a change was about, once the audit trail tells of the change."""
        write_line(connection, by, action, f"version {number} is live{f': {note}' if note else ''}", tenant)
        row = connection.execute(versions_of(owner).where(schema.versions.c.number == number)).one()
        return version_of_row(row, self._load)

    def _switch(
        self, action: Literal["halt", "resume"], by: str, tenant: str | None, note: str, lease: Lease | None
    ) -> bool:
        checked_name("by", by)
        if tenant is not None:
            checked_name("tenant", tenant, empty=True)
        why = cleaned(note)
        with self._database.write("publishing") as connection:
            check_lease(connection, lease)
            _, holder = halt_of(connection, tenant)
            if lease is not None and holder != by and not (action == "halt" and holder is None):
                return False
            set_halted(connection, tenant, *((why, by) if action == "halt" else (None, None)))
            if lease is None and tenant is not None:
                mark_due(connection, ids_of(connection, schema.tenants, [tenant]).values())
            write_line(connection, by, action, why, tenant)
        return True


def _rewarded(offsets: Offsets) -> int:
    """The most rewarded queries that one offset, or the private ones together, were learned from."""
    private = sum(offset.scope == "query" for offset in offsets.values())
    return max([private, *(offset.n for offset in offsets.values())])
