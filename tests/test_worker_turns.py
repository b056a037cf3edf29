"""Who is judged when: queries a judge cannot answer stop nobody, and tenants and learning take turns."""

from __future__ import annotations

import asyncio
import threading
from threading import Event

import numpy as np
import pytest

from tttembed_rag import Scale
from tttembed_rag.judges import Budget, Price, Usage
from tttembed_rag.judges.contract import PROBE_QUERY
from tttembed_rag.judges.spending import report_usage
from tttembed_rag.models.retrying import BusyError
from tttembed_rag.stores import Candidate, Served
from tttembed_rag.worker import Worker

pytestmark = pytest.mark.slow


class Choosy:
    """A judge with a word count for an opinion, that fails as it is told to.

    Args:
        fault: What comes instead of an answer about a query, raised or returned, or None.
    """

    scale, fingerprint = Scale("probability"), "choosy@1"

    def __init__(self, fault=lambda _: None):
        self.fault = fault
        self.asked = []

    def score(self, query, documents):
        """The share of the query's words that a document has."""
        words = set(query.lower().split())
        return [len(words & set(text.lower().split())) / len(words) for text in documents]

    async def ascore(self, query, documents):
        """The same, where nothing is wrong."""
        self.asked.append(query)
        report_usage(Usage(requests=1, input_tokens=10))
        fault = self.fault(query)
        if isinstance(fault, Exception):
            raise fault
        await asyncio.sleep(0)
        return fault(documents) if fault else self.score(query, documents)

    def about(self, word):
        """How often it was asked about queries with that word."""
        return sum(word in query for query in self.asked)


def served(rng, number, *, tenant="", word="fine", at=0.0):
    """Queries with four documents each, the last one the newest."""
    for i in range(number):
        candidates = [Candidate(f"d{j}", rng.normal(size=8), f"text {j}") for j in range(4)]
        yield Served(
            f"{word}{i}", rng.normal(size=8), candidates, f"{word} text {i} {tenant}", tenant=tenant, at=1e9 + at + i
        )


@pytest.fixture
def rng():
    """Vectors that mean nothing."""
    return np.random.default_rng(0)


def waits(store, tenant=""):
    """Pairs of the tenant that wait."""
    return sum(len(one.candidates) for one in store.judge_queue.waiting(Choosy.fingerprint, tenant=tenant))


TOO_LONG = ValueError("too long")


def refuses(word, why=TOO_LONG):
    """A fault of queries with that word."""
    return lambda query: why if word in query else None


class TestRefusedQueries:
    """Queries that a judge fails at, however many, are not the end of judging."""

    @pytest.mark.parametrize(
        "fault",
        [TOO_LONG, lambda documents: [None] * len(documents), lambda documents: [7.0] * len(documents)],
        ids=["an error", "no scores", "scores off the scale"],
    )
    @pytest.mark.parametrize("concurrency", [1, 8])
    def test_all_others_are_judged_at_once(self, store, rng, fault, concurrency):
        """Twenty refused queries, newer than any other, keep neither their tenant's nor other tenants' waiting."""
        store.observe(served(rng, 30, tenant="first"))
        store.observe(served(rng, 20, tenant="first", word="refused", at=1000))
        store.observe(served(rng, 30, tenant="second"))
        Worker(store, Choosy(refuses("refused", fault)), concurrency=concurrency).round()

        assert [store.counts(tenant).rewards for tenant in ("first", "second")] == [30 * 4, 30 * 4]

    def test_they_are_asked_about_twice_and_then_declined(self, store, rng):
        """Neither a later round nor another worker pays for them again, and no back-off begins."""
        store.observe(served(rng, 20, word="refused"))
        judge = Choosy(refuses("refused"))
        worker = Worker(store, judge)
        said = [[step.action for one in worker.round() for step in one.steps] for _ in range(2)]
        Worker(store, judge).round()

        assert "not judged" in said[0]
        assert said[1] == ["learned nothing"]
        assert judge.about("refused") == 2 * 20
        assert waits(store) == 0

    def test_one_failure_is_not_enough(self, store, rng):
        """A query whose call failed once is asked about again, after all others, and has its rewards."""
        failed = []

        def once(query):
            if query == "fine text 39 " and not failed:
                failed.append(query)
                return ValueError("a hiccup")
            return None

        store.observe(served(rng, 40))
        judge = Choosy(once)
        Worker(store, judge, concurrency=1).round()

        assert store.counts("").rewards == 40 * 4
        assert judge.asked[-1] == "fine text 39 "
        assert len(judge.asked) == 40 + 1

    def test_a_judge_that_is_down_declines_nothing(self, store, rng):
        """Rounds in vain leave every pair waiting, and the judge is asked as soon as it is back."""
        store.observe(served(rng, 40))
        down = Choosy(lambda _: ConnectionError("refused"))
        now = [0.0]
        worker = Worker(store, down, clock=lambda: now[0])
        for _ in range(3):
            now[0] += 3600.0
            worker.round()
        vain = waits(store)
        down.fault = lambda _: None
        now[0] += 3600.0
        worker.round()

        assert vain == 40 * 4
        assert store.counts("").rewards == 40 * 4

    def test_a_judge_that_goes_down_declines_nothing_that_failed_before(self, store, rng):
        """Where the second failure comes with one at the probe, it is no evidence against the query."""
        seen = []

        def fault(query):
            seen.append(query)
            gone = seen.count("refused text 0 ") > 1
            return ValueError("no") if gone or "refused" in query else None

        store.observe(served(rng, 5))
        store.observe(served(rng, 1, word="refused", at=1000))
        rounds = Worker(store, Choosy(fault), concurrency=1).round()

        assert "fails the probe" in rounds[0].steps[0].detail
        assert store.counts("").rewards == 5 * 4
        assert waits(store) == 4

    def test_what_may_pass_is_declined_only_after_five_failures(self, store, rng):
        """A busy server is believed for some rounds; others are judged meanwhile, and it does not go on for ever."""
        store.observe(served(rng, 20))
        store.observe(served(rng, 4, word="busy", at=1000))
        judge = Choosy(refuses("busy", BusyError("503")))
        worker, left = Worker(store, judge), []
        for _ in range(6):
            worker.round()
            left.append(waits(store))

        assert left == [16, 16, 16, 0, 0, 0]
        assert judge.about("busy") == 5 * 4
        assert store.counts("").rewards == 20 * 4

    def test_probes_and_refusals_stay_within_the_budget(self, store, rng):
        """Neither pairs nor money are exceeded by what comes of failed calls."""
        store.observe(served(rng, 40, word="refused"))
        for _ in range(3):
            worker = Worker(
                store,
                Choosy(refuses("refused")),
                budget=Budget(pairs=70, usd=0.5),
                price=Price(request=0.01),
                concurrency=4,
            )
            worker.round()

        assert store.judge_queue.spent().pairs <= 70
        assert store.judge_queue.spent().usd <= 0.5

    def test_a_query_that_hangs_does_not_come_first_again(self, store, rng):
        """After it has cost its time once, others are asked about before it."""
        free = Event()

        def hangs(query):
            if "hang" in query:
                return lambda documents: free.wait(20) and [0.5] * len(documents)
            return None

        store.observe(served(rng, 20))
        store.observe(served(rng, 16, word="hang", at=1000))
        now = [0.0]
        worker = Worker(store, Choosy(hangs), judge_seconds=4.0, concurrency=1, clock=lambda: now[0])
        first = worker.round()[0].steps[0].detail
        free.set()
        for thread in threading.enumerate():
            if thread.name == "tttembed-judge":
                thread.join(20)
        free.clear()
        now[0] += 3600.0
        worker.round()
        free.set()

        assert "no answer within 4 s" in first
        assert store.counts("").rewards >= 20 * 4


