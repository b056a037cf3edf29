"""The worker takes back what fresh rewards speak against, and what another embedding model made worthless."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tttembed_store import Probe, Worker
from tttembed_store.worker.learning import staying

from tests.workers import Meddled, actions, against, before, model, shuffled
from tttembed_rag import fit
from tttembed_rag.errors import StoreUnavailable


class TestWithdrawing:
    """What happens to a live version when evidence turns."""

    @pytest.fixture
    def worker(self, world, store):
        """A worker that has published a version."""
        store.observe(world.served(range(20), judged=True), judge="j")
        worker = Worker(store, scope="task", min_new=8)
        assert actions(worker.round()) == ["published"]
        return worker

    def test_it_stays_where_evidence_is_merely_gone(self, world, store, worker):
        """Rewards that mean nothing any more speak neither for it nor against it."""
        dice = shuffled(world.rewards)
        store.observe(world.served(range(30), judged=True, values=dice), judge="j")
        first = actions(worker.round())
        store.observe(world.served(range(30, 40), judged=True, values=dice), judge="j")

        assert first[-1] == actions(worker.round())[-1] == "kept"
        assert store.registry.version().number == 1

    def test_it_goes_where_the_judge_contradicts_the_retriever(self, world, store, worker):
        """A scale that was turned upside down withdraws what is live at once."""
        store.observe(world.served(range(30), judged=True, values=1 - world.rewards.values), judge="j")

        assert actions(worker.round())[-1] == "withdrawn"
        assert store.registry.version().served == 0

    def test_votes_that_contradict_it_silence_nobody(self, planted):
        """Where sources say the opposite, what is live stays: its trial on fresh queries decides."""
        rewards = planted(40, strength=0.9)
        live, users = fit(rewards), np.array([f"user {row}" for row in range(40)])
        learned = fit(replace(rewards, values=1 - rewards.values, sources=users))

        assert not learned["local:default"].served
        assert staying(learned, live)["local:default"] is live["local:default"]

    def test_one_task_goes_and_another_stays(self, planted):
        """Each offset is decided by its own evidence."""
        rewards = planted(40, strength=0.9, tasks=["a", "b"] * 20)
        live = fit(rewards)
        values = np.where(np.repeat(rewards.tasks == "a", 8), 1 - rewards.values, shuffled(rewards))
        now = staying(fit(replace(rewards, values=values)), live)

        assert (now["local:a"].served, now["local:b"]) == (False, live["local:b"])


class TestRollback:
    """Fresh rewards of live traffic have the last word."""

    def test_what_fresh_rewards_contradict_is_taken_back(self, world, store):
        """A version that lowers what users now want is gone, and base vectors are served."""
        store.observe(world.served(range(40), judged=True), judge="j")
        worker = Worker(store, scope="task", min_new=10_000)
        Worker(store, scope="task").round()
        bad, seen = against(world.rewards), []
        for start in range(40, 120, 20):
            store.observe(world.served(range(start, start + 20), judged=True, values=bad), judge="j")
            seen += actions(worker.round())

        assert seen[:5] == ["looked", "learned nothing", "looked", "rolled back", "learned nothing"]
        assert store.registry.version().served == 0
        assert "contradicted" in store.changes.lines()[0].detail

    def test_what_it_was_learned_from_is_learned_from_no_more(self, world, store):
        """However much there was: only what was served since the version that was taken back counts from then on."""
        store.observe(world.served(range(60), judged=True), judge="j")
        worker, patient = (Worker(store, scope="task", min_new=n) for n in (8, 10_000))
        worker.round()
        bad = against(world.rewards)
        store.observe(world.served(range(60, 100), judged=True, values=bad), judge="j")
        seen = actions(patient.round())
        store.observe(world.served(range(100, 119), judged=True, values=bad), judge="j")
        soon = worker.round()
        store.observe(world.served(range(60, 90), judged=True, values=bad, name="again"), judge="j")
        late = worker.round()

        assert seen[-2:] == ["rolled back", "learned nothing"]
        assert "learned from 59 queries" in soon[-1].detail
        assert "learned from 89 queries" in late[-1].detail

    def test_old_taste_is_forgotten_also_where_the_trial_is_older(self, world, store):
        """A trial goes on over versions; what was served under earlier ones is forgotten with them."""
        worker = Worker(store, scope="task", min_new=8)
        for start in (0, 30):
            store.observe(world.served(range(start, start + 30), judged=True), judge="j")
            worker.round()
        store.observe(world.served(range(60, 119), judged=True, values=against(world.rewards)), judge="j")
        last = worker.round()

        assert last[-2].action == "rolled back"
        assert "learned from 59 queries" in last[-1].detail


class Steered:
    """A worker with a closed model, and a store with 40 rewarded queries that it has learned from.

    Attributes:
        now: Which model it is by now.
    """

    def __init__(self, world, store):
        self.now = 1
        self.store = store
        self.worker = self.with_store(store)
        store.observe(world.served(range(40), judged=True), judge="j")
        self.first = actions(self.worker.round())

    def with_store(self, store):
        """A worker of the same model."""
        return Worker(store, scope="task", probe=lambda: Probe.of(model(self.now), name="closed"))

    def round(self, now=None):
        self.now = now or self.now
        return actions(self.worker.round())


@pytest.fixture
def steered(world, store):
    """One whose first version is live."""
    return Steered(world, store)


class TestProbe:
    """A closed model that silently changes."""

    def test_another_model_halts_until_enough_of_it_is_learned(self, world, store, steered):
        """Base vectors are served from the change on; rewards from before never mix with those after it."""
        changed, halted = steered.round(2), store.serving().halted
        store.observe(world.served(range(40, 44), judged=True, name="new"), judge="j")
        little = steered.round()
        store.observe(world.served(range(44, 80), judged=True, name="new"), judge="j")
        enough = steered.worker.round()

        assert (steered.first, changed, little) == (["published"], ["halted", "learned nothing"], ["learned nothing"])
        assert halted.startswith("another embedding model")
        assert actions(enough)[-2:] == ["published", "resumed"]
        assert "learned from 40 queries" in enough[-2].detail
        assert store.serving().halted is None
        assert store.registry.version().rewarded == 40

    @pytest.mark.parametrize("reason", ["incident", ""])
    def test_a_halt_by_a_person_stays(self, reason, store, steered):
        store.registry.halt(by="anna", tenant="", note=reason)
        for now in (2, 1, 1):
            steered.round(now)

        assert store.serving().halted == reason

    def test_a_person_who_halts_meanwhile_is_not_overruled(self, store, steered):
        """A halt that came between a look of the worker and its own act stays, whichever it is about to do."""
        incident = partial(store.registry.halt, by="anna", tenant="", note="incident")
        acts = {name: before(getattr(store.registry, name), incident) for name in ("halt", "resume")}
        registry = Meddled(store.registry, **acts)
        held = []
        for steered.now in (2, 1):
            steered.with_store(Meddled(store, registry=registry)).round()
            held.append(store.registry.halted())

        assert held == ["incident"] * 2
        assert store.changes.lines()[0].by == "anna"

    def test_what_was_learned_for_another_model_is_halted_however_it_went_live(self, world, store, steered):
        """A rollback to a version of the old model, or a person who resumes it, steers no query of the new one."""
        steered.round(2)
        store.observe(world.served(range(40, 80), judged=True, name="new"), judge="j")
        steered.round()
        learned = store.serving()
        store.registry.rollback(by="anna")
        seen = [steered.round(), steered.round()]
        store.registry.resume(by="anna", tenant="")
        seen.append(steered.round())
        store.registry.rollback(by="anna", to=learned.version.number)

        assert learned.halted is None
        assert [actions[0] for actions in seen] == ["halted", "learned nothing", "halted"]
        assert steered.round()[0] == "resumed"

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

    def test_a_halt_of_all_hides_none_of_the_tenant(self, store, steered):
        """A model that changes while a person halts all is still not served when that is over."""
        store.registry.halt(by="anna", note="incident")
        steered.round(2)
        store.registry.resume(by="anna")

        assert store.registry.halted().startswith("another embedding model")

    def test_who_ends_at_the_change_halts_the_next_time(self, store, steered):
        """A store that goes away as soon as the new model is written down has the halt already."""

        def restarted(name, *arguments, **options):
            store.states.set(name, *arguments, **options)
            if name == "probe":
                raise StoreUnavailable("restarted")

        steered.now = 2
        with pytest.raises(StoreUnavailable):
            steered.with_store(Meddled(store, states=Meddled(store.states, set=restarted))).round()
        steered.with_store(store).round()

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

    def test_a_model_that_hangs_takes_no_more_than_some_threads(self, world, store):
        """It is left behind, and nothing is learned, however many rounds ask it."""
        store.observe(world.served(range(4), judged=True), judge="j")
        answers, asked = threading.Event(), []
        worker = Worker(store, probe=lambda: asked.append(1) or answers.wait(60), judge_seconds=0.05)
        first, *_, last = [worker.round()[-1] for _ in range(12)]
        other = Worker(store, probe=lambda: Probe.of(model(1))).round()
        answers.set()

        assert (first.action, len(asked)) == ("not probed", 8)
        assert "no answer within 0.05 s" in first.detail
        assert "has not answered several calls of before" in last.detail
        assert "not probed" not in actions(other)  # no worker waits for the model of another one
