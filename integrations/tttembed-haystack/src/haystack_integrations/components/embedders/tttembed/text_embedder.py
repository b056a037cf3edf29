"""A text embedder around any other: Haystack embeds queries with text embedders, and documents with others."""

from __future__ import annotations

import asyncio
from typing import Any

from haystack import component, default_from_dict, default_to_dict
from haystack.components.embedders.types import TextEmbedder

from tttembed_rag import InputError, Steering, context
from tttembed_rag.adapting import checked_store, steering_of

__all__ = ["TTTTextEmbedder"]


@component
class TTTTextEmbedder:
    """The wrapped text embedder, with an offset added to its vector; document embedders are left as they are.

    A pipeline that is saved keeps the wrapped embedder, the name of the store and the task, never a vector.

    Args:
        embedder: The text embedder of queries.
        store: Where offsets come from: the URL of a store, ``env:NAME`` for a URL in a variable, or an offsets file.
        task: The task of queries whose run names none; None is the caller's ``with tttembed_rag.context(...)``.
        tenant: Whose offsets are served; None is the caller's.
        fingerprint: That of the embedding model; offsets for another one are not served. Empty does not look.

    Raises:
        InputError: *embedder* has offsets already, or *store* may not be saved.
    """

    def __init__(
        self,
        embedder: TextEmbedder,
        *,
        store: str,
        task: str | None = None,
        tenant: str | None = None,
        fingerprint: str = "",
    ) -> None:
        if isinstance(embedder, TTTTextEmbedder):
            raise InputError("embedder: expected one without offsets, got TTTTextEmbedder; pass its .embedder")
        self.embedder = embedder
        self.store = checked_store(store)
        self.task = task
        self.tenant = tenant
        self.fingerprint = fingerprint
        self._steering: Steering | None = None

    def warm_up(self) -> None:
        """Load the wrapped model, and read the offsets; a StoreError where the file of a store is not there."""
        if hasattr(self.embedder, "warm_up"):
            self.embedder.warm_up()
        self._ready()

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    def run(
        self, text: str, task: str | None = None, tenant: str | None = None, query_id: str | None = None
    ) -> dict[str, Any]:
        """What the wrapped embedder gives, its ``embedding`` with the offset.

        Args:
            text: The query.
            task: Its task; None is that of the component.
            tenant: Whose it is; None is that of the component.
            query_id: The id it was recorded under; None finds it by its text.
        """
        return self._steered(self.embedder.run(text=text), text, task, tenant, query_id)

    @component.output_types(embedding=list[float], meta=dict[str, Any])
    async def run_async(
        self, text: str, task: str | None = None, tenant: str | None = None, query_id: str | None = None
    ) -> dict[str, Any]:
        """The same from the wrapped embedder's own ``run_async``, or from ``run`` in a thread."""
        if hasattr(self.embedder, "run_async"):
            result = await self.embedder.run_async(text=text)
        else:
            result = await asyncio.to_thread(self.embedder.run, text=text)
        return self._steered(result, text, task, tenant, query_id)

    def to_dict(self) -> dict[str, Any]:
        """What a saved pipeline keeps."""
        kept: dict[str, Any] = default_to_dict(
            self,
            embedder=self.embedder,
            store=self.store,
            task=self.task,
            tenant=self.tenant,
            fingerprint=self.fingerprint,
        )
        return kept

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TTTTextEmbedder:
        """The component that `to_dict` described."""
        made: TTTTextEmbedder = default_from_dict(cls, data)
        return made

    def _ready(self) -> Steering:
        if self._steering is None:
            self._steering = steering_of(self.store, tenant=self.tenant, embedder=self.fingerprint)
        return self._steering

    def _steered(
        self, result: dict[str, Any], text: str, task: str | None, tenant: str | None, query_id: str | None
    ) -> dict[str, Any]:
        steering = self._ready()
        named = task if task is not None else self.task
        if named is not None:
            steering = steering.for_task(named)
        with context(tenant=self.tenant if tenant is None else tenant, query_id=query_id):
            return {**result, "embedding": steering.apply(result["embedding"], text)}
