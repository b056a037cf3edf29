"""Searches that learn from use: over an agent's tools and skills, the memories of users, or any other short texts."""

from typing import TYPE_CHECKING

from tttembed_rag.adapting import facade

if TYPE_CHECKING:
    from tttembed_tools.catalog import Card, cards_of
    from tttembed_tools.learned import LearnedSearch
    from tttembed_tools.recall import LearnedRecall
    from tttembed_tools.tools import LearnedToolSearch, Turns, is_outage

__all__ = [
    "Card",
    "LearnedRecall",
    "LearnedSearch",
    "LearnedToolSearch",
    "Turns",
    "cards_of",
    "is_outage",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_tools.catalog": ["Card", "cards_of"],
            "tttembed_tools.learned": ["LearnedSearch"],
            "tttembed_tools.recall": ["LearnedRecall"],
            "tttembed_tools.tools": ["LearnedToolSearch", "Turns", "is_outage"],
        },
    )
