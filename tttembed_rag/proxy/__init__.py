"""A steering proxy before an embedding service: what it answers to queries is steered, all else passes as it came.

Private: may change without notice.
"""

from tttembed_rag.proxy.app import proxy_app
from tttembed_rag.proxy.callers import Caller, Callers

__all__ = ["Caller", "Callers", "proxy_app"]
