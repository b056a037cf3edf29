"""What two releases on one store owe each other."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from tttembed_store import StoreLog, follow
from tttembed_store.sql import open_store

from tests.traffic import JUDGE, traffic
from tttembed_rag.errors import StoreError, StoreUnavailable
from tttembed_rag.testing import eventually

# What a later release does to the tables of this one: it adds to them, or changes what this one writes.
ADDS = ("ALTER TABLE queries ADD COLUMN language TEXT", "UPDATE facts SET value = '0002' WHERE name = 'schema'")
CHANGES = ("ALTER TABLE queries RENAME COLUMN seen TO served", ADDS[1])
IS_BACK = (
    "ALTER TABLE queries RENAME COLUMN served TO seen",
    "UPDATE facts SET value = '0001' WHERE name = 'schema'",
)
BREAKS = (*ADDS, "UPDATE facts SET value = '0002' WHERE name = 'oldest_schema'")


def alter(store, statements):
    """Do to the tables what another program does."""
    with store._database.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))


def test_this_release_goes_on_and_starts_again_behind_one_that_only_adds(new_store_url):
    """The next release brings the store up to date where it opens it, and nothing of this one stops."""
    with open_store(new_store_url) as running:
        running.observe(traffic(2), judge=JUDGE)
        alter(running, ADDS)
        running.observe(traffic(3), judge=JUDGE)
    with open_store(new_store_url) as started:
        started.observe(traffic(4), judge=JUDGE)

        assert len(started.rewards(JUDGE)) == 4


def test_this_release_is_refused_behind_one_that_breaks(new_store_url):
    """In one line; a process that starts late serves base vectors, instead of not starting."""
    with open_store(new_store_url) as store:
        alter(store, BREAKS)
    live = follow(new_store_url)
    reason = live.status.error
    live.close()

    expected = "expected a store that programs of schema 0001 may use, found schema 0002; upgrade tttembed-rag"
    with pytest.raises(StoreUnavailable, match=f": {expected}$"):
        open_store(new_store_url)
    assert expected in str(reason)


def test_a_store_of_before_is_refused(new_store_url):
    """It may lack a table or a column: one line says so, instead of an error at each query."""
    with open_store(new_store_url) as store:
        alter(store, ["DELETE FROM facts WHERE name = 'schema'"])

    with pytest.raises(StoreError, match=r"expected a store of schema 0001, found one of schema unknown$"):
        open_store(new_store_url)


def test_a_log_starts_where_its_file_cannot_be_made_now(caplog):
    """A disk may be full, or a folder read-only, for a while: the program runs, and the log says so."""
    log = StoreLog("sqlite:////proc/store.db")
    log.close(timeout=0.1)

    assert "does not answer" in caplog.text


def test_a_store_that_a_newer_release_changed_is_waited_for(new_store_url):
    """A process that has it open keeps its captures until it is replaced, and says why; nothing counts as failed."""
    with open_store(new_store_url) as store, StoreLog(store, JUDGE) as log:
        store.observe(traffic(2), judge=JUDGE)
        alter(store, CHANGES)
        with pytest.raises(StoreUnavailable):
            store.observe(traffic(3), judge=JUDGE)
        log.observe("q", ["a"])
        error = eventually(lambda: log.error)
        waited, counts = not log.flush(0.1), log.counts
        alter(store, IS_BACK)
        written = log.flush(20)

        assert waited
        assert (counts.queued, counts.failed) == (1, 0)
        assert "not available now" in str(error)
        assert (written, store.counts().queries) == (True, 3)


def test_threads_make_stores_of_their_own_and_one_together(tmp_path):
    """Stores that several threads of one process make at once are each whole."""
    urls = [f"sqlite:///{tmp_path}/{number}.db" for number in range(8) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(open_store, urls))

    assert [store.counts().queries for store in stores] == [0] * 16
    for store in stores:
        store.close()
