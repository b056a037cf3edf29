"""The tenants with something new that no worker has looked at, found without looking at any other tenant.

Every transaction that writes rewards adds a row to `schema.changes`, as does anything else after which a worker has to
look at a tenant again. These rows have ids above 0. Once a worker has looked, it adds their rewards to sums, which are
rows with ids below 0: one for each tenant and judge. So what is due costs as much as there is new, however many tenants
have nothing new.

Each row is of one judge. A worker that learns from the rewards of one judge reads and ends the rows of that judge
alone, so workers with different judges take nothing from each other. What concerns all of them, such as a deletion, has
a row for every judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, select, true

from tttembed_rag.stores import schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.leasing import check_lease
from tttembed_rag.stores.records import Lease
from tttembed_rag.stores.rows import fact, id_of, ids_of, in_parts, insert, insert_all, set_fact

# New rows that are worth adding up where no worker looks at them.
_MANY = 1000
# The fact that says what workers look with: the judge, and the probe of the embedding model.
_BASIS = "looked with"

_table = schema.changes
_new = _table.c.id > 0


class Due:
    """What workers have to look at."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def tenants(self, judge: str | None = None) -> list[str]:
        """The tenants with something new, sorted, the shared one last: it learns from those that share.

        With *judge* only what is new for workers that learn from its rewards counts.
        """
        t = schema.tenants
        names, shares = set[str](), False
        with self._database.read() as connection:
            chosen = select(_table.c.tenant).where(_new, _of_judge(connection, judge))
            new = connection.execute(chosen.order_by(_table.c.id)).scalars()
            for numbers in in_parts(sorted(set(new))):
                rows = connection.execute(select(t.c.name, t.c.shares).where(t.c.id.in_(numbers))).all()
                names.update(row.name for row in rows)
                shares |= any(row.shares for row in rows)
        return sorted(names - {""}) + [""] * (shares or "" in names)

    def marks(self, tenant: str, judge: str | None = None) -> list[int]:
        """What makes *tenant* due, to be handed to `settle` by a worker that has looked at it since.

        *judge* is as for `tenants`.
        """
        with self._database.read() as connection:
            owner = id_of(connection, schema.tenants, tenant)
            marks = select(_table.c.id).where(_table.c.tenant == owner, _new, _of_judge(connection, judge))
            return list(connection.execute(marks.order_by(_table.c.id)).scalars())

    def settle(self, marks: Sequence[int], *, tenant: str, lease: Lease) -> None:
        """Let *tenant* be due no more for its *marks*; the shared tenant stays due for those of one that shares.

        Raises:
            LeaseLost: Another owner has taken over the *lease*; nothing was changed.
        """
        if not marks:
            return
        gone = _table.delete().returning(_table.c.tenant, _table.c.judge, _table.c.rewards)
        with self._database.write("observing") as connection:
            check_lease(connection, lease)
            rows = [row for part in in_parts(marks) for row in connection.execute(gone.where(_table.c.id.in_(part)))]
            sums = _sums(rows)
            for (owner, judge), total in sorted(sums.items()):
                made = insert(connection, _table).values(
                    id=-((owner << 20) + judge), tenant=owner, judge=judge, rewards=total
                )
                added = {"rewards": _table.c.rewards + made.excluded.rewards}
                connection.execute(made.on_conflict_do_update(index_elements=["id"], set_=added))
            shares = select(schema.tenants.c.shares).where(schema.tenants.c.name == tenant)
            if rows and tenant and connection.execute(shares).scalar():
                mark_due(connection, ids_of(connection, schema.tenants, [""]).values(), {judge for _, judge in sums})

    def fold(self) -> None:
        """Add up new rows of tenants that no worker looks at; these stay due."""
        with self._database.read() as connection:
            new = _table.select().where(_new).subquery()
            count = connection.execute(select(func.count()).select_from(new)).scalar_one()
            if count < _MANY:
                return
            distinct = select(new.c.tenant, new.c.judge).distinct().subquery()
            if count < 2 * connection.execute(select(func.count()).select_from(distinct)).scalar_one():
                return
        gone = _table.delete().where(_new).returning(_table.c.tenant, _table.c.judge, _table.c.rewards)
        with self._database.write("observing") as connection:
            sums = _sums(connection.execute(gone).all())
            rows = [{"tenant": tenant, "judge": judge, "rewards": total} for (tenant, judge), total in sums.items()]
            insert_all(connection, _table, sorted(rows, key=lambda row: (row["tenant"], row["judge"])))

    def basis(self) -> str | None:
        """What workers looked with at last, as `restart` was given it; None where none has looked."""
        with self._database.read() as connection:
            return fact(connection, _BASIS)

    def restart(self, basis: str, judge: str | None = None) -> None:
        """Let every tenant that was served offsets or has rewards be due: workers look with something else now.

        With *judge* for those workers alone that learn from its rewards.
        """
        aliases, progress = schema.aliases, schema.progress
        rewarded = select(progress.c.tenant).where(progress.c.rewards > 0)
        with self._database.write("forgetting") as connection:
            set_fact(connection, _BASIS, basis)
            owners = connection.execute(select(aliases.c.tenant).union(rewarded)).scalars().all()
            mark_due(connection, owners, ids_of(connection, schema.judges, [judge or ""]).values())


def mark_due(connection: Connection, tenants: Iterable[int], judges: Iterable[int] | None = None) -> None:
    """Let workers look at *tenants*, by their ids, although no reward of theirs is new: those of *judges*, or all."""
    j = schema.judges
    if judges is None:  # where there is none, one that no judge can be: no reward is counted
        judges = connection.execute(select(j.c.id)).scalars().all() or ids_of(connection, j, [""]).values()
    marks = sorted(product(tenants, judges))
    insert_all(connection, _table, [{"tenant": tenant, "judge": judge, "rewards": 0} for tenant, judge in marks])


def _of_judge(connection: Connection, judge: str | None) -> ColumnElement[bool]:
    return true() if judge is None else _table.c.judge == id_of(connection, schema.judges, judge)


def _sums(rows: Iterable[Any]) -> Counter[tuple[int, int]]:
    sums = Counter[tuple[int, int]]()
    for row in rows:
        sums[row.tenant, row.judge] += row.rewards
    return sums
