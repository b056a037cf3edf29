"""The worker through broken judges, lost leases, kills and databases that are gone; its command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time

import pytest
from click.testing import CliRunner
from tttembed_store import StoreLog, Worker, open_store

from tests.workers import Knowing, actions, command, http_judge, steal
from tttembed_rag import Scale
from tttembed_rag.cli import main
from tttembed_rag.judges import RubricJudge
from tttembed_rag.judges.examination import answers
from tttembed_rag.judging import calls
from tttembed_rag.testing import eventually


def careful(prompt):
    """What a model says that knows the right documents of the examination."""
    return f"Score: {5 * any(query in prompt and text in prompt for query, text in answers().items())}"


class TestBrokenJudges:
    """A judge that breaks down ends in "not judged", never in a lost reward or a crash."""

    @pytest.mark.parametrize("broken", [500, b"<html>", [float("nan")] * 8], ids=["an error", "garbage", "NaN"])
    def test_what_it_said_before_is_kept(self, broken, world, store, reranker):
        """Of a judge that breaks down after its examination and three answers; the rest waits for another day."""
        judge = http_judge(reranker(lambda scores, n: scores if n < 28 else broken)[0])
        store.observe(world.served(range(40)))
        steps = Worker(store, judge, concurrency=1).round()
        waits = sum(len(query.candidates) for query in store.judge_queue.waiting(judge.fingerprint))

        assert actions(steps)[0] == "not judged"
        assert store.judges()[0][1] == 3 * 8
        assert waits == 37 * 8

    @pytest.mark.slow
    def test_nonsense_about_one_document_is_declined(self, world, store, reranker):
        """NaN for one of eight documents leaves seven verdicts, and the one is not asked about again."""
        host, asked = reranker(lambda scores, n: scores if n <= 24 else [*scores[:-1], float("nan")])
        store.observe(world.served(range(40)))
        worker = Worker(store, http_judge(host))
        worker.round()
        before = len(asked)
        worker.round()

        assert store.judges()[0][1] == 40 * 7
        assert before == len(asked) == 24 + 40

    def test_an_error_of_any_kind_is_told(self, world, store):
        """A judge of one's own that raises what it likes breaks nothing else."""

        def asked(_):
            raise ZeroDivisionError("no documents today")

        store.observe(world.served(range(40)))
        store.observe(world.served(range(40, 80), judged=True), judge="other")
        steps = Worker(store, Knowing(world, asked), rewards_of="other").round()

        assert actions(steps) == ["not judged", "published"]
        assert "ZeroDivisionError: no documents today" in steps[0].detail

    def test_a_judge_that_hangs_is_left_behind(self, world, store):
        """A judge without an answer holds a round up for so long, and no later one."""
        free = threading.Event()

        class Hanging:
            scale, fingerprint = Scale("probability"), "hanging@1"

            def score(self, query, documents):
                free.wait(60)
                return [0.9, 0.1]

        store.observe(world.served(range(40)))
        worker = Worker(store, Hanging(), judge_seconds=0.3)
        details = [worker.round()[0].detail for _ in range(2)]
        free.set()

        assert "no answer within 0.3 s" in details[0]
        assert "is asked again in" in details[1]

    def test_it_is_asked_again_later(self, world, store, reranker):
        """The next worker judges what is left, and pays for nothing twice."""
        host, asked = reranker(lambda scores, n: 503 if 28 <= n < 32 else scores)  # when it is examined again too
        store.observe(world.served(range(40)))
        first = actions(Worker(store, http_judge(host), concurrency=1).round())
        second = actions(Worker(store, http_judge(host), concurrency=1).round())

        assert (first[0], second) == ("not judged", ["judged", "published"])
        assert store.judges()[0][1] == 320
        assert store.judge_queue.spent().pairs == 320 + 48
        assert store.rewards(store.judges()[0][0]).trusted  # it passed its examination
        assert len(asked) == 24 + 40 + 3 + 1


def test_an_error_of_who_watches_leaves_the_round(world, store):
    """It is not taken for one of the tenant: what is done stays done, and nothing is held or left out afterwards."""
    store.observe(world.served(range(40), judged=True), judge="j")
    worker = Worker(store)

    def watch(step):
        raise KeyError(step.action)

    with pytest.raises(KeyError, match="published"):
        worker.round(watch=watch)

    assert store.registry.version().number == 1
    assert store.leases.take("", "another", 60.0) is not None
    assert not worker._troubles


class TestLease:
    """One worker works for a tenant at a time."""

    def test_the_second_stands_by(self, world, store):
        """While one works for the only tenant the other does nothing; then nothing is left to do."""
        store.observe(world.served(range(40), judged=True), judge="j")
        first, second, standing_by = Worker(store), Worker(store), []
        steps = first.round(watch=lambda _: standing_by or standing_by.extend(actions(second.round())))

        assert actions(steps) == ["published"]
        assert standing_by == ["standby"]
        assert actions(second.round()) == ["learned nothing"]

    @pytest.mark.slow
    def test_it_is_renewed_while_work_goes_on(self, world, store):
        """A lease of three seconds lasts as long as the judge needs."""
        asked, answered = threading.Event(), threading.Event()

        def complete(prompt):
            asked.set()
            answered.wait(300)
            return careful(prompt)

        store.observe(world.served(range(6)))
        slow = RubricJudge(complete, model="slow")
        worker = threading.Thread(target=Worker(store, slow, lease_seconds=3.0).round)
        worker.start()
        asked.wait(300)
        ends = time.time() + 3.0  # when a lease ends that is renewed no more
        eventually(lambda: time.time() > ends)
        stolen = store.leases.take("", "thief", 1)
        answered.set()
        worker.join()

        assert stolen is None

    def test_who_lost_it_asks_no_more(self, world, store):
        """A worker whose lease was taken over while it judges begins no further call."""
        store.observe(world.served(range(100)))
        asked = []

        def ask(query):
            asked.append(query)
            if len(asked) == 28:
                steal(store, 60)

        (lost,) = Worker(store, Knowing(world, ask), lease_seconds=60, concurrency=1).round()

        assert lost.action == "standby"
        assert len(asked) == 28
        assert store.judge_queue.spent().pairs == 48 + 8 * (len(asked) - 24)  # first comes the examination


