"""The local scope: Gaussian-process regression of private offsets, and the map that serves it."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import load, save

from tests.test_offsets import HEADER
from tttembed_rag import InputError, Offsets, Rewards, fit
from tttembed_rag.errors import OffsetFileError, VectorError
from tttembed_rag.fitting import local as module
from tttembed_rag.fitting.local import Local
from tttembed_rag.fitting.objectives import OBJECTIVES
from tttembed_rag.fitting.recipe import Recipe
from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.offsets.offset import Offset

UNGATED = Evidence(3, None, None, "ungated", "learned without a gate")


def targets_of(rewards, seed=0):
    """Some targets, one for each query."""
    return 0.1 * np.random.default_rng(seed).standard_normal((len(rewards), rewards.width))


def posterior(x, y, targets, noise, h):
    """k(y)' (K + D)^-1 W, written out."""
    kernel = np.exp((x @ x.T - 1) / h)
    return np.exp((y @ x.T - 1) / h) @ np.linalg.solve(kernel + np.diag(noise), targets)


class TestRegression:
    """The posterior mean of a Gaussian process."""

    def test_is_the_posterior_mean(self, some_rewards):
        """With every query a landmark it is k(y)' (K + D)^-1 W, at the queries and elsewhere."""
        rewards = some_rewards(12, depths=[3, 5, 4] * 4)
        targets = targets_of(rewards)
        local = Local.of(rewards, targets, 0.7)
        x = rewards.queries.unit
        y = np.random.default_rng(1).standard_normal((5, rewards.width))
        y /= np.linalg.norm(y, axis=1, keepdims=True)
        noise = 0.7 / np.clip(rewards.reach / rewards.reach.mean(), 0.05, 1.5)

        assert_allclose(local.map()(y), posterior(x, y, targets, noise, local.bandwidth), atol=1e-6)
        assert_allclose(local.map()(x), posterior(x, x, targets, noise, local.bandwidth), atol=1e-6)
        assert local.residual < 1e-10

    def test_the_bandwidth_is_the_mean_distance(self, some_rewards):
        rewards = some_rewards(9)
        x = rewards.queries.unit
        pairs = ~np.eye(9, dtype=bool)

        assert_allclose(Local.of(rewards, targets_of(rewards), 1.0).bandwidth, 1 - (x @ x.T)[pairs].mean())

    @pytest.mark.parametrize("weight", [0.0, 0.5])
    def test_each_query_is_predicted_by_the_folds_without_it(self, some_rewards, weight):
        rewards = some_rewards(14, depths=6)
        targets = targets_of(rewards)
        weights = np.where(np.arange(14) == 3, weight, 1.0)
        local = Local.of(rewards, targets, 1.0, weights=weights)
        fold = np.arange(14) % 4
        x = rewards.queries.unit
        noise = 1.0 / np.clip(rewards.reach / rewards.reach.mean(), 0.05, 1.5)
        for number in range(4):
            seen = (fold != number) & (weights > 0)
            expected = posterior(
                x[seen], x[fold == number], targets[seen], noise[seen] / weights[seen], local.bandwidth
            )

            assert_allclose(local.held_out(fold)[fold == number], expected, atol=1e-6)

    def test_a_query_of_equal_rewards_says_little(self, some_rewards):
        rewards = some_rewards(6, depths=4)
        values = rewards.values.copy()
        values[:4] = 0.5
        targets = targets_of(rewards)
        reduced = Local.of(replace(rewards, values=values), targets, 1.0)
        whole = Local.of(rewards, targets, 1.0)

        missed = [np.linalg.norm(local.map()(rewards.queries.unit[:1])[0] - targets[0]) for local in (reduced, whole)]

        assert missed[0] > 1.3 * missed[1]

    def test_copies_share_a_voice(self, some_rewards):
        """Fifty copies of a query, weighing a fiftieth each, are the query."""
        rewards = some_rewards(8, depths=5)
        rows = np.append(np.arange(8), np.zeros(49, dtype=int))
        copies = rewards.take(rows)
        targets = targets_of(rewards)
        weights = np.where(rows == 0, 1 / 50, 1.0)
        once = Local.of(rewards, targets, 1.0)
        again = Local.of(copies, targets[rows], 1.0, weights=weights, groups=copies.near_queries)
        x = rewards.queries.unit

        assert_allclose(again.map()(x), once.map()(x), atol=0.02)

    def test_landmarks_stand_for_many(self, some_rewards, monkeypatch):
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((4, 8))
        queries = centres[np.arange(80) % 4] + 0.2 * rng.standard_normal((80, 8))
        rewards = Rewards.from_arrays(queries, rng.standard_normal((80, 4, 8)), rng.random((80, 4)))
        targets = 0.3 * centres[np.arange(80) % 4] + 0.02 * rng.standard_normal((80, 8))
        exact = Local.of(rewards, targets, 1.0)
        monkeypatch.setattr(module, "LANDMARKS", 20)
        order = rng.permutation(80)
        few, again = Local.of(rewards, targets, 1.0), Local.of(rewards.take(order), targets[order], 1.0)
        x = rewards.queries.unit
        error = np.linalg.norm(few.map()(x) - exact.map()(x)) / np.linalg.norm(exact.map()(x))

        assert len(few.landmarks) == 20
        assert error < 0.1
        assert_array_equal(np.sort(few.landmarks, axis=0), np.sort(again.landmarks, axis=0))
        assert_allclose(again.map()(x), few.map()(x), atol=1e-8)

    def test_wide_vectors_have_fewer_landmarks(self, some_rewards):
        """What serving reads for a query stays within two megabytes."""
        rewards = some_rewards(40, depths=2, width=8192)

        assert len(Local.of(rewards, np.zeros((40, 8192)), 1.0).landmarks) == 32


