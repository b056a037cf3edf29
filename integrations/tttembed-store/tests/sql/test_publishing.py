"""What every store must do with versions: publish, serve, take back."""

import pytest

from tests.traffic import JUDGE, facts, learned, traffic
from tttembed_rag.errors import LeaseLost, Superseded
from tttembed_rag.offsets.offsets import Offsets

# Versions


def test_what_is_published_is_served(store):
    """With the facts it was published with; the generation tells of it."""
    store.observe(traffic(6), judge=JUDGE)
    before = store.serving().generation

    version = store.registry.publish(learned(store), by="me", note="first", embedder="e", probe='{"x": 1}', rewarded=6)
    serving = store.serving()

    assert (version, {"": serving.generation}, None) == (serving.version, store.generations().own, serving.halted)
    assert before < serving.generation
    assert (version.by, version.note, version.embedder, version.probe) == ("me", "first", "e", '{"x": 1}')
    assert (version.rewarded, version.served) == (6, 2)
    assert facts(learned(store)) == facts(version.offsets)


def test_who_looked_before_somebody_else_acted_changes_nothing(store):
    """A version is published or taken back in place of the one that was looked at, if that is asked for."""
    offsets = Offsets([], width=8)
    first = store.registry.publish(offsets, by="worker", instead_of=0)
    second = store.registry.publish(offsets, by="operator", instead_of=first.number)

    with pytest.raises(Superseded, match=rf"expected {first.number} .* found {second.number}; nothing was changed"):
        store.registry.publish(offsets, by="worker", instead_of=first.number)
    with pytest.raises(Superseded, match="expected none"):
        store.registry.rollback(by="worker", instead_of=0)

    assert [second, first] == store.registry.versions()
    assert second == store.registry.version()


@pytest.mark.parametrize("tenant", ["a", None])
def test_a_halt_of_somebody_else_is_yielded_to(store, tenant):
    """Who works under a lease neither takes over another's halt nor ends it."""
    lease = store.leases.take("a", "worker", 60.0)
    first = store.registry.halt(by="worker", tenant=tenant, note="first", lease=lease)
    again = store.registry.halt(by="worker", tenant=tenant, note="again", lease=lease)
    store.registry.halt(by="operator", tenant=tenant, note="stop")
    over = store.registry.halt(by="worker", tenant=tenant, note="mine", lease=lease)
    ended = store.registry.resume(by="worker", tenant=tenant, lease=lease)
    held = store.registry.halted(tenant="a")
    store.registry.resume(by="operator", tenant=tenant)

    assert (first, again, over, ended) == (True, True, False, False)
    assert (held, store.registry.halted(tenant="a")) == ("stop", None)
    assert not store.registry.resume(by="worker", tenant=tenant, lease=lease)
    assert [line.action for line in store.changes.lines()] == ["resume", "halt", "halt", "halt"]


# Leases


def test_a_lease_is_held_by_one(store):
    """Until it is released or expires."""
    first = store.leases.take("worker", "a", 60.0)

    assert None is store.leases.take("worker", "b", 60.0)
    store.leases.release(first)
    second = store.leases.take("worker", "b", 1e-6)
    third = store.leases.take("worker", "a", 60.0)
    assert len({first.token, second.token, third.token}) == 3


@pytest.mark.parametrize("how", ["it was taken over", "what may have been learned from was forgotten"])
def test_who_lost_a_lease_changes_nothing(store, how):
    """Nor renews it, nor takes it from its new owner by releasing it."""
    store.observe(traffic(2, tenant="a"), judge=JUDGE)
    for _ in range(2):
        store.registry.publish(Offsets([], width=8), by="test")
    lost = store.leases.take("a", "slow", 1e-6 if how == "it was taken over" else 60.0)
    if how == "it was taken over":
        store.leases.take("a", "fast", 60.0)
    else:
        store.forget(tenant="a", query_id="q1", by="test")

    def state():
        return store.registry.versions(), store.registry.aliases(), store.changes.lines(), store.states.get("trial")

    before = state()
    for write in (
        lambda: store.registry.publish(Offsets([], width=8), by="slow", lease=lost),
        lambda: store.registry.rollback(by="slow", lease=lost),
        lambda: store.registry.rollback(by="slow", lease=lost, to=1),
        lambda: store.registry.halt(by="slow", tenant="", lease=lost),
        lambda: store.registry.resume(by="slow", tenant="", lease=lost),
        lambda: store.states.set("trial", [1], lease=lost),
    ):
        with pytest.raises(LeaseLost, match="nothing was changed"):
            write()
    store.leases.release(lost)

    assert before == state()
    assert not store.leases.renew(lost, 60.0)
    assert (store.leases.take("a", "next", 60.0) is None) == (how == "it was taken over")
