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
from sqlalchemy import make_url, select

from tttembed_rag.errors import StoreError, StoreUnavailable, TTTEmbedError
from tttembed_rag.following import follow
from tttembed_rag.serving import Steering
from tttembed_rag.storelog import StoreLog
from tttembed_rag.stores import open_store, schema
from tttembed_rag.testing import JUDGE, traffic
from tttembed_rag.worker import Worker

BASE = np.linspace(-1.0, 2.0, 8).tolist()
NOBODY = 65534


def acknowledged(told):
    """Ids of the queries whose rewards were acknowledged."""
    return {f"q{first + n}" for what, first, count in told if what == "rewarded" for n in range(count)}


def write_on(store, rng, tell, stamped, *, first, steps):
    """Observe and publish *steps* times, again where the store was not available; tells what was acknowledged."""
    for _ in range(steps):
        count = int(rng.integers(1, 20))
        try:
            store.observe(traffic(count, first=first), judge=JUDGE)
            tell("rewarded", first, count)
            tell("published", store.publish(stamped(first), by="test", note=str(first)).number, 1)
            first += count
        except StoreUnavailable:
            tell("away", 0, 0)
            time.sleep(0.01)
    return first


def kept(store):
    """Ids of the queries with rewards, and that each has all of its four."""
    counts = store.counts()
    assert (4 * counts.queries, 4 * counts.queries) == (counts.pairs, counts.rewards)
    return set(store.rewards(JUDGE).query_ids.tolist()) if counts.queries else set()


def test_a_full_disk(child, sqlite_url, rng, stamps, unsound):
    """No byte can be written any more: what was acknowledged stays, and it goes on once there is room."""
    stamped, stamp_of, _ = stamps
    room = int(rng.integers(300_000, 900_000))
    seed = int(rng.integers(2**31))

    def work(tell):
        with open_store(sqlite_url) as store:
            steering = Steering(follow(sqlite_url, every=0.005))
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
            mine = np.random.default_rng(seed)
            first = write_on(store, mine, tell, stamped, first=0, steps=40)
            steering.apply(BASE, "q")
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            write_on(store, mine, tell, stamped, first=first, steps=3)

    open_store(sqlite_url).close()
    writer = child(work)
    code = writer.wait()
    told = writer.told

    assert code == 0
    assert ["away", 0, 0] in told
    assert [one[0] for one in told[-6:]] == ["rewarded", "published"] * 3
    with open_store(sqlite_url) as store:
        assert acknowledged(told) <= kept(store)
        assert [number for what, number, _ in told if what == "published"] == [
            version.number for version in reversed(store.versions(limit=100))
        ]
        assert stamp_of(store.version()) >= 0
        assert unsound(store) == []


@pytest.fixture
def open_folder():
    """A folder that others than its owner may enter."""
    folder = Path(tempfile.mkdtemp(prefix="tttembed-faults-"))
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


def test_a_read_only_file(child, open_folder, rng, stamps, unsound):
    """A store that may not be written: what is live is served, captured queries wait until it may be again."""
    stamped, _, _ = stamps
    url = f"sqlite:///{open_folder}/ttt.db"
    with open_store(url) as store:
        store.publish(stamped(3), by="test", note="3")
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
            tell("flushed", log.flush(20), log.counts.written, log.counts.failed)
            tell("served", steering.apply(BASE, "q"))

        lock(locked=True)
        server = child(work)
        server.until(lambda told: len(told) >= 2)
        time.sleep(pause)
        lock(locked=False)
        code = server.wait()

        assert code == 0
        assert [
            ["open"],
            ["at work", False],
            ["flushed", True, 200, 0],
            ["served", stamped(3).apply(BASE)],
        ] == server.told
        assert store.counts().queries == 205
        assert unsound(store) == []


@pytest.fixture(scope="module")
def server():
    """A PostgreSQL of our own, that may be restarted: its URL, and a function that does it at once."""
    pgserver = pytest.importorskip("pgserver", reason="PostgreSQL: pgserver is not installed")
    from pgserver._commands import pg_ctl

    folder = tempfile.mkdtemp(prefix="tttembed-faults-")
    try:
        running = pgserver.get_server(folder, cleanup_mode="stop")
    except Exception as error:  # noqa: BLE001 - whatever keeps it from starting here
        pytest.skip(f"PostgreSQL could not be started: {error}")

    def restart():
        pg_ctl(["-w", "-m", "immediate", "restart"], pgdata=running.pgdata, user=running.system_user)

    yield running, restart
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