class TestFit:
    """`fit(..., scope="local")`."""

    @pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_without_a_gate(self, some_rewards, objective, dtype):
        """One local offset for each task, with a certificate of its targets and its linear system."""
        rewards = some_rewards(10, depths=[3, 6] * 5, tasks=["a", "b"] * 5, dtype=dtype)
        offsets = fit(rewards, scope="local", gate=False, recipe=Recipe(objective=objective))
        local = offsets["local:a"]

        assert list(offsets) == ["local:a", "local:b"]
        assert (local.n, local.alpha, local.map.landmarks.dtype) == (5, 1.0, dtype)
        assert local.certificate.converged
        assert local.certificate.gradient_norm <= 1e-4
        assert local.certificate.residual < 1e-9
        assert not local.vector.any()

    def test_helps_queries_near_rewarded_ones(self):
        """Two kinds of questions that want opposite things: the local offset helps, a constant does not."""
        rewards, unseen, wanted = opposite_kinds()
        local, constant = (fit(rewards, scope=scope).apply(unseen) for scope in ("auto", "task"))

        assert cosines(local, wanted).mean() > cosines(unseen, wanted).mean() + 0.02
        assert cosines(local, wanted).mean() > cosines(constant, wanted).mean() + 0.02


class TestServing:
    """From the file, by the same `apply`."""

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("many", [False, True])
    def test_moves_each_query_its_own_way(self, some_rewards, dtype, many):
        """apply(x) is ||x|| unit(unit(x) + v(x)), for one vector and for many, in their precision."""
        rewards = some_rewards(6, depths=5)
        offsets = fit(rewards, scope="local", gate=False)
        x = (3 * np.random.default_rng(0).standard_normal((4, rewards.width))).astype(dtype)
        x = x if many else x[0]
        lengths = np.linalg.norm(x, axis=-1, keepdims=True)
        moved = x / lengths + offsets["local:default"].map(x / lengths)
        expected = lengths * moved / np.linalg.norm(moved, axis=-1, keepdims=True)
        served = offsets.apply(x)

        assert (served.dtype, served.shape) == (dtype, x.shape)
        assert_allclose(served, expected, rtol=2e-5)

    def test_the_served_one_of_a_task_is_found(self):
        """Of a local and a constant offset of a task the published one serves, and private ones come first."""
        zero = np.zeros(2)
        map_ = KernelMap(np.eye(2)[:1], 0.1 * np.eye(2)[1:], 1.0)
        held = replace(UNGATED, verdict="abstained")
        local = Offset("local", zero, 1.0, 3, UNGATED, task="a", map=map_)
        constant = Offset("task", np.array([0.1, 0.0]), 0.5, 3, UNGATED, task="a")
        private = Offset("query", np.array([0.0, 0.2]), 0.5, 1, UNGATED, task="a", query_id="q")

        for offsets in ([local, replace(constant, evidence=held)], [replace(constant, evidence=held), local]):
            assert Offsets(offsets, width=2).find("a") is local
        abstained = replace(local, evidence=held, map=None)
        for pair in ([abstained, constant], [constant, abstained]):
            assert Offsets(pair, width=2).find("a") is constant
        assert Offsets([local, private], width=2).find("a", "q") is private

    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            *(({"bandwidth": h}, "bandwidth: expected a number of at least 0.0001") for h in (0.0, 1e-300, np.nan)),
            ({"landmarks": np.full((1, 2), 1e3)}, "landmarks: expected unit vectors"),
            *(({"weights": np.full((1, 2), w)}, "weights: expected norms of at most 100") for w in (np.inf, 1e3)),
            ({"landmarks": np.zeros((1, 2))}, "zero vector"),
            ({"landmarks": np.eye(3)[:1]}, r"landmarks: expected floating-point numbers of shape \(1, 2\)"),
            ({"weights": np.eye(2)}, r"weights: expected floating-point numbers of shape \(1, 2\)"),
            ({"landmarks": np.eye(2)[:0], "weights": np.eye(2)[:0]}, "expected a number .* and a landmark"),
            ({"landmarks": np.eye(2, dtype=bool)[:1]}, "landmarks: expected floating-point numbers .* got bool"),
            ({"weights": np.eye(2, dtype=np.int8)[1:]}, "weights: expected floating-point numbers .* got int8"),
        ],
    )
    def test_a_bad_map_is_refused(self, damage, reason):
        good = KernelMap(np.eye(2)[:1], 0.1 * np.eye(2)[1:], 1.0)
        offset = Offset("local", np.zeros(2), 1.0, 3, UNGATED, task="a", map=replace(good, **damage))

        with pytest.raises((InputError, VectorError), match=reason):
            Offsets([offset], width=2)

    @pytest.mark.parametrize(
        ("tensor", "change", "line"),
        [
            ("map.landmarks", lambda rows: np.concatenate([rows] * 2), r"map\.landmarks: expected 5 rows, got 10"),
            (
                "offsets",
                lambda text: np.frombuffer(text.tobytes()[:-1] + b",[]" * 200_000 + b"]", np.uint8),
                "expected at most [0-9]+ bytes about",
            ),
        ],
    )
    def test_a_file_takes_no_more_memory_than_its_offsets(self, some_rewards, tensor, change, line):
        """It has as many rows of maps as its records say, and a longer text is not parsed."""
        tensors = load(fit(some_rewards(5), scope="local", gate=False).to_bytes())

        with pytest.raises(OffsetFileError, match=line):
            Offsets.from_bytes(save(tensors | {tensor: change(tensors[tensor])}, metadata=HEADER))


