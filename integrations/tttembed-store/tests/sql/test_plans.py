"""What is asked of a store of any size reads the part it needs, in the order of an index."""

import numpy as np
import pytest
from sqlalchemy import event
from tttembed_store.sql import Candidate, Served, open_store

from tests.traffic import JUDGE, traffic, unrewarded
from tttembed_rag.errors import RewardError


@pytest.fixture
def store(sqlite_url):
    """Some served queries in a SQLite store, of which one tenant shares."""
    with open_store(sqlite_url) as store:
        store.observe(traffic(20), judge=JUDGE)
        store.observe([served("a1", "a", 17.5), served("a2", "a", 1.8e9)], judge=JUDGE)
        store.share("a", allowed=True, by="me")
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
    found = []

    def explain(connection, cursor, statement, parameters, *_):
        plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        if any("TEMP B-TREE FOR ORDER BY" in step[3] for step in plan):
            found.append(statement)

    event.listen(store._database.engine, "before_cursor_execute", explain)
    return found


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


@pytest.mark.parametrize(("last", "names"), [(1, {"a:a2"}), (4, {"a:a2", "q19", "q18", "a:a1"}), (None, None)])
def test_the_last_served_are_those_of_all_that_share(store, last, names):
    """Whoever they belong to, the newest count."""
    found = {name.replace("\0", "") for name in store.rewards(JUDGE, last=last).query_ids.tolist()}

    assert (names or {*(f"q{number}" for number in range(20)), "a:a1", "a:a2"}) == found


def test_a_tenant_learns_from_itself_alone(store):
    """Others that share do so with the shared tenant."""
    store.observe([served("b1", "b", 1.9e9)], judge=JUDGE)
    store.share("b", allowed=True, by="me")

    assert store.rewards(JUDGE, tenant="a").query_ids.tolist() == ["a1", "a2"]


def test_who_shares_no_more_is_not_learned_from(store):
    """Neither what it was served last, nor its model."""
    store.share("a", allowed=False, by="me")

    assert {f"q{number}" for number in range(20)} == set(store.rewards(JUDGE).query_ids.tolist())
    with pytest.raises(RewardError, match="got none"):
        store.rewards(JUDGE, since=1.79e9)


def test_documents_keep_their_names_and_hide_those_of_other_tenants(store):
    """Evidence names documents: the tenant's own by their id, others by nothing that tells whose they are."""
    shared, own = store.rewards(JUDGE), store.rewards(JUDGE, tenant="a")

    assert set(own.doc_ids.tolist()) == {"shown"}
    assert "(another tenant's)" in shared.doc_ids.tolist()
    assert "shown" not in shared.doc_ids.tolist()
    assert {name for name in shared.doc_ids.tolist() if name.startswith("d")}


def test_texts_are_read_by_their_owner_alone(store):
    """What is learned of words tells whether a word is there: no tenant's words reach what others are served."""
    shared, own = store.rewards(JUDGE), store.rewards(JUDGE, tenant="a")

    assert set(own.query_texts) == {"asked"}
    assert set(own.doc_texts) == {"text"}
    assert min(set(shared.query_texts) - {""}).startswith("question ")
    assert "asked" not in shared.query_texts
    assert "text" not in shared.doc_texts
