"""Whose rewards a worker learns from, which versions they speak for, and when there are enough new ones."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import event
from tttembed_store import Candidate, Served, Worker

from tests.workers import against, shuffled
from tttembed_rag import Evidence, Offset, Offsets, fit

pytestmark = pytest.mark.slow

DEPTH = 8


class Traffic:
    """Queries that are served one second after the other, with the rewards of somebody.

    Args:
        rewards: Queries with `DEPTH` candidates each; whoever asks for more of them than there are begins anew.
    """

    def __init__(self, rewards):
        self.rewards, self.served, self.began = rewards, 0, time.time()
        self.says = {"right": rewards.values, "against": against(rewards, DEPTH), "anything": shuffled(rewards)}

    def next(self, count, embedder="A", says="right"):
        for number in range(self.served, self.served + count):
            row = number % len(self.rewards)
            shown = range(DEPTH * row, DEPTH * (row + 1))
            candidates = [Candidate(f"d{j}", self.rewards.doc_vectors[j], "", float(self.says[says][j])) for j in shown]
            at = self.began + number
            yield Served(f"q{number}", self.rewards.query_vectors[row], candidates, at=at, embedder=embedder)
        self.served += count


@pytest.fixture
def traffic(planted):
    """Queries that all lack one direction, which the right rewards know."""
    return Traffic(planted(120, strength=0.9, dtype=np.float32))


def steps(worker):
    """What a round did, action by action, with what it said."""
    return [(step.action, step.detail) for step in worker.round()]


def actions(worker):
    """What a round did."""
    return [action for action, _ in steps(worker)]


class TestWhoseRewards:
    """The judge and the embedding model of most of the last queries, where none is named."""

    def test_a_new_judge_is_heard_at_once(self, traffic, store):
        """However much the one before it has said: the new one's rewards are tried on what is live and learned from."""
        worker = Worker(store, scope="task")
        store.observe(traffic.next(120), judge="reranker-1")
        first = actions(worker)
        store.observe(traffic.next(60, says="against"), judge="reranker-2")
        (looked, trial), (taken, _), *_, (_, learned) = steps(worker)

        assert (first, looked, taken) == (["published"], "looked", "rolled back")
        assert "on the last 60 queries that came after the version they test" in trial
        assert "learned from 60 queries, 480 rewards of reranker-2" in learned

    def test_a_trial_begins_anew_with_the_judge(self, traffic, store):
        """What the old judge's rewards said for a version does not outvote what the new one's say against it."""
        store.observe(traffic.next(40), judge="reranker-1")
        Worker(store, scope="task").round()
        worker = Worker(store, scope="task", min_new=10**6)
        store.observe(traffic.next(110), judge="reranker-1")
        before = actions(worker)
        store.observe(traffic.next(60, says="against"), judge="reranker-2")
        after = steps(worker)

        assert before == ["looked", "learned nothing"]
        assert "on the last 60 queries that came after the version they test" in after[0][1]
        assert after[1][0] == "rolled back"

    def test_old_merits_do_not_hide_that_taste_turned(self, traffic, store):
        """Only the last two hundred queries are looked at, however many spoke for the version before."""
        store.observe(traffic.next(40), judge="j")
        Worker(store, scope="task").round()
        worker = Worker(store, scope="task", min_new=10**6)
        store.observe(traffic.next(400), judge="j")
        before = actions(worker)
        store.observe(traffic.next(150, says="against"), judge="j")

        assert (before, actions(worker)) == (
            ["looked", "learned nothing"],
            ["looked", "rolled back", "learned nothing"],
        )

    def test_a_canary_changes_nothing(self, traffic, store):
        """Another model on a few queries, be they the newest, is neither learned from nor heard about the live one."""
        worker, seen = Worker(store, scope="task", min_new=8), []
        store.observe(traffic.next(60), judge="j")
        for _ in range(3):
            seen += actions(worker)
            store.observe(traffic.next(25), judge="j")
            store.observe(traffic.next(4, embedder="B", says="anything"), judge="j")
        seen += actions(worker)

        assert set(seen) == {"published", "looked"}
        assert [version.embedder for version in store.registry.versions()] == ["A"] * seen.count("published")

    @pytest.mark.parametrize("before", [60, 240])
    def test_another_model_on_most_queries_is_learned_from(self, before, traffic, store):
        """However many there are of the one before."""
        worker = Worker(store, scope="task")
        store.observe(traffic.next(before), judge="j")
        worker.round()
        store.observe(traffic.next(60, embedder="B"), judge="j")

        assert actions(worker) == ["published"]
        assert store.registry.version().embedder == "B"
        assert "learned from 60 queries" in store.registry.version().note

    def test_rewards_of_another_model_withdraw_nothing(self, traffic, store):
        """They support no version of their own, and say nothing of the live one, however often they are asked."""
        worker, seen = Worker(store, scope="task", min_new=8), []
        store.observe(traffic.next(40), judge="j")
        worker.round()
        for _ in range(3):
            store.observe(traffic.next(60, embedder="B", says="anything"), judge="j")
            seen += actions(worker)

        assert seen == ["abstained"] * 3
        assert store.registry.version().number == 1

    def test_a_version_is_guarded_by_its_own_model(self, traffic, store):
        """Also where most queries are another one's by now."""
        store.observe(traffic.next(40), judge="j")
        Worker(store, scope="task").round()
        store.observe(traffic.next(60, says="against"), judge="j")
        store.observe(traffic.next(120, embedder="B"), judge="j")

        assert actions(Worker(store, scope="task", min_new=10**6)) == ["looked", "rolled back", "learned nothing"]
        assert store.registry.version().served == 0

    @pytest.mark.parametrize(("of", "back"), [("A", True), ("", True), ("B", False)])
    def test_no_way_back_leads_to_another_model(self, of, back, traffic, store):
        """A contradicted version gives way to the good one before it if that is of its model, or of an unknown one."""
        store.observe(traffic.next(40), judge="j")
        Worker(store, scope="task").round()
        good = store.registry.version().offsets
        bad = type(good)([replace(offset, vector=-offset.vector) for offset in good.values()], width=good.width)
        before = store.registry.publish(good, by="somebody", embedder=of)
        store.registry.publish(bad, by="somebody", embedder="A")
        worker, seen = Worker(store, scope="task", min_new=10**6), []
        for _ in range(4):
            store.observe(traffic.next(30), judge="j")
            seen += actions(worker)

        assert "rolled back" in seen
        assert (store.registry.version().number == before.number, store.registry.version().served > 0) == (back, back)


