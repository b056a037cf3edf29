"""Random trials of real faults: `make faults` runs many, `make test` a few.

A trial is drawn from its seed and the name of its test, so that a failing one is run again by its id:
`TTTEMBED_FAULT_TRIALS=50 python -m pytest integrations/tttembed-store/tests/faults -k 'test_name and seed17'`.
"""

import json
import os
import signal
import sqlite3
import tempfile
import time
import traceback
import zlib

import numpy as np
import pytest
from sqlalchemy import select
from tttembed_store.sql import open_store, schema
from tttembed_store.sql.log import observing

from tests.traffic import JUDGE, traffic
from tttembed_rag import Evidence, Known, Offset, Offsets
from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.testing import eventually

# Trials of each fault, and the seed of the first.
TRIALS = int(os.environ.get("TTTEMBED_FAULT_TRIALS", "2"))
FIRST = int(os.environ.get("TTTEMBED_FAULT_SEED", "0"))

WIDTH = 8
UNGATED = Evidence(4, None, None, "ungated", "made for a test")
ALL = 1_000_000


def pytest_generate_tests(metafunc):
    """A test that takes a seed is run for each; one on both databases for half of them on each."""
    if "seed" in metafunc.fixturenames:
        trials = -(-TRIALS // 2) if "store_url" in metafunc.fixturenames else TRIALS
        metafunc.parametrize("seed", range(FIRST, FIRST + trials), ids="seed{}".format)


@pytest.fixture
def rng(seed, request):
    """The random numbers of a trial."""
    return np.random.default_rng([zlib.crc32(request.function.__name__.encode()), seed])


class Child:
    """A forked process that runs `work(tell)`; what it told is known whenever and however it ends.

    Args:
        work: Its work; `tell` takes anything that JSON can hold.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, work):
        self._told = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed at its end)
        self.pid = os.fork()
        self._code = None
        if self.pid:
            return
        code = 1
        try:
            work(self._tell)
            code = 0
        except BaseException:  # noqa: BLE001 (nothing of a child may return into the tests)
            traceback.print_exc()
        finally:
            os._exit(code)

    def _tell(self, *said):
        os.write(self._told.fileno(), (json.dumps(said) + "\n").encode())

    @property
    def told(self):
        """What it told so far, a list for each time; a line that it is writing now, or was killed in, is not read."""
        size = os.fstat(self._told.fileno()).st_size
        whole, _, _ = os.pread(self._told.fileno(), size, 0).rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]

    def kill(self, number=signal.SIGKILL):
        """Send a signal."""
        if self._code is None:
            os.kill(self.pid, number)

    @property
    def exited(self):
        """Whether it has ended."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None

    def until_stopped(self):
        """Wait until it has stopped itself: a SIGCONT that comes before its SIGSTOP would wake nobody up."""
        stopped = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
        eventually(lambda: os.waitid(os.P_PID, self.pid, stopped))

    def wait(self, seconds=60.0):
        """Its exit code, negative for a signal; fails where it hangs."""
        eventually(lambda: self.exited, seconds=seconds)
        return self._code

    def until(self, true, seconds=30.0):
        eventually(lambda: true(self.told), seconds=seconds)

    def end(self):
        """Kill it where it still runs."""
        self.kill()
        self.wait()
        self._told.close()


@pytest.fixture
def child():
    """Starts processes: `child(work)`, see `Child`; none outlives its trial."""
    children = []

    def start(work):
        children.append(Child(work))
        return children[-1]

    yield start
    for one in children:
        one.end()


# Offsets have norms of at most 100, numbers of versions may be larger.
_SCALE = 1000


def stamped(number, tasks=2):
    """Offsets, global and of some tasks, that carry *number* in each of their vectors."""
    vector = np.append(np.sin(np.arange(1.0, WIDTH) * (number + 1)), number / _SCALE)
    scopes = [("global", None), *(("task", f"t{task}") for task in range(tasks))]
    return Offsets([Offset(scope, vector, 0.5, 4, UNGATED, task=task) for scope, task in scopes], width=WIDTH)


def one_stamp(offsets):
    """The number that all of *offsets* carry; fails where one of them carries another."""
    (first, *others) = (one.vector.tobytes() for one in offsets.values())
    assert [first] * len(others) == others, "two versions are mixed"
    return round(float(np.frombuffer(first)[-1]) * _SCALE)


def stamp_of(version):
    """The number that a version carries in its vectors; fails where its note has another."""
    number = one_stamp(version.offsets)
    assert version.note == str(number), f"version {version.number}: facts of {version.note}, vectors of {number}"
    return number


@pytest.fixture(scope="session")
def stamps():
    return stamped, stamp_of, one_stamp


def half_done(store):
    """What in a store belongs together and does not, in words; nothing in a sound one."""
    wrong = []
    # With nobody else writing: what a killed process had sent may still be committed by the server.
    with store._database.write("forgetting") as connection:
        p = schema.progress.c
        counted = select(p.query, p.judge, p.tenant, p.rewards, p.waiting, p.at).order_by(p.query, p.judge)
        before = connection.execute(counted).all()
        pairs = set(connection.execute(select(schema.pairs.c.query, schema.pairs.c.document)).all())
        given = set(connection.execute(select(schema.rewards.c.query, schema.rewards.c.document)).all())
        queries = connection.execute(select(schema.queries.c.id)).scalars().all()
        tenants = connection.execute(select(schema.tenants.c.name)).scalars().all()
        paid = connection.execute(select(schema.answers.c.pair)).all()
        spent = connection.execute(select(schema.spending.c.pairs)).scalars().all()
        observing.update_progress(connection, queries)
        if connection.execute(counted).all() != before:
            wrong.append("progress differs from what was observed and said")
    if given - pairs:
        wrong.append(f"{len(given - pairs)} rewards of no pair")
    if len(paid) > sum(spent):
        wrong.append(f"{len(paid)} paid answers, {sum(spent)} counted")
    lines = store.changes.lines(limit=ALL)[::-1]
    # Of versions that were forgotten the log of changes knows that they were.
    published = [int(line.detail.split()[1]) for line in lines if line.action == "publish" and line.detail]
    if published != sorted(set(published)):
        wrong.append(f"versions do not increase: {published}")
    numbers = []
    for tenant in tenants:
        mine = [version.number for version in store.registry.versions(tenant=tenant, limit=ALL)]
        if missing := set(store.registry.aliases(tenant=tenant).values()) - set(mine):
            wrong.append(f"aliases of tenant {tenant!r} for versions {missing} that do not exist")
        numbers += mine
    if sorted(numbers) != published:
        wrong.append(f"versions {sorted(numbers)}, the log of changes knows {published}")
    if store._database.is_sqlite:
        with sqlite3.connect(store._database.url.database) as bare:
            said = [row for check in ("integrity", "foreign_key") for row in bare.execute(f"PRAGMA {check}_check")]
        bare.close()
        wrong += [str(row) for row in said if row != ("ok",)]
    return wrong


@pytest.fixture(scope="session")
def unsound():
    """`half_done(store)`."""
    return half_done


class Writing:
    """What processes write, and how it is found again."""

    @staticmethod
    def on(store, rng, tell, *, first, steps, tasks=2):
        """Observe and publish *steps* times, again where the store was not available; tells what was acknowledged."""
        for _ in range(steps):
            count = int(rng.integers(1, 20))
            try:
                store.observe(traffic(count, first=first), judge=JUDGE)
                tell("rewarded", first, count)
                tell("published", store.registry.publish(stamped(first, tasks), by="test", note=str(first)).number, 1)
                first += count
            except StoreUnavailable:
                tell("away", 0, 0)
                time.sleep(0.01)
        return first

    @staticmethod
    def lost(store, told):
        """What was acknowledged and is not in the store; fails where a query has not all of its four rewards."""
        counts = store.counts("")
        assert (4 * counts.queries, 4 * counts.queries) == (counts.pairs, counts.rewards)
        rewarded = {f"q{first + n}" for what, first, count in told if what == "rewarded" for n in range(count)}
        published = {number for what, number, _ in told if what == "published"}
        kept = set(store.rewards(JUDGE).query_ids.tolist()) if counts.queries else set()
        return rewarded - kept | published - {version.number for version in store.registry.versions(limit=ALL)}


@pytest.fixture(scope="session")
def writing():
    return Writing


def captured(log, number):
    """Hand query *number* of `traffic` to a log, with its rewards, and with all that a caller may know."""
    (one,) = traffic(1, first=number)
    shown = one.candidates
    known = Known(one.vector, [each.vector for each in shown], one.query_id, [each.doc_id for each in shown])
    log.record(one.query, [each.text for each in shown], [each.reward for each in shown], task=one.task, known=known)


@pytest.fixture(scope="session")
def capture():
    """`captured(log, number)`."""
    return captured


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


@pytest.fixture(scope="session")
def pairs_asked():
    """`pairs_asked(judge)`: the query and the text of each pair that a judge was asked about."""
    return lambda judge: [(body["query"], text) for _, _, body in judge.asked for text in body["documents"]]


@pytest.fixture
def store(store_url):
    """An empty store of either kind."""
    with open_store(store_url) as opened:
        yield opened
