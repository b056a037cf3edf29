"""The worker: judge, fit, gate and publish on new evidence, through budgets, breakdowns and kills."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tttembed_rag import InputError, Scale
from tttembed_rag.capture import StoreLog
from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.judges import HttpJudge, Patience, RubricJudge
from tttembed_rag.judges.contract import PROBE_QUERY, Blocking
from tttembed_rag.judging import Budget, Price, calls
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.stores import open_store
from tttembed_rag.testing import FakeJudge, eventually
from tttembed_rag.worker import Probe, Worker
from tttembed_rag.worker.memory import Memory

QUICK = Patience(attempts=1, first_wait=0.01)


@pytest.fixture
def reranker(world, serve):
    """Starts servers that speak Cohere's rerank protocol: `reranker(answer)`, answer(scores, n) -> what is said."""

    def start(answer=None):
        def respond(_, body, number):
            scores = world.judged(body["query"], body["documents"])
            said = answer(scores, number) if answer else scores
            if isinstance(said, int):
                return said, {}, b"{}"
            return 200, {}, said if isinstance(said, bytes) else world.reply(said)

        endpoint = serve(respond)
        return endpoint.url.removeprefix("http://"), endpoint.asked

    return start


class Meddled:
    """A store, or a part of one, with some methods replaced: other hands are at work meanwhile."""

    def __init__(self, part, **replaced):
        self._part = part
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(self._part, name)


def publishing(store, act):
    """A *store* where *act* is done before anything is published."""
    return Meddled(store, registry=Meddled(store.registry, publish=before(store.registry.publish, act)))


def before(call, act):
    """*call*, before which *act* is done."""

    def both(*arguments, **options):
        act()
        return call(*arguments, **options)

    return both


def after(call, act):
    """*call*, after which *act* is done."""

    def both(*arguments, **options):
        found = call(*arguments, **options)
        act()
        return found

    return both


def http_judge(host):
    """The judge behind such a server."""
    return HttpJudge(f"http://{host}", "cohere", patience=QUICK)


def actions(rounds):
    """What was done, over all tenants."""
    return [action for one in rounds for action in one.actions]


def shuffled(rewards, seed=0):
    """Rewards that mean nothing any more."""
    return np.random.default_rng(seed).permutation(rewards.values)


