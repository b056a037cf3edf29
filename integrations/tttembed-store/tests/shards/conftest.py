"""Rewards in shards, and a Ray cluster of several nodes on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tttembed_rag import Rewards

TRIALS = int(os.environ.get("TTTEMBED_FAULT_TRIALS", "1"))
FIRST = int(os.environ.get("TTTEMBED_FAULT_SEED", "0"))


def pytest_generate_tests(metafunc):
    """A test that takes a seed is run for each."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(FIRST, FIRST + TRIALS), ids="seed{}".format)


def made_rewards(n=600, tasks=2, k=6, width=24, documents=400, seed=0):
    """Rewards with a preference that all queries share."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((documents, width), dtype=np.float32)
    rows = np.array([rng.choice(documents, k, replace=False) for _ in range(n)])
    queries = vectors[rows].sum(axis=1) + rng.standard_normal((n, width), dtype=np.float32)
    near = np.array([vectors[row] @ query for row, query in zip(rows, queries, strict=True)])
    taste = (vectors @ rng.standard_normal(width))[rows]
    score = (near - near.mean()) / near.std() + 0.8 * taste / taste.std() + 0.3 * rng.standard_normal((n, k))
    return Rewards.from_indexed(
        queries,
        vectors,
        rows,
        1 / (1 + np.exp(-2 * score)),
        [f"task{q % tasks}" for q in range(n)],
        [f"q{q}" for q in range(n)],
        judge="judge@1",
        doc_ids=[f"d{row}" for row in range(documents)],
        embedder="model@1",
    )


@pytest.fixture(scope="session")
def made():
    """The function that makes rewards with a preference that all queries share."""
    return made_rewards


@pytest.fixture(scope="session")
def rewards():
    """Rewards of two tasks."""
    return made_rewards()


@pytest.fixture(scope="session")
def folder(rewards, tmp_path_factory):
    """A function that gives a folder of the rewards, cut into so many shards."""
    root = tmp_path_factory.mktemp("shards")

    def cut(shards):
        target = root / str(shards)
        if not target.exists():
            rewards.to_parquet(target, shards=shards)
        return target

    return cut


@pytest.fixture(scope="session")
def vectors():
    """A function that gives every vector, bit by bit, by key."""
    return lambda offsets: {key: offset.vector.tobytes() for key, offset in offsets.items()}


@pytest.fixture(scope="session")
def verdicts():
    """A function that gives the evidence of the shared offsets, by key."""
    return lambda offsets: {key: offset.evidence for key, offset in offsets.items() if offset.query_id is None}


@pytest.fixture(scope="session")
def labels_of():
    """A function that gives what the judge says of every candidate of some queries."""

    def labels(rewards, rows):
        pairs = [(row, pair) for row in rows for pair in range(rewards.starts[row], rewards.starts[row + 1])]
        names = rewards.doc_ids[rewards.candidates]
        return {(str(rewards.query_ids[row]), str(names[pair])): float(rewards.values[pair]) for row, pair in pairs}

    return labels


@pytest.fixture(scope="session")
def cluster():
    """A cluster of two nodes beside the one that the driver is connected to, all on this machine."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80_000_000}
    # A lost node is missed after a second, not after fifteen.
    pulse = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
    head = {"include_dashboard": False, "_system_config": pulse}
    cluster = Cluster(initialize_head=True, head_node_args=small | head)
    cluster.add_node(**small)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def holders():
    """A function that gives the process ids of the actors below this process."""

    def ours(pid):
        while pid > 1 and pid != os.getpid():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return pid > 1

    def actors():
        pids = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and b"ray::PoolActor" in (entry / "cmdline").read_bytes():
                    pids += [int(entry.name)] if ours(int(entry.name)) else []
            except OSError:  # it ended
                continue
        return sorted(pids)

    return actors
