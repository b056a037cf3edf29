"""The gate: publish what held-out rewards support, abstain with a reason otherwise."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from tttembed_rag.gate.contests import more_needed
from tttembed_rag.gate.crossfit import cross_fitted, folds

from tttembed_rag import InputError, Rewards, fit
from tttembed_rag.fitting import Recipe
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.objectives import OBJECTIVES
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.neighbours import with_neighbours
from tttembed_rag.gate.signal import signal_of
from tttembed_rag.gate.thresholds import GAIN_LEVEL, INTERVAL_LEVEL, RIDGE_STEPS

# A planted direction whose gain on eight queries is a doubtful one.
UNSURE = {"n": 8, "strength": 0.5, "seed": 6}

every_scope = pytest.mark.parametrize("scope", ["global", "task", "query", "auto"])
every_objective = pytest.mark.parametrize("objective", OBJECTIVES)


def shuffled(rewards, seed):
    """The same candidates with their rewards dealt anew: nothing is left to learn."""
    return replace(rewards, values=np.random.default_rng(seed).permutation(rewards.values))


def served(offsets):
    """How many offsets are published."""
    return sum(offset.served for offset in offsets.values())


def assert_consistent(offset):
    """Evidence, verdict and vector of one gated offset tell the same story."""
    evidence = offset.evidence
    if evidence.interval is not None:
        low, high = evidence.interval
        assert low <= evidence.gain <= high
        assert evidence.gain > 0 or evidence.verdict == "abstained"
    assert offset.served == (evidence.verdict == "published") == bool(offset.vector.any()) == (offset.alpha > 0)
    assert (offset.certificate is not None) == offset.served


def following(n=40, *, depth=20, width=16, shift=0.0, seed=0):
    """Rewards that follow each query's own wish: the query itself, bent its own way and by a *shift* of all."""
    rng = np.random.default_rng(seed)
    queries, bends = rng.standard_normal((2, n, width))
    documents = queries[:, None] + rng.standard_normal((n, depth, width))
    rewards = 1 / (1 + np.exp(-np.matvec(documents, queries + bends + shift * np.ones(width))))
    return Rewards.from_arrays(queries, documents, rewards)


