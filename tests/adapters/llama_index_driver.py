"""LlamaIndex, as the laws of all adapters drive it."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import faiss
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.dispatcher import instrument_tags
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.embeddings import tttembed
from llama_index.embeddings.tttembed import Learned, TTTEmbedding, stored_vectors
from llama_index.postprocessor import tttembed as postprocessors
from llama_index.postprocessor.tttembed import RescoringPostprocessor, RewardEventHandler, RewardPostprocessor
from llama_index.retrievers import tttembed as retrievers
from llama_index.retrievers.tttembed import RewardRetriever
from llama_index.vector_stores.faiss import FaissVectorStore

from tests.adapters.worlds import WIDTH, Vectors


class Model(BaseEmbedding):
    """Vectors of a test, as LlamaIndex asks for them."""

    vectors: Any

    @classmethod
    def class_name(cls):
        return "Model"

    def _get_query_embedding(self, query):
        return self.vectors.query(query)

    async def _aget_query_embedding(self, query):
        return self.vectors.query(query)

    def _get_text_embedding(self, text):
        return self.vectors.document(text)


class Reranker(BaseNodePostprocessor):
    """A judge's scores, of the best three nodes."""

    judge: Any
    top_n: int = 3

    def _postprocess_nodes(self, nodes, query_bundle=None):
        texts = [node.text for node in nodes]
        for node, score in zip(nodes, self.judge.score(query_bundle.query_str, texts), strict=True):
            node.score = score
        return sorted(nodes, key=lambda node: -node.score)[: self.top_n]


class Driver:
    """LlamaIndex's adapter."""

    wrapper, argument, modules = "TTTEmbedding", "embed_model", (tttembed, postprocessors, retrievers)
    kept = "top_n"

    def __init__(self, folder):
        self.folder = folder

    # The wrapper

    def model(self, vectors=None):
        return Model(vectors=vectors or Vectors())

    def wrap(self, model, offsets, **options):
        return TTTEmbedding(model, offsets=offsets, **options)

    def embed(self, model, text):
        return model.get_query_embedding(text)

    async def aembed(self, model, text):
        return await model.aget_query_embedding(text)

    def bridged(self, model, bridge):
        """A new model before the index of an old one."""
        return tttembed.BridgedEmbedding(model, bridge)

    def documents(self, model, texts):
        return model.get_text_embedding_batch(texts)

    async def adocuments(self, model, texts):
        return await model.aget_text_embedding_batch(texts)

    def learned(self, model, judge, texts, **options):
        """`Learned` around a model and a reranker of the host, what it searches, and what reranks texts."""
        ttt = Learned(model, judge if isinstance(judge, str) else Reranker(judge=judge), **options)
        return ttt, self.build(ttt.embeddings, texts), partial(self.record, ttt.reranker)

    # Indexes

    def build(self, model, texts, kind="simple", postgres=None):
        """An index of documents, each under an id of its own."""
        store = FaissVectorStore(faiss.IndexFlatL2(WIDTH)) if kind == "faiss" else SimpleVectorStore()
        nodes = [TextNode(text=text, id_=f"id {text}") for text in texts]
        return VectorStoreIndex(
            nodes, embed_model=model, storage_context=StorageContext.from_defaults(vector_store=store)
        )

    def hits(self, index, query, k=4):
        return index.as_retriever(similarity_top_k=k).retrieve(query)

    async def ahits(self, index, query, k=4):
        return await index.as_retriever(similarity_top_k=k).aretrieve(query)

    def texts(self, nodes):
        return [node.text for node in nodes]

    def search(self, index, query, k=4):
        return [(node.text, round(float(node.score), 6)) for node in self.hits(index, query, k)]

    def stored(self, index):
        """A function from ids to the vectors in an index."""
        return stored_vectors(index)

    def ids(self, index, k, query="q"):
        return {node.text: node.node_id for node in self.hits(index, query, k)}

    # Judges, logs and words

    def retriever(self, index, model, judge, *, k=4, fetch_k=10, **options):
        return RewardRetriever(index.as_retriever(similarity_top_k=fetch_k), model, judge, top_n=k, **options)

    def ask(self, retriever, query):
        return self.texts(retriever.retrieve(query))

    async def aask(self, retriever, query):
        return self.texts(await retriever.aretrieve(query))

    def tap(self, log, judge, **options):
        """A reranker that records its judge's scores."""
        return RewardPostprocessor(log, judge, **options)

    def record(self, tap, query, texts):
        nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
        return self.texts(tap.postprocess_nodes(nodes, query_str=query))

    async def arecord(self, tap, query, texts):
        nodes = [NodeWithScore(node=TextNode(text=text)) for text in texts]
        return self.texts(await tap.apostprocess_nodes(nodes, query_str=query))

    def observer(self, log, **options):
        handler = RewardEventHandler(log, **options)
        get_dispatcher().add_event_handler(handler)
        return handler

    def off(self, observer):
        """Turn it off: dispatchers keep handlers for ever."""
        observer.enabled = False

    def observe(self, observer, index, query, k=3, task=None):
        """A retrieval that is noted, under the *task* that it names itself."""
        with instrument_tags({"tttembed_task": task}) if task else nullcontext():
            return self.hits(index, query, k)

    async def aobserve(self, observer, index, query, k=3):
        return await self.ahits(index, query, k)

    def sorter(self, model, **options):
        """What sorts nodes by words too."""
        return RescoringPostprocessor(model, **options)

    def likelihood(self, node):
        """How likely a node that was sorted is relevant."""
        return node.score

    def sort(self, sorter, nodes, query):
        return sorter.postprocess_nodes(nodes, query_str=query)

    async def asort(self, sorter, nodes, query):
        return await sorter.apostprocess_nodes(nodes, query_str=query)
