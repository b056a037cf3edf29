"""LangChain, as the laws of all adapters drive it."""

import uuid
from functools import partial
from itertools import groupby

import faiss
import langchain_tttembed
import pytest
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import (
    Learned,
    RecordingCrossEncoder,
    RescoringCompressor,
    RescoringRetriever,
    RewardCallbackHandler,
    RewardRetriever,
    TTTEmbeddings,
    stored_vectors,
)
from langchain_tttembed.resolvers import ids_of

from tests.adapters.worlds import WIDTH, Vectors

MISSING = "make test-hosts installs it"


class Model(Embeddings):
    """Vectors of a test, as LangChain asks for them."""

    def __init__(self, vectors):
        self.vectors = vectors

    def embed_documents(self, texts):
        return [self.vectors.document(text) for text in texts]

    def embed_query(self, text):
        return self.vectors.query(text)


class Scores(BaseCrossEncoder):
    """A judge's scores, pair by pair."""

    def __init__(self, judge):
        self.judge = judge

    def score(self, text_pairs):
        """Those of pairs that are sorted by query."""
        pairs = groupby(text_pairs, lambda pair: pair[0])
        return [score for query, some in pairs for score in self.judge.score(query, [text for _, text in some])]


class Driver:
    """LangChain's adapter."""

    wrapper, argument, modules, kept = "TTTEmbeddings", "embeddings", (langchain_tttembed,), "top_n"

    def __init__(self, folder):
        self.folder = folder

    # The wrapper

    def model(self, vectors=None):
        return Model(vectors or Vectors())

    def wrap(self, model, offsets, **options):
        return TTTEmbeddings(model, offsets=offsets, **options)

    def embed(self, model, text):
        return model.embed_query(text)

    async def aembed(self, model, text):
        return await model.aembed_query(text)

    def bridged(self, model, bridge):
        """A new model before the index of an old one."""
        return langchain_tttembed.BridgedEmbeddings(model, bridge)

    def documents(self, model, texts):
        return model.embed_documents(texts)

    async def adocuments(self, model, texts):
        return await model.aembed_documents(texts)

    def learned(self, model, judge, texts, **options):
        """`Learned` around a model and a reranker of the host, what it searches, and what reranks texts."""
        ttt = Learned(model, judge if isinstance(judge, str) else Scores(judge), **options)
        return ttt, self.build(ttt.embeddings, texts), partial(self.record, ttt.reranker)

    # Stores

    def build(self, model, texts, kind="in_memory", postgres=None):
        made = getattr(self, f"_{kind}")
        store = made(model, postgres()) if kind == "pgvector" else made(model)
        store.add_texts(texts)
        return store

    def _in_memory(self, model):
        return InMemoryVectorStore(model)

    def _faiss(self, model):
        return FAISS(model, faiss.IndexFlatL2(WIDTH), InMemoryDocstore(), {})

    def _chroma(self, model):
        chroma = pytest.importorskip("langchain_chroma", reason=MISSING)
        return chroma.Chroma(f"c{uuid.uuid4().hex}", model)

    def _qdrant(self, model):
        qdrant = pytest.importorskip("langchain_qdrant", reason=MISSING)
        from qdrant_client import QdrantClient, models

        client = QdrantClient(":memory:")
        client.create_collection("c", models.VectorParams(size=WIDTH, distance=models.Distance.COSINE))
        return qdrant.QdrantVectorStore(client, "c", model)

    def _pgvector(self, model, engine):
        postgres = pytest.importorskip("langchain_postgres", reason=MISSING)
        return postgres.PGVector(model, connection=engine, collection_name=uuid.uuid4().hex)

    def hits(self, store, query, k=4):
        return store.as_retriever(search_kwargs={"k": k}).invoke(query)

    async def ahits(self, store, query, k=4):
        return await store.as_retriever(search_kwargs={"k": k}).ainvoke(query)

    def texts(self, documents):
        return [document.page_content for document in documents]

    def search(self, store, query, k=4):
        return [
            (document.page_content, round(float(score), 5))
            for document, score in store.similarity_search_with_score(query, k=k)
        ]

    def stored(self, store):
        """A function from ids to the vectors in a store."""
        return stored_vectors(store)

    def ids(self, store, k, query="q"):
        return dict(ids_of(store.similarity_search(query, k=k)))

    # Judges, logs and words

    def retriever(self, store, model, judge, **options):
        return RewardRetriever(vectorstore=store, embeddings=model, judge=judge, **options)

    def ask(self, retriever, query):
        return self.texts(retriever.invoke(query))

    async def aask(self, retriever, query):
        return self.texts(await retriever.ainvoke(query))

    def tap(self, log, judge, **options):
        """A reranker that records its judge's scores."""
        return RecordingCrossEncoder(Scores(judge), log, **options)

    def record(self, tap, query, texts):
        reranker = CrossEncoderReranker(model=tap, top_n=len(texts))
        return self.texts(reranker.compress_documents([Document(text) for text in texts], query))

    async def arecord(self, tap, query, texts):
        reranker = CrossEncoderReranker(model=tap, top_n=len(texts))
        return self.texts(await reranker.acompress_documents([Document(text) for text in texts], query))

    def observer(self, log, **options):
        return RewardCallbackHandler(log, **options)

    def off(self, observer):
        """Nothing: an observer is a call's own."""

    def observe(self, observer, store, query, k=3, task=None):
        """A retrieval that is noted, under the *task* that it names itself."""
        return store.as_retriever(search_kwargs={"k": k}).invoke(query, self._config(observer, task))

    async def aobserve(self, observer, store, query, k=3):
        return await store.as_retriever(search_kwargs={"k": k}).ainvoke(query, self._config(observer, None))

    def _config(self, observer, task):
        return {"callbacks": [observer], "metadata": {"tttembed_task": task} if task else {}}

    def sorter(self, model, **options):
        """What sorts documents by words too."""
        return RescoringCompressor(embeddings=model, **options)

    def likelihood(self, document):
        """How likely a document that was sorted is relevant."""
        return document.metadata["relevance_score"]

    def sort(self, sorter, documents, query):
        return list(sorter.compress_documents(documents, query))

    async def asort(self, sorter, documents, query):
        return list(await sorter.acompress_documents(documents, query))


class Retrieving(Driver):
    """LangChain's adapter, with a retriever that sorts what it finds itself."""

    kept = "k"

    def build(self, model, texts, kind="in_memory", postgres=None):
        self.store = super().build(model, texts, kind, postgres)
        return self.store

    def sorter(self, model, *, top_n=60, **options):
        return RescoringRetriever(vectorstore=self.store, embeddings=model, k=top_n, depth=60, **options)

    def sort(self, sorter, documents, query):
        return sorter.invoke(query)[: len(documents)]

    async def asort(self, sorter, documents, query):
        return (await sorter.ainvoke(query))[: len(documents)]
