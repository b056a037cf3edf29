"""Many processes on one store; `make faults` runs the heavy version."""

import multiprocessing
import os
import sqlite3
from threading import Event, Thread

import psycopg
import pytest
from sqlalchemy import func, select

from tests.traffic import JUDGE, learned, traffic
from tttembed_rag.errors import StoreError
from tttembed_rag.stores import open_store, schema
from tttembed_rag.stores.database import Database

pytestmark = pytest.mark.slow
WRITERS, READERS, BATCHES = 4, 4, 4


def write(url, number, offsets, said):
    """A process: writes batches and publishes, while its threads read; tells what was acknowledged."""
    wrong, done, published = [], Event(), []

    def read():
        last = 0
        while not done.wait(0.01):
            serving = store.serving()
            if serving.generation < last:
                wrong.append(f"generation {serving.generation} after {last}")
            last = serving.generation
            if serving.version is not None and len(serving.version.offsets) != 2:
                wrong.append(f"version {serving.version.number} is not whole")

    with open_store(url) as store:
        threads = [Thread(target=read) for _ in range(READERS)]
        for thread in threads:
            thread.start()
        for batch in range(BATCHES):
            store.observe(traffic(5, first=100 * number + 5 * batch), judge=JUDGE)
            published.append(store.registry.publish(offsets, by=f"writer {number}").number)
        done.set()
        for thread in threads:
            thread.join()
    said.put((wrong, published))


def test_writers_and_readers_of_many_processes(store_url):
    """Every acknowledged reward is there, versions strictly increase, readers see whole versions."""
    processes = multiprocessing.get_context("fork")
    said = processes.Queue()
    with open_store(store_url) as store:
        store.observe(traffic(20, tenant="learned from"), judge=JUDGE)
        offsets = learned(store, "learned from")
    writers = [processes.Process(target=write, args=(store_url, number, offsets, said)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    outcomes = [said.get(timeout=100) for _ in writers]
    for writer in writers:
        writer.join()
    expected = {f"q{100 * writer + place}" for writer in range(WRITERS) for place in range(5 * BATCHES)}

    assert [wrong for wrong, _ in outcomes] == [[]] * WRITERS
    assert all(sorted(published) == published for _, published in outcomes)
    with open_store(store_url) as store:
        assert set(store.rewards(JUDGE).query_ids.tolist()) == expected
        assert store.judges() == [(JUDGE, 4 * len(expected))]
        numbers = sorted(number for _, published in outcomes for number in published)
        assert [version.number for version in reversed(store.registry.versions())] == numbers
        lines = [line.detail for line in reversed(store.audit.lines()) if line.action == "publish"]
        assert lines == [f"version {number} is live" for number in numbers]
        assert store.registry.aliases()["live"] == numbers[-1]


def test_a_forked_child_has_connections_of_its_own(store_url):
    """Parent and child write at the same time, and all of it is there."""
    with open_store(store_url) as store:
        store.observe(traffic(1), judge=JUDGE)
        child = os.fork()
        first = 1 if child else 101
        try:
            for number in range(first, first + 10):
                store.observe(traffic(1, first=number), judge=JUDGE)
        except StoreError:
            if child:
                raise
            os._exit(1)
        if not child:
            os._exit(0)
        _, status = os.waitpid(child, 0)

        assert status == 0
        assert store.counts().queries == 21


def test_a_transaction_of_a_store_that_is_closed_ends_and_leaves_no_connection(store_url):
    """What a thread reads or writes is done; its connection closes then, and the store can be used again."""
    with open_store(store_url) as store:
        store.observe(traffic(5), judge=JUDGE)
    database = Database(store_url)
    with database.read() as connection:
        used = connection.connection.dbapi_connection
        database.close()
        assert connection.execute(select(func.count()).select_from(schema.queries)).scalar() == 5

    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        used.execute("SELECT 1")
    with database.read() as first:
        kept = first.connection.dbapi_connection
    with database.read() as second:
        assert second.connection.dbapi_connection is kept
    database.close()
