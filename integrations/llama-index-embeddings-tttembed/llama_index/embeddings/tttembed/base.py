"""An embedding model whose query vectors carry an offset.

What to know before wrapping:

- The QueryBundle trap: ``VectorIndexRetriever`` writes the query vector into the caller's
  ``QueryBundle.embedding`` and, where it finds one, never embeds again. A bundle used twice keeps
  the vector of its first scope and first offsets. Pass strings, or a new bundle per retrieval.
- ``KGTableRetriever`` embeds queries as texts, and stores that embed on the server never ask: no
  offset there. Selectors and memory embed queries as queries: as ``Settings.embed_model`` this
  model steers them too.
- Absolute scores change with the offset, so a similarity cutoff must be tuned again.
- Both models report an embedding event; the inner one carries the base vector.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import BaseModel, PrivateAttr
from llama_index.core.callbacks import CallbackManager
from llama_index.core.embeddings import MultiModalEmbedding

from tttembed_rag import InputError, Offsets, VectorError

logger = logging.getLogger(__name__)


class TTTEmbedding(BaseEmbedding):
    """The wrapped embedding model, with the offset of one scope added to every query vector.

    Texts pass through bit for bit, so an index built with the wrapped model stays valid. A query
    without an offset, or whose vector the offsets refuse (NaN, zero, another width), keeps its base
    vector; the first refusal in a scope is logged. The wrapped model is asked through its public
    methods, so its cache, rate limiter and batches keep working.

    Args:
        embed_model: The model to wrap; its name, batch size and number of workers are taken over.

        offsets: What was learned from rewards.

        scope: The task looked up for every query; None looks up the default task. Either falls
            back to the global offset, and without one to the base vector.

        callback_manager: Callbacks for the steered vectors; None for LlamaIndex's global ones.

    Raises:
        InputError: *embed_model* is no ``BaseEmbedding``, is multi-modal or already wrapped,
            *offsets* are no ``Offsets``, or *scope* is no string.
    """

    _embed_model: BaseEmbedding = PrivateAttr()
    _offsets: Offsets = PrivateAttr()
    _scope: str | None = PrivateAttr()
    _logged_scopes: set[str | None] = PrivateAttr(default_factory=set)

    def __init__(
        self,
        embed_model: BaseEmbedding,
        *,
        offsets: Offsets,
        scope: str | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        _check_model(embed_model)
        if not isinstance(offsets, Offsets):
            raise InputError(f"offsets: expected tttembed_rag Offsets, got {type(offsets).__name__}")
        super().__init__(
            model_name=embed_model.model_name,
            embed_batch_size=embed_model.embed_batch_size,
            num_workers=embed_model.num_workers,
            callback_manager=callback_manager or CallbackManager(),
        )
        self._embed_model = embed_model
        self._offsets = offsets
        self._scope = _checked_scope(scope)

    @classmethod
    def class_name(cls) -> str:
        """The name LlamaIndex serialises the model under."""
        return "TTTEmbedding"

    @property
    def base(self) -> BaseEmbedding:
        """The wrapped model."""
        return self._embed_model

    def for_scope(self, scope: str | None) -> TTTEmbedding:
        """The same model and offsets, looking up another task; cheap enough for every request."""
        other = self.model_copy()
        other._scope = _checked_scope(scope)  # noqa: SLF001 - a copy of this very class
        return other

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """What an ingestion cache hashes: the model's settings, never the offsets.

        Documents do not depend on the offsets, so publishing new ones leaves the cache valid.
        """
        return {**super().to_dict(**kwargs), "embed_model": self._embed_model.to_dict(**kwargs)}

    def _get_query_embedding(self, query: str) -> Embedding:
        return self._steered(self._embed_model.get_query_embedding(query))

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return self._steered(await self._embed_model.aget_query_embedding(query))

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._embed_model.get_text_embedding(text)

    async def _aget_text_embedding(self, text: str) -> Embedding:
        return await self._embed_model.aget_text_embedding(text)

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return self._embed_model.get_text_embedding_batch(texts)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return await self._embed_model.aget_text_embedding_batch(texts)

    def _steered(self, vector: Embedding) -> Embedding:
        # Some models hand out numpy arrays; stores expect Python floats.
        base = vector.tolist() if isinstance(vector, np.ndarray) else vector
        try:
            return self._offsets.apply(base, task=self._scope)
        except VectorError as error:
            if self._scope not in self._logged_scopes:
                self._logged_scopes.add(self._scope)
                logger.warning("%r serves base vectors where the offsets refuse them: %s", self, error)
            return base

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "embeddings_cache" and value is not None:
            raise InputError(
                "embeddings_cache: expected None (it keys on the text alone, so a query's steered vector "
                "would be served for a document); give the cache to the wrapped model"
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"TTTEmbedding({type(self._embed_model).__name__}, {self._offsets!r}, scope={self._scope!r})"

    # BaseComponent would drop what it cannot pickle, offsets included; pydantic keeps everything or
    # raises. Only the callbacks stay behind: they belong to the process. Unpickling, BaseComponent
    # tries __init__ with the fields alone, which fails for want of offsets, then sets this state.
    def __getstate__(self) -> dict[str, Any]:
        state = BaseModel.__getstate__(self)
        return {**state, "__dict__": {**state["__dict__"], "callback_manager": CallbackManager()}}


def _check_model(embed_model: BaseEmbedding) -> None:
    if isinstance(embed_model, TTTEmbedding):
        raise InputError("embed_model: expected an unwrapped model, got TTTEmbedding; pass its .base")
    if isinstance(embed_model, MultiModalEmbedding):
        raise InputError(
            f"embed_model: expected a text model, got the multi-modal {type(embed_model).__name__}; "
            "its image methods would be lost"
        )
    if not isinstance(embed_model, BaseEmbedding):
        raise InputError(f"embed_model: expected a LlamaIndex BaseEmbedding, got {type(embed_model).__name__}")


def _checked_scope(scope: str | None) -> str | None:
    if not isinstance(scope, str | None):
        raise InputError(f"scope: expected a task key or None, got {type(scope).__name__}")
    return scope
