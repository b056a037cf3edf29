"""What each source said of a pair of query and document, side by side; `schema.rewards` holds the mean of all.

A reward without a source is that of the declared judge. As long as no source has spoken of a pair, it stands in
`schema.rewards` alone; afterwards it is one more row here, under the empty name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import Connection, Table, bindparam, select

from tttembed_rag.rewards.observations import MAX_SOURCES
from tttembed_store.sql import schema
from tttembed_store.sql.rows import in_parts, insert_all

_s = schema.source_rewards.c
_SAID = select(_s.query, _s.document, _s.source, _s.value, _s.at).where(
    _s.judge == bindparam("one_judge"), _s.query.in_(bindparam("some_queries", expanding=True))
)
# The rows of a query and a document.
Pair: TypeAlias = tuple[int, int]
# What sources said of a pair: reward and time, by source.
Said: TypeAlias = dict[str, tuple[float, float]]


class Given(NamedTuple):
    """A reward of a pair of rows; None is one that the judge declined. The empty source is the declared judge.

    A *silent* reward replaces none of the same source.
    """

    query: int
    document: int
    value: float | None
    source: str = ""
    silent: bool = False


def said_of(connection: Connection, judge: int | None, queries: Sequence[int]) -> dict[Pair, Said]:
    """What sources said to *judge* of the documents of *queries*."""
    said: dict[Pair, Said] = defaultdict(dict)
    for numbers in in_parts(queries):
        rows = connection.execute(_SAID, {"one_judge": judge, "some_queries": numbers})
        for query, document, source, value, at in rows:
            said[query, document][source] = (value, at)
    return dict(said)


def all_of(value: Any, said: Said, at: float = 0.0) -> Said:
    """What was said of a pair, with the reward without a source that stands in `schema.rewards` alone, if any."""
    return said or ({} if value is None else {"": (value, at)})


def mean(said: Said) -> float:
    """The mean reward of all sources; the order in which they spoke does not matter."""
    return math.fsum(value for value, _ in said.values()) / len(said)


def write_rewards(
    connection: Connection, judge: int, given: Iterable[Given], old: Mapping[Pair, Any], at: float
) -> list[int]:
    """Write rewards that came *at* a time; gives the query of each that is new or another than before.

    What a source says stands beside what others said, of the last `MAX_SOURCES` of each pair. Pairs that the judge
    declined are not given. The queries are locked, and *old* is what stands in `schema.rewards` of them.
    """
    given = sorted(given, key=lambda one: one.source)  # what has no source comes first
    said = said_of(connection, judge, sorted({one.query for one in given}))
    now: dict[Pair, float | None] = {}
    changed: list[int] = []
    rows: dict[tuple[Pair, str], tuple[float, float]] = {}
    for one in given:
        pair = one.query, one.document
        if not one.source and pair not in said:
            if pair not in old or old[pair] != one.value:
                now[pair] = one.value
                changed += [one.query] * (one.value is not None)
            continue
        if one.value is None:  # the judge declines what others have judged
            continue
        own = all_of(now.get(pair, old.get(pair)), said.get(pair, {}), at)
        if one.silent and one.source in own:
            continue
        if own.get(one.source, (None, at))[0] != one.value:
            changed.append(one.query)
        said[pair] = own = own | {one.source: (one.value, at)}
        now[pair] = mean(own)
        rows |= {(pair, source): own[source] for source in ("", one.source) if source in own}
    gone: list[tuple[Pair, str]] = []
    for pair in sorted({pair for pair, _ in rows}):
        named = sorted((spoken, source) for source, (_, spoken) in said[pair].items() if source)
        for _, source in named[: max(0, len(named) - MAX_SOURCES)]:
            gone.append((pair, source))
            del said[pair][source]
            rows.pop((pair, source), None)
        now[pair] = mean(said[pair])
    means = [(*pair, value) for pair, value in now.items() if pair not in old or old[pair] != value]
    _insert(connection, schema.rewards, judge, ("query", "document", "value"), means)
    of_sources = [(*pair, source, *rows[pair, source]) for pair, source in sorted(rows)]
    _insert(connection, schema.source_rewards, judge, ("query", "document", "source", "value", "at"), of_sources)
    for (query, document), source in gone:
        in_s, in_r = (
            (t.c.query == query) & (t.c.judge == judge) & (t.c.document == document)
            for t in (schema.source_rewards, schema.rewards)
        )
        connection.execute(schema.source_rewards.delete().where(in_s, _s.source == source))
        dropped = schema.rewards.c.dropped + 1
        connection.execute(schema.rewards.update().where(in_r).values(dropped=dropped))
    return changed


def take_back(connection: Connection, tenant: int, sources: Collection[str]) -> tuple[int, list[int]]:
    """Delete what *sources* said of a tenant's queries; gives how many rewards they gave, and of which queries.

    A pair of which no other source spoke has no reward then.
    """
    s, r, q = schema.source_rewards, schema.rewards, schema.queries
    mine = select(s.c.judge, s.c.query, s.c.document).join(q, q.c.id == s.c.query)
    rows = connection.execute(mine.where(q.c.tenant == tenant, s.c.source.in_(sources))).all()
    for judge in sorted({row.judge for row in rows}):
        pairs = sorted({(query, document) for by, query, document in rows if by == judge})
        said, means = said_of(connection, judge, sorted({query for query, _ in pairs})), []
        for query, document in pairs:
            in_s, in_r = ((t.c.query == query) & (t.c.judge == judge) & (t.c.document == document) for t in (s, r))
            connection.execute(s.delete().where(in_s, s.c.source.in_(sources)))
            others = {source: given for source, given in said[query, document].items() if source not in sources}
            if others:
                means.append((query, document, mean(others)))
            else:
                connection.execute(r.delete().where(in_r))
        _insert(connection, r, judge, ("query", "document", "value"), means)
    return len(rows), sorted({row.query for row in rows})


def _insert(
    connection: Connection, table: Table, judge: int, names: Sequence[str], values: Iterable[tuple[Any, ...]]
) -> None:
    rows = [dict(zip(names, one, strict=True), judge=judge) for one in values]
    insert_all(connection, table, rows, replace=True)
