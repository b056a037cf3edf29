"""Search over an agent's tools and skills that learns from use."""

from tttembed_rag.search.catalog import Card, cards_of
from tttembed_rag.search.explaining import FoundTool, ToolExplanation
from tttembed_rag.search.learning import Lesson
from tttembed_rag.search.tools import GROWTH, LearnedToolSearch, Turn
from tttembed_rag.search.turns import Turns, is_outage, sent_by

__all__ = [
    "GROWTH",
    "Card",
    "FoundTool",
    "LearnedToolSearch",
    "Lesson",
    "ToolExplanation",
    "Turn",
    "Turns",
    "cards_of",
    "is_outage",
    "sent_by",
]
