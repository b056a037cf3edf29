"""The gate: publish what held-out rewards support, abstain with a reason otherwise."""

from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import stdtrit

from tttembed_rag import InputError, Offsets, Rewards, fit
from tttembed_rag.fitting.grid import Grid, Loss
from tttembed_rag.fitting.measures import judged_ndcg
from tttembed_rag.fitting.neighbours import with_neighbours
from tttembed_rag.fitting.objectives import KD, OBJECTIVES, ReverseKL, SoftmaxGRPO
from tttembed_rag.fitting.optima import private_optima
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.scopes import shared_offset
from tttembed_rag.gate.case import Case, gated
from tttembed_rag.gate.fit import SMALL
from tttembed_rag.gate.gains import UNMEASURED, Gain
from tttembed_rag.gate.proposals import Prior, propose_constant, propose_local, task_families
from tttembed_rag.gate.questions import Trial, expect
from tttembed_rag.gate.thresholds import LEVEL, LOOSER, MOST_VOTED, RIDGE_STEP
from tttembed_rag.offsets.codes import ANSWERS, COMPARE, FALLS, MEANS, NOTHING_TO_GAIN, PUBLISHED, UNSOLVED

every_scope = pytest.mark.parametrize("scope", ["global", "task", "local", "query", "auto"])
shared_scopes = pytest.mark.parametrize("scope", ["global", "task", "local", "auto"])
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def shuffled(rewards, seed):
    """The same candidates with their rewards in another order: nothing is left to learn."""
    return replace(rewards, values=np.random.default_rng(seed).permutation(rewards.values))


def served(offsets):
    """How many offsets are published."""
    return sum(offset.served for offset in offsets.values())


def codes(offsets):
    """The verdict codes of all offsets."""
    return {offset.evidence.code for offset in offsets.values()}


def assert_consistent(offset):
    """Evidence, verdict and vector of one gated offset tell the same story."""
    evidence = offset.evidence
    if evidence.interval is not None:
        low, high = evidence.interval
        assert low <= evidence.gain <= high
    moves = bool(offset.vector.any()) or offset.map is not None
    assert offset.served == (evidence.verdict == "published") == moves == (offset.alpha > 0)
    assert (evidence.code == PUBLISHED) == offset.served
    assert (offset.certificate is not None) == offset.served


def following(n=40, *, depth=20, width=16, shift=0.0, seed=0):
    """Rewards that follow each query's own wish: the query itself, bent its own way and by a *shift* of all."""
    rng = np.random.default_rng(seed)
    queries, bends = rng.standard_normal((2, n, width))
    documents = queries[:, None] + rng.standard_normal((n, depth, width))
    rewards = 1 / (1 + np.exp(-np.matvec(documents, queries + bends + shift * np.ones(width))))
    return Rewards.from_arrays(queries, documents, rewards)


class TestPublishing:
    """What held-out queries support is served."""

    @shared_scopes
    @pytest.mark.parametrize(("objective", "gain"), [(KD(), 0.05), (ReverseKL(), 0.05), (SoftmaxGRPO(), 0.005)])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_a_planted_shift(self, planted, scope, objective, gain, dtype):
        """A shift that all queries share is found, whatever the scope, with a positive gain."""
        rewards = planted(32, strength=0.9, tasks=["a", "b"] * 16, dtype=dtype)
        offsets = fit(rewards, scope=scope, recipe=Recipe(objective=objective))
        shared = [offset for offset in offsets.values() if offset.scope != "query" and offset.served]
        expected = {"global": ["global"], "task": ["task:a", "task:b"]}.get(scope, ["local:a", "local:b"])

        assert expected == [offset.key for offset in shared]
        assert all(offset.evidence.gain > gain for offset in shared)
        assert {None} == {offset.evidence.needed for offset in shared}
        assert all(offset.vector.dtype == dtype for offset in shared)

    def test_helps_queries_without_rewards(self, planted):
        """A published offset brings better documents to the top for queries it never saw."""
        rewards = planted(80, strength=0.9)
        seen, unseen = rewards.take(np.arange(40)), rewards.take(np.arange(40, 80))
        documents = unseen.doc_vectors[unseen.candidates].reshape(40, 8, -1)
        values = unseen.values.reshape(40, 8)
        top = {}
        for scope in ("raw", "global", "local"):
            vectors = unseen.query_vectors if scope == "raw" else fit(seen, scope=scope).apply(unseen.query_vectors)
            best = np.einsum("nkd,nd->nk", documents, vectors).argmax(axis=1)
            top[scope] = values[np.arange(40), best].mean()

        assert min(top["global"], top["local"]) > top["raw"] + 0.05

    def test_the_published_offset_is_learned_from_all_rewards(self, planted):
        """Folds give evidence only; served is the plain rule with neighbours, at the gate's temperatures and ridge."""
        rewards = planted(24, strength=0.9)
        offset = fit(rewards, scope="global")["global"]
        recipe = replace(gated(Recipe(), rewards), ridge=RIDGE_STEP * 0.3)
        plain = shared_offset(with_neighbours(rewards), None, recipe)

        assert_array_equal(offset.vector, plain.vector)
        assert (offset.n, offset.alpha) == (24, 24 / 25)

    def test_a_judge_whose_numbers_are_all_tiny_says_as_much(self):
        """What is learned does not fade with the part of its scale that a judge uses."""
        rewards = following()
        large, small = (fit(replace(rewards, values=rewards.values * part), scope="query") for part in (0.05, 0.001))
        temperatures = [offsets.settings["teacher_temperature"] for offsets in (large, small)]

        assert_allclose(large["query:7"].vector, small["query:7"].vector, atol=1e-5)
        assert_allclose(temperatures[0] / 0.05, temperatures[1] / 0.001)
        assert temperatures[0] < 0.05


