"""Embeddings whose query vectors carry an offset.

What to know before wrapping:

- A cache such as ``CacheBackedEmbeddings`` belongs inside the wrapper: a cached steered vector
  outlives its offset.
- A store that embeds *documents* with ``embed_query`` would steer them. ManticoreSearch and Rockset
  always do; Milvus, AzureSearch and a few more do so where the wrapped ``embed_documents`` raises
  NotImplementedError.
- A store that embeds queries on the server, or with ``embed_documents``, never asks for an offset.
- Absolute scores change with the offset, so a score threshold must be tuned again.
"""

from __future__ import annotations

import logging
from copy import copy
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings

from tttembed_rag import InputError, Offsets, VectorError

logger = logging.getLogger(__name__)


class TTTEmbeddings(Embeddings):
    """The wrapped embeddings, with the offset of one scope added to every query vector.

    Documents pass through bit for bit, so an index built with the wrapped embeddings stays valid.
    A query without an offset, or whose vector the offsets refuse (NaN, zero, another width), keeps
    its base vector; the first refusal in a scope is logged. Keywords go to the wrapped method
    unchanged.

    Args:
        embeddings: The embeddings to wrap.

        offsets: What was learned from rewards.

        scope: The task looked up for every query; None looks up the default task. Either falls
            back to the global offset, and without one to the base vector.

    Raises:
        InputError: *embeddings* is no ``Embeddings`` or already wrapped, *offsets* are no
            ``Offsets``, or *scope* is no string.
    """

    def __init__(self, embeddings: Embeddings, *, offsets: Offsets, scope: str | None = None) -> None:
        if isinstance(embeddings, TTTEmbeddings):
            raise InputError("embeddings: expected unwrapped embeddings, got TTTEmbeddings; pass its .base")
        if not isinstance(embeddings, Embeddings):
            raise InputError(f"embeddings: expected langchain_core Embeddings, got {type(embeddings).__name__}")
        if not isinstance(offsets, Offsets):
            raise InputError(f"offsets: expected tttembed_rag Offsets, got {type(offsets).__name__}")
        self._embeddings = embeddings
        self._offsets = offsets
        self._scope = _checked_scope(scope)
        self._logged_scopes: set[str | None] = set()

    @property
    def base(self) -> Embeddings:
        """The wrapped embeddings."""
        return self._embeddings

    def for_scope(self, scope: str | None) -> TTTEmbeddings:
        """The same embeddings and offsets, looking up another task; cheap enough for every request."""
        other = copy(self)
        other._scope = _checked_scope(scope)  # noqa: SLF001 - a copy of this very class
        return other

    def embed_documents(self, texts: list[str], **kwargs: Any) -> list[list[float]]:
        """Document vectors exactly as the wrapped embeddings give them."""
        return self._embeddings.embed_documents(texts, **kwargs)

    async def aembed_documents(self, texts: list[str], **kwargs: Any) -> list[list[float]]:
        """Document vectors exactly as the wrapped embeddings give them."""
        return await self._embeddings.aembed_documents(texts, **kwargs)

    def embed_query(self, text: str, **kwargs: Any) -> list[float]:
        """The query vector with its offset, of the norm it came with."""
        return self._steered(self._embeddings.embed_query(text, **kwargs))

    async def aembed_query(self, text: str, **kwargs: Any) -> list[float]:
        """The query vector with its offset, of the norm it came with."""
        return self._steered(await self._embeddings.aembed_query(text, **kwargs))

    def embed_query_base(self, text: str, **kwargs: Any) -> list[float]:
        """The base query vector, exactly as the wrapped embeddings give it."""
        return self._embeddings.embed_query(text, **kwargs)

    async def aembed_query_base(self, text: str, **kwargs: Any) -> list[float]:
        """The base query vector, exactly as the wrapped embeddings give it."""
        return await self._embeddings.aembed_query(text, **kwargs)

    def __repr__(self) -> str:
        return f"TTTEmbeddings({type(self._embeddings).__name__}, {self._offsets!r}, scope={self._scope!r})"

    def _steered(self, vector: list[float]) -> list[float]:
        # Some providers hand out numpy arrays; stores expect Python floats.
        base = vector.tolist() if isinstance(vector, np.ndarray) else vector
        try:
            return self._offsets.apply(base, task=self._scope)
        except VectorError as error:
            if self._scope not in self._logged_scopes:
                self._logged_scopes.add(self._scope)
                logger.warning("%r serves base vectors where the offsets refuse them: %s", self, error)
            return base


def _checked_scope(scope: str | None) -> str | None:
    if not isinstance(scope, str | None):
        raise InputError(f"scope: expected a task key or None, got {type(scope).__name__}")
    return scope
