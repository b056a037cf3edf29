"""A PostgreSQL server that fails: restarted, read-only, out of connections, and cancelling whatever it is asked."""

import multiprocessing
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psycopg
import pytest
from sqlalchemy import make_url
from tttembed_store import StoreLog, follow
from tttembed_store.sql import Spend, open_store
from tttembed_store.worker import Worker

from tests.traffic import JUDGE, traffic, unrewarded
from tests.workers import lost, pairs_asked, stamp_of, stamped, unsound, write_on
from tttembed_rag import Steering
from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.judges import HttpJudge, Patience
from tttembed_rag.judges.examination import examination_keys
from tttembed_rag.judging import Paid
from tttembed_rag.testing import FakeJudge, eventually

BASE = np.linspace(-1.0, 2.0, 8).tolist()
# Bytes of a file of the server's log, which files must be allowed to have.
_SEGMENT = 1 << 20
Event = multiprocessing.get_context("fork").Event


@pytest.fixture(scope="module")
def server():
    """A PostgreSQL of our own, that may be restarted: its URL, and a function that does it at once."""
    pgserver = pytest.importorskip("pgserver", reason="PostgreSQL: pgserver is not installed")
    from pgserver._commands import initdb, pg_ctl
    from pgserver.utils import ensure_user_exists

    folder = tempfile.mkdtemp(prefix="tttembed-faults-")
    user = None
    try:
        if os.geteuid() == 0:  # as whom PostgreSQL does not run
            user = "pgserver"
            ensure_user_exists(user)
            shutil.chown(folder, user)
        options = [f"--wal-segsize={_SEGMENT >> 20}", "--auth=trust", "--encoding=utf8", "--username=postgres"]
        initdb(options, pgdata=Path(folder), user=user)
        running = pgserver.get_server(folder, cleanup_mode="stop")
    except Exception as error:  # noqa: BLE001 - whatever keeps it from starting here
        pytest.skip(f"PostgreSQL could not be started: {error}")

    def restart():
        pg_ctl(["-w", "-m", "immediate", "restart"], pgdata=running.pgdata, user=running.system_user)

    yield running, restart
    running.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


class Guest:
    """An ordinary user of a server, with a database of its own, which goes with it.

    In one database of all, tables and the catalogue of tables grow with every trial: a server that died takes a minute
    to recover then, and one that may not write the catalogue dies itself (a segmentation fault at COMMIT, 16.2).

    Args:
        running: The server.
        name: Of the user.

    Attributes:
        name: The same.
        url: Of the user's store.
    """

    def __init__(self, running, name):
        self.name, self._server = name, make_url(running.get_uri())
        self._folder, self._user = running.pgdata, running.system_user
        self._own = self._server.set(database=name)
        self.url = self._own.set(drivername="postgresql+psycopg", username=name).render_as_string(hide_password=False)
        with _connected(self._server) as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN")
            connection.execute(f"CREATE DATABASE {name}")
        self.tell(f"CREATE SCHEMA AUTHORIZATION {name}")

    @property
    def pid(self):
        """The server's process."""
        return int((self._folder / "postmaster.pid").read_text().split()[0])

    def tell(self, *statements):
        """Have the superuser run statements; those that write do so also where all others may only read."""
        with self.superuser() as connection:
            connection.execute("SET default_transaction_read_only = off")
            for statement in statements:
                connection.execute(statement)

    def may(self, what):
        """Change what the user may do."""
        self.tell(f"ALTER ROLE {self.name} {what}")

    def superuser(self):
        """A connection to the user's database as the superuser."""
        return _connected(self._own)

    def leave(self):
        """Take the database away, and the user."""
        with _connected(self._server) as connection:
            connection.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
            connection.execute(f"DROP ROLE {self.name}")

    def connections(self, connection, *, waiting=False):
        """Numbers of the user's connections; of those that are *waiting* for a lock."""
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE usename = %s AND (wait_event_type = 'Lock' OR NOT %s) ORDER BY pid",
            [self.name, waiting],
        )
        return [pid for (pid,) in rows]

    def end(self):
        """End all of the user's connections."""
        with self.superuser() as connection:
            for pid in self.connections(connection):
                connection.execute("SELECT pg_terminate_backend(%s)", [pid])

    def room(self, size):
        """Let no file grow beyond *size*, of the user's connections and of those to come."""
        with self.superuser() as connection:
            pids = self.connections(connection)
        for pid in (self.pid, *pids):
            subprocess.run(["prlimit", f"--pid={pid}", f"--fsize={size}:"], check=True, user=self._user)

    def shake(self, rng, seconds):
        """Cancel what one of the user's connections is at, or end it, again and again; returns how often.

        At least once, if a connection comes within twenty seconds.
        """
        times, ends = 0, time.monotonic() + seconds
        with self.superuser() as connection:
            while (now := time.monotonic()) < ends or (not times and now < ends + 20):
                if pids := self.connections(connection):
                    act = f"SELECT pg_{rng.choice(['cancel', 'terminate'])}_backend(%s)"
                    connection.execute(act, [int(rng.choice(pids))])
                    times += 1
                time.sleep(rng.exponential(0.01))
        return times


