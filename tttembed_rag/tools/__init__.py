"""Search over an agent's tools and skills that learns from use."""

from tttembed_rag.tools.catalog import Card, cards_of
from tttembed_rag.tools.explaining import FoundTool, ToolExplanation
from tttembed_rag.tools.learning import Lesson
from tttembed_rag.tools.search import GROWTH, LearnedToolSearch, Turn
from tttembed_rag.tools.turns import Turns, is_outage, sent_by

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
