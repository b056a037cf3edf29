"""Chat models behind HTTP, on loopback: the protocols of OpenAI, Anthropic and Gemini."""

from __future__ import annotations

import pytest

from tttembed_rag import InputError
from tttembed_rag.clients.usage import Usage, metered
from tttembed_rag.errors import JudgeError
from tttembed_rag.judges import OpenAIChat, check_judge, open_judge
from tttembed_rag.judges.examination import answers
from tttembed_rag.testing import word_overlap


def graded(prompt):
    """An answer with a verdict: 5 for the right document of a question of the examination, else 0."""
    return f"It is about it.\nScore: {5 * any(query in prompt and text in prompt for query, text in answers().items())}"


def openai(_path, body, _n):
    """A server that speaks chat completions."""
    message = {"role": "assistant", "content": graded(body["messages"][0]["content"])}
    usage = {"prompt_tokens": 70, "completion_tokens": 9}
    return 200, {}, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


def anthropic(_path, body, _n):
    """A server that speaks messages."""
    content = [{"type": "text", "text": graded(body["messages"][0]["content"])}]
    return 200, {}, {"content": content, "stop_reason": "end_turn", "usage": {"input_tokens": 70, "output_tokens": 9}}


def by_gemini(text, reason="STOP"):
    """An answer of generateContent, behind a thought; without a text where there is none."""
    parts = [{"text": "hm\nScore: 1", "thought": True}, {"text": text}] if text is not None else []
    usage = {"promptTokenCount": 70, "candidatesTokenCount": 7, "thoughtsTokenCount": 2}
    return {"candidates": [{"content": {"parts": parts}, "finishReason": reason}], "usageMetadata": usage}


def gemini(_path, body, _n):
    """A server that generates content, and thinks."""
    ((prompt,),) = (content["parts"] for content in body["contents"])
    return 200, {}, by_gemini(graded(prompt["text"]))


@pytest.mark.parametrize(
    ("spec", "answer", "path", "header", "sent"),
    [
        ("openai:m?tokens=99&url=", openai, "/chat/completions", "authorization", {"model": "m", "max_tokens": 99}),
        ("anthropic:m?tokens=99&url=", anthropic, "/messages", "x-api-key", {"model": "m", "max_tokens": 99}),
        ("gemini:m?url=", gemini, "/v1/models/m:generateContent", "x-goog-api-key", {}),
    ],
    ids=["openai", "anthropic", "gemini"],
)
def test_a_judge_in_one_line(serve, monkeypatch, spec, answer, path, header, sent):
    """The spec of each protocol is a judge that tells a good from a bad document; its usage is the reported one."""
    monkeypatch.setenv("MY_KEY", "secret")
    server = serve(answer)
    judge = open_judge(f"{spec}{server.url}/v1&key=MY_KEY")

    with metered() as meter:
        check_judge(judge)
    assert meter.usage == Usage(48, 48 * 70, 48 * 9)
    called, headers, body = server.asked[0]
    assert called == f"/v1{path}"
    assert headers[header].endswith("secret")
    assert body | sent == body
    assert "secret" not in judge.fingerprint


def test_azure_takes_the_key_in_a_header_of_its_own(monkeypatch):
    """And not as a bearer token."""
    chat = OpenAIChat("m", url="https://mine.openai.azure.com/openai/v1?api-version=preview", key="k")
    sent = []

    def answer(request):
        sent.append(request)
        raise RuntimeError("not sent")

    chat.client._client.event_hooks["request"].append(answer)
    with pytest.raises(RuntimeError):
        chat("p")

    assert sent[0].headers["api-key"] == "k"
    assert "authorization" not in sent[0].headers
    assert chat.request("p").keys() == {"model", "max_completion_tokens", "messages"}


def test_a_temperature_is_sent_and_told_apart(serve):
    """It decides the answers, and so is part of the settings."""
    server = serve(openai)
    service = OpenAIChat("m", url=server.url, temperature=0.0)
    service("p")

    assert server.asked[0][2]["temperature"] == 0.0
    assert service.settings != OpenAIChat("m", url=server.url).settings


