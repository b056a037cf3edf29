"""A steering proxy before an embedding service: what it answers to queries is steered, all else passes as it came.

Private: may change without notice.
"""

from tttembed_rag.proxy.app import proxy_app
from tttembed_rag.proxy.senders import Sender, Senders

__all__ = ["Sender", "Senders", "proxy_app"]
