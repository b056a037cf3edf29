"""The tables of the first release: those of `schema`, which a script that changes them freezes here."""

import secrets

from alembic import op

from tttembed_store.sql import schema

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables, the key of a store's hashes and the shared tenant; programs of this schema may use them."""
    schema.metadata.create_all(op.get_bind())
    facts = [{"name": "salt", "value": secrets.token_hex(32)}, {"name": "oldest_schema", "value": revision}]
    op.bulk_insert(schema.facts, facts)
    op.bulk_insert(schema.tenants, [{"name": ""}])
