"""The whole loop in one retriever: search, judge, record, and search again with what the judge said."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices import VectorStoreIndex
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.embeddings.tttembed import TTTEmbedding, stored_vectors
from llama_index.embeddings.tttembed.resolvers import ids_of
from llama_index.postprocessor.tttembed.base import read_texts

from tttembed_rag import InputError
from tttembed_rag.capture import Known, Log, TextVectors
from tttembed_rag.judges import Judge, Scores, rewards_of
from tttembed_rag.serving import FirstPass

logger = logging.getLogger(__name__)


class RewardRetriever(BaseRetriever):
    """Nodes in the order a judge and the search give them, among what two searches of *retriever* find.

    The judge scores what the first search finds, and the rewards turn the query vector for a second
    search (a few milliseconds of learning). Judged nodes are sorted by the sum of their ranks, by
    reward and in the second search; what only that found keeps its place between them.
    Nodes carry the scores of their search.

    Whatever fails after the first search is logged, and the first search's nodes are returned.

    Args:
        retriever: One that searches with the vector of a ``QueryBundle``, such as
            ``index.as_retriever(similarity_top_k=...)``.

        embed_model: The model of that index, wrapped.

        judge: Who scores nodes, while the caller waits.

        log: Where its scores go; None keeps none.

        vectors: Where vectors of judged nodes come from; its counts say which way. None asks the index
            of *retriever* for them where `stored_vectors` knows how, else the model embeds them again.

        top_n: Nodes returned, >= 1.

        callback_manager: LlamaIndex's callbacks.

    Raises:
        InputError: The log is for another judge, or *top_n* is below 1.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        embed_model: TTTEmbedding,
        judge: Judge,
        *,
        log: Log | None = None,
        vectors: TextVectors | None = None,
        top_n: int = 4,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        if log is not None:
            log.check_is_for(judge)
        if top_n < 1:
            raise InputError(f"top_n: expected at least 1, got {top_n}")
        super().__init__(callback_manager=callback_manager)
        self._retriever = retriever
        self._embed_model = embed_model
        self._judge = judge
        self._log = log
        self._top_n = top_n
        self.vectors = vectors or TextVectors(stored=_stored_by(retriever))

    # Bundles are made anew: retrievers write the vector into the one they get.
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = query_bundle.query_str
        base = self._embed_model.embed_query_base(query)
        vector = self._embed_model.steered(query, base)
        found = self._retriever.retrieve(QueryBundle(query, embedding=vector))
        try:
            texts = read_texts(found)
            first = self._first_pass(query, base, found, self._judge.score(query, texts))
            if not first.informative:
                return first.reranked()[: self._top_n]
            texts = read_texts(first.judged)
            judged = self._embed_model.document_vectors(texts, vectors=self.vectors)
            turned = first.turned(vector, judged)
            again = self._retriever.retrieve(QueryBundle(query, embedding=turned))
            return first.merged(again)[: self._top_n]
        except Exception:
            logger.exception("%r: served as first found", query)
            return found[: self._top_n]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = query_bundle.query_str
        base = await self._embed_model.aembed_query_base(query)
        vector = self._embed_model.steered(query, base)
        found = await self._retriever.aretrieve(QueryBundle(query, embedding=vector))
        try:
            texts = read_texts(found)
            first = self._first_pass(query, base, found, await self._judge.ascore(query, texts))
            if not first.informative:
                return first.reranked()[: self._top_n]
            texts = read_texts(first.judged)
            judged = await self._embed_model.adocument_vectors(texts, vectors=self.vectors)
            turned = first.turned(vector, judged)
            again = await self._retriever.aretrieve(QueryBundle(query, embedding=turned))
            return first.merged(again)[: self._top_n]
        except Exception:
            logger.exception("%r: served as first found", query)
            return found[: self._top_n]

    def _first_pass(
        self, query: str, base: list[float], found: list[NodeWithScore], scores: Scores
    ) -> FirstPass[NodeWithScore]:
        rewards = rewards_of(self._judge, scores)
        self.vectors.note(ids_of(found))
        if self._log is not None:
            task = self._embed_model.task_of(query, base)
            self._log.record(query, read_texts(found), scores, task=task, known=Known(base))
        return FirstPass(found, rewards, key=lambda one: one.node_id)


def _stored_by(retriever: BaseRetriever) -> Callable[[list[str]], Mapping[str, Any]] | None:
    """How the index of a vector retriever hands out its vectors; None for any other retriever."""
    index = getattr(retriever, "_index", None)
    return stored_vectors(index) if isinstance(index, VectorStoreIndex) else None
