"""A worker and a batch service: sent once, read in parts, late, lost or damaged, within the budget of a day."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event

import pytest
from click.testing import CliRunner
from sqlalchemy import text
from tttembed_store.batches import exchange, lines, open_batch_service
from tttembed_store.sql import Served, open_store
from tttembed_store.worker import Worker, batches

from tests.workers import hours_pass, steal
from tttembed_rag.cli import main
from tttembed_rag.errors import InputError, LeaseLost
from tttembed_rag.judges import open_judge
from tttembed_rag.judging import Budget, Price
from tttembed_rag.testing import eventually

PRICE = Price(input=2.0, output=12.0)
# What one answer of the server costs in a batch: half of 100 tokens read and 10 written.
HALF = 0.5 * (100 * 2.0 + 10 * 12.0) / 1e6
# Pairs of the examination of a judge.
EXAM = 48


class Bench:
    """A store, a server and workers that ask it by batches, each a process of its own as far as they know."""

    def __init__(self, store, server):
        self.store, self.server = store, server
        self.judge = open_judge(server.spec)

    def worker(self, *, settling=600.0, **options):
        """A new worker, which learns nothing."""
        options = {"price": PRICE, "min_new": 100_000, "clock": lambda: 0.0, **options}
        return Worker(self.store, self.judge, batches=self.server.service(settling=settling), **options)

    def round(self, **options):
        """What a new worker says in one round about judging."""
        steps = self.worker(**options).round()
        return [(step.action, step.detail) for step in steps if "judged" in step.action]

    def rounds(self, count, **options):
        """The same of several."""
        return [step for _ in range(count) for step in self.round(**options)]

    def books(self, lease):
        """The books of its judge."""
        return self.store.open_batches.books("", self.judge.fingerprint, caps=Budget(), lease=lease)

    @property
    def rewards(self):
        """Rewards in the store."""
        return self.store.counts().rewards

    @property
    def open(self):
        """Open batches."""
        return self.store.open_batches.of("")

    def fault(self, method, path, status=None):
        """Have the first request at the end of a path fail by a status, or the connection end; "done" is behind it."""
        left = [path]

        def fault(step, asked):
            if step != method or not left or not asked.endswith(path):
                return None
            left.clear()
            if status is None:
                raise ConnectionError
            return status

        self.server.fault = fault


@pytest.fixture
def bench(store, service):
    """One on SQLite."""
    return Bench(store, service)


# Both services, each with the end of the path at which it makes a batch.
SERVICES = pytest.mark.parametrize(
    ("service", "create"), [("openai", "/batches"), ("gemini", ":batchGenerateContent")], indirect=["service"]
)


def spent(store):
    """Pairs and dollars of today."""
    today = store.judge_queue.spent()
    return today.pairs, round(today.usd, 9)


class TestSentAndRead:
    """What waits is sent in one round, and read in a later one."""

    @SERVICES
    def test_a_batch_is_sent_once_and_read_when_it_has_ended(self, bench, served, create):
        """The examination is asked singly, all pairs in one batch at half the price, and no pair twice.

        Requests and results hold texts: once they are read, none of them stays at the service.
        """
        bench.store.observe(served(8))
        first, uploaded = bench.round(), len(bench.server.files)
        later = bench.rounds(4)
        single = sorted(bench.store.judge_queue.waiting(bench.judge.fingerprint))

        assert first[0][1].startswith("0 pairs scored; 24 pairs sent as a batch, at most $")
        assert later == [("judged", "24 pairs scored")]
        assert (bench.rewards, single, bench.open) == (24, [], [])
        assert (len(bench.server.single), len(bench.server.batches)) == (EXAM, 1)
        assert len(bench.server.paid) == len(set(bench.server.paid)) == 24
        assert (uploaded, bench.server.files) == (1, {})
        assert spent(bench.store) == (24 + EXAM, round((24 + 2 * EXAM) * HALF, 9))

    def test_the_rewards_are_those_of_single_answers(self, bench, served, tmp_path):
        """A store whose pairs were asked about one by one learns from the same numbers."""
        bench.store.observe(served(5))
        bench.rounds(4)
        with open_store(f"sqlite:///{tmp_path / 'single.db'}") as other:
            other.observe(served(5))
            Worker(other, bench.judge, min_new=100_000).round()
            singly = other.rewards(bench.judge.fingerprint)

        assert bench.store.rewards(bench.judge.fingerprint).values.tolist() == singly.values.tolist()

    @pytest.mark.parametrize(("state", "answered"), [("completed", 5), ("expired", 5), ("cancelled", 1), ("failed", 0)])
    def test_what_has_no_answer_is_sent_again_later_and_nothing_else(self, bench, served, state, answered):
        """A part of the results is kept; the rest waits five minutes, costs nothing, and is asked for once more."""
        late = {"code": "batch_expired", "message": "This request could not be executed."}

        def fate(requests):
            errors = [{"custom_id": row["custom_id"], "response": None, "error": late} for row in requests[answered:]]
            return state, [*map(bench.server.result, requests[:answered])], errors

        bench.server.fate = fate
        bench.store.observe(served(4))
        steps, files = bench.rounds(5), bench.server.files.copy()
        paid_then = spent(bench.store)
        bench.server.fate = lambda requests: ("completed", [*map(bench.server.result, requests)], [])
        hours_pass(bench.store, 0.1)
        bench.rounds(4)

        assert steps[1][0] == "not judged"
        assert f"{12 - answered} pairs without an answer are asked about again later: batch {state}" in steps[1][1]
        assert f"batch {state}: batch_ex" not in steps[1][1]
        assert (len(steps), files) == (2, {})
        assert paid_then == (EXAM + answered, round((answered + 2 * EXAM) * HALF, 9))
        assert (bench.rewards, len(bench.server.paid), len(set(bench.server.paid))) == (12, 12, 12)
        assert len(bench.server.batches) == 2

    @pytest.mark.parametrize("service", ["gemini"], indirect=True)
    @pytest.mark.parametrize("state", ["FAILED", "EXPIRED"])
    def test_what_has_no_results_at_google_is_set_aside(self, bench, served, state):
        """Its pairs are asked about again later."""
        bench.server.state = f"BATCH_STATE_{state}"
        bench.store.observe(served(4))
        steps = bench.rounds(4)

        assert f"batch {state.lower()}" in steps[1][1]
        assert (bench.rewards, bench.open) == (0, [])

    @pytest.mark.parametrize("name", ["b\ud800", "b\r\nx: y", "..", "b\0"])
    def test_a_batch_of_an_impossible_name_is_found_in_the_list(self, bench, served, name):
        """No address can hold the name that its service gives it at first: it is made once, and read."""
        answer = bench.server.RequestHandlerClass.answer

        class Renaming(bench.server.RequestHandlerClass):
            def answer(self, path, content):
                body = answer(self, path, content)
                return body | {"id": name} if self.command == "POST" and path == "/v1/batches" else body

        bench.server.RequestHandlerClass = Renaming
        bench.store.observe(served(3))
        steps = bench.rounds(6)

        assert steps[0][0] == "not judged"
        assert "expected a batch, got" in steps[0][1]
        assert (bench.rewards, len(bench.server.paid), len(bench.server.batches), bench.open) == (9, 9, 1, [])

    def test_a_judge_that_fails_its_examination_is_sent_nothing(self, bench, served):
        """Single requests show it, and no file is uploaded."""
        bench.server.reply = lambda _: {"choices": [{"finish_reason": "stop", "message": {"content": "Score: 3"}}]}
        bench.store.observe(served(3))
        ((action, detail),) = bench.round()

        assert action == "not judged"
        assert "expected to pass its examination" in detail
        assert (bench.server.files, bench.server.batches, bench.open) == ({}, {}, [])

    def test_what_comes_meanwhile_is_sent_behind_it(self, bench, served, monkeypatch):
        """A second batch asks about new queries alone, and not about another query with the same text."""
        bench.server.looks = 100
        bench.store.observe(served(3))
        bench.round()
        bench.store.observe(served(2, first=3))
        (again,) = served(1)
        bench.store.observe([Served("copy", again.vector, again.candidates, again.query, at=2e9)])
        waited = bench.rounds(2)
        monkeypatch.setattr(batches, "_NEXT", 0.0)
        sent = bench.round()
        bench.server.looks = 0
        bench.rounds(3)

        assert waited == []
        assert "6 pairs sent as a batch" in sent[0][1]
        assert (bench.rewards, len(bench.server.paid), len(set(bench.server.paid))) == (18, 15, 15)

    def test_more_than_a_batch_holds_is_sent_as_several(self, bench, served, monkeypatch):
        """A backlog is sent within a round, in batches of a size that services take."""
        monkeypatch.setattr(batches, "_QUERIES", 4)
        monkeypatch.setattr(lines, "REQUESTS", 7)
        bench.store.observe(served(10))
        bench.rounds(4)

        assert bench.server.uploads == [7, 5, 7, 5, 6]
        assert (bench.rewards, len(bench.server.paid)) == (30, 30)

    def test_a_worker_that_asks_singly_leaves_what_a_batch_asks_about(self, bench, served):
        """No pair is paid for twice; a batch that is three days old has no results any more."""
        bench.store.observe(served(3))
        bench.round()
        bench.store.observe(served(1, first=10))
        single = Worker(bench.store, bench.judge, price=PRICE, min_new=100_000)
        single.round()
        before = bench.rewards, len(bench.server.single)
        (batch,) = bench.open
        with bench.store.leases.held("", "test", 30.0) as lease:
            bench.books(lease).note(replace(batch, at=batch.at - 3 * 86_400))
        single.round()

        assert before == (3, EXAM + 3)
        assert (bench.rewards, len(bench.server.single)) == (12, EXAM + 12)

    def test_a_round_ends_where_looks_are_slow(self, bench, served):
        """Looks take most of the time that tenants have; each tenant has one of them, and then the round is over."""
        for number in range(8):
            bench.store.observe(served(1, first=10 * number, tenant=f"t{number}"))
        bench.round()
        bench.server.looks = 100
        looks, stop = [], Event()

        def count(method, path):
            looks.extend([path] * (method == "GET"))
            if len(looks) == 20:  # a round that never ends would be cut off here
                stop.set()

        bench.server.fault = count
        bench.worker(clock=partial(next, itertools.count(step=20.0))).round(stop=stop)

        assert sorted(looks) == [f"/batches/batch-{number}" for number in range(8)]


class TestMoney:
    """The most that a batch may cost counts from before it is sent, and what it did cost afterwards."""

    def test_the_highest_cost_is_set_aside_while_it_is_open(self, bench, served):
        """A second worker with the same budget has only the rest."""
        bench.store.observe(served(8))
        bench.round()
        (batch,) = bench.open
        while_open = bench.store.judge_queue.spent()
        bench.rounds(3)

        assert while_open.pairs == 24 + EXAM
        assert while_open.usd == pytest.approx(batch.usd + 2 * EXAM * HALF)
        assert batch.usd > 24 * HALF

    @pytest.mark.parametrize("budget", [Budget(pairs=11), Budget(usd=0.06), Budget(tokens=12_000)])
    def test_a_cap_holds_at_every_instant(self, bench, served, budget):
        """As many pairs are sent as the cap holds at their highest cost; then nothing is asked, the judge neither."""
        bench.store.observe(served(1, first=100))
        bench.rounds(3)  # the examination is paid for
        gone = bench.store.judge_queue.spent()
        caps = {name: cap + getattr(gone, name) for name, cap in asdict(budget).items() if cap is not None}
        budget = Budget(**caps)
        bench.store.observe(served(8))
        seen = []
        for _ in range(7):
            bench.round(budget=budget)
            today = bench.store.judge_queue.spent()
            seen.append((today.pairs, today.tokens, today.usd))
        singles = len(bench.server.single)
        bench.rounds(2, budget=budget)
        most = [max(column) for column in zip(*seen, strict=True)]

        assert 3 < bench.rewards < 3 + 24
        assert most[0] <= (budget.pairs or 100)
        assert most[1] <= (budget.tokens or 1e9)
        assert most[2] <= (budget.usd or 1e9)
        assert len(bench.server.single) == singles

    def test_results_count_on_the_day_on_which_they_were_asked_for(self, bench, served):
        """A batch of yesterday leaves the budget of today alone."""
        bench.store.observe(served(4))
        bench.round()
        (batch,) = bench.open
        yesterday = datetime.now(UTC).date() - timedelta(days=1)
        with bench.store.leases.held("worker", "test", 5.0) as lease:
            bench.books(lease).note(replace(batch, day=yesterday.isoformat()))
        with bench.store._database.write("observing") as connection:
            connection.execute(text("UPDATE spending SET day = :day"), {"day": yesterday.isoformat()})
        bench.rounds(3)

        assert bench.rewards == 12
        assert bench.store.judge_queue.spent().pairs == 0
        assert bench.store.judge_queue.spent(yesterday).pairs == 12 + EXAM

    @pytest.mark.parametrize(
        ("forgotten", "renewed", "kept"),
        [({}, False, 0), ({"query_id": "q1"}, False, 9), ({"query_id": "q1"}, True, 9)],
    )
    def test_answers_about_what_was_forgotten_are_paid_for_and_not_kept(self, bench, served, forgotten, renewed, kept):
        """A tenant, or a query, also where another has new documents, so that as many pairs wait as were asked for."""
        bench.store.observe(served(4, tenant="a"))
        bench.round()
        bench.store.forget(tenant="a", by="test", **forgotten)
        if renewed:
            (query,) = served(1, first=2, filler="new", tenant="a")
            shown = [replace(document, doc_id=f"new{k}") for k, document in enumerate(query.candidates)]
            bench.store.observe([replace(query, candidates=shown)])
        bench.rounds(3)

        assert (bench.rewards, bench.store.open_batches.of("a")) == (kept, [])
        assert spent(bench.store)[0] == 12 + EXAM

    def test_answers_about_texts_that_changed_meanwhile_are_paid_for(self, bench, served):
        """All documents get another text while their batch is open: the cap leaves nothing for the new texts."""
        budget = Budget(pairs=18 + EXAM)
        bench.store.observe(served(4))
        bench.round(budget=budget)
        bench.store.observe(served(4, filler="new"))
        bench.rounds(3, budget=budget)
        hours_pass(bench.store, 1)
        bench.rounds(4, budget=budget)

        assert (bench.rewards, bench.open) == (4, [])
        assert len(bench.server.paid) == 12 + 4
        assert spent(bench.store)[0] == 12 + 4 + 2 + EXAM

    def test_answers_that_cannot_be_read_are_paid_for(self, bench, served):
        """The service answered and charges for it, so they count at their highest cost."""
        answer = bench.server.reply
        bench.store.observe(served(4))
        bench.round()
        highest = bench.open[0].usd
        choice = {"index": 0, "finish_reason": "stop", "message": {"content": ["a list"]}}
        bench.server.reply = lambda body: {**answer(body), "choices": [choice]}
        bench.rounds(3)

        assert (bench.rewards, bench.open) == (0, [])
        assert spent(bench.store) == (12 + EXAM, round(highest + 2 * EXAM * HALF, 9))


class TestBroken:
    """A service that fails between any two steps is asked again, and a batch is never made twice."""

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("POST", "/files", 401),
            ("POST", "/batches", 502),
            ("GET", "/batches/batch-0", 403),
            ("GET", "/files/file-1/content", 404),
        ],
    )
    def test_a_failure_is_told_and_the_work_goes_on(self, bench, served, method, path, status):
        """The step is told as not judged; in the end every pair was paid for once."""
        bench.fault(method, path, status)
        bench.store.observe(served(3))
        steps = bench.rounds(8, settling=0.0)

        assert [action for action, _ in steps].count("not judged") == 1
        assert str(status) in str(steps)
        assert (bench.rewards, len(bench.server.paid), bench.open) == (9, 9, [])
        assert spent(bench.store)[0] - 9 == len(bench.server.single)

    def test_a_batch_that_is_gone_stops_no_other_tenant(self, bench, served):
        """Somebody deleted it at the service: that is told, its pairs wait, and all others are judged."""
        bench.store.observe(served(3, tenant="a"))
        bench.round()
        bench.server.fault = lambda *asked: 404 if asked == ("GET", "/batches/batch-0") else None
        bench.store.observe(served(3, first=10, tenant="b"))
        worker = bench.worker()
        steps = [str(step) for _ in range(5) for step in worker.round()]

        assert [bench.store.counts(tenant).rewards for tenant in "ab"] == [0, 9]
        assert any(step.startswith("a: not judged") and "404" in step for step in steps)
        assert len(bench.store.open_batches.of("a")) == 1

    @SERVICES
    def test_a_batch_that_is_refused_is_set_aside(self, bench, served, create):
        """It was never made: it costs nothing, leaves no file, and is not tried in every round."""
        bench.server.fault = lambda method, path: 400 if method == "POST" and path.endswith(create) else None
        bench.store.observe(served(3))
        steps, whys = bench.rounds(5), [why for _, why, _ in bench.store.judge_queue.failures()]
        files, then = dict(bench.server.files), spent(bench.store)[0]
        bench.server.fault = lambda *_: None
        hours_pass(bench.store, 0.1)
        bench.rounds(4)

        assert [action for action, _ in steps] == ["not judged"]
        assert "got 400" in steps[0][1]
        assert "got 400" in whys[0]
        assert (files, then) == ({}, EXAM)
        assert (bench.rewards, len(bench.server.paid), bench.open) == (9, 9, [])

    def test_a_service_that_deletes_no_file_stops_nothing(self, bench, served, caplog):
        """It is told in the log."""
        bench.server.fault = lambda method, _: 405 if method == "DELETE" else None
        bench.store.observe(served(3))
        steps = bench.rounds(4)

        assert [action for action, _ in steps] == ["judged", "judged"]
        assert (bench.rewards, bench.open) == (9, [])
        assert caplog.text.count("stays at the service") == 2

    def test_a_batch_that_was_never_made_is_sent_anew_in_the_end(self, bench, served):
        """Only once a while has passed since it was asked for: until then it may still appear in the list."""
        bench.fault("POST", "/batches", 502)
        bench.store.observe(served(3))
        bench.round()
        early = bench.rounds(3)
        bench.rounds(5, settling=0.0)

        assert early == []
        assert (bench.rewards, len(bench.server.batches)) == (9, 1)

    def test_a_batch_without_an_end_is_given_up(self, bench, served, monkeypatch):
        """After three days its queries are sent anew; it may be paid for, so it stays counted."""
        bench.server.looks = 100
        bench.store.observe(served(3))
        bench.round()
        waits = bench.rounds(2)
        monkeypatch.setattr(exchange, "GIVEN_UP", 0.0)
        ((action, detail),) = bench.round()[:1]

        assert waits == []
        assert action == "not judged"
        assert "has not ended" in detail
        assert spent(bench.store)[0] >= 9 + EXAM

    def test_a_service_that_hangs_is_left_behind(self, bench, served):
        """A round ends while the service hangs; the batch that was made unheard is found in the next one."""
        held = Event()
        bench.store.observe(served(3))
        bench.server.fault = lambda *asked: held.wait(300) and None if asked == ("POST", "/batches") else None
        steps = bench.round(judge_seconds=5.0)
        held.set()
        eventually(lambda: bench.server.batches)
        bench.rounds(4)

        assert "no answer within 5 s" in steps[0][1]
        assert (bench.rewards, len(bench.server.paid), len(bench.server.batches)) == (9, 9, 1)

    def test_another_judges_service_is_refused(self, bench):
        """Its answers would be another judge's."""
        other = open_batch_service(bench.server.spec.replace("tiny", "other"))

        with pytest.raises(InputError, match="expected a service of the judge"):
            Worker(bench.store, bench.judge, batches=other)

    def test_who_lost_the_lease_sends_nothing(self, bench, served):
        """Another worker took over while the judge was examined."""
        bench.store.observe(served(3))

        bench.server.fault = lambda *asked: steal(bench.store) if asked == ("done", "/chat/completions") else None
        with suppress(LeaseLost):
            bench.worker(lease_seconds=0.2).round()

        assert (bench.server.files, bench.server.batches, bench.open) == ({}, {}, [])