class TestOneRound:
    """From what was served to what is served next."""

    def judge(self, kind, world, reranker):
        """A judge of that kind that says what the world knows."""
        if kind == "table":
            return FakeJudge(lambda query, text: world.judged(query, [text])[0])
        if kind == "http":
            return http_judge(reranker()[0])

        def complete(prompt):
            query, document = re.findall(r"<(?:query|document)-[0-9a-f]{24}>\n(.*?)\n</", prompt, re.DOTALL)
            return f"Score: {round(5 * world.judged(query, [document])[0])}"

        return RubricJudge(complete, model="function")

    @pytest.mark.parametrize("kind", ["table", "rubric", "http"])
    def test_what_waits_is_judged_learned_from_and_served(self, kind, world, store, reranker):
        """Held-out queries find better documents after one round, whoever judged."""
        store.observe(world.served(range(40)))
        rounds = Worker(store, self.judge(kind, world, reranker)).round()
        live = store.serving().version

        assert actions(rounds) == ["judged", "published"]
        assert (rounds[-1].version, live.by) == (live.number, "worker")
        assert world.best(range(40, 120), live.offsets) > world.best(range(40, 120)) + 0.05

    def test_rewards_that_came_along_need_no_judge(self, world, store):
        """Without a judge, rewards that were observed are learned from."""
        served = world.served(range(40), judged=True, text=False)
        store.observe((replace(one, embedder="model-7") for one in served), judge="clicks")

        assert actions(Worker(store).round()) == ["published"]
        assert "clicks" in store.registry.version().note
        assert store.registry.version().embedder == "model-7"  # so that no other model is steered by it

    def test_rewards_that_mean_nothing_are_not_served(self, world, store):
        """Shuffled rewards end in an abstention that says why, in the audit too."""
        store.observe(world.served(range(40), judged=True, values=shuffled(world.rewards)), judge="dice")
        (one,) = Worker(store, scope="task").round()

        assert one.actions == ("abstained",)
        assert store.registry.version() is None
        assert [line.detail for line in store.audit.lines()] == [one.steps[0].detail]

    def test_only_new_evidence_is_learned_from(self, world, store):
        """A round without news fits nothing, one with too little news says how much is needed."""
        worker = Worker(store, min_new=50)
        store.observe(world.served(range(40), judged=True), judge="j")
        first = actions(worker.round())
        again = worker.round()[0].steps[0].detail
        store.observe(world.served(range(40, 46), judged=True), judge="j")
        little = worker.round()[0].steps[-1].detail
        store.observe(world.served(range(46, 47), judged=True), judge="j")

        assert first == ["published"]
        assert again == "nothing is new"
        assert little == "48 rewards are new, 50 are needed"
        assert actions(worker.round())[-1] == "published"

    def test_judges_are_never_mixed(self, world, store):
        """The busiest judge is learned from, or the one that is named; the other's rewards change nothing."""
        store.observe(world.served(range(40), judged=True), judge="good")
        store.observe(world.served(range(60), judged=True, values=1 - world.rewards.values), judge="busy")
        store.observe(world.served(range(40, 80), judged=True, tenant="one"), judge="good")
        busiest = actions(Worker(store, scope="task", tenants=[""]).round())
        named = Worker(store, scope="task", tenants=[""], rewards_of="good").round()

        assert busiest == ["abstained"]
        assert actions(named) == ["published"]
        assert "learned from 40 queries" in named[0].steps[0].detail

    def test_a_round_after_forgetting_learns_anew(self, world, store):
        """What is forgotten is taken out of service, and out of what is learned from the rest."""
        store.observe(world.served(range(60), judged=True), judge="j")
        worker = Worker(store, scope="task")
        worker.round()
        store.forget(tenant="", query_id="q7", by="test")
        store.observe(world.served([60], judged=True), judge="j")  # as many rewards as before

        assert store.registry.version() is None
        assert actions(worker.round()) == ["published"]
        assert "learned from 60 queries" in store.registry.version().note
        assert actions(worker.round()) == ["learned nothing"]

    def test_what_is_forgotten_during_a_fit_is_not_published(self, world, store):
        """Who learned from a query that is deleted meanwhile has lost the lease; the next round learns without it."""
        store.observe(world.served(range(40), judged=True), judge="j")
        forget = partial(store.forget, tenant="", query_id="q7", by="test")
        forgetting = publishing(store, forget)

        lost = Worker(forgetting, scope="task").round()

        assert actions(lost) == ["standby"]
        assert store.registry.version() is None
        assert [store.states.get(name) for name in ("worker", "learned", "trial")] == [None] * 3
        assert actions(Worker(store, scope="task").round()) == ["published"]
        assert store.registry.version().rewarded == 39

    def test_what_is_judged_while_it_is_forgotten_is_not_kept(self, world, store):
        """A judge that answers after its query is gone is paid, and leaves nothing behind."""
        store.observe(world.served(range(6)))

        class Asked:
            scale, fingerprint = Scale("probability"), "asked@1"

            def score(self, query, documents):
                return world.judged(query, documents)

            async def ascore(self, query, documents):
                if query == "query 3":
                    await asyncio.to_thread(store.forget, tenant="", query_id="q3", by="test")
                return world.judged(query, documents)

        done = Worker(store, Asked(), concurrency=1).round()
        Worker(store, Asked(), concurrency=1).round()  # the deletion has ended the work of the first one
        kept, forgotten = (
            store.judge_queue.answers().get(
                [pair_key("asked@1", f"query {i}", f"document 0-{j}") for j in world.shown(i)]
            )
            for i in (2, 3)
        )

        assert actions(done)[0] == "judged"
        assert (len(kept), len(forgotten)) == (8, 0)
        assert store.judge_queue.spent().pairs == 6 * 8 + 2
        assert store.counts().rewards == 5 * 8

    @pytest.mark.parametrize("what", ["rolled back", "published"])
    def test_what_a_person_does_during_a_fit_stays(self, what, world, store):
        """A worker that learned while somebody else decided what is served looks again before it decides."""
        worker = Worker(store, scope="task", min_new=8)
        for rows in (range(20), range(20, 40)):
            store.observe(world.served(rows, judged=True), judge="j")
            worker.round()
        store.observe(world.served(range(40, 80), judged=True), judge="j")
        acts = {
            "rolled back": lambda: store.registry.rollback(by="anna"),
            "published": lambda: store.registry.publish(store.registry.version().offsets, by="anna"),
        }

        meddled = publishing(store, acts[what])
        (one,) = Worker(meddled, scope="task", min_new=8).round()
        decided = store.registry.version().number

        assert "nothing was changed" in one.steps[-1].detail
        assert decided == (1 if what == "rolled back" else 3)
        assert actions(worker.round())[-1] == "published"

    def test_forgetting_keeps_what_is_no_evidence(self, world, store):
        """Counters and trials go; since when a model embeds, rollbacks and the probe stay."""
        store.observe(world.served(range(40), judged=True), judge="j")
        Worker(store, scope="task", probe=lambda: Probe.of(model(1))).round()
        kept = {"since": 5.0, "contradicted": 40, "fresh": 7.0}
        lease = store.leases.take("", "test", 60)
        memory = Memory("j", rewards=320, looked=320, doubted=True, base=8, **kept)
        store.states.set("worker", memory.to_json(), lease=lease)
        store.states.set("drift", "[1]")
        store.forget(tenant="", query_id="q7", by="test")

        assert Memory.from_json(store.states.get("worker")) == Memory(**kept)
        assert [store.states.get(name) for name in ("learned", "trial", "drift")] == [None] * 3
        assert store.states.get("probe") is not None

    def test_what_another_release_remembered_is_read(self, store):
        """What it knew and this one does not is left aside, and the other way round."""
        store.states.set("worker", '{"rewards": 5, "halted": "why"}')

        assert Memory.from_json(store.states.get("worker")) == Memory(rewards=5)

    def test_each_tenant_has_its_own(self, world, store):
        """A tenant is served what it taught; the shared one learns only from those that allow it."""
        store.observe(world.served(range(40), judged=True, tenant="open"), judge="j")
        store.observe(world.served(range(40, 80), judged=True, tenant="closed"), judge="j")
        store.share("open", True, by="test")
        Worker(store, scope="global").round()
        versions = {tenant: store.registry.version(tenant=tenant) for tenant in ("", "open", "closed")}

        assert [version.rewarded for version in versions.values()] == [40, 40, 40]
        assert store.serving(tenant="newcomer").version.number == versions[""].number
        np.testing.assert_allclose(
            versions[""].offsets["global"].vector, versions["open"].offsets["global"].vector, atol=1e-4
        )

    def test_a_damaged_version_is_replaced(self, world, store, sqlite_url):
        """Offsets that cannot be read are no obstacle to better ones."""
        store.observe(world.served(range(40), judged=True), judge="j")
        Worker(store, scope="task").round()
        with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as bare:
            bare.execute("UPDATE versions SET content = substr(content, 1, 100)")
        bare.close()
        store.observe(world.served(range(40, 80), judged=True), judge="j")

        assert actions(Worker(store, scope="task").round()) == ["published"]
        assert store.registry.version().offsets["task:default"].served

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"min_new": 0}, "min_new"),
            ({"lease_seconds": 0}, "lease_seconds"),
            ({"scope": "all"}, "scope"),
            ({"tenants": "acme"}, "tenants"),
        ],
    )
    def test_bad_options_are_named(self, store, options, named):
        """An option that makes no sense is refused at once."""
        with pytest.raises(InputError, match=named):
            Worker(store, **options)


