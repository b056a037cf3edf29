"""Who gave a reward: what each source said of a pair, beside the mean of all.

It only adds: processes of the package before go on with the store while they are replaced. Rewards so far have no
source.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the rewards of sources, and the count of those that were dropped."""
    op.create_table(
        "source_rewards",
        sa.Column("query", _id, nullable=False),
        sa.Column("judge", _id, nullable=False),
        sa.Column("document", _id, nullable=False),
        sa.Column("source", sa.String(length=512), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["judge"], ["judges.id"]),
        sa.ForeignKeyConstraint(["query"], ["queries.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("query", "judge", "document", "source"),
        sqlite_with_rowid=False,
    )
    op.create_index("source_rewards_by_source", "source_rewards", ["source"], unique=False)
    op.add_column("rewards", sa.Column("dropped", sa.Integer(), server_default="0", nullable=False))