class TestPrivate:
    """Private offsets of judged queries."""

    def test_of_a_judge_that_is_believed(self):
        offsets = fit(following(), scope="query")

        assert (served(offsets), len(offsets)) == (40, 40)
        assert {0.5} == {offset.alpha for offset in offsets.values()}

    def test_auto_has_none(self):
        """One offset a task is all that is served: no held-out query stands behind a private one."""
        assert [offset.key for offset in fit(following()).values()] == ["local:default"]

    def test_a_judge_of_many_tasks_is_believed_in_each(self):
        """Tasks of four queries that cannot prove their judge alone can where all tasks together do."""
        rewards = following(24, width=8)
        tasks = np.array([str(i % 6) for i in range(24)])
        together = fit(replace(rewards, tasks=tasks), scope="query")
        alone = [fit(rewards.take(np.arange(task, 24, 6)), scope="query") for task in range(6)]

        assert sum(served(offsets) == 0 for offsets in alone) >= 1
        assert served(together) == 24

    @pytest.mark.parametrize("power", [0.2, 1.0, 5.0])
    def test_a_judge_that_repeats_the_retriever_s_order(self, power):
        """It agrees with the retriever, but teaches nothing."""
        rewards = following()
        places = np.tile(np.arange(20, 0, -1) / 20, 40) ** power
        by_order = np.lexsort((-Grid.of(rewards).base.ravel(), np.repeat(np.arange(40), 20)))
        echo = replace(rewards, candidates=rewards.candidates[by_order], values=places)
        offsets = fit(echo, scope="query")

        assert served(offsets) == 0
        assert codes(offsets) == {COMPARE.code}
        assert {f"nothing to gain: {NOTHING_TO_GAIN}"} == {str(offset.evidence) for offset in offsets.values()}


