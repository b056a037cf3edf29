"""kill -9 at every step of a batch, and at random moments: each pair is paid for once, and all are rewarded in the end.

`TTTEMBED_FAULT_TRIALS=50 python -m pytest integrations/tttembed-store/tests/batches -k random` runs more trials.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from tttembed_store.sql import open_store
from tttembed_store.worker import Worker

from tttembed_rag.judges import open_judge
from tttembed_rag.judging import Price
from tttembed_rag.testing import eventually

pytestmark = [pytest.mark.slow, pytest.mark.faults]

TRIALS = int(os.environ.get("TTTEMBED_FAULT_TRIALS", "2"))
FIRST = int(os.environ.get("TTTEMBED_FAULT_SEED", "0"))
# Seconds until a batch that is not in the list was never made: longer than a request of a killed worker is under way.
SETTLING = 1.5
# Requests of a batch to each service, in their order.
STEPS = {
    "openai": ("files", "batches", "batches/batch-0", "content"),
    "gemini": ("/put", ":batchGenerateContent", "batches/0", ":download"),
}


@pytest.fixture
def process(child, service, store_url):
    """Starts workers that go on until they are killed."""

    def work(_):
        judge, batches = open_judge(service.spec), service.service(settling=SETTLING)
        with open_store(store_url) as store:
            options = {"min_new": 100_000, "lease_seconds": 0.2, "price": Price(request=0.001)}
            Worker(store, judge, batches=batches, **options).run(every=0.01, stop=Event())

    return lambda: child(work)


def finished(store, service, process, pairs, *, kills):
    """Let a last worker finish, and check that each pair was paid for once.

    What a worker that was killed had charged for its examination stays counted, whether it was asked or not.
    """
    last = process()
    eventually(lambda: store.counts().rewards == pairs and not store.open_batches.of(""), seconds=60)
    last.end()
    service.finish()
    spent = store.judge_queue.spent()

    assert len(service.paid) == len(set(service.paid)) == pairs
    assert pairs <= spent.pairs <= pairs + len(service.single) + 48 * kills
    assert 0.0005 * pairs < 0.0005 * pairs + 0.001 * 48 <= spent.usd + 1e-9


@pytest.fixture
def store_url(request):
    """SQLite, but for tests that name a database."""
    return request.getfixturevalue(getattr(request, "param", "sqlite_url"))


@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize(
    ("service", "step"), [(name, step) for name, steps in STEPS.items() for step in steps], indirect=["service"]
)
def test_a_worker_killed_at_a_step(step, when, served, process, store_url, service):
    """The service kills the worker before it does what it is asked for, or behind it, without an answer."""
    killed = Event()
    workers = []

    def fault(method, path):
        if path.endswith(step) and (method == "done") == (when == "behind") and not killed.is_set():
            killed.set()
            workers[0].end()

    service.fault = fault
    with open_store(store_url) as store:
        store.observe(served(4))
        workers.append(process())
        eventually(killed.is_set, seconds=60)
        finished(store, service, process, 12, kills=1)


@pytest.mark.parametrize("path", ["/files", "/files/file-1/content"])
def test_a_kill_leaves_no_text_in_a_file(path, served, process, store_url, service, tmp_path, monkeypatch):
    """Requests and results hold what users asked: they stand in memory alone, where `forget` need not look."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    killed, workers = Event(), []

    def fault(method, asked):
        if method != "done" and asked == path and not killed.is_set():
            workers[0].end()
            killed.set()

    service.fault = fault
    with open_store(store_url) as store:
        store.observe(served(4))
        workers.append(process())
        eventually(killed.is_set, seconds=60)
        file = Path(store_url.removeprefix("sqlite:///"))
    written = [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith(file.name)]

    assert [path for path in written if b"word0b" in path.read_bytes()] == []
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("store_url", ["sqlite_url", "postgres_url"], ids=["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + TRIALS), ids="seed{}".format)
def test_workers_killed_at_random(seed, served, process, store_url, service):
    """Workers that are killed one after the other, by a service that takes its time."""
    rng = np.random.default_rng(seed)
    pause = rng.uniform(0.0, 0.03)
    service.fault = lambda *_: time.sleep(rng.uniform(0.0, pause))
    service.looks = int(rng.integers(0, 4))
    with open_store(store_url) as store:
        store.observe(served(6))
        for number in range(int(rng.integers(2, 6))):
            worker = process()
            time.sleep(rng.uniform(0.0, 0.6))
            worker.end()
            store.observe(served(2, first=10 * (number + 1)))
        pairs = store.counts().pairs
        finished(store, service, process, pairs, kills=number + 1)