def _connected(url):
    return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)


@pytest.fixture
def guest(server, seed, request):
    """A user of the server, for this trial alone."""
    running, _ = server
    user = Guest(running, f"{request.function.__name__}_{seed}")
    yield user
    user.leave()


def test_a_restarted_server(child, server, guest, rng):
    """PostgreSQL dies in the middle of transactions and recovers: all that was acknowledged is there, once."""
    _, restart = server
    open_store(guest.url).close()
    seeds = rng.integers(2**31, size=3).tolist()

    def working(place):
        def work(tell):
            mine, stop = np.random.default_rng(seeds[place]), threading.Event()
            live = follow(guest.url, every=0.01)
            steering = Steering(live)

            def serve():
                while not stop.wait(0.005):
                    steering.apply(BASE, "q")

            thread = threading.Thread(target=serve)
            thread.start()
            with open_store(guest.url) as store:
                tell("open", 0, 0)
                first = 10_000 * place
                ends = time.monotonic() + 30
                while not stop.is_set() and time.monotonic() < ends:
                    first = write_on(store, mine, tell, first=first, steps=2)
                    if enough.is_set():
                        write_on(store, mine, tell, first=first, steps=2)
                        stop.set()
            thread.join()

        return work

    enough = Event()
    writers = [child(working(place)) for place in range(3)]
    for process in writers:
        process.until(lambda messages: messages)
    time.sleep(rng.uniform(0.0, 0.5))
    restart()
    enough.set()
    codes = [process.wait() for process in writers]
    messages = [message for process in writers for message in process.messages]

    assert codes == [0] * 3
    with open_store(guest.url) as store:
        assert lost(store, messages) == set()
        assert stamp_of(store.registry.version()) >= 0
        assert unsound(store) == []


def test_a_right_to_work_that_is_cancelled_leaves_its_tenant_out(guest):
    """The statement that takes it waits for a lock and is cancelled: the round goes on, a later one does the work."""
    with open_store(guest.url) as store, guest.superuser() as locking, guest.superuser() as cancelling:
        store.observe(unrewarded(traffic(4)))
        worker = Worker(store, FakeJudge(), min_new=1000, clock=lambda: 1000 * time.monotonic())
        steps = []
        with locking.transaction():
            locking.execute(f"LOCK TABLE {guest.name}.leases IN ACCESS EXCLUSIVE MODE")
            thread = threading.Thread(target=lambda: steps.extend(worker.round()))
            thread.start()
            while thread.is_alive():
                for pid in guest.connections(cancelling, waiting=True):
                    cancelling.execute("SELECT pg_cancel_backend(%s)", [pid])
                thread.join(0.02)
        eventually(lambda: "judged" in {step.action for step in worker.round()})

    assert {step.action for step in steps} == {"failed"}


def test_a_server_that_is_read_only(child, guest, rng):
    """Whoever may only read for a while serves what is live, and writes what waits as soon as that is over."""
    with open_store(guest.url) as store:
        store.registry.publish(stamped(3), by="test", note="3")
        store.observe(traffic(5), judge=JUDGE)
    before, pause, limited = bool(rng.random() < 0.6), rng.uniform(0.0, 0.2), Event()

    def work(tell):
        stop = threading.Event()
        steering = Steering(follow(guest.url, every=0.01))
        with open_store(guest.url) as mine, StoreLog(guest.url, JUDGE) as log:
            if before:  # connections are made that may write
                log.record("question", ["a", "b"], [0.0, 1.0])
                tell("written", log.flush())
            tell("open")
            limited.wait(60)
            worker = threading.Thread(target=Worker(mine, min_new=10_000).run, kwargs={"every": 0.02, "stop": stop})
            worker.start()
            for number in range(200):
                steering.apply(BASE, "q")
                log.record(f"question {number}", ["a", "b"], [0.0, 1.0])
                time.sleep(0.001)
            eventually(lambda: steering.apply(BASE, "q") != BASE)
            eventually(lambda: log.error is not None)
            tell("refused", not log.flush(0.5) and log.error is not None)
            tell("flushed", log.flush(60), log.counts.failed)
            tell("served", steering.apply(BASE, "q"))
            stop.set()
            worker.join()

    if not before:
        guest.may("SET default_transaction_read_only = on")
    server = child(work)
    server.until(lambda messages: ["open"] in messages)
    if before:
        guest.may("SET default_transaction_read_only = on")
        guest.end()
    limited.set()
    server.until(lambda messages: messages[-1][0] == "refused")
    time.sleep(pause)
    guest.may("SET default_transaction_read_only = off")
    code = server.wait()

    assert code == 0
    assert server.messages[-3:] == [["refused", True], ["flushed", True, 0], ["served", stamped(3).apply(BASE)]]
    with open_store(guest.url) as store:
        assert store.counts().queries == 205 + before
        assert unsound(store) == []


