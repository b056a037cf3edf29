"""Many processes at once: writers and readers, publishers and those who roll back, two workers, forks."""

import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from sqlalchemy import select
from tttembed_store import StoreLog, follow
from tttembed_store.sql import Candidate, Served, open_store, schema
from tttembed_store.worker import Worker

from tests.traffic import JUDGE, traffic
from tests.workers import captured, one_stamp, pairs_asked, stamp_of, stamped, unsound
from tttembed_rag import Steering, fit
from tttembed_rag.errors import StoreError, StoreUnavailable
from tttembed_rag.judges import HttpJudge, Patience
from tttembed_rag.judging import Budget
from tttembed_rag.rewards.scales import Scale
from tttembed_rag.testing import eventually

BASE = np.linspace(-1.0, 2.0, 8).tolist()
WRITERS, READERS = 16, 16


def in_time(call):
    """What *call* returns as soon as the store is available: it may be made again."""
    while True:
        try:
            return call()
        except StoreUnavailable:
            time.sleep(0.01)


def read(live, one_stamp, done, wrong):
    """Look at what is served in this process until *done*; whatever is half a version, or goes back, is *wrong*."""
    last = 0
    while not done.wait(0.1):
        now = live.status
        try:
            if now.version is not None:
                one_stamp(now.offsets)
                if now.version < last:
                    wrong.append(f"version {now.version} after {last}")
                last = now.version
        except AssertionError as error:
            wrong.append(repr(error))


def watch(store, stamp_of, done, wrong):
    """Read what is served until *done*; whatever is half a version, or goes back, is *wrong*."""
    generation = 0
    while not done.is_set():
        try:
            now = in_time(store.serving)
            if now.generation < generation:
                wrong.append(f"generation {now.generation} after {generation}")
            generation = now.generation
            if now.version is not None:
                in_time(lambda now=now: stamp_of(now.version))
        except (AssertionError, StoreError) as error:
            wrong.append(repr(error))
        done.wait(0.5)


def test_writers_and_readers(child, store, store_url, rng):
    """16 processes that write and publish, with 16 threads each that read: all that was acknowledged is there."""
    batches = rng.integers(1, 6, (WRITERS, 2))

    def writing(writer):
        def work(tell):
            wrong, done = [], threading.Event()
            live = follow(store_url, every=0.2)
            with open_store(store_url) as mine:

                def publish():
                    return mine.registry.publish(stamped(writer), by=str(writer), note=str(writer))

                readers = [threading.Thread(target=read, args=(live, one_stamp, done, wrong)) for _ in range(READERS)]
                readers.append(threading.Thread(target=watch, args=(mine, stamp_of, done, wrong)))
                for reader in readers:
                    reader.start()
                first = 1000 * writer
                for count in batches[writer].tolist():
                    batch = traffic(count, first=first)
                    in_time(lambda batch=batch: mine.observe(batch, judge=JUDGE))
                    first += count
                    tell("rewarded", first)
                    tell("published", in_time(publish).number)
                done.set()
                for reader in readers:
                    reader.join()
            tell("wrong", wrong)

        return work

    writers = [child(writing(writer)) for writer in range(WRITERS)]
    codes = [writer.wait(120) for writer in writers]
    messages = [writer.messages for writer in writers]
    published = [[words[1] for words in of_one if words[0] == "published"] for of_one in messages]
    expected = {f"q{1000 * writer + n}" for writer, counts in enumerate(batches) for n in range(counts.sum())}

    assert codes == [0] * WRITERS
    assert [of_one[-1] for of_one in messages] == [["wrong", []]] * WRITERS
    assert set(store.rewards(JUDGE).query_ids.tolist()) == expected
    assert store.counts().rewards == 4 * len(expected)
    assert all(sorted(numbers) == numbers for numbers in published)
    assert sorted(number for numbers in published for number in numbers) == [
        version.number for version in reversed(store.registry.versions(limit=100))
    ]
    assert unsound(store) == []


