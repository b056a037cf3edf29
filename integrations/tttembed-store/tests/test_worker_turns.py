"""Who is judged when: queries a judge cannot answer stop nobody, and tenants and learning take turns."""

from __future__ import annotations

import itertools
from asyncio import CancelledError
from functools import partial
from threading import Event

import numpy as np
import pytest
from tttembed_store import Candidate, Served, Worker, open_store
from tttembed_store.sql.records import AUDIT

from tests.workers import Meddled, hours_pass
from tttembed_rag import Scale
from tttembed_rag.clients.usage import report_usage
from tttembed_rag.errors import StoreTooSlow
from tttembed_rag.judges import Usage
from tttembed_rag.judges.examination import answers
from tttembed_rag.judging import Budget, Price
from tttembed_rag.testing import word_overlap

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
        """The share of the query's words that a document has, where nothing is wrong."""
        self.asked.append(query)
        report_usage(Usage(requests=1, input_tokens=10))
        fault = self.fault(query)
        if isinstance(fault, BaseException):
            raise fault
        return fault(documents) if fault else [word_overlap(query, text) for text in documents]

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
    return sum(len(query.candidates) for query in store.judge_queue.waiting(Choosy.fingerprint, tenant=tenant))


TOO_LONG = ValueError("too long")


def refuses(word, why=TOO_LONG):
    """A fault of queries with that word."""
    return lambda query: why if word in query else None


