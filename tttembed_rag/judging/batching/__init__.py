"""Judges that are asked by batches: requests in a file, answers within a day, at half the price."""

from tttembed_rag.judging.batching.byfile import answered, read_batch, write_batch
from tttembed_rag.judging.batching.lines import LineJudge, LineResult, open_by_file
from tttembed_rag.judging.batching.outstanding import Outstanding
from tttembed_rag.judging.batching.service import BatchService
from tttembed_rag.judging.batching.specs import open_batch_service

__all__ = [
    "BatchService",
    "LineJudge",
    "LineResult",
    "Outstanding",
    "answered",
    "open_batch_service",
    "open_by_file",
    "read_batch",
    "write_batch",
]