class TestPublishing:
    """A shift that all queries share is found and published."""

    @pytest.mark.parametrize("scope", ["global", "task", "auto"])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_a_planted_shift(self, planted, scope, dtype):
        """Every shared offset is published with a positive gain and serves its dose."""
        offsets = fit(planted(32, strength=0.9, tasks=["a", "b"] * 16, dtype=dtype), scope=scope)
        expected = ["global"] if scope == "global" else ["task:a", "task:b"]
        shared = [offset for offset in offsets.values() if offset.scope != "query"]

        assert expected == [offset.key for offset in shared if offset.evidence.verdict == "published"]
        assert all(offset.evidence.gain > 0.02 for offset in shared)
        assert all(offset.vector.dtype == dtype for offset in shared)

    @every_objective
    def test_under_every_objective(self, planted, objective):
        """The gate works on what was learned, however it was learned."""
        offset = fit(planted(20, strength=0.9), scope="global", objective=objective)["global"]

        assert offset.evidence.verdict == "published"

    def test_under_the_paper_s_solver(self, planted):
        """Offsets of 300 Adam steps pass the same gate."""
        rewards = planted(16, strength=0.9)
        exact, adam = (fit(rewards, scope="global", solver=solver)["global"] for solver in ("exact", "adam"))

        assert_allclose(adam.evidence.gain, exact.evidence.gain, atol=0.01)

    def test_private_offsets_of_a_judge_worth_believing(self):
        """Private offsets are published where the rewards follow the retriever's order, and bend it."""
        offsets = fit(following(), scope="query")

        assert (served(offsets), len(offsets)) == (40, 40)
        assert {0.5} == {offset.alpha for offset in offsets.values()}

    def test_a_judge_whose_numbers_are_all_tiny_says_as_much(self):
        """What is learned does not fade with the part of its scale that a judge uses."""
        rewards = following()
        found = [fit(replace(rewards, values=rewards.values * part), scope="query") for part in (0.05, 0.001)]
        temperatures = [offsets.settings["teacher_temperature"] for offsets in found]

        assert_allclose(found[0]["query:7"].vector, found[1]["query:7"].vector, atol=1e-5)
        assert_allclose(temperatures[0] / 0.05, temperatures[1] / 0.001)
        assert fit(rewards, scope="query").settings["teacher_temperature"] == 0.02

    def test_a_judge_of_many_tasks_is_believed_sooner(self):
        """Tasks of four queries that cannot prove their judge alone can where all tasks together do."""
        rewards = following(24, width=8)
        tasks = [str(i % 6) for i in range(24)]
        together = fit(replace(rewards, tasks=np.array(tasks)), scope="query")
        alone = [fit(rewards.take(np.arange(task, 24, 6)), scope="query") for task in range(6)]

        assert [served(offsets) for offsets in alone] == [4, 0, 4, 4, 0, 4]
        assert served(together) == 24

    def test_a_task_with_noisy_rewards_is_not_believed_for_the_others(self):
        """Among tasks whose rewards follow the retriever, one whose rewards mean nothing gets no private offset."""
        rewards = following(24, width=8)
        tasks = np.array([str(i % 6) for i in range(24)])
        noisy = shuffled(rewards, 0)
        values = np.where(np.repeat(tasks == "2", 20), noisy.values, rewards.values)
        offsets = fit(replace(rewards, tasks=tasks, values=values), scope="query")

        assert {"2"} == {offset.task for offset in offsets.values() if not offset.served}

    def test_auto_adds_them_where_every_query_wants_something_else(self):
        """Where no shared offset helps, rewarded queries get a private offset beside their task's."""
        offsets = fit(following())

        assert [offset.scope for offset in offsets.values()] == ["task"] + ["query"] * 40
        assert [offset.served for offset in offsets.values()] == [False] + [True] * 40

    def test_auto_learns_them_on_top_of_the_task_s(self):
        """A rewarded query is served what a private fit, told of neighbours, makes of it where the task moved it."""
        rewards = following(20, shift=2.0)
        x, ids = rewards.query_vectors, rewards.query_ids.tolist()
        offsets = fit(rewards)
        moved = offsets.apply(x)
        widened = replace(with_neighbours(rewards), query_vectors=moved)
        private = fit(widened, scope="query", gate=False, student_temperature=0.1)
        expected = private.apply(moved, query_id=ids)

        assert [offset.scope for offset in offsets.values() if offset.served] == ["task"] + ["query"] * 20
        assert not np.allclose(moved, x)
        assert_allclose(offsets.apply(x, query_id=ids), expected, atol=1e-6)

    @pytest.mark.parametrize("rounding", [0.0, 1e-7, 1e-3])
    def test_a_query_logged_twice_is_one_observation(self, rounding):
        """Repeating every query under new ids, embedded again, makes evidence of random rewards no stronger."""
        rng = np.random.default_rng(1)
        published = 0
        for _ in range(30):
            queries, documents = rng.standard_normal((12, 16)), rng.standard_normal((12, 10, 16))
            thrice = [np.repeat(part, 3, axis=0) for part in (queries, documents, rng.random((12, 10)))]
            again = [part * (1 + rounding * rng.standard_normal(part.shape)) for part in thrice[:2]]
            published += served(fit(Rewards.from_arrays(*again, thrice[2]), scope="task"))

        assert published <= 3

    def test_a_few_equal_gains_are_no_certainty(self):
        """Two queries that gain exactly the same are two observations, not proof."""
        queries = np.array([[1.0, 0.1, 0.0], [1.0, 0.0, 0.1]])
        documents = np.array([[[1.0, 0.0, 0.0], [0.6, 0.8, 0.0]]] * 2)

        assert served(fit(Rewards.from_arrays(queries, documents, [[0.0, 1.0]] * 2), scope="task")) == 0

    def test_a_direction_with_a_gain_beyond_one_standard_error(self, planted):
        """Rewards that are more than noise need no second proof: a gain beyond its own doubt is enough."""
        evidence = fit(planted(8, depth=5, strength=0.9, seed=5), scope="global")["global"].evidence

        assert evidence.verdict == "published"
        assert evidence.reason.endswith("more than one standard error above zero")

    def test_the_interval_is_the_full_search_s(self, planted):
        """What moves the search far may be published on a sure gain, though its interval reaches below zero."""
        evidence = fit(planted(24, strength=0.6), scope="global")["global"].evidence

        assert evidence.verdict == "published"
        assert evidence.interval[0] < 0

    def test_helps_queries_nobody_rewarded(self, planted):
        """A published offset brings better documents to the top for queries it never saw."""
        rewards = planted(80, strength=0.9)
        seen, unseen = rewards.take(np.arange(40)), rewards.take(np.arange(40, 80))
        documents = unseen.doc_vectors[unseen.candidates].reshape(40, 8, -1)
        values = unseen.values.reshape(40, 8)
        top = {}
        for name, vectors in (
            ("raw", unseen.query_vectors),
            ("shifted", fit(seen, scope="global").apply(unseen.query_vectors)),
        ):
            best = np.einsum("nkd,nd->nk", documents, vectors).argmax(axis=1)
            top[name] = values[np.arange(40), best].mean()

        assert top["shifted"] > top["raw"] + 0.05

    def test_the_published_offset_is_learned_from_all_rewards(self, planted):
        """Folds give evidence only; served is the plain rule, told of neighbours, smooth, at the winning ridge."""
        rewards = planted(24, strength=0.9)
        gated = fit(rewards, scope="global")["global"]
        winner = {"gate": False, "student_temperature": 0.1, "ridge": 0.3 * RIDGE_STEPS[0]}
        plain = fit(with_neighbours(rewards), scope="global", **winner)["global"]

        assert "ridge 0.95," in gated.evidence.reason
        assert_array_equal(gated.vector, plain.vector)
        assert (gated.n, gated.alpha) == (24, 24 / 25)


