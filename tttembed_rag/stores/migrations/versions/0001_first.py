"""The tables of the first release; `schema` says what they hold."""

import secrets
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Date, Double, Index, Integer, LargeBinary, String, Text

revision = "0001"
down_revision = None

_Id = BigInteger().with_variant(Integer, "sqlite")


def upgrade() -> None:
    """Make the tables, the key of a store's hashes and the shared tenant; programs of this schema may use them."""
    for table in (_make_names, _make_log, _make_rewards, _make_work, _make_versions):
        table()
    op.bulk_insert(
        sa.table("facts", sa.column("name"), sa.column("value")),
        [{"name": "salt", "value": secrets.token_hex(32)}, {"name": "oldest_schema", "value": revision}],
    )
    op.bulk_insert(sa.table("tenants", sa.column("name")), [{"name": ""}])


def _make_names() -> None:
    op.create_table("facts", Column("name", String(64), primary_key=True), _given("value", Text))
    op.create_table(
        "tenants",
        _key(),
        _given("name", String(512), unique=True),
        _given("shares", Boolean, server_default=sa.text("false")),
        _given("shared_once", Boolean, server_default=sa.text("false")),
        _given("generation", BigInteger, server_default="0"),
        Column("halted", Text),
        Column("halted_by", Text),
        _index_where("generation > 0", "tenants_by_generation", "generation", "name"),
        sqlite_autoincrement=True,
    )
    for table, *columns in (
        ("embedders", _given("width", Integer)),
        ("judges", _given("asks", Boolean, server_default=sa.text("false")), Column("trusted", Boolean)),
    ):
        op.create_table(table, _key(), _given("name", String(512), unique=True), *columns, sqlite_autoincrement=True)


def _make_log() -> None:
    op.create_table(
        "queries",
        _key(),
        _of("tenants"),
        _given("task", String(512)),
        _given("name", String(512)),
        Column("text", Text),
        _of("embedders", nullable=True, cascade=False),
        _given("seen", Integer),
        _given("first_at", Double),
        _given("last_at", Double),
        sa.UniqueConstraint("tenant", "task", "name"),
        Index("queries_by_age", "tenant", "last_at"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "documents",
        _key(),
        _of("tenants"),
        _given("name", String(512)),
        Column("text", Text),
        sa.UniqueConstraint("tenant", "name"),
        sqlite_autoincrement=True,
    )
    for table, of in (("query_vectors", "queries"), ("document_vectors", "documents")):
        op.create_table(
            table,
            _of(of, primary_key=True),
            _of("embedders", primary_key=True, cascade=False),
            _given("vector", LargeBinary),
            _given("checksum", LargeBinary(8)),
        )
    op.create_table(
        "pairs",
        _of("queries", primary_key=True),
        _of("documents", primary_key=True),
        _given("place", Integer),
        Index("pairs_by_document", "document"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "forgotten",
        _of("tenants", primary_key=True),
        Column("query", LargeBinary(32), primary_key=True),
        _given("at", Double),
        Index("forgotten_by_age", "tenant", "at"),
    )


def _make_rewards() -> None:
    op.create_table(
        "rewards",
        *_of_judge(),
        Column("document", _Id, primary_key=True),
        Column("value", Double),
        _given("dropped", Integer, server_default="0"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "source_rewards",
        *_of_judge(),
        Column("document", _Id, primary_key=True),
        Column("source", String(512), primary_key=True),
        _given("value", Double),
        _given("at", Double),
        Index("source_rewards_by_source", "source"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "progress",
        *_of_judge(),
        _of("tenants"),
        _given("rewards", Integer),
        _given("waiting", Integer),
        _given("at", Double),
        Index("progress_by_age", "tenant", "judge", "at", "query", "rewards"),
        _index_where("waiting > 0", "progress_waiting", "tenant", "judge", "at", "query"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "changes",
        _of("tenants", primary_key=True),
        _of("judges", primary_key=True, cascade=False),
        *(_given(name, BigInteger) for name in ("rewards", "marks", "looked")),
        _index_where("marks > looked", "changes_due", "tenant", "judge"),
    )


def _make_work() -> None:
    op.create_table(
        "failures",
        *_of_judge(),
        _given("count", Integer),
        _given("first_at", Double),
        _given("due_at", Double),
        _given("why", Text),
        Index("failures_by_due", "judge", "due_at", "query"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "answers",
        Column("pair", LargeBinary(32), primary_key=True),
        _of("queries", nullable=True),
        _of("judges", cascade=False),
        Column("score", Double),
        _given("tokens", Double),
        _given("usd", Double),
        _given("at", Double),
        Index("answers_by_age", "at"),
        Index("answers_by_query", "query"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "spending",
        Column("day", Date, primary_key=True),
        _of("judges", primary_key=True, cascade=False),
        _given("pairs", BigInteger),
        _given("tokens", Double),
        _given("usd", Double),
    )
    op.create_table(
        "charges",
        Column("key", String(32), primary_key=True),
        _of("judges", cascade=False),
        _given("lease", String(512)),
        _given("token", BigInteger),
    )
    op.create_table(
        "asking",
        Column("pair", LargeBinary(32), primary_key=True),
        Column("charge", String(32), sa.ForeignKey("charges.key", ondelete="CASCADE"), nullable=False),
        _of("queries", nullable=True),
        Index("asking_by_charge", "charge"),
        Index("asking_by_query", "query"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "states", _of("tenants", primary_key=True), Column("name", String(512), primary_key=True), _given("value", Text)
    )
    op.create_table(
        "leases",
        Column("name", String(512), primary_key=True),
        _given("owner", String(512)),
        _given("token", BigInteger),
        _given("expires", Double),
    )


def _make_versions() -> None:
    op.create_table(
        "versions",
        Column("number", _Id, primary_key=True),
        _of("tenants"),
        _given("at", Double),
        *(_given(name, Text) for name in ("by", "note")),
        _given("embedder", String(512)),
        *(_given(name, Integer) for name in ("width", "rewarded", "kept", "served")),
        _given("probe", Text),
        _given("digest", LargeBinary(32)),
        _given("content", LargeBinary),
        _given("evidence", Text),
        Index("versions_by_tenant", "tenant", "number"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "aliases",
        _of("tenants", primary_key=True),
        Column("alias", String(16), primary_key=True),
        Column("version", _Id, sa.ForeignKey("versions.number", ondelete="CASCADE"), nullable=False),
    )
    op.create_table(
        "lives",
        Column("version", _Id, sa.ForeignKey("versions.number", ondelete="CASCADE"), primary_key=True),
        Column("replaced", _Id),
    )
    op.create_table(
        "audit",
        _key(),
        _given("at", Double),
        Column("tenant", String(512)),
        _given("by", Text),
        _given("action", String(512)),
        _given("detail", Text),
        Index("audit_by_tenant", "tenant", "id"),
        sqlite_autoincrement=True,
    )


def _key() -> Column[Any]:
    return Column("id", _Id, primary_key=True)


def _given(name: str, kind: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **options)


def _of(table: str, *, primary_key: bool = False, nullable: bool = False, cascade: bool = True) -> Column[Any]:
    parent = sa.ForeignKey(f"{table}.id", ondelete="CASCADE" if cascade else None)
    name = {"queries": "query"}.get(table, table.removesuffix("s"))
    return Column(name, _Id, parent, primary_key=primary_key, nullable=nullable)


def _of_judge() -> tuple[Column[Any], Column[Any]]:
    return _of("queries", primary_key=True), _of("judges", primary_key=True, cascade=False)


def _index_where(condition: str, name: str, *columns: str) -> Index:
    return Index(name, *columns, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition))
