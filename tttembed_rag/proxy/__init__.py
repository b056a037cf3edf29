"""A steering proxy before an embedding service; it takes feedback, finds tools. Private: may change without notice."""

from tttembed_rag.proxy.app import proxy_app
from tttembed_rag.proxy.callers import Caller, Callers
from tttembed_rag.proxy.feedback import FeedbackWriter

__all__ = ["Caller", "Callers", "FeedbackWriter", "proxy_app"]
