"""Embedding models behind HTTP, on loopback."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tttembed_rag.clients.retrying import Patience
from tttembed_rag.embedders import EmbeddingService, open_embedder
from tttembed_rag.errors import EmbedderError, TTTEmbedError

ONCE = Patience(attempts=1)
TEXTS = [f"text {i}" for i in range(5)]


def vector(text):
    """A vector of a text's length and last letter."""
    return [float(len(text)), float(ord(text[-1])), 1.0]


def unit(texts):
    """Their vectors at unit length."""
    rows = np.array([vector(text) for text in texts])
    return rows / np.linalg.norm(rows, axis=1)[:, None]


def listed(_path, body, _n):
    """OpenAI's and Voyage's answer, out of order."""
    items = [{"index": i, "embedding": vector(text)} for i, text in enumerate(body["input"])]
    return 200, {}, {"data": items[::-1]}


def by_type(_path, body, _n):
    """Cohere's answer."""
    return 200, {}, {"embeddings": {"float": [vector(text) for text in body["texts"]]}}


@pytest.mark.parametrize(
    ("spec", "answer", "path", "kinds"),
    [
        ("openai:m", listed, "/v1/embeddings", (None, None)),
        ("cohere:m", by_type, "/v1/embed", ("search_query", "search_document")),
        ("voyage:m", listed, "/v1/embeddings", ("query", "document")),
    ],
)
def test_vectors_come_in_the_order_of_the_texts(serve, monkeypatch, spec, answer, path, kinds):
    """Each protocol says what is a query and what a document, at unit length, with the key of its variable."""
    server = serve(answer)
    monkeypatch.setenv("MY_KEY", "secret")
    model = open_embedder(f"{spec}?url={server.url}/v1&key=MY_KEY")

    assert_allclose(model.embed_queries(TEXTS), unit(TEXTS), rtol=1e-6)
    assert_allclose(model.embed_documents(TEXTS), unit(TEXTS), rtol=1e-6)
    assert [(address, body.get("input_type")) for address, _, body in server.asked] == [(path, kind) for kind in kinds]
    assert {headers["authorization"] for _, headers, _ in server.asked} == {"Bearer secret"}
    assert "secret" not in model.fingerprint


def test_many_texts_are_several_requests(serve):
    """No request holds more than the service takes."""
    server = serve(by_type)
    model = EmbeddingService("cohere", "m", url=server.url)
    texts = [f"text number {i}" for i in range(200)]

    assert_allclose(model.embed_documents(texts), unit(texts), rtol=1e-6)
    assert [len(body["texts"]) for _, _, body in server.asked] == [96, 96, 8]


def test_prefixes_and_dimensions_reach_the_service(serve):
    """They decide the vectors, and so are part of the fingerprint."""
    server = serve(listed)
    plain, prefixed = (
        open_embedder(f"openai:m?url={server.url}{options}")
        for options in ("", "&query_prefix=query:+&document_prefix=passage:+&dimensions=3")
    )
    prefixed.embed_queries(["a"])
    prefixed.embed_documents(["b"])

    assert [body["input"] for _, _, body in server.asked] == [["query: a"], ["passage: b"]]
    assert [body["dimensions"] for _, _, body in server.asked] == [3, 3]
    assert plain.fingerprint != prefixed.fingerprint


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 2.0]], "expected one vector for each of 2 texts"),
        ([[1.0, 2.0], [1.0]], "expected vectors of one width, got rows of different lengths; see row 1: 'b'"),
        ([[], []], r"expected one vector for each of 2 texts, got shape \(2, 0\)"),
        ([[1e300, 1.0], [1.0, 1.0]], "expected finite, non-zero vectors, got infinity"),
    ],
)
def test_vectors_that_are_none_are_an_error(serve, vectors, message):
    """One of ours, for whatever a service may send."""
    answer = {"data": [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]}
    server = serve(lambda *_: (200, {}, answer))
    with pytest.raises(TTTEmbedError, match=message):
        EmbeddingService("openai", "m", url=server.url, patience=ONCE).embed_documents(["a", "b"])


def test_the_width_must_stay(serve):
    """That which was asked for, and that of the first request of several."""

    def answer(_, body, number):
        return 200, {}, {"data": [{"index": place, "embedding": [1.0] * number} for place in range(len(body["input"]))]}

    service, narrow = (
        EmbeddingService("openai", "m", url=serve(answer).url, patience=ONCE, dimensions=width) for width in (None, 3)
    )
    with pytest.raises(EmbedderError, match="expected vectors of width 1, got 2"):
        service.embed_documents(["a"] * 150)
    with pytest.raises(EmbedderError, match="expected vectors of width 3, got 1"):
        narrow.embed_documents(["a"])


@pytest.mark.parametrize(
    "index",
    [
        lambda place: {"index": place} if place else {},  # as protobuf writes a 0
        lambda _: {},
        lambda _: {"index": None},
        lambda _: {"index": 0},
        lambda place: {"index": place + 1},
    ],
)
def test_vectors_without_a_usable_index_are_in_order(serve, index):
    """Where an index says nothing, the list is in the order of the texts."""

    def answer(_path, body, _number):
        return 200, {}, {"data": [{**index(i), "embedding": vector(text)} for i, text in enumerate(body["input"])]}

    model = EmbeddingService("openai", "m", url=serve(answer).url, patience=ONCE)

    assert_allclose(model.embed_documents(TEXTS), unit(TEXTS), rtol=1e-6)
    assert_allclose(model.embed_queries(TEXTS[3:4]), unit(TEXTS[3:4]), rtol=1e-6)


@pytest.mark.parametrize("places", [[0, 0, 1], [0, 2, 3], [0, 1, 5], ["0", "1", "2"]])
def test_an_index_that_is_no_order_is_an_error(serve, places):
    """Vectors are never given to a text by chance."""
    answer = {"data": [{"index": place, "embedding": [1.0, 2.0]} for place in places]}
    with pytest.raises(EmbedderError, match="expected a vector for each text"):
        EmbeddingService("openai", "m", url=serve(lambda *_: (200, {}, answer)).url).embed_documents(["a", "b", "c"])


def test_half_an_emoji_costs_one_character(serve):
    """And both halves beside each other are the emoji."""
    server = serve(listed)
    EmbeddingService("openai", "m", url=server.url).embed_queries(["what a day \ud83d", "\ud83d\ude00!"])

    assert server.asked[0][2]["input"] == ["what a day \ufffd", "\N{GRINNING FACE}!"]
