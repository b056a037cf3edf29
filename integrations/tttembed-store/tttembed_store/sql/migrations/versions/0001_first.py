"""The tables of the first release: those of `schema`, which a script that changes them freezes here."""

from alembic import op

from tttembed_store.sql.migrating import make

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables, the key of a store's hashes and the shared tenant; programs of this schema may use them."""
    make(op.get_bind())
