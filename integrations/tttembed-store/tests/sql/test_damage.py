"""Rows that are not what was written: left out of what is learned, and told; every other row is still used."""

from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import select
from tttembed_store.sql import open_store, schema

from tests.traffic import JUDGE, traffic
from tttembed_rag.errors import RewardError

pytestmark = pytest.mark.slow

DAMAGES = {
    "a flipped bit": lambda vector: bytes([vector[0] ^ 1]) + vector[1:],
    "cut off": lambda vector: vector[:-3],
    "another width": lambda vector: vector[:-8],
    "NaN": lambda _: np.full(8, np.nan, "<f4").tobytes(),
    "zero": lambda vector: bytes(len(vector)),
    "empty": lambda _: b"",
}


@pytest.fixture
def store(store_url):
    """A store in which tenant "a" was served 12 rewarded queries."""
    with open_store(store_url) as opened:
        opened.observe(traffic(12, tenant="a"), judge=JUDGE)
        yield opened


def damage(store, table, name, change):
    """Change the vector of a query or document of tenant "a" behind the store's back."""
    vectors = {schema.queries: schema.query_vectors, schema.documents: schema.document_vectors}[table]
    row = select(table.c.id).join(schema.tenants).where(schema.tenants.c.name == "a", table.c.name == name)
    mine = next(iter(vectors.primary_key)) == row.scalar_subquery()
    with store._database.write("forgetting") as connection:
        vector = connection.execute(select(vectors.c.vector).where(mine)).scalar_one()
        connection.execute(vectors.update().where(mine).values(vector=change(bytes(vector))))


def columns(rewards):
    """All that is learned from, to compare."""
    arrays = [rewards.query_vectors, rewards.doc_vectors, rewards.starts, rewards.candidates, rewards.values]
    return [rewards.query_ids.tolist(), *(array.tolist() for array in arrays)]


def line_of(queries, documents, rewards):
    """The line that says how much is left out."""
    counts = f"{queries:d} query vectors, {documents:d} document vectors, {rewards} rewards"
    return [f"tenant 'a': damaged, and left out of what is learned: {counts}"]


@pytest.mark.parametrize("what", DAMAGES)
@pytest.mark.parametrize("of", ["query", "document"])
def test_a_damaged_vector_takes_its_query_or_its_pairs_out(store, of, what, caplog):
    """What is learned equals what a store learns that never saw these, and one line tells of it."""
    whole = traffic(12, tenant="b")
    if of == "query":
        whole = [query for query in whole if query.query_id != "q3"]
        damage(store, schema.queries, "q3", DAMAGES[what])
    else:
        whole = [replace(query, candidates=[it for it in query.candidates if it.doc_id != "d7"]) for query in whole]
        damage(store, schema.documents, "d7", DAMAGES[what])
    store.observe(whole, judge=JUDGE)

    rewards = store.rewards(JUDGE, tenant="a")

    assert columns(store.rewards(JUDGE, tenant="b")) == columns(rewards)
    assert line_of(of == "query", of == "document", 0) == caplog.messages


def test_a_query_with_nothing_but_damaged_documents_is_left_out(store):
    """All others are learned from."""
    (query,) = traffic(1, first=3)
    for shown in query.candidates:
        damage(store, schema.documents, shown.doc_id, DAMAGES["NaN"])

    assert {f"q{row}" for row in range(12)} - {"q3"} == set(store.rewards(JUDGE, tenant="a").query_ids.tolist())


@pytest.mark.parametrize("value", ["7.5", "-0.1", "1e999", "'NaN'"])
def test_a_damaged_reward_is_left_out(store, value, caplog):
    """Whatever stands where a number in [0, 1] should: SQLite takes any text, PostgreSQL what is not a number."""
    (query,) = traffic(1, tenant="b")
    store.observe([replace(query, candidates=query.candidates[1:]), *traffic(11, first=1, tenant="b")], judge=JUDGE)
    with store._database.write("forgetting") as connection:
        of = "SELECT id FROM {} WHERE name = '{}' AND tenant = (SELECT id FROM tenants WHERE name = 'a')"
        asker, document = of.format("queries", "q0"), of.format("documents", query.candidates[0].doc_id)
        infinite = value.replace("1e999", "1e999" if store._database.is_sqlite else "'infinity'")
        connection.exec_driver_sql(
            f"UPDATE rewards SET value = {infinite} WHERE query = ({asker}) AND document = ({document})"  # noqa: S608
        )

    rewards = store.rewards(JUDGE, tenant="a")

    assert columns(store.rewards(JUDGE, tenant="b")) == columns(rewards)
    assert line_of(0, 0, 1) == caplog.messages


def test_nothing_but_damaged_vectors_is_nothing_to_learn_from(store):
    """In one line, as where there never were any."""
    for query in range(12):
        damage(store, schema.queries, f"q{query}", DAMAGES["cut off"])

    with pytest.raises(RewardError, match="got none"):
        store.rewards(JUDGE, tenant="a")


@pytest.mark.parametrize(("of", "name"), [("query", "q3"), ("document", "d7")])
def test_what_is_served_again_is_whole_again(store, of, name, caplog):
    """Its vector is written anew; all others stay as they are."""
    before = columns(store.rewards(JUDGE, tenant="a"))
    damage(store, schema.queries if of == "query" else schema.documents, name, DAMAGES["NaN"])
    damaged = columns(store.rewards(JUDGE, tenant="a"))
    store.observe(traffic(12, tenant="a"), judge=JUDGE)

    assert damaged != before
    assert before == columns(store.rewards(JUDGE, tenant="a"))
    assert line_of(of == "query", of == "document", 0) == caplog.messages
