"""Served queries on their way into a store, without a request that waits for it.

Private: may change without notice.
"""

from tttembed_store.capture.storelog import Captured, StoreLog

__all__ = ["Captured", "StoreLog"]
