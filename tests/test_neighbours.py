"""Neighbours: unjudged documents of a task's pool as further candidates."""

from dataclasses import replace

import numpy as np
from numpy.testing import assert_array_equal

from tttembed_rag import Rewards
from tttembed_rag.fitting.neighbours import NEIGHBOURS, with_neighbours


def widened(rewards):
    """The rewards with neighbours, split per query into (judged, neighbours) pairs of candidates and values."""
    wide = with_neighbours(rewards)
    candidates, values = (np.split(part, wide.starts[1:-1]) for part in (wide.candidates, wide.values))
    return [
        ((c[:depth], c[depth:]), (v[:depth], v[depth:]))
        for c, v, depth in zip(candidates, values, rewards.depths, strict=True)
    ]


def test_judged_candidates_come_first_unchanged(some_rewards):
    rewards = some_rewards(6, depths=[2, 5, 3, 4, 2, 6])
    lists = widened(rewards)

    assert_array_equal(rewards.candidates, np.concatenate([c[0] for c, _ in lists]))
    assert_array_equal(rewards.values, np.concatenate([v[0] for _, v in lists]))


def test_neighbours_are_the_nearest_unjudged_documents(some_rewards):
    """Each query gets its most similar documents judged for others, two for each of its own."""
    rewards = some_rewards(8, depths=4)
    unit = rewards.doc_vectors / rewards.doc_norms[:, None]
    for q, ((judged, added), _) in enumerate(widened(rewards)):
        order = np.argsort(-(unit @ rewards.query_vectors[q]))

        assert [d for d in order.tolist() if d not in judged][: NEIGHBOURS * 4] == added.tolist()


def test_they_are_no_better_than_the_worst_judged(some_rewards):
    """A neighbour's reward is the least of the task: of a query that was shown good ones only, it would be good."""
    rewards = some_rewards(6, depths=4, tasks=list("aaabbb"))
    worst = {task: rewards.values.reshape(6, 4)[rewards.tasks == task].min() for task in "ab"}
    for task, (_, (_, added)) in zip(rewards.tasks.tolist(), widened(rewards), strict=True):
        assert {worst[task]} == set(added.tolist())


def test_tasks_have_pools_of_their_own(some_rewards):
    """Documents of another task may lie in another index."""
    rewards = some_rewards(6, depths=3, tasks=list("aabbbb"))
    owner = np.repeat(rewards.tasks, 3)
    for q, ((_, added), _) in enumerate(widened(rewards)):
        assert {str(rewards.tasks[q])} == set(owner[added].tolist())


def test_what_one_log_of_a_query_judged_is_judged(some_rewards):
    """A query logged twice with different candidates takes none of them for unjudged."""
    rewards = some_rewards(3, depths=4)
    queries = rewards.query_vectors[[0, 0, 1]]
    lists = widened(replace(rewards, query_vectors=queries, query_norms=np.ones(3)))

    assert all(set(added.tolist()) <= {8, 9, 10, 11} for (_, added), _ in lists[:2])


def test_a_single_query_has_none(some_rewards):
    rewards = some_rewards(1, depths=5)
    wide = with_neighbours(rewards)

    assert_array_equal(wide.candidates, rewards.candidates)


def test_the_pool_is_bounded_and_the_order_of_queries_does_not_matter(some_rewards):
    """More queries than a pool holds are dealt into pools by what they are, not by where they stand."""
    rewards = some_rewards(300, depths=2, width=6)
    order = np.random.default_rng(0).permutation(300)
    added = [rewards.doc_vectors[c[1]] for c, _ in widened(rewards)]
    again = rewards.take(order)

    for q, (c, _) in zip(order.tolist(), widened(again), strict=True):
        assert_array_equal(added[q], again.doc_vectors[c[1]])


def test_unused_documents_stay_unused():
    documents = np.array([[1.0, 0.0], [0.8, 0.6], [np.nan, 0.0], [0.0, 1.0], [0.6, 0.8]])
    rewards = Rewards.from_indexed(np.eye(2), documents, [[0, 1], [3, 4]], [[1.0, 0.5], [0.2, 0.9]])
    kept = {tuple(rewards.doc_vectors[d]) for (_, added), _ in widened(rewards) for d in added}

    assert not any(np.isnan(vector).any() for vector in kept)


def test_a_copy_of_what_was_judged_is_judged(some_rewards):
    """A document that each query brings along as a row of its own is one document, and no neighbour of itself."""
    documents = np.random.default_rng(0).standard_normal((4, 8))
    queries = documents[:1] + 0.3 * np.random.default_rng(1).standard_normal((3, 8))
    rewards = Rewards.from_arrays(queries, np.tile(documents, (3, 1, 1)), np.tile([0.9, 0.5, 0.1, 0.0], (3, 1)))

    assert_array_equal(with_neighbours(rewards).depths, [4, 4, 4])
