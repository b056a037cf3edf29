"""`Learned` for LlamaIndex: an embedding model and a reranker in, one sentence out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.indices.base import BaseIndex
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.tttembed.base import TTTEmbedding
from llama_index.postprocessor.tttembed.base import RewardPostprocessor, read_texts
from pydantic import PrivateAttr

import tttembed_rag


class Learned(tttembed_rag.Learned):
    """Your embedding model and your reranker, as `tttembed_rag.Learned`: what stands where they stood, and learns.

    *embeddings* are a ``BaseEmbedding`` too; `embeddings` is one, a `TTTEmbedding`. *reranker* may be a node
    postprocessor that scores nodes; `reranker` is one, which scores all nodes and keeps as many as yours. `ask` takes a
    retriever or an index.
    """

    def _wrapped(self, model: Any) -> TTTEmbedding:
        own = model if isinstance(model, BaseEmbedding) else _Model(self._embedder)
        return TTTEmbedding(own, offsets=self.live, task=self._task)

    def _recorded(self, reranker: Any) -> RewardPostprocessor:
        top_n = getattr(reranker, "top_n", None)
        return RewardPostprocessor(self.log, self._judge, top_n=top_n, task=self.embeddings)

    def _scorer(self, reranker: Any) -> Callable[[str, list[str]], Sequence[float | None]] | None:
        if not isinstance(reranker, BaseNodePostprocessor):
            return super()._scorer(reranker)
        return partial(_postprocessed, reranker)

    def _searched(self, search: Any) -> Callable[[str], Sequence[str]]:
        if isinstance(search, BaseIndex):
            search = search.as_retriever(similarity_top_k=self._k)
        if isinstance(search, BaseRetriever):
            return lambda question: read_texts(search.retrieve(question))
        return super()._searched(search)


class _Model(BaseEmbedding):
    """An embedder of tttembed-rag as a model of LlamaIndex."""

    _embedder: Any = PrivateAttr()

    def __init__(self, embedder: Any) -> None:
        super().__init__(model_name=embedder.fingerprint)
        self._embedder = embedder

    def _get_query_embedding(self, query: str) -> Embedding:
        return self._embedder.embed_queries([query])[0].tolist()  # type: ignore[no-any-return]

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._embedder.embed_documents([text])[0].tolist()  # type: ignore[no-any-return]

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return self._embedder.embed_documents(texts).tolist()  # type: ignore[no-any-return]


def _postprocessed(reranker: BaseNodePostprocessor, query: str, texts: list[str]) -> list[float | None]:
    """The scores that a postprocessor gives *texts*, in order; None for one that it leaves out."""
    if "top_n" in type(reranker).model_fields:
        reranker = reranker.model_copy(update={"top_n": len(texts)})
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(place))) for place, text in enumerate(texts)]
    scores = {node.node_id: node.score for node in reranker.postprocess_nodes(nodes, query_str=query)}
    return [scores.get(str(place)) for place in range(len(texts))]