@pytest.mark.slow
def test_a_signal_ends_it_cleanly(world, store, sqlite_url):
    """Told to end it finishes, gives the lease back, and exits with 0."""
    store.observe(world.served(range(40), judged=True), judge="j")
    with subprocess.Popen(command(sqlite_url, "--every", 60), stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        code = process.wait(60)

    assert "published" in line
    assert code == 0
    assert store.leases.take("", "next", 1) is not None


@pytest.mark.slow
def test_a_signal_ends_it_while_new_texts_are_embedded(store, sqlite_url, tmp_path):
    """A model that hangs is left behind; what one says that fails is not printed, as it may repeat a text."""
    fails, hangs, printed = (tmp_path / name for name in ("fails", "hangs", "printed"))
    code = f"""
import pathlib, time
def embed(texts):
    if "private" in texts and not pathlib.Path({str(fails)!r}).exists():
        pathlib.Path({str(fails)!r}).touch()
        raise ValueError(texts)
    if "hang" in texts:
        pathlib.Path({str(hangs)!r}).touch()
        time.sleep(60)
    return [[1.0, 2.0]] * len(texts)
"""
    (tmp_path / "hanging.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    arguments = command(sqlite_url, "--every", 0.2, "--embed", "python:hanging:embed")
    with (
        printed.open("w") as errors,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
        StoreLog(store) as log,
    ):
        process.stdout.readline()
        log.observe("private", ["a", "b"])
        eventually(fails.exists)
        log.observe("hang", ["a", "b"])
        eventually(hangs.exists)
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(60)
        finally:
            process.kill()

    text = printed.read_text()
    assert code == 0
    assert "new texts were not embedded" in text
    assert "private" not in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_told_to_end_it_finishes_the_step_and_no_more(world, store):
    """A worker that is told to end while it judges keeps the verdicts of calls under way and begins nothing else."""
    stop, asked = threading.Event(), []

    def complete(prompt):
        asked.append(prompt)
        if len(asked) == 66:  # behind the examination
            stop.set()
        return careful(prompt)

    store.observe(world.served(range(40)))
    steps = Worker(store, RubricJudge(complete, model="told to end")).round(stop=stop)

    assert actions(steps) == ["judged"]
    assert 18 <= store.judges()[0][1] == len(asked) - 48 < 16 * 8


def test_told_to_end_it_keeps_what_a_slow_judge_has_answered(world, store, monkeypatch):
    """Verdicts that came before the time was over are kept, and no query is set aside for it."""
    monkeypatch.setattr(calls, "_GRACE", 1.0)
    stop, free, asked = threading.Event(), threading.Event(), []

    def complete(prompt):
        asked.append(prompt)
        if len(asked) == 56:
            stop.set()
        if len(asked) > 56:
            free.wait(300)
        return careful(prompt)

    store.observe(world.served(range(40)))
    steps = Worker(store, RubricJudge(complete, model="slow")).round(stop=stop)  # it ends while calls hang
    free.set()

    assert actions(steps) == ["judged"]
    assert store.judges()[0][1] == 8
    assert store.judge_queue.failures() == []


class TestCommand:
    """`tttembed worker`."""

    def run(self, *arguments):
        return CliRunner().invoke(main, ["worker", *arguments])

    def test_tells_machines_in_json(self, world, store, sqlite_url):
        """One object a step, with what a script needs."""
        store.observe(world.served(range(40), judged=True, tenant="acme"), judge="j")
        done = self.run(sqlite_url, "--once", "--json", "--tenant", "acme")
        (step,) = map(json.loads, done.stdout.splitlines())

        assert (step["tenant"], step["action"], step["version"]) == ("acme", "published", 1)
        assert done.exit_code == 0

    def test_a_judge_that_breaks_down_is_code_1(self, world, store, sqlite_url, reranker):
        """With --once a script can see that not all was judged."""
        store.observe(world.served(range(40)))
        done = self.run(sqlite_url, "--once", "--judge", f"http+cohere://{reranker(lambda *_: 400)[0]}")

        assert done.exit_code == 1
        assert "not judged" in done.stdout


def test_a_database_that_is_gone_is_waited_for(world, sqlite_url, tmp_path):
    """While the database is away the worker says so and tries again; when it is back it goes on."""
    steps, stop = [], threading.Event()
    options = {"every": 0.05, "stop": stop, "watch": steps.append}
    with open_store(sqlite_url) as store:
        thread = threading.Thread(target=Worker(store, lease_seconds=2).run, kwargs=options)
        thread.start()
        eventually(lambda: steps)
        store.close()
        (tmp_path / "data").rename(tmp_path / "away")
        eventually(lambda: steps[-1].action == "failed")
        (tmp_path / "away").rename(tmp_path / "data")
        store.observe(world.served(range(40), judged=True), judge="j")
        eventually(lambda: "published" in [step.action for step in steps])
        stop.set()
        thread.join(60)

        assert not thread.is_alive()
        assert store.registry.version().number == 1
