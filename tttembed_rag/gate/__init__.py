"""The gate: held-out rewards decide which offset is served, and whether any is.

Private: may change without notice.
"""

from tttembed_rag.gate.deciding import fit

__all__ = ["fit"]
