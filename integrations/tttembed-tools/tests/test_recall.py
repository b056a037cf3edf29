"""Memories of users: each finds its own and learns alone, and what is forgotten is gone at once."""

import numpy as np
import pytest
from tttembed_tools import LearnedRecall
from tttembed_tools.catalog import Card
from tttembed_tools.index import Index

from tests.catalogues import CATALOG, LEARNED, UNSEEN, first, request
from tttembed_rag import context
from tttembed_rag.errors import InputError
from tttembed_rag.testing import FakeEmbedder


def remembering(users, store=None):
    """A search in which every user remembers the same things."""
    recall = LearnedRecall({}, FakeEmbedder(), store=store)
    for user in users:
        with context(tenant=user):
            recall.add({name: f"{name}: {text}" for name, text in CATALOG.items()})
    return recall


def help_with(recall, topics):
    """Of two memories of each topic, one helps and the other does not."""
    for topic in topics:
        recall.used(request(topic), f"acme_{topic}", False)
        recall.used(request(topic), f"zeta_{topic}")


def test_users_find_their_own_memories():
    """A memory of one user is found by no other, and by nobody without a user."""
    recall = LearnedRecall({}, FakeEmbedder())
    for user, text in (("ada", "a red door"), ("bob", "a blue door")):
        with context(tenant=user):
            assert recall.add({"door": text}) == 1
    with context(tenant="ada"):
        recall.add({"boat": "a green boat"})
        own = recall("which door?")
    with context(tenant="bob"):
        others = recall("which door?")

    assert (set(own), others, recall("which door?")) == ({"door", "boat"}, ["door"], [])


def test_users_without_number_take_no_memory_without_end(monkeypatch):
    """In one process, requests are bounded over all users, of whom one that is there for the first time has a place."""
    monkeypatch.setattr("tttembed_tools.outcomes._MOST", 20)
    monkeypatch.setattr("tttembed_tools.outcomes._COUNTED", 10)
    recall = LearnedRecall({}, FakeEmbedder(), last=2)
    for number in range(40):
        with context(tenant=f"user {number}"):
            recall.add({"door": "a red door"})
            recall.used("which door?", "door")
            recall.flush()
            kept = recall.requests()

    store = recall._outcomes.store
    assert (len(kept), store.counts().queries <= 30, len(store.tenants()) <= 31) == (1, True, True)


def test_states_of_an_index_do_not_disturb_each_other():
    """Two states that are made of one, and one without some items, have the scores of those made at once."""
    rng = np.random.default_rng(0)
    cards = [Card(f"c{i}", " ".join(rng.choice(["red", "blue", "door", "boat", "key"], 4))) for i in range(40)]
    vectors = rng.standard_normal((40, 8)).astype(np.float32)
    base = Index().plus(cards[:20], vectors[:20])
    left = base.plus(cards[20:30], vectors[20:30])
    right = base.plus(cards[30:], vectors[30:])
    less = left.without([card.name for card in cards[5:25]]).plus(cards[7:8], vectors[7:8])

    for index, rows in (
        (base, [*range(20)]),
        (left, [*range(30)]),
        (right, [*range(20), *range(30, 40)]),
        (less, [*range(5), *range(25, 30), 7]),
    ):
        again = Index().plus([cards[row] for row in rows], vectors[rows])
        assert index.cards == again.cards
        assert dict(index.rows) == dict(again.rows)
        for query in ("red door", "the key", "nothing"):
            np.testing.assert_allclose(index.scores(query, vectors[0], 0.35), again.scores(query, vectors[0], 0.35))


def test_what_helped_one_user_moves_no_other():
    """Each user learns alone."""
    recall = remembering(["ada", "bob"])
    with context(tenant="ada"):
        help_with(recall, LEARNED)
        assert recall.learn().published
        assert first(recall, UNSEEN) > 0.6
    with context(tenant="bob"):
        before = first(recall, UNSEEN)
    assert "" not in recall.learn_for_all()

    assert before < 0.6


