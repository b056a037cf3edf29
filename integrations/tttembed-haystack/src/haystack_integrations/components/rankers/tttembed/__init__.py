"""tttembed-rag for Haystack: what a retriever found, sorted by what verdicts taught."""

from haystack_integrations.components.rankers.tttembed.ranker import TTTRanker

__all__ = ["TTTRanker"]