class TestBudget:
    """What a day may cost."""

    def test_pairs_are_capped_over_restarts(self, world, store, reranker):
        """Whoever starts again today has what is left of the day, and the probe counts too."""
        host, asked = reranker()
        store.observe(world.served(range(40)))
        said = [Worker(store, http_judge(host), budget=Budget(pairs=50)).round()[0].steps[0].detail for _ in range(3)]

        assert store.judge_queue.spent().pairs == 50
        assert sum(len(body["documents"]) for _, _, body in asked) == 50
        assert said[0] == "48 pairs scored; budget: 50 pairs of today are spent"
        assert said[1:] == ["0 pairs scored; budget: 50 pairs of today are spent"] * 2

    def test_money_is_capped_over_restarts(self, world, store, reranker):
        """At a cent a request, 25 cents buy 25 requests (one for the probe), however often it is started."""
        host, asked = reranker()
        store.observe(world.served(range(40)))
        for _ in range(3):
            Worker(store, http_judge(host), budget=Budget(usd=0.25), price=Price(request=0.01)).round()

        assert len(asked) == 25
        assert store.judge_queue.spent().usd == pytest.approx(0.25)

    def test_a_cap_on_money_needs_a_price(self, store, reranker):
        """Without a price nobody knows what is spent."""
        with pytest.raises(InputError, match="price"):
            Worker(store, http_judge(reranker()[0]), budget=Budget(usd=1))

    def test_garbage_that_was_paid_for_counts(self, world, store):
        """A model that bills for grades off its scale uses up its budget, and is left alone then."""
        careful = RubricJudge(lambda prompt: f"Score: {5 if 'Paris' in prompt else 0}", model="careful")

        class Garbled:
            scale, fingerprint, score = careful.scale, "garbled@1", careful.score
            documents_per_call, forecast = careful.documents_per_call, careful.forecast

            async def ascore(self, query, documents):
                scores = await careful.ascore(query, documents)
                return scores if query == PROBE_QUERY else [99.0] * len(documents)

        store.observe(world.served(range(40)))
        for _ in range(9):
            Worker(store, Garbled(), budget=Budget(usd=0.25), price=Price(request=0.01)).round()

        assert 0.2 < store.judge_queue.spent().usd < 0.2501


class TestBrokenJudges:
    """A judge that breaks down ends in "not judged", never in a lost reward or a crash."""

    def broken(self, kind, reranker):
        """A judge that breaks down in that way after four answers."""
        host = reranker(
            {
                "busy": lambda scores, n: scores if n < 5 else 429,
                "error": lambda scores, n: scores if n < 5 else 500,
                "garbage": lambda scores, n: scores if n < 5 else b"<html>",
                "NaN": lambda scores, n: scores if n < 5 else [float("nan")] * len(scores),
                "off the scale": lambda scores, n: scores if n < 5 else [17.0] * len(scores),
            }.get(kind)
        )[0]
        if kind == "down":
            host = "127.0.0.1:9"
        return http_judge(host)

    @pytest.mark.parametrize("kind", ["busy", "error", "garbage", "NaN", "off the scale", "down"])
    def test_what_it_said_before_is_kept(self, kind, world, store, reranker):
        """The round says why, keeps every sensible verdict, and another day finds the rest waiting."""
        judge = self.broken(kind, reranker)
        store.observe(world.served(range(40)))
        rounds = Worker(store, judge, concurrency=1).round()
        (_, kept), *_ = store.judges() or [("", 0)]
        waits = sum(len(one.candidates) for one in store.judge_queue.waiting(judge.fingerprint))

        assert actions(rounds)[0] == "not judged"
        assert kept == (0 if kind == "down" else 3 * 8)
        assert kept + waits == 320

    @pytest.mark.slow
    def test_nonsense_about_one_document_is_declined(self, world, store, reranker):
        """NaN for one of eight documents leaves seven verdicts, and the one is not asked about again."""
        host, asked = reranker(lambda scores, n: scores if n == 1 else [*scores[:-1], float("nan")])
        store.observe(world.served(range(40)))
        worker = Worker(store, http_judge(host))
        worker.round()
        before = len(asked)
        worker.round()

        assert store.judges()[0][1] == 40 * 7
        assert before == len(asked) == 41

    def test_an_error_of_any_kind_is_told(self, world, store):
        """A judge of one's own that raises what it likes breaks nothing else."""

        class Raising:
            scale, fingerprint = Scale("probability"), "raising@1"

            def score(self, query, documents):
                return [0.9, 0.1]

            async def ascore(self, query, documents):
                raise ZeroDivisionError("no documents today")

        store.observe(world.served(range(40)))
        store.observe(world.served(range(40, 80), judged=True), judge="other")
        rounds = Worker(store, Raising(), rewards_of="other").round()

        assert actions(rounds) == ["not judged", "published"]
        assert "ZeroDivisionError: no documents today" in rounds[0].steps[0].detail

    def test_one_query_without_an_answer_holds_no_tenant_up(self, world, store):
        """A query that always fails is told, and whoever comes after it is judged all the same."""

        class Choosy:
            scale, fingerprint = Scale("probability"), "choosy@1"

            def score(self, query, documents):
                return world.judged(query, documents)

            async def ascore(self, query, documents):
                if query == "query 0":
                    raise ValueError("too long")
                return world.judged(query, documents)

        store.observe(world.served([0], tenant="first"))
        store.observe(world.served(range(1, 6), tenant="second"))
        rounds = {one.tenant: one.actions for one in Worker(store, Choosy()).round()}

        assert (rounds["first"][0], rounds["second"][0]) == ("not judged", "judged")
        assert [store.counts(tenant).rewards for tenant in ("first", "second")] == [0, 40]

    def test_a_judge_that_hangs_is_left_behind(self, world, store):
        """A judge without an answer holds a round up for so long, and no later one."""
        free = threading.Event()

        class Hanging(Blocking):
            scale, fingerprint = Scale("probability"), "hanging@1"

            def score(self, query, documents):
                free.wait(20)
                return [0.9, 0.1]

        store.observe(world.served(range(40)))
        worker = Worker(store, Hanging(), judge_seconds=0.3)
        details = [worker.round()[0].steps[0].detail for _ in range(2)]
        free.set()

        assert "no answer within 0.3 s" in details[0]
        assert "is asked again in" in details[1]

    def test_it_is_asked_again_later(self, world, store, reranker):
        """The next worker judges what is left, and pays for nothing twice."""
        host, asked = reranker(lambda scores, n: 503 if 5 <= n < 9 else scores)  # the probe too
        store.observe(world.served(range(40)))
        first = actions(Worker(store, http_judge(host), concurrency=1).round())
        second = actions(Worker(store, http_judge(host), concurrency=1).round())

        assert (first[0], second) == ("not judged", ["judged", "published"])
        assert store.judges()[0][1] == 320
        assert store.judge_queue.spent().pairs == 320 + 2
        assert len(asked) == 1 + 40 + 3 + 1


