"""The problems of Eq. 6 and the solvers that minimise them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.test_objectives import central_differences, every_objective
from tttembed_rag.fitting.grid import Grid, Loss
from tttembed_rag.fitting.objectives import KD, ReverseKL
from tttembed_rag.fitting.optima import scope_weights
from tttembed_rag.fitting.private import _REACH, PrivateProblems
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.fitting.shared import SharedProblem
from tttembed_rag.fitting.solver import Evaluation, adam, exact

RAGGED = (7, 1, 4, 7, 2)


def shared(rewards, recipe):
    """The problem of one offset for all queries."""
    return SharedProblem.of(rewards, Loss.of(Grid.of(rewards), recipe), scope_weights(rewards)[None], recipe.ridge)


def private(rewards, recipe):
    """The problems of one offset per query."""
    return PrivateProblems.of(rewards, Loss.of(Grid.of(rewards), recipe), recipe.ridge)


@dataclass(frozen=True)
class Bowls:
    """G quadratic problems 1/2 (x - c) A (x - c) with known minimisers c."""

    matrices: np.ndarray
    centres: np.ndarray

    @classmethod
    def of(cls, problems, width, *, condition=100.0, seed=0):
        """Bowls in random orientation with curvatures from 1 to *condition*."""
        rng = np.random.default_rng(seed)
        turn, _ = np.linalg.qr(rng.normal(size=(problems, width, width)))
        curvatures = np.geomspace(1.0, condition, width)
        return cls((turn * curvatures) @ turn.transpose(0, 2, 1), rng.normal(size=(problems, width)))

    def evaluate(self, offsets):
        """Objectives (G,) and gradients (G, p)."""
        away = offsets - self.centres
        gradients = np.einsum("gij,gj->gi", self.matrices, away)
        return Evaluation(np.einsum("gi,gi->g", away, gradients) / 2, gradients)

    def newton_step(self, offsets, at):
        """None: the curvature is to be learned along the way."""

    def take(self, rows):
        """Some of the bowls."""
        return replace(self, matrices=self.matrices[rows], centres=self.centres[rows])


class OpenBowls(Bowls):
    """Bowls that know their curvature."""

    def newton_step(self, offsets, at):
        """The step to the centre."""
        return self.centres - offsets


class LostBowls(Bowls):
    """Bowls whose steps are no numbers."""

    def newton_step(self, offsets, at):
        """Nowhere."""
        return np.full_like(offsets, np.nan)


class TestSideBySide:
    """Shared offsets under weights of their own, found together."""

    @staticmethod
    def problems(rewards, recipe):
        """Four problems: one of all queries, and three of which each leaves out queries of its own."""
        learning = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 1], [0, 1, 1, 0, 1], [1, 0, 1, 1, 0]], dtype=bool)
        weights = np.array([scope_weights(rewards, seen) for seen in learning])
        return SharedProblem.of(rewards, Loss.of(Grid.of(rewards), recipe), weights, recipe.ridge)

    @every_objective
    @pytest.mark.parametrize("length", [0.0, 0.3, 1.5])
    @pytest.mark.parametrize(
        ("limit", "number", "blocks"),
        [("_GRID_NUMBERS", 1 << 20, 1), ("_GRID_NUMBERS", 1, 1), ("_BLOCK_BYTES", 6 * 6 * 8, 4)],
        ids=["all at once", "problem by problem", "a few queries at a time"],
    )
    def test_each_is_eq_6_of_its_own_queries(
        self, some_rewards, reference, monkeypatch, objective, length, limit, number, blocks
    ):
        """Objective and gradient are those written out query by query, however many are taken at a time."""
        monkeypatch.setattr(f"tttembed_rag.fitting.shared.{limit}", number)
        rewards, recipe = some_rewards(5, depths=RAGGED, width=6, tasks=list("aabbb")), Recipe(objective=objective)
        problems = self.problems(rewards, recipe)
        offsets = np.random.default_rng(2).normal(size=(4, 6))
        offsets *= length / np.linalg.norm(offsets, axis=1, keepdims=True)
        weights = np.concatenate([block.weights for block in problems.blocks], axis=1)
        values, gradients = zip(
            *(reference(v, rewards, own, recipe) for v, own in zip(offsets, weights, strict=True)), strict=True
        )
        value, gradient, _ = problems.evaluate(offsets)

        assert len(problems.blocks) == blocks
        assert_allclose(value, values, rtol=1e-9, atol=1e-12)
        assert_allclose(gradient, gradients, rtol=1e-9, atol=1e-9)

    def test_a_query_left_out_may_vanish(self, some_rewards):
        """Where the vector of a query that weighs nothing vanishes, the others are learned from all the same."""
        rewards = some_rewards(5, depths=RAGGED)
        problems = self.problems(rewards, Recipe())
        offsets = -rewards.queries.unit[[2, 0, 1]]
        problems = problems.take(np.arange(1, 4))
        value, gradient, _ = problems.evaluate(offsets)

        assert (value < 100).all()
        assert np.isfinite(gradient).all()
        assert (problems.evaluate(offsets[[1, 2, 0]]).value > 1e100).all()

    @pytest.mark.parametrize("objective", [KD(), ReverseKL()])
    def test_each_is_solved_as_it_is_alone(self, some_rewards, objective):
        recipe = Recipe(objective=objective)
        problems, start = self.problems(some_rewards(5, depths=RAGGED), recipe), np.zeros((4, 24))
        together = exact(problems, start)
        alone = [exact(problems.take(np.array([g])), start[:1]) for g in range(4)]

        assert together.converged.all()
        assert_array_equal(together.evaluations, [solution.evaluations[0] for solution in alone])
        assert_allclose(together.offsets, [solution.offsets[0] for solution in alone], atol=1e-6)


class TestPrivateProblems:
    """One offset per query, in k + 1 coordinates."""

    @every_objective
    @pytest.mark.parametrize("depths", [6, RAGGED], ids=["full", "ragged"])
    def test_gradient_is_that_of_the_objective(self, some_rewards, objective, depths):
        """In these coordinates it agrees with central finite differences."""
        problem = private(some_rewards(5, depths=depths, width=24), Recipe(objective=objective))
        at = np.random.default_rng(1).normal(size=problem.coordinates.shape[:2]) / 8
        expected = central_differences(lambda vectors: problem.evaluate(vectors).value, at)

        assert_allclose(problem.evaluate(at).gradient, expected, rtol=1e-5, atol=1e-6)

    @every_objective
    def test_is_eq_6_of_one_query(self, some_rewards, reference, objective):
        """Each objective is Eq. 6 of that query alone, at the coordinates' vector of full width."""
        rewards = some_rewards(5, depths=RAGGED)
        recipe = Recipe(objective=objective)
        problems = private(rewards, recipe)
        at = np.random.default_rng(1).normal(size=problems.coordinates.shape[:2]) / 8
        # A coordinate beyond a query's own candidates is no direction of its span.
        at *= np.arange(at.shape[1]) <= rewards.depths[:, None]
        vectors, _ = problems.lift(rewards, at)
        expected = [reference(vectors[q], rewards.take(np.array([q])), [1.0], recipe)[0] for q in range(len(rewards))]

        assert_allclose(problems.evaluate(at).value, expected, rtol=1e-5, atol=1e-5)

    def test_newton_steps_of_distillation_arrive(self, some_rewards):
        """A thousandth off the optimum, a whole Newton step leaves at most a hundredth of the gradient."""
        problems = private(some_rewards(5, depths=RAGGED), Recipe())
        optimum = exact(problems, np.zeros(problems.coordinates.shape[:2]), tolerance=1e-9).offsets
        near = optimum + 1e-3 * np.random.default_rng(0).normal(size=optimum.shape)
        before = problems.evaluate(near)
        after = problems.evaluate(near + problems.newton_step(near, before))

        assert (np.linalg.norm(after.gradient, axis=1) < np.linalg.norm(before.gradient, axis=1) / 100).all()

    def test_newton_steps_keep_away_from_where_the_query_vanishes(self, some_rewards):
        """No Newton step takes away more than `_REACH` of the length of x + v, wherever it starts."""
        problems = private(some_rewards(5, depths=RAGGED, width=6), Recipe(ridge=0.01))
        at = np.random.default_rng(1).normal(size=(40, *problems.coordinates.shape[:2])) / 3
        steps = np.array([problems.newton_step(v, problems.evaluate(v)) for v in at])
        before, after = (np.linalg.norm(problems.coordinates[:, 0] + v, axis=-1) for v in (at, at + steps))

        assert (after > (1 - _REACH) * before - 1e-12).all()
        assert (after < 0.5 * before).any()