class TestRefusedQueries:
    """Queries that a judge fails at, however many, are not the end of judging."""

    @pytest.mark.parametrize(
        ("fault", "concurrency"),
        [
            (TOO_LONG, 1),
            (lambda documents: [None] * len(documents), 8),
            (lambda documents: [7.0] * len(documents), 8),
        ],
        ids=["an error", "no scores", "scores off the scale"],
    )
    def test_all_others_are_judged_at_once(self, store, rng, fault, concurrency):
        """Twenty refused queries, newer than any other, keep neither their tenant's nor other tenants' waiting."""
        store.observe(served(rng, 30, tenant="first"))
        store.observe(served(rng, 20, tenant="first", word="refused", at=1000))
        store.observe(served(rng, 30, tenant="second"))
        Worker(store, Choosy(refuses("refused", fault)), concurrency=concurrency).round()

        assert [store.counts(tenant).rewards for tenant in ("first", "second")] == [30 * 4, 30 * 4]

    def test_they_are_set_aside_and_the_reason_is_told(self, store, rng, caplog):
        """Neither a later round nor another worker asks before the time, none backs off, nothing is declined.

        The words of the judge, which may repeat a query, are in the store alone.
        """
        store.observe(served(rng, 20, word="refused"))
        judge = Choosy(refuses("refused"))
        worker = Worker(store, judge)
        rounds = [[(step.action, step.detail) for step in worker.round()] for _ in range(2)]
        Worker(store, judge).round()
        early = judge.about("refused")
        hours_pass(store, 0.1)
        Worker(store, judge).round()

        assert rounds[0][0][0] == "not judged"
        assert "pairs without an answer are asked about again later: choosy@1: ValueError:" in rounds[0][0][1]
        assert "too long" not in rounds[0][0][1] + caplog.text
        assert [action for action, _ in rounds[1]] == ["learned nothing"]
        assert (early, judge.about("refused")) == (20, 40)
        assert waits(store) == 20 * 4
        assert store.judge_queue.failures() == [("choosy@1", "choosy@1: ValueError: too long", 20)]

    def test_none_is_ever_declined(self, store, rng):
        """However often the judge fails at them: they are asked about once a day in the end, or at once by a person."""
        store.observe(served(rng, 4, word="refused"))
        judge = Choosy(refuses("refused"))
        left, calls = [], []
        for _ in range(20):
            Worker(store, judge).round()
            left.append(waits(store))
            calls.append(judge.about("refused") // 4)
            hours_pass(store, 6.0)
        taken_back = store.judge_queue.ask_again(judge.fingerprint, by="test")
        judge.fault = lambda _: None
        Worker(store, judge).round()

        assert left == [4 * 4] * 20
        assert calls[:7] == [1, 2, 3, 4, 5, 6, 7]
        assert [calls[place] - calls[place - 4] for place in (15, 19)] == [1, 1]
        assert (taken_back, store.counts("").rewards) == (0, 4 * 4)
        assert store.judge_queue.failures("") == []
        assert store.changes.lines()[0].action in ("ask again", "publish", "abstained")

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
        hours_pass(store, 0.1)
        store.observe(served(rng, 16, word="other"))
        Worker(store, judge, concurrency=1).round()

        assert store.counts("").rewards == 56 * 4
        assert judge.asked[-1] == "fine text 39 "
        assert len(judge.asked) == 24 + 56 + 1  # the examination comes first
        assert store.judge_queue.failures("") == []

    def test_a_cancelled_call_is_a_failed_call(self, store, rng):
        """A judge that cancels its own call, or exits, ends neither the round nor the worker."""
        store.observe(served(rng, 20))
        store.observe(served(rng, 1, word="cancelled", at=1000))
        store.observe(served(rng, 1, word="exits", at=2000))
        judge = Choosy(
            lambda query: CancelledError() if "cancel" in query else SystemExit(3) if "exit" in query else None
        )
        Worker(store, judge).round()

        assert store.counts("").rewards == 20 * 4
        assert {why for _, why, _ in store.judge_queue.failures()} == {
            "choosy@1: cancelled its own call",
            "choosy@1: SystemExit: 3",
        }

    def test_examinations_and_refusals_stay_within_the_budget(self, store, rng):
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
        """After it has cost its time once, others are asked about before it, while its call still hangs."""
        free = Event()

        def hangs(query):
            if "hang" in query:
                return lambda documents: free.wait(300) and [0.5] * len(documents)
            return None

        store.observe(served(rng, 20))
        store.observe(served(rng, 2, word="hang", at=1000))
        now = [0.0]
        worker = Worker(store, Choosy(hangs), judge_seconds=2.0, concurrency=1, clock=lambda: now[0])
        details = [step.detail for step in worker.round()]
        for _ in range(2):
            now[0] += 3600.0
            details += [step.detail for step in worker.round()]
        rewards = store.counts("").rewards
        free.set()

        assert any("no answer within 2 s" in detail for detail in details)
        assert rewards == 20 * 4


class TestTroubles:
    """An error of one tenant's step is that tenant's alone."""

    @pytest.mark.parametrize(
        ("step", "error"),
        [
            ("rewards", MemoryError("a question")),
            ("rewards", StoreTooSlow("9 s")),
            ("judge_queue", KeyError("a question")),
        ],
    )
    def test_the_others_go_on_and_it_is_told_once(self, store, rng, caplog, error, step):
        """The tenant is left out for a while, longer each time; the log has where the error came from once.

        Its words, which may repeat a query, are in neither.
        """
        queue = store.judge_queue

        def troubling(call):
            def call_or_fail(*arguments, tenant="", **options):
                if tenant == "evil":
                    raise error
                return call(*arguments, tenant=tenant, **options)

            return call_or_fail

        troubled = {
            "rewards": Meddled(store, rewards=troubling(store.rewards)),
            "judge_queue": Meddled(store, judge_queue=Meddled(queue, waiting=troubling(queue.waiting))),
        }
        for tenant in ("evil", "good"):
            store.observe(served(rng, 15, tenant=tenant))
        now = [0.0]
        worker = Worker(troubled[step], Choosy(), clock=lambda: now[0])
        failed = []
        for _ in range(4):
            failed.append([str(step) for step in worker.round() if step.action == "failed"])
            now[0] += 61.0

        assert store.counts("good").rewards == 15 * 4
        assert [len(steps) for steps in failed] == [1, 1, 0, 1]
        assert failed[0][0].startswith(f"evil: failed: {type(error).__name__}")
        assert ("9 s" if isinstance(error, StoreTooSlow) else __file__) in failed[0][0]
        assert "a question" not in failed[0][0] + caplog.text
        assert sum("evil" in line.message and line.levelname == "ERROR" for line in caplog.records) == 1

    def test_an_embedding_model_that_fails_repeats_no_text(self, store, rng, caplog):
        """Of an error of the model's own the step has the kind and the place."""
        store.observe(served(rng, 30))

        def fails():
            raise ValueError("a question")

        (step,) = Worker(store, probe=fails).round()

        assert step.action == "not probed"
        assert f"ValueError ({__file__}" in step.detail
        assert "a question" not in step.detail + caplog.text


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
        for tenant in "abc":
            store.observe(served(rng, 40, tenant=tenant))
        stop = Event()
        judge = Choosy(lambda query: stop.set() if (judge.about("fine") % 16 == 0 and query not in answers()) else None)
        worker = Worker(store, judge, concurrency=1)
        for _ in "abc":
            stop.clear()
            worker.round(stop=stop)

        assert [store.counts(tenant).rewards for tenant in "abc"] == [16 * 4] * 3

    def test_learning_does_not_wait_for_the_backlog(self, store, rng):
        """While one tenant's queries are judged for long, what is new is learned from in between."""
        store.observe(served(rng, 80, tenant="acme"))
        actions, clock = [], partial(next, itertools.count(step=20.0))
        worker = Worker(store, Choosy(), tenants=["acme"], clock=clock)
        worker.round(watch=lambda step: actions.append(step.action))
        learned = [place for place, action in enumerate(actions) if action != "judged"]

        assert store.counts("acme").rewards == 80 * 4
        assert "judged" in actions[learned[0] :]

    def test_one_round_judges_everything(self, store, rng):
        """Whatever waits is judged, and then learned from, before a round ends."""
        for tenant in ("acme", "zeta"):
            store.observe(served(rng, 40, tenant=tenant))
        last = {step.tenant: step.action for step in Worker(store, Choosy()).round()}

        assert [waits(store, tenant) for tenant in ("acme", "zeta")] == [0, 0]
        assert sorted(last) == ["acme", "zeta"]
        assert "judged" not in last.values()

    def test_the_examination_is_paid_for_once_and_its_first_question_once_a_row(self, store, rng):
        """That costs two pairs, for three failures or more; failed calls that were paid for count."""
        store.observe(served(rng, 16, word="refused"))
        judge = Choosy(refuses("refused"))
        Worker(store, judge, concurrency=1).round()

        examined = sum(query in answers() for query in judge.asked)
        assert examined <= 24 + 5
        assert store.judge_queue.spent().pairs == 2 * examined + 16 * 4


class TestLookingAnew:
    """All tenants are due where a worker looks with something else than before."""

    def looked_at(self, worker):
        """The tenants of a round."""
        return list(dict.fromkeys(step.tenant for step in worker.round() if step.tenant is not None))

    def test_two_workers_with_two_judges_come_to_rest(self, store):
        """Each looks at all tenants once; one that comes later, with another judge than the last, does so too."""
        candidate = Candidate("d", np.ones(8), "text", 0.5)
        store.observe([Served("q", np.ones(8), [candidate], "asked", tenant=tenant) for tenant in "abc"], judge="j")
        first, second = Worker(store, rewards_of="j"), Worker(store, rewards_of="k")
        rounds = [[self.looked_at(worker) for worker in (first, second)] for _ in range(3)]
        later = self.looked_at(Worker(store, rewards_of="j"))

        assert rounds[0] == [["a", "b", "c"], ["a", "b", "c"]]
        assert rounds[1:] == [[[], []], [[], []]]
        assert later == ["a", "b", "c"]

    def test_two_workers_with_two_judges_see_what_is_new_of_theirs(self, store_url):
        """Whoever looks first leaves the other one's; what concerns both, a deletion or a label, both look at."""
        candidate = Candidate("d", np.ones(8), "text", 0.5)
        with open_store(store_url) as store:
            workers = [Worker(store, rewards_of=judge) for judge in "jk"]

            rounds = []
            for number, judge in enumerate(("j", "k", "k", "j", AUDIT)):
                query = f"q{number}"
                store.observe(
                    [Served(query, np.ones(8), [candidate], query, tenant=name) for name in "ab"], judge=judge
                )
                rounds.append([self.looked_at(worker) for worker in workers])
            store.forget(tenant="a", query_id="q0", by="me")
            rounds.append([self.looked_at(worker) for worker in workers])

        both, none = ["a", "b"], []
        assert rounds == [[both, both], [none, both], [none, both], [both, none], [both, both], [["a"], ["a"]]]
