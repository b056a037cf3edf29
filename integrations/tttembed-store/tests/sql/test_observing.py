"""What every store must do with queries that were served, and with verdicts on them."""

from dataclasses import replace

import numpy as np
import pytest
from tttembed_store.sql import Candidate, Served

from tests.traffic import JUDGE, traffic, unrewarded
from tttembed_rag.errors import InputError, RewardError, StoreUnavailable, TTTEmbedError, VectorError


def test_rewards_come_back_as_they_were_observed(store):
    """Vectors, rewards, tasks and ids survive the way through the database."""
    served = traffic(3)

    store.observe(served, judge=JUDGE)
    found = store.rewards(JUDGE)

    assert [f"q{number}" for number in (0, 2, 1)] == found.query_ids.tolist()
    assert found.tasks.tolist() == ["t0", "t0", "t1"]
    assert found.judge == JUDGE
    for row, one in enumerate([served[0], served[2], served[1]]):
        mine = slice(found.starts[row], found.starts[row + 1])
        shown = {
            (tuple(doc), reward)
            for doc, reward in zip(
                found.doc_vectors[found.candidates[mine]].tolist(), found.values[mine].tolist(), strict=True
            )
        }
        assert one.vector is not None
        assert one.vector.tolist() == found.query_vectors[row].tolist()
        assert {(tuple(c.vector.tolist()), c.reward) for c in one.candidates if c.vector is not None} == shown


def test_a_batch_is_written_whole_or_not_at_all(store):
    """One bad vector leaves nothing of its batch behind."""
    batch = [*traffic(3), replace(traffic(1, first=9)[0], vector=np.ones(5))]

    with pytest.raises(VectorError, match="width"):
        store.observe(batch, judge=JUDGE)

    assert store.counts().queries == 0


def test_a_query_seen_again_is_merged(store):
    """Its candidates are joined, a new verdict replaces the old one, and it counts once."""
    one = traffic(1)[0]
    again = replace(one, candidates=[replace(one.candidates[0], reward=1.0), Candidate("new", np.ones(8), "", 0.5)])

    store.observe([one], judge=JUDGE)
    store.observe([again], judge=JUDGE)

    assert (store.counts().queries, store.counts().pairs, store.counts().rewards) == (1, 5, 5)
    assert {1.0, 0.5} <= set(store.rewards(JUDGE).values.tolist())


def test_documents_are_kept_once(store):
    """However many queries a document was shown for."""
    store.observe(traffic(50), judge=JUDGE)

    assert (store.counts().queries, store.counts().documents, store.counts().pairs) == (50, 20, 200)


def test_a_pair_that_any_judge_has_answered_waits_no_more(store):
    """However many judges did, and whosever it is."""
    for tenant in ("a", "b"):
        store.observe([replace(one, tenant=tenant) for one in unrewarded(traffic(2))])
    shown = [one.doc_id for one in traffic(1)[0].candidates]
    store.reward("first", {("a", "t0", "q0"): {shown[0]: 0.25, shown[1]: 0.5}})
    store.reward("second", {("a", "t0", "q0"): {shown[1]: 1.0, shown[2]: 0.0}})
    held = [store.counts(tenant) for tenant in (None, "a", "b")]

    assert [(one.pairs, one.rewards, one.waiting) for one in held] == [(16, 4, 13), (8, 4, 5), (8, 0, 8)]


def test_later_verdicts_find_their_pairs(store):
    """`reward` writes what was observed and leaves out what was not."""
    store.observe(unrewarded(traffic(2)))
    shown = [one.doc_id for one in traffic(1)[0].candidates]

    written = store.reward(JUDGE, {("", "t0", "q0"): {shown[0]: 0.25, "absent": 1.0}, ("x", "t0", "q0"): {"d": 1.0}})

    assert written == 1
    assert store.rewards(JUDGE).values.tolist() == [0.25]


def test_names_are_data(store):
    """Whatever a tenant, task, query, document, judge or embedder is called."""
    names = ["'; DROP TABLE queries; --", 'a"b`c', "%s :x ? $1", "ü\U0001f600 \u202e", "../../x\n"]
    for name in names:
        one = replace(traffic(1)[0], query_id=name, task=name, tenant=name, embedder=name)
        store.observe([replace(one, candidates=[replace(one.candidates[0], doc_id=name)])], judge=name)
    found = [store.rewards(name, tenant=name, embedder=name) for name in names]

    assert [[name] for name in names] == [rewards.query_ids.tolist() for rewards in found]
    assert [[name] for name in names] == [rewards.tasks.tolist() for rewards in found]
    assert sorted(["", *names]) == store.tenants()


def test_names_no_database_can_hold_are_refused(store):
    """With the name of the argument, and nothing written."""
    for name in ("", "a\0b", "\ud800", "x" * 513, "ü" * 257):
        with pytest.raises(InputError, match="query_id"):
            store.observe([*traffic(1), replace(traffic(1)[0], query_id=name, query="")], judge=JUDGE)

    assert store.counts().queries == 0


def test_an_id_that_nobody_gave_is_made_of_the_text(store):
    """The same text is the same query, and the same document, wherever they come from."""
    nameless = Served.of_texts("", "a question", [("", "an answer")])
    store.observe([nameless, replace(nameless, query_id=store.text_id("a question"))])

    (waiting,) = store.judge_queue.waiting(JUDGE)
    assert (waiting.query, [shown.text for shown in waiting.candidates]) == ("a question", ["an answer"])
    assert (store.counts().queries, store.counts().documents) == (1, 1)


def test_rewards_off_their_scale_are_refused(store):
    """By `observe` as by `reward`; what was there stays."""
    one = traffic(1)[0]
    store.observe([one], judge=JUDGE)
    before = store.rewards(JUDGE).values.tolist()

    for reward in (-0.1, 1.1, float("nan"), float("inf")):
        with pytest.raises(RewardError, match=r"\[0, 1\]"):
            store.observe([replace(one, candidates=[replace(one.candidates[0], reward=reward)])], judge=JUDGE)
        with pytest.raises(RewardError, match=r"\[0, 1\]"):
            store.reward(JUDGE, {("", "t0", "q0"): {one.candidates[0].doc_id: reward}})

    assert store.rewards(JUDGE).values.tolist() == before


def test_texts_may_hold_what_databases_cannot(store):
    """NUL and lone surrogates of a query are replaced, not refused."""
    store.observe(unrewarded([replace(traffic(1)[0], query="a\0b\ud800c")]))

    assert [one.query for one in store.judge_queue.waiting(JUDGE)] == ["a\ufffdb\ufffdc"]


def test_what_no_database_can_look_up_is_refused(store):
    """In one line, whoever asks."""
    for ask in (
        lambda: store.judge_queue.waiting(JUDGE, tenant="\ud800"),
        lambda: store.states.get("\ud800"),
        lambda: store.registry.version(10**30),
        lambda: store.observe([replace(traffic(1)[0], at=float("nan"))], judge=JUDGE),
    ):
        with pytest.raises(TTTEmbedError) as refused:
            ask()

        assert not isinstance(refused.value, StoreUnavailable)
        assert len(str(refused.value).splitlines()) == 1