def test_publishing_and_rolling_back(child, store, store_url, rng):
    """However publishers and those who roll back or halt meet, what is live is one whole version that exists.

    Who read a generation knows for good what it stands for: nobody stays behind who looks for a newer one.
    """
    store.registry.publish(stamped(0), by="test", note="0")
    plans = rng.choice(["publish", "publish", "rollback", "rollback to", "halt", "resume"], (4, 12)).tolist()

    def changing(who):
        def work(tell):
            mine, wrong, done = open_store(store_url), [], threading.Event()
            reader = threading.Thread(target=watch, args=(mine, stamp_of, done, wrong))
            reader.start()
            for step, what in enumerate(plans[who]):
                number = 100 * (who + 1) + step
                try:
                    if what == "publish":
                        mine.registry.publish(stamped(number), by=str(who), note=str(number))
                    elif what in ("halt", "resume"):
                        getattr(mine.registry, what)(by=str(who))
                    else:
                        mine.registry.rollback(by=str(who), to=1 if what == "rollback to" else None)
                except StoreError as error:
                    tell("refused", str(error))
            done.set()
            reader.join()
            tell("wrong", wrong)

        return work

    known, wrong = {}, []
    live = follow(store, every=60.0)
    changers = [child(changing(who)) for who in range(len(plans))]
    while not all(changer.exited for changer in changers):
        now = in_time(store.serving)
        state = (None if now.version is None else now.version.number, now.halted)
        if known.setdefault(now.generation, state) != state:
            wrong.append((now.generation, known[now.generation], state))
        live._reader.refresh([""])
    codes = [changer.wait() for changer in changers]
    live._reader.refresh([""])
    last, followed = store.serving(), live.status.version
    live.close()
    refused = [words[1] for changer in changers for words in changer.messages if words[0] == "refused"]
    lines = [line for line in reversed(store.changes.lines(limit=1000)) if "is live" in line.detail]

    assert codes == [0] * len(plans)
    assert [changer.messages[-1] for changer in changers] == [["wrong", []]] * len(plans)
    assert wrong == []
    assert [reason for reason in refused if "found none" not in reason] == []
    assert last.version.number == int(lines[-1].detail.split()[1].rstrip(":"))
    assert (None if last.halted is not None else last.version.number) == followed
    assert unsound(store) == []


def test_two_workers(child, store, store_url, rng, slow_judge, world):
    """A worker that is stopped longer than its lease comes back to another at work, and changes nothing any more."""
    pause = rng.uniform(0.0, 0.005)
    judge = slow_judge(pause)
    store.observe(world.served(range(60)))

    def work(tell):
        with open_store(store_url) as mine:
            asks = HttpJudge(judge.url, "cohere", patience=Patience(attempts=1))
            worker = Worker(mine, asks, lease_seconds=0.3, concurrency=2, scope="task")
            worker.run(every=0.05, watch=lambda step: tell(step.action, step.detail))

    first = child(work)
    first.until(lambda _: judge.asked)
    pair = [first, child(work)]
    time.sleep(rng.uniform(0.0, 0.8))
    first.kill(signal.SIGSTOP)
    time.sleep(rng.uniform(0.4, 1.2))
    first.kill(signal.SIGCONT)
    eventually(lambda: store.counts().waiting == 0 and store.registry.aliases().get("live"), seconds=120)
    time.sleep(0.2)
    for process in pair:
        process.end()
    asked = pairs_asked(judge)
    done = [action for process in pair for action, _ in process.messages]

    # Turns that are broken off are turns: where there are many, it is learned in between.
    versions = [version.number for version in store.registry.versions()]
    assert versions == list(range(len(versions), 0, -1))
    assert done.count("published") <= len(versions)
    assert store.counts().rewards == 480
    assert len(set(asked)) == 480 + 48
    assert store.judge_queue.spent().pairs == len(asked)
    assert unsound(store) == []


class Freezing:
    """A judge that stops its process, between transactions, when it is asked for the fifth time after its examination.

    Args:
        store: The store of its worker.
        scores: What it says.
        tell: Is told of every call.
        freezes: Whether it does stop it.
    """

    scale, fingerprint = Scale("probability"), "freezing@1"

    def __init__(self, store, scores, tell, *, freezes):
        self._scores, self._tell, self._left = scores, tell, 29 if freezes else 0
        self._asking, self._writing, self._write = threading.Lock(), threading.Lock(), store._database.write
        store._database.write = self._written

    @contextmanager
    def _written(self, *arguments):
        with self._writing, self._write(*arguments) as connection:
            yield connection

    def _freeze(self):
        with self._writing:  # else it could be stopped amid a transaction of another thread, and hold all up
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.1)  # a signal may take a moment to stop all threads

    def score(self, query, documents):
        """The scores, after a moment."""
        with self._asking:
            self._tell("asked", len(documents))
            self._left -= 1
            if not self._left:
                self._freeze()
        time.sleep(0.005)
        return self._scores(query, documents)


