"""The rewards of each source of a pair of query and document, side by side.

The empty source is the declared judge itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import TypeAlias

from sqlalchemy import Connection, bindparam, literal_column, select

from tttembed_rag.rewards.observations import MAX_SOURCES
from tttembed_store.sql import schema
from tttembed_store.sql.rows import delete_among, in_parts, insert_all

_r = schema.rewards.c
_REWARDS = select(_r.query, _r.document, _r.source, _r.value, _r.at).where(
    _r.judge == bindparam("one_judge"), _r.query.in_(bindparam("some_queries", expanding=True))
)
# Rewards that somebody gave to a judge: as the index of sources says it, else SQLite would not use that.
HAS_SOURCE = _r.source > literal_column("''")
# The rows of a query and a document.
Pair: TypeAlias = tuple[int, int]
# The rewards of a pair by source, each with its time; None is a pair that the judge declined.
BySource: TypeAlias = dict[str, tuple[float | None, float]]
# A reward of a pair of rows: query, document, value, source, and whether it is silent. No value is one that the judge
# declined, and a silent reward replaces none of the same source.
Row: TypeAlias = tuple[int, int, float | None, str, bool]


def rewards_of(connection: Connection, judge: int | None, queries: Sequence[int]) -> dict[Pair, BySource]:
    """The rewards of the documents of *queries* that stand under *judge*."""
    rewards: dict[Pair, BySource] = defaultdict(dict)
    for numbers in in_parts(queries):
        rows = connection.execute(_REWARDS, {"one_judge": judge, "some_queries": numbers})
        for query, document, source, value, at in rows:
            rewards[query, document][source] = (value, at)
    return rewards


def mean(rewards: Collection[float]) -> float:
    """The mean reward of all sources; the order in which they spoke does not matter."""
    return math.fsum(rewards) / len(rewards)


def write_rewards(connection: Connection, judge: int, rewards: Iterable[Row], at: float) -> list[int]:
    """Write rewards that came *at* a time; gives the query of each that is new or another than before.

    The reward of a source stands beside those of others, of the last `MAX_SOURCES` of each pair. The queries are
    locked. Pairs that the judge declined are not given, and stay as they are where somebody has judged them.
    """
    rewards = sorted(rewards, key=itemgetter(3))  # what has no source comes first
    stored = rewards_of(connection, judge, sorted({query for query, *_ in rewards}))
    changed: list[int] = []
    new: dict[tuple[Pair, str], float | None] = {}
    for query, document, value, source, silent in rewards:
        of_pair = stored[query, document]
        before = of_pair.get(source, (None, at))[0]
        is_same = not source and source in of_pair and before == value
        if is_same or (value is None and of_pair) or (silent and before is not None):
            continue
        changed += [query] * (before != value)
        of_pair[source] = value, at
        new[(query, document), source] = value
    for query, document in {pair for pair, source in new if source}:
        spoken = sorted((moment, source) for source, (_, moment) in stored[query, document].items() if source)
        for _, source in spoken[: max(0, len(spoken) - MAX_SOURCES)]:
            new.pop(((query, document), source), None)
            of_source = (_r.query == query, _r.judge == judge, _r.document == document, _r.source == source)
            connection.execute(schema.rewards.delete().where(*of_source))
    rows = [
        {"query": query, "judge": judge, "document": document, "source": source, "value": value, "at": at}
        for ((query, document), source), value in sorted(new.items(), key=itemgetter(0))
    ]
    insert_all(connection, schema.rewards, rows, replace=True)
    return changed


def take_back(connection: Connection, tenant: int, sources: Sequence[str]) -> tuple[int, list[int]]:
    """Delete the rewards that *sources* gave to a tenant's queries; gives how many, and of which queries."""
    count, queries = 0, set[int]()
    owned = select(_r.query).join(schema.queries, schema.queries.c.id == _r.query).distinct()
    for some in in_parts(sources):
        spoken = owned.where(schema.queries.c.tenant == tenant, HAS_SOURCE, _r.source.in_(some))
        of_sources = connection.execute(spoken).scalars().all()
        count += delete_among(connection, schema.rewards, _r.query, of_sources, _r.source.in_(some))
        queries.update(of_sources)
    return count, sorted(queries)
