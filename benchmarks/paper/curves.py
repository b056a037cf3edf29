"""Gain against budget: the grid it is measured on, and its area."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tttembed_rag.errors import InputError
from tttembed_rag.vectors.rows import Float64


def breadth_grid(tasks: int, queries: int) -> list[int]:
    """Rewarded queries at each point of a gain-budget curve: doublings of one per task, down to 1, up to all.

    For the paper's 15 tasks and 12,263 queries these are its 15 points (1, 2, 4, 8, 15, 30, ..., 7680, 12263).
    """
    steps = range(-math.ceil(math.log2(tasks)), math.ceil(math.log2(queries)) + 1)
    doubled = {math.ceil(tasks * 2.0**step) for step in steps}
    return sorted({m for m in doubled if m < queries} | {queries})


def area_weights(budgets: Sequence[float], upto: float = np.inf) -> Float64:
    """Weights (p,) that turn gains at *budgets* into the area under the gain-budget curve (paper, Eq. aubc).

    The area is the mean of the gain over log b from the first budget to *upto* or the last, whichever
    is less; between budgets the gain is linear in log b.

    Args:
        budgets: (p,) rising, positive, at least two, the first below *upto*.
        upto: Upper end of the area.
    """
    rising = len(budgets) > 1 and budgets[0] > 0 and all(low < high for low, high in pairwise(budgets))
    if not rising or upto <= budgets[0]:
        raise InputError(f"budgets: expected rising positive numbers with two or more up to {upto:g}, got {budgets}")
    at = np.log(np.asarray(budgets, dtype=np.float64))
    end = min(np.log(upto), at[-1])
    weights = np.zeros(len(at))
    for i, (low, high) in enumerate(pairwise(at.tolist())):
        reached = min(high, end)
        if reached <= low:
            break
        share = (reached - low) / (high - low)
        width = reached - low
        weights[i] += width * (1 - share / 2)
        weights[i + 1] += width * share / 2
    return np.asarray(weights / (end - at[0]))
