"""What lies below fails: the disk is full, the file read-only or damaged, the server restarts, the clock jumps."""

import os
import resource
import shutil
import sqlite3
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select
from tttembed_store import StoreLog, follow
from tttembed_store.sql import open_store, schema
from tttembed_store.worker import Worker

from tests.traffic import JUDGE, traffic
from tests.workers import lost, one_stamp, stamp_of, stamped, unsound, write_on
from tttembed_rag import Steering
from tttembed_rag.errors import StoreError, TTTEmbedError

BASE = np.linspace(-1.0, 2.0, 8).tolist()
NOBODY = 65534


def test_a_full_disk(child, sqlite_url, rng):
    """No byte can be written any more: what was acknowledged stays, and it goes on once there is room."""
    room = int(rng.integers(300_000, 900_000))
    seed = int(rng.integers(2**31))

    def work(tell):
        with open_store(sqlite_url) as store:
            steering = Steering(follow(sqlite_url, every=0.005))
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
            mine = np.random.default_rng(seed)
            first = write_on(store, mine, tell, first=0, steps=40)
            steering.apply(BASE, "q")
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            write_on(store, mine, tell, first=first, steps=3)

    open_store(sqlite_url).close()
    writer = child(work)
    code = writer.wait()
    messages = writer.messages

    assert code == 0
    assert ["away", 0, 0] in messages
    assert [message[0] for message in messages[-6:]] == ["rewarded", "published"] * 3
    with open_store(sqlite_url) as store:
        assert lost(store, messages) == set()
        assert [number for what, number, _ in messages if what == "published"] == [
            version.number for version in reversed(store.registry.versions(limit=100))
        ]
        assert stamp_of(store.registry.version()) >= 0
        assert unsound(store) == []


@pytest.fixture
def open_folder():
    """A folder that others than its owner may enter."""
    folder = Path(tempfile.mkdtemp(prefix="tttembed-faults-"))
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


def test_a_read_only_file(child, open_folder, rng):
    """A store that may not be written: what is live is served, captured queries wait until it may be again."""
    url = f"sqlite:///{open_folder}/ttt.db"
    with open_store(url) as store:
        store.registry.publish(stamped(3), by="test", note="3")
        store.observe(traffic(5), judge=JUDGE)
        pause = rng.uniform(0.05, 0.3)

        def lock(locked):
            for path in open_folder.iterdir():
                path.chmod(0o444 if locked else 0o666)
            open_folder.chmod(0o555 if locked else 0o777)

        def work(tell):
            if os.geteuid() == 0:
                os.setuid(NOBODY)
            steering = Steering(follow(url, every=0.01))
            log = StoreLog(url, JUDGE)
            tell("open")
            for number in range(200):
                steering.apply(BASE, "q")
                log.record(f"question {number}", ["a", "b"], [0.0, 1.0])
                if number == 20:
                    tell("at work", log.flush(0.2))
                time.sleep(0.001)
            tell("flushed", log.flush(60), log.counts.written, log.counts.failed)
            tell("served", steering.apply(BASE, "q"))

        lock(locked=True)
        server = child(work)
        server.until(lambda messages: len(messages) >= 2)
        time.sleep(pause)
        lock(locked=False)
        code = server.wait()

        assert code == 0
        assert [
            ["open"],
            ["at work", False],
            ["flushed", True, 200, 0],
            ["served", stamped(3).apply(BASE)],
        ] == server.messages
        assert store.counts().queries == 205
        assert unsound(store) == []


def test_a_damaged_version(store, rng, seed):
    """Bytes of the live version are changed, cut off or added: readers say so and stay with the last one.

    Other tenants are served what is new.
    """
    live = follow(store, every=60.0)
    steering = Steering(live)
    follower = live._reader
    for number in (1, 2):
        store.registry.publish(stamped(number), by="test", note=str(number))
    follower.refresh([""])
    third = store.registry.publish(stamped(3), by="test", note="3").number
    versions = schema.versions
    with store._database.write("publishing") as connection:
        content = bytearray(connection.execute(versions.select().where(versions.c.number == third)).one().content)
        damage = ["flip a number", "flip", "cut", "add", "empty"][seed % 5]
        if damage == "flip":
            content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        elif damage == "flip a number":  # which then is another good one
            place = content.index(stamped(3)["global"].vector.tobytes())
            content[place + int(8 * rng.integers(len(BASE)) + rng.integers(6))] ^= 1 << int(rng.integers(8))
        elif damage == "cut":
            del content[int(rng.integers(len(content))) :]
        elif damage == "add":
            content += rng.bytes(int(rng.integers(1, 50)))
        else:
            content.clear()
        connection.execute(versions.update().where(versions.c.number == third).values(content=bytes(content)))
    store.registry.publish(stamped(4), by="test", note="4", tenant="other")
    follower.refresh(["", "other"])
    meanwhile, error = steering.apply(BASE, "q"), live.status.error
    with pytest.raises(StoreError, match=f"version {third}"):
        _ = store.registry.version().offsets
    store.registry.rollback(by="test")
    follower.refresh([""])

    assert stamped(2).apply(BASE) == meanwhile
    assert f"version {third}" in error
    assert one_stamp(follower.snapshot("other").offsets) == 4
    assert stamped(2).apply(BASE) == steering.apply(BASE, "q")
    assert live.status.error is None
    live.close()


