"""tttembed-rag for many processes: a store in SQLite or PostgreSQL, the worker that learns, and those who follow it."""

from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_store.batches import open_batch_service
from tttembed_store.capture import REQUIRED, Captured, StoreLog
from tttembed_store.following import follow
from tttembed_store.shards import fit_sharded
from tttembed_store.sql import Store, checked_url, open_store
from tttembed_store.worker import Action, Probe, Step, Worker

__all__ = [
    "REQUIRED",
    "Action",
    "Candidate",
    "Captured",
    "Probe",
    "Served",
    "Step",
    "Store",
    "StoreLog",
    "Worker",
    "checked_url",
    "fit_sharded",
    "follow",
    "open_batch_service",
    "open_store",
]
