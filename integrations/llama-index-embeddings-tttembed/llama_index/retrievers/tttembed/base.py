"""The whole loop in one retriever: search, judge, record, and search again with the rewards."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager
from llama_index.core.indices import VectorStoreIndex
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.embeddings.tttembed import TTTEmbedding, stored_vectors
from llama_index.embeddings.tttembed.base import SteeredVector
from llama_index.embeddings.tttembed.resolvers import ids_of
from llama_index.postprocessor.tttembed.base import read_text, read_texts

from tttembed_rag import Judge, Known, TextVectors, TwoPass
from tttembed_rag.adapting import (
    FailureLog,
    Log,
    Request,
    adrive,
    ascored,
    checked_judge,
    checked_log,
    checked_rewards,
    drive,
    scored,
)
from tttembed_rag.errors import check_count

logger = logging.getLogger(__name__)


class RewardRetriever(BaseRetriever):
    """The nodes of two searches of *retriever*, in the order that a judge and the search give them.

    The judge scores the nodes of the first search, and the rewards turn the query vector for a second
    search (a few milliseconds of learning). Judged nodes are sorted by the sum of their ranks, by
    reward and in the second search; nodes of the second search alone keep their places between them.
    Nodes carry the scores of their search.

    The query vector is that of the ``QueryBundle`` or of its texts, as HyDE sets them; else the model embeds the query.

    A failure after the first search is logged, one line a minute, and the first search's nodes are returned.

    Args:
        retriever: One that searches with the vector of a ``QueryBundle``, such as
            ``index.as_retriever(similarity_top_k=...)``.
        embed_model: The model of that index, wrapped.
        judge: Scores nodes, while the caller waits.
        log: Keeps its scores; None keeps none. Its judge is declared: `Log.declare`.
        vectors: Gives vectors of judged nodes, and counts their sources. None asks the index of
            *retriever* for them where `stored_vectors` knows how, else the model embeds them again.
        depth: Nodes judged, >= 1. With fewer than *retriever* finds, all of them are first sorted by what verdicts
            taught of similarity and shared words, where a rescorer is published; None judges all.
        top_n: Nodes returned, >= 1.
        source: Who gives the judge's scores: empty is the judge itself, None the source of the caller's
            ``with tttembed_rag.context(..., source=...)``, where each agent judges for itself.
        callback_manager: LlamaIndex's callbacks.

    Raises:
        InputError: *judge* is no judge, the log is for another one, or *depth* or *top_n* is below 1.
    """

    def __init__(
        self,
        retriever: BaseRetriever,
        embed_model: TTTEmbedding,
        judge: Judge,
        *,
        log: Log | None = None,
        vectors: TextVectors | None = None,
        depth: int | None = None,
        top_n: int = 4,
        source: str | None = "",
        callback_manager: CallbackManager | None = None,
    ) -> None:
        checked_judge(judge)
        if log is not None:
            checked_log(log).check_is_for(judge)
            if source == "":
                log.declare(type(self).__name__)
        for name, count in (("depth", depth), ("top_n", top_n)):
            if count is not None:
                check_count(name, count)
        super().__init__(callback_manager=callback_manager)
        self._retriever = retriever
        self._embed_model = embed_model
        self._judge = judge
        self._log = log
        self._depth = depth
        self._top_n = top_n
        self._source = source
        self._failures = FailureLog(logger)
        self.vectors = vectors or TextVectors(stored=_stored_by(retriever))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query, model, (preset, texts) = query_bundle.query_str, self._embed_model, _embedded(query_bundle)
        nodes = drive(
            self._loop.steps(query),
            embed=lambda _: preset or model.base.get_agg_embedding_from_queries(texts),
            search=lambda vector: self._retriever.retrieve(_bundle(query, vector)),
            judge=partial(scored, self._judge, query),
            vectors=lambda nodes: model.document_vectors(self._noted(nodes), vectors=self.vectors),
        )
        return nodes[: self._top_n]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query, model, (preset, texts) = query_bundle.query_str, self._embed_model, _embedded(query_bundle)

        async def embed(_: str) -> list[float]:
            return preset or await model.base.aget_agg_embedding_from_queries(texts)

        nodes = await adrive(
            self._loop.steps(query),
            embed=embed,
            search=lambda vector: self._retriever.aretrieve(_bundle(query, vector)),
            judge=partial(ascored, self._judge, query),
            vectors=lambda nodes: model.adocument_vectors(self._noted(nodes), vectors=self.vectors),
        )
        return nodes[: self._top_n]

    @property
    def _loop(self) -> TwoPass[NodeWithScore]:
        return TwoPass(
            request=self._embed_model.request,
            read=read_text,
            rewards=partial(checked_rewards, self._judge),
            key=lambda node: node.node_id,
            record=self._record,
            logger=self._failures,
            depth=self._depth,
            sorts=self._depth is not None,
        )

    def _noted(self, nodes: Sequence[NodeWithScore]) -> list[str]:
        """Texts of *nodes*, under whose ids the index has their vectors."""
        self.vectors.note(ids_of(nodes))
        return read_texts(nodes)

    def _record(
        self, request: Request, base: list[float], nodes: list[NodeWithScore], scores: Sequence[float | None]
    ) -> None:
        if self._log is not None:
            texts, known = read_texts(nodes), Known(base)
            self._log.record(request.query, texts, scores, task=request.task, known=known, source=self._source)


def _embedded(bundle: QueryBundle) -> tuple[list[float], list[str]]:
    """The base vector that a query came with, none of one that was steered already, and what is embedded without it."""
    vector = bundle.embedding
    is_base = vector is not None and not isinstance(vector, SteeredVector)
    return list(vector or ()) if is_base else [], bundle.embedding_strs or [bundle.query_str]


def _bundle(query: str, vector: list[float]) -> QueryBundle:
    """A bundle for one search; made anew, because retrievers write the vector into the bundle they get."""
    return QueryBundle(query, embedding=vector)


def _stored_by(retriever: BaseRetriever) -> Callable[[list[str]], Mapping[str, Any]] | None:
    """How the index of a vector retriever hands out its vectors; None for any other retriever."""
    index = getattr(retriever, "_index", None)
    return stored_vectors(index) if isinstance(index, VectorStoreIndex) else None
