"""The tests that every store must pass, by concern."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Barrier, Thread
from typing import Any, TypeVar

import numpy as np
import pytest

from tttembed_rag.errors import (
    InputError,
    LeaseLost,
    RewardError,
    StoreError,
    StoreUnavailable,
    Superseded,
    TTTEmbedError,
    VectorError,
)
from tttembed_rag.gate.deciding import fit
from tttembed_rag.judges.cache import Paid
from tttembed_rag.judges.contract import PROBE_BAD, PROBE_QUERY
from tttembed_rag.models.fingerprints import pair_key
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.stores import Candidate, Served, Spend, Store, open_store

ResultT = TypeVar("ResultT")

JUDGE = "judge-a"


def eventually(condition: Callable[[], ResultT], *, seconds: float = 30.0) -> ResultT:
    """The result of *condition* as soon as that is true; an AssertionError if it is not within some seconds."""
    ends = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < ends, f"expected within {seconds:g} s what did not come true"
        time.sleep(0.002)
    return result


def traffic(count: int, *, first: int = 0, tenant: str = "", depth: int = 4, texts: bool = True) -> list[Served]:
    """Served queries number *first* on, rewarded by a judge; the same whenever they are asked for.

    Query n was served at second n to *tenant*, with documents of a pool of 20.
    """
    pool = np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32)
    served = []
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        vector = rng.standard_normal(8).astype(np.float32)
        candidates = [
            Candidate(f"d{row}", pool[row], f"document {row} of {tenant}" if texts else None, float(rng.random()))
            for row in rng.choice(20, depth, replace=False).tolist()
        ]
        asked = f"question {number} of {tenant}" if texts else None
        served.append(Served(f"q{number}", vector, candidates, asked, f"t{number % 2}", tenant, float(number), "e"))
    return served


def unrewarded(served: list[Served]) -> list[Served]:
    """The same before a judge has seen them."""
    return [replace(one, candidates=[replace(shown, reward=None) for shown in one.candidates]) for one in served]


def learned(store: Store, tenant: str = "") -> Offsets:
    """What the store's rewards teach, by the plain rule."""
    return fit(store.rewards(JUDGE, tenant=tenant), scope="task", gate=False)


def facts(offsets: Offsets) -> list[Any]:
    """All that an `Offsets` says, to compare."""
    return [
        (key, one.vector.tobytes(), one.alpha, one.n, one.evidence, one.certificate) for key, one in offsets.items()
    ]