def test_a_restarted_server(child, server, rng, seed, stamps, unsound):
    """PostgreSQL dies in the middle of transactions and recovers: all that was acknowledged is there, once."""
    running, restart = server
    stamped, stamp_of, _ = stamps
    running.psql(f"CREATE SCHEMA restarted{seed};")
    url = make_url(running.get_uri()).set(drivername="postgresql+psycopg")
    url = url.update_query_dict({"options": f"-csearch_path=restarted{seed}"}).render_as_string(hide_password=False)
    open_store(url).close()
    seeds = rng.integers(2**31, size=3).tolist()

    def writing(place):
        def work(tell):
            mine, stop = np.random.default_rng(seeds[place]), threading.Event()
            live = follow(url, every=0.01)
            steering = Steering(live)

            def serve():
                while not stop.wait(0.005):
                    steering.apply(BASE, "q")

            thread = threading.Thread(target=serve)
            thread.start()
            with open_store(url) as store:
                tell("open", 0, 0)
                first = 10_000 * place
                ends = time.monotonic() + 30
                while not stop.is_set() and time.monotonic() < ends:
                    first = write_on(store, mine, tell, stamped, first=first, steps=2)
                    if flag.exists():
                        write_on(store, mine, tell, stamped, first=first, steps=2)
                        stop.set()
            thread.join()

        return work

    flag = Path(tempfile.mkdtemp(prefix="tttembed-faults-")) / "enough"
    writers = [child(writing(place)) for place in range(3)]
    for one in writers:
        one.until(lambda told: told)
    time.sleep(rng.uniform(0.0, 0.5))
    restart()
    flag.touch()
    codes = [one.wait() for one in writers]
    shutil.rmtree(flag.parent)
    told = [said for one in writers for said in one.told]

    assert codes == [0] * 3
    with open_store(url) as store:
        assert acknowledged(told) <= kept(store)
        assert {number for what, number, _ in told if what == "published"} <= {
            version.number for version in store.versions(limit=100_000)
        }
        assert stamp_of(store.version()) >= 0
        assert unsound(store) == []


def test_a_damaged_version(store, rng, stamps):
    """Bytes of the live version are changed, cut off or added: readers say so and stay with the last one."""
    stamped, _, _ = stamps
    live = follow(store, every=60.0)
    steering = Steering(live)
    follower = live._source
    for number in (1, 2):
        store.publish(stamped(number), by="test", note=str(number))
    follower.refresh([""])
    third = store.publish(stamped(3), by="test", note="3").number
    versions = schema.versions
    with store._database.write("publishing") as connection:
        content = bytearray(connection.execute(versions.select().where(versions.c.number == third)).one().content)
        damage = str(rng.choice(["flip", "flip a number", "cut", "add", "empty"]))
        if damage.startswith("flip"):
            first = 0 if damage == "flip" else len(content) - 8 * len(BASE)  # the last vector
            content[int(rng.integers(first, len(content)))] ^= 1 << int(rng.integers(8))
        elif damage == "cut":
            del content[int(rng.integers(len(content))) :]
        elif damage == "add":
            content += rng.bytes(int(rng.integers(1, 50)))
        else:
            content.clear()
        connection.execute(versions.update().where(versions.c.number == third).values(content=bytes(content)))
    follower.refresh([""])
    meanwhile, said = steering.apply(BASE, "q"), live.status.error
    with pytest.raises(StoreError, match=f"version {third}"):
        _ = store.version().offsets
    store.rollback(by="test")
    follower.refresh([""])

    assert stamped(2).apply(BASE) == meanwhile
    assert f"version {third}" in said
    assert stamped(2).apply(BASE) == steering.apply(BASE, "q")
    assert live.status.error is None
    live.close()


def test_a_damaged_file(sqlite_url, rng, stamps):
    """Pages of SQLite's file are overwritten or cut off: errors in one line, and queries are answered as before."""
    stamped, _, _ = stamps
    with open_store(sqlite_url) as store:
        store.observe(traffic(60), judge=JUDGE)
        store.publish(stamped(1), by="test", note="1")
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
            lambda: [version.offsets for version in store.versions()],
            lambda: store.publish(stamped(2), by="test", note="2"),
            lambda: store.rollback(by="test"),
            store.counts,
            lambda: Worker(store).round(),
            lambda: open_store(sqlite_url).close(),
        ]
        surprises = []
        for place in rng.permutation(len(calls)).tolist():
            live._source.refresh([""])
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


def test_a_clock_that_jumps(child, sqlite_url, rng, world, unsound):
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
        steps = [action for one in Worker(store, lease_seconds=0.3, scope="task").round() for action in one.actions]

        with store._database.read() as connection:
            ends = connection.execute(select(schema.leases.c.expires)).scalar_one()

        assert "standby" not in steps or ends <= time.time() + 3600.0  # a dead worker is waited for an hour at most
        assert store.counts().rewards >= 16 * len(writer.told)
        assert unsound(store) == []