class TestShares:
    """Which rewarded queries moved a query."""

    def test_they_sum_to_one_and_the_nearest_has_most(self):
        landmarks = np.array([[1.0, 0.0], [0.0, 1.0]])
        map_ = KernelMap(landmarks, np.array([[0.1, 0.2], [0.1, 0.2]]), 0.3)
        shares = map_.shares(np.array([0.96, 0.28]))

        assert_allclose(shares.sum(), 1.0)
        assert shares[0] > shares[1]

    def test_what_is_not_moved_has_none(self):
        assert not KernelMap(np.eye(2), np.zeros((2, 2)), 0.3).shares(np.array([1.0, 0.0])).any()


def opposite_kinds(n=60, *, width=24, seed=0):
    """Rewards of two kinds of questions that are wrong in opposite ways, new questions, and what these meant."""
    rng = np.random.default_rng(seed)
    centres, wrong = rng.standard_normal((2, width)), rng.standard_normal(width)
    wrong /= np.linalg.norm(wrong)
    documents = rng.standard_normal((400, width))
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)

    def questions(count):
        kind = np.arange(count) % 2
        meant = 2.0 * centres[kind] / width**0.5 + rng.standard_normal((count, width)) / width**0.5
        meant /= np.linalg.norm(meant, axis=1, keepdims=True)
        queries = meant - 0.8 * np.where(kind, 1, -1)[:, None] * wrong
        return meant, queries / np.linalg.norm(queries, axis=1, keepdims=True)

    meant, queries = questions(n)
    lists = np.argsort(-(queries @ documents.T), axis=1)[:, :10]
    values = 1 / (1 + np.exp(-12 * (np.matvec(documents[lists], meant) - 0.3)))
    return Rewards.from_indexed(queries, documents, lists, values), *questions(100)[::-1]


def cosines(vectors, others):
    """Cosine of each vector with its other."""
    return np.vecdot(vectors, others) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(others, axis=1)