class ObservingTests:
    """Served queries and rewards that are written."""

    def test_rewards_come_back_as_they_were_observed(self, store: Store) -> None:
        """Vectors, rewards, tasks and ids survive the way through the database."""
        served = traffic(3)

        store.observe(served, judge=JUDGE)
        found = store.rewards(JUDGE)

        assert [f"q{number}" for number in (0, 2, 1)] == found.query_ids.tolist()
        assert found.tasks.tolist() == ["t0", "t0", "t1"]
        assert found.judge == JUDGE
        for row, one in enumerate([served[0], served[2], served[1]]):
            mine = slice(found.starts[row], found.starts[row + 1])
            shown = {
                (tuple(doc), reward)
                for doc, reward in zip(
                    found.doc_vectors[found.candidates[mine]].tolist(), found.values[mine].tolist(), strict=True
                )
            }
            assert one.vector is not None
            assert one.vector.tolist() == found.query_vectors[row].tolist()
            assert {(tuple(c.vector.tolist()), c.reward) for c in one.candidates if c.vector is not None} == shown

    def test_a_batch_is_written_whole_or_not_at_all(self, store: Store) -> None:
        """One bad vector leaves nothing of its batch behind."""
        batch = [*traffic(3), replace(traffic(1, first=9)[0], vector=np.ones(5))]

        with pytest.raises(VectorError, match="width"):
            store.observe(batch, judge=JUDGE)

        assert store.counts().queries == 0

    def test_a_query_seen_again_is_merged(self, store: Store) -> None:
        """Its candidates are joined, a new verdict replaces the old one, and it counts once."""
        one = traffic(1)[0]
        again = replace(
            one, candidates=[replace(one.candidates[0], reward=1.0), Candidate("new", np.ones(8), None, 0.5)]
        )

        store.observe([one], judge=JUDGE)
        store.observe([again], judge=JUDGE)

        assert (store.counts().queries, store.counts().pairs, store.counts().rewards) == (1, 5, 5)
        assert {1.0, 0.5} <= set(store.rewards(JUDGE).values.tolist())

    def test_documents_are_kept_once(self, store: Store) -> None:
        """However many queries a document was shown for."""
        store.observe(traffic(50), judge=JUDGE)

        assert (store.counts().queries, store.counts().documents, store.counts().pairs) == (50, 20, 200)

    def test_a_pair_that_any_judge_has_answered_waits_no_more(self, store: Store) -> None:
        """However many judges did, and whosever it is."""
        for tenant in ("a", "b"):
            store.observe([replace(one, tenant=tenant) for one in unrewarded(traffic(2))])
        shown = [one.doc_id for one in traffic(1)[0].candidates]
        store.reward("first", {("a", "t0", "q0"): {shown[0]: 0.25, shown[1]: 0.5}})
        store.reward("second", {("a", "t0", "q0"): {shown[1]: 1.0, shown[2]: 0.0}})
        held = [store.counts(tenant) for tenant in (None, "a", "b")]

        assert [(one.pairs, one.rewards, one.waiting) for one in held] == [(16, 4, 13), (8, 4, 5), (8, 0, 8)]

    def test_later_verdicts_find_their_pairs(self, store: Store) -> None:
        """`reward` writes what was observed and leaves out what was not."""
        store.observe(unrewarded(traffic(2)))
        shown = [one.doc_id for one in traffic(1)[0].candidates]

        written = store.reward(
            JUDGE, {("", "t0", "q0"): {shown[0]: 0.25, "absent": 1.0}, ("x", "t0", "q0"): {"d": 1.0}}
        )

        assert written == 1
        assert store.rewards(JUDGE).values.tolist() == [0.25]

    def test_names_are_data(self, store: Store) -> None:
        """Whatever a tenant, task, query, document, judge or embedder is called."""
        names = ["'; DROP TABLE queries; --", 'a"b`c', "%s :x ? $1", "ü\U0001f600 \u202e", "../../x\n"]
        for name in names:
            one = replace(traffic(1)[0], query_id=name, task=name, tenant=name, embedder=name)
            store.observe([replace(one, candidates=[replace(one.candidates[0], doc_id=name)])], judge=name)
        found = [store.rewards(name, tenant=name, embedder=name) for name in names]

        assert [[name] for name in names] == [rewards.query_ids.tolist() for rewards in found]
        assert [[name] for name in names] == [rewards.tasks.tolist() for rewards in found]
        assert sorted(["", *names]) == store.tenants()

    def test_names_no_database_can_hold_are_refused(self, store: Store) -> None:
        """With the name of the argument, and nothing written."""
        for name in ("", "a\0b", "\ud800", "x" * 513, "ü" * 257):
            with pytest.raises(InputError, match="query_id"):
                store.observe([*traffic(1), replace(traffic(1)[0], query_id=name)], judge=JUDGE)

        assert store.counts().queries == 0

    def test_rewards_off_their_scale_are_refused(self, store: Store) -> None:
        """By `observe` as by `reward`; what was there stays."""
        one = traffic(1)[0]
        store.observe([one], judge=JUDGE)
        before = store.rewards(JUDGE).values.tolist()

        for reward in (-0.1, 1.1, float("nan"), float("inf")):
            with pytest.raises(RewardError, match=r"\[0, 1\]"):
                store.observe([replace(one, candidates=[replace(one.candidates[0], reward=reward)])], judge=JUDGE)
            with pytest.raises(RewardError, match=r"\[0, 1\]"):
                store.reward(JUDGE, {("", "t0", "q0"): {one.candidates[0].doc_id: reward}})

        assert store.rewards(JUDGE).values.tolist() == before

    def test_texts_may_hold_what_databases_cannot(self, store: Store) -> None:
        """NUL and lone surrogates of a query are replaced, not refused."""
        store.observe(unrewarded([replace(traffic(1)[0], query="a\0b\ud800c")]))

        assert [one.query for one in store.judge_queue.waiting(JUDGE)] == ["a\ufffdb\ufffdc"]

    def test_what_no_database_can_look_up_is_refused(self, store: Store) -> None:
        """In one line, whoever asks."""
        for ask in (
            lambda: store.judge_queue.waiting(JUDGE, tenant="\ud800"),
            lambda: store.states.get("\ud800"),
            lambda: store.registry.version(10**30),
            lambda: store.observe([replace(traffic(1)[0], at=float("nan"))], judge=JUDGE),
        ):
            with pytest.raises(TTTEmbedError) as refused:
                ask()

            assert not isinstance(refused.value, StoreUnavailable)
            assert len(str(refused.value).splitlines()) == 1


