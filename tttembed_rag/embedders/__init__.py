"""Embedding models of all kinds, with one contract: unit vectors of queries and documents."""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.embedders.bridge import Bridge as Bridge
    from tttembed_rag.embedders.contract import Embedder as Embedder
    from tttembed_rag.embedders.service import EmbeddingService as EmbeddingService
    from tttembed_rag.embedders.service import GeminiEmbedder as GeminiEmbedder
    from tttembed_rag.embedders.smallmodel import minilm as minilm
    from tttembed_rag.embedders.specs import open_embedder as open_embedder
    from tttembed_rag.embedders.wrapped import Bridged as Bridged

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
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
