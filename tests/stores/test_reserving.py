"""What workers have reserved, in both databases."""

import numpy as np
import pytest

from tttembed_rag.errors import LeaseLost
from tttembed_rag.judging import Budget
from tttembed_rag.stores import Candidate, Served, open_store
from tttembed_rag.stores.records import Spend
from tttembed_rag.stores.rows import fact


@pytest.mark.parametrize("released", [False, True])
def test_what_is_forgotten_is_reserved_no_more(store_url, released):
    """The hash of a query goes with the query, whether its worker is still at work or was before; others stay."""
    with open_store(store_url) as store:
        shown = [Candidate("d", np.ones(8), "text")]
        leases = {}
        for tenant in "ab":
            store.observe([Served("q", np.ones(8), shown, f"query of {tenant}", tenant=tenant)])
            leases[tenant] = store.leases.take_tenant(tenant, tenant, 60.0)
            reserve = (leases[tenant], "judge", Spend(2), Budget(pairs=10), [f"query of {tenant}"])
            store.reservations.reserve(*reserve)
        if released:
            store.leases.release(leases["a"])
        store.forget(tenant="a", query_id="q", by="me")
        with store._database.read() as connection:
            kept = fact(connection, "asking")
        with pytest.raises(LeaseLost):
            store.reservations.reserve(leases["a"], "judge", Spend(2), Budget(), [])

        ids = {tenant: store.reservations._id("judge", f"query of {tenant}") for tenant in "ab"}
        assert {tenant: number in kept for tenant, number in ids.items()} == {"a": False, "b": True}
