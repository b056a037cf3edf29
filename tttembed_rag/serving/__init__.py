"""Serving in a process: which task and tenant a query belongs to, which offsets are live, the vector that goes out."""

from tttembed_rag.offsets.orders import in_reward_order
from tttembed_rag.serving.cascade import Cascade
from tttembed_rag.serving.context import current_query_id, current_task, current_tenant
from tttembed_rag.serving.live import LiveOffsets, Published, Snapshot, checked_offsets
from tttembed_rag.serving.steering import NamesTasks, Steering, TaskSource, checked_task, resolve_task
from tttembed_rag.serving.twopass import FirstPass, Handlers, TwoPass, adrive, cosines_of, drive
from tttembed_rag.system.failures import FailureLog

__all__ = [
    "Cascade",
    "FailureLog",
    "FirstPass",
    "Handlers",
    "LiveOffsets",
    "NamesTasks",
    "Published",
    "Snapshot",
    "Steering",
    "TaskSource",
    "TwoPass",
    "adrive",
    "checked_offsets",
    "checked_task",
    "cosines_of",
    "current_query_id",
    "current_task",
    "current_tenant",
    "drive",
    "in_reward_order",
    "resolve_task",
]
