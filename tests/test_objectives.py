"""KD, reverse KL and Softmax-GRPO: losses and gradients in the logits, against the paper's appendix."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from tttembed_rag.fitting import KD, ReverseKL, SoftmaxGRPO
from tttembed_rag.fitting.objectives import CLIP, DEVIATION_FLOOR, OBJECTIVES, PADDING, ROUNDING, log_softmax

TEACHER = 0.02
every_objective = pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)


def built(objective, rewards, present, base):
    """The loss of an objective as a function of logits."""
    return partial(objective.loss, targets=objective.targets(rewards, present, base, TEACHER))


def instance(seed=0, depths=(6, 6, 6), spread=0.05, *, deepest=None):
    """Rewards, mask, base logits and current logits of ragged queries on a padded grid."""
    rng = np.random.default_rng(seed)
    shape = len(depths), deepest or max(depths)
    present = np.arange(shape[1]) < np.array(depths)[:, None]
    rewards = np.where(present, 0.5 + spread * rng.normal(size=shape), 0.0)
    base = np.where(present, rng.normal(size=shape), PADDING)
    logits = np.where(present, base + 0.3 * rng.normal(size=shape), PADDING)
    return rewards, present, base, logits


def central_differences(function, at, step=1e-6):
    """Gradients (n, p) of the values (n,) of *function* at (n, p), a coordinate of all rows at a time."""
    steps = step * np.eye(at.shape[1])
    return np.stack([(function(at + ahead) - function(at - ahead)) / (2 * step) for ahead in steps], axis=1)


class TestEveryObjective:
    """What holds for all three."""

    @every_objective
    @pytest.mark.parametrize("depths", [(6, 6, 6), (6, 3, 1)], ids=["full", "ragged"])
    @pytest.mark.parametrize("seed", range(4))
    def test_gradient_is_that_of_the_loss(self, objective, depths, seed):
        rewards, present, base, logits = instance(seed, depths)
        loss = built(objective, rewards, present, base)
        expected = central_differences(lambda at: loss(at)[0], logits)

        assert_allclose(loss(logits)[1][present], expected[present], rtol=1e-5, atol=1e-6)

    @every_objective
    def test_padding_changes_nothing(self, objective):
        """A row padded to twice its depth has the same loss and gradient, and none in the padding."""
        rewards, present, base, logits = instance(1, (5,), deepest=10)
        cut = slice(None), slice(5)
        losses, gradient = built(objective, rewards, present, base)(logits)
        alone = built(objective, rewards[cut], present[cut], base[cut])(logits[cut])

        assert_allclose(losses, alone[0], rtol=1e-12)
        assert_allclose(gradient, np.pad(alone[1], ((0, 0), (0, 5))), atol=1e-12)

    @every_objective
    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(seed=st.integers(0, 10_000), constant=st.floats(-20.0, 20.0))
    def test_ignores_a_constant_added_to_all_logits(self, objective, seed, constant):
        """Only differences of logits matter, so the gradient sums to zero."""
        rewards, present, base, logits = instance(seed)
        loss = built(objective, rewards, present, base)
        losses, gradient = loss(logits)

        assert_allclose(loss(logits + constant)[0], losses, rtol=1e-9, atol=1e-9)
        assert_allclose(gradient.sum(axis=1), 0.0, atol=1e-9)


class TestKnowledgeDistillation:
    """KL(p || pi), the default."""

    def test_is_the_divergence_of_the_student_from_the_teacher(self):
        """The loss is KL(p || pi), p = softmax(r / tau_T), and its gradient in the logits pi - p."""
        rewards, present, base, logits = instance()
        losses, gradient = built(KD(), rewards, present, base)(logits)
        p, pi = np.exp(log_softmax(rewards / TEACHER)), np.exp(log_softmax(logits))

        assert_allclose(losses, (p * np.log(p / pi)).sum(axis=1), rtol=1e-12)
        assert_allclose(gradient, pi - p, rtol=1e-12)


class TestReverseKL:
    """KL(pi || p)."""

    def test_is_reward_maximisation_with_entropy(self):
        """The loss is -H(pi) - E_pi[r] / tau_T + log Z_T."""
        rewards, present, base, logits = instance()
        losses, _ = built(ReverseKL(), rewards, present, base)(logits)
        pi = np.exp(log_softmax(logits))
        entropy = -(pi * np.log(pi)).sum(axis=1)
        log_z = np.log(np.exp(rewards / TEACHER).sum(axis=1))

        assert_allclose(losses, -entropy - (pi * rewards).sum(axis=1) / TEACHER + log_z, rtol=1e-9)


class TestSoftmaxGRPO:
    """The clipped policy ratio against the base query."""

    def test_advantages_sum_to_zero(self):
        """A = (r - mean r) / (std r + 1e-4) over the judged candidates of a query, padding left out."""
        rewards, present, base, _ = instance(0, (6, 3, 1))
        advantage, *_ = SoftmaxGRPO().targets(rewards, present, base, TEACHER)
        r = rewards[1, :3]

        assert_allclose(advantage.sum(axis=1), 0.0, atol=1e-12)
        assert_allclose(advantage[1], [*((r - r.mean()) / (r.std() + DEVIATION_FLOOR)), 0, 0, 0], rtol=1e-12)

    def test_gradient_at_the_reference_is_minus_advantage_over_count(self):
        """At v = 0 the gradient in the logits is -A / K, K the query's own depth."""
        rewards, present, base, _ = instance(0, (6, 3, 1))
        loss = built(SoftmaxGRPO(), rewards, present, base)
        _, gradient = loss(base)

        assert_allclose(gradient, -loss.keywords["targets"][0] / np.array([[6], [3], [1]]), atol=1e-12)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(seed=st.integers(0, 10_000), reach=st.floats(0.0, 3.0))
    def test_is_the_paper_s_loss_up_to_rounded_corners(self, seed, reach):
        """The loss exceeds the clipped loss of the paper by at most ROUNDING / 4 * mean |A|."""
        rewards, present, base, _ = instance(seed, (6,))
        logits = base + reach * np.random.default_rng(seed).normal(size=base.shape)
        loss = built(SoftmaxGRPO(), rewards, present, base)
        a, rho = loss.keywords["targets"][0][0], np.exp(log_softmax(logits) - log_softmax(base))[0]
        clipped = -np.minimum(rho * a, np.clip(rho, 1 - CLIP, 1 + CLIP) * a).mean()
        above = float(loss(logits)[0][0] - clipped)

        assert -1e-12 <= above <= ROUNDING / 4 * np.abs(a).mean() + 1e-12

    def test_rounds_the_corner_itself(self):
        """Exactly at the corner the loss stands ROUNDING / 4 of the clipped advantage above the paper's."""
        rewards, base = np.array([[0.6, 0.4]]), np.zeros((1, 2))
        loss = built(SoftmaxGRPO(), rewards, np.ones((1, 2), bool), base)
        a = loss.keywords["targets"][0][0]
        logits = np.log([[0.6, 0.4]])
        clipped = -(1.2 * a[0] + 0.8 * a[1]) / 2

        assert_allclose(loss(logits)[0], clipped + ROUNDING / 4 * np.abs(a).mean(), rtol=1e-9)

    @pytest.mark.parametrize("values", [[0.9, 0.1], [0.5, 0.5]], ids=["clipped", "equal"])
    def test_has_no_gradient_for_what_is_clipped_or_equal(self, values):
        """Past every corner the update stays near the base; equal rewards have no advantage to learn from."""
        loss = built(SoftmaxGRPO(), np.array([values]), np.ones((1, 2), bool), np.zeros((1, 2)))

        assert_allclose(loss(np.array([[1.0, 0.0]]))[1], 0.0, atol=1e-12)