def test_a_worker_frozen_while_it_judges(child, store, store_url, rng, world):
    """Another one spends the rest of the budget meanwhile, and nothing is paid beyond it."""
    concurrency, budget = int(rng.integers(1, 4)), Budget(pairs=208)
    for place, tenant in enumerate("ab"):
        store.observe(world.served(range(20 * place, 20 * place + 20), tenant=tenant))

    def work(tenant, freezes):
        def working(tell):
            with open_store(store_url) as mine:
                judge = Freezing(mine, world.judged, tell, freezes=freezes)
                options = {"concurrency": concurrency, "budget": budget, "lease_seconds": 2.0, "min_new": 1000}
                Worker(mine, judge, tenants=[tenant], **options).round()

        return working

    first = child(work("a", True))
    first.until_stopped()
    time.sleep(2.1)
    second = child(work("b", False))
    assert second.wait() == 0
    first.kill(signal.SIGCONT)
    assert first.wait() == 0
    asked = sum(documents for process in (first, second) for _, documents in process.messages)

    assert store.judge_queue.spent().pairs == asked == budget.pairs
    assert unsound(store) == []


def stop_before_changes(store, tell):
    """Let this process stop before it changes what is served, until somebody lets it go on."""
    renew, renewing = store.leases.renew, threading.Lock()

    def renewed(*arguments):
        with renewing:
            return renew(*arguments)

    def stopping(call):
        def stopped(*arguments, **options):
            renewed(options["lease"], 0.3)
            with renewing:  # stopped amid a renewal by the other thread, it would hold all up
                tell("stops")
                os.kill(os.getpid(), signal.SIGSTOP)
            return call(*arguments, **options)

        return stopped

    store.leases.renew = renewed
    store.registry.publish = stopping(store.registry.publish)
    store.registry.rollback = stopping(store.registry.rollback)


def turned(offsets):
    return type(offsets)([replace(offset, vector=-offset.vector) for offset in offsets.values()], width=offsets.width)


def test_a_lease_lost_at_the_last_moment(child, store, store_url, rng, seed, world):
    """A worker stopped right before it changes what is served, while another one changes it, changes nothing."""
    change = ["publish", "withdraw", "roll back"][(seed + ("postgresql" in store_url)) % 3]
    store.observe(world.served(range(20), judged=True), judge="j")
    if change != "publish":
        good = fit(store.rewards("j"), scope="task", gate=False)
        for offsets in [turned(good)] if change == "withdraw" else [good, turned(good)]:
            store.registry.publish(offsets, by="test")
    for rows in (range(20, 40), range(40, 60)):
        if change != "publish":
            Worker(store, scope="task", min_new=10_000).round()
        store.observe(world.served(rows, judged=True), judge="j")

    def work(stops):
        def works(tell):
            with open_store(store_url) as mine:
                if stops:
                    stop_before_changes(mine, tell)
                worker = Worker(mine, scope="task", min_new=50 if change == "publish" else 10_000, lease_seconds=0.3)
                while True:
                    steps = worker.round()
                    if any("nothing was changed" in step.detail for step in steps):
                        return tell("lost")
                    if "standby" not in [step.action for step in steps]:
                        return tell([step.action for step in steps])
                    time.sleep(0.02)

        return works

    first = child(work(stops=True))
    first.until(lambda messages: ["stops"] in messages)
    first.until_stopped()
    time.sleep(rng.uniform(0.0, 0.4))
    second = child(work(stops=False))
    code = second.wait()
    first.kill(signal.SIGCONT)
    codes = [first.wait(), code]
    lines = [
        line.action for line in store.changes.lines() if line.by == "worker" and line.action in ("publish", "rollback")
    ]

    assert codes == [0, 0]
    assert first.messages == [["stops"], ["lost"]]
    assert ["rollback" if change == "roll back" else "publish"] == lines
    assert unsound(store) == []


SAME = 6