class LearningTests:
    """Rewards that are read, and pairs that wait for a judge."""

    def test_the_last_queries_are_chosen_by_when_they_were_served(self, store: Store) -> None:
        """`last`, `since` and `before` select by time, whatever order queries came in."""
        store.observe(reversed(traffic(10)), judge=JUDGE)

        assert {"q8", "q9"} == set(store.rewards(JUDGE, last=2).query_ids.tolist())
        assert {"q3", "q4"} == set(store.rewards(JUDGE, since=3.0, before=5.0).query_ids.tolist())

    def test_the_order_of_arrival_teaches_nothing(self, store: Store) -> None:
        """The rewards read back are equal, bit for bit, however they were written."""
        store.observe(traffic(12, tenant="a"), judge=JUDGE)
        for one in reversed(traffic(12, tenant="b")):
            store.observe([one], judge=JUDGE)
        a, b = store.rewards(JUDGE, tenant="a"), store.rewards(JUDGE, tenant="b")

        assert a.query_vectors.tobytes() == b.query_vectors.tobytes()
        assert a.doc_vectors.tobytes() == b.doc_vectors.tobytes()
        assert (a.candidates.tolist(), a.values.tolist()) == (b.candidates.tolist(), b.values.tolist())

    def test_embedders_do_not_mix(self, store: Store) -> None:
        """Each has its own vectors and width; the newest is the default."""
        wider = [
            replace(
                one,
                vector=np.ones(12),
                embedder="new",
                at=100.0,
                candidates=[replace(shown, vector=np.ones(12)) for shown in one.candidates],
            )
            for one in traffic(2)
        ]

        store.observe(traffic(5), judge=JUDGE)
        store.observe(wider, judge=JUDGE)

        assert (store.rewards(JUDGE, embedder="e").width, len(store.rewards(JUDGE, embedder="e"))) == (8, 5)
        assert (store.rewards(JUDGE).width, len(store.rewards(JUDGE))) == (12, 2)
        assert (store.embedder(JUDGE), store.embedder("another judge")) == ("new", None)

    def test_the_model_of_most_of_the_last_queries_is_told(self, store: Store) -> None:
        """Of two with as many it is the newer; the newest alone where no number is named."""
        store.observe(traffic(5), judge=JUDGE)
        store.observe([replace(one, embedder="new") for one in traffic(2, first=5)], judge=JUDGE)

        assert [store.embedder(JUDGE, last=last) for last in (1, 3, 4, 5)] == ["new", "new", "new", "e"]
        assert store.embedder(JUDGE, last=5, since=4.0) == "new"
        assert store.embedder(JUDGE, since=9.0) is None

    def test_the_judge_of_most_of_the_last_queries_is_told(self, store: Store) -> None:
        """Whoever said more before, of whom the asker learns; of two with as many it is the newer."""
        store.observe(traffic(6), judge="old")
        store.observe(traffic(2, first=5), judge="new")
        store.observe(traffic(2, first=7, tenant="a"), judge="another tenant's")
        alone = [store.judge(last=last) for last in (1, 2, 3, 4)]
        of_late = store.judge(last=9, since=5.0)
        store.share("a", allowed=True, by="me")

        assert (alone, of_late) == (["new", "new", "new", "old"], "new")
        assert [store.judge(last=2), store.judge(tenant="a", last=9)] == ["another tenant's"] * 2
        assert store.judge(since=9.0) is None

    def test_rewards_are_counted_without_being_read(self, store: Store) -> None:
        """As many as a fit would get of the same queries."""
        store.observe(traffic(5), judge=JUDGE)
        store.observe([replace(one, embedder="new") for one in traffic(2, first=5, depth=3)], judge=JUDGE)

        assert store.budget(JUDGE, embedder="e", last=4, since=2.0) == 3 * 4
        assert store.budget(JUDGE, embedder="e", last=2) == store.rewards(JUDGE, embedder="e", last=2).budget == 2 * 4
        assert [store.budget(JUDGE), store.budget(JUDGE, last=3), store.budget("nobody")] == [26, 10, 0]

    def test_a_document_without_a_vector_waits_for_it(self, store: Store) -> None:
        """It takes part in no fit until its vector is known."""
        one = traffic(1)[0]
        blind = replace(one, candidates=[replace(one.candidates[0], vector=None), *one.candidates[1:]])

        store.observe([blind], judge=JUDGE)
        before = store.rewards(JUDGE).budget
        store.observe([one], judge=JUDGE)

        assert (before, store.rewards(JUDGE).budget) == (3, 4)

    def test_nothing_judged_is_said_in_one_line(self, store: Store) -> None:
        """There is nothing to learn from, and who is meant."""
        store.observe(unrewarded(traffic(1)))

        with pytest.raises(RewardError, match="judge-a"):
            store.rewards(JUDGE)

    # Judging

    def test_what_waits_is_what_was_not_answered(self, store: Store) -> None:
        """Newest queries first, until each pair has a verdict."""
        store.observe(traffic(2), judge="another judge")
        store.observe(unrewarded(traffic(2, first=2)))

        newest = store.judge_queue.waiting(JUDGE, limit=3)
        verdicts = {one.query_id: {document: 0.5 for document, _ in one.candidates} for one in newest}
        written = store.judge_queue.judged(JUDGE, verdicts)

        assert [one.query for one in newest] == ["question 3 of ", "question 2 of ", "question 1 of "]
        assert written == 12
        assert [one.query for one in store.judge_queue.waiting(JUDGE)] == ["question 0 of "]

    def test_new_candidates_of_a_judged_query_wait(self, store: Store) -> None:
        """And only they."""
        store.observe(traffic(1), judge=JUDGE)
        before = store.judge_queue.waiting(JUDGE)

        store.observe([replace(traffic(1)[0], candidates=[Candidate("new", None, "text")])])

        assert before == []
        assert [[text for _, text in one.candidates] for one in store.judge_queue.waiting(JUDGE)] == [["text"]]

    def test_a_text_that_comes_later_makes_its_pairs_wait(self, store: Store) -> None:
        """Also for queries that were not served again."""
        one = unrewarded(traffic(1))[0]
        store.observe([replace(one, candidates=[replace(shown, text=None) for shown in one.candidates])])
        before = store.judge_queue.waiting(JUDGE)

        store.observe([replace(one, query_id="other", candidates=[one.candidates[0]])])

        assert before == []
        assert [len(waiting.candidates) for waiting in store.judge_queue.waiting(JUDGE)] == [1, 1]

    def test_a_declined_pair_does_not_wait(self, store: Store) -> None:
        """A paid answer without a score is an answer."""
        store.observe(unrewarded(traffic(1)))
        (one,) = store.judge_queue.waiting(JUDGE)
        declined = one.candidates[0][1]

        store.judge_queue.answers([one]).put(JUDGE, {pair_key(JUDGE, one.query, declined): Paid(None, 3.0, 0.5)})

        assert len(store.judge_queue.waiting(JUDGE)[0].candidates) == 3
        assert declined not in [text for _, text in store.judge_queue.waiting(JUDGE)[0].candidates]

    def test_tenants_wait_apart(self, store: Store) -> None:
        """What one tenant asked is not shown to the judge of another, nor judged by its ids."""
        store.observe(unrewarded(traffic(1, tenant="a")))
        store.observe(traffic(1, tenant="b"), judge=JUDGE)
        wait = store.judge_queue.tenants(JUDGE)
        (one,) = store.judge_queue.waiting(JUDGE, tenant="a")

        written = store.judge_queue.judged(JUDGE, {one.query_id: {one.candidates[0][0]: 1.0}}, tenant="b")

        assert wait == ["a"]
        assert store.judge_queue.waiting(JUDGE, tenant="b") == []
        assert written == 0

    def test_a_first_answer_stays_and_all_are_paid(self, store: Store) -> None:
        """Two processes that asked for the same pair paid twice, and know one answer."""
        store.observe(unrewarded(traffic(1)))
        (one,) = store.judge_queue.waiting(JUDGE)
        answers, key = store.judge_queue.answers([one]), pair_key(JUDGE, one.query, one.candidates[0][1])

        answers.put(JUDGE, {key: Paid(0.5, 10.0, 0.25)})
        answers.put(JUDGE, {key: Paid(0.75, 10.0, 0.25)})

        assert {key: Paid(0.5, 10.0, 0.25)} == answers.get([key, b"unknown"])
        assert Spend(2, 20.0, 0.5) == store.judge_queue.spent()
        assert Spend() == store.judge_queue.spent(datetime.now(UTC).date() - timedelta(days=2))

    def test_what_is_asked_about_nothing_observed_is_paid_and_not_kept(self, store: Store) -> None:
        """But for the probe of a judge: what is kept can be forgotten with its query."""
        probe, other = (pair_key(JUDGE, *texts) for texts in ((PROBE_QUERY, PROBE_BAD), ("query", "document")))

        store.judge_queue.answers().put(JUDGE, {probe: Paid(0.0, 1.0, 1.0), other: Paid(0.5, 1.0, 1.0)})

        assert {probe: Paid(0.0, 1.0, 1.0)} == store.judge_queue.answers().get([probe, other])
        assert store.judge_queue.spent().pairs == 2


