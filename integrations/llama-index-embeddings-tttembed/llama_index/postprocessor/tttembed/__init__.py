"""tttembed-rag for LlamaIndex: retrieved nodes, observed or judged."""

from llama_index.postprocessor.tttembed.base import RewardPostprocessor
from llama_index.postprocessor.tttembed.events import RewardEventHandler
from llama_index.postprocessor.tttembed.judges import llm_judge

__all__ = ["RewardEventHandler", "RewardPostprocessor", "llm_judge"]
