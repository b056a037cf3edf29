"""Published versions: which exist, which is live, and what a process must serve."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection
from typing import Any, Literal

from sqlalchemy import Connection, Select, and_, bindparam, or_, select

from tttembed_rag.errors import LeaseLost, OffsetFileError, StoreError, Superseded
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.stores import schema
from tttembed_rag.stores.records import Lease, Serving, Version
from tttembed_rag.stores.rows import fact, found, ids_of, in_parts, insert, note, set_fact

Alias = Literal["live", "candidate", "previous"]
Load = Callable[[int], Offsets]

# Facts about a halt of all.
_HALTED, _HALTED_BY = "halted", "halted_by"
_v, _t, _a = schema.versions, schema.tenants, schema.aliases
# Everything of a version but its content.
_FACTS = (
    *(_v.c.number, _t.c.name.label("tenant"), _v.c.at, _v.c.by, _v.c.note, _v.c.embedder),
    *(_v.c.width, _v.c.rewarded, _v.c.kept, _v.c.served, _v.c.probe),
)
# What followers ask again and again: to make a statement takes longer than to answer it.
_MINE = or_(_t.c.name == bindparam("tenant"), _t.c.name == "")
_SERVING = (
    select(
        _t.c.generation,
        _t.c.halted,
        select(schema.facts.c.value).where(schema.facts.c.name == _HALTED).scalar_subquery().label("everywhere"),
        *_FACTS,
    )
    .outerjoin(_a, and_(_a.c.tenant == _t.c.id, _a.c.alias == "live"))
    .outerjoin(_v, and_(_v.c.number == _a.c.version, _v.c.tenant == _t.c.id))
    .where(_MINE)
)
_CONTENT = select(_v.c.content, _v.c.digest).where(_v.c.number == bindparam("number"))


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
        "digest": hashlib.sha256(content).digest(),
        "content": content,
        **facts,
    }
    made = schema.versions.insert().values(**row).returning(schema.versions.c.number)
    number = connection.execute(made).scalar_one()
    if alias == "live":
        _go_live(connection, owner, number)
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
    _go_live(connection, owner, number)
    _point(connection, owner, "candidate", None)
    note(connection, by, "promote", f"version {number} is live{_because(why)}", tenant)
    return _existing(connection, owner, number, load)


def roll_back(connection: Connection, load: Load, *, tenant: str, by: str, why: str, to: int | None) -> Version:
    """The version that was live before the live one, or version *to*, goes live."""
    owner = ids_of(connection, schema.tenants, [tenant])[tenant]
    number = _aliased(connection, owner, "previous") if to is None else to
    if number is None:
        raise StoreError(f"rollback: expected a previous version of tenant {tenant!r}, found none")
    if number not in _history(connection, owner):
        raise StoreError(f"rollback: expected a version of tenant {tenant!r} that was live, got {number}")
    _go_live(connection, owner, number)
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
    names = ("live", "candidate", "previous")
    return {name: number for name in names if (number := _aliased(connection, owner, name)) is not None}


def load(connection: Connection, number: int) -> Offsets:
    """The offsets of a version, checked.

    Raises:
        StoreError: They are damaged, or gone.
    """
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


def halt(connection: Connection, *, tenant: str | None, by: str, why: str, yielding: bool) -> bool:
    """Serve base vectors to *tenant*, or to all, until `resume`; *yielding* to whoever else has halted it."""
    if yielding and _halted_by(connection, tenant) not in (None, by):
        return False
    _set_halted(connection, tenant, why, by)
    note(connection, by, "halt", why, tenant)
    return True


def resume(connection: Connection, *, tenant: str | None, by: str, why: str, yielding: bool) -> bool:
    """Serve again what is live; *yielding* only where *by* has halted it."""
    if yielding and _halted_by(connection, tenant) != by:
        return False
    _set_halted(connection, tenant, None, None)
    note(connection, by, "resume", why, tenant)
    return True


def _set_halted(connection: Connection, tenant: str | None, why: str | None, by: str | None) -> None:
    if tenant is None:
        set_fact(connection, _HALTED, why)
        set_fact(connection, _HALTED_BY, by)
    else:
        owner = ids_of(connection, schema.tenants, [tenant])[tenant]
        said = schema.tenants.update().where(schema.tenants.c.id == owner).values(halted=why, halted_by=by)
        connection.execute(said)
    bump(connection, tenant or "")


def _halted_by(connection: Connection, tenant: str | None) -> str | None:
    """Who has halted *tenant*, or all; None if nobody has."""
    if tenant is None:
        return fact(connection, _HALTED_BY)
    return connection.execute(select(schema.tenants.c.halted_by).where(schema.tenants.c.name == tenant)).scalar()


def halted(connection: Connection, tenant: str, *, own: bool = False) -> str | None:
    """Why base vectors are served to *tenant*, or why only to it; None if they are not."""
    if not own and (why := fact(connection, _HALTED)) is not None:
        return why
    return connection.execute(select(schema.tenants.c.halted).where(schema.tenants.c.name == tenant)).scalar()


def generations(connection: Connection, tenants: Collection[str]) -> dict[str, int]:
    """By tenant, a number that rises whenever what it is served may change."""
    table = schema.tenants
    known: dict[str, int] = {}
    for some in in_parts(sorted({"", *tenants})):
        rows = connection.execute(select(table.c.name, table.c.generation).where(table.c.name.in_(some)))
        known |= {row.name: row.generation for row in rows}
    shared = known.get("", 0)
    return {tenant: shared + known.get(tenant, 0) if tenant else shared for tenant in tenants}


def bump(connection: Connection, tenant: str) -> None:
    """Tell readers that what *tenant* is served has changed."""
    table = schema.tenants
    ids_of(connection, table, [tenant])
    connection.execute(table.update().where(table.c.name == tenant).values(generation=table.c.generation + 1))


def serving(connection: Connection, load: Load, tenant: str) -> Serving:
    """What *tenant* is served now: its own live version, else that of the shared tenant."""
    rows = {row.tenant: row for row in connection.execute(_SERVING, {"tenant": tenant})}
    asked = [rows[name] for name in dict.fromkeys((tenant, "")) if name in rows]
    if asked and asked[0].number is not None:
        asked = asked[:1]
    # Whoever halts everything makes the shared tenant, should it not be there yet.
    reasons = [*(row.everywhere for row in asked), *(row.halted for row in asked)]
    why = next((reason for reason in reasons if reason is not None), None)
    live = next((_version(row, load) for row in asked if row.number is not None), None)
    return Serving(sum(row.generation for row in rows.values()), live, why)


def check_live(connection: Connection, tenant: str, expected: int | None) -> None:
    """Refuse to replace another version than the one that was *expected* to be live, 0 for none; None is any.

    Raises:
        Superseded: Another one is.
    """
    if expected is None:
        return
    live = aliases(connection, tenant).get("live", 0)
    if live != expected:
        raise Superseded(
            f"version: expected {expected or 'none'} of tenant {tenant!r} to be live, found {live or 'none'}; "
            "nothing was changed"
        )


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


def _go_live(connection: Connection, tenant: int, number: int) -> None:
    """Serve a version instead of the live one; one that lies behind that keeps what lies behind itself."""
    replaced, live = _history(connection, tenant), _aliased(connection, tenant, "live")
    behind, step = set[int](), live
    while step is not None and step not in behind:
        behind.add(step)
        step = replaced[step]
    if number not in behind:
        made = insert(connection, schema.lives).values(version=number, replaced=live)
        connection.execute(made.on_conflict_do_update(index_elements=["version"], set_={"replaced": live}))
    _point(connection, tenant, "live", number)
    tenants = schema.tenants
    connection.execute(tenants.update().where(tenants.c.id == tenant).values(generation=tenants.c.generation + 1))


def _history(connection: Connection, tenant: int) -> dict[int, int | None]:
    """The versions that were live, each with the one that it replaced."""
    lives, v = schema.lives, schema.versions
    chosen = select(lives.c.version, lives.c.replaced).join(v, v.c.number == lives.c.version)
    return {row.version: row.replaced for row in connection.execute(chosen.where(v.c.tenant == tenant))}


def _point(connection: Connection, tenant: int, alias: str, number: int | None) -> None:
    table = schema.aliases
    if number is None:
        connection.execute(table.delete().where(table.c.tenant == tenant, table.c.alias == alias))
        return
    made = insert(connection, table).values(tenant=tenant, alias=alias, version=number)
    connection.execute(made.on_conflict_do_update(index_elements=["tenant", "alias"], set_={"version": number}))


def _aliased(connection: Connection, tenant: int | None, alias: str) -> int | None:
    table, lives = schema.aliases, schema.lives
    chosen = select(table.c.version)
    if alias == "previous":  # what the live one has replaced
        chosen, alias = select(lives.c.replaced).join(table, table.c.version == lives.c.version), "live"
    return connection.execute(chosen.where(table.c.tenant == tenant, table.c.alias == alias)).scalar()


def _facts() -> Select[Any]:
    return select(*_FACTS).join(_t, _t.c.id == _v.c.tenant)


def _version(row: Any, load: Load) -> Version:
    facts: dict[str, Any] = {fact.name: getattr(row, fact.name) for fact in _FACTS}
    return Version(**facts, _load=load)


def _existing(connection: Connection, tenant: int, number: int, load: Load) -> Version:
    v = schema.versions
    return _version(connection.execute(_facts().where(v.c.tenant == tenant, v.c.number == number)).one(), load)


def _because(why: str) -> str:
    return f": {why}" if why else ""
