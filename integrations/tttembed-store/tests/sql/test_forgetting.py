"""What every store must forget, and what it must keep."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest
from tttembed_store.sql import Forgotten, open_store

from tests.traffic import JUDGE, traffic, unrewarded
from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.errors import InputError
from tttembed_rag.judging.cache import Paid
from tttembed_rag.offsets.offsets import Offsets


def test_answers_about_the_forgotten_are_gone(store):
    """Its paid answers too; what was spent stays counted."""
    store.observe(unrewarded(traffic(2)))
    observations = store.judge_queue.waiting(JUDGE)
    keys = [pair_key(JUDGE, query.query, query.candidates[0].text) for query in observations]
    store.judge_queue.answers(observations).put(JUDGE, {key: Paid(1.0, 1.0, 1.0) for key in keys})
    asked_anew = replace(unrewarded(traffic(2))[1], query="the same in other words")
    store.observe([asked_anew])  # an answer about an earlier text goes as well

    store.forget(tenant="", query_id="q1", by="me")

    assert [keys[1]] == list(store.judge_queue.answers().get(keys))
    assert store.judge_queue.spent().pairs == 2


@pytest.mark.parametrize("query_id", ["q0", None])
def test_what_a_judge_says_late_of_the_forgotten_is_not_kept(store, query_id):
    """Neither answers nor verdicts, though they were asked for before; what they cost is counted."""
    store.observe(unrewarded(traffic(1, tenant="a")))
    (query,) = store.judge_queue.waiting(JUDGE, tenant="a")
    answers, key = store.judge_queue.answers([query]), pair_key(JUDGE, query.query, query.candidates[0].text)
    store.forget(tenant="a", query_id=query_id, by="me")

    answers.put(JUDGE, {key: Paid(1.0, 1.0, 1.0)})
    verdicts = {query.query_id: {query.candidates[0].doc_id: 1.0}}

    assert store.judge_queue.answers().get([key]) == {}
    assert store.judge_queue.spent().pairs == 1
    assert store.judge_queue.judged(JUDGE, verdicts, tenant="a") == 0


def test_a_query_that_came_without_an_id_is_forgotten_by_its_text(store):
    """Nobody knows the id that was made of it; what of it still waits to be written stays out, too."""
    text = "what nobody should\0 know"
    late = replace(traffic(1)[0], query_id=store.text_id(text), query=text)
    store.observe([late, traffic(2)[1]], judge=JUDGE)

    gone = store.forget(tenant="", query_id=text, by="me")

    assert (gone.queries, store.observe([late], judge=JUDGE)) == (1, 0)
    assert store.rewards(JUDGE).query_ids.tolist() == ["q1"]


@pytest.mark.parametrize("query_id", ["q1", None])
def test_the_audit_tells_nothing_of_what_was_forgotten(store, query_id):
    """Who did what and when stays; details may name tasks, and go with the versions."""
    store.observe(traffic(2, tenant="a"), judge=JUDGE)
    for tenant in ("", "a", "b"):
        store.registry.publish(Offsets([], width=8), by="worker", tenant=tenant, note="task:secret")
    before = [(line.at, line.tenant, line.by, line.action) for line in store.changes.lines()]

    store.forget(tenant="a", query_id=query_id, by="me")
    forgotten, *older = store.changes.lines()

    assert before == [(line.at, line.tenant, line.by, line.action) for line in older]
    assert [line.detail for line in older] == [
        "version 3 is live: task:secret",
        "",
        "version 1 is live: task:secret",
    ]
    assert (forgotten.by, forgotten.action) == ("me", "forget")


def test_a_store_without_texts_keeps_none(store_url):
    """Also if it is opened as one with texts; ids that are texts become keyed hashes."""
    query = traffic(1)[0]
    telling = replace(
        query, query_id=query.query or "", candidates=[replace(c, doc_id=c.text or "") for c in query.candidates]
    )
    with open_store(store_url, texts=False):
        pass

    with open_store(store_url) as store:
        store.observe([telling], judge=JUDGE)

        assert not store.texts
        assert store.judge_queue.waiting("another judge") == []
        assert [store.text_id(telling.query_id)] == store.rewards(JUDGE).query_ids.tolist()


@pytest.mark.parametrize("second", ["document_id", "source"])
def test_one_kind_of_things_is_forgotten_at_a_time(store, second):
    """Who names two is told so, and nothing is deleted."""
    store.observe(traffic(1), judge=JUDGE)
    with pytest.raises(InputError, match=r"^source: expected queries, sources or documents, got 2 of these$"):
        store.forget(tenant="", query_id="q0", by="me", **{second: "d1"})

    assert store.counts().queries == 1


@pytest.mark.parametrize("kind", ["query_id", "source", "document_id"])
def test_many_names_are_forgotten_by_one_scrub(sqlite_url, kind):
    """The file is written anew once, which takes most of the time; none of them is left, and none comes late."""
    served = [replace(query, source=f"{query.query_id} said") for query in traffic(3)]
    names = {
        "query_id": [query.query_id for query in served],
        "source": [query.source for query in served],
        "document_id": sorted({shown.doc_id for query in served for shown in query.candidates}),
    }[kind]

    def writings():
        """A number that rises by one each time that the file is written anew."""
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
            return file.execute("PRAGMA schema_version").fetchone()[0]

    with open_store(sqlite_url) as store:
        store.observe(served, judge=JUDGE)
        before = writings()
        gone = store.forget(tenant="", by="me", **{kind: names})
        after = writings()
        store.observe(served, judge=JUDGE)

        assert (after, gone.rewards) == (before + 1, sum(len(query.candidates) for query in served))
        assert store.forget(tenant="", by="me", **{kind: []}) == Forgotten()
        assert store.counts().rewards == 0


# The record


def test_every_change_leaves_a_line(store):
    """Newest first, with who did it."""
    store.registry.publish(Offsets([], width=8), by="worker", tenant="a", note="why")
    store.registry.halt(by="operator", note="stop")
    store.changes.note("guard", "trial", "0.3", tenant="a")

    assert [(line.by, line.action, line.detail) for line in store.changes.lines()] == [
        ("guard", "trial", "0.3"),
        ("operator", "halt", "stop"),
        ("worker", "publish", "version 1 is live: why"),
    ]
    assert [line.action for line in store.changes.lines(tenant="a")] == ["trial", "halt", "publish"]  # all were halted
    assert [line.action for line in store.changes.lines(tenant="b")] == ["halt"]


def test_state_is_kept_by_tenant_and_name(store):
    """The last one stays, whatever JSON can write: also what no database could hold as it is."""
    store.states.set("trial", {"mean": 0.5}, tenant="a")
    store.states.set("trial", [1, "a\0\ud800"], tenant="a")

    assert (store.states.get("trial", tenant="a"), store.states.get("trial")) == ([1, "a\0\ud800"], None)
