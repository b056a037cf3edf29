"""Searches that learn from use: over an agent's tools and skills, the memories of users, or any other short texts."""

from typing import TYPE_CHECKING

from tttembed_rag.adapting import facade

if TYPE_CHECKING:
    from tttembed_tools.catalog import Card as Card
    from tttembed_tools.catalog import cards_of as cards_of
    from tttembed_tools.learned import LearnedSearch as LearnedSearch
    from tttembed_tools.recall import LearnedRecall as LearnedRecall
    from tttembed_tools.tools import LearnedToolSearch as LearnedToolSearch
    from tttembed_tools.tools import Turns as Turns
    from tttembed_tools.tools import is_outage as is_outage

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_tools.catalog": ["Card", "cards_of"],
            "tttembed_tools.learned": ["LearnedSearch"],
            "tttembed_tools.recall": ["LearnedRecall"],
            "tttembed_tools.tools": ["LearnedToolSearch", "Turns", "is_outage"],
        },
    )
