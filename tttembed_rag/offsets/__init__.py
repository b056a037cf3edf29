"""Offsets: what was learned for each scope, on what evidence, and how it reaches a query vector.

Private: may change without notice.
"""

from tttembed_rag.offsets.evidence import Evidence
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.offsets.rescorer import Rescorer
from tttembed_rag.offsets.values import AnyScope, Offset, check_scope

__all__ = ["AnyScope", "Evidence", "KernelMap", "Offset", "Rescorer", "check_scope"]