def test_writers_of_the_same_queries(child, store, store_url, rng):
    """Processes that are served the same queries, judge them and rename what they were shown lose nothing."""
    orders = [rng.permutation(SAME).tolist() for _ in range(12)]
    times = rng.permutation(len(orders) * SAME).astype(float).reshape(len(orders), SAME)
    store.judge_queue.waiting(JUDGE)  # from now on it is known what waits for it

    def writing(writer):
        def work(tell):
            with open_store(store_url) as mine:
                for place, order in list(enumerate(orders))[writer::4]:
                    for number in order:
                        shown = [
                            Candidate("of all", np.ones(8), f"text {place}" if writer == 0 else ""),
                            Candidate(f"d{place}", np.ones(8) + place, f"document {place}"),
                        ]
                        served = Served(f"q{number}", np.ones(8), shown, f"query {number}", at=times[place, number])
                        in_time(lambda served=served: mine.observe([served]))
                        verdict = {("", served.task, served.query_id): {f"d{place}": place / 100}}
                        tell(in_time(lambda verdict=verdict: mine.reward(JUDGE, verdict)))

        return work

    writers = [child(writing(writer)) for writer in range(4)]
    codes = [process.wait() for process in writers]
    rewards = store.rewards(JUDGE)
    with store._database.read() as connection:
        queries = schema.queries.c
        columns = select(queries.name, queries.seen, queries.last_at).order_by(queries.name)
        rows = [tuple(row) for row in connection.execute(columns)]

    assert codes == [0] * 4
    assert [process.messages for process in writers] == [[[1]] * 18] * 4
    assert [(f"q{n}", 12, times[:, n].max()) for n in range(SAME)] == rows
    assert sorted([place / 100 for place in range(12)] * SAME) == sorted(rewards.values.tolist())
    assert (store.counts().pairs, store.counts().rewards, store.counts().waiting) == (SAME * 13, SAME * 12, SAME)
    assert unsound(store) == []


def test_forgetting(child, store, store_url, rng):
    """While others write, what is forgotten is gone, all else is there, and no process serves what it taught."""
    store.registry.publish(stamped(1), by="test", note="1")
    live = follow(store, every=60.0)
    steering = Steering(live)
    served = steering.apply(BASE, "q")
    batches = rng.integers(1, 6, (4, 8))

    def writing(writer):
        def work(tell):
            with open_store(store_url) as mine:
                first = 1000 * writer
                for count in batches[writer].tolist():
                    batch = traffic(count, first=first)
                    in_time(lambda batch=batch: mine.observe(batch, judge=JUDGE))
                    tell(first, count)
                    first += count

        return work

    def written():
        return {f"q{first + n}" for process in writers for first, count in process.messages for n in range(count)}

    writers = [child(writing(writer)) for writer in range(4)]
    gone = set()
    while not all(process.exited for process in writers) or len(gone) < 3:
        if len(left := sorted(written() - gone)) > 1:  # something is left to compare
            query = str(rng.choice(left))
            in_time(lambda query=query: store.forget(tenant="", query_id=query, by="test"))
            gone.add(query)
    codes = [process.wait() for process in writers]
    live._reader.refresh([""])

    assert codes == [0] * 4
    assert written() - gone == set(store.rewards(JUDGE).query_ids.tolist())
    assert (stamped(1).apply(BASE), BASE) == (served, steering.apply(BASE, "q"))
    assert unsound(store) == []
    live.close()


def test_forks(child, store, store_url, rng):
    """Children forked while their parent serves and captures do both themselves, and everything is written once."""
    store.registry.publish(stamped(1), by="test", note="1")
    expected = stamped(1).apply(BASE)
    pauses = rng.uniform(0.0, 0.03, 4).tolist()

    def work(tell):
        steering = Steering(follow(store_url, every=0.005))
        log = StoreLog(store_url, JUDGE, embedder="e")
        done = threading.Event()

        def request(number):
            captured(log, number)
            if steering.apply(BASE, "q") != expected:
                tell("wrong", number)

        def serve_on():
            for number in range(1000):
                if done.is_set():
                    break
                request(number)
                time.sleep(0.002)
            tell("parent", number)

        server = threading.Thread(target=serve_on)
        server.start()
        forked = []
        for place, pause in enumerate(pauses):
            time.sleep(pause)
            pid = os.fork()
            if not pid:
                code = 1
                try:
                    for number in range(10):
                        request(1000 * (place + 1) + number)
                    code = 0 if log.flush(60) and log.counts.written == 10 else 2
                finally:
                    os._exit(code)
            forked.append(pid)
        tell("children", [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in forked])
        done.set()
        server.join()
        tell("flushed", log.flush(60))

    parent = child(work)
    code = parent.wait()
    messages = dict(parent.messages)
    kept = set(store.rewards(JUDGE).query_ids.tolist())
    of_children = {f"q{1000 * (place + 1) + number}" for place in range(4) for number in range(10)}

    assert code == 0
    assert (messages["children"], messages["flushed"]) == ([0] * 4, True)
    assert "wrong" not in messages
    assert of_children | {f"q{number}" for number in range(messages["parent"])} <= kept
    assert unsound(store) == []
