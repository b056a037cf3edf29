"""Serving in a process: the task of a query, the offsets that are live, its vector, and its sorted list.

What is used most stands on the first page: `LiveOffsets`, `Steering`, `TwoPass` and `context`.
"""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.gate.floors import first_floor as first_floor
    from tttembed_rag.serving.cascade import Cascade as Cascade
    from tttembed_rag.serving.languages import language_means as language_means
    from tttembed_rag.serving.languages import language_of as language_of
    from tttembed_rag.serving.steering import Request as Request

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.gate.floors": ["first_floor"],
            "tttembed_rag.serving.cascade": ["Cascade"],
            "tttembed_rag.serving.languages": ["language_means", "language_of"],
            "tttembed_rag.serving.steering": ["Request"],
        },
    )