class TestAbstaining:
    """Where rewards support nothing, queries stay as they were."""

    @pytest.mark.parametrize(("scope", "trials"), [("global", 40), ("query", 40), ("auto", 8)])
    def test_shuffled_rewards_are_rarely_published(self, planted, scope, trials):
        """Chance passes in at most a small share of trials: the level is 5 % a race."""
        tasks = ["a", "b"] * 4 if scope == "auto" else None
        published = sum(
            served(fit(shuffled(planted(8, depth=5, width=8, seed=seed, tasks=tasks), seed), scope=scope)) > 0
            for seed in range(trials)
        )

        assert published <= 4

    @pytest.mark.parametrize(
        ("scope", "objective"),
        [(scope, "kd") for scope in ("global", "task", "query", "auto")]
        + [(scope, objective) for scope in ("global", "query") for objective in OBJECTIVES[1:]],
    )
    @pytest.mark.parametrize("value", [0.0, 0.7])
    def test_constant_rewards(self, planted, scope, objective, value):
        """Rewards that are all the same say nothing about any order."""
        rewards = planted(6, depth=5, tasks=["a", "b"] * 3)
        offsets = fit(replace(rewards, values=np.full(30, value)), scope=scope, objective=objective)

        assert len(offsets) > 0
        assert {"abstained"} == {offset.evidence.verdict for offset in offsets.values()}
        assert {None if scope == "query" else 0.0} == {offset.evidence.gain for offset in offsets.values()}

    @every_scope
    def test_inverted_rewards(self, planted, scope):
        """A judge that ranks backwards contradicts the retriever, however consistent it is."""
        rewards = planted(24, depth=10, strength=0.5, tasks=["a", "b"] * 12)
        offsets = fit(replace(rewards, values=1 - rewards.values), scope=scope)

        assert served(offsets) == 0
        assert all("contradict the retriever's order" in offset.evidence.reason for offset in offsets.values())

    @pytest.mark.parametrize("scope", ["global", "task", "auto"])
    def test_one_query_has_no_evidence(self, planted, scope):
        """A single rewarded query cannot be held out from itself, and the reason says so."""
        offset = next(iter(fit(planted(1), scope=scope).values()))
        expected = 1, None, None, "abstained"

        assert expected == (offset.evidence.n, offset.evidence.gain, offset.evidence.interval, offset.evidence.verdict)
        assert "1 rewarded query cannot be held out from itself" in offset.evidence.reason

    @pytest.mark.parametrize(("depth", "verdict"), [(4, "abstained"), (20, "published")])
    def test_one_query_may_prove_its_judge(self, planted, depth, verdict):
        """A private offset needs no held-out query, but rewards that no deal of so many candidates would show."""
        (offset,) = fit(planted(1, depth=depth), scope="query").values()

        assert verdict == offset.evidence.verdict

    @pytest.mark.parametrize(
        ("scope", "objective"), [("global", "kd"), ("auto", "kd"), *(("query", name) for name in OBJECTIVES)]
    )
    def test_one_candidate_has_no_order(self, planted, scope, objective):
        """Queries with a single judged candidate are no evidence, alone or among others."""
        rewards = planted(6, depth=4)
        depths = [1, 4, 1, 4, 4, 1]
        blocks = [rewards.doc_vectors[4 * q : 4 * q + depth] for q, depth in enumerate(depths)]
        values = [rewards.values[4 * q : 4 * q + depth] for q, depth in enumerate(depths)]
        ragged = Rewards.from_arrays(rewards.query_vectors, blocks, values)
        single = ragged.take(np.array([0, 2, 5]))

        assert served(fit(single, scope=scope, objective=objective)) == 0
        for offset in fit(ragged, scope=scope, objective=objective).values():
            assert_consistent(offset)

    @every_scope
    def test_is_inert(self, planted, scope):
        """Where the gate abstained every vector is zero and queries keep their bits."""
        rewards = planted(8, tasks=["a", "b"] * 4, dtype=np.float32)
        offsets = fit(replace(rewards, values=np.full(64, 0.5)), scope=scope)
        x, ids = rewards.query_vectors, rewards.query_ids.tolist()

        assert not any(offset.vector.any() or offset.alpha for offset in offsets.values())
        assert {np.dtype(np.float32)} == {offset.vector.dtype for offset in offsets.values()}
        assert_array_equal(offsets.apply(x, task=rewards.tasks.tolist(), query_id=ids), x, strict=True)

    def test_says_how_many_queries_might_settle_it(self, planted):
        """A gain within the noise comes with the number of further rewarded queries it would need."""
        evidence = fit(planted(8, strength=0.3), scope="global")["global"].evidence

        assert evidence.verdict == "abstained"
        assert evidence.gain > 0
        assert evidence.needed > 0
        assert f"about {evidence.needed} more would settle it" in str(evidence)

    def test_asks_for_as_many_as_bring_the_gain_out_of_doubt(self, planted):
        """With that many more queries of the same spread, and no fewer, the gain would exceed its doubt."""
        rewards = planted(**UNSURE)
        groups = rewards.same_queries
        evidence = fit(rewards, scope="global")["global"].evidence
        recipe = Recipe(ridge=0.3 * RIDGE_STEPS[0], student_temperature=0.1)
        found = cross_fitted(with_neighbours(rewards), rewards.depths, (recipe,), folds(rewards, groups))
        gain = Gain.of(found[0][0], found[1][0], np.full(8, 1 / 8), groups)
        enough, fewer = (
            stats.t.ppf(1 - GAIN_LEVEL, gain.freedom * (8 + more) / 8) * gain.error * np.sqrt(8 / (8 + more))
            for more in (evidence.needed, evidence.needed - 1)
        )

        assert_allclose(evidence.gain, gain.mean)
        assert enough < gain.mean <= fewer

    def test_asks_for_no_more_than_ten_times_as_many(self):
        """A gain that next to nothing is left of is no ground for a number, however many digits it would have."""
        gain = Gain(mean=1e-5, error=0.02, freedom=8.0, moved=0.1)

        assert more_needed(8, gain, GAIN_LEVEL) is None
        assert more_needed(8, replace(gain, mean=0.015), GAIN_LEVEL) in range(1, 81)

    @pytest.mark.parametrize("settled", ["published", "no gain", "one query"])
    def test_asks_for_nothing_where_nothing_is_open(self, planted, settled):
        """Where the question is settled, or there is nothing to go by, no number is made up."""
        rewards = planted(24, strength=0.9)
        if settled == "no gain":
            rewards = replace(rewards, values=np.full(rewards.budget, 0.5))
        if settled == "one query":
            rewards = rewards.take(np.arange(1))
        evidence = fit(rewards, scope="global")["global"].evidence

        assert (settled == "published") == (evidence.verdict == "published")
        assert evidence.needed is None

    def test_a_direction_without_a_sure_gain(self, planted):
        """Rewards that are more than noise are no proof of a gain: it must be more than one standard error."""
        rewards = planted(**UNSURE)
        evidence = fit(rewards, scope="global")["global"].evidence

        assert signal_of(rewards).is_informed()
        assert signal_of(rewards).has_direction(level=INTERVAL_LEVEL)
        assert evidence.gain > 0
        assert evidence.reason.endswith("within one standard error of zero")
        assert evidence.verdict == "abstained"

    def test_scores_that_documents_have_whatever_is_asked(self):
        """They pull all queries in one direction, and hold on queries held out: documents come back. They are noise."""
        published = 0
        for seed in range(20):
            rng = np.random.default_rng(seed)
            documents, queries = rng.standard_normal((60, 16)), rng.standard_normal((40, 16))
            found = np.argsort(-(queries @ documents.T), axis=1)[:, :10]
            rewards = Rewards.from_indexed(queries, documents, found, rng.random(60)[found])
            published += served(fit(rewards)) > 0

        assert published <= 2

    @pytest.mark.parametrize("power", [0.2, 1.0, 5.0])
    def test_a_judge_that_repeats_the_retriever_s_order(self, power):
        """It knows the documents, but teaches nothing: no private offset makes its ranking better than it is."""
        rewards = following()
        places = np.tile(np.arange(20, 0, -1) / 20, 40) ** power
        by_order = np.lexsort((-Grid.of(rewards).base.ravel(), np.repeat(np.arange(40), 20)))
        echo = replace(rewards, candidates=rewards.candidates[by_order], values=places)
        offsets = fit(echo, scope="query")

        assert served(offsets) == 0
        assert all(offset.evidence.reason.endswith("no better than it was") for offset in offsets.values())

    def test_one_task_does_not_wait_for_another(self, planted):
        """A task with noisy rewards abstains beside a task that publishes."""
        rewards = planted(40, strength=0.9, tasks=["good", "noisy"] * 20)
        noisy = shuffled(rewards, 0)
        values = np.where(np.repeat(rewards.tasks == "good", 8), rewards.values, noisy.values)
        offsets = fit(replace(rewards, values=values), scope="task")
        expected = {"task:good": "published", "task:noisy": "abstained"}

        assert expected == {key: offset.evidence.verdict for key, offset in offsets.items()}


