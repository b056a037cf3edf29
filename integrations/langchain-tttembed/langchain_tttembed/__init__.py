"""tttembed-rag for LangChain: query vectors with what a judge taught, documents as they were."""

from langchain_tttembed.embeddings import TTTEmbeddings

__all__ = ["TTTEmbeddings"]
