"""`Learned` for Haystack: a text embedder and a ranker in, one sentence out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from haystack import Document, component
from haystack_integrations.components.embedders.tttembed.text_embedder import TTTTextEmbedder
from haystack_integrations.components.rankers.tttembed.ranker import Ranking

import tttembed_rag
from tttembed_rag import Steering


class Learned(tttembed_rag.Learned):
    """Your text embedder and your ranker, as `tttembed_rag.Learned`: what stands where they stood, and learns.

    *embeddings* are a text embedder, or a pair of it and the document embedder, where these do not embed alike;
    `embeddings` is a `TTTTextEmbedder`. *reranker* may be a ranker; `reranker` is one, which scores all documents and
    keeps as many as yours. `ask` takes a retriever that takes ``query_embedding``. A pipeline is saved with *store*.
    """

    def _embedding(self, model: Any) -> Any:
        return _Pair(*_both(model))

    def _wrapped(self, model: Any) -> TTTTextEmbedder:
        wrapped = TTTTextEmbedder(_both(model)[0], store=self._store or "memory")
        wrapped._steering = Steering(self.live, self._task)  # noqa: SLF001 - of this distribution
        return wrapped

    def _recorded(self, reranker: Any) -> Any:
        return _Ranker(self._scored, getattr(reranker, "top_k", None))

    def _scorer(self, reranker: Any) -> Callable[[str, list[str]], Sequence[float | None]] | None:
        return Ranking(reranker, "", "probability").score if hasattr(reranker, "run") else super()._scorer(reranker)

    def _searched(self, search: Any) -> Callable[[str], Sequence[str]]:
        if not hasattr(search, "run"):
            return super()._searched(search)

        def found(question: str) -> list[str]:
            vector = self.embeddings.run(text=question)["embedding"]
            return [shown.content or "" for shown in search.run(query_embedding=vector, top_k=self._k)["documents"]]

        return found


class _Pair:
    """A text embedder and a document embedder, or the first for both, with the methods of an embedding model."""

    def __init__(self, text: Any, document: Any) -> None:
        self._text, self._document = text, document
        self.model = getattr(text, "model", None)

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query."""
        return self._text.run(text=text)["embedding"]  # type: ignore[no-any-return]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """The vectors of documents."""
        if self._document is self._text:
            return [self.embed_query(text) for text in texts]
        shown = [Document(content=text) for text in texts]
        return [document.embedding for document in self._document.run(documents=shown)["documents"]]


@component
class _Ranker:
    """Documents in the order of their scores, the best *top_k*; one without a score stays behind all others."""

    def __init__(self, score: Callable[[str, list[str]], Sequence[float | None]], top_k: int | None) -> None:
        self._score, self._top_k = score, top_k

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """The *documents*, scored, sorted and cut."""
        scores = self._score(query, [shown.content or "" for shown in documents])
        ranked = [replace(shown, score=score) for shown, score in zip(documents, scores, strict=True)]
        ranked.sort(key=lambda shown: -inf if shown.score is None else shown.score, reverse=True)
        return {"documents": ranked[: top_k or self._top_k]}


def _both(model: Any) -> tuple[Any, Any]:
    """A text embedder and a document embedder."""
    return model if isinstance(model, tuple) else (model, model)