class TestLease:
    """One worker works for a tenant at a time."""

    def test_the_second_stands_by(self, world, store):
        """While one works for the only tenant the other does nothing; then nothing is left to do."""
        store.observe(world.served(range(40), judged=True), judge="j")
        first, second, standing_by = Worker(store), Worker(store), []
        told = first.round(watch=lambda _: standing_by or standing_by.extend(actions(second.round())))

        assert actions(told) == ["published"]
        assert standing_by == ["standby"]
        assert actions(second.round()) == ["learned nothing"]

    @pytest.mark.slow
    def test_it_is_renewed_while_work_goes_on(self, world, store):
        """A lease of a moment lasts as long as the judge needs."""
        asked, answered, held = threading.Event(), threading.Event(), []

        def complete(prompt):
            asked.set()
            answered.wait(20)
            return f"Score: {5 if 'Paris' in prompt else 0}"

        store.observe(world.served(range(6)))
        slow = RubricJudge(complete, model="slow")
        worker = threading.Thread(target=Worker(store, slow, lease_seconds=1.0).round)
        worker.start()
        asked.wait(20)
        ends = time.monotonic() + 2.5
        while time.monotonic() < ends:
            held.append(store.leases.take("", "thief", 1) is None)
            answered.wait(0.02)
        answered.set()
        worker.join()

        assert held == [True] * len(held)

    def test_who_lost_it_publishes_nothing(self, world, store):
        """A worker whose lease was taken over while it learned stops before it publishes."""
        store.observe(world.served(range(40), judged=True), judge="j")

        def steal():
            with sqlite3.connect(store.name.removeprefix("sqlite:///")) as bare:
                bare.execute("UPDATE leases SET owner = 'another', token = token + 1")
            bare.close()

        stolen = publishing(store, steal)
        (lost,) = Worker(stolen, lease_seconds=60).round()

        assert [(step.action, "got 'another'" in step.detail) for step in lost.steps] == [("standby", True)]
        assert store.registry.version() is None

    def test_who_lost_it_asks_no_more(self, world, store):
        """A worker whose lease was taken over while it judges begins no further call."""
        store.observe(world.served(range(100)))
        asked = []

        class Watched:
            scale, fingerprint = Scale("probability"), "watched@1"

            def score(self, query, documents):
                return world.judged(query, documents)

            async def ascore(self, query, documents):
                asked.append(query)
                if len(asked) == 5:
                    with sqlite3.connect(store.name.removeprefix("sqlite:///")) as bare:
                        bare.execute("UPDATE leases SET owner = 'another', token = token + 1, expires = expires + 60")
                    bare.close()
                    await asyncio.sleep(0.4)  # the worker looks after its lease three times in 0.3 seconds
                return world.judged(query, documents)

        (lost,) = Worker(store, Watched(), lease_seconds=0.3, concurrency=1).round()

        assert lost.actions == ("judged",)
        assert len(asked) == 5
        assert store.judge_queue.spent().pairs == 2 + 8 * (len(asked) - 1)  # the first one is the probe


