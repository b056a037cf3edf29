"""tttembed-rag for many processes: a store in SQLite or PostgreSQL, the worker that learns, and those who follow it."""

from typing import TYPE_CHECKING

from tttembed_rag.adapting import facade

if TYPE_CHECKING:
    from tttembed_rag.rewards.observations import Candidate as Candidate
    from tttembed_rag.rewards.observations import Served as Served
    from tttembed_store.batches import open_batch_service as open_batch_service
    from tttembed_store.capture import Captured as Captured
    from tttembed_store.capture import StoreLog as StoreLog
    from tttembed_store.following import TenantOffsets as TenantOffsets
    from tttembed_store.following import follow as follow
    from tttembed_store.shards import fit_sharded as fit_sharded
    from tttembed_store.sql import Store as Store
    from tttembed_store.sql import open_store as open_store
    from tttembed_store.worker import Probe as Probe
    from tttembed_store.worker import Worker as Worker

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(
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
