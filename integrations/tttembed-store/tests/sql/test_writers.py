"""Two writers at the same time, and the texts of documents that both show."""

from functools import partial
from threading import Thread

import numpy as np
import pytest
from sqlalchemy import make_url, select, text
from tttembed_store.sql import Candidate, Served, Store, open_store, schema
from tttembed_store.sql.database import Database

from tttembed_rag.errors import StoreTooSlow, StoreUnavailable
from tttembed_rag.judges import Usage
from tttembed_rag.judging.plan import Progress
from tttembed_rag.testing import eventually

VECTOR = np.ones(8, np.float32)
NOTHING = Progress(0, 0, Usage(), 0.0)


def shown(query, *documents, text=""):
    """A query that was shown *documents*, all with one text."""
    return Served(query, VECTOR, [Candidate(one, VECTOR, text) for one in documents], query=f"text of {query}")


def test_writers_that_change_the_same_texts_are_not_refused(store):
    """Each writes its own queries and other texts of the same documents."""
    documents = [f"d{number}" for number in range(5)]
    store.observe([shown(f"q{number}", *documents, text="first") for number in range(40)])
    refused = []

    def write(seed):
        rng = np.random.default_rng(seed)
        for turn in range(15):
            some = np.sort(rng.choice(40, 8, replace=False))
            try:
                store.observe([shown(f"q{number}", *documents, text=f"{seed} {turn}") for number in some])
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
                refused.append(error)

    together([partial(write, seed) for seed in range(2)])

    assert refused == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["judged", "reward"])
def test_verdicts_and_traffic_on_the_same_queries_are_not_refused(store, how):
    """Both take the queries in one order, however they were numbered; in any other, one would be given up."""
    names = [f"{letter}{digit}" for letter in ("é", "z", "_", "a", "Z", "A") for digit in range(9, 0, -1)]
    for name in names:
        store.observe([shown(name, "d", text="text")])
    waiting = store.judge_queue.waiting("judge")
    rewards = {one.query_id: {one.candidates[0].doc_id: 0.5} for one in waiting}
    verdict = {
        "judged": partial(store.judge_queue.judged, "judge", rewards),
        "reward": partial(store.reward, "judge", {("", "default", name): {"d": 0.5} for name in names}),
    }
    refused = []

    def write(call):
        for _ in range(15):
            try:
                call()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
                refused.append(error)

    served = [shown(name, "d", text="text") for name in names]
    together([partial(write, call) for call in (verdict[how], partial(store.observe, served)) for _ in range(2)])

    assert refused == []


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
def test_a_statement_that_takes_too_long_is_told_from_an_outage(postgres_url, limit):
    """PostgreSQL ends one that waits for another writer, as its settings say."""
    url = make_url(postgres_url)
    limited = url.update_query_dict({"options": f"{url.query['options']} -c{limit}=50"})
    with (
        open_store(postgres_url) as store,
        open_store(limited.render_as_string(hide_password=False)) as hurried,
        store._database.write("forgetting"),
        pytest.raises(StoreTooSlow, match="timeout"),
    ):
        hurried.observe([shown("q", "d")])


@pytest.mark.slow
def test_a_new_judge_that_two_writers_bring_at_once_is_no_deadlock(postgres_url):
    """Both take judges, documents and queries in one order: the first is held up when it has all but its vectors."""
    ours, theirs, refused = schema.query_vectors, schema.queries, []

    def write(call):
        try:
            call()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted
            refused.append(error)

    with open_store(postgres_url) as store, store._database.engine.connect() as connection:
        store.observe([shown("q", "d")])
        second = partial(store.reward, "new", {("", "default", "q"): {"d": 0.5}})
        first = partial(store.observe, [Served("q", VECTOR, [Candidate("d", VECTOR, "", 0.5)])], judge="new")
        connection.execute(select(ours.c.query).join(theirs).where(theirs.c.name == "q").with_for_update(of=ours))
        threads = [Thread(target=write, args=(call,)) for call in (first, second)]
        for waiting, thread in enumerate(threads, 1):
            thread.start()
            held_up = partial(connection.execute, text("SELECT count(*) FROM pg_locks WHERE NOT granted"))
            eventually(lambda held_up=held_up, waiting=waiting: held_up().scalar() >= waiting)
        connection.rollback()
        for thread in threads:
            thread.join()

    assert refused == []


def test_a_process_that_is_frozen_holds_up_nobody(store_url):
    """PostgreSQL ends its transaction, and whoever waits for what it holds goes on; the frozen one is told."""
    if store_url.startswith("sqlite"):
        pytest.skip("the file of a process that is frozen stays locked")
    with open_store(store_url) as other, Store(Database(store_url, idle_seconds=1)) as store:
        store.observe([shown("q", "d")])

        def freeze():
            with store._database.write("publishing") as frozen:
                frozen.execute(select(schema.tenants.c.id).with_for_update())
                other.registry.halt(by="me")  # would wait for ever
                frozen.execute(select(schema.tenants.c.id))

        with pytest.raises(StoreUnavailable):
            freeze()
        assert other.registry.halted() is not None
        assert store.counts().queries == 1


def test_nothing_of_a_session_outlasts_a_transaction(store_url):
    """A pooler in transaction mode gives the next transaction another session of PostgreSQL, or another's."""
    if store_url.startswith("sqlite"):
        pytest.skip("a connection to a file is nobody else's")
    left = {
        "prepared statements": "SELECT count(*) FROM pg_prepared_statements",
        "settings": "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction%'",
        "locks": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    }
    with open_store(store_url) as store:
        for number in range(20):
            store.observe([shown(f"q{number}", "d")])
            store.counts()
        bare = store._database.engine.raw_connection()
        counts = {what: bare.driver_connection.execute(query).fetchone()[0] for what, query in left.items()}
        bare.close()

    assert counts == dict.fromkeys(left, 0)


def together(calls):
    """Make each call in a thread of its own."""
    threads = [Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