class TestExact:
    """Newton and L-BFGS steps with a certificate."""

    def test_finds_known_minima_side_by_side(self):
        bowls = Bowls.of(7, 5)
        solution = exact(bowls, np.zeros((7, 5)), tolerance=1e-8)

        assert solution.converged.all()
        assert_allclose(solution.offsets, bowls.centres, atol=1e-8)

    def test_a_step_that_is_no_number_goes_downhill_instead(self):
        """Whatever a problem offers, the search ends, and at the bottom where there is one."""
        bowls = LostBowls.of(2, 3, condition=3.0)
        solution = exact(bowls, np.zeros((2, 3)))

        assert solution.converged.all()

    @pytest.mark.parametrize(
        ("bowls", "start", "curvature", "evaluations"),
        [
            (OpenBowls.of(5, 8, condition=1e6), 0.0, 1.0, 2),
            (Bowls(8.0 * np.eye(5)[None], np.full((1, 5), 0.05)), 0.0, 8.0, 2),
            (Bowls.of(2, 3), 1.0, 1.0, 1),
        ],
        ids=["a Newton step", "a step by the given curvature", "a start at the minimiser"],
    )
    def test_takes_no_step_more_than_needed(self, bowls, start, curvature, evaluations):
        solution = exact(bowls, start * bowls.centres, curvature=curvature)

        assert_allclose(solution.offsets, bowls.centres, rtol=1e-15)
        assert_array_equal(solution.evaluations, evaluations)

    def test_says_so_when_it_is_stopped_early(self):
        """Out of evaluations a problem is not converged, and its certificate holds for where it stopped."""
        bowls = Bowls.of(3, 20, condition=1e6)
        solution = exact(bowls, np.zeros((3, 20)), max_evaluations=5)
        values, gradients, _ = bowls.evaluate(solution.offsets)

        assert not solution.converged.any()
        assert (solution.evaluations >= 5).all()
        assert (solution.evaluations < 50).all()
        assert_allclose(solution.gradient_norm, np.linalg.norm(gradients, axis=1), rtol=1e-9)
        assert_allclose(solution.objective, values, rtol=1e-9)

    @pytest.mark.parametrize("build", [shared, private])
    @pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-4)])
    def test_reaches_the_tolerance(self, some_rewards, build, dtype, tolerance):
        problem = build(some_rewards(width=64, depths=(*RAGGED, 9), dtype=dtype), Recipe())
        start = np.zeros((1, 64)) if build is shared else np.zeros(problem.coordinates.shape[:2])
        solution = exact(problem, start, tolerance=tolerance)

        assert solution.converged.all()
        assert (solution.gradient_norm <= tolerance).all()