class TestAbstaining:
    """Where rewards support nothing, queries stay as they were."""

    @pytest.mark.parametrize(("scope", "trials"), [("global", 40), ("query", 40), ("local", 40), ("auto", 8)])
    def test_shuffled_rewards_are_hardly_ever_published(self, planted, scope, trials):
        """Rewards without meaning are believed in one of 200 tasks."""
        tasks = ["a", "b"] * 4 if scope == "auto" else None
        published = sum(
            served(fit(shuffled(planted(8, depth=5, width=8, seed=seed, tasks=tasks), seed), scope=scope)) > 0
            for seed in range(trials)
        )

        assert published <= 1

    @every_scope
    @every_objective
    @pytest.mark.parametrize("value", [0.0, 0.7])
    def test_constant_rewards(self, planted, scope, objective, value):
        """They say nothing about any order, the verdict says that, and queries keep their bits."""
        rewards = planted(6, depth=5, tasks=["a", "b"] * 3, dtype=np.float32)
        offsets = fit(replace(rewards, values=np.full(30, value)), scope=scope, recipe=Recipe(objective=objective))
        x, ids = rewards.query_vectors, rewards.query_ids.tolist()

        assert codes(offsets) == {COMPARE.code}
        assert {(None, None)} == {(offset.evidence.gain, offset.evidence.needed) for offset in offsets.values()}
        assert not any(offset.vector.any() or offset.alpha or offset.map for offset in offsets.values())
        assert {np.dtype(np.float32)} == {offset.vector.dtype for offset in offsets.values()}
        assert_array_equal(offsets.apply(x, task=rewards.tasks.tolist(), query_id=ids), x, strict=True)

    @every_scope
    @pytest.mark.parametrize("trusted", [None, True])
    def test_inverted_rewards(self, planted, scope, trusted):
        """A judge that ranks backwards contradicts the retriever, however consistent it is and whoever declares it."""
        rewards = planted(24, depth=10, strength=0.5, tasks=["a", "b"] * 12)
        offsets = fit(replace(rewards, values=1 - rewards.values), scope=scope, trusted=trusted)

        assert (served(offsets), codes(offsets)) == (0, {MEANS.code})
        assert all(offset.evidence.against for offset in offsets.values())

    @shared_scopes
    def test_one_query_has_no_evidence(self, planted, scope):
        """A single rewarded query cannot be held out from itself, and the reason says so."""
        offset = next(iter(fit(planted(1), scope=scope).values()))
        evidence = offset.evidence

        assert (evidence.n, evidence.gain, evidence.interval, evidence.needed) == (1, None, None, None)
        assert (evidence.verdict, evidence.code) == ("abstained", COMPARE.code)
        assert offset.evidence.reason == "one rewarded query cannot be held out from itself"

    @pytest.mark.parametrize(
        ("scope", "objective"),
        [("global", KD()), ("auto", KD()), *(("query", objective) for objective in OBJECTIVES.values())],
    )
    def test_one_candidate_has_no_order(self, planted, scope, objective):
        """Queries with a single judged candidate are no evidence, alone or among others; the verdict says so."""
        rewards = planted(6, depth=4)
        depths = [1, 4, 1, 4, 4, 1]
        blocks = [rewards.doc_vectors[4 * q : 4 * q + depth] for q, depth in enumerate(depths)]
        values = [rewards.values[4 * q : 4 * q + depth] for q, depth in enumerate(depths)]
        ragged = Rewards.from_arrays(rewards.query_vectors, blocks, values)
        single = fit(ragged.take(np.array([0, 2, 5])), scope=scope, recipe=Recipe(objective=objective))

        assert (served(single), codes(single)) == (0, {COMPARE.code})
        for offset in fit(ragged, scope=scope, recipe=Recipe(objective=objective)).values():
            assert_consistent(offset)

    def test_scores_that_documents_have_whatever_is_asked(self):
        """They hold on queries held out, since documents come back: the judge never looked at the query."""
        for seed in range(20):
            rng = np.random.default_rng(seed)
            documents, queries = rng.standard_normal((60, 16)), rng.standard_normal((40, 16))
            lists = np.argsort(-(queries @ documents.T), axis=1)[:, :10]
            offsets = fit(Rewards.from_indexed(queries, documents, lists, rng.random(60)[lists]))

            assert served(offsets) == 0
            assert codes(offsets) == {MEANS.code}

    @pytest.mark.parametrize("scope", ["task", "query"])
    def test_a_task_that_contradicts_abstains_alone(self, planted, scope):
        rewards = planted(120, strength=0.6, tasks=list("abcdef") * 20)
        values = np.where(np.repeat(rewards.tasks == "c", 8), 1 - rewards.values, rewards.values)
        offsets = fit(replace(rewards, values=values), scope=scope).values()

        assert {"c"} == {offset.task for offset in offsets if not offset.served}
        assert {*"abdef"} == {offset.task for offset in offsets if offset.served}

    @pytest.mark.parametrize("rounding", [0.0, 1e-7, 1e-3])
    def test_a_query_logged_again_is_one_observation(self, rounding):
        """Repeating every query under new ids, embedded again, makes evidence of random rewards no stronger."""
        rng = np.random.default_rng(1)
        published = 0
        for _ in range(30):
            queries, documents = rng.standard_normal((12, 16)), rng.standard_normal((12, 10, 16))
            thrice = [np.repeat(part, 3, axis=0) for part in (queries, documents, rng.random((12, 10)))]
            again = [part * (1 + rounding * rng.standard_normal(part.shape)) for part in thrice[:2]]
            published += served(fit(Rewards.from_arrays(*again, thrice[2])))

        assert published <= 1

    @pytest.mark.parametrize(("n", "options"), [(40, {"scope": "query"}), (1, {"trusted": True})])
    def test_an_offset_that_is_no_optimum_is_withheld(self, planted, n, options):
        """Evidence or not, an offset whose certificate failed is not served, and says so."""
        offsets = fit(planted(n, strength=0.9), recipe=Recipe(tolerance=1e-300), **options)

        assert served(offsets) == 0
        assert all("(gradient norm " in offset.evidence.reason for offset in offsets.values())
        assert codes(offsets) == {UNSOLVED.code}

    def test_targets_that_were_not_reached_teach_nothing(self, planted):
        rewards = planted(24, strength=0.9)
        case = Case.of(rewards, gated(Recipe(), rewards))
        optima = private_optima(case.widened, case.recipe)
        spoiled = optima.offsets.copy()
        spoiled[3] = 1e3
        missed = optima._replace(offsets=spoiled, converged=np.arange(24) != 3)

        assert propose_local(case, missed).fall(0.0).mean > 0.5


