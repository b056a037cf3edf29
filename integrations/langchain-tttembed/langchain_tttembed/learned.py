"""`Learned` for LangChain: embeddings and a reranker in, one sentence out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from math import inf
from typing import Any

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import VectorStore

import tttembed_rag
from langchain_tttembed.capture import RecordingCompressor, RecordingCrossEncoder
from langchain_tttembed.embeddings import TTTEmbeddings
from tttembed_rag.adapting import scored


class Learned(tttembed_rag.Learned):
    """Your embeddings and your reranker, as `tttembed_rag.Learned`: what stands where they stood, and learns.

    *embeddings* are an ``Embeddings`` of LangChain too; `embeddings` is one, a `TTTEmbeddings`. *reranker* may be a
    ``BaseCrossEncoder``, then `reranker` is one, or a compressor, then `reranker` is a compressor. Of a compressor
    with a cross encoder as its ``model`` all scores are kept, of others those of the documents that it leaves.
    `ask` takes a retriever or a vector store.
    """

    def _wrapped(self, model: Any) -> TTTEmbeddings:
        own = model if isinstance(model, Embeddings) else _Vectors(self._embedder)
        return TTTEmbeddings(own, offsets=self.live, task=self._task)

    def _recorded(self, reranker: Any) -> Any:
        wrap = partial(RecordingCrossEncoder, log=self.log, task=self.embeddings)
        if isinstance(reranker, BaseDocumentCompressor):
            if isinstance(model := getattr(reranker, "model", None), BaseCrossEncoder):
                return reranker.model_copy(update={"model": wrap(model)})
            return RecordingCompressor(compressor=reranker, log=self.log, task=self.embeddings)
        return wrap(reranker if isinstance(reranker, BaseCrossEncoder) else _Scores(partial(scored, self._judge)))

    def _scorer(self, reranker: Any) -> Callable[[str, list[str]], Sequence[float | None]] | None:
        model = getattr(reranker, "model", None) if isinstance(reranker, BaseDocumentCompressor) else reranker
        if isinstance(model, BaseCrossEncoder):
            return lambda query, texts: model.score([(query, text) for text in texts])
        if isinstance(reranker, BaseDocumentCompressor):
            return partial(_compressed, reranker)
        return super()._scorer(reranker)

    def _searched(self, search: Any) -> Callable[[str], Sequence[str]]:
        if isinstance(search, VectorStore):
            search = search.as_retriever(search_kwargs={"k": self._k})
        if isinstance(search, BaseRetriever):
            return lambda question: [document.page_content for document in search.invoke(question)]
        return super()._searched(search)


class _Vectors(Embeddings):
    """An embedder of tttembed-rag as embeddings of LangChain."""

    def __init__(self, embedder: Any) -> None:
        self._embedder = embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of documents."""
        return [] if not texts else self._embedder.embed_documents(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self._embedder.embed_queries([text])[0].tolist()  # type: ignore[no-any-return]


class _Scores(BaseCrossEncoder):
    """A judge of tttembed-rag as a cross encoder of LangChain; what it did not judge scores lowest."""

    def __init__(self, score: Callable[[str, list[str]], Sequence[float | None]]) -> None:
        self._score = score

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        """The scores of pairs, query by query."""
        lists = groupby(text_pairs, lambda pair: pair[0])
        scores = [self._score(query, [text for _, text in pairs]) for query, pairs in lists]
        return [-inf if score is None else score for of_query in scores for score in of_query]


def _compressed(compressor: BaseDocumentCompressor, query: str, texts: list[str]) -> list[float | None]:
    """The scores of the documents that a *compressor* leaves, by their place among *texts*."""
    shown = [Document(text, metadata={"place": place}) for place, text in enumerate(texts)]
    left = {document.metadata["place"]: document for document in compressor.compress_documents(shown, query)}
    return [left[place].metadata.get("relevance_score") if place in left else None for place in range(len(texts))]
