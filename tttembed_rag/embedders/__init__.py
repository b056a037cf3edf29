"""Embedding models of all kinds, with one contract: unit vectors of queries and documents."""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.embedders.bridge import Bridge
    from tttembed_rag.embedders.contract import Embedder
    from tttembed_rag.embedders.service import EmbeddingService, GeminiEmbedder
    from tttembed_rag.embedders.smallmodel import minilm
    from tttembed_rag.embedders.specs import open_embedder
    from tttembed_rag.embedders.wrapped import Bridged

__all__ = [
    "Bridge",
    "Bridged",
    "Embedder",
    "EmbeddingService",
    "GeminiEmbedder",
    "minilm",
    "open_embedder",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.embedders.bridge": ["Bridge"],
            "tttembed_rag.embedders.contract": ["Embedder"],
            "tttembed_rag.embedders.smallmodel": ["minilm"],
            "tttembed_rag.embedders.service": ["EmbeddingService", "GeminiEmbedder"],
            "tttembed_rag.embedders.specs": ["open_embedder"],
            "tttembed_rag.embedders.wrapped": ["Bridged"],
        },
    )
