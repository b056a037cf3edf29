"""What every store must forget, and what it must keep."""

from dataclasses import replace

import pytest
from tttembed_store.sql import open_store

from tests.traffic import JUDGE, facts, learned, traffic, unrewarded
from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.errors import InputError
from tttembed_rag.judging.cache import Paid
from tttembed_rag.offsets.lookup import Offsets


@pytest.mark.parametrize("query_id", ["q3", None])
def test_what_is_forgotten_teaches_nothing(store, query_id):
    """What is learned afterwards equals, bit for bit, what a store learns that never saw it."""
    kept = [one for one in traffic(8, tenant="a") if query_id not in (None, one.query_id)]
    store.observe(traffic(8, tenant="a"), judge=JUDGE)
    store.observe([replace(one, tenant="never saw it") for one in kept] or traffic(1, tenant="b"), judge=JUDGE)
    store.registry.publish(learned(store, "a"), by="me", tenant="a")

    gone = store.forget(tenant="a", query_id=query_id, by="me")

    assert (8 - len(kept), 1) == (gone.queries, gone.versions)
    assert None is store.serving(tenant="a").version
    if kept:
        assert facts(learned(store, "never saw it")) == facts(learned(store, "a"))
        assert replace(store.counts("never saw it"), bytes=0) == replace(store.counts("a"), bytes=0)
    else:
        left = store.counts("a")
        assert (left.queries, left.documents, left.pairs, left.rewards) == (0, 0, 0, 0)


def test_a_document_that_is_forgotten_teaches_nothing(store):
    """What is learned afterwards equals, bit for bit, what a store learns that never saw it; no version stays."""
    seen, gone = traffic(8, tenant="a"), traffic(8)[0].candidates[0].doc_id
    store.observe(seen, judge=JUDGE)
    rest = [tuple(one for one in query.candidates if one.doc_id != gone) for query in seen]
    never = [replace(query, tenant="never saw it", candidates=left) for query, left in zip(seen, rest, strict=True)]
    store.observe(never, judge=JUDGE)
    store.registry.publish(learned(store, "a"), by="me", tenant="a")
    unknown = store.forget(tenant="a", document_id="never shown", by="me")
    kept = store.registry.version(tenant="a")

    found = store.forget(tenant="a", document_id=gone, by="me")
    store.observe([replace(query, at=1.0) for query in seen], judge=JUDGE)  # served before that, and late

    assert (unknown.documents, unknown.versions, found.documents, found.versions) == (0, 0, 1, 1)
    assert kept is not None
    assert store.serving(tenant="a").version is None
    assert facts(learned(store, "never saw it")) == facts(learned(store, "a"))
    assert replace(store.counts("never saw it"), bytes=0) == replace(store.counts("a"), bytes=0)
    with pytest.raises(InputError, match=r"^source: expected a query, a source or a document, got 2 of them$"):
        store.forget(tenant="a", document_id=gone, query_id="q1", by="me")


def test_answers_about_the_forgotten_are_gone(store):
    """Its paid answers too; what was spent stays counted."""
    store.observe(unrewarded(traffic(2)))
    observations = store.judge_queue.waiting(JUDGE)
    keys = [pair_key(JUDGE, one.query, one.candidates[0][1]) for one in observations]
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
    (one,) = store.judge_queue.waiting(JUDGE, tenant="a")
    answers, key = store.judge_queue.answers([one]), pair_key(JUDGE, one.query, one.candidates[0][1])
    store.forget(tenant="a", query_id=query_id, by="me")

    answers.put(JUDGE, {key: Paid(1.0, 1.0, 1.0)})
    verdicts = {one.query_id: {one.candidates[0][0]: 1.0}}

    assert store.judge_queue.answers().get([key]) == {}
    assert store.judge_queue.spent().pairs == 1
    assert store.judge_queue.judged(JUDGE, verdicts, tenant="a") == 0


@pytest.mark.parametrize("query_id", ["q0", None])
def test_what_was_served_before_it_was_forgotten_does_not_come_late(store, query_id):
    """A queue that is written after it brings nothing back; what is served later, and elsewhere, is written."""
    late = [*traffic(2), *traffic(1, tenant="b")]
    store.forget(tenant="", query_id=query_id, by="me")

    written = store.observe(late, judge=JUDGE)
    kept = [one for one in late if one.tenant or (query_id and one.query_id != query_id)]

    assert written == len(kept)
    shown = {(one.tenant, each.doc_id) for one in kept for each in one.candidates}
    assert (store.counts().queries, store.counts().documents) == (len(kept), len(shown))
    assert store.observe([replace(late[0], at=None)], judge=JUDGE) == 1


def test_a_query_that_came_without_an_id_is_forgotten_by_its_text(store):
    """Nobody knows the id that was made of it; what of it still waits to be written stays out, too."""
    asked = "what nobody should\0 know"
    late = replace(traffic(1)[0], query_id=store.text_id(asked), query=asked)
    store.observe([late, traffic(2)[1]], judge=JUDGE)

    gone = store.forget(tenant="", query_id=asked, by="me")

    assert (gone.queries, store.observe([late], judge=JUDGE)) == (1, 0)
    assert store.rewards(JUDGE).query_ids.tolist() == ["q1"]


