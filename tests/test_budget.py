"""Task-balanced water-filling: which queries are rewarded under a budget."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tttembed_rag import InputError
from tttembed_rag.judging.plan import water_fill

law = settings(max_examples=60, deadline=None, derandomize=True)
task_sizes = st.lists(st.integers(0, 12), min_size=1, max_size=6)


@law
@given(sizes=task_sizes, queries=st.integers(0, 60))
def test_spends_the_budget_or_takes_all_and_balances_tasks(sizes, queries):
    """No query is rewarded twice, and no open task is more than one query behind another."""
    filled = water_fill(sizes, queries)
    taken = [len({*rows.tolist()} & {*range(size)}) for rows, size in zip(filled, sizes, strict=True)]
    still_open = [count for count, size in zip(taken, sizes, strict=True) if count < size]

    assert taken == [len(rows) for rows in filled]
    assert min(queries, sum(sizes)) == sum(taken)
    assert all(max(taken) - count <= 1 for count in still_open)


@pytest.mark.parametrize(
    ("sizes", "queries", "expected"), [([1, 9, 9], 9, [1, 4, 4]), ([5, 5, 5], 5, [2, 2, 1]), ([], 5, [])]
)
def test_tasks_take_turns(sizes, queries, expected):
    """What a small task cannot take goes to the others, and the remainder to the first ones."""
    assert expected == [len(rows) for rows in water_fill(sizes, queries)]


@pytest.mark.parametrize("seed", [1000, 7])
def test_task_t_is_drawn_with_seed_plus_t(seed):
    """Task t takes the beginning of the permutation of seed *seed* + t, the paper's 1000 + t by default."""
    expected = [np.random.default_rng(seed + t).permutation(8)[:3].tolist() for t in range(3)]
    filled = water_fill([8, 8, 8], 9, **({} if seed == 1000 else {"seed": seed}))

    assert expected == [rows.tolist() for rows in filled]


def test_a_negative_budget_is_an_error():
    with pytest.raises(InputError, match=r"^queries: expected a number >= 0, got -1$"):
        water_fill([3], -1)
