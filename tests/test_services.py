"""Services of every kind, on loopback: asked again where that may help, and once where not."""

from __future__ import annotations

import logging

import pytest

from tttembed_rag.clients.retrying import Patience
from tttembed_rag.embedders import EmbeddingService, GeminiEmbedder, open_embedder
from tttembed_rag.errors import EmbedderError, InputError, JudgeError
from tttembed_rag.judges import AnthropicChat, Gemini, HttpJudge, OpenAIChat, RubricJudge, open_judge

GRADE = "Fine.\nScore: 4"


def rubric(chat):
    """The judge that asks a chat model."""
    return RubricJudge(chat, model=chat.name).score


# By kind: what asks a service at an address, the path of that address, and the path that is asked.
KINDS = {
    "chat of openai": (
        lambda url, patience: rubric(OpenAIChat("m", url=url, patience=patience)),
        "/v1",
        "/v1/chat/completions",
    ),
    "chat of anthropic": (
        lambda url, patience: rubric(AnthropicChat("m", url=url, patience=patience)),
        "/v1",
        "/v1/messages",
    ),
    "chat of gemini": (lambda url, patience: rubric(Gemini("m", url=url, key="k", patience=patience)), "", ""),
    "reranker": (lambda url, patience: HttpJudge(url, "cohere", patience=patience).score, "", "/v2/rerank"),
    "embeddings of openai": (
        lambda url, patience: EmbeddingService("openai", "m", url=url, patience=patience).embed_queries,
        "/v1",
        "/v1/embeddings",
    ),
    "embeddings of gemini": (
        lambda url, patience: GeminiEmbedder("gemini-embedding-001", url=url, key="k", patience=patience).embed_queries,
        "",
        "",
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def every_kind_and(names, first, *others):
    """Every kind with the *first* case; with the *others*, which are handled in one place, one kind."""
    cases = [*((kind, first) for kind in KINDS), *(("reranker", other) for other in others)]
    return pytest.mark.parametrize(names, cases)


def ask(kind, address):
    """What a service at an *address* says of one text: a score, or the width of a vector."""
    answers = KINDS[kind][0](address, Patience(attempts=2, first_wait=0.01))
    return answers(["text"]).shape[1] if "embeddings" in kind else answers("query", ["text"])[0]


def address_of(kind, server):
    """Where a service of that *kind* is on a *server*."""
    return f"{server.url}{KINDS[kind][1]}"


# A right answer of all kinds at once, and what `ask` makes of it.
WELL = {
    "choices": [{"message": {"content": GRADE}, "finish_reason": "stop"}],
    "content": [{"type": "text", "text": GRADE}],
    "usage": {"input_tokens": 1, "output_tokens": 1},
    "candidates": [{"finishReason": "STOP", "content": {"parts": [{"text": GRADE}]}}],
    "results": [{"index": 0, "relevance_score": 4.0}],
    "data": [{"index": 0, "embedding": [1.0, 2.0, 2.0, 4.0]}],
    "embeddings": [{"values": [1.0, 2.0, 2.0, 4.0]}],
}


@every_kind_and("kind, status", 429, 408, 500, 503)
def test_what_passes_is_asked_again(serve, kind, status):
    """A busy service is asked until it answers, as late as it says."""
    busy = status, {"retry-after": "0.01"}, {"error": {"code": status}}
    server = serve(lambda _path, _body, number: (200, {}, WELL) if number > 1 else busy)

    assert ask(kind, address_of(kind, server)) == 4
    assert len(server.asked) == 2


@every_kind_and(
    "kind, answer",
    {"error": {"message": "busy", "code": 429}},
    {"error": {"code": "502"}},
    {"choices": [], "usage": {}},
)
def test_an_error_within_a_success_is_asked_again(serve, kind, answer):
    """Gateways say 200 and mean the service behind them."""
    server = serve(lambda _path, _body, number: (200, {}, WELL if number > 1 else answer))

    assert ask(kind, address_of(kind, server)) == 4


@every_kind
@pytest.mark.parametrize(("status", "headers"), [(301, {}), (401, {}), (429, {"retry-after": "3600"})])
def test_what_does_not_pass_is_asked_once(serve, kind, status, headers):
    """A request that is wrong is not repeated; a service that wants to be left alone for an hour is."""
    server = serve(lambda *_: (status, headers, {"error": {"code": status, "message": "no such key"}}))
    with pytest.raises((JudgeError, EmbedderError), match=rf"expected an answer, got {status} .*no such key"):
        ask(kind, address_of(kind, server))

    assert len(server.asked) == 1


@every_kind
@pytest.mark.parametrize(
    "answer",
    [5, b"<html>busy</html>", b"[" * 100_000, {"candidates": [{"content": {"parts": [{"text": 5}]}}], "embeddings": 3}],
)
def test_another_answer_is_an_error(serve, kind, answer):
    """Of any kind, in one line."""
    server = serve(lambda *_: (200, {}, answer))
    with pytest.raises((JudgeError, EmbedderError), match=r"expected an? ") as caught:
        ask(kind, address_of(kind, server))

    assert "\n" not in str(caught.value)


@every_kind
def test_no_server_is_an_error(kind):
    """A connection that cannot be made is an error of ours after all attempts."""
    with pytest.raises((JudgeError, EmbedderError), match=r"expected an answer, got \w*Connect"):
        ask(kind, "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("kind", "written"),
    [(kind, written) for kind, (_, base, path) in KINDS.items() if path for written in (base, f"{base}/", path)],
)
def test_what_stands_behind_the_question_mark_is_sent_and_in_no_log(serve, caplog, kind, written):
    """It may be a key; nor is it in an error. The path is added before it."""
    server = serve(lambda *_: (404, {}, {"error": "no such route"}))
    with caplog.at_level(logging.DEBUG), pytest.raises((JudgeError, EmbedderError)) as caught:
        ask(kind, f"{server.url}{written}?key=s3cret")

    assert server.asked[0][0] == f"{KINDS[kind][2]}?key=s3cret"
    assert "HTTP Request: POST" in caplog.text
    assert "s3cret" not in caplog.text + str(caught.value)


@pytest.mark.parametrize(
    ("make", "spec", "variable"),
    [
        *((open_judge, f"{kind}:m", f"{kind.upper()}_API_KEY") for kind in ("openai", "anthropic", "gemini", "cohere")),
        (open_judge, "jina:m?scale=logit", "JINA_API_KEY"),
        *((open_embedder, f"{kind}:m", f"{kind.upper()}_API_KEY") for kind in ("openai", "voyage", "gemini")),
    ],
)
def test_a_vendor_needs_a_key(monkeypatch, make, spec, variable):
    """Without a key nothing is sent, and the variable is named."""
    for name in (variable, "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((InputError, JudgeError, EmbedderError), match=f"expected .* {variable}"):
        make(spec)