class TestWithdrawing:
    """What happens to a live version when evidence turns."""

    def turned(self, world, store):
        """A store with a live version, and twice as many rewards that mean nothing since."""
        store.observe(world.served(range(20), judged=True), judge="j")
        worker = Worker(store, scope="task", min_new=8)
        assert actions(worker.round()) == ["published"]
        return worker

    def test_takes_two_fits_in_a_row(self, world, store):
        """The first fit that supports nothing leaves the live version alone, the second serves base vectors."""
        worker = self.turned(world, store)
        dice = shuffled(world.rewards)
        store.observe(world.served(range(20), judged=True, values=dice), judge="j")
        store.observe(world.served(range(20, 30), judged=True, values=dice), judge="j")
        first, live = actions(worker.round()), store.registry.version()
        store.observe(world.served(range(30, 40), judged=True, values=dice), judge="j")
        second = actions(worker.round())

        assert (first[-1], live.number) == ("kept", 1)
        assert second[-1] == "withdrawn"
        assert store.registry.version().served == 0

    def test_evidence_in_between_ends_the_doubt(self, world, store):
        """A fit that supports what is live starts the count anew."""
        worker = self.turned(world, store)
        dice = shuffled(world.rewards)
        store.observe(world.served(range(20), judged=True, values=dice), judge="j")
        store.observe(world.served(range(20, 30), judged=True, values=dice), judge="j")
        worker.round()
        store.observe(world.served(range(60), judged=True), judge="j")
        good = actions(worker.round())
        store.observe(world.served(range(60), judged=True, values=dice), judge="j")
        store.observe(world.served(range(60, 90), judged=True, values=dice), judge="j")

        assert good[-1] == "published"
        assert actions(worker.round())[-1] in ("kept", "rolled back")


def harmful(world):
    """Rewards under which what was learned from the world's own rewards is wrong."""
    base = np.einsum("nkd,nd->nk", world.rewards.doc_vectors.reshape(120, 8, -1), world.rewards.query_vectors)
    drawn = 2 * base - 0.5 * world.rewards.values.reshape(base.shape)
    return (1 / (1 + np.exp(-4 * (drawn - drawn.mean())))).ravel()


class TestRollback:
    """Fresh rewards of live traffic have the last word."""

    def test_what_fresh_rewards_contradict_is_taken_back(self, world, store):
        """A version that lowers what users now want is gone after two looks, and base vectors are served."""
        store.observe(world.served(range(40), judged=True), judge="j")
        worker = Worker(store, scope="task", min_new=10_000)
        Worker(store, scope="task").round()
        bad, seen = harmful(world), []
        for start in range(40, 120, 20):
            store.observe(world.served(range(start, start + 20), judged=True, values=bad), judge="j")
            seen += [action for action in actions(worker.round()) if action != "drifted"]

        assert seen[:5] == ["looked", "learned nothing", "looked", "rolled back", "learned nothing"]
        assert store.registry.version().served == 0
        assert "contradicted" in store.audit.lines()[0].detail

    def test_the_same_evidence_does_not_publish_it_again(self, world, store):
        """Until there is twice as much evidence, only what was served since the version's trial began counts."""
        store.observe(world.served(range(60), judged=True), judge="j")
        worker, patient = (Worker(store, scope="task", min_new=n) for n in (8, 10_000))
        worker.round()
        bad, seen = harmful(world), []
        for rows in (range(60, 80), range(80, 100)):
            store.observe(world.served(rows, judged=True, values=bad), judge="j")
            seen += actions(patient.round())
        store.observe(world.served(range(100, 119), judged=True, values=bad), judge="j")
        (fewer,) = worker.round()
        store.observe(world.served(range(60, 90), judged=True, values=bad, name="again"), judge="j")
        (enough,) = worker.round()

        assert seen[-2:] == ["rolled back", "learned nothing"]
        assert "learned from 59 queries" in fewer.steps[-1].detail
        assert "learned from 149 queries" in enough.steps[-1].detail

    def test_a_version_that_helps_stays(self, world, store):
        """Looks at a good version are told and change nothing; drift is on record."""
        store.observe(world.served(range(40), judged=True), judge="j")
        Worker(store, scope="task").round()
        worker, seen, details = Worker(store, scope="task", min_new=10_000), [], []
        for start in range(40, 120, 40):
            store.observe(world.served(range(start - 5, start + 40), judged=True), judge="j")
            (one,) = worker.round()
            seen += one.actions
            details.append(one.steps[0].detail)

        assert seen == ["looked", "learned nothing"] * 2
        assert [
            f"on {n} queries that came after the version they test" in detail
            for n, detail in zip((40, 80), details, strict=True)
        ] == [True] * 2
        assert store.registry.version().number == 1
        assert [sorted(entry) for entry in json.loads(store.states.get("drift"))] == [["at", "queries", "rewards"]] * 2

    def test_another_traffic_is_noticed(self, world, store):
        """Queries about something else are on record as drift."""
        store.observe(world.served(range(40), judged=True), judge="j")
        Worker(store, scope="task").round()
        moved = replace(world.rewards, query_vectors=world.rewards.query_vectors + 0.5)
        store.observe(type(world)(moved).served(range(40, 80), judged=True), judge="j")

        assert "drifted" in actions(Worker(store, scope="task").round())
        assert "drift" in [line.action for line in store.audit.lines()]

    def test_goes_back_to_the_version_before_if_that_still_helps(self, world, store):
        """A bad version in between gives way to the good one before it."""
        store.observe(world.served(range(40), judged=True), judge="j")
        good = Worker(store, scope="task")
        good.round()
        offsets = store.registry.version().offsets
        turned = [replace(offset, vector=-offset.vector) for offset in offsets.values()]
        store.registry.publish(type(offsets)(turned, width=offsets.width), by="somebody")
        worker, seen = Worker(store, scope="task", min_new=10_000), []
        store.observe(world.served([119], judged=True), judge="j")
        for start in range(40, 100, 20):
            seen += actions(worker.round())
            store.observe(world.served(range(start, start + 20), judged=True), judge="j")
        seen += actions(worker.round())

        assert "rolled back" in seen
        assert store.registry.version().number == 1


