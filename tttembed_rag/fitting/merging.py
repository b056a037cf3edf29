"""One row for each query, where several sources rewarded it or it was logged again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tttembed_rag.rewards.columns import starts_of
from tttembed_rag.rewards.rewards import Rewards
from tttembed_rag.vectors.checks import IntArray


def one_row_each(rewards: Rewards) -> Rewards:
    """The rewards with one row for each query of a task, of the mean rewards of its rows; as they are with no more."""
    query = query_numbers(rewards)
    return rewards if len(np.unique(query)) == len(query) else merged(rewards, query)


def merged(rewards: Rewards, groups: IntArray, *, absent: bool = False) -> Rewards:
    """One query for each of *groups* (n,), with the distinct candidates of all its queries and their mean rewards.

    Of copies of a text it has the one that its queries were shown first. The order depends on nothing but the vectors.
    Without this a question that was logged again, or a text under two ids, would pass for agreement. With *absent*, a
    candidate that some of its queries were not shown has their least reward of these: what few have seen is not the
    word of all.
    """
    query = np.repeat(groups, rewards.depths)
    document = rewards.same_documents
    order = np.lexsort((document, query))
    new = np.append(True, (np.diff(query[order]) != 0) | (np.diff(document[order]) != 0))
    first, pair = order[new], np.cumsum(new) - 1
    _, rows, depths = np.unique(query[first], return_index=True, return_counts=True)
    queries = np.searchsorted(rewards.starts, first[rows], side="right") - 1
    total, count = np.bincount(pair, rewards.values[order]), np.bincount(pair)
    if absent:
        least = np.full(int(groups.max()) + 1, np.inf)
        np.minimum.at(least, query, rewards.values)
        voters = np.bincount(groups)[query[first]]
        total, count = total + (voters - count) * least[query[first]], voters
    return replace(
        rewards,
        query_vectors=rewards.query_vectors[queries],
        query_norms=rewards.query_norms[queries],
        starts=starts_of(depths),
        candidates=rewards.candidates[first],
        values=total / count,
        tasks=rewards.tasks[queries],
        query_ids=rewards.query_ids[queries],
        sources=rewards.sources[queries],
        query_texts=rewards.query_texts[queries],
    )


def query_numbers(rewards: Rewards) -> IntArray:
    """(n,) a number for each query: rows of one task and id share it, in the order of their first row."""
    numbers: dict[tuple[str, str], int] = {}
    names = zip(rewards.tasks.tolist(), rewards.query_ids.tolist(), strict=True)
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.intp)