class TestEvidence:
    """What stands behind a verdict."""

    @every_scope
    @pytest.mark.parametrize("strength", [0.0, 0.9])
    def test_is_consistent(self, planted, scope, strength):
        """The interval holds the gain, and only what is published is served."""
        offsets = fit(planted(12, strength=strength, tasks=["a", "b"] * 6), scope=scope)

        assert len(offsets) > 0
        for offset in offsets.values():
            assert_consistent(offset)

    @pytest.mark.parametrize(
        ("scope", "expected"),
        [("global", {"global": 9}), ("task", {"task:a": 6, "task:b": 3}), ("auto", {"task:a": 6, "task:b": 3})],
    )
    def test_counts_the_queries_it_was_measured_on(self, planted, scope, expected):
        """Its n is the number of held-out queries, those of the task for a task."""
        offsets = fit(planted(9, tasks=list("aabaabaab")), scope=scope)

        assert expected == {key: o.evidence.n for key, o in offsets.items() if o.scope != "query"}

    @every_scope
    def test_is_deterministic(self, planted, scope):
        """Two fits of the same rewards agree bit for bit, evidence and all."""
        first, second = (fit(planted(16, strength=0.9, tasks=["a", "b"] * 8), scope=scope) for _ in range(2))

        assert list(first) == list(second)
        for key, offset in first.items():
            assert offset.evidence == second[key].evidence
            assert_array_equal(second[key].vector, offset.vector, strict=True)

    @pytest.mark.parametrize("scope", ["global", "auto"])
    def test_does_not_know_the_order_of_queries(self, planted, scope):
        """The same queries in another order have the same verdicts, gains and offsets."""
        rewards = planted(16, strength=0.9, tasks=["a", "b"] * 8)
        offsets = fit(rewards, scope=scope)
        reordered = fit(rewards.take(np.random.default_rng(0).permutation(16)), scope=scope)

        for key, offset in offsets.items():
            assert offset.evidence.verdict == reordered[key].evidence.verdict
            if offset.evidence.gain is not None:
                assert_allclose(reordered[key].evidence.gain, offset.evidence.gain, atol=1e-9)
            assert_allclose(reordered[key].vector, offset.vector, atol=1e-3)

    def test_more_queries_make_it_sharper(self, planted):
        """The interval of the gain narrows as queries are added."""
        widths = []
        for n in (10, 40):
            low, high = fit(planted(n, strength=0.9), scope="global")["global"].evidence.interval
            widths.append(high - low)

        assert widths[1] < widths[0]