class TestNeeded:
    """How many more rewarded queries might settle it."""

    def test_is_said_where_a_gain_is_unsure(self, planted):
        """A gain within its error comes with the number of further rewarded queries it would need."""
        evidence = fit(planted(10, depth=5, strength=0.3, seed=1), scope="global")["global"].evidence

        assert (evidence.verdict, evidence.code) == ("abstained", FALLS.code)
        assert evidence.needed > 0
        assert str(evidence).startswith(f"abstained: about {evidence.needed} more queries would settle it; +.")

    def test_with_so_many_and_no_fewer_the_bound_is_above_zero(self):
        """The number is the least that brings the lower bound above zero, and ten times as many at the most."""
        needed = Gain(mean=0.02, error=0.02, freedom=8.0).needed(8)
        fewer, enough = (Gain(0.02, 0.02 / (1 + more / 8) ** 0.5, 8.0 + more) for more in (needed - 1, needed))

        assert enough.below(LEVEL) > 0 >= fewer.below(LEVEL)
        assert Gain(mean=1e-5, error=0.02, freedom=8.0).needed(8) is None


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
        [
            ("global", {"global": 9}),
            ("task", {"task:a": 6, "task:b": 3}),
            ("auto", {"local:a": 6, "local:b": 3}),
        ],
    )
    def test_counts_the_queries_it_was_measured_on(self, planted, scope, expected):
        """Its n is the number of held-out queries, those of the task for a task."""
        offsets = fit(planted(9, tasks=list("aabaabaab")), scope=scope)

        assert expected == {key: o.evidence.n for key, o in offsets.items() if o.scope != "query"}

    def test_queries_without_a_difference_are_left_out_and_counted(self, planted):
        """They stay as they are under any offset: the gain is that of the others, and the line says how many."""
        whole = planted(12)
        alike = np.repeat(np.arange(12) < 4, whole.depths)
        rewards = replace(whole, values=np.where(alike, 0.5, whole.values))

        evidence = fit(rewards, scope="local", trusted=True)["local:default"].evidence

        assert (evidence.n, evidence.left_out) == (8, 4)
        assert evidence.statistics.endswith(". 4 queries whose rewards do not differ are left out.")

    def test_is_measured_on_queries_that_it_was_not_learned_from(self, planted):
        """The fall of the KL loss decides, the change of nDCG@10 is told: both of a constant offset of other folds."""
        rewards = planted(20, strength=0.7)
        case = Case.of(rewards, gated(Recipe(), rewards))
        recipe = replace(case.recipe, ridge=RIDGE_STEP * 0.3, tolerance=LOOSER * case.recipe.tolerance)
        wide, falls, changes = with_neighbours(rewards), np.zeros(20), np.zeros(20)
        for number in range(5):
            rows, others = (np.flatnonzero(which) for which in (case.fold == number, case.fold != number))
            learned = shared_offset(wide.take(others), None, recipe)
            tried = wide.take(rows)
            loss = Loss.of(Grid.of(tried), recipe)
            v = learned.alpha * learned.vector
            unit = tried.queries.unit
            moved = np.sum((unit + v) ** 2, axis=1)
            products = np.matvec(tried.documents.unit[loss.grid.slots], unit + v)
            falls[rows] = loss(np.ones(len(rows)), loss.grid.base).losses - loss(moved, products).losses
            grid = Grid.of(rewards.take(rows))
            judged = np.matvec(rewards.take(rows).documents.unit[grid.slots], unit + v)
            changes[rows] = judged_ndcg(grid, judged) - judged_ndcg(grid, grid.base)

        evidence = fit(rewards, scope="global")["global"].evidence
        error = changes.std(ddof=1) / 20**0.5

        assert_allclose(propose_constant(case, None).fall(0.0).mean, falls.sum() / 21, rtol=1e-4)
        assert_allclose(evidence.gain, changes.mean(), rtol=1e-4)
        assert_allclose(evidence.interval, changes.mean() + error * stdtrit(19, [0.05, 0.95]), rtol=1e-4)

    @every_scope
    def test_is_deterministic(self, planted, scope):
        first, second = (fit(planted(16, strength=0.9, tasks=["a", "b"] * 8), scope=scope) for _ in range(2))

        assert list(first) == list(second)
        for key, offset in first.items():
            assert offset.evidence == second[key].evidence
            assert_array_equal(second[key].vector, offset.vector, strict=True)

    @pytest.mark.parametrize("scope", ["global", "local", "auto"])
    def test_does_not_know_the_order_of_queries(self, planted, scope):
        rewards = planted(16, strength=0.9, tasks=["a", "b"] * 8)
        offsets = fit(rewards, scope=scope)
        reordered = fit(rewards.take(np.random.default_rng(0).permutation(16)), scope=scope)
        x = rewards.query_vectors

        for key, offset in offsets.items():
            assert offset.evidence.verdict == reordered[key].evidence.verdict
            if offset.evidence.gain is not None:
                assert_allclose(reordered[key].evidence.gain, offset.evidence.gain, atol=1e-5)
            assert_allclose(reordered[key].dosed(x), offset.dosed(x), atol=1e-3)


