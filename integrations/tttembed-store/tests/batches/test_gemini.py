"""Gemini's batches over HTTP, by google-genai: a worker sends, waits, reads and deletes; each pair is paid once."""

from __future__ import annotations

import pytest
from tttembed_store.batches import open_batch_service
from tttembed_store.batches.service import GeminiBatches
from tttembed_store.worker import Worker

from tttembed_rag.clients.retrying import RefusedError
from tttembed_rag.errors import InputError, JudgeError
from tttembed_rag.judges import Patience, open_judge
from tttembed_rag.judges.chats import Gemini
from tttembed_rag.judging import Price

pytest.importorskip("google.genai", reason="google-genai is not installed")


@pytest.fixture
def worker(gemini, store):
    """Makes workers that ask it by batches, each a process of its own as far as they know."""
    spec = f"gemini:tiny?url={gemini.url}"

    def make(settling=600.0):
        patience = Patience(attempts=2, first_wait=0.001)
        lines, judge = open_batch_service(spec).judge, open_judge(spec)
        chat = Gemini("tiny", url=gemini.url, patience=patience)
        service = GeminiBatches(lines, chat, settling=settling)
        return Worker(store, judge, batches=service, price=Price(input=2.0, output=12.0), min_new=100_000)

    return make


def judged(worker):
    """What a worker says in one round about judging."""
    return [(step.action, step.detail) for step in worker.round() if "judged" in step.action]


def test_a_batch_is_sent_and_read_when_it_has_ended(gemini, worker, store, served):
    """Each pair is paid once, at half the price, and the files are deleted."""
    store.observe(served(8))
    judged(worker())
    judged(worker())
    before = store.counts().rewards, len(gemini.paid)
    gemini.run("batches/0")
    judged(worker())
    judged(worker())

    assert before == (0, 0)
    assert store.counts().rewards == len(gemini.paid) == len(set(gemini.paid)) == 24
    assert len(gemini.jobs) == 1
    assert store.judge_queue.spent().usd == pytest.approx((48 + 24 * 0.5) * (100 * 2.0 + 10 * 12.0) / 1e6)
    assert (gemini.files, store.open_batches.of("")) == ({}, [])


def test_a_batch_that_was_made_behind_an_error_is_found(gemini, worker, store, served):
    """The connection ends behind its making: the list tells by the key that it was made, and none is made again."""
    store.observe(served(4))

    def lost(method, path):
        if path.endswith(":batchGenerateContent"):
            name = next(name for name in gemini.files)
            (open_batch,) = store.open_batches.of("")
            job = {"displayName": open_batch.key, "inputConfig": {"fileName": name}, "state": "BATCH_STATE_RUNNING"}
            gemini.jobs["batches/0"] = {"name": "batches/0", "metadata": job}
            raise ConnectionError

    gemini.fault = lost
    judged(worker())
    gemini.fault = lambda *_: None
    judged(worker(settling=0.0))
    gemini.run("batches/0")
    judged(worker())

    assert store.counts().rewards == len(gemini.paid) == 12
    assert len(gemini.jobs) == 1


def test_a_refused_batch_is_struck_off(gemini, worker, store, served):
    """Nothing was made, nothing is spent; the line has the status, and the store what the service said."""
    store.observe(served(4))
    gemini.fault = lambda _, path: 400 if path.endswith(":batchGenerateContent") else None
    said = judged(worker())

    assert said[0][1].endswith("tiny: expected an answer, got 400")
    assert [why for _, why, _ in store.judge_queue.failures()] == ["tiny: expected an answer, got 400 no"]
    assert store.open_batches.of("") == []
    assert store.judge_queue.spent().pairs == 48


@pytest.mark.parametrize(("state", "told"), [("FAILED", "failed"), ("EXPIRED", "expired")])
def test_a_batch_without_results_is_set_aside(gemini, worker, store, served, state, told):
    """Its pairs are asked about again later."""
    store.observe(served(4))
    judged(worker())
    gemini.state = f"BATCH_STATE_{state}"
    gemini.run("batches/0")
    said = judged(worker())

    assert f"batch {told}" in said[0][1]
    assert (store.counts().rewards, store.open_batches.of("")) == (0, [])


def test_a_failed_batch_says_why():
    """In one short line, where google-genai hands on what the service said."""
    from google.genai.types import BatchJob, JobError

    said = JobError(code=8, message="quota of\nbatch tokens\x1b exceeded" + "!" * 999)
    whys = [
        GeminiBatches._batch(BatchJob(name="batches/1", state="JOB_STATE_FAILED", error=error)).why
        for error in (said, JobError(code=8), None)
    ]

    assert whys[0].startswith("8 quota of batch tokens")
    assert len(whys[0]) <= 120
    assert whys[0].isprintable()
    assert whys[1:] == ["8", ""]


def test_errors_are_one_line(gemini, tmp_path):
    """A refusal, and an answer of another shape."""
    service = open_batch_service(f"gemini:tiny?url={gemini.url}")
    gemini.fault = lambda *_: 404
    with pytest.raises(RefusedError, match="tiny: expected an answer, got 404 no"):
        service.get("batches/7")
    gemini.fault = lambda *_: None
    gemini.jobs["batches/1"] = {"name": 7, "metadata": {}}
    with pytest.raises(JudgeError, match="tiny: expected an answer of Gemini, got ValidationError"):
        service.get("batches/1")


def test_a_redirect_does_not_get_the_key(serve):
    """google-genai's own client would follow it, with the key in a header of Google's."""
    other = serve(lambda *_: (200, {}, {}))
    server = serve(lambda *_: (307, {"location": other.url.replace("127.0.0.1", "localhost")}, {}))
    with pytest.raises(JudgeError, match="tiny: expected an answer, got 307"):
        Gemini("tiny", url=server.url, key="s3cret", patience=Patience(attempts=1))("hello")

    assert server.asked[0][1]["x-goog-api-key"] == "s3cret"
    assert other.asked == []


def test_the_key_is_not_sent_in_the_clear():
    """As for every other service."""
    with pytest.raises(InputError, match=r"^url: expected https where a key is sent, got 'http://example\.com/v1'$"):
        Gemini("tiny", url="http://example.com/v1?token=t", key="s3cret")


@pytest.mark.parametrize("error", ["boom", {"code": 429, "message": "m", "details": 5}])
def test_an_error_of_another_shape_is_asked_again(serve, monkeypatch, error):
    """Its status tells that it passes, whatever stands where Gemini says how long to wait."""
    monkeypatch.setenv("GEMINI_API_KEY", "s3cret")
    server = serve(lambda *_: (429, {}, {"error": error}))
    with pytest.raises(JudgeError, match="tiny: expected an answer, got 429"):
        Gemini("tiny", url=server.url, patience=Patience(attempts=2, first_wait=0.001))("hello")

    assert len(server.asked) == 2
