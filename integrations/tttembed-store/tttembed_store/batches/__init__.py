"""Judging by the batches of a service, at their price: answers come within a day, whatever is killed between.

Private: may change without notice.
"""

from tttembed_store.batches.service import open_batch_service

__all__ = ["open_batch_service"]
