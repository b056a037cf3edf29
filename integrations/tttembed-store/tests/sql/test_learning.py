"""What every store must give to a fit and to a judge."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
from tttembed_store.sql import Spend

from tests.traffic import JUDGE, traffic, unrewarded
from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.judges.examination import examination_keys
from tttembed_rag.judging.cache import Paid


def test_embedders_do_not_mix(store):
    """Each has its own vectors and width; the newest is the default."""
    wider = [
        replace(
            query,
            vector=np.ones(12),
            embedder="new",
            at=100.0,
            candidates=[replace(shown, vector=np.ones(12)) for shown in query.candidates],
        )
        for query in traffic(2)
    ]

    store.observe(traffic(5), judge=JUDGE)
    store.observe(wider, judge=JUDGE)

    assert (store.rewards(JUDGE, embedder="e").width, len(store.rewards(JUDGE, embedder="e"))) == (8, 5)
    assert (store.rewards(JUDGE).width, len(store.rewards(JUDGE))) == (12, 2)
    assert (store.embedder(JUDGE), store.embedder("another judge")) == ("new", None)


def test_the_model_of_most_of_the_last_queries_is_told(store):
    """Of two with as many it is the newer; the newest alone where no number is named."""
    store.observe(traffic(5), judge=JUDGE)
    store.observe([replace(query, embedder="new") for query in traffic(2, first=5)], judge=JUDGE)

    assert [store.embedder(JUDGE, last=last) for last in (1, 3, 4, 5)] == ["new", "new", "new", "e"]
    assert store.embedder(JUDGE, last=5, since=4.0) == "new"
    assert store.embedder(JUDGE, since=9.0) is None


def test_the_judge_of_most_of_the_last_queries_is_told(store):
    """Whoever said more before, of whom the asker learns; of two with as many it is the newer."""
    store.observe(traffic(6), judge="old")
    store.observe(traffic(2, first=5), judge="new")
    store.observe(traffic(2, first=7, tenant="a"), judge="another tenant's")
    alone = [store.judge(last=last) for last in (1, 2, 3, 4)]
    of_late = store.judge(last=9, since=5.0)

    assert (alone, of_late) == (["new", "new", "new", "old"], "new")
    assert store.judge(tenant="a", last=9) == "another tenant's"
    assert store.judge(since=9.0) is None


def test_a_judge_that_sources_alone_speak_for_is_told_last(store):
    """However much they say; it is told where there is no other, and as any other once it speaks itself."""
    judges = []
    for served, judge, source in ((0, "users", "ada"), (1, "reranker", ""), (2, "users", "ada"), (3, "users", "")):
        store.observe([replace(query, source=source) for query in traffic(3, first=served)], judge=judge)
        judges.append(store.judge(last=9))

    assert judges == ["users", "reranker", "reranker", "users"]


def test_a_document_without_a_vector_waits_for_it(store):
    """It takes part in no fit until its vector is known."""
    query = traffic(1)[0]
    blind = replace(query, candidates=[replace(query.candidates[0], vector=None), *query.candidates[1:]])

    store.observe([blind], judge=JUDGE)
    before = store.rewards(JUDGE).budget
    store.observe([query], judge=JUDGE)

    assert (before, store.rewards(JUDGE).budget) == (3, 4)


# Judging


def test_the_newest_queries_wait_first(store):
    """Whoever else has judged them."""
    store.observe(traffic(2), judge="another judge")
    store.observe(unrewarded(traffic(2, first=2)))

    newest = store.judge_queue.waiting(JUDGE, limit=3)

    assert [query.query for query in newest] == ["question 3 of ", "question 2 of ", "question 1 of "]


def test_of_the_newest_those_come_first_that_say_most(store):
    """A question that was asked again and again, though not lately, before those that were asked once."""
    store.observe(unrewarded(traffic(12)))
    for _ in range(30):
        store.observe(unrewarded(traffic(1, first=3)))
    vectorless = [replace(query, vector=None, query_id=f"new {query.query_id}") for query in unrewarded(traffic(4))]
    store.observe(vectorless)

    queries = [query.query for query in store.judge_queue.waiting(JUDGE, limit=4, covering=True)]
    everything = store.judge_queue.waiting(JUDGE, limit=99, covering=True)

    assert queries[0] == "question 3 of "
    assert len(set(queries)) == 4
    assert len(everything) == 16


def test_what_was_judged_is_known(store):
    """Beside a hundred judged copies of a question its last copy says least, and comes behind other questions."""
    query, *others = unrewarded(traffic(4))
    copies = [replace(query, query_id=f"copy {row}", query=f"copy {row}") for row in range(40)]
    store.observe([replace(copy, task="t1") for copy in copies])
    judged = store.judge_queue.waiting(JUDGE, limit=39)
    store.judge_queue.judged(
        JUDGE, {query.query_id: {shown.doc_id: 0.5 for shown in query.candidates} for query in judged}
    )
    store.observe([replace(other, task="t1") for other in others])

    first = store.judge_queue.waiting(JUDGE, limit=3, covering=True)

    assert {query.query for query in first} == {other.query for other in others}


def test_a_text_that_comes_later_makes_the_pairs_wait_of_queries_that_are_served_from_then_on(store):
    """Those of a query of before wait once it is served again."""
    query = unrewarded(traffic(1))[0]
    store.observe([replace(query, candidates=[replace(shown, text="") for shown in query.candidates])])
    waiting = [store.judge_queue.waiting(JUDGE)]
    for name in ("other", query.query_id):
        store.observe([replace(query, query_id=name, candidates=[query.candidates[0]])])
        waiting.append(store.judge_queue.waiting(JUDGE))

    assert [[len(query.candidates) for query in queries] for queries in waiting] == [[], [1], [1, 1]]


def test_a_declined_pair_does_not_wait(store):
    """A paid answer without a score is an answer."""
    store.observe(unrewarded(traffic(1)))
    (query,) = store.judge_queue.waiting(JUDGE)
    declined = query.candidates[0].text

    store.judge_queue.answers([query]).put(JUDGE, {pair_key(JUDGE, query.query, declined): Paid(None, 3.0, 0.5)})

    assert len(store.judge_queue.waiting(JUDGE)[0].candidates) == 3
    assert declined not in [shown.text for shown in store.judge_queue.waiting(JUDGE)[0].candidates]


def test_a_first_answer_stays(store):
    """Two processes that keep an answer to the same pair know one, which is counted once."""
    store.observe(unrewarded(traffic(1)))
    (query,) = store.judge_queue.waiting(JUDGE)
    answers, key = store.judge_queue.answers([query]), pair_key(JUDGE, query.query, query.candidates[0].text)

    answers.put(JUDGE, {key: Paid(0.5, 10.0, 0.25)})
    answers.put(JUDGE, {key: Paid(0.75, 10.0, 0.25)})

    assert {key: Paid(0.5, 10.0, 0.25)} == answers.get([key, b"unknown"])
    assert Spend(1, 10.0, 0.25) == store.judge_queue.spent()
    assert Spend() == store.judge_queue.spent(datetime.now(UTC).date() - timedelta(days=2))


def test_who_vouches_for_a_judge(store):
    """What was said comes first, and a no stays until it is taken back; then its examination."""
    store.observe(traffic(1), judge=JUDGE)
    trusts = [store.trusted(JUDGE)]
    for trust in (True, False, True, None):
        store.trust(JUDGE, trust)
        trusts.append(store.trusted(JUDGE))
    store.judge_queue.answers().put(JUDGE, dict.fromkeys(examination_keys(JUDGE), Paid(0.5)))

    assert trusts == [None, True, False, False, None]
    assert store.rewards(JUDGE).trusted
    assert store.rewards(JUDGE).declared_by == "its store"
    assert store.trusted("nobody") is None


def test_what_is_asked_about_nothing_observed_is_paid_and_not_kept(store):
    """But for the examination of a judge: what is kept can be forgotten with its query."""
    examined, other = examination_keys(JUDGE)[1], pair_key(JUDGE, "query", "document")

    store.judge_queue.answers().put(JUDGE, {examined: Paid(0.0, 1.0, 1.0), other: Paid(0.5, 1.0, 1.0)})

    assert {examined: Paid(0.0, 1.0, 1.0)} == store.judge_queue.answers().get([examined, other])
    assert store.judge_queue.spent().pairs == 2