class PublishingTests:
    """Versions of tenants: published, halted, taken back, under a lease."""

    def test_nothing_flows_up_unless_it_is_allowed(self, store: Store) -> None:
        """The shared scope learns from a tenant while that shares, and other tenants never do."""
        store.observe(traffic(2, tenant="a"), judge=JUDGE)
        store.observe(traffic(2, tenant="b"), judge=JUDGE)

        with pytest.raises(RewardError, match="none"):
            store.rewards(JUDGE)
        store.share("a", True, by="owner")
        shared, other = store.rewards(JUDGE), store.rewards(JUDGE, tenant="b")
        store.share("a", False, by="owner")

        assert shared.query_ids.tolist() == ["a:\0q0", "a:\0q1"]
        assert other.query_ids.tolist() == ["q0", "q1"]
        with pytest.raises(RewardError, match="none"):
            store.rewards(JUDGE)

    def test_ids_of_tenants_are_told_apart(self, store: Store) -> None:
        """In the shared scope, whatever its own queries and the tenants are called."""
        one = traffic(1)[0]
        names = [("", "a:q"), ("a", "q"), ("a:", "q"), ("", "a%3A:q"), ("a", ":q")]
        for tenant, name in names:
            store.observe([replace(one, tenant=tenant, query_id=name)], judge=JUDGE)
            if tenant:
                store.share(tenant, True, by="owner")

        found = store.rewards(JUDGE).query_ids.tolist()

        assert len(names) == len(set(found))
        assert {"a:q", "a%3A:q"} <= set(found)

    def test_what_was_learned_before_it_was_no_more_allowed_is_not_published(self, store: Store) -> None:
        """A tenant that ends sharing ends what a worker is learning from it."""
        store.share("a", True, by="owner")
        lease = store.leases.take_tenant("", "a worker", 60.0)
        assert lease is not None

        store.share("a", False, by="owner")

        with pytest.raises(LeaseLost, match="nothing was changed"):
            store.publish(Offsets([], width=8), by="a worker", lease=lease)
        assert store.leases.take_tenant("", "the next", 60.0) is not None

    # Versions

    def test_what_is_published_is_served(self, store: Store) -> None:
        """With the facts it was published with; the generation tells of it."""
        store.observe(traffic(6), judge=JUDGE)
        before = store.serving().generation

        version = store.publish(learned(store), by="me", note="first", embedder="e", probe='{"x": 1}', rewarded=6)
        serving = store.serving()

        assert (version, {"": serving.generation}, None) == (serving.version, store.generations([""]), serving.halted)
        assert before < serving.generation
        assert (
            version.by,
            version.note,
            version.embedder,
            version.probe,
            version.rewarded,
            version.served,
        ) == ("me", "first", "e", '{"x": 1}', 6, 2)
        assert facts(learned(store)) == facts(version.offsets)

    def test_the_way_back_is_walked_step_by_step(self, store: Store) -> None:
        """Rolling back twice goes back twice, then says that nothing is left; a candidate is no step."""
        offsets = Offsets([], width=8)
        first, second = (store.publish(offsets, by="me") for _ in range(2))
        store.publish(offsets, by="me", alias="candidate")
        third = store.promote(by="me")

        assert [second, first] == [store.rollback(by="me"), store.rollback(by="me")]
        with pytest.raises(StoreError, match="previous"):
            store.rollback(by="me")
        assert third == store.rollback(by="me", to=third.number)
        assert [third, second, first] == store.versions()

    def test_the_way_back_is_the_way_that_was_taken(self, store: Store) -> None:
        """What was live before is not what has the next lower number, and what was rolled back is off the way."""
        offsets = Offsets([], width=8)
        first = store.publish(offsets, by="me")
        older = store.publish(offsets, by="me", alias="candidate")
        newer = store.publish(offsets, by="me")
        promoted = store.promote(by="me")
        before = store.registry.version("previous")
        back = store.rollback(by="me")
        last = store.publish(offsets, by="me")

        assert older == promoted
        assert (newer, newer) == (before, back)
        assert [newer, first] == [store.rollback(by="me"), store.rollback(by="me")]
        assert last.number not in store.registry.aliases().values()

    def test_going_to_a_version_keeps_what_was_before_it(self, store: Store) -> None:
        """One behind is gone back to, past those in between; any other goes live on top of what is live."""
        offsets = Offsets([], width=8)
        first, second, third = (store.publish(offsets, by="me") for _ in range(3))

        assert second == store.rollback(by="me", to=second.number)
        assert store.registry.version("previous") == first
        assert third == store.rollback(by="me", to=third.number)
        assert [second, first] == [store.rollback(by="me"), store.rollback(by="me")]
        assert store.registry.aliases() == {"live": first.number}

    def test_what_was_never_live_is_not_gone_back_to(self, store: Store) -> None:
        """A candidate nobody promoted, or a number nobody has: one line says so, and nothing changes."""
        live = store.publish(Offsets([], width=8), by="me")
        candidate = store.publish(Offsets([], width=8), by="me", alias="candidate")

        for number in (candidate.number, 77):
            with pytest.raises(StoreError, match=rf"^rollback: expected a version .* that was live, got {number}$"):
                store.rollback(by="me", to=number)

        assert store.registry.aliases() == {"live": live.number, "candidate": candidate.number}

    def test_who_looked_before_somebody_else_acted_changes_nothing(self, store: Store) -> None:
        """A version is published or taken back in place of the one that was looked at, if that is asked for."""
        offsets = Offsets([], width=8)
        first = store.publish(offsets, by="worker", instead_of=0)
        second = store.publish(offsets, by="operator", instead_of=first.number)

        with pytest.raises(Superseded, match=rf"expected {first.number} .* found {second.number}; nothing was changed"):
            store.publish(offsets, by="worker", instead_of=first.number)
        with pytest.raises(Superseded, match="expected none"):
            store.rollback(by="worker", instead_of=0)

        assert [second, first] == store.versions()
        assert second == store.registry.version()

    def test_a_candidate_is_not_served(self, store: Store) -> None:
        """Until it is promoted; without one there is nothing to promote."""
        candidate = store.publish(Offsets([], width=8), by="me", alias="candidate")

        assert (None, candidate) == (store.registry.version(), store.registry.version("candidate"))
        assert candidate == store.promote(by="me") == store.registry.version()
        with pytest.raises(StoreError, match="candidate"):
            store.promote(by="me")

    def test_a_version_of_another_tenant_cannot_be_reached(self, store: Store) -> None:
        """Neither read nor rolled back to; the shared one is served where a tenant has none."""
        mine = store.publish(Offsets([], width=8), by="me", tenant="a")
        shared = store.publish(Offsets([], width=8), by="me")

        assert (mine, shared) == (store.serving(tenant="a").version, store.serving(tenant="b").version)
        assert None is store.registry.version(mine.number, tenant="b")
        with pytest.raises(StoreError, match=str(mine.number)):
            store.rollback(by="me", tenant="b", to=mine.number)

    def test_a_halt_is_told_and_lifted(self, store: Store) -> None:
        """Of all or of one tenant; readers see it in the generation."""
        generations = [store.serving(tenant="a").generation]
        store.registry.halt(by="me", note="all wrong")
        generations.append(store.serving(tenant="a").generation)
        everywhere = [store.registry.halted(tenant="a"), store.serving(tenant="b").halted]
        store.registry.resume(by="me")
        store.registry.halt(by="me", tenant="a", note="wrong here")
        generations.append(store.serving(tenant="a").generation)

        assert everywhere == ["all wrong", "all wrong"]
        assert (store.serving(tenant="a").halted, store.registry.halted(tenant="b")) == ("wrong here", None)
        assert sorted(set(generations)) == generations

    def test_generations_of_many_are_read_together(self, store: Store) -> None:
        """Each as if it were asked for alone, also of tenants nobody has named; no name at all has none."""
        many = ["", "a", *(f"tenant {number}" for number in range(1500))]
        store.publish(Offsets([], width=8), by="me")
        before = store.generations(many)
        store.registry.halt(by="me", tenant="a")
        after = store.generations([*many, "\0", "x" * 10_000, "\ud800"])

        assert many == list(before) == list(after)
        assert {"a"} == {tenant for tenant in many if before[tenant] != after[tenant]}
        assert [store.serving(tenant=tenant).generation for tenant in many[:3]] == [
            after[tenant] for tenant in many[:3]
        ]

    @pytest.mark.parametrize("tenant", ["a", None])
    def test_a_halt_of_somebody_else_is_yielded_to(self, store: Store, tenant: str | None) -> None:
        """Who is told to yield neither takes over another's halt nor ends it."""
        first = store.registry.halt(by="worker", tenant=tenant, note="first", yielding=True)
        again = store.registry.halt(by="worker", tenant=tenant, note="again", yielding=True)
        store.registry.halt(by="operator", tenant=tenant, note="stop")
        over = store.registry.halt(by="worker", tenant=tenant, note="mine", yielding=True)
        ended = store.registry.resume(by="worker", tenant=tenant, yielding=True)
        held = store.registry.halted(tenant="a")
        store.registry.resume(by="operator", tenant=tenant)

        assert (first, again, over, ended) == (True, True, False, False)
        assert (held, store.registry.halted(tenant="a")) == ("stop", None)
        assert not store.registry.resume(by="worker", tenant=tenant, yielding=True)
        assert [line.action for line in store.audit.lines()] == ["resume", "halt", "halt", "halt"]

    def test_publishing_and_rolling_back_at_once(self, store: Store) -> None:
        """Versions rise, and aliases name versions that exist, whoever was first."""
        offsets, start = Offsets([], width=8), Barrier(3)
        seen: list[list[int]] = [[], []]

        def publish(mine: list[int]) -> None:
            start.wait()
            mine.extend(store.publish(offsets, by="publisher").number for _ in range(8))

        threads = [Thread(target=publish, args=(mine,)) for mine in seen]
        for thread in threads:
            thread.start()
        start.wait()
        while any(thread.is_alive() for thread in threads):
            try:
                store.rollback(by="guard")
            except StoreError as error:
                assert "previous" in str(error)  # noqa: PT017 (nothing published yet is the one good reason)
            assert set(store.registry.aliases().values()) <= {version.number for version in store.versions()}
        for thread in threads:
            thread.join()

        assert [sorted(mine) for mine in seen] == seen
        assert len({*seen[0], *seen[1]}) == 16

    # Leases

    def test_a_lease_is_held_by_one(self, store: Store) -> None:
        """Until it is released or expires."""
        first = store.leases.take("worker", "a", 60.0)
        assert first is not None

        assert None is store.leases.take("worker", "b", 60.0)
        store.leases.release(first)
        second = store.leases.take("worker", "b", 1e-6)
        assert second is not None
        third = store.leases.take("worker", "a", 60.0)
        assert third is not None
        assert first.token < second.token < third.token

    def test_who_lost_a_lease_cannot_publish(self, store: Store) -> None:
        """Nor renew it, nor take it from its new owner by releasing it."""
        lost = store.leases.take("worker", "a", 1e-6)
        assert lost is not None
        held = store.leases.take("worker", "b", 60.0)

        for write in (
            lambda: store.publish(Offsets([], width=8), by="a", lease=lost),
            lambda: store.states.set("drift", "[1]", lease=lost),
            lambda: store.registry.halt(by="a", tenant="", lease=lost),
            lambda: store.registry.resume(by="a", tenant="", lease=lost),
        ):
            with pytest.raises(LeaseLost, match="worker"):
                write()
        store.leases.release(lost)

        assert None is store.leases.renew(lost, 60.0)
        assert (store.versions(), store.states.get("drift"), store.audit.lines()) == ([], None, [])
        assert store.publish(Offsets([], width=8), by="b", lease=held).number == 1