@pytest.mark.parametrize("query_id", ["q1", None])
def test_the_audit_tells_nothing_of_what_was_forgotten(store, query_id):
    """Who did what and when stays; details may name tasks, and go with the versions."""
    store.observe(traffic(2, tenant="a"), judge=JUDGE)
    for tenant in ("", "a", "b"):
        store.registry.publish(Offsets([], width=8), by="worker", tenant=tenant, note="task:secret")
    before = [(line.at, line.tenant, line.by, line.action) for line in store.audit.lines()]

    store.forget(tenant="a", query_id=query_id, by="me")
    forgotten, *older = store.audit.lines()

    assert before == [(line.at, line.tenant, line.by, line.action) for line in older]
    assert [line.detail for line in older] == [
        "version 3 is live: task:secret",
        "",
        "version 1 is live: task:secret",
    ]
    assert (forgotten.by, forgotten.action) == ("me", "forget")


def test_what_is_old_expires(store):
    """Queries by when they were last served, and documents with the last of them."""
    store.observe(traffic(5), judge=JUDGE)
    store.observe(unrewarded([replace(traffic(1)[0], at=50.0)]))

    assert store.expire(4.0, by="me") == 3
    assert {"q0", "q4"} == set(store.rewards(JUDGE).query_ids.tolist())
    assert (
        len({shown.doc_id for number in (0, 4) for shown in traffic(5)[number].candidates}) == store.counts().documents
    )


def test_what_has_expired_can_be_forgotten(store):
    """A version may have learned from a query that is there no more; without any, an unknown id costs nothing."""
    store.observe(traffic(4), judge=JUDGE)
    store.registry.publish(learned(store), by="me")

    unknown = store.forget(tenant="", query_id="q9", by="me")
    store.expire(2.0, by="me")
    expired = store.forget(tenant="", query_id="q1", by="me")

    assert [(gone.queries, gone.versions) for gone in (unknown, expired)] == [(0, 0), (0, 1)]
    assert None is store.registry.version()


def test_a_store_without_texts_keeps_none(store_url):
    """Also if it is opened as one with texts; ids that are texts become keyed hashes."""
    one = traffic(1)[0]
    telling = replace(
        one, query_id=one.query or "", candidates=[replace(c, doc_id=c.text or "") for c in one.candidates]
    )
    with open_store(store_url, texts=False):
        pass

    with open_store(store_url) as store:
        store.observe([telling], judge=JUDGE)

        assert not store.texts
        assert store.judge_queue.waiting("another judge") == []
        assert [store.text_id(telling.query_id)] == store.rewards(JUDGE).query_ids.tolist()


def test_without_texts_an_id_that_was_the_text_is_found_again(store_url):
    """By later rewards, and by whoever asks to forget it."""
    asked = "my private question"
    one = replace(unrewarded(traffic(1))[0], query_id=asked, query=asked)
    shown = one.candidates[0].doc_id
    with open_store(store_url, texts=False) as store:
        store.observe([one])

        assert store.reward(JUDGE, {("", one.task, asked): {shown: 0.5}}) == 1
        assert store.forget(tenant="", query_id=asked, by="me").queries == 1
        assert store.observe([one]) == 0  # it comes late
        assert store.counts().queries == 0


# The record


def test_every_change_leaves_a_line(store):
    """Newest first, with who did it."""
    store.registry.publish(Offsets([], width=8), by="worker", tenant="a", note="why")
    store.registry.halt(by="operator", note="stop")
    store.audit.note("guard", "drift", "0.3", tenant="a")

    assert [(line.by, line.action, line.detail) for line in store.audit.lines()] == [
        ("guard", "drift", "0.3"),
        ("operator", "halt", "stop"),
        ("worker", "publish", "version 1 is live: why"),
    ]
    assert [line.action for line in store.audit.lines(tenant="a")] == ["drift", "halt", "publish"]  # all were halted
    assert [line.action for line in store.audit.lines(tenant="b")] == ["halt"]


def test_state_is_kept_by_tenant_and_name(store):
    """The last one stays, whatever JSON can write: also what no database could hold as it is."""
    store.states.set("drift", {"mean": 0.5}, tenant="a")
    store.states.set("drift", [1, "a\0\ud800"], tenant="a")

    assert (store.states.get("drift", tenant="a"), store.states.get("drift")) == ([1, "a\0\ud800"], None)


def test_all_of_it_is_there_after_reopening(store, store_url):
    """Another process finds what this one was told is written."""
    store.observe(traffic(4), judge=JUDGE)
    version = store.registry.publish(learned(store), by="me")

    with open_store(store_url) as other:
        # A server's size on disk changes by itself.
        assert (replace(store.counts(), bytes=0), version, facts(version.offsets)) == (
            replace(other.counts(), bytes=0),
            other.registry.version(),
            facts(learned(other)),
        )