class TestAdam:
    """The paper's recipe."""

    def test_steps_by_the_rate_on_a_slope(self):
        """On a constant slope every Adam step has the length of the learning rate, against the slope."""

        class Slope(Bowls):
            def evaluate(self, offsets):
                return Evaluation(offsets @ self.centres[0], np.tile(self.centres, (len(offsets), 1)))

        slope = Slope(np.empty(0), np.array([[3.0, -0.02]]))
        solution = adam(slope, np.zeros((1, 2)), steps=7)

        assert_allclose(solution.offsets, [[-0.07, 0.07]], rtol=1e-5)

    def test_takes_the_paper_s_300_steps(self):
        """By default 300 steps of 0.01 and one evaluation for the certificate."""
        bowls = Bowls.of(2, 3, condition=1.0)
        far = replace(bowls, centres=bowls.centres + 100.0)
        solution = adam(far, np.zeros((2, 3)))

        assert_array_equal(solution.evaluations, [301, 301])
        assert_allclose(solution.offsets, 3.0, atol=0.1)

    def test_knows_when_it_arrived(self):
        bowls = Bowls.of(2, 3)
        solution = adam(bowls, bowls.centres)

        assert solution.converged.all()
        assert_allclose(solution.offsets, bowls.centres, atol=1e-12)
