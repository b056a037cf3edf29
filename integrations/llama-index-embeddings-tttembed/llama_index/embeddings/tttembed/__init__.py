"""tttembed-rag for LlamaIndex: query vectors with what a judge taught, documents as they were."""

from llama_index.embeddings.tttembed.base import TTTEmbedding

__all__ = ["TTTEmbedding"]
