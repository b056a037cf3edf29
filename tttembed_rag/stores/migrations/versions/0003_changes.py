"""Changes of rewards, failures of judges, and what is read of tenants and versions at a glance.

It only adds: processes of the package before go on with the store while they are replaced.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add them; changes are counted from now on."""
    op.create_table(
        "changes",
        sa.Column("id", _id, nullable=False),
        sa.Column("tenant", _id, nullable=False),
        sa.Column("judge", _id, nullable=False),
        sa.Column("rewards", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["judge"], ["judges.id"]),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("changes_by_judge", "changes", ["tenant", "judge", "rewards"], unique=False)
    op.create_table(
        "failures",
        sa.Column("query", _id, nullable=False),
        sa.Column("judge", _id, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["judge"], ["judges.id"]),
        sa.ForeignKeyConstraint(["query"], ["queries.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("query", "judge"),
        sqlite_with_rowid=False,
    )
    op.create_index("failures_by_due", "failures", ["judge", "due_at", "query"], unique=False)
    op.add_column("versions", sa.Column("evidence", sa.Text(), nullable=True))
    op.create_index(
        "tenants_by_generation",
        "tenants",
        ["generation", "name"],
        unique=False,
        sqlite_where=sa.text("generation > 0"),
        postgresql_where=sa.text("generation > 0"),
    )
