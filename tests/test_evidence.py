"""Evidence: what deals of the rewards show, and the held-out gain with its interval."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import stdtrit
from tttembed_rag.gate.crossfit import cross_fitted, folds

from tttembed_rag import Rewards
from tttembed_rag.fitting import Recipe
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.scopes import shared_offset
from tttembed_rag.gate.gains import Gain, displaced, judged_ndcg
from tttembed_rag.gate.neighbours import with_neighbours
from tttembed_rag.gate.signal import Signal, signal_of
from tttembed_rag.gate.thresholds import DEALS, SURFACED


def dealt(rewards, seed):
    """The same rewards, dealt anew within each query."""
    rng = np.random.default_rng(seed)
    values = [rng.permutation(part) for part in np.split(rewards.values, rewards.starts[1:-1])]
    return replace(rewards, values=np.concatenate(values))


class TestSignal:
    """Where rewards stand among deals of themselves."""

    def test_finds_a_common_direction(self, planted):
        """Queries that all lack one direction pull together."""
        assert signal_of(planted(32, strength=0.9)).has_direction()

    def test_opposite_tasks_pull_apart(self, planted):
        """Two tasks that need opposite shifts have no direction in common, though each agrees with itself."""
        rewards = planted(40, signs=[1, -1] * 20, strength=0.9, tasks=["up", "down"] * 20)
        up = rewards.take(np.flatnonzero(rewards.tasks == "up"))

        assert not signal_of(rewards).has_direction()
        assert signal_of(up).has_direction()

    @pytest.mark.slow
    def test_is_rarely_seen_in_dealt_rewards(self, some_rewards):
        """Rewards without meaning answer yes in about one of 200 trials, and are backwards in about one of 20."""
        found = [signal_of(dealt(some_rewards(6, depths=5, seed=seed), seed)) for seed in range(300)]
        yes = [[one.has_direction(), one.is_informed(), one.is_backwards] for one in found]

        assert (np.sum(yes, axis=0) <= [6, 6, 25]).all()

    def test_is_spread_evenly_under_dealt_rewards(self, some_rewards):
        """The rank of what was observed among its deals is uniform when rewards mean nothing."""
        ranks = [signal_of(some_rewards(6, depths=5, seed=seed)).common for seed in range(200)]

        assert abs(np.mean(ranks) / DEALS - 0.5) < 0.07

    def test_knows_agreement_from_contradiction(self, planted):
        """Rewards in the retriever's order agree, the same rewards upside down are backwards."""
        rewards = planted(12, strength=0.2)
        upside_down = replace(rewards, values=1 - rewards.values)

        assert (signal_of(rewards).is_informed(), signal_of(rewards).is_backwards) == (True, False)
        assert (signal_of(upside_down).is_informed(), signal_of(upside_down).is_backwards) == (False, True)

    def test_knows_a_judge_that_reads_the_documents(self):
        """Rewards that do not follow the retriever, but are alike for like documents, come of reading them."""
        rng = np.random.default_rng(0)
        queries, topics = rng.standard_normal((2, 24, 16))
        differences = rng.standard_normal((24, 10, 16))
        differences[:, ::2] = 0.8 * topics[:, None] + 0.6 * differences[:, ::2]
        documents = queries[:, None] + differences
        read = np.tile([1.0, 0.0], (24, 5))
        unread = rng.permuted(read, axis=1)
        found, noise = (signal_of(Rewards.from_arrays(queries, documents, values)) for values in (read, unread))

        assert (found.is_informed(), found.has_direction()) == (True, False)
        assert (noise.is_informed(), noise.has_direction()) == (False, False)

    def test_of_constant_rewards_is_silent(self, planted):
        """Rewards that are all the same tie with every deal."""
        rewards = planted(6)
        found = signal_of(replace(rewards, values=np.full(rewards.budget, 0.3)))

        assert Signal(DEALS, DEALS, DEALS, DEALS) == found

    def test_does_not_know_the_order_of_queries(self, planted):
        """The same queries in another order are dealt alike."""
        rewards = planted(16, tasks=["a", "b"] * 8)
        found, again = signal_of(rewards), signal_of(rewards.take(np.random.default_rng(0).permutation(16)))

        assert found == again

    def test_takes_a_query_logged_twice_once(self, some_rewards):
        """A query does not agree with itself: two copies of one query have no common direction."""
        rewards = some_rewards(1, depths=12)
        twice = Rewards.from_arrays(
            np.repeat(rewards.query_vectors, 2, axis=0), [rewards.doc_vectors] * 2, [rewards.values] * 2
        )

        assert signal_of(twice).common == DEALS

    @pytest.mark.parametrize("how", ["in another order", "with other candidates"])
    def test_a_query_logged_again_and_again_is_no_knowledge(self, how):
        """A verdict per document repeats with it: copies of a query agree on noise, and that is told."""
        informed = 0
        for seed in range(60):
            rng = np.random.default_rng(seed)
            queries = rng.standard_normal((4, 8))
            documents = queries[:, None] + rng.standard_normal((4, 10, 8))
            verdicts = rng.random((4, 10))
            kept = 10 if how == "in another order" else 7
            shown = [rng.permutation(10)[:kept] for _ in range(32)]
            rewards = Rewards.from_arrays(
                np.tile(queries, (8, 1)),
                [documents[i % 4][some] for i, some in enumerate(shown)],
                [verdicts[i % 4][some] for i, some in enumerate(shown)],
            )
            informed += signal_of(rewards).is_informed()

        assert informed <= 2

    def test_a_text_under_two_ids_is_no_knowledge(self):
        """Equal documents of a query are judged alike by any judge."""
        informed = 0
        for seed in range(60):
            rng = np.random.default_rng(seed)
            queries = rng.standard_normal((12, 8))
            documents = np.repeat(queries[:, None] + rng.standard_normal((12, 5, 8)), 2, axis=1)
            verdicts = np.repeat(rng.random((12, 5)), 2, axis=1)
            informed += signal_of(Rewards.from_arrays(queries, documents, verdicts)).is_informed()

        assert informed <= 2


