"""`tttembed judge --batch`: a plan is sent, waited for and read; any later run goes on where one was stopped."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from contextlib import closing
from threading import Event

import pytest
from click.testing import CliRunner
from tttembed_store.batches import byplan, judge_by_batches, open_batch_service, requests
from tttembed_store.batches.openbatch import FiledBatches

from tttembed_rag.cli import main
from tttembed_rag.errors import JudgeError
from tttembed_rag.judging import Budget, Plan, Price, ScoreCache
from tttembed_rag.rewards.observations import Served
from tttembed_rag.testing import eventually

PRICE = Price(input=2.0, output=12.0)
# What one answer of the server costs in a batch: half of 100 tokens read and 10 written.
HALF = 0.5 * (100 * 2.0 + 10 * 12.0) / 1e6
# Requests of a run, in their order.
STEPS = ("chat/completions", "files", "batches", "batches/batch-0", "content")


@pytest.fixture(autouse=True)
def quick(monkeypatch, spec):
    """A run looks at its batches without a pause."""
    monkeypatch.setattr(byplan, "_LEAST_PAUSE", 0.001)


def observed(queries=4, depth=3):
    """Served queries of two words; their documents have none, one or both of them."""
    return [
        Served.of_texts(
            f"q{q}",
            f"word{q} word{q}b",
            [(f"d{q}-{k}", " ".join([*[f"word{q}", f"word{q}b"][:k], f"filler{k}"])) for k in range(depth)],
        )
        for q in range(queries)
    ]


@pytest.fixture
def log(tmp_path):
    """A log of served queries."""
    path = tmp_path / "served.jsonl"
    lines = [
        {
            "query_id": o.query_id,
            "query": o.query,
            "candidates": [{"id": c.doc_id, "text": c.text} for c in o.candidates],
        }
        for o in observed()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def tttembed(*arguments):
    """The command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="tttembed")


def interrupted(_):
    """Ctrl-C while a run waits."""
    raise KeyboardInterrupt


class Run:
    """A plan, and runs of it over one file of paid scores."""

    def __init__(self, path, spec):
        self.path, self.spec = path, spec

    def __call__(self, *, observations=None, budget=None, settling=600.0, **options):
        """One run."""
        service = open_batch_service(self.spec)
        service._client, service.settling = service._client.with_options(max_retries=0), settling
        plan = Plan(observations or observed(), (3,), budget or Budget(), PRICE)
        with (
            closing(ScoreCache.open(self.path)) as cache,
            FiledBatches.at(self.path, service.judge.fingerprint) as books,
        ):
            return judge_by_batches(plan, service, cache, books, **options)

    @property
    def open(self):
        """Open batches."""
        with FiledBatches.at(self.path, open_batch_service(self.spec).judge.fingerprint) as books:
            return books.open()


@pytest.fixture
def run(tmp_path, spec):
    """A plan to run."""
    return Run(tmp_path / "paid.sqlite", spec)


def test_the_command_goes_the_whole_way(log, spec, batch_server, tmp_path):
    """Forecast, examination, requests, results: rewards stand in their file, and a second run asks nothing."""
    command = ("judge", log, "--judge", spec, "--batch", "--price", "input=2,output=12", "--budget", "usd=1")
    ahead = tttembed(*command, "--dry-run")
    asked = len(batch_server.single), dict(batch_server.files)
    done = tttembed(*command, "--json")
    again = tttembed(*command)

    assert ahead.stdout.startswith("forecast: 12 of 12 pairs, 0 known before, at most ")
    assert asked == (0, {})
    assert done.exit_code == 0, done.output
    assert "sent: 12 pairs as the batch batch-0, at most $" in done.stderr
    said = json.loads(done.stdout)
    assert (said["pairs"], said["unjudged"], said["requests"]) == (12, 0, 12)
    assert said["usd"] == pytest.approx(12 * HALF + 48 * 2 * HALF, abs=1e-6)
    assert len((tmp_path / "scores" / "tiny.tsv").read_text().splitlines()) == 13
    assert "judged: 12 of 12 pairs, 12 known before" in again.stdout
    assert (len(batch_server.single), len(batch_server.batches), len(batch_server.paid)) == (48, 1, 12)
    assert batch_server.files == {}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--judge", "yesno:m"), "expected openai:MODEL"),
        (("--judge", "openai:m?url=http://127.0.0.1:1/v1", "--budget", "usd=1"), "price: expected one"),
    ],
)
def test_bad_input_is_one_line(log, options, reason):
    """Exit code 2 and the reason."""
    result = tttembed("judge", log, "--batch", *options)

    assert result.exit_code == 2
    assert reason in result.stderr


def test_a_run_that_is_stopped_is_gone_on_with(log, spec, batch_server, monkeypatch):
    """Ctrl-C while a batch is open: exit code 130, and the next run reads it."""
    command = ("judge", log, "--judge", spec, "--batch")
    batch_server.looks = 1

    monkeypatch.setattr(judge_by_batches, "__kwdefaults__", judge_by_batches.__kwdefaults__ | {"sleep": interrupted})
    stopped = tttembed(*command)
    done = tttembed(*command)

    assert (stopped.exit_code, done.exit_code) == (130, 0)
    assert "1 batches are open; run it again to read them" in stopped.stderr
    assert (len(batch_server.batches), len(batch_server.paid)) == (1, 12)


