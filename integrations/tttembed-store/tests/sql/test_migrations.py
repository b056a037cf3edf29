"""The scripts that make the tables, and what two releases on one store owe each other."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tttembed_store
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from tttembed_store import StoreLog, follow
from tttembed_store import sql as stores
from tttembed_store.sql import open_store, schema

from tests.traffic import JUDGE, traffic
from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.testing import eventually

SCRIPTS = ScriptDirectory(Path(stores.__file__).parent / "migrations")
# A script of the next release, which adds a column.
NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"

def upgrade():
    op.add_column("queries", sa.Column("language", sa.Text()))
    {more}
"""
# What it does beside that where programs of this release must not go on.
BREAKS = """op.execute("UPDATE facts SET value = '0002' WHERE name = 'oldest_schema'")"""


@pytest.fixture
def open_by_next_release(tmp_path):
    """Opens a store with a copy of the package that has one script more, which does what it is given beside."""

    def opened(url, more):
        package = tmp_path / "next" / "tttembed_store"
        shutil.copytree(Path(tttembed_store.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        (package / "sql/migrations/versions/0002_next.py").write_text(NEXT.format(more=more), encoding="utf-8")
        named = package / "sql" / "schema.py"
        named.write_text(named.read_text(encoding="utf-8").replace('HEAD = "0001"', 'HEAD = "0002"'), encoding="utf-8")
        program = "import sys; from tttembed_store.sql import open_store; open_store(sys.argv[1]).close()"
        environment = os.environ | {"PYTHONPATH": str(package.parent)}
        subprocess.run([sys.executable, "-c", program, url], check=True, cwd=package.parent, env=environment)

    return opened


def test_the_newest_script_is_the_schema_in_use():
    """There is one, and the package asks for it; the first makes the tables in use only as long as it is the newest."""
    first = Path(SCRIPTS.get_revision("0001").path).read_text(encoding="utf-8")

    assert SCRIPTS.get_heads() == [schema.HEAD]
    assert ("schema.metadata" in first) == (schema.HEAD == "0001")


def test_the_scripts_make_the_tables_in_use(new_store_url):
    """Column for column."""
    with open_store(new_store_url) as store, store._database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []


def test_this_release_goes_on_and_starts_again_behind_one_that_only_adds(new_store_url, open_by_next_release):
    """The next release brings the store up to date where it opens it, and nothing of this one stops."""
    with open_store(new_store_url) as running:
        running.observe(traffic(2), judge=JUDGE)
        open_by_next_release(new_store_url, "pass")
        running.observe(traffic(3), judge=JUDGE)
    with open_store(new_store_url) as started:
        started.observe(traffic(4), judge=JUDGE)
        rewards = started.rewards(JUDGE)
        with started._database.read() as connection:
            added = connection.execute(text("SELECT language FROM queries")).scalars().all()

    assert added == [None] * 4
    assert len(rewards) == 4


def test_this_release_is_refused_behind_one_that_breaks(new_store_url, open_by_next_release):
    """In one line; a process that starts late serves base vectors, instead of not starting."""
    open_store(new_store_url).close()
    open_by_next_release(new_store_url, BREAKS)
    live = follow(new_store_url)
    reason = live.status.error
    live.close()

    expected = "expected a store that programs of schema 0001 may use, found schema 0002; upgrade tttembed-rag"
    with pytest.raises(StoreUnavailable, match=f": {expected}$"):
        open_store(new_store_url)
    assert expected in str(reason)


def test_a_store_that_a_newer_release_changed_is_waited_for(new_store_url):
    """A process that has it open keeps its captures until it is replaced, and says why; nothing counts as failed."""
    with open_store(new_store_url) as store, StoreLog(store, JUDGE) as log:
        store.observe(traffic(2), judge=JUDGE)
        with store._database.engine.begin() as connection:
            connection.execute(text("ALTER TABLE queries RENAME COLUMN seen TO served"))
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        with pytest.raises(StoreUnavailable):
            store.observe(traffic(3), judge=JUDGE)
        log.observe("q", ["a"])
        error = eventually(lambda: log.error)
        waited, counts = not log.flush(0.1), log.counts
        with store._database.engine.begin() as connection:
            connection.execute(text("ALTER TABLE queries RENAME COLUMN served TO seen"))
            connection.execute(text("UPDATE alembic_version SET version_num = :head"), {"head": schema.HEAD})
        written = log.flush(20)

        assert waited
        assert (counts.queued, counts.failed) == (1, 0)
        assert "not available now" in str(error)
        assert (written, store.counts().queries) == (True, 3)


def test_threads_make_stores_of_their_own(tmp_path):
    """Stores that several threads of one process make at once are each whole."""
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: open_store(f"sqlite:///{tmp_path}/{number}.db"), range(8)))

    assert [store.counts().queries for store in made] == [0] * 8
    for store in made:
        store.close()
