"""What tests of the worker share: stores where other hands are at work, judges, and what was done."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import tempfile
import time
import traceback

import numpy as np
import pytest
from sqlalchemy import select
from tttembed_store.sql import schema
from tttembed_store.sql.log import observing

from tests.traffic import JUDGE, traffic
from tttembed_rag import Evidence, Known, Offset, Offsets, Scale
from tttembed_rag.errors import StoreUnavailable
from tttembed_rag.judges import HttpJudge, Patience
from tttembed_rag.testing import eventually

WIDTH = 8
UNGATED = Evidence(4, None, None, "ungated", "made for a test")
ALL = 1_000_000
QUICK = Patience(attempts=1, first_wait=0.01)


class Meddled:
    """A store, or a part of one, with some methods replaced: other hands are at work meanwhile."""

    def __init__(self, part, **replaced):
        self._part = part
        self.__dict__.update(replaced)

    def __getattr__(self, name):
        return getattr(self._part, name)


def publishing(store, act):
    return Meddled(store, registry=Meddled(store.registry, publish=before(store.registry.publish, act)))


def before(call, act):
    def both(*arguments, **options):
        act()
        return call(*arguments, **options)

    return both


def http_judge(host):
    """The judge behind such a server."""
    return HttpJudge(f"http://{host}", "cohere", patience=QUICK)


class Knowing:
    """A judge that says what the *world* knows; *asked* is told of each query first, and may raise or wait."""

    scale, fingerprint = Scale("probability"), "knowing@1"

    def __init__(self, world, asked):
        self._world, self._asked = world, asked

    def score(self, query, documents):
        """What the world knows, once that was told."""
        self._asked(query)
        return self._world.judged(query, documents)


def steal(store, seconds=0):
    """Let the lease that is held be another owner's, for so many seconds more."""
    lease = schema.leases.c
    with store._database.write("observing") as connection:
        taken = {"owner": "another", "token": lease.token + 1, "expires": lease.expires + seconds}
        connection.execute(schema.leases.update().values(taken))


def lapse(store):
    """Let every lease end now, as where its owner was killed a while ago."""
    with store._database.write("observing") as connection:
        connection.execute(schema.leases.update().values(expires=0.0))


def actions(steps):
    """What was done, over all tenants."""
    return [step.action for step in steps]


def shuffled(rewards, seed=0):
    """Rewards that mean nothing any more."""
    return np.random.default_rng(seed).permutation(rewards.values)


def against(rewards, depth=8):
    """Rewards under which what was learned from *rewards* is wrong."""
    base = np.einsum("nkd,nd->nk", rewards.doc_vectors.reshape(-1, depth, rewards.width), rewards.query_vectors)
    drawn = 2 * base - 0.5 * rewards.values.reshape(base.shape)
    return (1 / (1 + np.exp(-4 * (drawn - drawn.mean())))).ravel()


def command(*arguments):
    """`tttembed worker` as a process of its own."""
    return [sys.executable, "-m", "tttembed_rag", "worker", *map(str, arguments)]


def model(seed):
    """An embedding model that is another one for another seed."""
    return lambda text: np.random.default_rng([seed, *text.encode()[:64]]).standard_normal(8)


def hours_pass(store, hours):
    """Let failures of judges be older by so many hours."""
    f = schema.failures.c
    with store._database.write("observing") as connection:
        connection.execute(schema.failures.update().values(due_at=f.due_at - 3600.0 * hours))


class Child:
    """A forked process that runs `work(tell)`; what it told is known whenever and however it ends.

    Args:
        work: Its work; `tell` takes anything that JSON can hold.

    Attributes:
        pid: Its process id.
        lines: The file of what it told.
    """

    def __init__(self, work):
        self.lines = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (closed at its end)
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

    def _tell(self, *message):
        os.write(self.lines.fileno(), (json.dumps(message) + "\n").encode())

    @property
    def messages(self):
        """What it told so far, a list for each time; a line that it is writing now, or was killed in, is not read."""
        size = os.fstat(self.lines.fileno()).st_size
        whole, _, _ = os.pread(self.lines.fileno(), size, 0).rpartition(b"\n")
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
        eventually(lambda: true(self.messages), seconds=seconds)

    def end(self):
        """Kill it where it still runs."""
        self.kill()
        self.wait()


