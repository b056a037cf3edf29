"""The tenants with something new that no worker has looked at, found without looking at any other tenant.

`schema.due` has a row for each tenant and judge. Every transaction that writes rewards adds to its marks, as does
anything else after which a worker has to look at a tenant again. A worker reads the marks, looks, and writes down how
many marks it has looked at: a tenant with more marks than that is due, whatever came meanwhile.

A worker that learns from the rewards of one judge reads and settles the rows of that judge alone, so workers with
different judges take nothing from each other. What concerns all of them, such as a deletion, marks the rows of every
judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import product
from typing import Any

from sqlalchemy import ColumnElement, Connection, select, true

from tttembed_store.sql import schema
from tttembed_store.sql.database import Database
from tttembed_store.sql.records import Lease
from tttembed_store.sql.rows import id_of, ids_of, insert_in

_table = schema.due
_is_due = _table.c.marks > _table.c.looked


class Due:
    """What workers have to look at."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def tenants(self, judge: str | None = None) -> list[str]:
        """The tenants with something new, sorted.

        With *judge* only what is new for workers that learn from its rewards counts.
        """
        t = schema.tenants
        due = select(t.c.name).join(_table, _table.c.tenant == t.c.id).distinct()
        with self._database.read() as connection:
            return sorted(connection.execute(due.where(_is_due, _of_judge(connection, judge))).scalars())

    def marks(self, tenant: str, judge: str | None = None) -> dict[int, int]:
        """What makes *tenant* due, to be handed to `settle` by a worker that has looked at it since.

        *judge* is as for `tenants`.
        """
        with self._database.read() as connection:
            owner = id_of(connection, schema.tenants, tenant)
            marks = select(_table.c.judge, _table.c.marks).where(_table.c.tenant == owner, _is_due)
            return {row.judge: row.marks for row in connection.execute(marks.where(_of_judge(connection, judge)))}

    def settle(self, marks: Mapping[int, int], *, tenant: str, lease: Lease) -> None:
        """Let *tenant* be due no more for its *marks*.

        Raises:
            LeaseLost: Another owner has taken over the *lease*; nothing was changed.
        """
        if not marks:
            return
        with self._database.write("observing", lease) as connection:
            number = id_of(connection, schema.tenants, tenant)
            for judge, looked in sorted(marks.items()):
                of_judge = _table.update().where(_table.c.tenant == number, _table.c.judge == judge)
                connection.execute(of_judge.values(looked=looked))

    def restart(self, judge: str | None = None) -> None:
        """Let every tenant that was served offsets or has rewards be due: workers look with something else now.

        With *judge* for those workers alone that learn from its rewards.
        """
        t, progress = schema.tenants, schema.progress
        rewarded = select(progress.c.tenant).where(progress.c.rewards > 0)
        with self._database.write("forgetting") as connection:
            owners = connection.execute(select(t.c.id).where(t.c.live.is_not(None)).union(rewarded)).scalars().all()
            mark_due(connection, owners, ids_of(connection, schema.judges, [judge or ""]).values())


def mark_due(connection: Connection, tenants: Iterable[int], judges: Iterable[int] | None = None) -> None:
    """Let workers look at *tenants*, by their ids, although no reward of theirs is new: those of *judges*, or all."""
    j = schema.judges
    if judges is None:  # where there is none, one that no judge can be: no reward is counted
        judges = connection.execute(select(j.c.id)).scalars().all() or ids_of(connection, j, [""]).values()
    add_written(connection, dict.fromkeys(product(tenants, judges), 0))


def add_written(connection: Connection, rewards: Mapping[tuple[int, int], int]) -> None:
    """Add to how many rewards are new or others than before, by the ids of tenant and judge, and mark these as due.

    Other writers of the same tenant and judge wait from here until the transaction ends.
    """
    if rewards:
        rows = [
            {"tenant": tenant, "judge": judge, "rewards": count, "marks": 1, "looked": 0}
            for (tenant, judge), count in sorted(rewards.items())
        ]
        connection.execute(_counting(connection.dialect.name), rows)


@cache
def _counting(dialect: str) -> Any:
    """The statement that adds to rewards and marks."""
    made = insert_in(dialect, _table)
    added = {"rewards": _table.c.rewards + made.excluded.rewards, "marks": _table.c.marks + 1}
    return made.on_conflict_do_update(index_elements=["tenant", "judge"], set_=added)


def _of_judge(connection: Connection, judge: str | None) -> ColumnElement[bool]:
    return true() if judge is None else _table.c.judge == id_of(connection, schema.judges, judge)
