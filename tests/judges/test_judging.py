"""Judging under a budget: order, caps, every pair once, stop and continue."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.judges.conftest import served
from tttembed_rag import InputError, Scale
from tttembed_rag.clients.fingerprints import pair_key
from tttembed_rag.clients.usage import estimated_tokens, report_usage
from tttembed_rag.errors import DataError, RewardError
from tttembed_rag.evaluate.files import write_scores
from tttembed_rag.judges import HttpJudge, Usage
from tttembed_rag.judges.examination import answers
from tttembed_rag.judging import Budget, Paid, Plan, Price, ScoreCache, judge_all
from tttembed_rag.judging.plan import in_turns, water_fill
from tttembed_rag.judging.walk import forecast
from tttembed_rag.rewards.observations import Served
from tttembed_rag.rewards.rows import read_log
from tttembed_rag.testing import FakeJudge

law = settings(max_examples=20, deadline=None, derandomize=True)


class Lengths(FakeJudge):
    """A judge that knows how long texts are: 1 / (1 + characters), 10 tokens a document."""

    def __init__(self, score_of=lambda _, text: None if text == "unclear" else 1 / (1 + len(text)), **settings):
        super().__init__(score_of, fingerprint="lengths", documents_per_call=3, **settings)


def run(plan, judge=None, cache=None, **options):
    """Verdicts, and the pairs that the judge was asked about."""
    judge = judge or Lengths()
    return judge_all(plan, judge, cache or ScoreCache.open(None), **options), judge.asked


class TestOrder:
    """Which pairs come first."""

    def test_a_stage_ends_before_the_next_begins(self):
        """With depths 2 and 4 every query is judged to 2 before any is judged further."""
        _, pairs = run(Plan(served(3, 5), (2, 4)), concurrency=1)
        lengths = [text.count("x") for _, text in pairs]

        assert sorted(lengths[:6]) == [0, 0, 0, 1, 1, 1]
        assert sorted(lengths[6:]) == [2, 2, 2, 3, 3, 3]

    def test_tasks_take_turns(self):
        """Queries follow the water-filling order of the paper, its seeds included."""
        observations = served(7, 1, tasks=2)
        groups = [[o.query for o in observations if o.task == f"t{t}"] for t in range(2)]
        _, pairs = run(Plan(observations, (1,)), concurrency=1)
        order = [groups[t][place] for t, place in in_turns([4, 3], seed=1000)]

        assert order == [query for query, _ in pairs]

    @law
    @given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4), queries=st.integers(0, 20))
    def test_prefixes_are_the_water_fill(self, sizes, queries):
        """The first m turns are the queries that a budget of m rewards."""
        turns = in_turns(sizes)[:queries]
        filled = [[place for task, place in turns if task == t] for t in range(len(sizes))]

        assert filled == [rows.tolist() for rows in water_fill(sizes, queries)]

    @law
    @given(cap=st.integers(0, 25), depths=st.sampled_from([(5,), (1, 2, 5), (2, 4)]))
    def test_a_larger_cap_only_adds_pairs(self, cap, depths):
        """Results are nested: what a budget judges, a larger one judges too."""
        (small, _), (large, _) = (
            run(Plan(served(), depths, Budget(pairs=pairs)), concurrency=1) for pairs in (cap, cap + 1)
        )
        pairs = [{(q, d) for q, rewards in v.rewards.items() for d in rewards} for v in (small, large)]

        assert pairs[0] <= pairs[1]
        assert len(pairs[0]) == min(cap, 4 * depths[-1])

    @pytest.mark.parametrize(
        ("names", "options", "message"),
        [
            *(
                ("a", {"depths": depths}, "^depths: expected rising numbers >= 1")
                for depths in [(), (0,), (3, 2), (2, 2)]
            ),
            *(
                ([name], {}, "^observations: expected ids without tabs and line")
                for name in ["", "a\tb", "a\n", "\ud800"]
            ),
            ("a", {"budget": Budget(usd=1.0)}, "^price: expected one, .* where the budget caps usd, got none$"),
            ("ab", {}, "^observations: expected one text per query id, got two for 'q'$"),
        ],
    )
    def test_a_plan_that_cannot_be_kept_is_an_error(self, names, options, message):
        """Stages go deeper, ids stand in columns of a file, one for each text, and money is capped at a price."""
        with pytest.raises(InputError, match=message):
            Plan([Served.of_texts("q", f"query of {name}", [(name, "A")]) for name in names], **options)


class TestCaps:
    """Nothing costs more than was allowed."""

    @pytest.mark.parametrize("concurrency", [1, 8])
    @pytest.mark.parametrize("cap", [0, 29, 30, 31, 100])
    def test_tokens_stay_under_the_cap(self, cap, concurrency):
        """No call starts that could exceed the cap, whatever runs beside it."""
        verdicts, pairs = run(Plan(served(), (5,), Budget(tokens=cap)), concurrency=concurrency)

        assert 10 * len(pairs) == verdicts.progress.usage.tokens
        assert cap - 30 < verdicts.progress.usage.tokens <= cap
        assert verdicts.stopped == "budget: the next answer could exceed a cap"

    def test_money_stays_under_the_cap(self):
        """Dollars are counted from usage and price."""
        price = Price(input=1000.0, request=0.01)  # a cent per ten tokens, a cent per request
        verdicts, pairs = run(Plan(served(), (5,), Budget(usd=0.1), price))

        assert verdicts.progress.usd == pytest.approx(0.07)
        assert len(pairs) == 5

    def test_a_judge_that_does_not_count_is_counted(self):
        """Scores without a word about usage count as estimated, so that caps hold; float32 scores are numbers."""

        class Silent:
            scale, fingerprint, asked = Scale("probability"), "silent", []

            def score(self, query, documents):
                self.asked += documents
                return np.full(len(documents), 0.5, dtype=np.float32)

        estimate = sum(estimated_tokens("query 0", shown.text) for shown in served()[0].candidates)
        cache = ScoreCache.open(None)
        verdicts, pairs = run(Plan(served(), (5,), Budget(tokens=2 * estimate)), Silent(), cache)
        again, _ = run(Plan(served(), (5,), Budget(tokens=2 * estimate)), Silent(), cache)

        assert len(pairs) == 10
        assert verdicts.progress.usage.tokens == 2 * estimate
        assert verdicts.rewards == again.rewards

    def test_shares_add_up(self):
        """A cap that is met exactly is met, and a result that is continued has cost what its calls cost."""

        class Odd(Lengths):
            def score(self, query, documents):
                self.asked += documents
                report_usage(Usage(1, 10))
                return [0.5] * len(documents)

            def forecast(self, query, documents):
                return Usage(1, 10)

        cache, price = ScoreCache.open(None), Price(request=0.1)
        first, _ = run(Plan(served(4, 3), (3,), Budget(usd=0.3), price), Odd(), cache)
        again, pairs = run(Plan(served(4, 3), (3,), Budget(tokens=39), price), Odd(), cache)

        assert [first.progress.pairs, again.progress.pairs] == [9, 9]
        assert pairs == []

    def test_forecasts_that_are_too_high_do_not_end_it(self):
        """A call that does not fit beside running ones waits for them instead of giving up."""

        class Thrifty(Lengths):
            def score(self, query, documents):
                time.sleep(0.01)
                return super().score(query, documents)

            def forecast(self, query, documents):
                return Usage(1, 100 * len(documents))

        verdicts, pairs = run(Plan(served(), (3,), Budget(tokens=400)), Thrifty())

        assert len(pairs) == 12
        assert verdicts.stopped == ""

    def test_the_forecast_is_what_happens(self):
        """A judge that forecasts exactly does what the forecast says, and nothing is asked for it."""
        plan, judge, cache = (
            Plan(served(), (5,), Budget(tokens=110), Price(input=1.0)),
            Lengths(),
            ScoreCache.open(None),
        )
        ahead = forecast(plan, judge, cache)
        assert judge.asked == []

        assert ahead == judge_all(plan, judge, cache, concurrency=1).progress

    def test_parses_budgets_and_prices(self):
        """Both are written as name=number, separated by commas."""
        assert Budget(2000, 1e6, 1.5) == Budget.parse("pairs=2000,tokens=1e6, usd=1.50")
        assert Budget() == Budget.parse("")
        assert Price(2, 12, 0.002).of(Usage(3, 1_000_000, 500_000)) == pytest.approx(8.006)

    @pytest.mark.parametrize(
        ("parse", "text"),
        [
            *((Budget.parse, text) for text in ("pairs", "pairs=", "pairs=many", "euro=3", "pairs=nan", "pairs=-1")),
            *((Price.parse, text) for text in ("input=-1", "input=inf", "per_page=2")),
        ],
    )
    def test_others_are_errors(self, parse, text):
        """The error shows what is known and what came."""
        with pytest.raises(InputError, match=r"^(budget|price): expected"):
            parse(text)

    def test_estimates_count_other_scripts_more(self):
        """Text outside ASCII is estimated by its bytes, digits and signs one by one: from above."""
        assert [estimated_tokens(text) for text in ("abcdef", "水水", "a 1,5", "")] == [2, 6, 4, 0]


class TestOnce:
    """Every pair is paid for once."""

    def test_a_second_run_asks_nothing(self, tmp_path):
        """What is known is not asked, but by another judge, and the result is the same; its price is still told."""
        plan, other = Plan(served(), (5,), price=Price(input=1000.0)), Lengths()
        other.fingerprint = "other"
        first, _ = run(plan, cache=ScoreCache.open(tmp_path / "paid.sqlite"))
        second, pairs = run(plan, cache=ScoreCache.open(tmp_path / "paid.sqlite"))

        assert pairs == []
        assert first.rewards == second.rewards
        assert [second.progress.cached, second.progress.usage.tokens] == [20, 0]
        assert first.progress.usd == pytest.approx(second.progress.usd)
        assert len(run(plan, other, ScoreCache.open(tmp_path / "paid.sqlite"))[1]) == 20

    @pytest.mark.parametrize("budget", [Budget(pairs=13), Budget(tokens=130)])
    def test_stop_and_continue_equals_never_stopping(self, tmp_path, budget):
        """A run that is continued ends where one run would have, at the same cost in all."""
        whole, pairs = run(Plan(served(), (2, 5), budget), concurrency=1)
        cache = ScoreCache.open(tmp_path / "paid.sqlite")
        _, before = run(Plan(served(), (2, 5), Budget(pairs=6)), cache=cache, concurrency=1)
        continued, after = run(Plan(served(), (2, 5), budget), cache=cache, concurrency=1)

        assert whole.rewards == continued.rewards
        assert before + after == pairs

    def test_equal_texts_are_asked_once(self):
        """Two ids with one text are one pair, also within a call and while it runs."""
        twins = [Served.of_texts(f"q{q}", "same", [("a", "text"), ("b", "text")]) for q in range(6)]
        verdicts, pairs = run(Plan(twins, (1, 2)))

        assert pairs == [("same", "text")]
        assert {f"q{q}": {"a": 0.2, "b": 0.2} for q in range(6)} == verdicts.rewards

    def test_a_declined_pair_is_not_asked_again(self):
        """None is an answer: kept, left out of the result, and not paid for twice."""
        observed, cache = [Served.of_texts("q", "query", [("a", "unclear"), ("b", "text")])], ScoreCache.open(None)
        first, _ = run(Plan(observed), cache=cache)
        _, pairs = run(Plan(observed), cache=cache)

        assert first.rewards == {"q": {"b": 0.2}}
        assert first.unjudged == 1
        assert pairs == []

    def test_keys_do_not_run_together(self):
        """Parts are separated by their length; lone surrogates have keys too."""
        keys = {pair_key("a", "b", "c"), pair_key("ab", "", "c"), pair_key("a", "bc", ""), pair_key("a", "b", "\ud800")}

        assert len(keys) == 4

    @pytest.mark.slow
    def test_processes_share_a_cache(self, tmp_path):
        """Processes that write the same pairs at once lose none and keep the first answer of each."""
        path = tmp_path / "paid.sqlite"
        ScoreCache.open(path).close()
        code = (
            "import sys; from pathlib import Path; from tttembed_rag.judging import Paid, ScoreCache\n"
            "cache = ScoreCache.open(Path(sys.argv[1])); me = float(sys.argv[2])\n"
            "for i in range(50): cache.put('j', {bytes([i]): Paid(me), bytes([i, int(me)]): Paid(me)})"
        )
        running = [subprocess.Popen([sys.executable, "-c", code, path, str(i)]) for i in range(3)]
        assert [process.wait(60) for process in running] == [0, 0, 0]

        kept = ScoreCache.open(path).get(
            [bytes([i]) for i in range(50)] + [bytes([i, m]) for i in range(50) for m in range(3)]
        )
        assert len(kept) == 200
        assert all(paid == Paid(float(key[1])) for key, paid in kept.items() if len(key) == 2)

    @pytest.mark.slow
    def test_a_kill_loses_nothing_that_was_paid(self, tmp_path, serve):
        """A process killed in the middle pays on for what is left, not for what it had."""
        answered, release = [], threading.Event()

        def answer(_path, body, n):
            if n == 6:
                answered.append("killed")
                release.wait(30)
            return 200, {}, {"results": [{"index": 0, "relevance_score": 0.5}]}

        server = serve(answer)
        code = (
            "import sys; from pathlib import Path\n"
            "from tttembed_rag.judges import HttpJudge\n"
            "from tttembed_rag.judging import ScoreCache\n"
            "from tttembed_rag.judging import Plan, judge_all\n"
            "from tttembed_rag.rewards.observations import Served\n"
            "served = [Served.of_texts(f'q{q}', f'query {q}', [('d', 'text')]) for q in range(10)]\n"
            "judge = HttpJudge(sys.argv[1], 'cohere')\n"
            "judge_all(Plan(served), judge, ScoreCache.open(Path(sys.argv[2])), concurrency=1)"
        )
        command = [sys.executable, "-c", code, server.url, str(tmp_path / "paid.sqlite")]
        process = subprocess.Popen(command)
        while not answered:
            time.sleep(0.01)
            assert process.poll() is None
        process.kill()
        process.wait()
        release.set()
        assert subprocess.run(command, check=True, timeout=60).returncode == 0

        queries = [body["query"] for _, _, body in server.asked]
        assert len(queries) == 11  # five kept, one lost in flight, five more
        assert len(set(queries)) == 10

    def test_a_cache_that_breaks_is_an_error(self, tmp_path):
        """A file that is of another kind, or fails while it is used, is named."""
        path, notes = tmp_path / "paid.sqlite", tmp_path / "notes.sqlite"
        notes.write_text("these are my notes, no database " * 40, encoding="utf-8")
        cache = ScoreCache.open(path)
        cache._connection.execute("DROP TABLE paid")
        uses = (lambda: cache.get([b"x"]), lambda: cache.put("j", {b"x": Paid(0.5)}), lambda: ScoreCache.open(notes))
        for use in uses:
            with pytest.raises(DataError, match=r"(paid|notes).sqlite: expected a score cache that can be written"):
                use()


class TestFailure:
    """Judges that fail."""

    def test_a_failing_call_does_not_end_the_run(self, serve, caplog):
        """Pairs of a call that failed stay unjudged, are told in the log, and are asked again next time."""

        def answer(_path, body, _n):
            if body["query"] == "query 1":
                return 400, {}, {"message": f"no {body['query']} here"}
            return 200, {}, {"results": [{"index": i, "relevance_score": 0.5} for i in range(len(body["documents"]))]}

        judge, cache = HttpJudge(serve(answer).url, "cohere"), ScoreCache.open(None)
        verdicts = judge_all(Plan(served()), judge, cache)

        assert {"q0", "q2", "q3"} == set(verdicts.rewards)
        assert verdicts.unjudged == 5
        assert "got 400" in caplog.text
        assert "no query 1 here" not in caplog.text
        assert forecast(Plan(served()), judge, cache).cached == 15

    def test_three_failures_in_a_row_end_it(self, serve):
        """A service that fails on and on is left alone for its status; its words stand beside each pair."""
        server = serve(lambda *_: (401, {}, {"message": "bad key"}))
        verdicts = judge_all(Plan(served(50)), HttpJudge(server.url, "cohere"), ScoreCache.open(None), concurrency=1)

        assert (len(server.asked), verdicts.broken) == (3, True)
        assert "got 401" in verdicts.stopped
        assert "bad key" in str(next(iter(verdicts.failed.values())))
        assert verdicts.rewards == {}

    def test_scores_off_the_scale_are_never_kept(self):
        """A judge that leaves its declared scale ends the run with an error, and nothing enters the cache."""
        cache = ScoreCache.open(None)
        with pytest.raises(RewardError, match="declare the judge's scale"):
            judge_all(Plan(served()), Lengths(lambda *_: 7.0), cache)

        assert forecast(Plan(served()), Lengths(), cache).cached == 0

    def test_an_unbounded_judge_is_refused_unasked(self):
        """Scores without a meaning are refused before they are paid for."""
        judge = Lengths(scale="unbounded")
        with pytest.raises(RewardError, match="calibrate them first"):
            judge_all(Plan(served()), judge, ScoreCache.open(None))

        assert judge.calls == 0

    def test_a_judge_that_drops_a_document_is_not_believed(self):
        """Fewer scores than documents cannot be matched, so none of them is kept."""

        class Short(Lengths):
            def score(self, query, documents):
                return [0.5]

        verdicts = judge_all(Plan(served(), (3,)), Short(), ScoreCache.open(None))

        assert verdicts.rewards == {}
        assert verdicts.stopped == "lengths: expected 3 scores, got 1"

    def test_concurrent_calls_run_side_by_side(self):
        """As many calls are in flight as allowed, no more."""
        running, most, lock = 0, 0, threading.Lock()

        def slow(_query, _text):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.02)
            with lock:
                running -= 1
            return 0.5

        run(Plan(served(12)), Lengths(slow), concurrency=4)
        assert most == 4

    def test_no_more_than_128_are_in_flight(self):
        """However many are allowed: calls that never came back must leave room for them."""
        begun, at_an_answer, batch = [], [], threading.Barrier(128)

        def slow(query, _text):
            begun.append(query)
            batch.wait(60)
            return 0.5

        verdicts, _ = run(
            Plan(served(256, 1)), Lengths(slow), concurrency=400, watch=lambda _: at_an_answer.append(len(begun))
        )

        assert len(verdicts.rewards) == 256
        assert at_an_answer[0] == 128

    def test_an_examination_is_asked_side_by_side(self):
        """A slow judge answers all of it within the limit of one call."""
        batch = threading.Barrier(8)

        def slow(query, text):
            if query in answers() and text == answers()[query]:
                batch.wait(60)
            return float(answers().get(query, text) == text)

        verdicts, _ = run(Plan(served(1)), Lengths(slow), examine=True)

        assert verdicts.rewards.keys() == {"q0"}

    @pytest.mark.parametrize("failing", ["get", "put"])
    def test_an_answer_under_way_is_kept(self, failing):
        """Where the cache fails one call, the other, which is paid for already, is kept before anybody hears of it."""
        cache, begun, failed = ScoreCache.open(None), threading.Event(), threading.Event()
        calls = {"get": 0, "put": 0}

        def fails(method, nth):
            calls[method] += 1
            if failing == method and calls[method] == nth:
                begun.wait(60)
                failed.set()
                raise DataError("gone")

        class Failing:
            """Fails the second call, while the first one is at the judge."""

            def get(self, pairs):
                fails("get", 3)  # after the probe and the first call
                return cache.get(pairs)

            def put(self, judge, answers):
                fails("put", 1)
                cache.put(judge, answers)

        class Waiting(Lengths):
            def score(self, query, documents):
                scores = super().score(query, documents)
                if query == self.asked[0][0]:
                    begun.set()
                    failed.wait(60)
                    time.sleep(0.05)  # whoever hears of the failure does so now
                return scores

        judge = Waiting()
        with pytest.raises(DataError, match=r"^gone$"):
            judge_all(Plan(served(4, 3)), judge, Failing(), concurrency=2)

        assert len(judge.asked) == (3 if failing == "get" else 6)
        assert len(cache.get([pair_key("lengths", *pair) for pair in judge.asked])) == 3

    def test_no_concurrency_is_an_error(self):
        """Less than one call at a time is none."""
        with pytest.raises(InputError, match=r"^concurrency: expected at least 1, got 0$"):
            run(Plan(served()), concurrency=0)


class TestFiles:
    """What is read and written."""

    @pytest.mark.parametrize("line", ["{", "[]", '{"query": "q"}', '{"query_id": 1, "query": "q", "candidates": []}'])
    def test_another_log_is_an_error(self, tmp_path, line):
        path = tmp_path / "log.jsonl"
        path.write_text("\n" + line, encoding="utf-8")

        with pytest.raises(DataError, match=r"log.jsonl:2: expected"):
            read_log(path)

    def test_rewards_are_written_whole(self, tmp_path):
        """With a header, in [0, 1]; what cannot be written whole leaves what was there, and nothing beside it."""
        path = tmp_path / "scores" / "judge.tsv"
        write_scores(path, run(Plan(served(1, 2)))[0].rewards)
        with pytest.raises(UnicodeEncodeError):
            write_scores(path, {"q": {"\ud800": 0.5}})

        assert path.read_text() == "query-id\tcorpus-id\tscore\nq0\td0-0\t0.333333333\nq0\td0-1\t0.25\n"
        assert [path] == list(path.parent.iterdir())