def test_more_than_a_batch_holds_is_sent_as_several(run, batch_server, monkeypatch):
    """All of them at once."""
    monkeypatch.setattr(requests, "REQUESTS", 5)
    verdicts = run()

    assert batch_server.uploads == [5, 5, 2]
    assert (sum(map(len, verdicts.rewards.values())), verdicts.stopped, run.open) == (12, "", [])


def test_a_cap_holds(run, batch_server):
    """As many pairs are sent as it holds at their highest cost; at the real cost, a later run finds room for more."""
    budget = Budget(usd=0.03)
    first = run(budget=budget)
    second = run(budget=budget)

    assert first.stopped.startswith("budget:")
    assert 0 < first.progress.pairs < second.progress.pairs <= 12
    assert second.progress.usd <= budget.usd
    assert len(batch_server.paid) == len(set(batch_server.paid))


def test_what_has_no_answer_is_said_and_asked_again_by_the_next_run(run, batch_server):
    """Its pairs cost nothing; the rest is kept."""
    error = {"response": None, "error": {"code": "batch_expired", "message": "late"}}
    batch_server.fate = lambda some: (
        "expired",
        [*map(batch_server.result, some[:5])],
        [{"custom_id": one["custom_id"], **error} for one in some[5:]],
    )
    first = run()
    batch_server.fate = lambda some: ("completed", [*map(batch_server.result, some)], [])
    second = run()

    assert first.stopped == "7 pairs have no answer: batch_expired late"
    assert (sum(map(len, first.rewards.values())), sum(map(len, second.rewards.values()))) == (5, 12)
    assert (second.stopped, len(batch_server.paid), batch_server.uploads) == ("", 12, [12, 7])


def test_answers_that_cannot_be_read_stay_counted(run, batch_server):
    """They were paid for, so a cap leaves no room for the same pairs once more."""
    said = batch_server.said
    batch_server.looks = 0
    budget = Budget(tokens=30_000)
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": ["a list"]}}
    batch_server.fate = lambda some: (
        "completed",
        [
            {**batch_server.result(one), "response": {"body": {**said(one["body"]), "choices": [choice]}}}
            for one in some
        ],
        [],
    )
    first = run(budget=budget)
    second = run(budget=budget)

    assert first.stopped == "12 pairs have no answer: an answer of another form"
    assert second.progress.pairs < 12
    assert 12 < len(batch_server.paid) < 24


def test_a_changed_plan_loses_nothing_that_was_paid_for(run, batch_server):
    """Other queries stand in the log when the results are read: they are kept for the first ones all the same."""
    with pytest.raises(KeyboardInterrupt):
        run(sleep=interrupted)
    other = run(observations=[Served.of_texts("q", "word9 word9b", [("d", "word9")])])
    first = run()

    assert sum(map(len, other.rewards.values())) == 1
    assert sum(map(len, first.rewards.values())) == len(set(batch_server.paid)) - 1 == len(batch_server.paid) - 1 == 12


def test_a_judge_that_fails_its_examination_is_sent_nothing(run, batch_server):
    """Single requests show it, and no file is uploaded."""
    batch_server.said = lambda _: {"choices": [{"finish_reason": "stop", "message": {"content": "Score: 3"}}]}
    with pytest.raises(JudgeError, match="expected to pass its examination"):
        run()

    assert (batch_server.uploads, run.open) == ([], [])


def test_two_runs_at_once_send_one_batch(run, batch_server, monkeypatch):
    """The second is refused before it has sent anything."""
    add, began = FiledBatches.add, []

    def slow(books, batch):
        if not began:
            began.append(batch)
            with pytest.raises(KeyboardInterrupt):
                run(sleep=interrupted)
        return add(books, batch)

    monkeypatch.setattr(FiledBatches, "add", slow)
    with pytest.raises(JudgeError, match="expected one process that sends its batches, found another one"):
        run()
    run()

    assert (batch_server.uploads, len(batch_server.paid), run.open) == ([12], 12, [])


@pytest.fixture
def killed_run(run, batch_server):
    """A run in a process of its own, killed by the service where `at(method, path)` says so."""

    def start(at):
        child, killed = [], Event()

        def fault(*asked):
            if at(*asked) and not killed.is_set():
                os.kill(eventually(lambda: child)[0], signal.SIGKILL)
                killed.set()

        batch_server.fault = fault
        pid = os.fork()
        if not pid:
            try:
                run()
            finally:
                os._exit(1)
        child.append(pid)
        os.waitpid(pid, 0)
        assert killed.is_set()

    return start


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("step", STEPS)
def test_a_run_killed_at_a_step(step, when, killed_run, run, batch_server):
    """The service kills the run before it does what it is asked for, or behind it: the next one pays nothing twice."""
    killed_run(lambda method, path: path.endswith(step) and (method == "done") == (when == "behind"))
    verdicts = run(settling=0.0 if (step, when) == ("batches", "before") else 600.0)

    assert sum(map(len, verdicts.rewards.values())) == len(batch_server.paid) == len(set(batch_server.paid)) == 12
    assert run.open == []


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("path", ["/files", "/files/file-1/content"])
def test_a_kill_leaves_no_text_in_a_file(path, killed_run, tmp_path, monkeypatch):
    """Requests and results hold what users asked: they are in memory alone, where no `forget` has to look for them."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    killed_run(lambda method, asked: method != "done" and asked == path)

    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"word0b" in path.read_bytes()] == []
    assert list((tmp_path / "tmp").iterdir()) == []
