"""tttembed-rag for LangChain: query vectors with learned offsets, documents as they were."""

from typing import TYPE_CHECKING

from tttembed_rag.adapting import facade

if TYPE_CHECKING:
    from langchain_tttembed.bridged import BridgedEmbeddings
    from langchain_tttembed.capture import RecordingCompressor, RecordingCrossEncoder, RewardCallbackHandler
    from langchain_tttembed.embeddings import TTTEmbeddings
    from langchain_tttembed.judges import chat_judge
    from langchain_tttembed.learned import Learned
    from langchain_tttembed.resolvers import stored_vectors
    from langchain_tttembed.retrievers import RescoringCompressor, RescoringRetriever, RewardRetriever

__all__ = [
    "BridgedEmbeddings",
    "Learned",
    "RecordingCompressor",
    "RecordingCrossEncoder",
    "RescoringCompressor",
    "RescoringRetriever",
    "RewardCallbackHandler",
    "RewardRetriever",
    "TTTEmbeddings",
    "chat_judge",
    "stored_vectors",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "langchain_tttembed.bridged": ["BridgedEmbeddings"],
            "langchain_tttembed.capture": ["RecordingCompressor", "RecordingCrossEncoder", "RewardCallbackHandler"],
            "langchain_tttembed.embeddings": ["TTTEmbeddings"],
            "langchain_tttembed.judges": ["chat_judge"],
            "langchain_tttembed.learned": ["Learned"],
            "langchain_tttembed.resolvers": ["stored_vectors"],
            "langchain_tttembed.retrievers": ["RescoringCompressor", "RescoringRetriever", "RewardRetriever"],
        },
    )