def test_the_command_sends_and_reads(store, served, batch_server):
    """`tttembed worker --once --batch`, as cron calls it."""
    store.observe(served(3))
    batch_server.looks = 0
    command = ["worker", store.name, "--judge", batch_server.spec, "--batch", "--once", "--price", "input=2,output=12"]
    outputs = [CliRunner().invoke(main, command).output for _ in range(3)]

    assert "9 pairs sent as a batch, at most $" in outputs[0]
    assert "judged: 9 pairs scored" in outputs[1]
    assert store.counts().rewards == 9
    assert CliRunner().invoke(main, ["worker", store.name, "--batch"]).exit_code == 2
    assert "asked by batches" in CliRunner().invoke(main, [*command[:3], "anthropic:x", "--batch"]).output


def test_old_batches_end_the_search_for_one_whose_name_was_lost(batch_server):
    """An account with years of batches is not read to its end; one that is as new as what is looked for is found."""
    batch_server.batches |= {
        f"batch-{k}": {"id": f"batch-{k}", "created_at": 1.0, "status": "completed"} for k in range(300)
    }
    pages = []
    batch_server.fault = lambda method, path: pages.append(method) if (method, path) == ("GET", "/batches") else None
    service = batch_server.service()

    missing = service.find("key", "file", time.time())

    assert missing is None
    assert len(pages) == 50  # of two batches each
    batch_server.batches["batch-0"]["metadata"] = {"tttembed": "key"}
    assert service.find("key", "file", 2.0).number == "batch-0"
