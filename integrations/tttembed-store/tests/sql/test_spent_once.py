"""What was paid is counted once, and a judge that is new counts what waits for it beside other writers."""

from contextlib import contextmanager

import numpy as np
import pytest
from sqlalchemy import select
from tttembed_store.sql import Candidate, Served, open_store, schema
from tttembed_store.sql.records import Spend

from tests.workers import lapse
from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.clients.usage import Usage
from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.judging import Budget, Paid, Price

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


@pytest.fixture
def account(store):
    """Gives the account of a run that asks about a query, under the lease of a name, at a dollar a request."""

    def account(observation, name="me", *, pairs=None):
        lease = store.leases.take(name, "test", 60.0)
        price = Price(request=1.0)
        return store.judge_queue.account(JUDGE, [observation], caps=Budget(pairs=pairs), price=price, lease=lease)

    return account


@pytest.fixture
def one(store):
    """A query that waits, with the addresses of its two pairs."""
    (one,) = store.judge_queue.waiting(JUDGE, limit=1)
    return one, [pair_key(JUDGE, one.query, shown.text) for shown in one.candidates]


@pytest.mark.parametrize("answered", [True, False], ids=["an answer", "a call that failed"])
@pytest.mark.parametrize("times", [0, 2])
def test_the_cost_of_a_call_is_counted_once(store, account, one, answered, times):
    """With its highest cost before it is made, and with its cost behind it, also where the store is lost right then."""
    observation, pairs = one
    mine = account(observation)
    charge = mine.charge(pairs, Usage(2, 30))
    before = store.judge_queue.spent()
    answers = dict.fromkeys(pairs, Paid(0.5, 5.0, 0.5)) if answered else {}
    unheard(store, times)
    mine.settle(charge, Usage(1, 10), answers)

    assert before == Spend(2, 30.0, 2.0)
    assert store.judge_queue.spent() == Spend(2, 10.0, 1.0)
    assert store.judge_queue.answers().get(pairs) == answers


@pytest.mark.parametrize("times", [0, 2])
def test_an_answer_that_was_not_charged_is_counted_once(store, one, times):
    """Whether or not the store was lost right after it was written, and however often it comes."""
    observation, pairs = one
    for _ in range(2):
        answers = store.judge_queue.answers([observation])
        unheard(store, times)
        answers.put(JUDGE, {pairs[0]: Paid(0.5, 10.0, 1.0)})

        assert store.judge_queue.spent() == Spend(1, 10.0, 1.0)


def test_what_is_asked_about_is_asked_by_nobody_else(store, account, one):
    """Neither while a call is under way, nor once it has an answer; other pairs are."""
    observation, pairs = one
    mine, other = account(observation), account(observation, "other")
    charge = mine.charge(pairs[:1], Usage(1))
    meanwhile = other.charge(pairs, Usage(1))
    mine.settle(charge, Usage(1), {pairs[0]: Paid(0.5)})
    later = other.charge(pairs[:1], Usage(1))

    assert (charge.pairs, meanwhile.pairs, later.pairs) == (pairs[:1], pairs[1:], ())
    assert store.judge_queue.spent().pairs == 2


def test_what_a_killed_worker_asked_about_comes_back_and_stays_counted(store, account, one):
    """Once its lease ends, another one asks; should it still be there, what it was charged is not given back."""
    observation, pairs = one
    killed = account(observation)
    lost = killed.charge(pairs, Usage(1))
    lapse(store)
    heir = account(observation, "heir")
    again = heir.charge(pairs, Usage(1))
    heir.settle(again, Usage(1), dict.fromkeys(pairs, Paid(0.5)))
    killed.settle(lost, Usage(), {})

    assert again.pairs == pairs
    assert store.judge_queue.spent() == Spend(4, 0.0, 2.0)


def test_a_charge_ends_at_the_cap(store, account, one):
    """A cap on pairs leaves out the last ones, and then refuses; what is given back may be spent again."""
    observation, pairs = one
    mine = account(observation, pairs=1)
    first = mine.charge(pairs, Usage(1))
    refused = mine.charge(pairs[1:], Usage(1))
    why = mine.ended
    mine.settle(first, Usage(), {})

    assert (first.pairs, refused, why) == (pairs[:1], None, "budget: 1 pairs of today are spent")
    assert mine.charge(pairs[1:], Usage(1)).pairs == pairs[1:]


def test_what_is_forgotten_is_asked_about_no_more(store, account, one):
    """The hash of a pair goes with its query, while the call is under way; its answer is paid for and not kept."""
    observation, pairs = one
    mine = account(observation)
    charge = mine.charge(pairs, Usage(1))
    store.forget(tenant="", by="me")
    with store._database.read() as connection:
        asking = connection.execute(select(schema.asking)).all()
    mine.settle(charge, Usage(1), dict.fromkeys(pairs, Paid(0.5)))

    assert asking == []
    assert store.judge_queue.answers().get(pairs) == {}
    assert store.judge_queue.spent() == Spend(2, 0.0, 1.0)
    assert mine.charge(pairs, Usage(1)).pairs == ()
