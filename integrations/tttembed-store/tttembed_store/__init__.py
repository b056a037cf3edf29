"""tttembed-rag for many processes: a store in SQLite or PostgreSQL, the worker that learns, and those who follow it."""

from typing import TYPE_CHECKING

from tttembed_rag.adapting import facade

if TYPE_CHECKING:
    from tttembed_rag.rewards.observations import Candidate, Served
    from tttembed_store.batches import open_batch_service
    from tttembed_store.capture import Captured, StoreLog
    from tttembed_store.following import TenantOffsets, follow
    from tttembed_store.shards import fit_sharded
    from tttembed_store.sql import Store, open_store
    from tttembed_store.worker import Probe, Worker

__all__ = [
    "Candidate",
    "Captured",
    "Probe",
    "Served",
    "Store",
    "StoreLog",
    "TenantOffsets",
    "Worker",
    "fit_sharded",
    "follow",
    "open_batch_service",
    "open_store",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = facade(
        __name__,
        {
            "tttembed_rag.rewards.observations": ["Candidate", "Served"],
            "tttembed_store.batches": ["open_batch_service"],
            "tttembed_store.capture": ["Captured", "StoreLog"],
            "tttembed_store.following": ["TenantOffsets", "follow"],
            "tttembed_store.shards": ["fit_sharded"],
            "tttembed_store.sql": ["Store", "open_store"],
            "tttembed_store.worker": ["Probe", "Worker"],
        },
    )
