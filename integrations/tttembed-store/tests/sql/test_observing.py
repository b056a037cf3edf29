"""What every store must do with queries that were served, and with verdicts on them."""

from dataclasses import replace

import numpy as np
import pytest
from tttembed_store.sql import Candidate, Served

from tests.traffic import JUDGE, traffic, unrewarded
from tttembed_rag.errors import InputError, RewardError, StoreUnavailable, TTTEmbedError, VectorError


@pytest.mark.parametrize(
    ("vector", "kept"),
    [
        ([1.0, 2.0], [1.0, 2.0]),
        (np.array([3.0, 4.0, 5.0], dtype=np.float64), [3.0, 4.0, 5.0]),
        (np.array([6.0, 7.0], dtype=np.float16), [6.0, 7.0]),
        ([10, 11, 12], [10.0, 11.0, 12.0]),
        (np.arange(10.0)[::5] + 1, [1.0, 6.0]),
        (np.full(4, 1e-30, dtype=np.float32), [0.5] * 4),  # squares too small for float32: read by its direction
    ],
)
def test_vectors_of_any_numbers_are_kept(store, vector, kept):
    """Lists and arrays, of any float type."""
    store.observe([Served("q", vector, [Candidate("d", vector, reward=0.5)])], judge=JUDGE)

    assert np.array([kept], np.float32).tolist() == store.rewards(JUDGE).query_vectors.tolist()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.array([1.0, np.nan]), "got NaN"),
        (np.array([1e300, 1.0]), "got infinity"),
        (np.zeros(2), "got a zero vector"),
        (np.ones((1, 2)), r"expected a vector \(d,\), got shape \(1, 2\)"),
        ([], r"expected a vector \(d,\), got shape \(0,\)"),
        (["a"], "expected float16, float32 or float64"),
    ],
)
def test_a_bad_vector_is_named(store, bad, message):
    """With the argument, what was expected and what came."""
    with pytest.raises(VectorError, match=f"^candidates: .*{message}"):
        store.observe([Served("q", np.ones(2), [Candidate("d", bad)])])


def test_a_batch_is_written_whole_or_not_at_all(store):
    """One bad vector leaves nothing of its batch behind."""
    batch = [*traffic(3), replace(traffic(1, first=9)[0], vector=np.ones(5))]

    with pytest.raises(VectorError, match="width"):
        store.observe(batch, judge=JUDGE)

    assert store.counts().queries == 0


def test_names_are_data(store):
    """Whatever a tenant, task, query, document, judge or embedder is called."""
    names = ["'; DROP TABLE queries; --", 'a"b`c', "%s :x ? $1", "ü\U0001f600 \u202e", "../../x\n"]
    for name in names:
        query = replace(traffic(1)[0], query_id=name, task=name, tenant=name, embedder=name)
        store.observe([replace(query, candidates=[replace(query.candidates[0], doc_id=name)])], judge=name)
    rewards_of = [store.rewards(name, tenant=name, embedder=name) for name in names]

    assert [[name] for name in names] == [rewards.query_ids.tolist() for rewards in rewards_of]
    assert [[name] for name in names] == [rewards.tasks.tolist() for rewards in rewards_of]
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
    query = traffic(1)[0]
    store.observe([query], judge=JUDGE)
    before = store.rewards(JUDGE).values.tolist()

    for reward in (-0.1, 1.1, float("nan"), float("inf")):
        with pytest.raises(RewardError, match=r"\[0, 1\]"):
            store.observe([replace(query, candidates=[replace(query.candidates[0], reward=reward)])], judge=JUDGE)
        with pytest.raises(RewardError, match=r"\[0, 1\]"):
            store.reward(JUDGE, {("", "t0", "q0"): {query.candidates[0].doc_id: reward}})

    assert store.rewards(JUDGE).values.tolist() == before


def test_texts_may_hold_what_databases_cannot(store):
    """NUL and lone surrogates of a query are replaced, not refused, and nothing else is."""
    kept = "plain \U0001f600 ü \ud7ff\ue000\uffff\n"
    store.observe(unrewarded([replace(traffic(1)[0], query=f"a\0b\ud800\udfff{kept}")]))

    assert [query.query for query in store.judge_queue.waiting(JUDGE)] == [f"a\ufffdb\ufffd\ufffd{kept}"]


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
