"""tttembed-rag for LlamaIndex: search, judge, and search again with the rewards."""

from llama_index.retrievers.tttembed.base import RewardRetriever

__all__ = ["RewardRetriever"]
