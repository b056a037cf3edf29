"""The grid of budgets, and the area under a gain-budget curve."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper.curves import area_weights, breadth_grid
from tttembed_rag import InputError


def test_the_grid_of_the_paper_is_the_papers() -> None:
    """15 tasks and 12,263 queries give the paper's 15 points."""
    expected = [1, 2, 4, 8, 15, 30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 12263]

    assert expected == breadth_grid(15, 12263)


@given(tasks=st.integers(1, 40), more=st.integers(0, 100_000))
def test_a_grid_runs_from_one_query_to_all(tasks: int, more: int) -> None:
    """Whatever the sizes, a grid rises from 1 to all queries, by doublings at most."""
    grid = breadth_grid(tasks, tasks + more)

    assert (1, tasks + more) == (grid[0], grid[-1])
    assert all(low < high <= 2 * low for low, high in pairwise(grid))


def test_the_area_is_the_papers_integral() -> None:
    """The weights are those of the trapezoidal rule over log b, divided by its range."""
    b, gains = np.array([0.01, 0.1, 2.0, 10.0]), np.array([-1.0, 0.5, 3.0, 4.0])
    expected = np.trapezoid(gains, np.log(b)) / (np.log(10.0) - np.log(0.01))

    assert expected == pytest.approx(area_weights(b) @ gains)


@given(gain=st.floats(-5, 5), upto=st.floats(0.02, 1000))
def test_the_area_under_a_constant_is_that_constant(gain: float, upto: float) -> None:
    """Wherever the area ends, weights sum to one."""
    assert gain == pytest.approx(area_weights([0.01, 0.3, 2.0, 50.0], upto) @ np.full(4, gain))


def test_an_area_may_end_between_budgets() -> None:
    """From b = 2 to 32 the gain rises from 0 to 4 in log b; at 8 it is 2, so the mean up to there is 1."""
    assert pytest.approx(1.0) == area_weights([2.0, 32.0], 8.0) @ np.array([0.0, 4.0])


def test_budgets_beyond_the_end_weigh_nothing() -> None:
    """What is measured beyond the end of the area does not change it."""
    assert area_weights([1.0, 2.0, 4.0, 8.0], 2.0)[2:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("budgets", [[1.0], [2.0, 1.0], [0.0, 1.0], [9.0, 10.0]])
def test_no_range_has_no_area(budgets: list[float]) -> None:
    """One budget, falling or zero ones, or none below the end are refused."""
    with pytest.raises(InputError, match="budgets: expected rising"):
        area_weights(budgets, 8.0)
