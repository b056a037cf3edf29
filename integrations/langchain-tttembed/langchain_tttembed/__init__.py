"""tttembed-rag for LangChain: query vectors with learned offsets, documents as they were."""

from typing import TYPE_CHECKING

from tttembed_rag.adapting import facade

if TYPE_CHECKING:
    from langchain_tttembed.bridged import BridgedEmbeddings as BridgedEmbeddings
    from langchain_tttembed.capture import RecordingCompressor as RecordingCompressor
    from langchain_tttembed.capture import RecordingCrossEncoder as RecordingCrossEncoder
    from langchain_tttembed.capture import RewardCallbackHandler as RewardCallbackHandler
    from langchain_tttembed.embeddings import TTTEmbeddings as TTTEmbeddings
    from langchain_tttembed.judges import chat_judge as chat_judge
    from langchain_tttembed.learned import Learned as Learned
    from langchain_tttembed.resolvers import stored_vectors as stored_vectors
    from langchain_tttembed.retrievers import RescoringCompressor as RescoringCompressor
    from langchain_tttembed.retrievers import RescoringRetriever as RescoringRetriever
    from langchain_tttembed.retrievers import RewardRetriever as RewardRetriever

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
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
