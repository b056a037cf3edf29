"""tttembed-rag for LangChain: query vectors with learned offsets, documents as they were."""

from langchain_tttembed.capture import RecordingCompressor, RecordingCrossEncoder, RewardCallbackHandler
from langchain_tttembed.embeddings import TTTEmbeddings
from langchain_tttembed.judges import chat_judge
from langchain_tttembed.resolvers import stored_vectors
from langchain_tttembed.retrievers import RescoringCompressor, RescoringRetriever, RewardRetriever

__all__ = [
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
