"""Chat models behind HTTP, on loopback: OpenAI's protocol and Anthropic's."""

from __future__ import annotations

import logging

import pytest

from tttembed_rag import InputError
from tttembed_rag.clients.usage import Usage, metered
from tttembed_rag.errors import JudgeError
from tttembed_rag.judges import AnthropicChat, OpenAIChat, Patience, check_judge, open_judge
from tttembed_rag.judges.examination import answers
from tttembed_rag.testing import word_overlap

ONCE = Patience(attempts=1)


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


@pytest.mark.parametrize(("kind", "answer"), [("openai", openai), ("anthropic", anthropic)])
def test_a_judge_in_one_line(serve, monkeypatch, kind, answer):
    """The spec of either protocol is a judge that tells a good from a bad document; its usage is the reported one."""
    monkeypatch.setenv("MY_KEY", "secret")
    server = serve(answer)
    judge = open_judge(f"{kind}:some-model?url={server.url}/v1&key=MY_KEY&tokens=99")

    with metered() as meter:
        check_judge(judge)
    assert meter.usage == Usage(48, 48 * 70, 48 * 9)
    path, headers, body = server.asked[0]
    assert path == {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}[kind]
    assert headers[{"openai": "authorization", "anthropic": "x-api-key"}[kind]].endswith("secret")
    assert (body["model"], body["max_tokens"]) == ("some-model", 99)
    assert "secret" not in judge.fingerprint


def test_a_server_that_needs_no_key(serve):
    """Ollama and vLLM are asked without one."""
    server = serve(openai)

    assert "river Seine" not in str(OpenAIChat("m", url=server.url)("a prompt"))
    assert "authorization" not in server.asked[0][1]


@pytest.mark.parametrize("address", ["/v1?key=s3cret", "/v1/?key=s3cret", "/v1/chat/completions?key=s3cret"])
def test_what_stands_behind_the_question_mark_is_in_no_log(serve, caplog, address):
    """It may be a key; it is sent all the same, behind the path."""
    server = serve(openai)
    with caplog.at_level(logging.INFO):
        OpenAIChat("m", url=server.url + address)("p")

    assert server.asked[0][0] == "/v1/chat/completions?key=s3cret"
    assert "HTTP Request: POST" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again(serve, status):
    """As long as it says, by openai's own patience."""
    server = serve(lambda path, body, n: (status, {"retry-after": "0.01"}, {}) if n == 1 else openai(path, body, n))

    assert OpenAIChat("m", url=server.url, patience=Patience(attempts=2))("p") is not None
    assert len(server.asked) == 2


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


def test_the_namesake_needs_a_key():
    """Without a key nothing is sent, and the variable is named."""
    with pytest.raises(InputError, match="key: expected one in the environment variable ANTHROPIC_API_KEY, found none"):
        AnthropicChat("m")


def test_a_temperature_is_sent_and_told_apart(serve):
    """It decides the answers, and so is part of the settings."""
    server = serve(openai)
    service = OpenAIChat("m", url=server.url, temperature=0.0)
    service("p")

    assert server.asked[0][2]["temperature"] == 0.0
    assert service.settings != OpenAIChat("m", url=server.url).settings


@pytest.mark.parametrize(
    ("chat", "said"),
    [
        (OpenAIChat, {"choices": [{"message": {"content": "Score: 4"}, "finish_reason": "length"}]}),
        (AnthropicChat, anthropic(None, {"messages": [{"content": ""}]}, 0)[2] | {"stop_reason": "max_tokens"}),
    ],
)
def test_an_answer_that_was_cut_off_is_none(serve, chat, said):
    """What a model would have said last is not guessed."""
    assert chat("m", url=serve(lambda *_: (200, {}, said)).url)("p") is None


def test_another_answer_is_an_error(serve):
    """A server of another kind is named, with what it said."""
    server = serve(lambda *_: (200, {}, {"hello": "there"}))
    with pytest.raises(JudgeError, match=r"expected an answer of openai's chat, got .*hello"):
        OpenAIChat("m", url=server.url, patience=ONCE)("p")


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
