"""Offsets: what was learned for each scope, on what evidence, and how it reaches a query vector.

Private: may change without notice.
"""

from tttembed_rag.offsets.evidence import Evidence, Verdict
from tttembed_rag.offsets.kernel import KernelMap
from tttembed_rag.offsets.lookup import Offsets
from tttembed_rag.offsets.rescorer import Rescorer
from tttembed_rag.offsets.values import AnyScope, Certificate, Offset, Scope, check_scope

__all__ = [
    "AnyScope",
    "Certificate",
    "Evidence",
    "KernelMap",
    "Offset",
    "Offsets",
    "Rescorer",
    "Scope",
    "Verdict",
    "check_scope",
]
