"""The way from every earlier schema to the one this package uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tttembed_rag import stores
from tttembed_rag.stores import open_store, schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.migrating import migrate
from tttembed_rag.testing import JUDGE, traffic

SCRIPTS = ScriptDirectory(Path(stores.__file__).parent / "migrations")


def test_the_newest_script_is_the_schema_in_use() -> None:
    """There is one, and the package asks for it."""
    assert SCRIPTS.get_heads() == [schema.HEAD]


@pytest.mark.parametrize("revision", sorted(script.revision for script in SCRIPTS.walk_revisions()))
def test_every_earlier_schema_is_brought_up_to_date(store_url: str, revision: str) -> None:
    """Its tables are then those of a new store, column for column, and work."""
    database = Database(store_url)
    migrate(database, to=revision)
    database.close()

    with open_store(store_url) as store:
        store.observe(traffic(2), judge=JUDGE)

        with store._database.read() as connection:
            assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
        assert len(store.rewards(JUDGE)) == 2
