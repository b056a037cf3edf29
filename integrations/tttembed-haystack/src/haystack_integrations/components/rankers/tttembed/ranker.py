"""A ranker that asks no model: what it knows was learned from the verdicts of one that was asked."""

from __future__ import annotations

from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict

from tttembed_rag import InputError, context
from tttembed_rag.serving import Steering
from tttembed_rag.serving.saved import checked_store, steering_of

__all__ = ["TTTRanker"]


@component
class TTTRanker:
    """Documents sorted by similarity and by the words that they share with the query, as verdicts weigh them.

    It stands behind a retriever that finds 20 to 100 documents with the vector of a `TTTTextEmbedder` of the same
    store, with cosine similarities as scores. Where no rescorer is published for the task, they stay as they came.

    Args:
        store: Where it comes from: the URL of a store, ``env:NAME`` for a URL in a variable, or an offsets file.

        top_k: Documents kept, >= 1.

        task: The task of queries whose run names none; None is the caller's ``with tttembed_rag.context(...)``.

        tenant: Whose is used; None is the caller's.

        fingerprint: That of the embedding model, as in `TTTTextEmbedder`.

    Raises:
        InputError: *store* may not be saved, or *top_k* is below 1.
    """

    def __init__(
        self, *, store: str, top_k: int = 10, task: str | None = None, tenant: str | None = None, fingerprint: str = ""
    ) -> None:
        if top_k < 1:
            raise InputError(f"top_k: expected at least 1, got {top_k}")
        self.store = checked_store(store)
        self.top_k = top_k
        self.task = task
        self.tenant = tenant
        self.fingerprint = fingerprint
        self._steering: Steering | None = None

    def warm_up(self) -> None:
        """Read what was learned."""
        self._ready()

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        documents: list[Document],
        task: str | None = None,
        tenant: str | None = None,
        top_k: int | None = None,
    ) -> dict[str, Any]:
        """The *documents*, sorted and cut; their scores are not changed.

        Args:
            query: Its text.

            documents: In the retriever's order, with its scores.

            task: Its task; None is that of the component.

            tenant: Whose it is; None is that of the component.

            top_k: Documents kept; None is that of the component.
        """
        steering, named = self._ready(), task if task is not None else self.task
        if named is not None:
            steering = steering.for_task(named)
        with context(tenant=tenant):
            order = steering.order(query, [one.content or "" for one in documents], [one.score for one in documents])
        return {"documents": [documents[place] for place in order[: top_k or self.top_k]]}

    def to_dict(self) -> dict[str, Any]:
        """What a saved pipeline keeps."""
        settings = {name: getattr(self, name) for name in ("store", "top_k", "task", "tenant", "fingerprint")}
        kept: dict[str, Any] = default_to_dict(self, **settings)
        return kept

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TTTRanker:
        """The component that `to_dict` described."""
        made: TTTRanker = default_from_dict(cls, data)
        return made

    def _ready(self) -> Steering:
        if self._steering is None:
            self._steering = steering_of(self.store, tenant=self.tenant, embedder=self.fingerprint)
        return self._steering