class TestAuto:
    """Per task the best supported of none, global and task."""

    def test_the_same_queries_under_many_names_prove_nothing(self):
        """Tasks that share their queries are one observation: random rewards publish no global offset."""
        served = 0
        for seed in range(6):
            rng = np.random.default_rng(seed)
            queries, values = rng.normal(size=(4, 16)), rng.random((4, 10))
            documents = queries[:, None] + rng.normal(size=(4, 10, 16))
            tasks = np.repeat([f"t{t}" for t in range(8)], 4)
            rewards = Rewards.from_arrays(
                *(np.tile(a, (8, *[1] * (a.ndim - 1))) for a in (queries, documents, values)), tasks
            )
            offsets = fit(rewards)
            served += "global" in offsets and offsets["global"].served

        assert served == 0

    def test_one_query_does_not_switch_the_global_offset_off(self, planted):
        """A task with one rewarded query is served what a task without any is served."""
        tasks = [*np.repeat([f"t{t}" for t in range(5)], 12), "alone"]
        offsets = fit(planted(61, strength=0.9, tasks=tasks))

        assert offsets["global"].served
        assert offsets["task:alone"].evidence == offsets["global"].evidence
        assert_array_equal(offsets.find("alone").vector, offsets.find("unknown").vector)

    def test_opposite_tasks_get_each_its_own(self, planted):
        """Tasks that need opposite shifts get them, though a global offset would help neither."""
        rewards = planted(40, signs=[1, -1] * 20, tasks=["up", "down"] * 20)
        offsets = fit(rewards)
        up, down = (offsets[key].vector for key in ("task:up", "task:down"))

        assert fit(rewards, scope="global")["global"].evidence.verdict == "abstained"
        assert [offsets[key].evidence.verdict for key in ("task:up", "task:down")] == ["published", "published"]
        assert up @ down < -0.5 * np.linalg.norm(up) * np.linalg.norm(down)

    def test_pools_tasks_that_are_alike(self, planted):
        """A task with few queries borrows the global offset when that is better supported than its own."""
        rewards = planted(44, strength=0.9, tasks=["large"] * 40 + ["small"] * 4)
        small = fit(rewards)["task:small"]

        assert small.evidence.reason.startswith("the global offset")

    def test_needs_four_tasks_to_serve_unknown_ones(self, planted):
        """A global offset is tried on tasks it did not see, so few tasks have none and an unknown task stays raw."""
        rewards = planted(60, depth=10, strength=1.2, tasks=list("abc") * 20)
        offsets = fit(rewards)
        x = rewards.query_vectors

        assert "global" not in offsets
        assert_array_equal(offsets.apply(x, task="unknown"), x, strict=True)

    def test_serves_unknown_tasks_on_evidence_from_unseen_tasks(self, planted):
        """With tasks enough the global offset is judged task by task, each held out as a whole."""
        offsets = fit(planted(48, depth=10, strength=1.2, tasks=list("abcdef") * 8))
        expected = 6, "published"

        assert expected == (offsets["global"].evidence.n, offsets["global"].evidence.verdict)
        assert offsets["global"] is offsets.find("unknown")

    def test_a_lone_query_of_noise_gets_the_global_offset_alone(self, planted):
        """That other tasks' rewards hold says nothing of its own: no private offset is learned from them."""
        rewards = planted(97, depth=10, strength=1.2, tasks=[*(list("abcdefghijkl") * 8), "lone"])
        values = np.append(rewards.values[:-10], np.random.default_rng(0).random(10))
        offsets = fit(replace(rewards, values=values))

        assert offsets["task:lone"].served
        assert not [key for key, offset in offsets.items() if offset.scope == "query" and offset.task == "lone"]

    def test_needs_the_gate(self, planted):
        """Without evidence there is nothing to choose by."""
        with pytest.raises(InputError, match=r"^gate: expected True with scope='auto' .*, got False$"):
            fit(planted(2), gate=False)

    def test_is_the_default(self, planted):
        """`fit(rewards)` is the gated, automatic choice."""
        rewards = planted(12, strength=0.9)
        chosen, default = fit(rewards, scope="auto", gate=True), fit(rewards)

        assert chosen.settings == default.settings
        assert [str(o.evidence) for o in chosen.values()] == [str(o.evidence) for o in default.values()]


def test_an_offset_that_is_no_optimum_is_withheld():
    """Evidence or not, an offset whose certificate failed is not served, and says so."""
    offsets = fit(following(), scope="query", tolerance=1e-300)

    assert served(offsets) == 0
    assert all("gradient norm" in offset.evidence.reason for offset in offsets.values())
