"""What every store must do with versions: publish, serve, take back."""

import pytest

from tests.traffic import JUDGE, facts, learned, traffic
from tttembed_rag.errors import LeaseLost, StoreError, Superseded
from tttembed_rag.offsets.lookup import Offsets

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


def test_the_way_back_is_walked_step_by_step(store):
    """Rolling back twice goes back twice, then says that nothing is left."""
    offsets = Offsets([], width=8)
    first, second, third = (store.registry.publish(offsets, by="me") for _ in range(3))

    assert [second, first] == [store.registry.rollback(by="me"), store.registry.rollback(by="me")]
    with pytest.raises(StoreError, match="expected a version before"):
        store.registry.rollback(by="me")
    assert third == store.registry.rollback(by="me", to=third.number)
    assert [third, second, first] == store.registry.versions()


def test_the_way_back_is_the_way_that_was_taken(store):
    """What was live before is not what has the next lower number, and what was rolled back is off the way."""
    offsets = Offsets([], width=8)
    first, older, newer = (store.registry.publish(offsets, by="me") for _ in range(3))
    store.registry.rollback(by="me", to=first.number)
    again = store.registry.rollback(by="me", to=older.number)
    before = store.registry.version("previous")
    last = store.registry.publish(offsets, by="me")

    assert (older, first) == (again, before)
    assert [older, first] == [store.registry.rollback(by="me"), store.registry.rollback(by="me")]
    assert {newer.number, last.number} & set(store.registry.aliases().values()) == set()


def test_going_to_a_version_keeps_what_was_before_it(store):
    """One behind is gone back to, past those in between; any other goes live on top of what is live."""
    offsets = Offsets([], width=8)
    first, second, third = (store.registry.publish(offsets, by="me") for _ in range(3))

    assert second == store.registry.rollback(by="me", to=second.number)
    assert store.registry.version("previous") == first
    assert third == store.registry.rollback(by="me", to=third.number)
    assert [second, first] == [store.registry.rollback(by="me"), store.registry.rollback(by="me")]
    assert store.registry.aliases() == {"live": first.number}


def test_what_was_never_live_is_not_gone_back_to(store):
    """A number nobody has, or another tenant's: one line says so, and nothing changes."""
    live = store.registry.publish(Offsets([], width=8), by="me")
    other = store.registry.publish(Offsets([], width=8), by="me", tenant="a")

    for number in (other.number, 77):
        with pytest.raises(StoreError, match=rf"^rollback: expected a version .* that was live, got {number}$"):
            store.registry.rollback(by="me", to=number)

    assert store.registry.aliases() == {"live": live.number}


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


def test_a_version_of_another_tenant_cannot_be_reached(store):
    """Neither read nor rolled back to; the shared one is served where a tenant has none."""
    mine = store.registry.publish(Offsets([], width=8), by="me", tenant="a")
    shared = store.registry.publish(Offsets([], width=8), by="me")

    assert (mine, shared) == (store.serving(tenant="a").version, store.serving(tenant="b").version)
    assert None is store.registry.version(mine.number, tenant="b")
    with pytest.raises(StoreError, match=str(mine.number)):
        store.registry.rollback(by="me", tenant="b", to=mine.number)


def test_a_halt_is_told_and_lifted(store):
    """Of all or of one tenant; readers see it in the generation."""
    seen = [store.serving(tenant="a")]
    store.registry.halt(by="me", note="all wrong")
    seen.append(store.serving(tenant="a"))
    store.registry.resume(by="me")
    store.registry.halt(by="me", tenant="a", note="wrong here")
    seen.append(store.serving(tenant="a"))

    assert [one.halted for one in seen] == [None, "all wrong", store.registry.halted(tenant="a")]
    assert (seen[-1].halted, store.registry.halted(tenant="b")) == ("wrong here", None)
    assert seen[0].generation < seen[1].generation < seen[2].generation


def test_generations_of_many_are_read_together(store):
    """Of the shared tenant and of those with something of their own; a change of one raises its own alone."""
    many = [f"tenant {number}" for number in range(20)]
    for tenant in many:
        store.registry.halt(by="me", tenant=tenant)
    before = store.generations().own
    store.registry.halt(by="me", tenant=many[7])
    store.observe(traffic(2, tenant="only named"), judge=JUDGE)
    after = store.generations().own

    assert {"", *many} == set(before) == set(after)
    assert [many[7]] == [tenant for tenant in many if before[tenant] != after[tenant]]


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
    assert [line.action for line in store.audit.lines()] == ["resume", "halt", "halt", "halt"]


# Leases


def test_a_lease_is_held_by_one(store):
    """Until it is released or expires."""
    first = store.leases.take("worker", "a", 60.0)

    assert None is store.leases.take("worker", "b", 60.0)
    store.leases.release(first)
    second = store.leases.take("worker", "b", 1e-6)
    third = store.leases.take("worker", "a", 60.0)
    assert len({first.token, second.token, third.token}) == 3


def test_who_lost_a_lease_cannot_publish(store):
    """Nor renew it, nor take it from its new owner by releasing it."""
    lost = store.leases.take("worker", "a", 1e-6)
    held = store.leases.take("worker", "b", 60.0)

    for write in (
        lambda: store.registry.publish(Offsets([], width=8), by="a", lease=lost),
        lambda: store.states.set("drift", [1], lease=lost),
        lambda: store.registry.halt(by="a", tenant="", lease=lost),
        lambda: store.registry.resume(by="a", tenant="", lease=lost),
    ):
        with pytest.raises(LeaseLost, match="nothing was changed"):
            write()
    store.leases.release(lost)

    assert not store.leases.renew(lost, 60.0)
    assert (store.registry.versions(), store.states.get("drift"), store.audit.lines()) == ([], None, [])
    assert store.registry.publish(Offsets([], width=8), by="b", lease=held).number == 1
