"""One text that a service refuses, or has no vector for: it is named or left unjudged, and all others are as ever."""

from __future__ import annotations

import pytest

from tttembed_rag.clients.retrying import Portions, RefusedTextsError
from tttembed_rag.embedders import open_embedder
from tttembed_rag.errors import EmbedderError, JudgeError, TTTEmbedError
from tttembed_rag.judges import Patience, RubricJudge, open_judge
from tttembed_rag.judges.chats import OpenAIChat
from tttembed_rag.judging import Budget, Plan, Price, ScoreCache, judge_all
from tttembed_rag.rewards.observations import Served

TEXTS = [f"text {i}" for i in range(40)]


def embedding(text):
    """A vector of a text."""
    return [1.0, float(len(text)), float(ord(text[-1:] or "?"))]


def taking(most=1000, bad=(), status=400):
    """A server of embeddings and of reranking that takes so many texts at once, and refuses the *bad* ones."""

    def answer(_path, body, _number):
        texts = body.get("input") or body.get("texts") or body.get("documents") or body.get("text_2")
        if texts is None:
            texts = [request["content"]["parts"][0]["text"] for request in body["requests"]]
        if len(texts) > most or any(text in bad for text in texts):
            return status, {}, {"error": {"message": "not these", "code": "content_filter"}}
        items = [{"index": i, "embedding": embedding(t), "relevance_score": 0.5} for i, t in enumerate(texts)]
        vectors = [{"values": item["embedding"]} for item in items]
        by_type = {"float": [item["embedding"] for item in items]} if "texts" in body else vectors
        return 200, {}, {"data": items, "results": items, "embeddings": by_type}

    return answer


EMBEDDERS = ["openai:m?url={}/v1", "cohere:m?url={}/v1", "voyage:m?url={}/v1", "gemini:gemini-embedding-001?url={}"]


@pytest.mark.parametrize(
    ("spec", "most", "status"),
    [*((spec, 10, 413) for spec in EMBEDDERS), (EMBEDDERS[0], 32, 400), (EMBEDDERS[0], 1, 422)],
)
def test_a_service_that_takes_few_texts_at_once(serve, spec, most, status):
    """Every text has its vector, and the number that was taken is remembered."""
    server = serve(taking(most, status=status))
    model = open_embedder(spec.format(server.url))
    first = model.embed_documents(TEXTS)
    learned = len(server.asked)

    assert first.shape == (40, 3)
    assert (model.embed_documents(TEXTS) == first).all()
    assert len(server.asked) - learned <= 2 * 40 / most


@pytest.mark.parametrize("spec", EMBEDDERS)
def test_how_many_texts_are_sent_at_once_can_be_said(serve, spec):
    """By an option of the one line; nothing is refused then."""
    server = serve(taking(8))
    open_embedder(f"{spec.format(server.url)}&batch=8").embed_documents(TEXTS)

    assert len(server.asked) == 5


@pytest.mark.parametrize("text", ["text 7", ""])
@pytest.mark.parametrize("spec", EMBEDDERS)
def test_a_text_that_is_refused_is_named(serve, spec, text):
    """The error has its row and its beginning, and logs have the row alone."""
    texts = [*TEXTS[:20], text, *TEXTS[20:]] if not text else TEXTS
    with pytest.raises(EmbedderError, match=rf"got 400 for the text in row \d+: '{text}' .*not these") as caught:
        open_embedder(spec.format(serve(taking(bad=[text])).url)).embed_documents(texts)

    assert f"row {texts.index(text)}:" in caught.value.brief
    assert text not in caught.value.brief or not text


@pytest.mark.parametrize(
    "odd", [[None] * 3, [float("nan")] * 3, [0.0] * 3, None, [], [[0.1] * 3], "AAAA", [1e300, 1.0, 1.0], [1.0]]
)
def test_a_text_without_a_vector_is_named(serve, odd):
    """Nulls, NaN, zeros, none, other shapes: the row among all texts, and the text."""

    def answer(_path, body, _number):
        items = [{"index": i, "embedding": odd if t == "text 7" else embedding(t)} for i, t in enumerate(body["input"])]
        return 200, {}, {"data": items}

    with pytest.raises(TTTEmbedError, match=r"see row 7: 'text 7'") as caught:
        open_embedder(f"openai:m?url={serve(answer).url}/v1&batch=5").embed_documents(TEXTS)

    assert "text 7" not in caught.value.brief


