"""Offsets: what was learned for each scope, on what evidence, and how it reaches a query vector.

Private: may change without notice.
"""

from typing import TYPE_CHECKING

from tttembed_rag.system.facades import facade

if TYPE_CHECKING:
    from tttembed_rag.offsets.offset import AnyScope, check_scope

__all__ = [
    "AnyScope",
    "check_scope",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.offsets.offset": ["AnyScope", "check_scope"],
        },
    )
