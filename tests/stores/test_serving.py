"""What a store says must be served, where several things are said of a tenant at once."""

import pytest

from tttembed_rag import Offsets
from tttembed_rag.stores import open_store


@pytest.fixture
def store(store_url):
    """An open store without content."""
    with open_store(store_url) as store:
        yield store


def test_halting_the_shared_tenant_leaves_those_with_a_version_of_their_own(store):
    """They go on with it; all others are served base vectors."""
    store.publish(Offsets([], width=8), by="me")
    own = store.publish(Offsets([], width=8), by="me", tenant="a")
    store.registry.halt(by="me", tenant="", note="shared is wrong")

    mine, others = store.serving(tenant="a"), store.serving(tenant="b")
    assert (mine.version, mine.halted, others.halted) == (own, None, "shared is wrong")


@pytest.mark.parametrize("tenant", ["", "a", "never heard of"])
def test_the_generation_is_that_of_the_same_moment(store, tenant):
    """Whoever polls the generation finds the one that came with what it was served."""
    store.publish(Offsets([], width=8), by="me")
    store.publish(Offsets([], width=8), by="me", tenant="a")
    store.registry.halt(by="me", tenant="a")

    assert {tenant: store.serving(tenant=tenant).generation} == store.generations([tenant])


def test_the_first_reason_is_told(store):
    """A halt of all comes before one of the tenant, and that before one of the shared tenant."""
    reasons = []
    for tenant, note in (("", "of shared"), ("a", "of a"), (None, "of all")):
        store.registry.halt(by="me", tenant=tenant, note=note)
        reasons.append(store.serving(tenant="a").halted)

    assert reasons == ["of shared", "of a", "of all"]