def test_a_server_without_connections(child, guest, rng):
    """More processes than the server takes: some wait, all that is acknowledged is there, and nobody fails."""
    with open_store(guest.url) as store:
        store.registry.publish(stamped(3), by="test", note="3")
    guest.may(f"CONNECTION LIMIT {rng.integers(0, 4)}")
    seeds, pause = rng.integers(2**31, size=2).tolist(), rng.uniform(0.0, 0.3)

    def working(place):
        def work(tell):
            steering = Steering(follow(guest.url, every=0.01))
            log = StoreLog(guest.url, JUDGE)
            tell("open", 0, 0)
            first, store = 10_000 * (place + 1), None
            while store is None:
                try:
                    store = open_store(guest.url)
                except StoreUnavailable:
                    tell("away", 0, 0)
                    time.sleep(0.01)
            mine = np.random.default_rng(seeds[place])
            for number in range(first, first + 20):
                log.record(f"question {number}", ["a", "b", "c", "d"], [0.0, 1.0, 0.5, 0.2])
                steering.apply(BASE, "q")
            write_on(store, mine, tell, first=first, steps=5)
            flushed = log.flush(60) and log.counts.written == 20
            tell("flushed", flushed, 0)
            store.close()

        return work

    pair = [child(working(place)) for place in range(2)]
    for process in pair:
        process.until(lambda messages: messages)
    time.sleep(pause)
    guest.may("CONNECTION LIMIT -1")
    codes = [process.wait() for process in pair]
    messages = [message for process in pair for message in process.messages]

    assert codes == [0, 0]
    assert [process.messages[-1] for process in pair] == [["flushed", True, 0]] * 2
    with open_store(guest.url) as store:
        assert lost(store, messages) == set()
        assert unsound(store) == []


def test_a_server_that_cancels(child, guest, rng, slow_judge, world):
    """Statements are cancelled and connections ended at random: whoever is told "not now" may do it again."""
    seeds, pause = rng.integers(2**31, size=2).tolist(), rng.uniform(0.0, 0.005)
    judge = slow_judge(pause)
    with open_store(guest.url) as store:
        store.observe(world.served(range(30), tenant="judged"))

    def writes(place):
        def work(tell):
            steering = Steering(follow(guest.url, every=0.01))
            with open_store(guest.url) as store:
                tell("open", 0, 0)
                mine, first = np.random.default_rng(seeds[place]), 10_000 * place
                while not done.is_set():
                    first = write_on(store, mine, tell, first=first, steps=1)
                    steering.apply(BASE, "q")

        return work

    def judges(tell):
        with open_store(guest.url) as store:
            asks = HttpJudge(judge.url, "cohere", patience=Patience(attempts=1))
            # A tenant whose statement was cancelled is left out for a minute of this clock.
            minutes = {"clock": lambda: 1000 * time.monotonic()}
            worker = Worker(store, asks, tenants=["judged"], min_new=1000, concurrency=2, **minutes)
            tell("open", 0, 0)
            while not done.is_set() or store.counts("judged").waiting:
                try:
                    worker.round(watch=lambda step: tell(step.action, step.detail, 0))
                except StoreUnavailable as error:
                    tell("away", str(error), 0)
                    time.sleep(0.01)

    done = Event()
    children = [child(writes(0)), child(writes(1)), child(judges)]
    for process in children:
        process.until(lambda messages: messages)
    times = guest.shake(rng, rng.uniform(0.2, 1.0))
    done.set()
    codes = [process.wait() for process in children]
    messages = [message for process in children[:2] for message in process.messages]
    asked = pairs_asked(judge)

    assert codes == [0] * 3
    assert times > 0
    assert len(asked) == len(set(asked)) == 240 + 48
    failed = [detail for action, detail, _ in children[2].messages if action == "failed"]
    assert [detail for detail in failed if "canceling statement" not in detail] == []
    with open_store(guest.url) as store:
        kept = store.counts("judged")
        assert (kept.rewards, kept.waiting) == (240, 0)
        assert lost(store, messages) == set()
        assert unsound(store) == []


