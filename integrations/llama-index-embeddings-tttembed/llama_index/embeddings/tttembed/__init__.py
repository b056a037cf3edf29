"""tttembed-rag for LlamaIndex: query vectors with learned offsets, documents as they were."""

from typing import TYPE_CHECKING

from tttembed_rag.adapting import facade

if TYPE_CHECKING:
    from llama_index.embeddings.tttembed.base import TTTEmbedding as TTTEmbedding
    from llama_index.embeddings.tttembed.bridged import BridgedEmbedding as BridgedEmbedding
    from llama_index.embeddings.tttembed.learned import Learned as Learned
    from llama_index.embeddings.tttembed.resolvers import stored_vectors as stored_vectors

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
        __name__,
        {
            "llama_index.embeddings.tttembed.base": ["TTTEmbedding"],
            "llama_index.embeddings.tttembed.bridged": ["BridgedEmbedding"],
            "llama_index.embeddings.tttembed.learned": ["Learned"],
            "llama_index.embeddings.tttembed.resolvers": ["stored_vectors"],
        },
    )