class TestTurns:
    """Tenants share the judge, and judging shares the time with learning."""

    def test_a_budget_is_shared_by_tenants(self, store, rng):
        """Where one tenant's queries alone would use up the day, the other has its share."""
        store.observe(served(rng, 100, tenant="acme"))
        store.observe(served(rng, 10, tenant="zeta"))
        Worker(store, Choosy(), budget=Budget(pairs=200)).round()

        assert store.counts("zeta").rewards == 10 * 4
        assert 100 < store.counts("acme").rewards < 200

    def test_the_next_round_begins_with_the_next_tenant(self, store, rng):
        """Where a round is enough for one turn only, tenants have a round each."""
        for tenant in "abc":
            store.observe(served(rng, 40, tenant=tenant))
        stop = Event()
        worker = Worker(store, Choosy(lambda query: None if query == PROBE_QUERY else stop.set()))
        for _ in "abc":
            stop.clear()
            worker.round(stop=stop)

        assert [store.counts(tenant).rewards for tenant in "abc"] == [16 * 4] * 3

    def test_learning_does_not_wait_for_the_backlog(self, store, rng):
        """While one tenant's queries are judged for long, what is new is learned from in between."""
        store.observe(served(rng, 200, tenant="acme"))
        told = []
        Worker(store, Choosy(), tenants=["acme"]).round(watch=lambda step: told.append(step.action))
        learned = [place for place, action in enumerate(told) if action != "judged"]

        assert store.counts("acme").rewards == 200 * 4
        assert "judged" in told[learned[0] :]

    def test_one_round_judges_everything(self, store, rng):
        """Whatever waits is judged, and then learned from, before a round ends."""
        for tenant in ("acme", "zeta"):
            store.observe(served(rng, 150, tenant=tenant))
        rounds = Worker(store, Choosy()).round()

        assert [waits(store, tenant) for tenant in ("acme", "zeta")] == [0, 0]
        assert all(one.steps[-1].action != "judged" for one in rounds)

    def test_the_probe_is_paid_for_once_a_row(self, store, rng):
        """Asking the probe again costs two pairs, counted, for three failures or more."""
        store.observe(served(rng, 16, word="refused"))
        judge = Choosy(refuses("refused"))
        Worker(store, judge, concurrency=1).round()

        assert judge.asked.count(PROBE_QUERY) <= 2 * 6
        assert store.judge_queue.spent().pairs == 2 + 2 * judge.asked.count(PROBE_QUERY) + 2 * 16 + 16 * 4