class TestDeclared:
    """A judge that somebody vouches for decides from the first verdict on."""

    @pytest.mark.parametrize(
        ("n", "declared", "trusted", "verdict", "line"),
        [
            *((n, {}, True, "published", "vouched for by trusted=True") for n in (1, 2, 4)),
            *(
                (n, {}, None, "abstained", f"[{code}]")
                for n, code in ((1, COMPARE.code), (2, MEANS.code), (4, MEANS.code))
            ),
            (3, {"trusted": True}, None, "published", "vouched for by trusted=True"),
            (4, {"trusted": True, "declared_by": "Tap"}, None, "published", "vouched for by Tap"),
            (4, {"trusted": True, "declared_by": "Tap"}, True, "published", "vouched for by trusted=True"),
            (3, {"trusted": True}, False, "abstained", f"nobody vouches for the judge [{MEANS.code}]"),
            (40, {}, False, "abstained", f"nobody vouches for the judge [{MEANS.code}]"),
        ],
    )
    def test_few_verdicts_are_served_where_somebody_vouches(self, planted, n, declared, trusted, verdict, line):
        """Whoever calls `fit` may overrule what the rewards say of their judge; with False no data are enough."""
        rewards = replace(planted(n, strength=0.9), **declared)
        evidence = fit(rewards, trusted=trusted)["local:default"].evidence

        assert evidence.verdict == verdict
        assert str(evidence).endswith(line)
        assert (evidence.vouched == "its declaration") is (verdict == "published")

    @pytest.mark.parametrize(
        ("gain", "expected", "proven", "unproven"),
        [
            (Gain(-0.01, 0.005, 60.0), 0.08, "their first ten places get worse", "their first ten places get worse"),
            (Gain(0.005, 0.001, 60.0), 0.08, None, "a gain of +0.006 is to be expected"),
            (Gain(0.03, 0.01, 60.0), 0.02, None, None),
            (Gain(-0.01, 0.02, 3.0), 0.08, None, None),
            (UNMEASURED, 0.02, None, None),
            (UNMEASURED, 0.009, None, "a gain of +0.009 is to be expected, and less than 0.01 is not served unproven"),
        ],
    )
    def test_no_line_contradicts_itself(self, planted, gain, expected, proven, unproven):
        """Below zero for sure is never served, and unproven no gain that is too small to be expected."""
        proposal = propose_constant(Case.of(replace(planted(4), trusted=True), Recipe()))
        trial = replace(Trial.of(proposal, np.zeros(4)), change=gain, expected=expected)

        for is_proven, reason in ((True, proven), (False, unproven)):
            verdict = expect(replace(trial, proven=is_proven))
            assert (reason is None) == (verdict is None)
            assert verdict is None or (reason in verdict.reason and verdict.code == FALLS.code)

    def test_what_does_not_help_is_not_served(self):
        """Where the loss of held-out queries is expected to rise nothing is served, whoever vouches."""
        rng = np.random.default_rng(0)
        rewards = following(30)
        wishes = replace(rewards, values=np.clip(rewards.values + 0.6 * rng.standard_normal(rewards.budget), 0, 1))
        offsets = fit(wishes, trusted=True)

        assert (served(offsets), codes(offsets)) == (0, {FALLS.code})

    def test_votes_beside_it_do_not_silence_it(self, planted):
        """Where sources contradict a declared judge, it speaks alone."""
        rewards = planted(24, strength=0.9)
        votes = replace(rewards, values=1 - rewards.values, sources=np.array([f"user {i}" for i in range(24)]))
        both = Rewards.joined([rewards, votes])
        beside, alone = (fit(mine, trusted=True)["local:default"] for mine in (both, rewards))

        assert (beside.served, beside.evidence.sources) == (True, 0)
        assert_allclose(beside.dosed(rewards.queries.unit), alone.dosed(rewards.queries.unit))