def by_openai(content, reason):
    """An answer of chat completions."""
    return {"choices": [{"message": {"content": content}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    "reason", ["stop", "eos", "eos_token", "end_turn", "STOP", "stop_sequence", "COMPLETE", "", None]
)
def test_an_answer_that_ended_by_itself_is_read(serve, reason):
    """By whatever name a server calls it."""
    server = serve(lambda *_: (200, {}, by_openai("Fine.\nScore: 4", reason)))

    assert open_judge(f"openai:m?url={server.url}").score("q", ["d"]) == [4.0]


@pytest.mark.parametrize("reason", ["length", "LENGTH", "max_tokens", "content_filter", "tool_calls", "SAFETY"])
def test_an_answer_that_did_not_is_none(serve, reason):
    """Its last line need not be a verdict."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    by_anthropic = {"content": [{"type": "text", "text": "Score: 1"}], "stop_reason": reason, "usage": usage}
    server = serve(lambda *_: (200, {}, by_openai("Score: 1", reason) | by_anthropic))

    for kind in ("openai", "anthropic"):
        assert open_judge(f"{kind}:m?url={server.url}").score("q", ["d"]) == [None]


@pytest.mark.parametrize(
    "answer",
    [
        by_gemini("Score: 4", "MAX_TOKENS"),
        by_gemini("Score: 4", "SAFETY"),
        by_gemini(None),
        by_gemini(""),
        {"promptFeedback": {"blockReason": "SAFETY"}},
        {"candidates": []},
    ],
    ids=["cut off", "refused", "empty", "blank", "blocked", "no candidate"],
)
def test_no_answer_of_gemini_is_no_score(serve, answer):
    """A refusal, an empty and a cut answer are None, never 0."""
    server = serve(lambda *_: (200, {}, answer))

    assert open_judge(f"gemini:m?url={server.url}").score("q", ["d"]) == [None]


def test_a_wait_that_gemini_names_and_that_is_too_long_is_an_error(serve):
    """It stands in the body."""
    details = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3600s"}]
    server = serve(lambda *_: (429, {}, {"error": {"code": 429, "message": "m", "details": details}}))
    with pytest.raises(JudgeError, match="expected an answer, got 429 m") as caught:
        open_judge(f"gemini:m?url={server.url}").score("q", ["d"])

    assert caught.value.retry_after == 3600
    assert len(server.asked) == 1


def test_an_answer_in_parts_is_read(serve):
    """As Mistral and gateways write it; a thought is no part of it."""
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm.\nScore: 0"}]},
        {"type": "text", "text": "Score: 4"},
    ]
    server = serve(lambda *_: (200, {}, by_openai(parts, "stop")))

    assert open_judge(f"openai:m?url={server.url}").score("q", ["d"]) == [4.0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            by_openai("", "length"),
            "48 of 48 documents have no score: an answer has no text, and ended by 'length': .*tokens",
        ),
        (by_openai(None, "content_filter"), "no text, and ended by 'content_filter'"),
        (
            by_openai("Fine. Score: 4/5", "stop"),
            r"last line of an answer is no 'Score: X'.*\('Fine. Score: 4/5'\)",
        ),
    ],
)
def test_the_examination_says_why_there_is_no_verdict(serve, caplog, answer, why):
    """And the log does once, without words of the answer."""
    judge = open_judge(f"openai:m?url={serve(lambda *_: (200, {}, answer)).url}")
    with pytest.raises(JudgeError, match=why):
        check_judge(judge)

    assert caplog.text.count("no verdict: ") == 1
    assert "4/5" not in caplog.text


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (None, "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "max_completion_tokens"),
        ("https://x.services.ai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://gateway.example.com/openai/v1", "max_tokens"),
    ],
)
def test_openai_is_told_of_tokens_by_its_own_name(url, name):
    """At every address of its own."""
    assert [key for key in OpenAIChat("m", url=url, key="k").request("p") if "tokens" in key] == [name]


def test_a_model_that_refuses_the_older_name_is_told_the_newer(serve):
    """As reasoning models behind a gateway do; from then on at once."""
    refusal = {"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}
    server = serve(lambda path, body, n: (400, {}, refusal) if "max_tokens" in body else openai(path, body, n))
    judge = open_judge(f"openai:m?url={server.url}/v1&tokens=77")
    judge.score("q", ["d"])
    judge.score("q", ["e"])

    assert [body.get("max_completion_tokens") for _, _, body in server.asked] == [None, 77, 77]


@pytest.mark.parametrize(
    ("model", "option", "level"),
    [
        ("gemini-3-pro", "", "LOW"),
        ("gemini-10-flash", "", "LOW"),
        ("gemini-flash-latest", "", "LOW"),
        ("gemini-2.5-flash", "", None),
        ("gemma-3-27b-it", "", None),
        ("gemini-3-pro", "&thinking=high", "HIGH"),
        ("gemini-3-pro", "&thinking=", None),
    ],
)
def test_gemini_thinks_as_its_generation_can(serve, model, option, level):
    """By a level where it knows levels, and as it is told."""
    server = serve(lambda *_: (200, {}, by_gemini("Score: 4")))

    assert open_judge(f"gemini:{model}?url={server.url}{option}").score("q", ["d"]) == [4.0]
    thinking = server.asked[0][2]["generationConfig"].get("thinkingConfig", {})
    assert [value.upper() for value in thinking.values()] == ([level] if level else [])


class TestPython:
    """Judges of the current folder."""

    def test_by_every_kind_of_name(self, tmp_path, monkeypatch):
        """A function from prompt to answer, a class, a function that makes a judge, and a judge itself."""
        (tmp_path / "judges_of_test.py").write_text(
            "from tttembed_rag.testing import FakeJudge\n"
            "def grade(prompt):\n    return 'Score: 4'\n"
            "def make():\n    return FakeJudge(fingerprint='made')\n"
            "class Mine(FakeJudge):\n    pass\n"
            "here = make()\n"
            "number = 7\n",
            encoding="utf-8",
        )
        monkeypatch.chdir(tmp_path)

        def opened(name):
            return open_judge(f"python:judges_of_test:{name}")

        assert opened("grade").score("q", ["d"]) == [4.0]
        words = word_overlap("a b", "b")
        assert [opened(name).score("a b", ["b"]) for name in ("make", "Mine", "here")] == [[words]] * 3
        with pytest.raises(InputError, match=r"judge: expected an object with score, .*got int"):
            opened("number")
        with pytest.raises(InputError, match="judge: expected an importable MODULE:NAME"):
            opened("absent")
