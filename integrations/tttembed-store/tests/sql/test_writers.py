"""Two writers at the same time, and the texts of documents that both show."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

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
    return Served(query, VECTOR, [Candidate(name, VECTOR, text) for name in documents], query=f"text of {query}")


def test_writers_that_change_the_same_texts_are_not_refused(store):
    """Each writes its own queries and other texts of the same documents."""
    documents = [f"d{number}" for number in range(5)]
    store.observe([shown(f"q{number}", *documents, text="first") for number in range(40)])

    def write(seed):
        rng = np.random.default_rng(seed)
        for turn in range(15):
            some = np.sort(rng.choice(40, 8, replace=False))
            store.observe([shown(f"q{number}", *documents, text=f"{seed} {turn}") for number in some])

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write, seed) for seed in range(2)]

    assert [writer.exception() for writer in writing] == [None] * 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["judged", "reward"])
def test_verdicts_and_traffic_on_the_same_queries_are_not_refused(store, how):
    """Both take the queries in one order, however they were numbered; in any other, one would be given up."""
    names = [f"{letter}{digit}" for letter in ("é", "z", "_", "a", "Z", "A") for digit in range(9, 0, -1)]
    for name in names:
        store.observe([shown(name, "d", text="text")])
    waiting = store.judge_queue.waiting("judge")
    rewards = {query.query_id: {query.candidates[0].doc_id: 0.5} for query in waiting}
    verdict = {
        "judged": partial(store.judge_queue.judged, "judge", rewards),
        "reward": partial(store.reward, "judge", {("", "default", name): {"d": 0.5} for name in names}),
    }

    def write(call):
        for _ in range(15):
            call()

    observe = partial(store.observe, [shown(name, "d", text="text") for name in names])
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write, call) for call in (verdict[how], observe) for _ in range(2)]

    assert [writer.exception() for writer in writing] == [None] * 4


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
    ours, theirs, writing = schema.query_vectors, schema.queries, []
    with (
        open_store(postgres_url) as store,
        ThreadPoolExecutor(2) as pool,
        store._database.engine.connect() as connection,
    ):
        store.observe([shown("q", "d")])
        second = partial(store.reward, "new", {("", "default", "q"): {"d": 0.5}})
        first = partial(store.observe, [Served("q", VECTOR, [Candidate("d", VECTOR, "", 0.5)])], judge="new")
        connection.execute(select(ours.c.query).join(theirs).where(theirs.c.name == "q").with_for_update(of=ours))
        for call in (first, second):
            writing.append(pool.submit(call))
            held_up = partial(connection.execute, text("SELECT count(*) FROM pg_locks WHERE NOT granted"))
            eventually(lambda held_up=held_up: held_up().scalar() >= len(writing))
        connection.rollback()

    assert [writer.exception() for writer in writing] == [None] * 2


def test_a_process_that_is_frozen_holds_up_nobody(postgres_url):
    """PostgreSQL ends its transaction, and whoever waits for what it holds goes on; the frozen one is told."""
    with open_store(postgres_url) as other, Store(Database(postgres_url, idle_seconds=1)) as store:
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


def test_nothing_of_a_session_outlasts_a_transaction(postgres_url):
    """A pooler in transaction mode gives the next transaction another session of PostgreSQL, or another's."""
    left = {
        "prepared statements": "SELECT count(*) FROM pg_prepared_statements",
        "settings": "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction%'",
        "locks": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
    }
    with open_store(postgres_url) as store:
        for number in range(20):
            store.observe([shown(f"q{number}", "d")])
            store.counts()
        bare = store._database.engine.raw_connection()
        counts = {what: bare.driver_connection.execute(query).fetchone()[0] for what, query in left.items()}
        bare.close()

    assert counts == dict.fromkeys(left, 0)