def model(seed):
    """An embedding model that is another one for another seed."""
    return lambda text: np.random.default_rng([seed, *text.encode()[:64]]).standard_normal(8)


class TestProbe:
    """A closed model that silently changes."""

    def test_another_model_halts_until_enough_of_it_is_learned(self, world, store):
        """Base vectors are served from the change on; rewards from before never mix with those after it."""
        now = [1]
        worker = Worker(store, scope="task", probe=lambda: Probe.of(model(now[0]), name="closed"))
        store.observe(world.served(range(40), judged=True), judge="j")
        first = actions(worker.round())
        now[0] = 2
        changed, halted = actions(worker.round()), store.serving().halted
        store.observe(world.served(range(40, 44), judged=True, name="new"), judge="j")
        little = actions(worker.round())
        store.observe(world.served(range(44, 80), judged=True, name="new"), judge="j")
        enough = worker.round()

        assert (first, changed, little) == (["published"], ["halted", "learned nothing"], ["learned nothing"])
        assert halted.startswith("another embedding model")
        assert actions(enough)[-2:] == ["published", "resumed"]
        assert "learned from 40 queries" in enough[0].steps[-2].detail
        assert store.serving().halted is None
        assert store.registry.version().rewarded == 40

    def test_the_old_model_back_again_resumes(self, world, store):
        """What was learned for it is right again."""
        now = [1]
        worker = Worker(store, scope="task", probe=lambda: Probe.of(model(now[0]), name="closed"))
        store.observe(world.served(range(40), judged=True), judge="j")
        seen = []
        for now[0] in (1, 2, 1, 1):
            seen += actions(worker.round())

        assert store.serving().halted is None
        assert [action for action in seen if action != "learned nothing"] == [
            "published",
            "halted",
            "resumed",
        ]

    @pytest.mark.parametrize("reason", ["incident", ""])
    def test_a_halt_by_a_person_stays(self, reason, world, store):
        """Only a person undoes what a person did."""
        now = [1]
        worker = Worker(store, scope="task", probe=lambda: Probe.of(model(now[0]), name="closed"))
        store.observe(world.served(range(40), judged=True), judge="j")
        worker.round()
        store.registry.halt(by="anna", tenant="", note=reason)
        for now[0] in (2, 1, 1):
            worker.round()

        assert store.serving().halted == reason

    def test_a_person_who_halts_meanwhile_is_not_overruled(self, world, store):
        """A halt that came between a look of the worker and its own act stays, whichever it is about to do."""
        now = [1]

        def probed():
            return Probe.of(model(now[0]), name="closed")

        worker = Worker(store, scope="task", probe=probed)
        store.observe(world.served(range(40), judged=True), judge="j")
        worker.round()
        incident = partial(store.registry.halt, by="anna", tenant="", note="incident")
        registry = Meddled(store.registry, halted=after(store.registry.halted, incident))
        held = []
        for now[0] in (2, 1):
            Worker(Meddled(store, registry=registry), scope="task", probe=probed).round()
            held.append(store.registry.halted())

        assert held[1] == "incident"
        assert store.audit.lines()[0].by == "anna"

    def test_what_was_learned_for_another_model_is_halted_however_it_went_live(self, world, store):
        """A rollback to a version of the old model, or a person who resumes it, steers no query of the new one."""
        now = [1]
        worker = Worker(store, scope="task", probe=lambda: Probe.of(model(now[0]), name="closed"))
        store.observe(world.served(range(40), judged=True), judge="j")
        worker.round()
        now[0] = 2
        worker.round()
        store.observe(world.served(range(40, 80), judged=True, name="new"), judge="j")
        worker.round()
        learned = store.serving()
        store.registry.rollback(by="anna")
        seen = [actions(worker.round()), actions(worker.round())]
        store.registry.resume(by="anna", tenant="")
        seen.append(actions(worker.round()))
        store.registry.rollback(by="anna", to=learned.version.number)

        assert learned.halted is None
        assert [one[0] for one in seen] == ["halted", "learned nothing", "halted"]
        assert actions(worker.round())[0] == "resumed"

    @pytest.mark.parametrize("names", ["ABA", "ABCA"])
    def test_a_declared_model_back_again_resumes(self, names, world, store):
        """Whatever came in between, the model that the live version was learned for is served its offsets."""
        now = [""]
        worker = Worker(store, scope="task", probe=lambda: Probe.of(model(1), name=now[0]))
        store.observe(world.served(range(40), judged=True), judge="j")
        for now[0] in names:
            worker.round()

        assert store.registry.halted() is None

    @pytest.mark.slow
    def test_a_third_model_is_served_what_is_learned_for_it(self, world, store):
        """A halt whose reason has changed ends like any other of the worker's own."""
        now = [""]
        worker = Worker(store, scope="task", probe=lambda: Probe.of(model(1), name=now[0]))
        store.observe(world.served(range(40), judged=True), judge="j")
        for now[0] in "ABC":
            worker.round()
        halted = store.registry.halted()
        store.observe(world.served(range(40, 100), judged=True, name="new"), judge="j")

        assert "'C'" in halted
        assert actions(worker.round())[-2:] == ["published", "resumed"]
        assert store.registry.halted() is None

    def test_a_halt_of_all_hides_none_of_the_tenant(self, world, store):
        """A model that changes while a person halts all is still not served when that is over."""
        now = [1]
        worker = Worker(store, scope="task", probe=lambda: Probe.of(model(now[0])))
        store.observe(world.served(range(40), judged=True), judge="j")
        worker.round()
        store.registry.halt(by="anna", note="incident")
        now[0] = 2
        worker.round()
        store.registry.resume(by="anna")

        assert store.registry.halted().startswith("another embedding model")

    def test_who_ends_at_the_change_halts_the_next_time(self, world, store):
        """A store that goes away as soon as the new model is written down has the halt already."""
        store.observe(world.served(range(40), judged=True), judge="j")
        Worker(store, scope="task", probe=lambda: Probe.of(model(1))).round()

        def restarted(name, *arguments, **options):
            store.states.set(name, *arguments, **options)
            if name == "probe":
                raise StoreUnavailable("restarted")

        restarting = Meddled(store, states=Meddled(store.states, set=restarted))
        with pytest.raises(StoreUnavailable):
            Worker(restarting, scope="task", probe=lambda: Probe.of(model(2))).round()
        Worker(store, scope="task", probe=lambda: Probe.of(model(2))).round()

        assert store.registry.halted().startswith("another embedding model")

    def test_vectors_of_another_width_are_learned_from(self, world, planted, store):
        """What was learned for one model is not tried on vectors of the next."""
        wider = type(world)(planted(50, width=2 * world.rewards.width, strength=0.9, dtype=np.float32))
        worker = Worker(store, scope="task")
        store.observe(world.served(range(40), judged=True, embedder="A"), judge="j")
        first = actions(worker.round())
        store.observe(wider.served(range(50), judged=True, name="new", embedder="B"), judge="j")

        assert (first, actions(worker.round())) == (["published"], ["published"])
        assert (store.registry.version().embedder, store.registry.version().width) == ("B", wider.rewards.width)

    def test_a_model_that_hangs_is_left_behind(self, world, store):
        """Judging goes on in the next round, and nothing is learned."""
        store.observe(world.served(range(40), judged=True), judge="j")
        answers = threading.Event()
        worker = Worker(store, probe=lambda: answers.wait(20), judge_seconds=0.2)
        (first,) = worker.round()
        answers.set()

        assert first.actions == ("not probed",)
        assert "no answer within 0.2 s" in first.steps[0].detail

    def test_a_model_that_hangs_takes_no_more_than_some_threads(self, world, store):
        """However many rounds ask it."""
        store.observe(world.served(range(4), judged=True), judge="j")
        answers, asked = threading.Event(), []
        worker = Worker(store, probe=lambda: asked.append(1) or answers.wait(20), judge_seconds=0.05)
        rounds = [worker.round()[0] for _ in range(12)]
        answers.set()

        assert len(asked) == 8
        assert "has not answered several calls of before" in rounds[-1].steps[0].detail

    def test_a_model_out_of_reach_ends_the_round(self, world, store):
        """Nothing is learned for a model nobody could ask; nothing breaks either."""
        store.observe(world.served(range(40), judged=True), judge="j")

        def refuse():
            raise ConnectionError("refused")

        (one,) = Worker(store, probe=refuse).round()

        assert one.actions == ("not probed",)
        assert "ConnectionError: refused" in one.steps[0].detail


