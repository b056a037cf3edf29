"""From served texts to rewards: what is kept, what is refused, and where vectors come from."""

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tttembed_store import StoreLog

from tttembed_rag import InputError, Known, RewardLog, TextVectors, context
from tttembed_rag.errors import RewardError
from tttembed_rag.judges import RubricJudge
from tttembed_rag.judging import Budget


def vector(text):
    return np.random.default_rng(int.from_bytes(sha256(text.encode()).digest()[:8])).normal(size=8).tolist()


def vectors(texts):
    return [vector(text) for text in texts]


def long_is_good(prompt):
    """A model that grades by the number of its document's exclamation marks."""
    return f"Score: {min(5, prompt.count('!'))}"


@pytest.fixture
def judge():
    """A real rubric judge around a simple model."""
    return RubricJudge(long_is_good, model="exclamations")


def record(query="q", documents=("a",), scores=(0.5,), within=None, **more):
    """What a log is told, within a block of the caller's `context`."""

    def call(log):
        with context(**(within or {})):
            log.record(query, documents, scores, **more)

    return call


def observe(query, documents):
    return lambda log: log.observe(query, documents)


def row(query="q", document="a", reward=0.5, task="default", source=""):
    return query, document, reward, task, source


# What a log of a scale is told, and the rows that it has then: of query, document, reward, task and source.
KEPT = {
    "grades in [0, 1]": (
        [record(documents=[*"abc"], scores=[5, None, 1], task="billing")],
        [row(reward=1.0, task="billing"), row(document="c", reward=0.2, task="billing")],
    ),
    "a pair once, by its last verdict": (
        [record(scores=[5]), observe("q", ["a"]), record(scores=[2]), observe("q", ["a"])],
        [row(reward=0.4)],
    ),
    "a source's last verdict, beside those of others": (
        [record(scores=[score], source=source) for source, score in (("ann", 5), ("eve", 0), ("ann", 4), ("", 1))],
        [row(reward=0.0, source="eve"), row(reward=0.8, source="ann"), row(reward=0.2)],
    ),
    "the source and the task of the caller's context": (
        [
            record(scores=[5], within={"source": "ann", "task": "billing"}),
            record(scores=[1], within={"source": "ann", "task": "billing"}, source="", task="help"),
        ],
        [row(reward=1.0, task="billing", source="ann"), row(reward=0.2, task="help")],
    ),
    "one query in two tasks as two queries": (
        [record(scores=[score], task=task) for task, score in (("one", 1), ("two", 5))],
        [row(reward=0.2, task="one"), row(reward=1.0, task="two")],
    ),
    "no query of another tenant": ([record(scores=[5]), record("own", within={"tenant": "acme"})], [row(reward=1.0)]),
    "no blank text": ([record(documents=[" ", "a"], scores=[1, 5]), observe("  ", ["a"])], [row(reward=1.0)]),
}


