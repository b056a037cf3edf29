"""Judges that never answer, or end their own call: they hold up neither a run nor the end of a process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from tests.judges.conftest import served
from tttembed_rag import JudgeError
from tttembed_rag.judges import RubricJudge
from tttembed_rag.judges.examination import answers
from tttembed_rag.judging import Budget, Plan, ScoreCache, judge_all
from tttembed_rag.testing import FakeJudge


class Stuck(FakeJudge):
    """A judge that waits for an event at some queries, and scores one half, in time or later."""

    def __init__(self, *stuck):
        self.free = threading.Event()
        super().__init__(lambda query, _: 0.5 * (query not in stuck or self.free.wait(60)), fingerprint="stuck@1")


def test_a_late_call_is_left_behind_and_all_others_are_kept():
    """It is one failed call, with its reason."""
    judge = Stuck("query 1")
    verdicts = judge_all(Plan(served(4, 1)), judge, ScoreCache.open(None), concurrency=1, seconds=0.2)
    judge.free.set()

    assert set(verdicts.rewards) == {"q0", "q2", "q3"}
    assert [str(why) for why in verdicts.failed.values()] == ["stuck@1: no answer within 0.2 s"]


def test_a_late_call_counts_against_a_cap():
    """What it costs is not known, so its estimate counts."""
    plan = Plan(served(4, 1), budget=Budget(tokens=25))
    judge = Stuck("query 0")
    verdicts = judge_all(plan, judge, ScoreCache.open(None), concurrency=1, seconds=0.2)
    judge.free.set()

    assert len(judge.asked) == 2
    assert verdicts.stopped.startswith("budget")


def test_a_judge_that_cancels_its_own_call_has_failed():
    """A library of the judge may raise `CancelledError`: the run goes on."""

    class Cancelling(Stuck):
        def score(self, query, documents):
            if query == "query 0":
                raise asyncio.CancelledError
            return super().score(query, documents)

    verdicts = judge_all(Plan(served(3, 1)), Cancelling(), ScoreCache.open(None), concurrency=1)

    assert set(verdicts.rewards) == {"q1", "q2"}
    assert "cancelled" in str(verdicts.failed["q0", "d0-0"])


@pytest.mark.parametrize("blocks", [True, False])
def test_a_late_async_call_is_cancelled_and_the_next_one_answered(blocks):
    """Its loop is another one only where it was blocked."""
    free, loops = threading.Event(), []

    async def complete(prompt):
        loops.append(asyncio.get_running_loop())
        if "query 1" in prompt and blocks:
            free.wait(60)
        elif "query 1" in prompt:
            try:
                await asyncio.Event().wait()
            finally:
                free.set()
        return "Score: 4"

    judge = RubricJudge(complete, model="m")
    verdicts = judge_all(Plan(served(4, 1)), judge, ScoreCache.open(None), concurrency=1, seconds=1.0)

    assert set(verdicts.rewards) == {"q0", "q2", "q3"}
    assert len(set(loops)) == 1 + blocks
    assert free.is_set() != blocks
    free.set()


@pytest.mark.slow
def test_a_process_ends_while_a_judge_hangs():
    """Neither the interpreter's end nor that of the event loop waits for a call that never comes back."""
    code = (
        "import time\n"
        "from tttembed_rag import Scale\n"
        "from tttembed_rag.judging import ScoreCache\n"
        "from tttembed_rag.judging import Plan, judge_all\n"
        "from tttembed_rag.rewards.observations import Served\n"
        "class Hanging:\n"
        "    scale, fingerprint = Scale('probability'), 'hanging@1'\n"
        "    def score(self, query, documents):\n"
        "        time.sleep(600)\n"
        "served = [Served.of_texts('q', 'query', [('d', 'text')])]\n"
        "print(judge_all(Plan(served), Hanging(), ScoreCache.open(None), seconds=0.2).failed)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert "no answer within 0.2 s" in done.stdout
    assert time.monotonic() - began < 30


class Refusing(Stuck):
    """A judge that refuses some queries, and the first question of its examination once it is told to."""

    def __init__(self, refused, well=True):
        super().__init__()
        self.refused, self.well, self.examined = refused, well, 0

    def score(self, query, documents):
        """The right order where it is examined."""
        if query in answers():
            self.examined += 1
            return [float(self.well or self.examined <= 24) * (text == answers()[query]) for text in documents]
        if query in self.refused:
            raise JudgeError("too long")
        return super().score(query, documents)


@pytest.mark.parametrize(("examine", "well", "judged"), [(True, True, 8), (True, False, 0), (False, True, 0)])
def test_a_judge_that_is_well_goes_on_after_failures_in_a_row(examine, well, judged):
    """Where that is asked for, and its examination shows it."""
    plan = Plan(served(12, 1))
    order = [observation.query for observation, _ in plan.visits()]
    judge = Refusing(set(order[:4]), well)
    verdicts = judge_all(plan, judge, ScoreCache.open(None), concurrency=1, examine=examine)

    assert len(verdicts.rewards) == judged
    assert bool(verdicts.stopped) == (not judged)


def test_a_judge_that_fails_on_and_on_is_given_up():
    """However well it is, ten questions behind its examination are enough; they count against the caps."""
    judge = Refusing({f"query {q}" for q in range(100)})
    verdicts = judge_all(Plan(served(100, 1)), judge, ScoreCache.open(None), concurrency=1, examine=True)

    assert (judge.examined, len(verdicts.failed)) == (24 + 10, 33)
    assert verdicts.progress.usage.tokens > 0