def test_one_name_is_no_list_of_names():
    """Else nothing would be forgotten, and nobody would know."""
    with remembering(["ada"]) as recall, context(tenant="ada"):
        recall.add({"m1": "likes tea"})
        for call in (recall.forget, recall.remove):
            with pytest.raises(InputError, match=r"^names: expected a list of names, got 'm1'$"):
                call("m1")
        for wrong in ("likes tea", None):
            with pytest.raises(InputError, match=rf"^items: expected Card values or a dict .*, got {wrong!r}$"):
                recall.add(wrong)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda recall: recall.forget("m1"), "names: expected a list of names, got 'm1'"),
        (lambda recall: recall.remove("m1"), "names: expected a list of names, got 'm1'"),
        *(
            (lambda recall, items=items: recall.add(items), f"items: expected Card values or a dict .*, got .*{value}")
            for items, value in (
                ("likes tea", "'likes tea'"),
                (None, "None"),
                (["text"], "'text'"),
                ([7], "7"),
                ({"a": ""}, r"Card\(name='a'.*"),
                ({"": "text"}, r"Card\(name=''.*"),
                ({"a": None}, r"Card\(name='a'.*"),
            )
        ),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    """One name is no list of names, else nothing would be forgotten, and nobody would know."""
    recall = LearnedRecall({"m1": "likes tea"}, FakeEmbedder())
    with pytest.raises(InputError, match=f"^{message}$"):
        call(recall)


@pytest.mark.parametrize("kept", ["here", "store"])
def test_a_memory_that_is_forgotten_is_gone(tmp_path, kept, caplog):
    """It is not found, is in no file, and what was learned goes with it; one that was never used takes nothing."""
    file = tmp_path / "memories.db"
    with remembering(["ada"], None if kept == "here" else f"sqlite:///{file}") as recall, context(tenant="ada"):
        recall.add({"secret": "the safe opens with zebra-4711"})
        help_with(recall, LEARNED)
        recall.used("how does the safe open?", "secret")
        assert recall.learn().published
        recall.forget(["acme_" + UNSEEN[0]])
        served = recall.offsets
        assert "to be forgotten" not in caplog.text
        recall.forget(["secret", "unknown"])
        assert "1 of 2 memories were not there to be forgotten" in caplog.text

        assert served is not None
        assert recall.offsets is None
        assert "secret" not in recall("how does the safe open?", k=1000)
        with pytest.raises(InputError, match=r"^name: expected one of \d+ memories, got 'secret'$"):
            recall.used("how does the safe open?", "secret")
        assert not any("secret" in past.outcomes for past in recall.requests())
        if kept == "store":
            assert b"zebra-4711" not in file.read_bytes()
            assert b"secret" not in file.read_bytes()
        assert recall.learn().published


@pytest.mark.parametrize("before", ["restarted", "removed"])
def test_a_memory_is_forgotten_that_this_process_does_not_have(tmp_path, before):
    """The name is enough: after a restart, or where it was taken out of the search."""
    file = tmp_path / "memories.db"
    with remembering(["ada"], f"sqlite:///{file}") as recall, context(tenant="ada"):
        recall.add({"secret": "the safe opens with zebra-4711"})
        recall.used("how does the safe open?", "secret")
        recall.flush()
        if before == "removed":
            recall.remove(["secret"])
            recall.forget(["secret"])
    if before == "restarted":
        with LearnedRecall({}, FakeEmbedder(), store=f"sqlite:///{file}") as again, context(tenant="ada"):
            again.forget(["secret"])

    assert b"zebra-4711" not in file.read_bytes()


def meanwhile(recall, act):
    """Let *act* happen while a request is embedded."""
    embed = recall._embedder.embed_queries
    recall._embedder.embed_queries = lambda texts: (act(), embed(texts))[1]


@pytest.mark.parametrize("kept", ["here", "store"])
def test_a_use_that_was_under_way_brings_no_forgotten_memory_back(tmp_path, kept):
    """It is forgotten while the model embeds the request."""
    file = tmp_path / "memories.db"
    with remembering(["ada"], None if kept == "here" else f"sqlite:///{file}") as recall, context(tenant="ada"):
        recall.add({"secret": "the safe opens with zebra-4711"})
        meanwhile(recall, lambda: recall.forget(["secret"]))
        recall.used("how does the safe open?", "secret")
        assert not any("secret" in past.outcomes for past in recall.requests())
    if kept == "store":
        assert b"zebra-4711" not in file.read_bytes()


def test_a_search_whose_last_item_goes_finds_nothing():
    """It goes while the request is embedded."""
    recall = LearnedRecall({"door": "a red door"}, FakeEmbedder())
    meanwhile(recall, lambda: recall.remove(["door"]))

    assert recall("which door?") == []
