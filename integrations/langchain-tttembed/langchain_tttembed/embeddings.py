"""Embeddings that add an offset to their query vectors.

What to know before wrapping:

- A cache such as ``CacheBackedEmbeddings`` belongs inside the wrapper: a cached steered vector
  outlives its offset.
- A store that embeds *documents* with ``embed_query`` would steer them. ManticoreSearch and Rockset
  always do, mem0 and DSPy too; Milvus, AzureSearch and a few more do so where the wrapped
  ``embed_documents`` raises NotImplementedError. Build such an index with ``.base``. The first four
  are recognised by the calling module and warned of, unless a function of yours stands between.
- A store that embeds queries on the server, or with ``embed_documents``, never asks for an offset.
- A store that searches in threads or tasks of its own (LangGraph's) loses the caller's `context`: give
  it ``for_task(...)``.
- Absolute scores change with the offset, so a score threshold must be tuned again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from langchain_tttembed.hosts import warn_of_host
from tttembed_rag import InputError, Offsets, RewardLog, Rewards, Steering, TextVectors
from tttembed_rag.adapting import OffsetSupplier, Request, TaskSource


class TTTEmbeddings(Embeddings):
    """The wrapped embeddings, with an offset added to every query vector: its private one, else its task's.

    Documents pass through bit for bit, so an index built with the wrapped embeddings stays valid.
    A query without an offset, or with a vector that offsets refuse (NaN, zero, another width), keeps
    its base vector; the first refusal of a task is logged. Keywords go to the wrapped method
    unchanged.

    Args:
        embeddings: The embeddings to wrap.
        offsets: Learned offsets; `LiveOffsets`, or a store that is followed, where they are replaced while serving.
        task: The task of every query, or a function from query text to task. Without a fixed task,
            the caller's ``with tttembed_rag.context(...)`` comes first. A query that nothing gives a
            task looks up the default task; that and an unknown task fall back to the global
            offset, and without one to the base vector.
        vectors: Gives `rewards` document vectors before it embeds again.

    Raises:
        InputError: *embeddings* is no ``Embeddings`` or already wrapped, *offsets* are no
            ``Offsets`` or of another width than the model says, or *task* is something else.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        *,
        offsets: Offsets | OffsetSupplier,
        task: TaskSource = None,
        vectors: TextVectors | None = None,
    ) -> None:
        if isinstance(embeddings, TTTEmbeddings):
            raise InputError("embeddings: expected unwrapped embeddings, got TTTEmbeddings; pass its .base")
        if not isinstance(embeddings, Embeddings):
            raise InputError(f"embeddings: expected langchain_core Embeddings, got {type(embeddings).__name__}")
        self._embeddings = embeddings
        self._steering = Steering(offsets, task, model=embeddings)
        self._vectors = vectors or TextVectors()

    @property
    def base(self) -> Embeddings:
        """The wrapped embeddings."""
        return self._embeddings

    def for_task(self, task: TaskSource) -> TTTEmbeddings:
        """A copy for another task, with these embeddings and offsets; cheap enough for every request."""
        other = copy(self)
        other._steering = self._steering.for_task(task)  # noqa: SLF001 - a copy of this very class
        return other

    def embed_documents(self, texts: list[str], **kwargs: Any) -> list[list[float]]:
        """Document vectors exactly as the wrapped embeddings give them."""
        return self._embeddings.embed_documents(texts, **kwargs)

    async def aembed_documents(self, texts: list[str], **kwargs: Any) -> list[list[float]]:
        """Document vectors exactly as the wrapped embeddings give them."""
        return await self._embeddings.aembed_documents(texts, **kwargs)

    def embed_query(self, text: str, **kwargs: Any) -> list[float]:
        """The query vector with its offset, of the norm it came with."""
        warn_of_host(sys._getframe(1))  # noqa: SLF001 - CPython's way to the calling frame
        return self._steered(self._embeddings.embed_query(text, **kwargs), text)

    async def aembed_query(self, text: str, **kwargs: Any) -> list[float]:
        """The query vector with its offset, of the norm it came with."""
        warn_of_host(sys._getframe(1))  # noqa: SLF001 - CPython's way to the calling frame
        return self._steered(await self._embeddings.aembed_query(text, **kwargs), text)

    def embed_query_base(self, text: str, **kwargs: Any) -> list[float]:
        """The base query vector, exactly as the wrapped embeddings give it."""
        return self._embeddings.embed_query(text, **kwargs)

    async def aembed_query_base(self, text: str, **kwargs: Any) -> list[float]:
        """The base query vector, exactly as the wrapped embeddings give it."""
        return await self._embeddings.aembed_query(text, **kwargs)

    def request(self, query: str) -> Request:
        """*query* with what is live now: its vector, and the order of what a search with that finds."""
        return self._steering.request(query)

    def searching(self, query: str) -> AbstractContextManager[Request]:
        """The request of a search that embeds *query* by these embeddings itself, within the block."""
        return self._steering.searching(query)

    def task_of(self, query: str) -> str | None:
        """The task that gives *query* its offset; None where no task is named."""
        return self._steering.task_of(query)

    def rewards(self, log: RewardLog, *, vectors: TextVectors | None = None, embedder: str = "") -> Rewards:
        """The rewards in *log* with base query vectors and document vectors, ready for `fit`.

        Offsets that are learned from them carry *embedder*, the name of the wrapped model, and serve no other.
        """
        if not isinstance(log, RewardLog):
            raise InputError(f"log: expected a RewardLog, got {type(log).__name__}")
        model = self._embeddings
        return log.rewards(
            model.embed_query, model.embed_documents, vectors=vectors or self._vectors, embedder=embedder
        )

    def document_vectors(self, texts: Sequence[str], *, vectors: TextVectors | None = None) -> NDArray[Any]:
        """Vectors (n, d) of documents, supplied or remembered where possible."""
        return (vectors or self._vectors).of(texts, self._embeddings.embed_documents)

    async def adocument_vectors(self, texts: Sequence[str], *, vectors: TextVectors | None = None) -> NDArray[Any]:
        """Vectors (n, d) of documents, supplied or remembered where possible."""
        return await (vectors or self._vectors).aof(texts, self._embeddings.aembed_documents)

    def _steered(self, vector: list[float], query: str) -> list[float]:
        steered: list[float] = self._steering.apply(vector, query)
        return steered

    def __repr__(self) -> str:
        return f"TTTEmbeddings({type(self._embeddings).__name__}, {self._steering!r})"
