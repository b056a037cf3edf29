"""Published versions: which exist, which is live, and what a process must serve."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, Literal

from sqlalchemy import Connection, Select, select

from tttembed_rag.errors import LeaseLost, OffsetFileError, StoreError
from tttembed_rag.offsets import Offsets
from tttembed_rag.stores import schema
from tttembed_rag.stores.records import Lease, Serving, Version
from tttembed_rag.stores.rows import fact, found, ids_of, insert, note, set_fact

Alias = Literal["live", "candidate", "previous"]
Load = Callable[[int], Offsets]

_HALTED = "halted"


def publish(
    connection: Connection, offsets: Offsets, load: Load, *, tenant: str, alias: Alias, **facts: Any
) -> Version:
    """Keep *offsets* as a new version under *alias*."""
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    content = offsets.to_bytes()
    row = {
        "tenant": owner,
        "at": time.time(),
        "width": offsets.width,
        "kept": len(offsets),
        "served": sum(offset.served for offset in offsets.values()),
        "lived": alias == "live",
        "digest": hashlib.sha256(content).digest(),
        "content": content,
        **facts,
    }
    made = schema.versions.insert().values(**row).returning(schema.versions.c.number)
    number = connection.execute(made).scalar_one()
    if alias == "live":
        _go_live(connection, owner, number, previous=_aliased(connection, owner, "live"))
    else:
        _point(connection, owner, alias, number)
    what = f"version {number} is {alias}"
    note(connection, facts["by"], "publish", f"{what}: {facts['note']}" if facts["note"] else what, tenant)
    return _existing(connection, owner, number, load)


def promote(connection: Connection, load: Load, *, tenant: str, by: str, why: str) -> Version:
    """The candidate goes live."""
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    number = _aliased(connection, owner, "candidate")
    if number is None:
        raise StoreError(f"promote: expected a candidate of tenant {tenant!r}, found none")
    live = _aliased(connection, owner, "live")
    if live != number:
        _go_live(connection, owner, number, previous=live)
    _point(connection, owner, "candidate", None)
    note(connection, by, "promote", f"version {number} is live{_because(why)}", tenant)
    return _existing(connection, owner, number, load)


def roll_back(connection: Connection, load: Load, *, tenant: str, by: str, why: str, to: int | None) -> Version:
    """The previous version, or version *to*, goes live; before it comes what was live before it."""
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    number = _aliased(connection, owner, "previous") if to is None else to
    if number is None:
        raise StoreError(f"rollback: expected a previous version of tenant {tenant!r}, found none")
    versions = schema.versions
    mine = select(versions.c.number).where(versions.c.tenant == owner)
    if connection.execute(mine.where(versions.c.number == number)).scalar() is None:
        raise StoreError(f"rollback: expected a version of tenant {tenant!r}, got {number}")
    earlier = mine.where(versions.c.lived, versions.c.number < number).order_by(versions.c.number.desc())
    _go_live(connection, owner, number, previous=connection.execute(earlier.limit(1)).scalar())
    note(connection, by, "rollback", f"version {number} is live{_because(why)}", tenant)
    return _existing(connection, owner, number, load)


def version(connection: Connection, load: Load, which: str | int, tenant: str) -> Version | None:
    """The version of an alias or a number; None where there is none."""
    owner = found(connection, schema.tenants, tenant)
    if owner is None:
        return None
    number = which if isinstance(which, int) else _aliased(connection, owner, which)
    row = connection.execute(
        _facts().where(schema.versions.c.number == number, schema.versions.c.tenant == owner)
    ).first()
    return None if row is None else _version(row, load)


def versions(connection: Connection, load: Load, tenant: str, limit: int) -> list[Version]:
    """The newest versions, newest first."""
    owner = found(connection, schema.tenants, tenant)
    number = schema.versions.c.number
    rows = connection.execute(_facts().where(schema.versions.c.tenant == owner).order_by(number.desc()).limit(limit))
    return [_version(row, load) for row in rows]


def aliases(connection: Connection, tenant: str) -> dict[str, int]:
    """Aliases with the numbers they stand for."""
    owner = found(connection, schema.tenants, tenant)
    table = schema.aliases
    rows = connection.execute(select(table.c.alias, table.c.version).where(table.c.tenant == owner))
    return {row.alias: row.version for row in rows}


def load(connection: Connection, number: int) -> Offsets:
    """The offsets of a version, checked.

    Raises:
        StoreError: They are damaged, or gone.
    """
    table = schema.versions
    row = connection.execute(select(table.c.content, table.c.digest).where(table.c.number == number)).first()
    if row is None:
        raise StoreError(f"version {number}: expected its offsets, found none (forgotten since)")
    content = bytes(row.content)
    if hashlib.sha256(content).digest() != bytes(row.digest):
        raise StoreError(f"version {number}: expected the offsets that were published, got damaged ones")
    try:
        return Offsets.from_bytes(content, f"version {number}")
    except OffsetFileError as exc:
        raise StoreError(str(exc)) from exc


def halt(connection: Connection, *, tenant: str | None, by: str, why: str) -> None:
    """Serve base vectors to *tenant*, or to all, until `resume`."""
    if tenant is None:
        set_fact(connection, _HALTED, why)
    else:
        owner = ids_of(connection, schema.tenants, [tenant])[tenant]
        connection.execute(schema.tenants.update().where(schema.tenants.c.id == owner).values(halted=why))
    bump(connection, tenant or "")
    note(connection, by, "halt", why, tenant)


def resume(connection: Connection, *, tenant: str | None, by: str, why: str) -> None:
    """Serve again what is live."""
    if tenant is None:
        set_fact(connection, _HALTED, None)
    else:
        owner = ids_of(connection, schema.tenants, [tenant])[tenant]
        connection.execute(schema.tenants.update().where(schema.tenants.c.id == owner).values(halted=None))
    bump(connection, tenant or "")
    note(connection, by, "resume", why, tenant)


def halted(connection: Connection, tenant: str, *, own: bool = False) -> str | None:
    """Why base vectors are served to *tenant*, or why only to it; None if they are not."""
    if not own and (why := fact(connection, _HALTED)) is not None:
        return why
    return connection.execute(select(schema.tenants.c.halted).where(schema.tenants.c.name == tenant)).scalar()


def generation(connection: Connection, tenant: str) -> int:
    """A number that rises whenever what *tenant* is served may change."""
    table = schema.tenants
    rows = connection.execute(select(table.c.generation).where(table.c.name.in_({tenant, ""})))
    return sum(rows.scalars())


def bump(connection: Connection, tenant: str) -> None:
    """Tell readers that what *tenant* is served has changed."""
    table = schema.tenants
    ids_of(connection, table, [tenant])
    connection.execute(table.update().where(table.c.name == tenant).values(generation=table.c.generation + 1))


def serving(connection: Connection, load: Load, tenant: str) -> Serving:
    """What *tenant* is served now."""
    why = halted(connection, tenant)
    live = version(connection, load, "live", tenant)
    if live is None and tenant:
        why = why if why is not None else halted(connection, "")
        live = version(connection, load, "live", "")
    return Serving(generation(connection, tenant), live, why)


def check_lease(connection: Connection, lease: Lease | None) -> None:
    """Refuse what the owner of a lease does that somebody else has taken over.

    Raises:
        LeaseLost: Somebody has.
    """
    if lease is None:
        return
    table = schema.leases
    held = select(table.c.owner, table.c.token).where(table.c.name == lease.name).with_for_update()
    row = connection.execute(held).first()
    if row is None or (row.owner, row.token) != (lease.owner, lease.token):
        held_by = "nobody" if row is None or not row.owner else f"{row.owner!r} (token {row.token})"
        raise LeaseLost(
            f"lease {lease.name!r}: expected to be held by {lease.owner!r} (token {lease.token}), "
            f"got {held_by}; nothing was changed"
        )


def _go_live(connection: Connection, tenant: int, number: int, *, previous: int | None) -> None:
    _point(connection, tenant, "previous", previous)
    _point(connection, tenant, "live", number)
    versions, tenants = schema.versions, schema.tenants
    connection.execute(versions.update().where(versions.c.number == number).values(lived=True))
    connection.execute(tenants.update().where(tenants.c.id == tenant).values(generation=tenants.c.generation + 1))


def _point(connection: Connection, tenant: int, alias: str, number: int | None) -> None:
    table = schema.aliases
    if number is None:
        connection.execute(table.delete().where(table.c.tenant == tenant, table.c.alias == alias))
        return
    made = insert(connection, table).values(tenant=tenant, alias=alias, version=number)
    connection.execute(made.on_conflict_do_update(index_elements=["tenant", "alias"], set_={"version": number}))


def _aliased(connection: Connection, tenant: int, alias: str) -> int | None:
    table = schema.aliases
    return connection.execute(select(table.c.version).where(table.c.tenant == tenant, table.c.alias == alias)).scalar()


def _facts() -> Select[Any]:
    """Everything of a version but its content."""
    v, t = schema.versions, schema.tenants
    facts = [v.c.number, t.c.name.label("tenant"), v.c.at, v.c.by, v.c.note, v.c.embedder, v.c.width, v.c.rewarded]
    return select(*facts, v.c.kept, v.c.served, v.c.probe).join(t, t.c.id == v.c.tenant)


def _version(row: Any, load: Load) -> Version:
    return Version(**row._asdict(), _load=load)


def _existing(connection: Connection, tenant: int, number: int, load: Load) -> Version:
    v = schema.versions
    return _version(connection.execute(_facts().where(v.c.tenant == tenant, v.c.number == number)).one(), load)


def _because(why: str) -> str:
    return f": {why}" if why else ""
