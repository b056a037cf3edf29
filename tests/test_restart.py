"""A PostgreSQL server is stopped and started under a serving process: nothing is served wrongly, nothing is lost."""

import logging
import shutil
import tempfile
import time

import numpy as np
import pytest

from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.following import follow
from tttembed_rag.serving import Steering
from tttembed_rag.storelog import StoreLog
from tttembed_rag.stores import open_store

WIDTH = 8
BASE = np.linspace(-1.0, 2.0, WIDTH).tolist()
UNGATED = Evidence(4, None, None, "ungated", "made for a test")


def offsets_of(seed):
    """One global offset, drawn at random."""
    return Offsets([Offset("global", np.random.default_rng(seed).normal(size=WIDTH), 0.8, 4, UNGATED)], width=WIDTH)


def eventually(true):
    """Whether a condition holds within some seconds."""
    until = time.monotonic() + 20
    while not true() and time.monotonic() < until:
        time.sleep(0.005)
    return true()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A function that starts the server and one that stops it; it is stopped at the end."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    pgserver = pytest.importorskip("pgserver", reason="pgserver is not installed")
    # Not below pytest's own folder, which the server's user may not enter where root runs the tests.
    folder = tempfile.mkdtemp(prefix="tttembed-restart-")
    running = []

    def start():
        running.append(pgserver.get_server(folder, cleanup_mode="stop"))
        return running[0].get_uri().replace("postgresql://", "postgresql+psycopg://", 1)

    def stop():
        while running:
            running.pop().cleanup()

    try:
        start()
        stop()
    except Exception as error:  # noqa: BLE001 - whatever keeps it from starting here
        pytest.skip(f"PostgreSQL could not be started: {error}")
    yield start, stop
    stop()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_restarted_server_is_met_again(server, caplog):
    """Meanwhile the last version is served and observations wait; later both catch up."""
    start, stop = server
    url = start()
    with open_store(url) as store, StoreLog(url) as log:
        store.publish(offsets_of(1), by="test")
        live = follow(url, every=0.02)
        steering = Steering(live)
        log.observe("before", ["a"])
        flushed = log.flush()
        with caplog.at_level(logging.WARNING, logger="tttembed_rag"):
            stop()
            log.observe("during", ["a"])
            noticed = eventually(lambda: live.status.error is not None and log.error is not None)
            during = steering.apply(BASE, "q")
            start()
            back = eventually(lambda: live.status.error is None) and log.flush(20)
        store.publish(offsets_of(2), by="test")

        assert (flushed, noticed, back) == (True, True, True)
        assert during == offsets_of(1).apply(BASE)
        assert eventually(lambda: steering.apply(BASE, "q") == offsets_of(2).apply(BASE))
        assert store.counts().queries == 2
        live.close()
    assert len([one for one in caplog.records if one.name == "tttembed_rag.background"]) == 4
