"""The nearest-centroid router: it finds the task of a query vector, or says nothing."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tttembed_rag import Evidence, InputError, LiveOffsets, Offset, Offsets, VectorError, context
from tttembed_rag.serving import CentroidRouter, Steering, resolve_task, routing

WIDTH = 16
NAMES = ("billing", "shipping", "support")


def around(centre, n, *, noise=0.5, seed=0):
    """Query vectors (n, d) around a direction, of norms around 3."""
    draws = np.random.default_rng(seed).normal(size=(n, WIDTH)) * noise / np.sqrt(WIDTH)
    return 3 * (np.eye(WIDTH)[centre] + draws)


@pytest.fixture
def known():
    """Sixty queries of three tasks, and their tasks."""
    return np.concatenate([around(i, 20, seed=i) for i in range(3)]), [name for name in NAMES for _ in range(20)]


@pytest.fixture
def router(known):
    """A router for them."""
    return CentroidRouter.of(*known)


class TestRouting:
    """New queries."""

    @pytest.mark.parametrize(("centre", "task"), list(enumerate(NAMES)))
    def test_queries_of_a_task_reach_it(self, router, centre, task):
        """Nearly all new queries around a task's centre are its own, none another's."""
        routed = [router.route(vector) for vector in around(centre, 50, seed=9)]

        assert set(routed) <= {task, None}
        assert routed.count(task) >= 45

    def test_a_stranger_has_no_task(self, router):
        """A query that is unlike all known ones is not forced into the nearest task."""
        assert {router.route(vector) for vector in around(7, 50, seed=9)} == {None}

    def test_a_query_between_two_tasks_has_none(self, known):
        """Where two tasks overlap, the router answers only away from the border."""
        vectors, tasks = known
        mixed = np.concatenate([vectors, around(0, 40, noise=3.0, seed=5), around(1, 40, noise=3.0, seed=6)])
        router = CentroidRouter.of(mixed, [*tasks, *["billing"] * 40, *["shipping"] * 40])

        assert router.margin > 0
        assert router.route(np.eye(WIDTH)[0] + np.eye(WIDTH)[1]) is None
        assert router.route(np.eye(WIDTH)[0]) == "billing"

    @pytest.mark.parametrize(
        "vector", [np.zeros(WIDTH), np.full(WIDTH, np.nan), np.full(WIDTH, np.inf), np.ones(3), np.ones((2, WIDTH))]
    )
    def test_no_task_for_what_is_no_query_vector(self, router, vector):
        """Zero, NaN, infinity and another shape have no task."""
        assert router.route(vector) is None

    @given(st.floats(1e-3, 1e3))
    def test_length_does_not_matter(self, length):
        """Only the direction of a query vector says what it is about."""
        router = CentroidRouter.of(np.concatenate([around(0, 20), around(1, 20)]), ["a"] * 20 + ["b"] * 20)
        vector = around(0, 1, seed=3)[0]

        assert router.route(length * vector) == router.route(vector) == "a"


class TestCalibration:
    """How sure is sure enough."""

    def test_tasks_that_cannot_be_told_apart_are_never_routed(self):
        """Where task keys mean nothing, the router abstains from everything."""
        vectors = np.random.default_rng(0).normal(size=(200, WIDTH))
        router = CentroidRouter.of(vectors, [NAMES[i % 3] for i in range(200)])

        assert router.coverage < 0.05
        assert [router.route(vector) for vector in around(0, 10)] == [None] * 10

    def test_known_queries_are_left_out_of_their_own_centroid(self):
        """Two queries that have nothing in common do not vouch for each other."""
        router = CentroidRouter.of(np.eye(WIDTH)[:4], ["a", "a", "b", "b"])

        assert (router.coverage, router.precision, router.margin) == (0.0, 0.0, np.inf)

    def test_the_precision_that_was_asked_for_is_kept(self):
        """Among noisy tasks the routed share shrinks as more precision is asked for."""
        vectors = np.concatenate([around(i, 200, noise=2.5, seed=i) for i in range(3)])
        tasks = [name for name in NAMES for _ in range(200)]
        loose, strict = (CentroidRouter.of(vectors, tasks, precision=share) for share in (0.6, 0.97))

        assert 0 < strict.coverage < loose.coverage
        assert strict.precision >= 0.97
        assert loose.precision >= 0.6

    def test_few_queries_prove_little(self):
        """Right answers on a handful of queries are not yet 95%."""
        few = CentroidRouter.of(np.concatenate([around(0, 4), around(1, 4)]), ["a"] * 4 + ["b"] * 4)

        assert few.margin == np.inf

    def test_a_single_task_is_guarded_by_distance(self):
        """With one task, what is unlike it has none."""
        router = CentroidRouter.of(around(0, 30), ["a"] * 30)

        assert router.route(around(0, 1, seed=4)[0]) == "a"
        assert router.route(around(3, 1, seed=4)[0]) is None

    def test_tasks_of_one_query_are_left_out(self, known):
        """A query that stands alone cannot be checked."""
        vectors, tasks = known

        assert CentroidRouter.of([*vectors, np.eye(WIDTH)[5]], [*tasks, "alone"]).tasks == NAMES

    def test_rewards_are_enough(self, planted):
        """Rewarded queries carry vectors and tasks."""
        rewards = planted(40, tasks=["a", "b"] * 20)

        assert CentroidRouter.of_rewards(rewards).tasks == ("a", "b")

    @pytest.mark.parametrize(
        ("vectors", "tasks", "options", "error", "match"),
        [
            (np.ones((2, 3)), ["a"], {}, VectorError, r"^query_vectors: expected shape \(1, d\), one per task"),
            ([[1.0, 0.0], [0.0, 0.0]], ["a", "a"], {}, VectorError, "^query_vectors: .* a zero vector in row 1$"),
            (np.eye(2), ["a", "b"], {}, InputError, "^tasks: expected a task with two queries, got 2 tasks of one$"),
            (np.eye(2), ["a", "a"], {"precision": 1.0}, InputError, "^precision, strangers: .* got 1.0 and 0.02$"),
        ],
    )
    def test_wrong_input_is_refused(self, vectors, tasks, options, error, match):
        """Shapes, vectors, tasks and shares are checked at the door."""
        with pytest.raises(error, match=match):
            CentroidRouter.of(vectors, tasks, **options)


class TestServing:
    """The router as a wrapper's task."""

    @pytest.fixture
    def offsets(self):
        """An offset for billing."""
        evidence = Evidence(4, None, None, "ungated", "made for a test")
        return Offsets([Offset("task", np.ones(WIDTH), 0.8, 4, evidence, task="billing")], width=WIDTH)

    def test_the_base_vector_names_the_task(self, router, offsets):
        """A routed query gets its task's offset, a stranger none, without a second embedding."""
        steering = Steering(LiveOffsets(offsets), router)
        mine, other = around(0, 1, noise=0.1, seed=4)[0].tolist(), around(8, 1, seed=4)[0].tolist()

        assert steering.apply(mine, "q") == offsets.apply(mine, task="billing")
        assert steering.apply(other, "q") == other
        assert steering.task_of("q", mine) == "billing"

    def test_the_caller_knows_better(self, router):
        """A task that was said is not guessed; without a vector there is nothing to guess from."""
        with context(task="support"):
            assert resolve_task(router, "q", around(0, 1)[0]) == "support"

        assert resolve_task(router, "q") is None

    def test_it_pickles(self, router):
        """Another process routes the same way."""
        copy = pickle.loads(pickle.dumps(router))  # noqa: S301 - our own bytes

        assert copy.route(around(1, 1, noise=0.1)[0]) == "shipping"


def test_equal_margins_are_accepted_together_or_not_at_all():
    """The same query under two tasks tells nothing apart, in whatever order its copies come."""
    right = np.repeat([True, False], 20)

    assert routing._margin(np.zeros(40), right, 0.95) == np.inf
