"""Private and local offsets learned in batches, on threads and processes: the same offsets."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from tttembed_rag import InputError, Rewards, fit
from tttembed_rag.fitting import spread_over
from tttembed_rag.fitting.scopes import batches


@pytest.fixture(scope="module")
def deep():
    """Rewards so wide that their queries are several batches."""
    rng = np.random.default_rng(0)
    n, depth, width = 1400, 2, 4096
    return Rewards.from_arrays(
        rng.normal(size=(n, width)).astype(np.float32),
        rng.normal(size=(n, depth, width)).astype(np.float32),
        rng.random((n, depth)),
    )


def vectors(offsets):
    """Every vector and map, by key."""
    return {key: (one.vector.tobytes(), one.map.weights.tobytes() if one.map else b"") for key, one in offsets.items()}


class Counted:
    """A map that counts what goes through it."""

    def __init__(self, through):
        self.through, self.items = through, 0

    def __call__(self, function, items, /):
        """Run them."""
        items = list(items)
        self.items += len(items)
        return self.through(function, items)


@pytest.mark.parametrize("scope", ["query", "local"])
def test_threads_learn_the_same(deep, scope):
    """Bit by bit, batch by batch."""
    alone = fit(deep, scope=scope, gate=False)
    with ThreadPoolExecutor(2) as pool, spread_over(counted := Counted(pool.map)):
        spread = fit(deep, scope=scope, gate=False)

    assert vectors(spread) == vectors(alone)
    assert counted.items == len(list(batches(deep))) == 2


@pytest.mark.slow
def test_processes_learn_the_same(deep):
    """What goes to another process is all that it needs."""
    alone = fit(deep, scope="query", gate=False)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool, spread_over(pool.map):
        spread = fit(deep, scope="query", gate=False)

    assert vectors(spread) == vectors(alone)


def test_the_map_ends_with_its_block(deep):
    """Also where the block fails."""
    counted = Counted(map)
    with pytest.raises(KeyError), spread_over(counted):
        raise KeyError
    fit(deep.take(np.arange(3)), scope="query", gate=False)

    assert counted.items == 0


def test_an_executor_itself_is_an_error():
    """The line says what to give."""
    refused = pytest.raises(InputError, match=r"expected a function like map, got ThreadPoolExecutor \(give executor")
    with ThreadPoolExecutor(1) as pool, refused, spread_over(pool):
        pass
