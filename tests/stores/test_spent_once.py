"""What was paid is counted once, and a judge that is new counts what waits for it beside other writers."""

from contextlib import contextmanager

import numpy as np
import pytest

from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.judging.cache import Paid
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.stores import Candidate, Served, open_store
from tttembed_rag.stores.work import judgequeue

JUDGE = "judge@1"


def served(*numbers):
    """Queries that wait for a judge, two documents each."""
    shown = [Candidate(f"d{place}", np.ones(8), f"document {place}") for place in range(2)]
    return [Served(f"q{number}", np.ones(8), shown, f"query {number}") for number in numbers]


@pytest.fixture
def store(store_url):
    """A store of either kind with queries that wait."""
    with open_store(store_url) as opened:
        opened.observe(served(*range(5)))
        yield opened


def unheard(store, times):
    """Let the next transactions be committed without that being heard: the connection is lost."""
    write, left = store._database.write, [times]

    @contextmanager
    def written(access):
        with write(access) as connection:
            yield connection
        left[0] -= 1
        if left[0] >= 0:
            raise StoreUnavailable("the connection was lost")

    store._database.write = written


@pytest.mark.parametrize("kept", [True, False], ids=["an answer", "a call that failed"])
@pytest.mark.parametrize("times", [0, 2])
def test_the_cost_of_an_answer_is_counted_once(store, kept, times):
    """Whether or not the store was lost right after it was written; the same answer again is a cost again."""
    (one,) = store.judge_queue.waiting(JUDGE, limit=1)
    pair = pair_key(JUDGE, one.query, one.candidates[0][1]) if kept else bytes(32)
    for expected in (1, 2):
        answers = store.judge_queue.answers([one])
        unheard(store, times)
        answers.put(JUDGE, {pair: Paid(0.5, 10.0, 1.0)})
        spent = store.judge_queue.spent()

        assert (spent.pairs, spent.tokens, spent.usd) == (expected, 10.0 * expected, 1.0 * expected)


def test_what_waits_for_a_new_judge_is_counted_in_parts(store, store_url, monkeypatch):
    """Others write between two parts, and a process that ends amid it leaves the rest to the next one."""
    monkeypatch.setattr(judgequeue, "AT_ONCE", 2)
    count, parts = judgequeue.update_progress, []

    def counted(connection, queries, **options):
        parts.append(len(queries))
        if len(parts) == 2:
            raise StoreUnavailable("killed")
        count(connection, queries, **options)

    monkeypatch.setattr(judgequeue, "update_progress", counted)
    with pytest.raises(StoreUnavailable, match="killed"):
        store.judge_queue.waiting(JUDGE)
    with open_store(store_url) as other:
        other.observe(served(3, 7))
        waiting = other.judge_queue.waiting(JUDGE)

    assert parts[:4] == [2, 2, 2, 2]
    assert sorted(one.query for one in waiting) == [f"query {number}" for number in (0, 1, 2, 3, 4, 7)]
