"""What is asked of a store of any size reads the part it needs, in the order of an index."""

import numpy as np
import pytest
from sqlalchemy import event
from tttembed_store.sql import Candidate, Served, open_store

from tests.traffic import JUDGE, traffic, unrewarded


@pytest.fixture
def store(sqlite_url):
    """Some served queries of two tenants in a SQLite store."""
    with open_store(sqlite_url) as store:
        store.observe(traffic(20), judge=JUDGE)
        store.observe([served("a1", "a", 17.5), served("a2", "a", 1.8e9)], judge=JUDGE)
        store.judge_queue.waiting(JUDGE)  # from now on, what waits is counted
        store.observe(unrewarded(traffic(20, first=20)))
        yield store


def served(name, tenant, at):
    """A query with one rewarded document."""
    one = Candidate("shown", np.ones(8, dtype=np.float32), "text", 0.5)
    return Served(name, np.arange(1, 9, dtype=np.float32), [one], "asked", tenant=tenant, at=at, embedder="e")


@pytest.fixture
def sorted_here(store):
    """Statements that SQLite has to sort for their first column: they read all there is, whatever their limit."""
    sorting = []

    def explain(connection, cursor, statement, parameters, *_):
        plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        if any("TEMP B-TREE FOR ORDER BY" in step[3] for step in plan):
            sorting.append(statement)

    event.listen(store._database.engine, "before_cursor_execute", explain)
    return sorting


@pytest.mark.parametrize(
    "ask",
    [
        lambda store: store.rewards(JUDGE, last=2),
        lambda store: store.rewards(JUDGE, last=2, since=1.0),
        lambda store: store.rewards(JUDGE, tenant="a", last=1),
        lambda store: store.embedder(JUDGE, last=2, since=1.0),
        lambda store: store.judge(last=2, since=1.0),
        lambda store: store.judge_queue.waiting(JUDGE, limit=2),
        lambda store: store.judge_queue.waiting(JUDGE, limit=2, covering=True),
    ],
)
def test_the_last_served_are_read_in_order(store, sorted_here, ask):
    """Of many queries few are wanted: only those are touched."""
    ask(store)

    assert not sorted_here
