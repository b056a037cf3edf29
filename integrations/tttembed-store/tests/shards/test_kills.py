"""kill -9 of an actor, a node or the process that asks, at a random instant of a fit over shards: the same bits.

`TTTEMBED_FAULT_TRIALS=50 python -m pytest integrations/tttembed-store/tests/shards/test_kills.py` runs more trials.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from threading import Thread

import pytest
from tttembed_store.shards import fit_sharded

from tttembed_rag import Offsets
from tttembed_rag.testing import eventually

pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.faults]

# Seconds in which something is killed: about as long as a fit takes here, and through Ray.
HERE, THROUGH_RAY = 0.5, 3.0
ASKED = {"scope": "task", "gate": False}
WORK = """
import sys

from tttembed_store.shards import fit_sharded

print("begins", flush=True)
fit_sharded(sys.argv[1], scope="task", gate=False, engine=sys.argv[2]).save(sys.argv[3])
"""


@contextmanager
def beside(work):
    """A block beside which *work* runs; it ends when that has ended too."""
    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def kill(pid):
    """End a process, if it has not ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_an_actor(cluster, folder, vectors, holders, seed):
    """It starts again, reads its shards again, and is asked again."""
    draw, before = random.Random(seed), set(holders())
    alone = fit_sharded(folder(5), **ASKED)

    def kill_one():
        eventually(lambda: set(holders()) - before)
        time.sleep(draw.uniform(0.0, THROUGH_RAY))
        if here := sorted(set(holders()) - before):
            kill(draw.choice(here))

    with beside(kill_one):
        offsets = fit_sharded(folder(5), engine="ray", **ASKED)

    assert vectors(offsets) == vectors(alone)


def test_a_node(cluster, folder, vectors, seed):
    """Its actors start on what is left, however full that is."""
    draw, alone = random.Random(seed), fit_sharded(folder(5), **ASKED)
    node = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)

    def lose_it():
        time.sleep(draw.uniform(0.0, THROUGH_RAY))
        cluster.remove_node(node, allow_graceful=False)

    with beside(lose_it):
        offsets = fit_sharded(folder(5), engine="ray", **ASKED)

    assert vectors(offsets) == vectors(alone)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_the_process_that_asks(cluster, folder, vectors, holders, tmp_path, engine, seed):
    """It leaves the whole file or none, and no actor; the next run gives the same bits."""
    draw, before, out = random.Random(seed), set(holders()), tmp_path / "offsets.safetensors"
    alone = vectors(fit_sharded(folder(5), **ASKED))
    command = [sys.executable, "-c", WORK, folder(5), engine, out]
    environment = os.environ | {"RAY_ADDRESS": cluster.address}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as driver:
        driver.stdout.readline()
        time.sleep(draw.uniform(0.0, {"local": HERE, "ray": THROUGH_RAY}[engine]))
        driver.kill()

    assert not out.exists() or vectors(Offsets.load(out)) == alone
    eventually(lambda: not set(holders()) - before, seconds=30)
    fit_sharded(folder(5), engine=engine, **ASKED).save(out)
    assert vectors(Offsets.load(out)) == alone