class TestRecording:
    """What enters the log."""

    @pytest.mark.parametrize(("calls", "rows"), KEPT.values(), ids=KEPT)
    def test_keeps(self, calls, rows):
        log = RewardLog("judge", scale="rubric:0,5")
        for call in calls:
            call(log)

        assert log.rows() == rows
        assert len(log) == len({(query, task) for query, _, _, task, _ in rows})

    def test_a_log_of_a_tenant_keeps_its_queries_alone(self):
        """A log in memory keeps one tenant's queries: what it learns from must not reach another."""
        log = RewardLog("judge", tenant="acme")
        for call in (record("shared"), record("own", within={"tenant": "acme"})):
            call(log)

        assert log.rows() == [row("own")]

    def test_rewards_have_the_vectors_of_their_texts(self):
        log = RewardLog("judge")
        log.record("q", ["a", "c"], [1.0, 0.2])

        rewards = log.rewards(vector, vectors)

        assert (rewards.values.tolist(), rewards.judge) == ([1.0, 0.2], "judge")
        assert rewards.query_vectors.tolist() == [vector("q")]
        assert_array_equal(rewards.doc_vectors[rewards.candidates], np.float32(vectors(["a", "c"])))

    @pytest.mark.parametrize("trusted", [True, False, None])
    def test_whether_the_judge_is_vouched_for_is_kept(self, trusted):
        """Rewards say it."""
        log = RewardLog("judge", trusted=trusted)
        log.record("q", ["a"], [1.0])

        assert log.rewards(vector, vectors).take(np.array([0])).trusted is trusted

    def test_the_last_sources_of_a_pair_are_kept(self):
        """Of more than 32 the first are dropped and counted, the judge itself never."""
        log = RewardLog("user feedback")
        for number in range(34):
            log.record("q", ["a"], [0.5], source=f"s{number}" if number else "")

        assert {source for *_, source in log.rows()} == {"", *(f"s{number}" for number in range(2, 34))}
        assert log.dropped_rewards == 1

    @pytest.mark.parametrize("score", [1.5, float("nan"), float("inf")])
    def test_a_score_off_the_scale_keeps_nothing(self, score):
        """A judge on another scale is an error where it is recorded, and spoils no query."""
        log = RewardLog("judge")

        with pytest.raises(RewardError):
            log.record("q", ["a", "b"], [0.5, score])
        assert len(log) == 0

    def test_the_oldest_query_is_dropped_and_counted(self):
        """Memory is bounded, and what was lost is known."""
        log = RewardLog("judge", capacity=2)
        for query in "abc":
            log.record(query, ["d"], [0.5])

        assert (len(log), log.dropped, [query for query, *_ in log.rows()]) == (2, 1, ["b", "c"])

    def test_a_known_query_vector_is_not_asked_for(self):
        """A query that was served with its vector keeps it while the query is kept, and costs no second embedding."""
        log = RewardLog("judge", capacity=2)
        for query in "abc":
            log.record(query, ["d"], [0.5], known=Known([float(ord(query))] * 8) if query != "b" else None)
        log.observe("a", ["d"])
        log.record("a", ["d"], [0.5])

        learned = log.rewards(vector, vectors)

        assert learned.query_ids.tolist() == ["c", "a"]
        assert learned.query_vectors.tolist() == [[99.0] * 8, vector("a")]

    def test_what_a_caller_changes_after_the_call_is_not_learned_from(self):
        """A buffer that is used again for the next query."""
        log, buffer = RewardLog("judge"), np.ones(8)
        log.record("q", ["d"], [0.5], known=Known(buffer))
        buffer[:] = 2.0

        assert log.rewards(vector, vectors).query_vectors.tolist() == [[1.0] * 8]

    def test_threads_lose_nothing(self):
        log = RewardLog("judge")

        def serve(number):
            for turn in range(20):
                log.record(f"q{turn}", [f"d{number}"], [0.5])

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(serve, range(32)))

        assert log.rewards(vector, vectors).budget == 20 * 32


class TestJudgingLater:
    """Pairs that wait for a judge."""

    def test_waiting_pairs_are_judged_once(self, judge):
        """What was observed is scored under its task; what was scored before is left alone."""
        log = RewardLog.of(judge)
        log.record("q", ["known"], [4], task="t")
        log.observe("q", ["known", "wow!!", "oh!"], task="t")

        verdicts = log.score_waiting(judge)

        assert verdicts.progress.pairs == 2
        assert repr(verdicts) == "Verdicts(2 pairs of 1 queries, 0 without a score)"
        assert log.waiting == 0
        assert log.rewards(vector, vectors).values.tolist() == [0.8, 0.4, 0.2]

    def test_texts_may_hold_anything(self, judge):
        """Line breaks, tabs and the same text under two tasks reach the judge and come back to their own pair."""
        log = RewardLog.of(judge)
        log.observe("two\nlines", ["a\tb!", "c\nd!!"], task="s")
        log.observe("two\nlines", ["c\nd!!"], task="t")

        log.score_waiting(judge)

        assert log.waiting == 0
        assert log.rewards(vector, vectors).values.tolist() == [0.2, 0.4, 0.4]

    def test_a_budget_leaves_the_rest_waiting(self, judge):
        """A cap of pairs is kept, and the next call goes on."""
        log = RewardLog.of(judge)
        log.observe("q", ["a!", "b!!", "c!!!"])

        log.score_waiting(judge, budget=Budget(pairs=2))

        assert log.waiting == 1
        log.score_waiting(judge)
        assert log.waiting == 0


class TestTextVectors:
    """Supplied, remembered or embedded."""

    def test_where_each_vector_came_from(self):
        """The three ways give one matrix in order, and are counted."""
        calls = []

        def embed(texts):
            calls.append(texts)
            return vectors(texts)

        source = TextVectors(stored=lambda _: {"7": [0.5] * 8})
        source.note([("stored", "7")])
        source.of(["a"], embed)

        matrix = source.of(["stored", "a", "b", "a"], embed)

        assert_array_equal(matrix, np.float32([[0.5] * 8, vector("a"), vector("b"), vector("a")]))
        assert calls == [["a"], ["b"]]
        assert (source.supplied, source.remembered, source.embedded) == (1, 1, 2)

    def test_async_agrees(self):
        """An async model gives the very numbers."""

        async def embed(texts):
            return vectors(texts)

        matrix = asyncio.run(TextVectors().aof(["a", "b"], embed))
        assert_array_equal(matrix, TextVectors().of(["a", "b"], vectors))

    def test_the_least_used_is_forgotten(self):
        """Memory is bounded in bytes: here to two vectors of 8 numbers in single precision."""
        source = TextVectors(max_bytes=64)
        for texts in (["a", "b"], ["a"], ["c"], ["a"], ["b"]):
            source.of(texts, vectors)

        assert (source.remembered, source.embedded) == (2, 4)

    def test_it_pickles_empty(self):
        """Another process starts with the same source and nothing remembered."""
        source = TextVectors(max_bytes=32)
        source.of(["a"], vectors)

        copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes

        assert_array_equal(copy.of(["a"], vectors), np.float32([vector("a")]))
        assert (copy.remembered, copy.embedded) == (0, 1)


