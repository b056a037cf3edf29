"""tttembed-rag for LlamaIndex: retrieved nodes, observed or judged."""

from llama_index.postprocessor.tttembed.base import RescoringPostprocessor, RewardPostprocessor
from llama_index.postprocessor.tttembed.events import RewardEventHandler
from llama_index.postprocessor.tttembed.judges import llm_judge

__all__ = ["RescoringPostprocessor", "RewardEventHandler", "RewardPostprocessor", "llm_judge"]