class ForgettingTests:
    """Queries that are forgotten, and what stays on record."""

    @pytest.mark.parametrize("query_id", ["q3", None])
    def test_what_is_forgotten_teaches_nothing(self, store: Store, query_id: str | None) -> None:
        """What is learned afterwards equals, bit for bit, what a store learns that never saw it."""
        kept = [one for one in traffic(8, tenant="a") if query_id not in (None, one.query_id)]
        store.observe(traffic(8, tenant="a"), judge=JUDGE)
        store.observe([replace(one, tenant="never saw it") for one in kept] or traffic(1, tenant="b"), judge=JUDGE)
        store.publish(learned(store, "a"), by="me", tenant="a")

        gone = store.forget(tenant="a", query_id=query_id, by="me")

        assert (8 - len(kept), 1) == (gone.queries, gone.versions)
        assert None is store.serving(tenant="a").version
        if kept:
            assert facts(learned(store, "never saw it")) == facts(learned(store, "a"))
            assert replace(store.counts("never saw it"), bytes=0) == replace(store.counts("a"), bytes=0)
        else:
            assert (
                store.counts("a").queries,
                store.counts("a").documents,
                store.counts("a").pairs,
                store.counts("a").rewards,
            ) == (0, 0, 0, 0)

    def test_forgetting_reaches_the_shared_scope(self, store: Store) -> None:
        """Shared versions go if the tenant ever shared; other tenants keep theirs."""
        store.observe(traffic(4, tenant="a"), judge=JUDGE)
        store.share("a", True, by="owner")
        store.publish(learned(store), by="me")
        store.share("a", False, by="owner")
        other = store.publish(Offsets([], width=8), by="me", tenant="b")

        store.forget(tenant="a", query_id="q1", by="me")

        assert (None, other) == (store.registry.version(), store.registry.version(tenant="b"))

    def test_answers_about_the_forgotten_are_gone(self, store: Store) -> None:
        """Its paid answers too; what was spent stays counted."""
        store.observe(unrewarded(traffic(2)))
        observations = store.judge_queue.waiting(JUDGE)
        keys = [pair_key(JUDGE, one.query, one.candidates[0][1]) for one in observations]
        store.judge_queue.answers(observations).put(JUDGE, {key: Paid(1.0, 1.0, 1.0) for key in keys})
        asked_anew = replace(unrewarded(traffic(2))[1], query="the same in other words")
        store.observe([asked_anew])  # an answer about an earlier text goes as well

        store.forget(tenant="", query_id="q1", by="me")

        assert [keys[1]] == list(store.judge_queue.answers().get(keys))
        assert store.judge_queue.spent().pairs == 2

    @pytest.mark.parametrize("query_id", ["q0", None])
    def test_what_a_judge_says_late_of_the_forgotten_is_not_kept(self, store: Store, query_id: str | None) -> None:
        """Neither answers nor verdicts, though they were asked for before; what they cost is counted."""
        store.observe(unrewarded(traffic(1, tenant="a")))
        (one,) = store.judge_queue.waiting(JUDGE, tenant="a")
        answers, key = store.judge_queue.answers([one]), pair_key(JUDGE, one.query, one.candidates[0][1])
        store.forget(tenant="a", query_id=query_id, by="me")

        answers.put(JUDGE, {key: Paid(1.0, 1.0, 1.0)})
        verdicts = {one.query_id: {one.candidates[0][0]: 1.0}}

        assert store.judge_queue.answers().get([key]) == {}
        assert store.judge_queue.spent().pairs == 1
        assert store.judge_queue.judged(JUDGE, verdicts, tenant="a") == 0

    @pytest.mark.parametrize("query_id", ["q0", None])
    def test_what_was_served_before_it_was_forgotten_does_not_come_late(
        self, store: Store, query_id: str | None
    ) -> None:
        """A queue that is written after it brings nothing back; what is served later, and elsewhere, is written."""
        late = [*traffic(2), *traffic(1, tenant="b")]
        store.forget(tenant="", query_id=query_id, by="me")

        written = store.observe(late, judge=JUDGE)
        kept = [one for one in late if one.tenant or (query_id and one.query_id != query_id)]

        assert written == len(kept)
        shown = {(one.tenant, each.doc_id) for one in kept for each in one.candidates}
        assert (store.counts().queries, store.counts().documents) == (len(kept), len(shown))
        assert store.observe([replace(late[0], at=None)], judge=JUDGE) == 1

    def test_a_query_that_came_without_an_id_is_forgotten_by_its_text(self, store: Store) -> None:
        """Nobody knows the id that was made of it; what of it still waits to be written stays out, too."""
        asked = "what nobody should\0 know"
        late = replace(traffic(1)[0], query_id=store.text_id(asked), query=asked)
        store.observe([late, traffic(2)[1]], judge=JUDGE)

        gone = store.forget(tenant="", query_id=asked, by="me")

        assert (gone.queries, store.observe([late], judge=JUDGE)) == (1, 0)
        assert store.rewards(JUDGE).query_ids.tolist() == ["q1"]

    @pytest.mark.parametrize("query_id", ["q1", None])
    def test_the_audit_tells_nothing_of_what_was_forgotten(self, store: Store, query_id: str | None) -> None:
        """Who did what and when stays; details may name tasks, and go with the versions, also with shared ones."""
        store.observe(traffic(2, tenant="a"), judge=JUDGE)
        store.share("a", True, by="owner")
        for tenant in ("", "a", "b"):
            store.publish(Offsets([], width=8), by="worker", tenant=tenant, note="task:secret")
        before = [(line.at, line.tenant, line.by, line.action) for line in store.audit.lines()]

        store.forget(tenant="a", query_id=query_id, by="me")
        forgotten, *older = store.audit.lines()

        assert before == [(line.at, line.tenant, line.by, line.action) for line in older]
        assert [line.detail for line in older] == ["version 3 is live: task:secret", "", "", ""]
        assert (forgotten.by, forgotten.action) == ("me", "forget")

    def test_what_is_old_expires(self, store: Store) -> None:
        """Queries by when they were last served, and documents with the last of them."""
        store.observe(traffic(5), judge=JUDGE)
        store.observe(unrewarded([replace(traffic(1)[0], at=50.0)]))

        assert store.expire(4.0, by="me") == 3
        assert {"q0", "q4"} == set(store.rewards(JUDGE).query_ids.tolist())
        assert (
            len({shown.doc_id for number in (0, 4) for shown in traffic(5)[number].candidates})
            == store.counts().documents
        )

    def test_what_has_expired_can_be_forgotten(self, store: Store) -> None:
        """A version may have learned from a query that is there no more; without any, an unknown id costs nothing."""
        store.observe(traffic(4), judge=JUDGE)
        store.publish(learned(store), by="me")

        unknown = store.forget(tenant="", query_id="q9", by="me")
        store.expire(2.0, by="me")
        expired = store.forget(tenant="", query_id="q1", by="me")

        assert [(gone.queries, gone.versions) for gone in (unknown, expired)] == [(0, 0), (0, 1)]
        assert None is store.registry.version()

    def test_a_store_without_texts_keeps_none(self, store_url: str) -> None:
        """Also if it is opened as one with texts; ids that are texts become keyed hashes."""
        one = traffic(1)[0]
        telling = replace(
            one, query_id=one.query or "", candidates=[replace(c, doc_id=c.text or "") for c in one.candidates]
        )
        with open_store(store_url, texts=False):
            pass

        with open_store(store_url) as store:
            store.observe([telling], judge=JUDGE)

            assert not store.texts
            assert store.judge_queue.waiting("another judge") == []
            assert [store.text_id(telling.query_id)] == store.rewards(JUDGE).query_ids.tolist()

    def test_without_texts_an_id_that_was_the_text_is_found_again(self, store_url: str) -> None:
        """By later rewards, and by whoever asks to forget it."""
        asked = "my private question"
        one = replace(unrewarded(traffic(1))[0], query_id=asked, query=asked)
        shown = one.candidates[0].doc_id
        with open_store(store_url, texts=False) as store:
            store.observe([one])

            assert store.reward(JUDGE, {("", one.task, asked): {shown: 0.5}}) == 1
            assert store.forget(tenant="", query_id=asked, by="me").queries == 1
            assert store.observe([one]) == 0  # it comes late
            assert store.counts().queries == 0

    # The record

    def test_every_change_leaves_a_line(self, store: Store) -> None:
        """Newest first, with who did it."""
        store.publish(Offsets([], width=8), by="worker", tenant="a", note="why")
        store.registry.halt(by="operator", note="stop")
        store.audit.note("guard", "drift", "0.3", tenant="a")

        assert [(line.by, line.action, line.detail) for line in store.audit.lines()] == [
            ("guard", "drift", "0.3"),
            ("operator", "halt", "stop"),
            ("worker", "publish", "version 1 is live: why"),
        ]
        assert [line.action for line in store.audit.lines(tenant="a")] == [
            "drift",
            "halt",
            "publish",
        ]  # all were halted
        assert [line.action for line in store.audit.lines(tenant="b")] == ["halt"]

    def test_state_is_kept_by_tenant_and_name(self, store: Store) -> None:
        """Until it is deleted; only JSON is taken."""
        store.states.set("drift", '{"mean": 0.5}', tenant="a")
        store.states.set("drift", "[1]", tenant="a")

        assert (store.states.get("drift", tenant="a"), store.states.get("drift")) == ("[1]", None)
        store.states.set("drift", None, tenant="a")
        assert None is store.states.get("drift", tenant="a")
        with pytest.raises(InputError, match="JSON"):
            store.states.set("drift", "not JSON")

    def test_all_of_it_is_there_after_reopening(self, store: Store, store_url: str) -> None:
        """Another process finds what this one was told is written."""
        store.observe(traffic(4), judge=JUDGE)
        version = store.publish(learned(store), by="me")

        with open_store(store_url) as other:
            # A server's size on disk changes by itself.
            assert (replace(store.counts(), bytes=0), version, facts(version.offsets)) == (
                replace(other.counts(), bytes=0),
                other.registry.version(),
                facts(learned(other)),
            )


class StoreSuite(ObservingTests, LearningTests, PublishingTests, ForgettingTests):
    """All tests of a store; a subclass brings the fixture `store_url`."""

    @pytest.fixture
    def store(self, store_url: str) -> Iterator[Store]:
        """An open store without content."""
        with open_store(store_url) as store:
            yield store
