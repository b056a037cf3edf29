"""A mean gain, its bounds, and nDCG of judged candidates."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import t

from tttembed_rag import Rewards
from tttembed_rag.fitting.grid import Grid
from tttembed_rag.fitting.measures import judged_ndcg
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.gate.case import Case
from tttembed_rag.gate.gains import Gain
from tttembed_rag.gate.questions import headroom_of


def gain_of(values, groups=None, *, typical=0.1):
    """The gain of equally weighted *values*."""
    n = len(values)
    return Gain.of(np.asarray(values), np.full(n, 1 / n), np.arange(n) if groups is None else groups, typical=typical)


@pytest.mark.parametrize("n", [8, 40])
def test_bounds_hold_the_truth_nineteen_times_in_twenty(n):
    """Over many samples each bound is passed in about 5 %."""
    rng = np.random.default_rng(0)
    gains = [gain_of(rng.normal(0.02, 0.1, n)) for _ in range(1000)]

    assert 0.02 <= np.mean([gain.below(0.05) > 0.02 for gain in gains]) <= 0.08
    assert 0.02 <= np.mean([gain.above(0.05) < 0.02 for gain in gains]) <= 0.08


def test_the_mean_shrinks_by_one_observation_of_zero():
    """Four observations of 0.5 count as five, one of them zero, and are no certainty."""
    gain = gain_of(np.full(4, 0.5))

    assert_allclose(gain.mean, 0.4)
    assert gain.error > 0.05


def test_a_group_is_one_observation():
    gains = np.array([0.1, 0.3, 0.2])
    once, thrice = gain_of(gains), gain_of(np.repeat(gains, 3), np.repeat(np.arange(3), 3))

    assert_allclose([once.mean, once.error, once.freedom], [thrice.mean, thrice.error, thrice.freedom])


def test_weights_count_as_kish_says():
    """Half the weight on one of many observations leaves fewer than four."""
    weights = np.append(np.full(10, 0.05), 0.5)
    gain = Gain.of(np.ones(11), weights, np.arange(11), typical=0.1)

    assert_allclose(gain.freedom, 1 / (weights @ weights))


def test_one_observation_bounds_nothing():
    for gain in (gain_of([0.3]), Gain.measured(np.array([0.3]), np.ones(1), np.arange(1))):
        assert (gain.below(0.05), gain.above(0.05)) == (-np.inf, np.inf)


def test_an_interval_ends_where_ndcg_does():
    """What decides is the bound itself."""
    gain = Gain(mean=0.2, error=2.0, freedom=0.5)

    assert gain.interval(0.05) == (-1.0, 1.0)
    assert gain.below(0.05) < -1.0 < 1.0 < gain.above(0.05)


def test_a_few_that_agree_by_luck_are_no_certainty():
    """Four nearly equal gains may be chance, a hundred are not."""
    four, hundred = (gain_of(np.tile([0.019, 0.021], n // 2)) for n in (4, 100))

    assert four.below(0.05) < 0 < hundred.below(0.05)


def test_what_is_expected_counts_as_one_observation():
    single = Gain.of(np.array([0.3]), np.ones(1), np.arange(1), typical=0.1, expected=0.02)
    four = Gain.of(np.full(4, 0.5), np.full(4, 0.25), np.arange(4), typical=0.1, expected=0.02)

    assert (single.mean, single.freedom) == (0.02, 0.0)
    assert_allclose(four.mean, (4 * 0.5 + 0.02) / 5)


@pytest.mark.parametrize("n", [3, 8, 40])
def test_the_interval_of_what_was_measured_is_student_s(n):
    """Mean and 90 % interval are those of a textbook; over many samples they hold the truth as often as they say."""
    rng = np.random.default_rng(0)
    samples = [rng.normal(0.02, 0.1, n) for _ in range(1000)]
    gains = [Gain.measured(sample, np.full(n, 1 / n), np.arange(n)) for sample in samples]
    expected = t.interval(0.9, n - 1, samples[0].mean(), samples[0].std(ddof=1) / n**0.5)

    assert_allclose([gains[0].below(0.05), gains[0].above(0.05)], expected)
    assert 0.87 <= np.mean([gain.below(0.05) <= 0.02 <= gain.above(0.05) for gain in gains]) <= 0.93


def test_a_judge_that_never_says_zero_tells_as_much(planted):
    """NDCG is the same wherever the judge's scale begins, and however short a part of it is used."""
    rewards = planted(9, strength=0.9)
    grid, other = Grid.of(rewards), Grid.of(replace(rewards, values=0.9 + 0.1 * rewards.values))
    scores = grid.base + np.random.default_rng(0).normal(size=grid.base.shape)

    assert_allclose(judged_ndcg(grid, scores), judged_ndcg(other, scores))
    assert judged_ndcg(grid, scores).min() < 0.9


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (Gain(0.0, math.inf, 0.0), 0.05),  # nothing was measured
        (Gain(-0.01, 1e-4, 10_000.0), -0.01),  # all is known
        (Gain(0.0, 0.015, 1e6), 0.025),  # both weigh the same
        (Gain(0.0, 0.0, 1.0), 0.05 * 4 / 7),  # two that agree: a variance of .03^2 four times beside none, over two
    ],
)
def test_what_was_measured_corrects_what_was_expected(gain, expected):
    """The mean of both, each weighted by its precision."""
    assert_allclose(gain.posterior(0.05), expected, atol=2e-3)


def test_what_can_be_gained_is_asked_of_queries_whose_rewards_differ():
    """Queries with one reward for all candidates have no order that could be better, and dilute nothing."""
    rng = np.random.default_rng(0)
    queries, documents = rng.standard_normal((20, 8)), rng.standard_normal((20, 5, 8))
    values = rng.random((20, 5))
    alone = Case.of(Rewards.from_arrays(queries[:10], documents[:10], values[:10]), Recipe())
    values[10:] = 0.5
    beside = Case.of(Rewards.from_arrays(queries, documents, values), Recipe())

    assert headroom_of(beside, beside.ndcg(None)) == pytest.approx(headroom_of(alone, alone.ndcg(None)))
