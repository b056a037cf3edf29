"""What one query, one clock or one name may do to a store: candidates, times and ids are bounded where they enter."""

import time

import numpy as np
from tttembed_store.sql import Candidate, Served, open_store, schema

from tests.traffic import JUDGE, traffic


def deep(name, first, count, **facts):
    """A query that was shown *count* documents, from number *first* on."""
    rng = np.random.default_rng(first)
    shown = [
        Candidate(f"d{number}", rng.normal(size=4), f"text {number}", number % 7 / 7)
        for number in range(first, first + count)
    ]
    return Served(name, np.ones(4), shown, f"question {name}", **facts)  # type: ignore[arg-type]


def documents_of(store):
    """The numbers of the documents that wait for another judge, by query."""
    waiting = store.judge_queue.waiting("another")
    return [[int(shown.text.removeprefix("text ")) for shown in query.candidates] for query in waiting]


class TestDepth:
    """Candidates of one query."""

    def test_the_first_of_a_deep_result_are_kept(self, store, caplog):
        """With their rewards; the log says that there were more."""
        store.observe([deep("q", 0, 1000)], judge=JUDGE)

        assert documents_of(store) == [list(range(200))]
        assert (store.counts().pairs, store.counts().rewards, store.counts().documents) == (200, 200, 200)
        assert "a query was shown 1000 candidates: the first 200 are kept" in caplog.text

    def test_a_query_of_a_changing_index_keeps_what_it_was_shown_last(self, store):
        """However often it is asked; the rewards of what is left out go too."""
        store.judge_queue.waiting("another")
        for first in range(0, 600, 60):
            store.observe([deep("q", first, 60), deep("other", 0, 10)], judge=JUDGE)

        assert sorted(sorted(numbers) for numbers in documents_of(store)) == [list(range(10)), list(range(400, 600))]
        assert (store.counts().pairs, store.counts().rewards, store.counts().waiting) == (210, 210, 0)
        assert len(store.rewards(JUDGE).values) == 210

    def test_what_is_forgotten_takes_all_its_documents_along(self, store):
        """Also those that it was shown too long ago to be kept."""
        for first in range(0, 600, 150):
            store.observe([deep("q", first, 150)], judge=JUDGE)
        store.observe([deep("other", 590, 20)], judge=JUDGE)
        before = store.counts().documents
        store.forget(tenant="", query_id="q", by="test")

        assert (before, store.counts().documents) == (610, 20)


def test_who_has_most_gives_way(store):
    """Of more queries than are kept the newest of each tenant stay, and a tenant whose last query goes, goes."""
    at = {"acme": (5, 6, 7, 8), "bob": (1, 2), "eve": (0,)}
    for tenant, times in at.items():
        store.observe(
            [deep(f"{tenant} {when}", 10 * when, 2, tenant=tenant, at=float(when)) for when in times], judge="j"
        )
    store.observe([deep("kim", 90, 2, tenant="kim", at=0.5)], judge="j")
    store.forget(tenant="kim", by="test")

    store.keep_newest(4)
    kept = {tenant: sorted(store.rewards("j", tenant=tenant).query_ids.tolist()) for tenant in at}
    assert kept == {"acme": ["acme 7", "acme 8"], "bob": ["bob 2"], "eve": ["eve 0"]}
    store.keep_newest(2)
    assert store.tenants() == ["", "acme", "bob", "kim"]
    assert (store.counts().queries, store.counts().documents) == (2, 4)


class TestClocks:
    """The time at which a query was served."""

    def test_a_clock_that_was_ahead_is_not_believed(self, store):
        """Its queries are as old as when they came: they neither stay the last ones for ever nor outlive the others."""
        ahead = time.time() + 10 * 365 * 86_400
        store.observe([deep("ahead", 0, 2, at=ahead, embedder="old")], judge=JUDGE)
        with store._database.read() as connection:
            kept = connection.execute(schema.queries.select()).one()

        assert kept.last_at < time.time() + 400


class TestNames:
    """A store without texts."""

    def test_ids_that_may_be_words_are_hashed(self, tmp_path):
        """Blanks, foreign letters and the text tell them from ids of programs; the text is in no task either."""
        text = "My secret  illness"
        served = [
            Served(name, np.ones(4), [Candidate(f"doc {name}", np.ones(4), "a text")], text, task=task)
            for name, task in [
                ("my SECRET illness ", "t"),
                ("secret words", "t"),
                ("geheimnis-ü", "t"),
                ("q7", "my secret illness"),
                ("my-secret-illness", "t"),
                ("user7:My%20secret_illness?", "t"),
                ("q8", "my+secret+illness"),
                ("search?q=%E9%80%80", "t"),
                ("0b1f-77:a", "billing"),
            ]
        ]
        with open_store(f"sqlite:///{tmp_path}/ttt.db", texts=False) as store:
            store.observe(served)
            store.forget(tenant="", query_id="secret words", by="test")
            left = store.counts().queries
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir()).lower()

        assert left == 8
        hidden = b"a text", b"secret", b"illness", "ü".encode(), b"%e9%80"
        assert [word in content for word in (*hidden, b"q7", b"0b1f-77:a", b"billing")] == [False] * 5 + [True] * 3

    def test_rewards_and_private_offsets_find_hashed_ids(self, tmp_path):
        """Whoever knows the id as it was given is understood."""
        with open_store(f"sqlite:///{tmp_path}/ttt.db", texts=False) as store:
            shown = [Candidate("a document", np.ones(4))]
            store.observe([Served("two words", np.ones(4), shown)])
            store.observe([Served("q7", np.ones(4), shown, "Questions?", "product-questions")])
            store.observe([Served("q8", np.ones(4), shown, "Billing questions?", "billing-questions")])
            given = [("default", "two words"), ("product-questions", "q7"), ("billing-questions", "q8")]
            written = [store.reward(JUDGE, {("", task, name): {"a document": 0.5}}) for task, name in given]
            tasks = store.rewards(JUDGE).tasks.tolist()

        assert written == [1, 1, 1]
        assert "product-questions" in tasks
        assert "billing-questions" not in tasks


def test_many_tenants_in_one_call(store):
    """Each has its own documents, also those of one name."""
    served = [query for number in range(40) for query in traffic(2, tenant=f"t{number}")]
    store.observe(served, judge=JUDGE)

    assert {store.counts(f"t{number}").documents for number in range(40)} == {store.counts("t0").documents}
    assert len(store.tenants()) == 41
