"""Random trials of real faults: `make faults` runs many, `make test` a few.

A trial is drawn from its seed and the name of its test, so that a failing one is run again by its id:
`TTTEMBED_FAULT_TRIALS=50 python -m pytest integrations/tttembed-store/tests/faults -k 'test_name and seed17'`.
"""

import os
import time
import zlib

import numpy as np
import pytest
from tttembed_store.sql import open_store

from tests.workers import child

__all__ = ["child"]
# Trials of each fault, and the seed of the first.
TRIALS = int(os.environ.get("TTTEMBED_FAULT_TRIALS", "2"))
FIRST = int(os.environ.get("TTTEMBED_FAULT_SEED", "0"))


def pytest_generate_tests(metafunc):
    """A test that takes a seed is run for each; one on both databases for half of them on each."""
    if "seed" in metafunc.fixturenames:
        trials = -(-TRIALS // 2) if "store_url" in metafunc.fixturenames else TRIALS
        metafunc.parametrize("seed", range(FIRST, FIRST + trials), ids="seed{}".format)


@pytest.fixture
def rng(seed, request):
    """The random numbers of a trial."""
    return np.random.default_rng([zlib.crc32(request.function.__name__.encode()), seed])


@pytest.fixture(scope="session")
def world(world, planted):
    """60 queries with 8 candidates each."""
    return type(world)(planted(60, strength=0.9, dtype=np.float32))


@pytest.fixture
def slow_judge(serve, world):
    """Starts a judge of the world that takes some seconds for each answer: `slow_judge(seconds)`."""

    def start(seconds):
        def answer(_, body, __):
            time.sleep(seconds)
            return 200, {}, world.reply(world.judged(body["query"], body["documents"]))

        return serve(answer)

    return start


@pytest.fixture
def store(store_url):
    """An empty store of either kind."""
    with open_store(store_url) as opened:
        yield opened
