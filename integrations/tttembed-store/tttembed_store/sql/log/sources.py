"""The rewards of each source of a pair of query and document, side by side; `schema.rewards` holds their mean.

A reward without a source is that of the declared judge. As long as no source has spoken of a pair, it stands in
`schema.rewards` alone; afterwards it is one more row here, under the empty name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from sqlalchemy import Connection, Table, bindparam, select

from tttembed_rag.rewards.observations import MAX_SOURCES
from tttembed_store.sql import schema
from tttembed_store.sql.rows import in_parts, insert_all

_s = schema.source_rewards.c
_BY_SOURCE = select(_s.query, _s.document, _s.source, _s.value, _s.at).where(
    _s.judge == bindparam("one_judge"), _s.query.in_(bindparam("some_queries", expanding=True))
)
# The rows of a query and a document.
Pair: TypeAlias = tuple[int, int]
# The rewards of a pair by source, each with its time.
BySource: TypeAlias = dict[str, tuple[float, float]]


# A reward of a pair of rows: query, document, value, source, and whether it is silent. No value is one that the judge
# declined, no source the declared judge, and a silent reward replaces none of the same source.
Row: TypeAlias = tuple[int, int, float | None, str, bool]


def by_source_of(connection: Connection, judge: int | None, queries: Sequence[int]) -> dict[Pair, BySource]:
    """The rewards of sources, kept under *judge*, of the documents of *queries*."""
    by_source: dict[Pair, BySource] = defaultdict(dict)
    for numbers in in_parts(queries):
        rows = connection.execute(_BY_SOURCE, {"one_judge": judge, "some_queries": numbers})
        for query, document, source, value, at in rows:
            by_source[query, document][source] = (value, at)
    return dict(by_source)


def all_of(value: Any, by_source: BySource, at: float = 0.0) -> BySource:
    """All rewards of a pair, with the one without a source that stands in `schema.rewards` alone, if any."""
    return by_source or ({} if value is None else {"": (value, at)})


def mean(by_source: BySource) -> float:
    """The mean reward of all sources; the order in which they spoke does not matter."""
    return math.fsum(value for value, _ in by_source.values()) / len(by_source)


def write_rewards(
    connection: Connection, judge: int, rewards: Iterable[Row], old: Mapping[Pair, Any], at: float
) -> list[int]:
    """Write rewards that came *at* a time; gives the query of each that is new or another than before.

    The reward of a source stands beside those of others, of the last `MAX_SOURCES` of each pair. Pairs that the judge
    declined are not given. The queries are locked, and *old* is what stands in `schema.rewards` of them.
    """
    rewards = sorted(rewards, key=itemgetter(3))  # what has no source comes first
    by_source = by_source_of(connection, judge, sorted({query for query, *_ in rewards}))
    now: dict[Pair, float | None] = {}
    changed: list[int] = []
    rows: dict[tuple[Pair, str], tuple[float, float]] = {}
    for query, document, value, source, silent in rewards:
        pair = query, document
        if not source and pair not in by_source:
            if pair not in old or old[pair] != value:
                now[pair] = value
                changed += [query] * (value is not None)
            continue
        if value is None:  # the judge declines what others have judged
            continue
        own = all_of(now.get(pair, old.get(pair)), by_source.get(pair, {}), at)
        if silent and source in own:
            continue
        if own.get(source, (None, at))[0] != value:
            changed.append(query)
        by_source[pair] = own = own | {source: (value, at)}
        now[pair] = mean(own)
        rows |= {(pair, name): own[name] for name in ("", source) if name in own}
    gone: list[tuple[Pair, str]] = []
    for pair in sorted({pair for pair, _ in rows}):
        named = sorted((moment, source) for source, (_, moment) in by_source[pair].items() if source)
        for _, source in named[: max(0, len(named) - MAX_SOURCES)]:
            gone.append((pair, source))
            del by_source[pair][source]
            rows.pop((pair, source), None)
        now[pair] = mean(by_source[pair])
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
    """Delete the rewards that *sources* gave to a tenant's queries; gives how many, and of which queries.

    A pair of which no other source spoke has no reward then.
    """
    s, r, q = schema.source_rewards, schema.rewards, schema.queries
    mine = select(s.c.judge, s.c.query, s.c.document).join(q, q.c.id == s.c.query)
    rows = connection.execute(mine.where(q.c.tenant == tenant, s.c.source.in_(sources))).all()
    for judge in sorted({row.judge for row in rows}):
        pairs = sorted({(query, document) for by, query, document in rows if by == judge})
        by_source, means = by_source_of(connection, judge, sorted({query for query, _ in pairs})), []
        for query, document in pairs:
            in_s, in_r = ((t.c.query == query) & (t.c.judge == judge) & (t.c.document == document) for t in (s, r))
            connection.execute(s.delete().where(in_s, s.c.source.in_(sources)))
            of_pair = by_source[query, document].items()
            others = {source: reward for source, reward in of_pair if source not in sources}
            if others:
                means.append((query, document, mean(others)))
            else:
                connection.execute(r.delete().where(in_r))
        _insert(connection, r, judge, ("query", "document", "value"), means)
    return len(rows), sorted({row.query for row in rows})


def _insert(
    connection: Connection, table: Table, judge: int, names: Sequence[str], values: Iterable[tuple[Any, ...]]
) -> None:
    rows = [dict(zip(names, row, strict=True), judge=judge) for row in values]
    insert_all(connection, table, rows, replace=True)
