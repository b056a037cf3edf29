"""Tenants of tool search, which the worker leaves alone: calls are learned from with the catalogue, which it lacks."""

from __future__ import annotations

from tttembed_rag.errors import StoreError, StoreUnavailable
from tttembed_rag.rewards.observations import KEYWORD_WEIGHT, TOOL_CALLS
from tttembed_rag.stores import Store
from tttembed_rag.stores.records import AUDIT


def is_of_tools(store: Store, tenant: str) -> bool:
    """Whether all rewards of *tenant* are calls of tools, or its live version is one of a search over tools.

    Trusted labels do not count as rewards here; a live version that is damaged is none of tools.

    Raises:
        StoreUnavailable: The store is away.
    """
    judges = {judge for judge, _ in store.judges(tenant=tenant)} - {AUDIT}
    if judges == {TOOL_CALLS}:
        return True
    try:
        return KEYWORD_WEIGHT in store.registry.settings(tenant=tenant)
    except StoreUnavailable:
        raise
    except StoreError:  # told of by who serves it, or guards it
        return False