def command(*arguments):
    """`tttembed worker` as a process of its own."""
    return [sys.executable, "-m", "tttembed_rag", "worker", *map(str, arguments)]


@pytest.mark.slow
class TestKilled:
    """kill -9 at any moment loses nothing, repeats nothing."""

    def test_while_it_judges(self, world, store, sqlite_url, reranker):
        """The next worker asks about what was not answered, and no answer is paid for twice."""
        killed = threading.Event()
        host, asked = reranker(lambda scores, n: (n > 24 and not killed.wait(20)) or scores)
        store.observe(world.served(range(40)))
        arguments = (sqlite_url, "--judge", f"http+cohere://{host}", "--concurrency", 1, "--lease", 1, "--once")
        process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE)
        eventually(lambda: len(asked) > 24)
        process.kill()
        process.communicate()
        killed.set()
        paid = store.judge_queue.spent().pairs
        eventually(lambda: store.leases.take("", "heir", 1e-3))
        again = subprocess.run(command(*arguments), capture_output=True, text=True, check=False)

        assert again.returncode == 0, again.stderr
        assert 0 < paid < 322
        assert store.judges()[0][1] == 320
        assert store.judge_queue.spent().pairs == 320 + 2 + 8  # what may have been spent by its last call stays counted
        assert len(asked) <= 1 + 40 + 1  # what was on its way when the worker died is asked again
        assert "published" in again.stdout

    def test_while_it_learns(self, world, store, sqlite_url):
        """Nothing of a fit that was killed is served; the next worker does it again."""
        store.observe(world.served(range(120), judged=True), judge="j")
        process = subprocess.Popen(command(sqlite_url, "--lease", 1, "--once"), stdout=subprocess.PIPE)
        with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as bare:
            eventually(lambda: bare.execute("SELECT 1 FROM leases WHERE token > 0").fetchone())
        bare.close()
        time.sleep(0.15)
        process.kill()
        process.communicate()
        published = store.registry.version()
        eventually(lambda: store.leases.take("", "heir", 1e-3))
        again = subprocess.run(command(sqlite_url, "--lease", 1, "--once"), capture_output=True, text=True, check=False)

        assert published is None
        assert (again.returncode, store.registry.version().number) == (0, 1)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it_cleanly(self, world, store, sqlite_url, number):
        """Told to end it finishes, gives the lease back, and exits with 0."""
        store.observe(world.served(range(40), judged=True), judge="j")
        with subprocess.Popen(command(sqlite_url, "--every", 60), stdout=subprocess.PIPE, text=True) as process:
            line = process.stdout.readline()
            process.send_signal(number)
            code = process.wait(20)

        assert "published" in line
        assert code == 0
        assert store.leases.take("", "next", 1) is not None


