"""Real vector stores: the wrapper steers their searches, leaves what they hold, and gets vectors back from them."""

# The parts override methods that their frameworks document.
# ruff: noqa: D102

import logging
import uuid
from hashlib import sha256

import faiss
import numpy as np
import pytest
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import RewardCallbackHandler, RewardRetriever, TTTEmbeddings, stored_vectors
from langchain_tttembed.resolvers import ids_of
from sqlalchemy import create_engine

from tttembed_rag import Evidence, LiveOffsets, Offset, Offsets, RewardLog, TextVectors
from tttembed_rag.testing import FakeEmbedder, FakeJudge

MISSING = "make test-hosts installs it"
Chroma = pytest.importorskip("langchain_chroma", reason=MISSING).Chroma
PGVector = pytest.importorskip("langchain_postgres", reason=MISSING).PGVector
QdrantVectorStore = pytest.importorskip("langchain_qdrant", reason=MISSING).QdrantVectorStore
QdrantClient = pytest.importorskip("qdrant_client").QdrantClient
models = pytest.importorskip("qdrant_client.models")

WIDTH = 16
TEXTS = [f"passage {i}" for i in range(40)]
QUERIES = [f"question {i}" for i in range(8)]
NO_OFFSET = Offsets([], width=WIDTH)


class Model(FakeEmbedder, Embeddings):
    """A model whose documents come as LangChain's types say."""

    def embed_documents(self, texts):
        return super().embed_documents(texts).tolist()


def partial():
    """A judge with an opinion on every passage."""
    return FakeJudge(lambda _, text: int(text.rsplit(" ", 1)[-1]) / 40)


