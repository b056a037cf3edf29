"""`open_store`: observations, rewards and published offsets, in SQLite or PostgreSQL."""

from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.stores.answers import StoredAnswers
from tttembed_rag.stores.database import checked_url
from tttembed_rag.stores.records import AuditLine, Counts, Forgotten, Lease, Serving, Spend, Version
from tttembed_rag.stores.store import Store, open_store

__all__ = [
    "AuditLine",
    "Candidate",
    "Counts",
    "Forgotten",
    "Lease",
    "Served",
    "Serving",
    "Spend",
    "Store",
    "StoredAnswers",
    "Version",
    "checked_url",
    "open_store",
]