@pytest.mark.parametrize("status", [400, 401, 422])
def test_a_service_that_refuses_every_text_is_soon_left(serve, status):
    """What is wrong is not a text, and a hundred of them are not asked about one by one."""
    server = serve(taking(bad=TEXTS, status=status))
    with pytest.raises(EmbedderError, match=f"got {status}"):
        open_embedder(f"openai:m?url={server.url}/v1").embed_documents(TEXTS)

    assert len(server.asked) <= 25


@pytest.mark.parametrize("bad", [(3,), (0, 1), (39,), tuple(range(10, 20)), tuple(range(1, 40))])
@pytest.mark.parametrize("most", [40, 7])
def test_exactly_the_bad_texts_are_refused(bad, most):
    """Wherever they stand, and whatever the number that is taken at once."""

    def ask(texts):
        if len(texts) > most or any(text in [TEXTS[row] for row in bad] for text in texts):
            raise RefusedTextsError("no")
        return texts

    portions = Portions(40)
    answers = portions.ask(TEXTS, ask)

    assert [row for row, answer in enumerate(answers) if isinstance(answer, RefusedTextsError)] == list(bad)
    assert [text for row, text in enumerate(answers) if row not in bad] == [
        t for r, t in enumerate(TEXTS) if r not in bad
    ]


@pytest.mark.parametrize("kind", ["http+cohere", "http+vllm", "http+vllm-score", "http+tei", "http+voyage"])
def test_a_document_that_a_reranker_refuses_is_not_judged(serve, kind):
    documents = [f"a text {i}" for i in range(9)]
    server = serve(taking(bad=["a text 3"], status=422))
    judge = open_judge(f"{kind}:{server.url.removeprefix('http:')}")

    assert judge.score("q", documents) == [0.5, 0.5, 0.5, None, 0.5, 0.5, 0.5, 0.5, 0.5]


def test_a_reranker_that_takes_few_documents(serve):
    """The number that was taken is remembered, and can be said."""
    server = serve(taking(10))
    judge = open_judge(f"http+cohere:{server.url.removeprefix('http:')}")
    by_option = open_judge(f"http+cohere:{server.url.removeprefix('http:')}?batch=9")

    assert judge.score("q", TEXTS) == [0.5] * 40
    assert (judge.documents_per_call, by_option.documents_per_call) == (10, 9)


def chat(_path, body, _number):
    """A chat model with a filter."""
    prompt = body["messages"][0]["content"]
    if "battle" in prompt:
        return 400, {}, {"error": {"message": "filtered", "code": "content_filter"}}
    choices = [{"message": {"content": "Score: 4"}, "finish_reason": "stop"}]
    return 200, {}, {"choices": choices, "usage": {"prompt_tokens": 5, "completion_tokens": 5}}


def test_a_document_that_a_filter_refuses_is_not_judged(serve):
    """What was paid for all others is kept; where none is left, the service says why."""
    judge = RubricJudge(OpenAIChat("m", url=serve(chat).url, patience=Patience(attempts=1)), model="m")

    assert judge.score("q", ["a", "a battle", "", "b"]) == [4.0, None, None, 4.0]
    with pytest.raises(JudgeError, match=r"got 400 .*filtered"):
        judge.score("q", ["a battle"])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_client_of_ones_own_may_refuse_a_document(is_async):
    """As openai, Anthropic and httpx have it: by an error with a status."""

    class BadRequestError(Exception):
        status_code = 400

    def plain(prompt):
        if "battle" in prompt:
            raise BadRequestError("filtered")
        return "Score: 4"

    async def waiting(prompt):
        return plain(prompt)

    assert RubricJudge(waiting if is_async else plain, model="m").score("q", ["a battle", "b"]) == [None, 4.0]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_refused_documents_are_no_breakdown(serve, concurrency):
    """However many of them stand side by side, every other one is judged, and no refusal is kept as an answer."""
    documents = [(f"d{i}", f"battle {i}" if 10 <= i < 35 else f"text {i}") for i in range(50)]
    judge = open_judge(f"openai:m?url={serve(chat).url}/v1")
    plan = Plan([Served.of_texts("q", "history", documents)], (50,), Budget(), Price())
    verdicts = judge_all(plan, judge, ScoreCache.open(None), concurrency=concurrency)

    assert (len(verdicts.rewards["q"]), len(verdicts.failed), verdicts.stopped) == (25, 25, "")