class TestAuto:
    """A local offset for each task, and a global one for tasks whose rewards do not decide."""

    def test_the_same_queries_under_many_names_prove_nothing(self):
        """Tasks that share their queries are one observation: random rewards publish no global offset."""
        published = 0
        for seed in range(6):
            rng = np.random.default_rng(seed)
            queries, values = rng.normal(size=(4, 16)), rng.random((4, 10))
            documents = queries[:, None] + rng.normal(size=(4, 10, 16))
            tasks = np.repeat([f"t{t}" for t in range(8)], 4)
            rewards = Rewards.from_arrays(
                *(np.tile(a, (8, *[1] * (a.ndim - 1))) for a in (queries, documents, values)), tasks
            )
            offsets = fit(rewards)
            published += "global" in offsets and offsets["global"].served

        assert published == 0

    def test_families_of_tasks(self):
        """Tasks are one family where a question links them, directly or through another task."""
        queries = np.eye(8)[[0, 1, 1, 2, 2, 3, 4, 5]]
        documents = np.random.default_rng(0).normal(size=(8, 3, 8))
        rewards = Rewards.from_arrays(queries, documents, np.random.default_rng(1).random((8, 3)), list("aabbccde"))
        families = task_families(rewards)

        assert len({*families[:6].tolist()}) == 1
        assert len({*families.tolist()}) == 3

    def test_one_query_does_not_switch_the_global_offset_off(self, planted):
        """A task with one rewarded query is served what a task without any is served."""
        tasks = [*np.repeat([f"t{t}" for t in range(5)], 12), "alone"]
        offsets = fit(planted(61, strength=0.9, tasks=tasks))

        assert offsets["global"].served
        assert not offsets["local:alone"].served
        assert offsets.find("alone") is offsets.find("unknown") is offsets["global"]

    def test_evidence_against_takes_the_global_offset_away(self, planted):
        """A task whose rewards contradict any offset keeps its base vectors."""
        tasks = np.repeat([f"t{t}" for t in range(6)], 12)
        rewards = planted(72, strength=0.9, tasks=tasks)
        values = np.where(np.repeat(tasks == "t5", 8), 1 - rewards.values, rewards.values)
        offsets = fit(replace(rewards, values=values))

        assert offsets["global"].served
        assert (offsets["local:t5"].evidence.code, offsets["local:t5"].evidence.against) == (MEANS.code, True)
        assert offsets.find("t5") is None

    def test_a_task_learns_around_the_global_offset(self, planted):
        """Far from its own queries a task is served what the global offset serves."""
        rewards = planted(16, strength=0.9)
        served = np.full(rewards.width, 0.1)
        case = Case.of(rewards, gated(Recipe(), rewards))
        optima = private_optima(case.widened, case.recipe)
        around, alone = (propose_local(case, optima, prior) for prior in (Prior(served, 0.9 * served), None))
        evidence = fit(rewards)["local:default"].evidence
        far = -1e3 * rewards.queries.unit.mean(axis=0)

        assert_allclose(around.without, np.broadcast_to(0.9 * served, (16, rewards.width)))
        assert_allclose(around.learn(evidence).dosed(far), served, atol=1e-6)
        assert_allclose(alone.learn(evidence).dosed(far), 0.0, atol=1e-6)

    def test_a_global_offset_that_harms_a_task_is_taken_away(self, planted):
        """It is evidence against it where it raises the held-out loss of the task for sure."""
        rewards = planted(24, strength=0.9)
        case = Case.of(rewards, gated(Recipe(), rewards))
        v = fit(rewards, scope="global")["global"].vector
        optima = private_optima(case.widened, case.recipe)

        assert propose_local(case, optima, Prior(-v, -v)).harmed
        assert not propose_local(case, optima, Prior(v, v)).harmed
        assert not propose_local(case, optima).harmed

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

        assert (offsets["global"].evidence.n, offsets["global"].evidence.verdict) == (6, "published")
        assert offsets["global"] is offsets.find("unknown")

    def test_the_largest_of_the_tasks_that_anybody_makes_are_asked(self, planted):
        """However many there are, a fit takes seconds; a task that a judge rewarded is the application's own."""
        names = [f"junk {row // 3}" for row in range(3 * MOST_VOTED)] + ["real"] * 4 + ["judged"]
        sources = np.array([f"user {row}" for row in range(len(names) - 1)] + [""])
        rewards = replace(planted(len(names), depth=3, width=4, tasks=names), sources=sources)

        offsets = [offset for offset in fit(rewards).values() if offset.task]
        small = [offset for offset in offsets if offset.evidence.reason == SMALL]
        assert (len(offsets), len(small), codes({"": small[0]})) == (MOST_VOTED + 2, 1, {COMPARE.code})
        assert small[0].task.startswith("junk")


