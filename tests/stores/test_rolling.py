"""A rolling upgrade: processes of two releases on one store lose nothing and say what is wrong."""

from __future__ import annotations

import pytest
from sqlalchemy import inspect, text

from tests.traffic import JUDGE, traffic
from tttembed_rag import Offsets
from tttembed_rag.capture import StoreLog
from tttembed_rag.errors import LeaseLost, StoreUnavailable
from tttembed_rag.serving import follow
from tttembed_rag.stores import open_store, schema
from tttembed_rag.stores.database import Database
from tttembed_rag.stores.migrating import migrate
from tttembed_rag.testing import eventually


def columns_at(url: str, revision: str) -> dict[tuple[str, str], bool]:
    """By table and column of a schema, whether a row must be given a value for it."""
    database = Database(url)
    migrate(database, to=revision)
    tables = inspect(database.engine)
    found = {
        (table, column["name"]): not column["nullable"] and column["default"] is None
        for table in tables.get_table_names()
        for column in tables.get_columns(table)
    }
    database.close()
    return found


def test_a_newer_schema_only_adds(store_url: str) -> None:
    """What a process of the release before reads is there, and what it writes is enough."""
    before = columns_at(store_url, "0002")
    after = columns_at(store_url, schema.HEAD)
    known = {table for table, _ in before}

    assert before.keys() <= after.keys()
    assert [key for key in after.keys() - before.keys() if key[0] in known and after[key]] == []


def test_nothing_is_brought_up_to_date_unasked(store_url: str) -> None:
    """Processes of the new release wait: captures stay in the queue, and base vectors are served, until it is done."""
    database = Database(store_url)
    migrate(database, to="0002")
    database.close()
    with pytest.raises(StoreUnavailable, match="expected a store of schema 0004, found 0002"):
        open_store(store_url)
    live = follow(store_url, every=0.05)
    with StoreLog(store_url) as log:
        for number in range(10):
            log.observe(f"q{number}", ["a"])
        waited = not log.flush(0.3)
        counts, error, status = log.counts, log.error, live.status
        with open_store(store_url, upgrade=True) as store:
            written = log.flush(20)
            queries = store.counts().queries
    live.close()

    assert waited
    assert (counts.queued, counts.failed, status.offsets) == (10, 0, None)
    assert "tttembed migrate" in str(error)
    assert "tttembed migrate" in str(status.error)
    assert (written, queries) == (True, 10)


def test_a_store_that_a_newer_release_changed_is_waited_for(store_url: str) -> None:
    """A process that has it open keeps its captures until it is replaced, and says why; nothing counts as failed."""
    with open_store(store_url) as store, StoreLog(store, JUDGE) as log:
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


@pytest.mark.parametrize("tenant", ["", "t"])
def test_a_worker_of_an_earlier_release_works_alone(store_url: str, tenant: str) -> None:
    """It holds one lease for all tenants: others wait for it, and what it is learning is forgotten with the tenant."""
    with open_store(store_url) as store:
        store.observe(traffic(2, tenant=tenant), judge=JUDGE)
        lease = store.leases.take("worker", "an earlier release", 60.0)
        assert lease is not None
        beside = store.leases.take_tenant(tenant, "this release", 60.0)
        store.forget(tenant=tenant, by="test")
        with pytest.raises(LeaseLost, match="nothing was changed"):
            store.publish(Offsets([], width=8), by="worker", tenant=tenant, lease=lease)
        afterwards = store.leases.take_tenant(tenant, "this release", 60.0)

    assert beside is None
    assert afterwards is not None


def test_a_store_of_a_newer_release_is_refused_as_not_now(store_url: str) -> None:
    """A process of this release that starts late serves base vectors, instead of not starting."""
    with open_store(store_url) as store, store._database.write("publishing") as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    live = follow(store_url)
    reason = live.status.error
    live.close()

    assert "expected a store of schema 0004 or older, found 9999; upgrade tttembed-rag" in str(reason)
