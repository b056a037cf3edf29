"""Searches that learn from use: over an agent's tools and skills, the memories of users, or any other short texts."""

from tttembed_rag.search.catalog import SERVER_META, Card, cards_of
from tttembed_rag.search.explaining import FoundItem, SearchExplanation
from tttembed_rag.search.learned import GROWTH, LearnedSearch
from tttembed_rag.search.learning import Lesson
from tttembed_rag.search.recall import LearnedRecall
from tttembed_rag.search.tools import LearnedToolSearch, Turn, Turns, is_outage, sent_by

__all__ = [
    "GROWTH",
    "SERVER_META",
    "Card",
    "FoundItem",
    "LearnedRecall",
    "LearnedSearch",
    "LearnedToolSearch",
    "Lesson",
    "SearchExplanation",
    "Turn",
    "Turns",
    "cards_of",
    "is_outage",
    "sent_by",
]