def test_a_damaged_file(sqlite_url, rng):
    """Pages of SQLite's file are overwritten or cut off: errors in one line, and queries are answered as before."""
    with open_store(sqlite_url) as store:
        store.observe(traffic(60), judge=JUDGE)
        store.registry.publish(stamped(1), by="test", note="1")
        live = follow(store, every=60.0)
        steering = Steering(live)
        path = Path(store._database.url.database)
        with sqlite3.connect(path) as bare:
            bare.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        bare.close()
        store.close()
        size = path.stat().st_size
        if rng.random() < 0.3:
            os.truncate(path, int(rng.integers(1, size)))
        else:
            with path.open("r+b") as file:
                for _ in range(int(rng.integers(1, 10))):
                    file.seek(int(rng.integers(size - 512)))
                    file.write(rng.bytes(512))
        calls = [
            lambda: store.rewards(JUDGE),
            lambda: store.observe(traffic(30, first=1000), judge=JUDGE),
            lambda: [version.offsets for version in store.registry.versions()],
            lambda: store.registry.publish(stamped(2), by="test", note="2"),
            lambda: store.registry.rollback(by="test"),
            store.counts,
            lambda: Worker(store).round(),
            lambda: open_store(sqlite_url).close(),
        ]
        surprises = []
        for place in rng.permutation(len(calls)).tolist():
            live._reader.refresh([""])
            if steering.apply(BASE, "q") not in (BASE, stamped(1).apply(BASE), stamped(2).apply(BASE)):
                surprises.append("a damaged vector was served")
            try:
                calls[place]()
            except TTTEmbedError as error:
                if "\n" in str(error):
                    surprises.append(str(error))
            except Exception as error:  # noqa: BLE001 - it is what must not come
                surprises.append(f"{place}: {error!r}")
        live.close()

        assert surprises == []


def test_a_clock_that_jumps(child, sqlite_url, rng, world):
    """However the clock jumps, by seconds or days, rewards stay, versions increase, and a dead worker's lease ends."""
    jumps = rng.choice([-86_400.0, -3_600.0, -60.0, -1.0, 1.0, 60.0, 3_600.0, 86_400.0], 6).tolist()
    pauses = rng.uniform(0.0, 0.1, len(jumps)).tolist()

    def work(tell):
        true, ahead = time.time, [0.0]
        time.time = lambda: true() + ahead[0]
        stop = threading.Event()

        def jump():
            for seconds, pause in zip(jumps, pauses, strict=True):
                time.sleep(pause)
                ahead[0] += seconds
            time.sleep(0.1)
            stop.set()

        with open_store(sqlite_url) as store:
            clock = threading.Thread(target=jump)
            clock.start()
            worker = Worker(store, lease_seconds=0.3, scope="task")
            running = threading.Thread(target=worker.run, kwargs={"every": 0.02, "stop": stop})
            running.start()
            place = 0
            while not stop.is_set() and place < 60:
                store.observe(world.served(range(place, place + 2), judged=True), judge="j")
                tell(place)
                place += 2
                time.sleep(0.01)
            clock.join()
            os._exit(0)  # as if it were killed: the lease is not given back

    writer = child(work)
    code = writer.wait()

    assert code == 0
    with open_store(sqlite_url) as store:
        time.sleep(0.35)
        steps = [step.action for step in Worker(store, lease_seconds=0.3, scope="task").round()]

        with store._database.read() as connection:
            ends = connection.execute(select(schema.leases.c.expires)).scalar()  # None where no lease is held

        assert "standby" not in steps or ends <= time.time() + 3600.0  # a dead worker is waited for an hour at most
        assert store.counts().rewards >= 16 * len(writer.messages)
        assert unsound(store) == []
