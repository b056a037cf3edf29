"""Versions as rows: reading them and their offsets, which one is live, and what a process must serve."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, LargeBinary, Select, and_, bindparam, case, func, or_, select

from tttembed_rag.errors import OffsetFileError, StoreError
from tttembed_rag.offsets import file
from tttembed_rag.offsets.file import Settings
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.values import Offset
from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.records import Generations, Serving, Version
from tttembed_rag.stores.rows import fact, ids_of, set_fact

# The offsets of a version, by its number.
Load = Callable[[int], Offsets]

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


def load_offsets(database: Database, number: int) -> Offsets:
    """The offsets of a version, checked.

    Raises:
        StoreError: They are damaged, or gone.
    """
    with database.read() as connection:
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


def settings_of(connection: Connection, number: int | None) -> Settings | None:
    """The settings of a version, without its vectors; None where there is no such version.

    Raises:
        StoreError: They are damaged.
    """

    def first(size: int) -> bytes | None:
        part = select(func.substr(_v.c.content, 1, size, type_=LargeBinary)).where(_v.c.number == number)
        found = connection.execute(part).scalar()
        return None if found is None else bytes(found)

    if (head := first(8)) is None:
        return None
    size = min(int.from_bytes(head, "little"), file.MAX_HEADER_BYTES)
    try:
        return file.settings_of(first(8 + size) or b"", f"version {number}")
    except OffsetFileError as exc:
        raise StoreError(str(exc)) from exc


def evidence_of(offsets: Offsets) -> str:
    """The evidence of the shared offset that learned from most queries, and how many others are served, in one line."""
    shared = [offset for offset in offsets.values() if offset.query_id is None]
    if not shared:
        return "no shared offset"

    def importance(offset: Offset) -> tuple[bool, int]:
        return offset.served, offset.n

    first = max(shared, key=importance)
    others = sum(offset.served for offset in shared) - first.served
    more = f" (and {others} more)" if others else ""
    return f"{first.key}: {first.evidence}{more}"


def versions_of(tenant: int | None) -> Select[Any]:
    """The statement that reads the versions of a tenant; `version_of_row` makes a `Version` of each row."""
    return select(*_FACTS).join(_t, _t.c.id == _v.c.tenant).where(_v.c.tenant == tenant)


def version_of_row(row: Any, load: Load) -> Version:
    """The version that a row of `versions_of` describes; *load* reads its offsets when they are asked for."""
    facts: dict[str, Any] = {column.name: getattr(row, column.name) for column in _FACTS}
    return Version(**facts, _load=load)


def aliases_of(connection: Connection, tenant: int | None) -> dict[str, int]:
    """The numbers of the ``live`` version of a tenant and of the ``previous`` one, which it replaced, if any."""
    aliases = select(_v.c.number.label("live"), _v.c.replaced.label("previous")).join(_t, _IS_LIVE)
    rows = connection.execute(aliases.where(_t.c.id == tenant)).mappings()
    return {alias: number for row in rows for alias, number in row.items() if number is not None}


def way_back(connection: Connection, tenant: int) -> dict[int, int | None]:
    """The versions of a tenant, each with the version that it replaced."""
    rows = connection.execute(select(_v.c.number, _v.c.replaced).where(_v.c.tenant == tenant))
    return {row.number: row.replaced for row in rows}


def go_live(connection: Connection, tenant: int, number: int) -> None:
    """Serve a version instead of the live one.

    A version that lies on the way back from the live one keeps the version that it replaced itself.
    """
    replaced, live = way_back(connection, tenant), aliases_of(connection, tenant).get("live")
    behind, step = set[int](), live
    while step is not None and step not in behind:
        behind.add(step)
        step = replaced.get(step)
    if number not in behind:
        connection.execute(_v.update().where(_v.c.number == number).values(replaced=live))
    connection.execute(_t.update().where(_t.c.id == tenant).values(live=number))
    _raise_generation(connection, tenant)


def announce(connection: Connection, tenant: str) -> None:
    """Raise the generation of *tenant*: what it is served has changed."""
    _raise_generation(connection, ids_of(connection, schema.tenants, [tenant])[tenant])


def _raise_generation(connection: Connection, tenant: int) -> None:
    """Give *tenant* a generation that rises, and that it never had: not in a copy of the store from before either."""
    now = time.time_ns() // 1000
    risen = case((_t.c.generation < now, now), else_=_t.c.generation + 1)
    connection.execute(_t.update().where(_t.c.id == tenant).values(generation=risen))


def generations(connection: Connection) -> Generations:
    """What changes with what is served, of all tenants at once."""
    # The shared tenant has a row whenever all tenants are halted: `set_halted` makes it.
    rows = connection.execute(_GENERATIONS).all()
    return Generations(
        next((row.everywhere for row in rows), None), {"": 0} | {row.name: row.generation for row in rows}
    )


def own_serving(connection: Connection, load: Load, tenant: str) -> Serving:
    """What is said of *tenant* alone: its own live version and a halt of its own."""
    row = next((row for row in connection.execute(_SERVING, {"tenant": tenant}) if row.tenant == tenant), None)
    if row is None:
        return Serving(0, None, None)
    return Serving(row.generation, None if row.number is None else version_of_row(row, load), row.halted)


def serving(connection: Connection, load: Load, tenant: str) -> Serving:
    """What *tenant* is served now: its own live version, else that of the shared tenant."""
    rows = {row.tenant: row for row in connection.execute(_SERVING, {"tenant": tenant})}
    asked = [rows[name] for name in dict.fromkeys((tenant, "")) if name in rows]
    if asked and asked[0].number is not None:
        asked = asked[:1]
    # The shared tenant has a row whenever all tenants are halted: `set_halted` makes it.
    reasons = [*(row.everywhere for row in asked), *(row.halted for row in asked)]
    why = next((reason for reason in reasons if reason is not None), None)
    live = next((version_of_row(row, load) for row in asked if row.number is not None), None)
    return Serving(sum(row.generation for row in rows.values()), live, why)


def halt_of(connection: Connection, tenant: str | None) -> tuple[str | None, str | None]:
    """Why, and by whom, *tenant* itself or (None) all tenants are halted; None and None if they are not."""
    if tenant is None:
        return fact(connection, _HALTED), fact(connection, _HALTED_BY)
    row = connection.execute(select(_t.c.halted, _t.c.halted_by).where(_t.c.name == tenant)).first()
    return (None, None) if row is None else (row.halted, row.halted_by)


def set_halted(connection: Connection, tenant: str | None, why: str | None, by: str | None) -> None:
    """Halt *tenant*, or (None) all tenants, for a reason; without a reason, end that halt."""
    if tenant is None:
        set_fact(connection, _HALTED, why)
        set_fact(connection, _HALTED_BY, by)
    else:
        owner = ids_of(connection, schema.tenants, [tenant])[tenant]
        connection.execute(_t.update().where(_t.c.id == owner).values(halted=why, halted_by=by))
    announce(connection, tenant or "")