@pytest.fixture
def child():
    """Starts processes: `child(work)`, see `Child`; none outlives its trial."""
    children = []

    def start(work):
        children.append(Child(work))
        return children[-1]

    yield start
    for process in children:
        process.end()
        process.lines.close()


# Offsets have norms of at most 100, numbers of versions may be larger.
_SCALE = 1000


def stamped(number, tasks=2):
    """Offsets, global and of some tasks, that carry *number* in each of their vectors."""
    vector = np.append(np.sin(np.arange(1.0, WIDTH) * (number + 1)), number / _SCALE)
    scopes = [("global", None), *(("task", f"t{task}") for task in range(tasks))]
    return Offsets([Offset(scope, vector, 0.5, 4, UNGATED, task=task) for scope, task in scopes], width=WIDTH)


def one_stamp(offsets):
    """The number that all of *offsets* carry; fails where one of them carries another."""
    (first, *others) = (offset.vector.tobytes() for offset in offsets.values())
    assert [first] * len(others) == others, "two versions are mixed"
    return round(float(np.frombuffer(first)[-1]) * _SCALE)


def stamp_of(version):
    """The number that a version carries in its vectors; fails where its note has another."""
    number = one_stamp(version.offsets)
    assert version.note == str(number), f"version {version.number}: facts of {version.note}, vectors of {number}"
    return number


def unsound(store):
    """What in a store belongs together and does not, in words; nothing in a sound one."""
    wrong = []
    # With nobody else writing: what a killed process had sent may still be committed by the server.
    with store._database.write("forgetting") as connection:
        p = schema.progress.c
        counted = select(p.query, p.judge, p.tenant, p.rewards, p.waiting, p.at).order_by(p.query, p.judge)
        before = connection.execute(counted).all()
        pairs = set(connection.execute(select(schema.pairs.c.query, schema.pairs.c.document)).all())
        rewarded = set(connection.execute(select(schema.rewards.c.query, schema.rewards.c.document)).all())
        queries = connection.execute(select(schema.queries.c.id)).scalars().all()
        tenants = connection.execute(select(schema.tenants.c.name)).scalars().all()
        paid = connection.execute(select(schema.answers.c.pair)).all()
        spent = connection.execute(select(schema.spending.c.pairs)).scalars().all()
        observing.update_progress(connection, queries)
        if connection.execute(counted).all() != before:
            wrong.append("progress differs from what was observed and said")
    if rewarded - pairs:
        wrong.append(f"{len(rewarded - pairs)} rewards of no pair")
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
            checks = [row for check in ("integrity", "foreign_key") for row in bare.execute(f"PRAGMA {check}_check")]
        bare.close()
        wrong += [str(row) for row in checks if row != ("ok",)]
    return wrong


def write_on(store, rng, tell, *, first, steps, tasks=2):
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


def lost(store, messages):
    """What was acknowledged and is not in the store; fails where a query has not all of its four rewards."""
    counts = store.counts("")
    assert (4 * counts.queries, 4 * counts.queries) == (counts.pairs, counts.rewards)
    rewarded = {f"q{first + n}" for what, first, count in messages if what == "rewarded" for n in range(count)}
    published = {number for what, number, _ in messages if what == "published"}
    kept = set(store.rewards(JUDGE).query_ids.tolist()) if counts.queries else set()
    return rewarded - kept | published - {version.number for version in store.registry.versions(limit=ALL)}


def captured(log, number):
    """Hand query *number* of `traffic` to a log, with its rewards, and with all that a caller may know."""
    (query,) = traffic(1, first=number)
    shown = query.candidates
    known = Known(
        query.vector,
        [document.vector for document in shown],
        query.query_id,
        [document.doc_id for document in shown],
    )
    log.record(
        query.query,
        [document.text for document in shown],
        [document.reward for document in shown],
        task=query.task,
        known=known,
    )


def pairs_asked(judge):
    """The query and the text of each pair that a judge was asked about."""
    return [(body["query"], text) for _, _, body in judge.asked for text in body["documents"]]
