"""A steering proxy before an embedding service; it takes feedback, finds tools. Private: may change without notice."""

from tttembed_store.proxy.app import proxy_app
from tttembed_store.proxy.callers import Caller, Callers
from tttembed_store.proxy.feedback import FeedbackWriter
from tttembed_store.proxy.upstream import LocalModel

__all__ = ["Caller", "Callers", "FeedbackWriter", "LocalModel", "proxy_app"]
