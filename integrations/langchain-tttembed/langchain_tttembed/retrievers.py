"""The whole loop, with a judge and a second search; and one search, sorted by what verdicts taught of words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated, Any, Self

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore
from pydantic import ConfigDict, Field, PrivateAttr, SkipValidation, model_validator

from langchain_tttembed.capture import METADATA_KEY
from langchain_tttembed.embeddings import TTTEmbeddings
from langchain_tttembed.resolvers import ids_of, stored_vectors
from tttembed_rag import InputError, Judge, Known, TextVectors, TwoPass, context
from tttembed_rag.adapting import (
    FailureLog,
    Log,
    Request,
    Sorter,
    adrive,
    ascored,
    checked_judge,
    checked_rewards,
    drive,
    scored,
)
from tttembed_rag.serving import Cascade

logger = logging.getLogger(__name__)


class RewardRetriever(BaseRetriever):
    """The documents of two searches, in the order that a judge and the search give them.

    The first search finds *depth* documents, the judge scores them, and their rewards turn the query
    vector for a second search (a few milliseconds of learning). Judged documents are sorted by the
    sum of their ranks, by reward and in the second search; documents of the second search alone keep
    their places between them. Without *second_pass* the first search is sorted by reward alone.

    A failure after the first search is logged, one line a minute, and the first search's documents are returned.
    The task is the ``tttembed_task`` of the call's metadata, else as in `TTTEmbeddings`.

    Attributes:
        vectorstore: Where to search; it must search by vector.
        embeddings: The model of that store, wrapped.
        judge: Scores documents, while the caller waits.
        log: Keeps its scores; None keeps none. Its judge is declared: `Log.declare`.
        vectors: Gives vectors of judged documents, and counts their sources. None asks *vectorstore* for
            them where `stored_vectors` knows how, else the model embeds them again.
        k: Documents returned.
        depth: Documents judged.
        fetch_k: Documents that a search finds. With more than *depth* they are sorted by what verdicts taught of
            similarity and shared words, where a rescorer is published, before the judge reads. Their vectors are looked
            up as those of judged documents are: a store that gives none has all of them embedded once. None finds as
            many as are returned or judged, and sorts nothing.
        second_pass: Whether to search again.
        search_kwargs: Passed to both searches, such as a filter.
        source: Who gives the judge's scores: empty is the judge itself, None the source of the caller's
            ``with tttembed_rag.context(..., source=...)``, where each agent judges for itself.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    vectorstore: VectorStore
    embeddings: TTTEmbeddings
    judge: Annotated[Judge, SkipValidation]
    log: Log | None = None
    vectors: TextVectors | None = None
    k: int = Field(default=4, ge=1)
    depth: int = Field(default=10, ge=1)
    fetch_k: int | None = Field(default=None, ge=1)
    second_pass: bool = True
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    source: str | None = ""
    _failures: FailureLog = PrivateAttr(default_factory=lambda: FailureLog(logger))

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        store = type(self.vectorstore)
        if store.similarity_search_by_vector is VectorStore.similarity_search_by_vector:
            raise InputError(f"vectorstore: expected one that searches by vector, got {store.__name__}")
        checked_judge(self.judge)
        if self.log is not None:
            self.log.check_is_for(self.judge)
            if self.source == "":
                self.log.declare(type(self).__name__)
        if self.vectors is None and (stored := stored_vectors(self.vectorstore)):
            self.vectors = TextVectors(stored=stored)
        return self

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        with _context_of(run_manager.metadata):
            documents = drive(
                self._loop.steps(query),
                embed=self.embeddings.embed_query_base,
                search=partial(self.vectorstore.similarity_search_by_vector, k=self._many(k), **self.search_kwargs),
                judge=partial(scored, self.judge, query),
                vectors=lambda some: self.embeddings.document_vectors(_noted(some, self.vectors), vectors=self.vectors),
            )
        return documents[: k or self.k]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        vectors = self.embeddings.adocument_vectors
        with _context_of(run_manager.metadata):
            documents = await adrive(
                self._loop.steps(query),
                embed=self.embeddings.aembed_query_base,
                search=partial(self.vectorstore.asimilarity_search_by_vector, k=self._many(k), **self.search_kwargs),
                judge=partial(ascored, self.judge, query),
                vectors=lambda some: vectors(_noted(some, self.vectors), vectors=self.vectors),
            )
        return documents[: k or self.k]

    def _many(self, k: int | None) -> int:
        """Documents that each search finds: as many as are returned or judged at least."""
        return max(k or self.k, self.depth, self.fetch_k or 0)

    @property
    def _loop(self) -> TwoPass[Document]:
        return TwoPass(
            request=self.embeddings.request,
            read=lambda document: document.page_content,
            rewards=partial(checked_rewards, self.judge),
            key=lambda document: document.id or document.page_content,
            record=self._record,
            logger=self._failures,
            depth=self.depth,
            sorts=self.fetch_k is not None,
            second_pass=self.second_pass,
        )

    def _record(
        self, request: Request, base: list[float], documents: list[Document], scores: Sequence[float | None]
    ) -> None:
        if self.log is not None:
            texts = [document.page_content for document in documents]
            self.log.record(request.query, texts, scores, task=request.task, known=Known(base), source=self.source)