@pytest.mark.parametrize("documents", ["abc", b"abc"])
def test_one_text_is_no_list_of_documents(documents, tmp_path, caplog):
    """Its characters would be documents: it is refused, and where a request must not fail, left out and logged."""
    log = RewardLog("judge")
    for refused in (lambda: log.record("q", documents, [1.0, 0.0, 1.0]), lambda: log.observe("q", documents)):
        with pytest.raises(InputError, match=r"^documents: expected a list of texts, got (str|bytes)$"):
            refused()
    with StoreLog(f"sqlite:///{tmp_path / 't.db'}", "judge") as stored:
        stored.record("q", documents, [1.0, 0.0, 1.0])

    assert len(log) == 0
    assert stored.counts.failed == 1
    assert "documents: expected a list of texts" in caplog.text


def emptied():
    """A log whose one query waits, as its scores were refused: logits on the default scale."""
    log = RewardLog("judge")
    log.observe("q", ["a"])
    with pytest.raises(RewardError):
        log.record("q", ["a", "b"], [-3.0, 7.5])
    return log


NO_JUDGE = r"judge: expected an object with score, scale and fingerprint, got"
REFUSED = [
    (lambda: RewardLog(None), "judge: expected the fingerprint of one"),
    (lambda: RewardLog("judge", scale=5), "scale: expected probability, logit, unbounded or rubric:LOW,HIGH, got 5"),
    (lambda: RewardLog.of(len), NO_JUDGE),
    (lambda: RewardLog("votes").score_waiting(len), NO_JUDGE),
    (
        lambda: RewardLog("somebody").score_waiting(RubricJudge(long_is_good, model="m")),
        "judge: expected somebody, whose rewards are in this log, got rubric:",
    ),
    (lambda: RewardLog("judge").record("q", ["a", "b"], [0.5]), "scores: expected one per document, 2, got 1$"),
    (lambda: RewardLog("judge").record("q", ["a"], ["good"]), "scores: expected numbers, or None where there is none"),
    *(
        (lambda pair=pair: RewardLog("judge").record(pair[0], [pair[1]], [0.5]), "query, documents, source: expected")
        for pair in ((None, "a"), ("q", None), ("q", {"text": "a"}))
    ),
    # Rewards that are asked for too early say what is there, and why scores are missing.
    (lambda: emptied().rewards(vector, vectors), r"rewards: expected a judged document, got none \(1 queries wait\);"),
    (
        lambda: emptied().rewards(vector, vectors),
        r".*; scores were refused: rewards: expected scale prob",
    ),
    (lambda: TextVectors().of(["a", "b"], lambda _: [[1.0]]), "embed_documents: expected one vector per text, 2, got"),
    (lambda: StoreLog(None), "store: expected an open store or its URL, got NoneType"),
    (lambda: StoreLog("sqlite:///t.db", object()), "judge: expected an object with score, scale and"),
]


@pytest.mark.parametrize(("call", "line"), REFUSED)
def test_what_is_wrong_is_one_line(call, line):
    """That names the argument."""
    with pytest.raises((InputError, RewardError), match=f"^{line}"):
        call()


def test_a_store_without_its_folder_is_told_of_at_once(tmp_path, caplog):
    with caplog.at_level("WARNING"):
        StoreLog(f"sqlite:///{tmp_path / 'no' / 't.db'}?timeout=31", "judge").close(0)

    assert f"until its folder is there: {tmp_path / 'no'}\n" in caplog.text
    assert "timeout" not in caplog.text


def test_logs_and_vectors_say_what_they_hold(tmp_path):
    """Printed in a shell."""
    with StoreLog(f"sqlite:///{tmp_path / 't.db'}", "judge") as log:
        assert repr(log).startswith("StoreLog('judge', Captured(written=0, queued=0,")
    assert repr(TextVectors()) == "TextVectors(0 supplied, 0 remembered, 0 embedded)"
