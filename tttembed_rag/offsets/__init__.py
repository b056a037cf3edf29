"""Offsets: what was learned for each scope, on what evidence, and how it reaches a query vector.

Private: may change without notice.
"""

from tttembed_rag.offsets.values import AnyScope, check_scope

__all__ = ["AnyScope", "check_scope"]