class RescoringRetriever(BaseRetriever):
    """One search with the offset, and its documents sorted by what verdicts taught of similarity and shared words.

    The version that finds them sorts them, also where another one is published meanwhile, unless the store embeds in a
    thread of its own that does not carry the caller's context. Nothing else is embedded: the words of *depth* documents
    are counted, in a millisecond or two. Where no rescorer is published for the task, the documents come as the store
    has them. No judge is asked but by a *cascade*. The task is the ``tttembed_task`` of the call's metadata, else as in
    `TTTEmbeddings`.

    Attributes:
        vectorstore: Where to search; it gives scores, and embeds queries with *embeddings*.
        embeddings: The model of that store, wrapped.
        k: Documents returned.
        depth: Documents found and sorted.
        similarity: Score of the store to cosine similarity, such as ``lambda distance: 1 - distance / 2`` for the
            squared distances of FAISS; None where scores are cosines.
        search_kwargs: Passed to the search, such as a filter.
        cascade: A reranker behind it, asked only where its answer may change the list; None asks none.
        floor: Share of requests that may lose an answer, such as .05. Then there is no document where nothing fits, and
            the others say in their metadata how likely they are relevant, as *relevance_score*: see `Offsets.floor`.
            None gives what was found.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    vectorstore: VectorStore
    embeddings: TTTEmbeddings
    k: int = Field(default=4, ge=1)
    depth: int = Field(default=50, ge=1)
    similarity: Callable[[float], float] | None = None
    search_kwargs: dict[str, Any] = Field(default_factory=dict)
    cascade: Cascade | None = None
    floor: float | None = Field(default=None, gt=0, lt=1)

    @model_validator(mode="after")
    def _check_store(self) -> Self:
        asks = self.vectorstore.embeddings
        if type(asks) is type(self.embeddings.base):
            raise InputError(
                f"vectorstore: expected one that embeds queries with *embeddings*, got one with {type(asks).__name__}"
            )
        return self

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        with _context_of(run_manager.metadata):
            count = max(k or self.k, self.depth)
            with self.embeddings.searching(query) as request:
                pairs = self.vectorstore.similarity_search_with_score(query, k=count, **self.search_kwargs)
            documents, scores = [document for document, _ in pairs], [score for _, score in pairs]
            order = self._sorter.order(request, _noted(documents, None), scores)
            return _ordered(documents, order)[: k or self.k]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        with _context_of(run_manager.metadata):
            count = max(k or self.k, self.depth)
            with self.embeddings.searching(query) as request:
                pairs = await self.vectorstore.asimilarity_search_with_score(query, k=count, **self.search_kwargs)
            documents, scores = [document for document, _ in pairs], [score for _, score in pairs]
            order = await self._sorter.aorder(request, _noted(documents, None), scores)
            return _ordered(documents, order)[: k or self.k]

    @property
    def _sorter(self) -> Sorter:
        return Sorter(self.cascade, self.floor, self.similarity)


class RescoringCompressor(BaseDocumentCompressor):
    """Retrieved documents sorted by what verdicts taught of similarity and shared words, for a chain of compressors.

    Retrieve 20 to 100 documents for it from a store that is searched with *embeddings*. Documents carry no scores, so
    their vectors are taken from where *vectors* finds them, and the query is embedded once more: `RescoringRetriever`
    needs neither. Where no rescorer is published for the task, nothing is embedded and the documents stand as they
    came, as they do where anything fails, or where another order than that of similarity came.

    Attributes:
        embeddings: The model of the store, wrapped.
        vectors: Gives vectors of documents: ``TextVectors(stored=stored_vectors(store))``; None embeds them again.
        top_n: Documents kept; None keeps all.
        cascade: A reranker behind it, asked only where its answer may change the list; None asks none.
        floor: As that of `RescoringRetriever`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    embeddings: TTTEmbeddings
    vectors: TextVectors | None = None
    top_n: int | None = Field(default=None, ge=1)
    cascade: Cascade | None = None
    floor: float | None = Field(default=None, gt=0, lt=1)
    _failures: FailureLog = PrivateAttr(default_factory=lambda: FailureLog(logger))

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The first *top_n* documents, best first."""
        documents = list(documents)
        with _context_of(getattr(callbacks, "metadata", {})):
            try:
                request, texts = self.embeddings.request(query), _noted(documents, self.vectors)
                scores: list[float | None] = [None] * len(documents)
                if documents and request.needs_scores:
                    request.vector(self.embeddings.embed_query_base(query))
                    scores[:] = request.cosines(self.embeddings.document_vectors(texts, vectors=self.vectors))
                documents = _ordered(documents, Sorter(self.cascade, self.floor).order(request, texts, scores))
            except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
                self._failures.exception("%d documents stand as they came", len(documents))
            return documents[: self.top_n]

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """The same, awaiting the model and the reranker."""
        documents = list(documents)
        with _context_of(getattr(callbacks, "metadata", {})):
            try:
                request, texts = self.embeddings.request(query), _noted(documents, self.vectors)
                scores: list[float | None] = [None] * len(documents)
                if documents and request.needs_scores:
                    request.vector(await self.embeddings.aembed_query_base(query))
                    scores[:] = request.cosines(await self.embeddings.adocument_vectors(texts, vectors=self.vectors))
                order = await Sorter(self.cascade, self.floor).aorder(request, texts, scores)
                documents = _ordered(documents, order)
            except Exception:  # noqa: BLE001 - whatever it is, it is logged, and the request goes on
                self._failures.exception("%d documents stand as they came", len(documents))
            return documents[: self.top_n]


def _ordered(documents: Sequence[Document], order: Sequence[tuple[int, float | None]]) -> list[Document]:
    """The *documents* in their *order*, with the relevance of each where that is known."""
    ordered = []
    for place, relevance in order:
        document = documents[place]
        if relevance is not None:
            metadata = {**document.metadata, "relevance_score": relevance}
            document = document.model_copy(update={"metadata": metadata})
        ordered.append(document)
    return ordered


def _noted(documents: Sequence[Document], vectors: TextVectors | None) -> list[str]:
    """Texts of *documents*, under whose ids the store has their vectors."""
    if vectors is not None:
        vectors.note(ids_of(documents))
    return [document.page_content for document in documents]


def _context_of(metadata: dict[str, Any]) -> AbstractContextManager[None]:
    named = metadata.get(METADATA_KEY)
    return context(task=named) if isinstance(named, str) else nullcontext()
