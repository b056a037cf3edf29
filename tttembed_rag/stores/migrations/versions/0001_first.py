"""The tables of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "audit",
        sa.Column("id", _id, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("tenant", sa.String(length=512), nullable=True),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=512), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_by_tenant", "audit", ["tenant", "id"], unique=False)
    op.create_table(
        "embedders",
        sa.Column("id", _id, nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "facts",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "judges",
        sa.Column("id", _id, nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("asks", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("owner", sa.String(length=512), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", _id, nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("shares", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("shared_once", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("generation", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("halted", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "answers",
        sa.Column("pair", sa.LargeBinary(length=32), nullable=False),
        sa.Column("judge", _id, nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("usd", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["judge"], ["judges.id"]),
        sa.PrimaryKeyConstraint("pair"),
        sqlite_with_rowid=False,
    )
    op.create_index("answers_by_age", "answers", ["at"], unique=False)
    op.create_table(
        "documents",
        sa.Column("id", _id, nullable=False),
        sa.Column("tenant", _id, nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "queries",
        sa.Column("id", _id, nullable=False),
        sa.Column("tenant", _id, nullable=False),
        sa.Column("task", sa.String(length=512), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("embedder", _id, nullable=True),
        sa.Column("seen", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["embedder"], ["embedders.id"]),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "task", "name"),
        sqlite_autoincrement=True,
    )
    op.create_index("queries_by_age", "queries", ["tenant", "last_at"], unique=False)
    op.create_table(
        "spending",
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("judge", _id, nullable=False),
        sa.Column("pairs", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("usd", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["judge"], ["judges.id"]),
        sa.PrimaryKeyConstraint("day", "judge"),
    )
    op.create_table(
        "states",
        sa.Column("tenant", _id, nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tenant", "name"),
    )
    op.create_table(
        "versions",
        sa.Column("number", _id, nullable=False),
        sa.Column("tenant", _id, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("embedder", sa.String(length=512), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("rewarded", sa.Integer(), nullable=False),
        sa.Column("kept", sa.Integer(), nullable=False),
        sa.Column("served", sa.Integer(), nullable=False),
        sa.Column("probe", sa.Text(), nullable=False),
        sa.Column("lived", sa.Boolean(), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index("versions_by_tenant", "versions", ["tenant", "number"], unique=False)
    op.create_table(
        "aliases",
        sa.Column("tenant", _id, nullable=False),
        sa.Column("alias", sa.String(length=16), nullable=False),
        sa.Column("version", _id, nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["version"], ["versions.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tenant", "alias"),
    )
    op.create_table(
        "document_vectors",
        sa.Column("document", _id, nullable=False),
        sa.Column("embedder", _id, nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.Column("checksum", sa.LargeBinary(length=8), nullable=False),
        sa.ForeignKeyConstraint(["document"], ["documents.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["embedder"], ["embedders.id"]),
        sa.PrimaryKeyConstraint("document", "embedder"),
    )
    op.create_table(
        "pairs",
        sa.Column("query", _id, nullable=False),
        sa.Column("document", _id, nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["document"], ["documents.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["query"], ["queries.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("query", "document"),
        sqlite_with_rowid=False,
    )
    op.create_index("pairs_by_document", "pairs", ["document"], unique=False)
    op.create_table(
        "progress",
        sa.Column("query", _id, nullable=False),
        sa.Column("judge", _id, nullable=False),
        sa.Column("tenant", _id, nullable=False),
        sa.Column("rewards", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["judge"], ["judges.id"]),
        sa.ForeignKeyConstraint(["query"], ["queries.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("query", "judge"),
        sqlite_with_rowid=False,
    )
    op.create_index("progress_by_age", "progress", ["tenant", "judge", "at", "query", "rewards"], unique=False)
    op.create_index(
        "progress_waiting",
        "progress",
        ["tenant", "judge", "at", "query"],
        unique=False,
        sqlite_where=sa.text("waiting > 0"),
        postgresql_where=sa.text("waiting > 0"),
    )
    op.create_table(
        "query_vectors",
        sa.Column("query", _id, nullable=False),
        sa.Column("embedder", _id, nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["embedder"], ["embedders.id"]),
        sa.ForeignKeyConstraint(["query"], ["queries.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("query", "embedder"),
    )
    op.create_table(
        "rewards",
        sa.Column("query", _id, nullable=False),
        sa.Column("judge", _id, nullable=False),
        sa.Column("document", _id, nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["judge"], ["judges.id"]),
        sa.ForeignKeyConstraint(["query"], ["queries.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("query", "judge", "document"),
        sqlite_with_rowid=False,
    )
