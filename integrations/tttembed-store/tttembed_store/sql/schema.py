"""The tables of a store.

A column that refers to another table has the singular of its name. Values that many rows share (tenants, embedders,
judges, documents) are stored once. Vectors lie in tables of their own, one row for each embedding model.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ForeignKey, Index, MetaData, Table, UniqueConstraint, text
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import BigInteger, Boolean, Date, Double, Integer, LargeBinary, String, Text

from tttembed_rag.rewards.names import MAX_NAME

# The revision that this package reads and writes.
HEAD = "0001"

metadata = MetaData()

_Id = BigInteger().with_variant(Integer, "sqlite")


def _table(name: str, *columns: SchemaItem, **options: Any) -> Table:
    """A table; on SQLite, no number of its own key is given to a second row."""
    owned = any(isinstance(column, Column) and column.name in ("id", "number") for column in columns)
    return Table(name, metadata, *columns, sqlite_autoincrement=owned, **options)


def _key() -> Column[int]:
    return Column("id", _Id, primary_key=True)


def _recorded() -> Column[bool]:
    """Whether the application recorded it itself: feedback that names it, whoever sent that, is not enough."""
    return Column("recorded", Boolean, nullable=False)


def _of(table: str, *, primary_key: bool = False, nullable: bool = False, cascade: bool = True) -> Column[int]:
    name = table.removesuffix("s") if table != "queries" else "query"
    parent = ForeignKey(f"{table}.id", ondelete="CASCADE" if cascade else None)
    return Column(name, _Id, parent, primary_key=primary_key, nullable=nullable)


def _name(**options: Any) -> Column[str]:
    return Column("name", String(MAX_NAME), nullable=False, **options)


def _index(name: str, *columns: str, only: str) -> Index:
    """An index of the rows for which *only* holds."""
    return Index(name, *columns, sqlite_where=text(only), postgresql_where=text(only))


# Single facts of the store: the salt of keyed hashes, why and by whom all tenants are halted, whether texts are kept,
# its schema, and the oldest whose programs may use it.
facts = _table("facts", Column("name", String(64), primary_key=True), Column("value", Text, nullable=False))

tenants = _table(
    "tenants",
    _key(),
    _name(unique=True),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    # Why it is halted and by whom; null where it is not.
    Column("halted", Text),
    Column("halted_by", Text),
    # The number of the version of its own that is served, if any.
    Column("live", _Id),
    # Tenants that are served something of their own: made-up names in requests are not among them.
    _index("tenants_by_generation", "generation", "name", only="generation > 0"),
)

embedders = _table("embedders", _key(), _name(unique=True), Column("width", Integer, nullable=False))

judges = _table(
    "judges",
    _key(),
    _name(unique=True),
    # Whether it has asked for work: pairs that it has not answered are counted from then on.
    Column("asks", Boolean, nullable=False, server_default=text("false")),
    # Whether somebody vouches for it, or nobody may; null where nobody said so.
    Column("trusted", Boolean),
)

queries = _table(
    "queries",
    _key(),
    _of("tenants"),
    Column("task", String(MAX_NAME), nullable=False),
    _name(),
    Column("text", Text),
    _of("embedders", nullable=True, cascade=False),
    Column("seen", Integer, nullable=False),
    Column("last_at", Double, nullable=False),
    _recorded(),
    UniqueConstraint("tenant", "task", "name"),
    Index("queries_by_age", "tenant", "last_at"),
)

documents = _table(
    "documents", _key(), _of("tenants"), _name(), Column("text", Text), _recorded(), UniqueConstraint("tenant", "name")
)

query_vectors = _table(
    "query_vectors",
    _of("queries", primary_key=True),
    _of("embedders", primary_key=True, cascade=False),
    Column("vector", LargeBinary, nullable=False),
    # Of the vector: by it a damaged vector is recognised.
    Column("checksum", LargeBinary(8), nullable=False),
)

document_vectors = _table(
    "document_vectors",
    _of("documents", primary_key=True),
    _of("embedders", primary_key=True, cascade=False),
    Column("vector", LargeBinary, nullable=False),
    # Of the vector: by it a damaged vector is recognised.
    Column("checksum", LargeBinary(8), nullable=False),
)

pairs = _table(
    "pairs",
    _of("queries", primary_key=True),
    _of("documents", primary_key=True),
    # Its place in base order.
    Column("place", Integer, nullable=False),
    _recorded(),
    Index("pairs_by_document", "document"),
    sqlite_with_rowid=False,
)

rewards = _table(
    "rewards",
    _of("queries", primary_key=True),
    _of("judges", primary_key=True, cascade=False),
    Column("document", _Id, primary_key=True),
    # Who gave it to the judge; empty where the judge did itself.
    Column("source", String(MAX_NAME), primary_key=True),
    # In [0, 1]; null where the judge declined.
    Column("value", Double),
    Column("at", Double, nullable=False),
    _index("rewards_by_source", "source", only="source > ''"),
    sqlite_with_rowid=False,
)

# How many rewards of each judge there are for each query, and how many pairs wait for it: follows from pairs and
# rewards. A document's first text makes the pairs wait of those queries that are served from then on.
progress = _table(
    "progress",
    _of("queries", primary_key=True),
    _of("judges", primary_key=True, cascade=False),
    _of("tenants"),
    Column("rewards", Integer, nullable=False),
    Column("waiting", Integer, nullable=False),
    # When the query was last served.
    Column("at", Double, nullable=False),
    Index("progress_by_age", "tenant", "judge", "at", "query", "rewards"),
    _index("progress_waiting", "tenant", "judge", "at", "query", only="waiting > 0"),
    sqlite_with_rowid=False,
)

# How many rewards of each judge were ever written that were new or differed from those before: it tells what is new, as
# the number of rewards does not.
due = _table(
    "due",
    _of("tenants", primary_key=True),
    _of("judges", primary_key=True, cascade=False),
    Column("rewards", BigInteger, nullable=False),
    # How often there was something for a worker to look at, and how much of that a worker has looked at: see `log.due`.
    Column("marks", BigInteger, nullable=False),
    Column("looked", BigInteger, nullable=False),
    _index("due_marked", "tenant", "judge", only="marks > looked"),
)

# Queries that a judge failed at although it is well: how often, when it is asked again, and why it failed last.
failures = _table(
    "failures",
    _of("queries", primary_key=True),
    _of("judges", primary_key=True, cascade=False),
    Column("count", Integer, nullable=False),
    Column("due_at", Double, nullable=False),
    Column("why", Text, nullable=False),
    Index("failures_by_due", "judge", "due_at", "query"),
    sqlite_with_rowid=False,
)

# Paid answers by a keyed hash of judge and texts; they are deleted with the query they were given about.
answers = _table(
    "answers",
    Column("pair", LargeBinary(32), primary_key=True),
    # Null for answers to the examination of a judge.
    _of("queries", nullable=True),
    _of("judges", cascade=False),
    Column("score", Double),
    Column("tokens", Double, nullable=False),
    Column("usd", Double, nullable=False),
    Column("at", Double, nullable=False),
    Index("answers_by_age", "at"),
    Index("answers_by_query", "query"),
    sqlite_with_rowid=False,
)

# What judges were paid on a day, and the most that calls under way and open batches may cost.
spending = _table(
    "spending",
    Column("day", Date, primary_key=True),
    _of("judges", primary_key=True, cascade=False),
    Column("pairs", BigInteger, nullable=False),
    Column("tokens", Double, nullable=False),
    Column("usd", Double, nullable=False),
)

# Calls of judges under way, as long as the lease under which they were charged is held: see `work.answers`.
charges = _table(
    "charges",
    Column("key", String(32), primary_key=True),
    _of("judges", cascade=False),
    Column("lease", String(MAX_NAME), nullable=False),
    Column("token", BigInteger, nullable=False),
)

# The pairs that such a call asks about, by the keyed hashes of `answers`.
asking = _table(
    "asking",
    Column("pair", LargeBinary(32), primary_key=True),
    Column("charge", String(32), ForeignKey("charges.key", ondelete="CASCADE"), nullable=False),
    # Null for the examination of a judge.
    _of("queries", nullable=True),
    Index("asking_by_charge", "charge"),
    Index("asking_by_query", "query"),
    sqlite_with_rowid=False,
)

# Requests that were sent to a batch service, or are about to be, and have no results yet: see `work.openbatches`.
batches = _table(
    "batches",
    Column("key", String(32), primary_key=True),
    _of("tenants"),
    _of("judges", cascade=False),
    # JSON text.
    Column("record", Text, nullable=False),
    Index("batches_by_tenant", "tenant"),
)

versions = _table(
    "versions",
    Column("number", _Id, primary_key=True),
    _of("tenants"),
    Column("at", Double, nullable=False),
    Column("by", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("embedder", String(MAX_NAME), nullable=False),
    Column("width", Integer, nullable=False),
    Column("rewarded", Integer, nullable=False),
    Column("kept", Integer, nullable=False),
    Column("served", Integer, nullable=False),
    Column("probe", Text, nullable=False),
    Column("digest", LargeBinary(32), nullable=False),
    Column("content", LargeBinary, nullable=False),
    # One line on what its offsets are served on.
    Column("evidence", Text, nullable=False),
    # The number of the version that it went live instead of, the last time that it did: the way back.
    Column("replaced", _Id),
    Index("versions_by_tenant", "tenant", "number"),
)

# When queries were forgotten: a query that was served before does not come back, however late it is written.
forgotten = _table(
    "forgotten",
    _of("tenants", primary_key=True),
    # A keyed hash of the query's id; empty for all of the tenant.
    Column("query", LargeBinary(32), primary_key=True),
    Column("at", Double, nullable=False),
    Index("forgotten_by_age", "tenant", "at"),
)

# One line for each change; a line outlives its tenant, so it holds the name, not the id.
changes = _table(
    "changes",
    _key(),
    Column("at", Double, nullable=False),
    Column("tenant", String(MAX_NAME)),
    Column("by", Text, nullable=False),
    Column("action", String(MAX_NAME), nullable=False),
    Column("detail", Text, nullable=False),
    Index("changes_by_tenant", "tenant", "id"),
)

states = _table(
    "states", _of("tenants", primary_key=True), _name(primary_key=True), Column("value", Text, nullable=False)
)

# By name, the tenants that workers are at work for; a lease that ended or was revoked has no row.
leases = _table(
    "leases",
    _name(primary_key=True),
    Column("owner", String(MAX_NAME), nullable=False),
    # A number that no other lease has.
    Column("token", BigInteger, nullable=False),
    Column("expires", Double, nullable=False),
)
