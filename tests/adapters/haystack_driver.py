"""Haystack, as the laws of all adapters drive it: its wrapper turns queries and reads offsets by name."""

import asyncio
import os
from dataclasses import replace
from functools import partial

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import haystack_integrations.components.connectors.tttembed as connectors
import haystack_integrations.components.embedders.tttembed as embedders
import haystack_integrations.components.rankers.tttembed as rankers
from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack_integrations.components.embedders.tttembed import Learned, TTTTextEmbedder
from haystack_integrations.components.rankers.tttembed import TTTRanker

from tests.adapters.worlds import Vectors


class Model:
    """Vectors of a test, as Haystack asks for them."""

    def __init__(self, vectors):
        self.vectors = vectors

    def run(self, text):
        return {"embedding": self.vectors.query(text), "meta": {}}


class Ranker:
    """A judge's scores, of the best three documents."""

    top_k = 3

    def __init__(self, judge):
        self.judge = judge

    def run(self, query, documents, top_k=None):
        scores = self.judge.score(query, [document.content for document in documents])
        ranked = [replace(document, score=score) for document, score in zip(documents, scores, strict=True)]
        return {"documents": sorted(ranked, key=lambda shown: -shown.score)[: top_k or self.top_k]}


class Driver:
    """Haystack's adapter."""

    wrapper, argument, modules = "TTTTextEmbedder", "embedder", (connectors, embedders, rankers)

    def __init__(self, folder):
        self.folder = folder

    def model(self, vectors=None):
        return Model(vectors or Vectors())

    def wrap(self, model, offsets, **options):
        path = self.folder / "offsets.safetensors"
        offsets.save(path)
        return TTTTextEmbedder(model, store=str(path), **options)

    def learned(self, model, judge, texts, **options):
        """`Learned` around a model and a ranker of the host, what it searches, and what ranks texts."""
        ttt = Learned(model, judge if isinstance(judge, str) else Ranker(judge), **options)
        store = InMemoryDocumentStore(embedding_similarity_function="cosine")
        vectors = [ttt.embeddings.run(text=text)["embedding"] for text in texts]
        store.write_documents([Document(content=t, embedding=v) for t, v in zip(texts, vectors, strict=True)])
        return ttt, InMemoryEmbeddingRetriever(store), partial(self.record, ttt.reranker)

    def record(self, ranker, query, texts):
        documents = ranker.run(query=query, documents=[Document(content=text) for text in texts])["documents"]
        return [document.content for document in documents]

    def embed(self, model, text):
        return model.run(text)["embedding"]

    async def aembed(self, model, text):
        return (await model.run_async(text))["embedding"]

    # Searches and words

    def build(self, model, texts):
        """A pipeline that searches these documents."""
        store = InMemoryDocumentStore(embedding_similarity_function="cosine")
        store.write_documents(
            [Document(content=text, embedding=model.embedder.vectors.document(text)) for text in texts]
        )
        pipeline = Pipeline()
        pipeline.add_component("embedder", model)
        pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store))
        pipeline.connect("embedder.embedding", "retriever.query_embedding")
        return pipeline

    def hits(self, pipeline, query, k=4):
        return pipeline.run({"embedder": {"text": query}, "retriever": {"top_k": k}})["retriever"]["documents"]

    def texts(self, documents):
        return [document.content for document in documents]

    def sorter(self, model, *, top_n=60, **options):
        """What sorts documents by words too."""
        return TTTRanker(store=model.store, top_k=top_n, **options)

    def likelihood(self, document):
        """How likely a document that was sorted is relevant."""
        return document.score

    def sort(self, sorter, documents, query):
        return sorter.run(query, documents)["documents"]

    async def asort(self, sorter, documents, query):
        """As an async pipeline runs what has no way of its own."""
        return await asyncio.to_thread(self.sort, sorter, documents, query)
