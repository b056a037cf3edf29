"""A component that writes the documents of a query, and a ranker's scores of them, into a store."""

from __future__ import annotations

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from tttembed_store import StoreLog

from tttembed_rag import Known, context
from tttembed_rag.adapting import checked_store, url_of

__all__ = ["TTTRecorder"]


@component
class TTTRecorder:
    """Hands its documents on, and notes them: after a retriever what was shown, after a ranker its scores too.

    A run takes microseconds and never fails for the store; a thread writes. A ranker that keeps the best few shows
    nothing of the others: give it a ``top_k`` as large as its input.

    Args:
        store: The URL of a store, or ``env:NAME`` for a URL in a variable.
        judge: The ranker's name, where ``Document.score`` is its score; empty only observes. Once a run
            says no other source it is declared: `StoreLog.declare`.
        scale: What its scores mean: ``probability``, ``logit``, or ``rubric:LOW,HIGH``.
        task: The task of queries whose run names none; None is the caller's ``with tttembed_rag.context(...)``.
        fingerprint: That of the embedding model, whose document vectors are noted where documents carry them.

    Raises:
        InputError: *store* may not be saved, or there is no such scale.
    """

    def __init__(
        self,
        store: str,
        *,
        judge: str = "",
        scale: str = "probability",
        task: str | None = None,
        fingerprint: str = "",
    ) -> None:
        self.store = checked_store(store)
        self.judge = judge
        self.scale = scale
        self.task = task
        self.fingerprint = fingerprint
        self.log = StoreLog(url_of(store), judge, scale=scale, embedder=fingerprint)

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        documents: list[Document],
        task: str | None = None,
        tenant: str | None = None,
        embedding: list[float] | None = None,
        source: str | None = "",
    ) -> dict[str, Any]:
        """The *documents*, as they came.

        Args:
            query: Its text.
            documents: In the retriever's order, or a ranker's.
            task: Its task; None is that of the component.
            tenant: Whose it is; None is the caller's.
            embedding: Its *base* vector, from the embedder without offsets; None leaves it to whoever knows the model.
            source: Who gave the scores, such as a user who rated the documents; empty is the judge itself, None the
                source of the caller's ``with tttembed_rag.context(..., source=...)``.
        """
        self._note(query, documents, task or self.task, tenant, embedding, source)
        return {"documents": documents}

    def to_dict(self) -> dict[str, Any]:
        """What a saved pipeline keeps."""
        kept: dict[str, Any] = default_to_dict(
            self,
            store=self.store,
            judge=self.judge,
            scale=self.scale,
            task=self.task,
            fingerprint=self.fingerprint,
        )
        return kept

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TTTRecorder:
        """The component that `to_dict` described."""
        made: TTTRecorder = default_from_dict(cls, data)
        return made

    def _note(
        self,
        query: str,
        documents: list[Document],
        task: str | None,
        tenant: str | None,
        embedding: list[float] | None,
        source: str | None,
    ) -> None:
        shown = [doc for doc in documents if doc.content and (not self.judge or doc.score is not None)]
        texts = [doc.content or "" for doc in shown]
        known = Known(vector=embedding, document_vectors=[doc.embedding for doc in shown])
        with context(task=task, tenant=tenant):
            if self.judge:
                if source == "":
                    self.log.declare(type(self).__name__)
                self.log.record(query, texts, [doc.score for doc in shown], task=task, known=known, source=source)
            else:
                self.log.observe(query, texts, task=task, known=known)
