"""Embedding models of all kinds, with one contract: unit vectors of queries and documents."""

from tttembed_rag.embedders.cache import CachedEmbedder, VectorCache
from tttembed_rag.embedders.contract import Embedder
from tttembed_rag.embedders.geminiembedder import GeminiEmbedder
from tttembed_rag.embedders.local import LocalEmbedder, local_model, minilm, model2vec
from tttembed_rag.embedders.service import EmbeddingService
from tttembed_rag.embedders.specs import name_of, open_embedder
from tttembed_rag.embedders.wrapped import FrameworkEmbedder, FunctionEmbedder, Truncated

__all__ = [
    "CachedEmbedder",
    "Embedder",
    "EmbeddingService",
    "FrameworkEmbedder",
    "FunctionEmbedder",
    "GeminiEmbedder",
    "LocalEmbedder",
    "Truncated",
    "VectorCache",
    "local_model",
    "minilm",
    "model2vec",
    "name_of",
    "open_embedder",
]