def test_every_question_has_a_code_of_its_own():
    """Codes are unique and of one form; every answer can be formatted."""
    numbers = [question.code for question in ANSWERS]

    assert len(set(numbers)) == len(numbers)
    assert all(code.startswith("TTT-G") and code[5:].isdigit() for code in numbers)


class TestServed:
    """The gain is measured where the user's list is made."""

    @pytest.fixture
    def rewards(self, planted):
        """Forty queries with named documents."""
        return planted(40, strength=0.9)

    @staticmethod
    def searching(rewards, weight=1.0):
        """A search over all documents that adds *weight* of the vector's similarity to a fixed order; and its calls."""
        names = []

        def search(vector, name):
            names.append(name)
            near = rewards.documents.unit @ (vector / np.linalg.norm(vector))
            order = np.argsort(-(weight * near - (1 - weight) * np.arange(len(near))), kind="stable")
            return rewards.doc_ids[order].tolist()

        return search, names

    def test_the_gain_is_that_of_the_served_lists(self, rewards):
        """A search over many more documents gains other than the judged candidates alone; each query is asked twice."""
        search, names = self.searching(rewards)
        plain, through = fit(rewards), fit(rewards, served=search)
        assert through["local:default"].evidence.code == PUBLISHED
        assert 0 < through["local:default"].evidence.gain != plain["local:default"].evidence.gain
        assert_array_equal(*(offsets.apply(rewards.query_vectors) for offsets in (plain, through)))
        assert sorted(names) == sorted(2 * rewards.query_ids.tolist())

    @pytest.mark.parametrize(
        ("shown", "reranked", "code", "gain", "reason"),
        [
            (list, False, FALLS.code, 0.0, "the lists of your own search get no better"),
            (
                lambda names: names[:20],
                True,
                FALLS.code,
                0.0,
                "the lists of your own search bring the reranker no more",
            ),
            (list, True, COMPARE.code, None, "all that was judged good: judge deeper than it gives"),
        ],
    )
    def test_lists_that_no_vector_changes_are_left_alone(self, rewards, shown, reranked, code, gain, reason):
        """What the loss says is not enough where fusion or filters decide alone, or give all that there is."""
        search, _ = self.searching(rewards, weight=0.0)
        offsets = fit(rewards, trusted=True, served=lambda *query: shown(search(*query)), reranked=reranked)
        evidence = offsets["local:default"].evidence

        assert (evidence.verdict, evidence.code, evidence.gain) == ("abstained", code, gain)
        assert evidence.reason.endswith(reason)

    def test_lists_of_a_reranker_count_by_what_is_in_them(self, rewards):
        """Their order is the reranker's; without one it is not."""
        search, _ = self.searching(rewards)

        def turned(*query):
            return search(*query)[:3][::-1]

        brought, read = (fit(rewards, served=turned, reranked=yes)["local:default"].evidence for yes in (True, False))
        short = fit(rewards, served=lambda *query: search(*query)[:3], reranked=True)["local:default"].evidence
        assert brought.verdict == "published"
        assert brought.gain == short.gain > 0
        assert brought.gain != read.gain

    def test_a_document_that_is_shown_twice_counts_once(self, rewards):
        """Chunked stores return the same id more than once."""
        search, _ = self.searching(rewards)
        once, twice = (
            fit(rewards, served=lambda *query, times=times: np.repeat(search(*query), times).tolist())
            for times in (1, 2)
        )
        assert once["local:default"].evidence.gain == twice["local:default"].evidence.gain


