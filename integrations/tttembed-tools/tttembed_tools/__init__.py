"""Searches that learn from use: over an agent's tools and skills, the memories of users, or any other short texts."""

from tttembed_tools.catalog import SERVER_META, Card, cards_of
from tttembed_tools.explaining import FoundItem, SearchExplanation
from tttembed_tools.learned import LearnedSearch
from tttembed_tools.learning import Lesson
from tttembed_tools.outcomes import PastRequest
from tttembed_tools.recall import LearnedRecall
from tttembed_tools.tools import LearnedToolSearch, Turn, Turns, is_outage, sent_by

__all__ = [
    "SERVER_META",
    "Card",
    "FoundItem",
    "LearnedRecall",
    "LearnedSearch",
    "LearnedToolSearch",
    "Lesson",
    "PastRequest",
    "SearchExplanation",
    "Turn",
    "Turns",
    "cards_of",
    "is_outage",
    "sent_by",
]
