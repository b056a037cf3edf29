"""Means over tasks with intervals, paired tests, and Holm's correction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from benchmarks.paper.estimates import holm, paired_p, task_means, task_shares
from tttembed_rag.evaluate.measures import mean_interval

TASKS = np.repeat([0, 1, 2], [5, 50, 200])


def drawn(columns: int = 2, seeds: int = 3, *, shift: float = 0.0) -> np.ndarray:
    """Gains (columns, seeds, 255) of three tasks of very different sizes and means."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(columns, seeds, len(TASKS))) + TASKS + shift


def test_tasks_weigh_the_same() -> None:
    """A task of 5 queries counts as much as one of 200."""
    values = drawn()
    expected = np.mean([values[0][:, task == TASKS].mean() for task in range(3)])

    assert expected == pytest.approx(task_means(values, TASKS)[0].mean)


def test_absent_queries_are_left_out() -> None:
    """NaN marks queries that are not of the population; a task without any is not counted."""
    values = drawn()
    values[:, 1, :3] = np.nan
    values[:, :, TASKS == 2] = np.nan
    expected = np.mean([np.nanmean(values[0][:, task == TASKS]) for task in range(2)])

    found = task_means(values, TASKS)[0]

    assert expected == pytest.approx(found.mean)
    assert found.low < found.mean < found.high


def test_a_column_that_was_never_measured_is_nan() -> None:
    values = drawn()
    values[1] = np.nan

    known, unknown = task_means(values, TASKS)

    assert np.isfinite(known.mean)
    assert np.isnan([unknown.mean, unknown.low, unknown.high]).all()


def test_a_share_is_a_ratio_of_means() -> None:
    """The mean over tasks of a column over that of the whole; half of every query is half, without any doubt."""
    values = drawn()
    whole = np.vstack([drawn(1, 3)[0]]) + 1.0
    expected = task_means(values, TASKS)[1].mean / task_means(whole[None], TASKS)[0].mean

    half, other = task_shares(np.stack([0.5 * whole, values[1]]), whole, TASKS, least=0.1)

    assert pytest.approx((half.mean, half.low, half.high)) == (0.5, 0.5, 0.5)
    assert expected == pytest.approx(other.mean)
    assert other.low < other.mean < other.high


def test_there_is_no_share_of_too_little() -> None:
    """Where the whole is less than what counts, or was not measured, a share of it is NaN."""
    much = drawn(1)[0]
    for whole in (much - 5.0, np.full((3, len(TASKS)), np.nan), 0.01 * much):
        assert np.isnan([share.mean for share in task_shares(drawn(), whole, TASKS, least=0.1)]).all()
    assert np.isfinite([share.mean for share in task_shares(drawn(), much, TASKS, least=0.1)]).all()


def test_columns_share_their_resamples() -> None:
    """Two columns that differ by a constant have a difference without any doubt."""
    values = drawn(1)

    plain, shifted = task_means(np.concatenate([values, values + 1.0]), TASKS)

    assert pytest.approx((shifted.low - plain.low, shifted.high - plain.high)) == (1.0, 1.0)


def test_one_task_and_seed_is_a_plain_bootstrap() -> None:
    values = np.random.default_rng(1).normal(size=400)

    found = task_means(values[None, None], np.zeros(400, dtype=np.intp))[0]

    assert mean_interval(values, level=0.95) == pytest.approx((found.low, found.high), abs=0.02)


def test_seeds_that_disagree_widen_the_interval() -> None:
    """Doubt between draws of rewarded queries is part of the interval."""
    agree = drawn(1, 4)
    disagree = agree + np.array([-2.0, -1.0, 1.0, 2.0])[None, :, None]

    narrow, wide = task_means(agree, TASKS)[0], task_means(disagree, TASKS)[0]

    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_the_paired_test_is_students() -> None:
    """With one task it is the paired t test of the differences."""
    differences = np.random.default_rng(2).normal(0.2, 1.0, 80)

    assert ttest_1samp(differences, 0.0).pvalue == pytest.approx(paired_p(differences, np.zeros(80, dtype=np.intp)))


def test_the_paired_test_weighs_tasks_the_same() -> None:
    """A gain on the many queries of one task and as large a loss on the few of another is no finding."""
    tasks = np.repeat([0, 1], [200, 20])
    noise = np.random.default_rng(3).normal(0.0, 1.0, 220)

    assert paired_p(np.where(tasks == 0, 1.0, -1.0) + noise, tasks) > 0.05
    assert paired_p(np.ones(220) + noise, tasks) < 1e-6


def test_no_difference_is_no_finding() -> None:
    """Two methods that never differ have p = 1; a difference that never varies has p = 0."""
    assert (paired_p(np.zeros(255), TASKS), paired_p(np.ones(50), TASKS[5:55])) == (1.0, 0.0)


def test_holm_by_hand() -> None:
    """Three p values are multiplied by 3, 2 and 1 from the least on, never falling, at most 1."""
    assert pytest.approx(holm([0.01, 0.04, 0.03])) == [0.03, 0.06, 0.06]


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_the_order_and_never_lowers(p: list[float]) -> None:
    """A corrected p is at least the plain one, and the order of findings stays."""
    corrected = holm(p)

    assert all(plain <= after <= 1 for plain, after in zip(p, corrected, strict=True))
    assert all(np.diff(np.array(corrected)[np.argsort(p, kind="stable")]) >= 0)
