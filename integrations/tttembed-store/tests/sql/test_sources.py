"""Sources: who gave a reward stays with it, and none replaces what another said."""

from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import select
from tttembed_store.sql import open_store, schema

from tttembed_rag import Offsets, fit
from tttembed_rag.errors import InputError
from tttembed_rag.rewards.observations import MAX_SOURCES, Candidate, Served

JUDGE = "user feedback"


def question(source, reward=None, *, tenant="", at=1.0):
    """A question with two documents, of which a source rewards the first."""
    shown = [
        Candidate("a", np.array([1.0, 0.0]), "text of a", reward),
        Candidate("b", np.array([0.0, 1.0]), "text of b"),
    ]
    return Served("q", np.array([1.0, 1.0]), shown, "question", tenant=tenant, at=at, embedder="e", source=source)


def by_source(rewards):
    """The rewards of each source."""
    starts = zip(rewards.starts[:-1], rewards.starts[1:], strict=True)
    rows = zip(rewards.sources.tolist(), starts, strict=True)
    return {source: rewards.values[begin:end].tolist() for source, (begin, end) in rows}


@pytest.mark.parametrize(
    ("last", "names"), [(4, {"eve 9", "eve 8", "ann 0", "bob 1"}), (3, {"eve 9", "ann 0", "bob 1"})]
)
def test_who_speaks_most_takes_no_place_of_others(store, last, names):
    """Of the last rewarded queries each source has its share, also where many later ones are of one source."""
    for at, source in enumerate(["ann", "bob", *["eve"] * 8]):
        store.observe([replace(question(source, 1.0, at=float(at + 1)), query_id=f"{source} {at}")], judge=JUDGE)

    assert {*store.rewards(JUDGE, last=last).query_ids.tolist()} == names


def test_silence_replaces_no_word(store):
    """Of one transaction as of two; a word replaces silence."""

    def word(doc, value, silent=False):
        return Served("q", None, [Candidate(doc, None, "", value, silent)], "q", source="ada")

    store.observe(
        [word("a", 1.0), word("a", 0.25, silent=True), word("b", 0.25, silent=True), word("b", 0.75)], judge="j"
    )
    store.observe([word("a", 0.25, silent=True), word("c", 0.25, silent=True)], judge="j")

    assert sorted(store.history.verdicts("", judge="j").values()) == [0.25, 0.75, 1.0]


def test_the_last_sources_of_a_pair_are_kept(store):
    """Those that spoke before are dropped, the judge itself never."""
    store.observe([question("", 0.5)], judge=JUDGE)
    store.observe([question("first", 1.0)], judge=JUDGE)
    store.observe([question(f"s{number}", 0.0) for number in range(MAX_SOURCES)], judge=JUDGE)

    found = by_source(store.rewards(JUDGE))

    assert found == {"": [0.5]} | {f"s{number}": [0.0] for number in range(MAX_SOURCES)}
    assert store.counts().rewards == MAX_SOURCES + 1


def test_the_names_of_sources_are_hidden_with_the_texts(store_url):
    """A store without texts keeps an id that cannot be guessed, the same each time."""
    with open_store(store_url, texts=False) as store:
        store.observe([question("ann", 1.0)], judge=JUDGE)
        store.reward(JUDGE, {("", "default", "q"): {"a": 0.5}}, source="ann")
        with store._database.read() as connection:
            kept = connection.execute(select(schema.rewards.c.source)).scalars().all()

        assert kept == [store.text_id("ann")]
        assert by_source(store.rewards(JUDGE)) == {store.text_id("ann"): [0.5]}


def test_a_source_that_gave_no_reward_is_refused(store):
    """One line names those that are called almost so, of this tenant alone; nothing was deleted or noted.

    Of several none is forgotten where one is refused.
    """
    store.observe([question("annabel", 1.0), question("annabelle", 1.0, tenant="x")], judge=JUDGE)
    live = store.registry.publish(Offsets([], width=2), by="worker")
    asks = [("anabel", ""), ("annabel", "y"), ("\x1b[2J", ""), (["annabel", "anabel"], "")]
    messages = []
    for source, tenant in asks:
        with pytest.raises(InputError) as refused:
            store.forget(tenant=tenant, source=source, by="me")
        messages.append(str(refused.value).partition("; nothing was deleted; ")[0])
    store.observe([replace(question("anabel", 0.5), at=1.0)], judge=JUDGE)  # it was served before

    expected = "source: expected one that has rewarded queries of tenant"
    assert messages == [
        f"{expected} '', got 'anabel' (did you mean 'annabel'?)",
        f"{expected} 'y', got 'annabel'",
        f"{expected} '', got '\\x1b[2J'",
        f"{expected} '', got 'anabel' (did you mean 'annabel'?)",
    ]
    assert store.registry.version("live") == live
    assert store.tenants() == ["", "x"]
    assert by_source(store.rewards(JUDGE)) == {"anabel": [0.5], "annabel": [1.0]}


def test_one_attacker_does_not_undo_what_many_say(store, planted):
    """Three users reward every query; one account then says the opposite of everything: the offset hardly moves."""
    rewards = planted(40, strength=0.9)
    shown = [[Candidate(f"d{8 * row + j}", rewards.doc_vectors[8 * row + j]) for j in range(8)] for row in range(40)]
    store.observe([Served(f"q{row}", rewards.query_vectors[row], shown[row], at=row) for row in range(40)])

    def say(source, values):
        for row in range(40):
            given = {f"d{j}": values[j] for j in range(8 * row, 8 * row + 8)}
            store.reward(JUDGE, {("", "default", f"q{row}"): given}, source=source)

    for user in ("ann", "bob", "cid"):
        say(user, rewards.values.tolist())
    before = fit(store.rewards(JUDGE), scope="task")["task:default"]
    say("eve", (1 - rewards.values).tolist())
    after = fit(store.rewards(JUDGE), scope="task")["task:default"]

    assert (before.served, after.served) == (True, True)
    assert (before.evidence.sources, after.evidence.sources) == (3, 4)
    assert before.vector @ after.vector > 0.95 * np.linalg.norm(before.vector) * np.linalg.norm(after.vector)
