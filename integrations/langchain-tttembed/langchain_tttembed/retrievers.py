"""The whole loop in one retriever: search, judge, record, and search again with what the judge said."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, SkipValidation, model_validator

from langchain_tttembed.capture import METADATA_KEY
from langchain_tttembed.embeddings import TTTEmbeddings
from langchain_tttembed.resolvers import ids_of, stored_vectors
from tttembed_rag import InputError, scope
from tttembed_rag.capture import Known, Log, TextVectors
from tttembed_rag.judges import Judge, Scores, rewards_of
from tttembed_rag.serving import FirstPass

logger = logging.getLogger(__name__)


class RewardRetriever(BaseRetriever):
    """Documents in the order a judge and the search give them, among what two searches find.

    The first search finds *depth* documents, the judge scores them, and their rewards turn the query
    vector for a second search (a few milliseconds of learning). Judged documents are sorted by the
    sum of their ranks, by reward and in the second search; what only that found keeps its place
    between them. Without *second_pass* the first search is sorted by reward alone.

    Whatever fails after the first search is logged, and the first search's documents are returned.
    The task is the ``tttembed_scope`` of the call's metadata, else as in `TTTEmbeddings`.

    Attributes:
        vectorstore: Where to search; it must search by vector.

        embeddings: The model of that store, wrapped.

        judge: Who scores documents, while the caller waits.

        log: Where its scores go; None keeps none.

        vectors: Where vectors of judged documents come from; its counts say which way. None asks
            *vectorstore* for them where `stored_vectors` knows how, else the model embeds them again.

        k: Documents returned.

        depth: Documents judged.

        second_pass: Whether to search again.

        search_kwargs: Passed to both searches, such as a filter.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    vectorstore: VectorStore
    embeddings: TTTEmbeddings
    judge: Annotated[Judge, SkipValidation]
    log: Log | None = None
    vectors: TextVectors | None = None
    k: int = Field(default=4, ge=1)
    depth: int = Field(default=10, ge=1)
    second_pass: bool = True
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        store = type(self.vectorstore)
        if store.similarity_search_by_vector is VectorStore.similarity_search_by_vector:
            raise InputError(f"vectorstore: expected one that searches by vector, got {store.__name__}")
        if self.log is not None:
            self.log.check_is_for(self.judge)
        if self.vectors is None and (stored := stored_vectors(self.vectorstore)):
            self.vectors = TextVectors(stored=stored)
        return self

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        wanted, many = k or self.k, max(k or self.k, self.depth)
        with _scope_of(run_manager.metadata):
            base = self.embeddings.embed_query_base(query)
            vector = self.embeddings.steered(query, base)
            found = self.vectorstore.similarity_search_by_vector(vector, k=many, **self.search_kwargs)
            try:
                texts = _texts(found[: self.depth])
                first = self._first_pass(query, base, found, self.judge.score(query, texts))
                if not (self.second_pass and first.informative):
                    return first.reranked()[:wanted]
                judged = self.embeddings.document_vectors(_texts(first.judged), vectors=self.vectors)
                turned = first.turned(vector, judged)
                again = self.vectorstore.similarity_search_by_vector(turned, k=many, **self.search_kwargs)
                return first.merged(again)[:wanted]
            except Exception:
                logger.exception("%r: served as first found", query)
                return found[:wanted]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        wanted, many = k or self.k, max(k or self.k, self.depth)
        with _scope_of(run_manager.metadata):
            base = await self.embeddings.aembed_query_base(query)
            vector = self.embeddings.steered(query, base)
            found = await self.vectorstore.asimilarity_search_by_vector(vector, k=many, **self.search_kwargs)
            try:
                texts = _texts(found[: self.depth])
                first = self._first_pass(query, base, found, await self.judge.ascore(query, texts))
                if not (self.second_pass and first.informative):
                    return first.reranked()[:wanted]
                judged = await self.embeddings.adocument_vectors(_texts(first.judged), vectors=self.vectors)
                turned = first.turned(vector, judged)
                again = await self.vectorstore.asimilarity_search_by_vector(turned, k=many, **self.search_kwargs)
                return first.merged(again)[:wanted]
            except Exception:
                logger.exception("%r: served as first found", query)
                return found[:wanted]

    def _first_pass(self, query: str, base: list[float], found: list[Document], scores: Scores) -> FirstPass[Document]:
        rewards = rewards_of(self.judge, scores)
        shown = found[: self.depth]
        if self.vectors is not None:
            self.vectors.note(ids_of(shown))
        if self.log is not None:
            task = self.embeddings.task_of(query, base)
            self.log.record(query, _texts(shown), scores, task=task, known=Known(base))
        return FirstPass(found, rewards, key=lambda one: one.id or one.page_content)


def _texts(documents: Sequence[Document]) -> list[str]:
    return [one.page_content for one in documents]


def _scope_of(metadata: dict[str, Any]) -> AbstractContextManager[None]:
    named = metadata.get(METADATA_KEY)
    return scope(named) if isinstance(named, str) else nullcontext()
