"""`open_store`: observations, rewards and published offsets, in SQLite or PostgreSQL.

`log` holds what was served and the rewards of it, `versions` what was published, `work` what workers share. Each room
imports from the rooms before it alone. Beside them stand the tables, the database and the leases, which all rooms use,
and `store`, `forgetting` and `history`, which use all rooms.

Private: may change without notice.
"""

from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_store.sql.database import checked_url
from tttembed_store.sql.records import Change, Counts, Forgotten, Lease, Spend, TenantState, Version
from tttembed_store.sql.store import Store, memory_store, open_store

__all__ = [
    "Candidate",
    "Change",
    "Counts",
    "Forgotten",
    "Lease",
    "Served",
    "Spend",
    "Store",
    "TenantState",
    "Version",
    "checked_url",
    "memory_store",
    "open_store",
]