OTHER = Offsets([], width=16, settings={"embedder": "other"})
NO_LIST = "your search: expected a list of ids of documents, got"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"rewards": np.zeros((2, 3))}, r"rewards: expected Rewards \(see Rewards.from_texts\), got ndarray$"),
        ({"scope": "user"}, "scope: expected one of auto, global, task, local, query, got 'user'$"),
        ({"recipe": "exact"}, "recipe: expected a Recipe, got str$"),
        ({"recipe": None}, "recipe: expected a Recipe, got NoneType$"),
        ({"gate": "no"}, "gate: expected True or False, got 'no'$"),
        ({"trusted": "no"}, "trusted: expected True or False, got 'no'$"),
        # Without a gate nobody asks who vouches, and without evidence there is nothing to choose by.
        (
            {"gate": False, "scope": "task", "trusted": True},
            "trusted: expected gate=True, which asks who vouches, got True with",
        ),
        ({"gate": False, "scope": "auto"}, "gate: expected True with scope='auto' .*, got False$"),
        ({"audit": {("q", "d"): 1.5}}, r"audit: expected labels in \[0, 1\], got 1.5 for \('q', 'd'\)$"),
        ({"audit": [1]}, "audit: expected labels by query id and document id, got list$"),
        ({"audit": {"q": 1.0}}, "audit: expected pairs of a query id and a document id, got 'q'$"),
        ({"audit": {("q", "d"): "good"}}, r"audit: expected labels in \[0, 1\], got 'good' for \('q', 'd'\)$"),
        ({"start": {}}, "start: expected Offsets"),
        ({"start": Offsets([], width=16), "scope": "task"}, "start: .*got another scope, or gate=False"),
        (
            {"start": Offsets([], width=16), "scope": "local", "gate": False},
            "start: .*got another scope, or gate=False",
        ),
        ({"start": Offsets([], width=3)}, "start: expected offsets of the same embedding model, width"),
        ({"start": OTHER}, ".*other"),
        ({"served": lambda *_: "d1"}, f"{NO_LIST} 'd1'"),
        ({"served": lambda *_: None}, f"{NO_LIST} None"),
        ({"served": lambda *_: [1]}, NO_LIST),
        ({"served": lambda *_: [{"id": "d1"}]}, NO_LIST),
        ({"served": lambda *_: ["elsewhere"]}, "your search: expected ids such as '.*', got 'elsewhere' and others"),
        ({"served": lambda *_: 1 // 0}, f"{NO_LIST} ZeroDivisionError"),
        ({"served": lambda *_: (str(1 // 0) for _ in "a")}, f"{NO_LIST} ZeroDivisionError"),
        ({"served": lambda *_: repeat("d1")}, f"{NO_LIST} more than 10000"),
        ({"served": "search"}, "served: expected a function, and gate=True, which asks it, got 'search', gate=True"),
        ({"served": list, "gate": False, "scope": "task"}, "served: expected a function, and gate=True"),
        ({"reranked": True}, "reranked: expected served=, whose lists are reranked, got none"),
        ({"served": list, "reranked": "yes"}, "reranked: expected True or False, got 'yes'"),
    ],
)
def test_what_fit_does_not_take_is_refused_in_one_line(planted, options, line):
    rewards = replace(planted(40, strength=0.9), embedder="mine")
    with pytest.raises(InputError, match=f"^{line}"):
        fit(**{"rewards": rewards} | options)
