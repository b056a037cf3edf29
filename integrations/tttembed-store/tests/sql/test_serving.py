"""What a store says must be served, where several things are said of a tenant at once."""

import pytest

from tttembed_rag import Offsets


def test_halting_the_shared_tenant_leaves_those_with_a_version_of_their_own(store):
    """They go on with it; all others are served base vectors."""
    store.registry.publish(Offsets([], width=8), by="me")
    own = store.registry.publish(Offsets([], width=8), by="me", tenant="a")
    store.registry.halt(by="me", tenant="", note="shared is wrong")

    mine, others = store.serving(tenant="a"), store.serving(tenant="b")
    assert (mine.version, mine.halted, others.halted) == (own, None, "shared is wrong")


@pytest.mark.parametrize("tenant", ["", "a", "never heard of"])
def test_the_generation_is_that_of_the_same_moment(store, tenant):
    """Whoever polls the generations finds the one that came with what is said of the tenant alone."""
    store.registry.publish(Offsets([], width=8), by="me")
    store.registry.publish(Offsets([], width=8), by="me", tenant="a")
    store.registry.halt(by="me", tenant="a")

    assert store.serving(tenant=tenant, own=True).generation == store.generations().own.get(tenant, 0)


def test_what_is_its_own_is_neither_shared_nor_of_all(store):
    """A shared version and a halt of all are said of nobody alone, and a version of its own of nobody else."""
    version = store.registry.publish(Offsets([], width=8), by="me", tenant="a")
    store.registry.publish(Offsets([], width=8), by="me")
    store.registry.halt(by="me", note="all wrong")

    of_a, of_b = store.serving(tenant="a", own=True), store.serving(tenant="b", own=True)
    assert (of_a.version, of_a.halted, of_b.version, of_b.halted) == (version, None, None, None)
    assert (store.generations().halted, store.serving(tenant="a").halted) == ("all wrong", "all wrong")


def test_the_first_reason_is_told(store):
    """A halt of all comes before one of the tenant, and that before one of the shared tenant."""
    reasons = []
    for tenant, note in (("", "of shared"), ("a", "of a"), (None, "of all")):
        store.registry.halt(by="me", tenant=tenant, note=note)
        reasons.append(store.serving(tenant="a").halted)

    assert reasons == ["of shared", "of a", "of all"]
