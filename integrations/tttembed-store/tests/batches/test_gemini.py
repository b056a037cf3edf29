"""What is Gemini's own, by google-genai: its errors in one line, and its key, which stays with Google."""

from __future__ import annotations

import pytest
from tttembed_store.batches.service import GeminiBatches

from tttembed_rag.clients.retrying import RefusedError
from tttembed_rag.errors import InputError, JudgeError
from tttembed_rag.judges import Patience
from tttembed_rag.judges.chats import Gemini

types = pytest.importorskip("google.genai.types", reason="google-genai is not installed")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ({"code": 8, "message": "quota of\nbatch tokens\x1b exceeded" + "!" * 999}, "8 quota of batch tokens"),
        ({"code": 8}, "8"),
        (None, ""),
    ],
)
def test_a_failed_batch_says_why(error, why):
    """In one short line, where google-genai hands on what the service wrote."""
    job = types.BatchJob(name="batches/1", state="JOB_STATE_FAILED", error=error and types.JobError(**error))

    line = GeminiBatches._batch(job).why

    assert line.startswith(why)
    assert len(line) <= 120
    assert line.isprintable()


def test_errors_are_one_line(gemini):
    """A refusal, and an answer of another shape."""
    service = gemini.service()
    gemini.fault = lambda *_: 404
    with pytest.raises(RefusedError, match="tiny: expected an answer, got 404 no"):
        service.get("batches/7")
    gemini.fault = lambda *_: None
    gemini.batches["batches/1"] = {"name": 7, "metadata": {}}
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
