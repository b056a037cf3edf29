"""Judges that are asked by batches: requests in a file, answers within a day, at half the price.

Private: may change without notice.
"""

from tttembed_rag.judging.batching.byplan import forecast_by_batches, judge_by_batches
from tttembed_rag.judging.batching.openbatch import FiledBatches
from tttembed_rag.judging.batching.service import BatchService, open_batch_service

__all__ = ["BatchService", "FiledBatches", "forecast_by_batches", "judge_by_batches", "open_batch_service"]
