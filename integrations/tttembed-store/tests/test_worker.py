"""The worker: judge, fit, gate and publish on new evidence, under a budget."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import asdict, replace
from functools import partial

import pytest
from tttembed_store import Probe, Worker, open_store
from tttembed_store.worker.tenant import Memory, read_memory

from tests.workers import Knowing, actions, http_judge, model, publishing, shuffled
from tttembed_rag import InputError
from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.judges import RubricJudge
from tttembed_rag.judges.examination import answers
from tttembed_rag.judging import Budget, Price
from tttembed_rag.testing import FakeJudge


class TestOneRound:
    """From what was served to what is served next."""

    def judge(self, kind, world, reranker):
        if kind == "table":
            return FakeJudge(lambda query, text: world.judged(query, [text])[0])
        if kind == "http":
            return http_judge(reranker()[0])

        def complete(prompt):
            query, document = re.findall(r"<(?:query|document)-[0-9a-f]{24}>\n(.*?)\n</", prompt, re.DOTALL)
            return f"Score: {round(5 * world.judged(query, [document])[0])}"

        return RubricJudge(complete, model="function")

    @pytest.mark.parametrize(
        ("kind", "store_url"),
        [("table", "sqlite"), ("rubric", "sqlite"), ("http", "postgresql")],
        indirect=["store_url"],
    )
    def test_what_waits_is_judged_learned_from_and_served(self, kind, world, store_url, reranker):
        """Held-out queries find better documents after one round, whoever judged, on either database."""
        with open_store(store_url) as store:
            store.observe(world.served(range(40)))
            steps = Worker(store, self.judge(kind, world, reranker), budget=Budget(pairs=1000)).round()
            live = store.serving().version

            assert actions(steps) == ["judged", "published"]
            assert (steps[-1].version, live.by) == (live.number, "worker")
            assert world.best(range(40, 120), live.offsets) > world.best(range(40, 120)) + 0.05
            assert store.judge_queue.spent().pairs == 320 + 48

    def test_rewards_that_came_along_need_no_judge(self, world, store):
        """Without a judge, rewards that were observed are learned from."""
        served = world.served(range(40), judged=True, text=False)
        store.observe((replace(query, embedder="model-7") for query in served), judge="clicks")

        assert actions(Worker(store).round()) == ["published"]
        assert "clicks" in store.registry.version().note
        assert store.registry.version().embedder == "model-7"  # so that no other model is steered by it

    def test_rewards_that_mean_nothing_are_not_served(self, world, store):
        """Shuffled rewards end in an abstention that says why, in the audit too."""
        store.observe(world.served(range(40), judged=True, values=shuffled(world.rewards)), judge="dice")
        (step,) = Worker(store, scope="task").round()

        assert step.action == "abstained"
        assert store.registry.version() is None
        assert [line.detail for line in store.changes.lines()] == [step.detail]

    def test_only_new_evidence_is_learned_from(self, world, store):
        """A round without news fits nothing, one with too little news says how much is needed."""
        worker = Worker(store, min_new=50)
        store.observe(world.served(range(40), judged=True), judge="j")
        first = actions(worker.round())
        again = worker.round()[0].detail
        store.observe(world.served(range(40, 46), judged=True), judge="j")
        little = worker.round()[-1].detail
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
        assert "learned from 40 queries" in named[0].detail

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

        def forgetting(query):
            if query == "query 3":
                store.forget(tenant="", query_id="q3", by="test")

        judge = Knowing(world, forgetting)
        done = Worker(store, judge, concurrency=1).round()
        Worker(store, judge, concurrency=1).round()  # the deletion has ended the work of the first one
        kept, forgotten = (
            store.judge_queue.answers().get(
                [pair_key(judge.fingerprint, f"query {i}", f"document 0-{j}") for j in world.shown(i)]
            )
            for i in (2, 3)
        )

        assert actions(done)[0] == "standby"
        assert (len(kept), len(forgotten)) == (8, 0)
        assert store.judge_queue.spent().pairs == 6 * 8 + 48
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
        steps = Worker(meddled, scope="task", min_new=8).round()
        decided = store.registry.version().number

        assert "nothing was changed" in steps[-1].detail
        assert decided == (1 if what == "rolled back" else 3)
        assert actions(worker.round())[-1] == "published"

    def test_forgetting_keeps_what_is_no_evidence(self, world, store):
        """Counters and trials go; since when what is served is learned from, and the probe, stay."""
        store.observe(world.served(range(40), judged=True), judge="j")
        Worker(store, scope="task", probe=lambda: Probe.of(model(1))).round()
        kept = {"since": 5.0}
        lease = store.leases.take("", "test", 60)
        memory = Memory("j", rewards=320, learned=320, changes=320, **kept)
        store.states.set("worker", asdict(memory), lease=lease)
        store.forget(tenant="", query_id="q7", by="test")

        assert read_memory(store, "") == Memory(**kept)
        assert [store.states.get(name) for name in ("learned", "trial")] == [None] * 2
        assert store.states.get("probe") is not None

    def test_what_another_release_remembered_is_read(self, store):
        """What it knew and this one does not is left aside, and the other way round."""
        store.states.set("worker", {"rewards": 5, "halted": "why"})

        assert read_memory(store, "") == Memory(rewards=5)

    def test_each_tenant_has_its_own(self, world, store):
        """A tenant is served what it taught; one that taught nothing is served what the shared tenant taught."""
        for number, tenant in enumerate(("", "a", "b")):
            store.observe(world.served(range(40 * number, 40 * number + 40), judged=True, tenant=tenant), judge="j")
        Worker(store, scope="global").round()
        versions = {tenant: store.registry.version(tenant=tenant) for tenant in ("", "a", "b")}
        served = {tenant: store.serving(tenant=tenant).version for tenant in ("", "a", "b", "newcomer")}

        assert [version.rewarded for version in versions.values()] == [40, 40, 40]
        assert served == versions | {"newcomer": versions[""]}

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
            ({"judge": FakeJudge(), "budget": Budget(usd=1)}, "price"),
        ],
    )
    def test_bad_options_are_named(self, store, options, named):
        """An option that makes no sense is refused at once."""
        with pytest.raises(InputError, match=named):
            Worker(store, **options)


class TestBudget:
    """What a day may cost."""

    def test_pairs_are_capped_over_restarts(self, world, store, reranker):
        """Whoever starts again today has what is left of the day, and the examination counts too."""
        host, asked = reranker()
        store.observe(world.served(range(40)))
        details = [Worker(store, http_judge(host), budget=Budget(pairs=100)).round()[0].detail for _ in range(3)]

        assert store.judge_queue.spent().pairs == 100
        assert sum(len(body["documents"]) for _, _, body in asked) == 100
        assert details[0] == "52 pairs scored; budget: 100 pairs of today are spent"
        assert details[1:] == ["0 pairs scored; budget: 100 pairs of today are spent"] * 2

    def test_money_is_capped_over_restarts(self, world, store, reranker):
        """At a cent a request, 40 cents buy 40 requests (24 for the examination), however often it is started."""
        host, asked = reranker()
        store.observe(world.served(range(40)))
        for _ in range(3):
            Worker(store, http_judge(host), budget=Budget(usd=0.4), price=Price(request=0.01)).round()

        assert len(asked) == 40
        assert store.judge_queue.spent().usd == pytest.approx(0.4)

    def test_garbage_that_was_paid_for_counts(self, world, store):
        """A model that bills for grades off its scale uses up its budget, and is left alone then."""
        careful = RubricJudge(lambda _: "Score: 5", model="careful")

        class Garbled:
            scale, fingerprint = careful.scale, "garbled@1"
            documents_per_call, forecast = careful.documents_per_call, careful.forecast

            def score(self, query, documents):
                careful.score(query, documents)
                return [5.0 * (text == answers()[query]) if query in answers() else 99.0 for text in documents]

        store.observe(world.served(range(40)))
        for _ in range(9):
            Worker(store, Garbled(), budget=Budget(usd=0.73), price=Price(request=0.01)).round()

        assert 0.68 < store.judge_queue.spent().usd < 0.7301
