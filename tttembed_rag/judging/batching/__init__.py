"""Judges that are asked by batches: requests in a file, answers within a day, at half the price."""

from tttembed_rag.judging.batching.byplan import forecast_by_batches, judge_by_batches
from tttembed_rag.judging.batching.exchange import Exchange
from tttembed_rag.judging.batching.filed import FiledBatches
from tttembed_rag.judging.batching.geminibatches import GeminiBatches
from tttembed_rag.judging.batching.lines import LineJudge, LineResult
from tttembed_rag.judging.batching.openaibatches import OpenAIBatches
from tttembed_rag.judging.batching.openbatch import Books, OpenBatch
from tttembed_rag.judging.batching.opening import open_batch_service
from tttembed_rag.judging.batching.requests import Collected, Requests, answered, collect, pack
from tttembed_rag.judging.batching.service import BatchService, ServiceBatch

__all__ = [
    "BatchService",
    "Books",
    "Collected",
    "Exchange",
    "FiledBatches",
    "GeminiBatches",
    "LineJudge",
    "LineResult",
    "OpenAIBatches",
    "OpenBatch",
    "Requests",
    "ServiceBatch",
    "answered",
    "collect",
    "forecast_by_batches",
    "judge_by_batches",
    "open_batch_service",
    "pack",
]
