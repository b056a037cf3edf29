"""Live offsets that follow a store, each tenant's own. Private: may change without notice."""

from tttembed_store.following.follower import follow
from tttembed_store.following.tenants import TenantOffsets

__all__ = ["TenantOffsets", "follow"]