def offset(dose):
    """A global offset of that dose."""
    vector = np.random.default_rng(5).normal(size=WIDTH)
    return Offsets(
        [Offset("global", vector, dose, 4, Evidence(4, None, None, "ungated", "made for a test"))], width=WIDTH
    )


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """Connections to a real PostgreSQL with pgvector, started for these tests."""
    pgserver = pytest.importorskip("pgserver")
    try:
        server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="stop")
    except Exception as exc:  # noqa: BLE001 - whatever keeps a database from starting here, these tests cannot run
        pytest.skip(f"PostgreSQL does not start here: {exc}")
    engine = create_engine(server.get_uri().replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()
    server.cleanup()


def in_memory(embeddings, _):
    """LangChain's own."""
    return InMemoryVectorStore(embeddings)


def flat_faiss(embeddings, _):
    """A flat FAISS index."""
    return FAISS(embeddings, faiss.IndexFlatL2(WIDTH), InMemoryDocstore(), {})


def chroma(embeddings, _):
    """Chroma in this process."""
    return Chroma(f"c{uuid.uuid4().hex}", embeddings)


def qdrant(embeddings, _):
    """Qdrant in this process."""
    client = QdrantClient(":memory:")
    client.create_collection("c", models.VectorParams(size=WIDTH, distance=models.Distance.COSINE))
    return QdrantVectorStore(client, "c", embeddings)


def pgvector(embeddings, request):
    """PostgreSQL with pgvector."""
    return PGVector(embeddings, connection=request.getfixturevalue("postgres"), collection_name=uuid.uuid4().hex)


@pytest.fixture(
    params=[in_memory, flat_faiss, chroma, qdrant, pytest.param(pgvector, marks=pytest.mark.slow)],
    ids=lambda make: make.__name__,
)
def make_store(request):
    """A function from embeddings to an empty store."""
    return lambda embeddings: request.param(embeddings, request)


@pytest.fixture
def live():
    """Offsets to publish into."""
    return LiveOffsets(NO_OFFSET)


@pytest.fixture
def wrapped(live):
    """The model, wrapped."""
    return TTTEmbeddings(Model(WIDTH), offsets=live)


@pytest.fixture
def store(make_store, wrapped):
    """A store of all passages, built through the wrapper."""
    store = make_store(wrapped)
    store.add_texts(TEXTS)
    return store


def found(store):
    """Texts and scores of all queries, to five digits."""
    return [
        [(one.page_content, round(float(score), 5)) for one, score in store.similarity_search_with_score(query, k=5)]
        for query in QUERIES
    ]


def contents(store):
    """A digest of every passage's stored vector, by text."""
    ids = dict(ids_of(store.similarity_search("q", k=len(TEXTS))))
    vectors = stored_vectors(store)(list(ids.values()))
    return {text: sha256(np.asarray(vectors[key], np.float32).tobytes()).hexdigest() for text, key in ids.items()}


def test_without_an_offset_the_store_answers_as_unwrapped(make_store, wrapped, store):
    """At dose 0, and without an offset, results and scores are those of a store built with the bare model."""
    bare = make_store(wrapped.base)
    bare.add_texts(TEXTS)
    expected = found(bare)
    alone = found(store)
    wrapped._steering._live.publish(offset(0.0))

    assert expected == alone == found(store)


def test_an_offset_moves_the_search_and_nothing_in_the_store(store, live):
    """Published offsets change what is found, bit for bit nothing that is stored; rolling back restores the answers."""
    before, stored = found(store), contents(store)

    way_back = live.publish(offset(0.8))
    moved = found(store)
    held = contents(store)
    live.publish(way_back)

    assert sum(one != other for one, other in zip(before, moved, strict=True)) == len(QUERIES)
    assert held == stored
    assert len(stored) == len(TEXTS)
    assert found(store) == before


def test_a_store_gives_its_vectors(store, wrapped):
    """By id, of any number of documents, in the direction that was embedded; ids it lacks are left out."""
    ids = ids_of(store.similarity_search("q", k=7))

    vectors = stored_vectors(store)([*(key for _, key in ids), str(uuid.uuid4())])

    expected = {key: pytest.approx(wrapped.base.embed_query(text), abs=1e-6) for text, key in ids}
    assert len(expected) == 7
    assert {key: np.asarray(vector, float).tolist() for key, vector in vectors.items()} == expected


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_two_passes_embed_no_document_again(store, wrapped, asynchronous):
    """A retriever that judges takes the vectors of judged documents from the store, and counts them."""
    retriever = RewardRetriever(vectorstore=store, embeddings=wrapped, judge=partial(), depth=6)
    before = len(wrapped.base.documents)
    if asynchronous and isinstance(store, PGVector):
        pytest.skip("a sync PGVector has no async search")

    answered = await retriever.ainvoke("q") if asynchronous else retriever.invoke("q")

    assert len(answered) == 4
    assert len(wrapped.base.documents) == before
    assert (retriever.vectors.supplied, retriever.vectors.embedded) == (6, 0)


def test_captured_documents_are_not_embedded_again(store, wrapped):
    """What a handler noted is learned from with the store's own vectors."""
    log, vectors = RewardLog.of(partial()), TextVectors(stored=stored_vectors(store))
    retriever = store.as_retriever(search_kwargs={"k": 5})
    for query in QUERIES:
        retriever.invoke(query, {"callbacks": [RewardCallbackHandler(log, vectors=vectors)]})
    log.score_waiting(partial())
    before = len(wrapped.base.documents)

    rewards = wrapped.rewards(log, vectors=vectors)

    assert len(wrapped.base.documents) == before
    assert (vectors.supplied, vectors.embedded) == (len(rewards.doc_vectors), 0)


def test_a_store_that_fails_costs_an_embedding(wrapped, caplog):
    """Where the lookup raises, texts are embedded, and the log says why."""

    def away(ids):
        raise TimeoutError

    vectors = TextVectors(stored=away)
    vectors.note([("passage 1", "id")])

    assert wrapped.document_vectors(["passage 1"], vectors=vectors).shape == (1, WIDTH)
    assert (vectors.supplied, vectors.embedded) == (0, 1)
    assert [(one.name, one.levelno) for one in caplog.records] == [("tttembed_rag.capture.textvectors", logging.ERROR)]


def test_an_unknown_store_gives_none():
    """Documents of a store nobody knows how to ask are embedded again."""
    assert stored_vectors(object()) is None
