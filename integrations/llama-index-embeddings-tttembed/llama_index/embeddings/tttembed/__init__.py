"""tttembed-rag for LlamaIndex: query vectors with learned offsets, documents as they were."""

from llama_index.embeddings.tttembed.base import TTTEmbedding
from llama_index.embeddings.tttembed.bridged import BridgedEmbedding
from llama_index.embeddings.tttembed.resolvers import stored_vectors

__all__ = ["BridgedEmbedding", "TTTEmbedding", "stored_vectors"]