class TestGain:
    """A mean gain and its interval."""

    @pytest.mark.parametrize("n", [8, 40])
    def test_interval_holds_the_truth_nine_times_in_ten(self, n):
        """Over many samples the 90 % interval holds the mean they were drawn with."""
        rng = np.random.default_rng(0)
        held = []
        for _ in range(1000):
            gain = Gain.of(rng.normal(0.02, 0.1, n), np.zeros(n), np.full(n, 1 / n), np.arange(n))
            held.append(gain.interval[0] <= 0.02 <= gain.interval[1])

        assert 0.85 <= np.mean(held) <= 0.95

    def test_shrinks_by_one_trial_of_zero(self):
        """Four trials that gain 0.5 count as five, one of them zero, and are no certainty."""
        gain = Gain.of(np.full(4, 0.5), np.zeros(4), np.full(4, 0.25), np.arange(4))

        assert_allclose(0.4, gain.mean)
        assert gain.error > 0.05

    def test_repeats_are_no_evidence(self):
        """A group of equal trials is one observation."""
        gains = np.array([0.1, 0.3, 0.2])
        once = Gain.of(gains, np.zeros(3), np.full(3, 1 / 3), np.arange(3))
        thrice = Gain.of(np.repeat(gains, 3), np.zeros(9), np.full(9, 1 / 9), np.repeat(np.arange(3), 3))

        assert_allclose([once.mean, once.error, once.freedom], [thrice.mean, thrice.error, thrice.freedom])

    def test_interval_widens_with_what_is_displaced(self):
        """Documents that surface unjudged make the change of the search less sure, not the gain that was seen."""
        gains = np.random.default_rng(0).normal(0.05, 0.1, 40)
        even, each = np.full(40, 1 / 40), np.arange(40)
        still, moving = (Gain.of(gains, np.full(40, moved), even, each) for moved in (0.0, 0.5))
        reach = stdtrit(40, 0.95) * np.hypot(still.error, SURFACED * 0.5)

        assert_allclose(still.below(0.05), still.interval[0])
        assert_allclose([still.mean - reach, still.mean + reach], moving.interval)
        assert still.below(0.16) == moving.below(0.16)

    def test_one_trial_bounds_nothing(self):
        """A single observation has no interval."""
        assert Gain.of(np.array([0.3]), np.zeros(1), np.ones(1), np.zeros(1, int)).below(0.16) == -np.inf

    def test_an_agreement_by_luck(self):
        """A few gains that are nearly the same are no certainty, many are."""

        def gain(n):
            return Gain.of(np.tile([0.019, 0.021], n // 2), np.zeros(n), np.full(n, 1 / n), np.arange(n))

        assert gain(4).below(0.16) < 0 < gain(100).below(0.16)


class TestCrossFitting:
    """Every query ranked by what others taught."""

    def test_displaced_is_the_share_of_the_first_ten_that_gave_way(self, some_rewards):
        """Twelve candidates of which the last two come first displace two of ten."""
        grid = Grid.of(some_rewards(3, depths=[12, 12, 4]))
        place = np.argsort(np.argsort(np.where(grid.present, -grid.base, np.inf), axis=1), axis=1)
        lifted = grid.base + 9.0 * (place >= 10)

        assert_allclose([0.2, 0.2, 0.0], displaced(grid, lifted))
        assert_array_equal(np.zeros(3), displaced(grid, grid.base))

    def test_a_judge_that_never_says_zero_tells_as_much(self, planted):
        """The gain is the same wherever the judge's scale begins, and however short a part of it is used."""
        rewards = planted(9, strength=0.9)
        compressed = replace(rewards, values=0.9 + 0.1 * rewards.values)
        grid, other = Grid.of(rewards), Grid.of(compressed)
        scores = grid.base + np.random.default_rng(0).normal(size=grid.base.shape)

        assert_allclose(judged_ndcg(grid, scores), judged_ndcg(other, scores))
        assert judged_ndcg(grid, scores).min() < 0.9

    def test_gains_are_of_judged_candidates(self, planted):
        """A fold's queries gain what the other folds' offset, told of neighbours, gains on what was judged."""
        rewards = planted(20, strength=0.9)
        groups = rewards.same_queries
        wide, fold = with_neighbours(rewards), folds(rewards, groups)
        gains, moved = cross_fitted(wide, rewards.depths, (Recipe(),), fold)
        learned = shared_offset(wide.take(np.flatnonzero(fold != 0)), "global", None, Recipe())
        tried = rewards.take(np.flatnonzero(fold == 0))
        grid = Grid.of(tried)
        scores = grid.base + learned.alpha * (tried.documents.unit @ learned.vector)[grid.slots]

        assert_allclose(judged_ndcg(grid, scores) - judged_ndcg(grid, grid.base), gains[0, fold == 0])
        assert 0 < moved.mean() < 1

    @pytest.mark.parametrize("objective", ["kd", "reverse_kl"])
    def test_each_fold_is_tried_on_what_the_others_teach(self, planted, objective):
        """Side by side the folds gain at every ridge what each gains by a fit of the others' queries alone."""
        rewards = planted(21, strength=0.9, tasks=["a", "b", "b"] * 7)
        recipes = tuple(Recipe(objective=objective, ridge=ridge, tolerance=1e-7) for ridge in (0.5, 3.0))
        fold = np.arange(21) % 4
        gains, moved = cross_fitted(rewards, rewards.depths, recipes, fold)
        for row, displacement, recipe in zip(gains, moved, recipes, strict=True):
            for number in range(4):
                learned = shared_offset(rewards.take(np.flatnonzero(fold != number)), "global", None, recipe)
                tried = rewards.take(np.flatnonzero(fold == number))
                grid = Grid.of(tried)
                scores = grid.base + learned.alpha * (tried.documents.unit @ learned.vector)[grid.slots]

                assert_allclose(judged_ndcg(grid, scores) - judged_ndcg(grid, grid.base), row[fold == number])
                assert_allclose(displaced(grid, scores), displacement[fold == number])

    def test_one_fold_teaches_nobody(self, planted):
        """Where nothing can be held out, nothing is gained and nothing moved."""
        rewards = planted(3)
        gains, moved = cross_fitted(rewards, rewards.depths, (Recipe(),), np.zeros(3, dtype=int))

        assert_array_equal(np.zeros((1, 3)), gains)
        assert_array_equal(np.zeros((1, 3)), moved)
