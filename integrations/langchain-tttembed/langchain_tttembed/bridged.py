"""A new model's embeddings in the index of an old one."""

from __future__ import annotations

import os

from langchain_core.embeddings import Embeddings

from tttembed_rag.adapting import bridge_for
from tttembed_rag.embedders import Bridge


class BridgedEmbeddings(Embeddings):
    """Embeddings of a new model, their vectors across a bridge: what an old index is searched with, and added to.

    Args:
        embeddings: The new model.
        bridge: What `tttembed bridge` wrote, or the path of its file.

    Raises:
        InputError: The bridge was learned for another model.
    """

    def __init__(self, embeddings: Embeddings, bridge: Bridge | str | os.PathLike[str]) -> None:
        self.base, self.bridge = embeddings, bridge_for(embeddings.embed_query, bridge)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of documents in the old space."""
        return self._documents(self.base.embed_documents(texts))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Vectors of documents in the old space."""
        return self._documents(await self.base.aembed_documents(texts))

    def embed_query(self, text: str) -> list[float]:
        """The vector of a query in the old space."""
        return self.bridge.apply(self.base.embed_query(text)).tolist()  # type: ignore[no-any-return]

    async def aembed_query(self, text: str) -> list[float]:
        """The vector of a query in the old space."""
        return self.bridge.apply(await self.base.aembed_query(text)).tolist()  # type: ignore[no-any-return]

    def _documents(self, vectors: list[list[float]]) -> list[list[float]]:
        return self.bridge.apply(vectors, documents=True).tolist() if vectors else []
