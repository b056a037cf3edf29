"""The way back, the owners of halts, the queries of answers, the times of forgetting, and checksums of vectors."""

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add them; delete the answers kept so far, as their queries are not known: judges are asked again."""
    op.create_table(
        "lives",
        sa.Column("version", _id, nullable=False),
        sa.Column("replaced", _id, nullable=True),
        sa.ForeignKeyConstraint(["version"], ["versions.number"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("version"),
    )
    op.execute(
        "INSERT INTO lives (version, replaced) SELECT number, (SELECT max(earlier.number) FROM versions AS earlier "
        "WHERE earlier.tenant = versions.tenant AND earlier.lived AND earlier.number < versions.number) "
        "FROM versions WHERE lived"
    )
    _keep_previous()
    op.drop_column("versions", "lived")
    op.execute("DELETE FROM aliases WHERE alias = 'previous'")
    _drop_stale_states()
    op.add_column("tenants", sa.Column("halted_by", sa.Text(), nullable=True))
    op.execute(
        "UPDATE tenants SET halted_by = (SELECT audit.\"by\" FROM audit WHERE audit.action = 'halt' "
        "AND audit.tenant = tenants.name ORDER BY audit.id DESC LIMIT 1) WHERE halted IS NOT NULL"
    )
    op.execute(
        "INSERT INTO facts (name, value) SELECT 'halted_by', coalesce((SELECT audit.\"by\" FROM audit WHERE "
        "audit.action = 'halt' AND audit.tenant IS NULL ORDER BY audit.id DESC LIMIT 1), '') "
        "FROM facts WHERE name = 'halted'"
    )
    op.drop_table("answers")
    op.create_table(
        "answers",
        sa.Column("pair", sa.LargeBinary(length=32), nullable=False),
        sa.Column("query", _id, nullable=True),
        sa.Column("judge", _id, nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("tokens", sa.Double(), nullable=False),
        sa.Column("usd", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["judge"], ["judges.id"]),
        sa.ForeignKeyConstraint(["query"], ["queries.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("pair"),
        sqlite_with_rowid=False,
    )
    op.create_index("answers_by_age", "answers", ["at"], unique=False)
    op.create_index("answers_by_query", "answers", ["query"], unique=False)
    op.create_table(
        "forgotten",
        sa.Column("tenant", _id, nullable=False),
        sa.Column("query", sa.LargeBinary(length=32), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("tenant", "query"),
    )
    op.create_index("forgotten_by_age", "forgotten", ["tenant", "at"], unique=False)
    _add_checksums()


def _keep_previous() -> None:
    """Write down which version each live one replaced: the alias ``previous`` knows it, the order of numbers guesses.

    Where the replaced version has a higher number, the version that followed the live one by number goes back past it.
    """
    connection = op.get_bind()
    lives = sa.table("lives", sa.column("version"), sa.column("replaced"))
    known = sa.text(
        "SELECT live.version, previous.version FROM aliases AS live JOIN aliases AS previous "
        "ON previous.tenant = live.tenant WHERE live.alias = 'live' AND previous.alias = 'previous' "
        "AND previous.version <> live.version"
    )
    for live, previous in connection.execute(known).all():
        if previous > live:
            before = sa.select(lives.c.replaced).where(lives.c.version == live)
            passed = lives.update().where(lives.c.replaced == live)
            connection.execute(passed.values(replaced=connection.execute(before).scalar()))
        connection.execute(lives.update().where(lives.c.version == live).values(replaced=previous))


def _drop_stale_states() -> None:
    """Delete what the shared tenant remembers by query ids, as the ids of sharing tenants have changed."""
    op.execute(
        "DELETE FROM states WHERE name IN ('learned', 'trial') "
        "AND tenant IN (SELECT id FROM tenants WHERE name = '') AND EXISTS (SELECT 1 FROM tenants WHERE shared_once)"
    )


def _add_checksums() -> None:
    """Make the table of query vectors anew, each with a checksum of 8 bytes; a thousand rows at a time."""
    connection = op.get_bind()
    columns = (
        sa.Column("query", _id, nullable=False),
        sa.Column("embedder", _id, nullable=False),
        sa.Column("vector", sa.LargeBinary(), nullable=False),
    )
    old = sa.table("query_vectors", *(sa.column(one.name, one.type) for one in columns))
    new = op.create_table(
        "checked_vectors",
        *columns,
        sa.Column("checksum", sa.LargeBinary(length=8), nullable=False),
        sa.ForeignKeyConstraint(["embedder"], ["embedders.id"]),
        sa.ForeignKeyConstraint(["query"], ["queries.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("query", "embedder"),
    )
    place = sa.tuple_(old.c.query, old.c.embedder)
    page = sa.select(old).where(place > sa.tuple_(sa.bindparam("query"), sa.bindparam("embedder")))
    page = page.order_by(old.c.query, old.c.embedder).limit(1000)
    last = {"query": -1, "embedder": -1}
    while rows := [dict(row) for row in connection.execute(page, last).mappings()]:
        for row in rows:
            row["checksum"] = hashlib.blake2b(row["vector"], digest_size=8).digest()
        connection.execute(new.insert(), rows)
        last = {"query": rows[-1]["query"], "embedder": rows[-1]["embedder"]}
    op.drop_table("query_vectors")
    op.rename_table("checked_vectors", "query_vectors")