def test_an_answer_that_was_paid_for(guest, rng):
    """Whatever ends the statement that keeps it: it is kept, and counted once."""
    paid = {examination_keys(JUDGE)[0]: Paid(0.5, 10.0, 0.25)}
    with open_store(guest.url) as store:
        answers = store.judge_queue.answers()
        with guest.superuser() as connection, guest.superuser() as locking, locking.transaction():
            locking.execute(f"LOCK TABLE {guest.name}.answers IN EXCLUSIVE MODE")
            keeping = threading.Thread(target=answers.put, args=(JUDGE, paid))
            keeping.start()
            for how in rng.choice(["cancel", "terminate"], int(rng.integers(1, 3))).tolist():
                while keeping.is_alive() and not (waiting := guest.connections(connection, waiting=True)):
                    time.sleep(0.005)
                connection.execute(f"SELECT pg_{how}_backend(%s)", waiting)
                while waiting == guest.connections(connection, waiting=True):
                    time.sleep(0.005)
        keeping.join()

        assert paid == answers.get(list(paid))
        assert Spend(1, 10.0, 0.25) == store.judge_queue.spent()


def test_a_server_with_a_full_disk(child, guest, rng):
    """No table can grow any more: what was acknowledged stays, and it goes on once there is room."""
    open_store(guest.url).close()
    seed, done = int(rng.integers(2**31)), Event()

    def work(tell):
        with open_store(guest.url) as store:
            steering = Steering(follow(guest.url, every=0.1))
            mine, first = np.random.default_rng(seed), 0
            while not done.is_set():
                first = write_on(store, mine, tell, first=first, steps=1, tasks=300)
                steering.apply(BASE, "q")
            write_on(store, mine, tell, first=first, steps=3)

    guest.tell(f"ALTER TABLE {guest.name}.versions ALTER content SET STORAGE EXTERNAL")  # not compressed
    guest.room(int(rng.integers(_SEGMENT, 5 * _SEGMENT // 4)))
    writer = child(work)
    writer.until(lambda messages: messages.count(["away", 0, 0]) > 2)
    guest.room("unlimited")
    done.set()
    code = writer.wait()
    messages = writer.messages

    assert code == 0
    assert [message[0] for message in messages[-6:]] == ["rewarded", "published"] * 3
    with open_store(guest.url) as store:
        assert lost(store, messages) == set()
        assert stamp_of(store.registry.version()) >= 0
        assert unsound(store) == []


def test_a_worker_whose_clock_is_wrong(child, guest, rng):
    """A lease ends by the server's clock: workers whose clocks are days apart take turns as if they agreed."""
    open_store(guest.url).close()
    jumps = rng.choice([-86_400.0, -3_600.0, -60.0, -1.0, 1.0, 60.0, 3_600.0, 86_400.0], (2, 4)).tolist()
    pauses = rng.uniform(0.0, 0.1, (2, 4)).tolist()

    def works(place):
        def work(tell):
            true, ahead = time.time, [0.0]
            time.time = lambda: true() + ahead[0]
            with open_store(guest.url) as store:

                def hold():
                    while True:
                        with store.leases.held("", f"worker {place}", 1.0) as lease:
                            if lease is not None:
                                tell("held")
                                time.sleep(60)
                        tell("standby")
                        time.sleep(0.02)

                threading.Thread(target=hold, daemon=True).start()
                for jump, pause in zip(jumps[place], pauses[place], strict=True):
                    time.sleep(pause)
                    ahead[0] += jump
                tell("jumped")
                time.sleep(60)

        return work

    first = child(works(0))
    first.until(lambda messages: ["held"] in messages)
    second = child(works(1))
    for process in (first, second):
        process.until(lambda messages: ["jumped"] in messages)
    meanwhile = [action for (action,) in second.messages if action != "jumped"]
    first.kill()
    killed = time.monotonic()
    second.until(lambda messages: ["held"] in messages)

    assert "held" not in meanwhile
    assert time.monotonic() - killed < 10
    with open_store(guest.url) as store:
        assert unsound(store) == []
