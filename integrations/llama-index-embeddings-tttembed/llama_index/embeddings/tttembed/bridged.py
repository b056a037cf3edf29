"""A new embedding model in the index of an old one."""

from __future__ import annotations

import os

from llama_index.core.base.embeddings.base import BaseEmbedding, Embedding
from llama_index.core.bridge.pydantic import PrivateAttr

from tttembed_rag.adapting import bridge_for
from tttembed_rag.embedders import Bridge


class BridgedEmbedding(BaseEmbedding):
    """A new embedding model, its vectors across a bridge: what an old index is searched with, and added to.

    Args:
        embed_model: The new model; its name and batch size are taken over.
        bridge: What `tttembed bridge` wrote, or the path of its file.

    Raises:
        InputError: The bridge was learned for another model.
    """

    _model: BaseEmbedding = PrivateAttr()
    _bridge: Bridge = PrivateAttr()

    def __init__(self, embed_model: BaseEmbedding, bridge: Bridge | str | os.PathLike[str]) -> None:
        super().__init__(model_name=embed_model.model_name, embed_batch_size=embed_model.embed_batch_size)
        self._model = embed_model
        self._bridge = bridge_for(embed_model.get_query_embedding, bridge)

    @classmethod
    def class_name(cls) -> str:
        """The name LlamaIndex serialises the model under."""
        return "BridgedEmbedding"

    def _get_query_embedding(self, query: str) -> Embedding:
        return self._bridge.apply(self._model.get_query_embedding(query)).tolist()  # type: ignore[no-any-return]

    async def _aget_query_embedding(self, query: str) -> Embedding:
        return self._bridge.apply(await self._model.aget_query_embedding(query)).tolist()  # type: ignore[no-any-return]

    def _get_text_embedding(self, text: str) -> Embedding:
        return self._get_text_embeddings([text])[0]

    async def _aget_text_embedding(self, text: str) -> Embedding:
        return (await self._aget_text_embeddings([text]))[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return self._bridge.apply(self._model.get_text_embedding_batch(texts), documents=True).tolist()  # type: ignore[no-any-return]

    async def _aget_text_embeddings(self, texts: list[str]) -> list[Embedding]:
        return self._bridge.apply(await self._model.aget_text_embedding_batch(texts), documents=True).tolist()  # type: ignore[no-any-return]