@pytest.mark.slow
def test_a_signal_ends_it_while_new_texts_are_embedded(store, sqlite_url, tmp_path):
    """A model that hangs is left behind."""
    hangs = tmp_path / "hangs"
    code = f"""
import pathlib, time
def embed(texts):
    if "hang" in texts:
        pathlib.Path({str(hangs)!r}).touch()
        time.sleep(60)
    return [[1.0, 2.0]] * len(texts)
"""
    (tmp_path / "hanging.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    asked = command(sqlite_url, "--every", 0.2, "--embed", "python:hanging:embed")
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True, env=environment) as process:
        process.stdout.readline()
        with StoreLog(store) as log:
            log.observe("hang", ["a", "b"])
        eventually(hangs.exists)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(10)
        finally:
            process.kill()

    assert code == 0


@pytest.mark.slow
def test_told_to_end_it_finishes_the_step_and_no_more(world, store):
    """A worker that is told to end while it judges keeps the verdicts of calls under way and begins nothing else."""
    stop, asked = threading.Event(), []

    def complete(prompt):
        asked.append(prompt)
        if len(asked) == 20:  # behind the probe
            stop.set()
        return f"Score: {5 if 'Paris' in prompt else 0}"

    store.observe(world.served(range(40)))
    rounds = Worker(store, RubricJudge(complete, model="told to end")).round(stop=stop)

    assert actions(rounds) == ["judged"]
    assert 18 <= store.judges()[0][1] == len(asked) - 2 < 16 * 8


def test_told_to_end_it_keeps_what_a_slow_judge_has_answered(world, store, monkeypatch):
    """Verdicts that came before the time was over are kept, and no query is set aside for it."""
    monkeypatch.setattr(calls, "_GRACE", 1.0)
    stop, free, asked = threading.Event(), threading.Event(), []

    def complete(prompt):
        asked.append(prompt)
        if len(asked) == 10:
            stop.set()
        if len(asked) > 10:
            free.wait(20)
        return f"Score: {5 if 'Paris' in prompt else 0}"

    store.observe(world.served(range(40)))
    begun = time.monotonic()
    rounds = Worker(store, RubricJudge(complete, model="slow")).round(stop=stop)
    free.set()

    assert actions(rounds) == ["judged"]
    assert store.judges()[0][1] == 8
    assert store.judge_queue.failures() == []
    assert time.monotonic() - begun < 5


@pytest.mark.slow
class TestCommand:
    """`tttembed worker`."""

    def run(self, *arguments):
        """What the command did."""
        return subprocess.run(command(*arguments), capture_output=True, text=True, check=False)

    def test_tells_machines_in_json(self, world, store, sqlite_url):
        """One object a step, with what a script needs."""
        store.observe(world.served(range(40), judged=True, tenant="acme"), judge="j")
        done = self.run(sqlite_url, "--once", "--json", "--tenant", "acme")
        (step,) = map(json.loads, done.stdout.splitlines())

        assert (step["tenant"], step["action"], step["version"]) == ("acme", "published", 1)
        assert done.returncode == 0

    @pytest.mark.parametrize(
        "arguments",
        [
            ("mysql://host/db",),
            ("sqlite:///{}/ttt.db", "--judge", "nobody:x"),
            ("sqlite:///{}/ttt.db", "--judge", "feedback:x.csv"),
            ("sqlite:///{}/ttt.db", "--budget", "pairs=many"),
            ("sqlite:///{}/ttt.db", "--min-new", "0"),
            ("sqlite:///{}/ttt.db", "--every", "0"),
        ],
    )
    def test_bad_input_is_one_line_and_code_2(self, tmp_path, arguments):
        """What cannot work is said before anything is done."""
        done = self.run(*(argument.format(tmp_path) for argument in arguments))

        assert done.returncode == 2
        assert [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
        assert "Traceback" not in done.stderr

    def test_a_judge_that_breaks_down_is_code_1(self, world, store, sqlite_url, reranker):
        """With --once a script can see that not all was judged."""
        store.observe(world.served(range(40)))
        done = self.run(sqlite_url, "--once", "--judge", f"http+cohere://{reranker(lambda *_: 400)[0]}")

        assert done.returncode == 1
        assert "not judged" in done.stdout


def test_the_same_on_postgresql(world, postgres_url, reranker):
    """Judge, learn and publish on PostgreSQL as on SQLite."""
    with open_store(postgres_url) as store:
        store.observe(world.served(range(40)))
        rounds = Worker(store, http_judge(reranker()[0]), budget=Budget(pairs=1000)).round()
        offsets = store.serving().version.offsets

        assert actions(rounds) == ["judged", "published"]
        assert world.best(range(40, 120), offsets) > world.best(range(40, 120)) + 0.05
        assert store.judge_queue.spent().pairs == 322


def test_a_database_that_is_gone_is_waited_for(world, server):
    """While the server is down the worker says so and tries again; when it is back it goes on."""
    start, shut_down = server
    told, stop = [], threading.Event()
    options = {"every": 0.05, "stop": stop, "watch": told.append}
    with open_store(start()) as store:
        thread = threading.Thread(target=Worker(store, lease_seconds=2).run, kwargs=options)
        thread.start()
        eventually(lambda: told)
        shut_down()
        eventually(lambda: told[-1].action == "failed")
        start()
        store.observe(world.served(range(40), judged=True), judge="j")
        eventually(lambda: "published" in [step.action for step in told])
        stop.set()
        thread.join(10)

        assert not thread.is_alive()
        assert store.registry.version().number == 1