class TestWhenToLearn:
    """Enough must be new, and what is asked stays within reach."""

    def test_corrected_rewards_are_learned(self, traffic, store):
        """As many as before, and all of them others: they are as new as any."""
        store.observe(traffic.next(60, says="against"), judge="j")
        wrong = Traffic(traffic.rewards)
        worker = Worker(store, scope="task")
        worker.round()
        store.observe(wrong.next(60, says="right"), judge="j")
        seen = steps(worker)
        again = steps(worker)

        assert seen[-1][0] in ("published", "kept", "abstained")
        assert "60 queries, 480 rewards" in seen[-1][1]
        assert again == [("learned nothing", "nothing is new")]

    def test_the_same_rewards_again_are_nothing_new(self, traffic, store):
        """Queries that are asked every day, and judged alike, are learned from once."""
        store.observe(traffic.next(60), judge="j")
        worker = Worker(store, scope="task")
        worker.round()
        store.observe(Traffic(traffic.rewards).next(60), judge="j")

        assert steps(worker) == [("learned nothing", "nothing is new")]

    def test_expiry_brings_nothing_new(self, traffic, store):
        """Whenever old queries go, what is live stays as it is."""
        worker, seen = Worker(store, scope="task"), []
        store.observe(traffic.next(60), judge="j")
        worker.round()
        for seconds in (2, 4, 6):
            store.expire(traffic.began + seconds, by="cron")
            seen += steps(worker)

        assert [detail.partition(",")[0] for _, detail in seen] == ["nothing is new"] * 3
        assert len(store.registry.versions()) == 1

    def test_what_is_new_stays_new_when_the_old_expires(self, traffic, store):
        """Where as much goes as comes, something is learned again all the same."""
        worker = Worker(store, scope="task")
        store.observe(traffic.next(60), judge="j")
        seen = actions(worker)
        for _ in range(2):
            store.observe(traffic.next(4), judge="j")
            seen += actions(worker)
            store.expire(traffic.began + traffic.served - 60, by="cron")
            seen += actions(worker)

        assert seen == ["published", "learned nothing", "learned nothing", "published", "learned nothing"]

    def test_what_has_expired_is_not_new(self, traffic, store):
        """Where all that was learned from is gone too, of what is new only what is left counts."""
        worker = Worker(store, scope="task", min_new=60)
        store.observe(traffic.next(60), judge="j")
        first = actions(worker)
        store.observe(traffic.next(10), judge="j")
        store.expire(traffic.began + 65, by="cron")

        assert (first, steps(worker)[-1]) == (["published"], ("learned nothing", "40 rewards are new, 60 are needed"))

    def test_new_rewards_are_a_share_of_the_window(self, traffic, store):
        """However much is known from before it: no more counts than is learned from."""
        worker = Worker(store, scope="task", last=30, min_new=8)
        store.observe(traffic.next(400), judge="j")
        worker.round()
        store.observe(traffic.next(3), judge="j")

        assert "learned from 30 queries" in steps(worker)[-1][1]

    @pytest.mark.parametrize(("live", "read"), [(False, False), (True, True)])
    def test_vectors_are_read_only_for_a_fit_or_a_trial(self, live, read, traffic, store):
        """Before enough is new, where nothing is live that they could speak against, counting is all."""
        store.observe(traffic.next(60, says="right" if live else "anything"), judge="j")
        worker, asked = Worker(store, scope="task", min_new=200), []
        first = actions(worker)
        store.observe(traffic.next(2), judge="j")
        event.listen(
            store._database.engine, "before_cursor_execute", lambda _, __, statement, *___: asked.append(statement)
        )

        assert first == ["published" if live else "abstained"]
        assert steps(worker) == [("learned nothing", "16 rewards are new, 200 are needed")]
        assert any("query_vectors.vector" in statement for statement in asked) is read


class TestStart:
    """What was served before the first verdict."""

    def test_it_is_learned_around_and_stays_where_nothing_is_learned(self, traffic, store):
        """Rewards that mean nothing leave what a worker was given; right ones refine it."""
        evidence = Evidence(0, None, None, "ungated", "language means")
        vector = 0.3 * fit(traffic.rewards, scope="global")["global"].vector
        start = Offsets([Offset("task", vector, 1.0, 0, evidence, task="default")], width=len(vector))
        worker = Worker(store, start=start)
        store.observe(traffic.next(40, says="anything"), judge="guesses")
        worker.round()
        kept = store.serving().version.offsets["local:default"]
        store.observe(traffic.next(80), judge="reranker")
        worker.round()
        learned = store.serving().version.offsets["local:default"]

        assert "language means" in kept.evidence.reason
        assert kept.evidence.details.startswith("kept: ")
        np.testing.assert_allclose(kept.vector, vector)
        assert "around what is served" in learned.evidence.details
