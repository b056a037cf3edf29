"""A query that was rewarded is served its private offset where its text is asked again, and nobody else is."""

import numpy as np
import pytest
from tttembed_store import StoreLog, TenantOffsets, Worker, follow, open_store
from tttembed_store.following.tenants import Published, TenantSnapshot

from tttembed_rag import Evidence, Known, Offset, Offsets, Steering, context, fit
from tttembed_rag.system import telemetry
from tttembed_rag.testing import eventually

WIDTH = 16
BASE = np.linspace(-1.0, 2.0, WIDTH).tolist()
UNGATED = Evidence(4, None, None, "ungated", "made for a test")


@pytest.fixture(scope="session")
def rewards(planted):
    """40 queries with 8 candidates each, and rewards that the gate believes."""
    return planted(40, strength=0.9, dtype=np.float32)


def record(store, rewards, *, named=False, names="query", **facts):
    """What an application's log writes of those queries, *names* and a number, with ids of its own where *named*."""
    with StoreLog(store, "judge", **facts) as log:
        for q, query in enumerate(rewards.query_vectors):
            rows = rewards.candidates[rewards.starts[q] : rewards.starts[q + 1]]
            known = Known(query, rewards.doc_vectors[rows], query_id=f"q{q}" if named else None)
            scores = rewards.values[rewards.starts[q] : rewards.starts[q + 1]].tolist()
            log.record(f"{names} {q}", [f"document {row}" for row in rows], scores, known=known)


def private(offsets):
    """Ids of queries whose private offset is served."""
    return [offset.query_id for offset in offsets.values() if offset.query_id is not None and offset.served]


def offsets_of(*ids, task="default", shared=True):
    """A private offset drawn for each id, and the task's."""
    draw = np.random.default_rng(0)
    own = [Offset("query", draw.normal(size=WIDTH), 0.5, 1, UNGATED, None, task, query_id) for query_id in ids]
    of_task = [Offset("task", draw.normal(size=WIDTH), 0.8, 4, UNGATED, task=task)] if shared else []
    return Offsets([*own, *of_task], width=WIDTH)


def live_of(offsets, text_id):
    """Live offsets as they come from a store that gives texts ids."""
    return TenantOffsets(Published({"": TenantSnapshot(offsets, text_id=text_id)}))


class TestEndToEnd:
    """Recorded, learned by the worker, published, followed, asked again."""

    @pytest.mark.parametrize("texts", [True, False])
    def test_the_same_text_is_served_what_was_learned_from_it(self, store_url, rewards, texts):
        """With and without texts in the store: a query is served exactly its private offset, another one the task's."""
        with open_store(store_url, texts=texts) as store:
            record(store, rewards)
            Worker(store, rewards_of="judge", scope="query", min_new=1).round()
            offsets = store.registry.version("live").offsets
            ids = {f"query {q}": store.text_id(f"query {q}") for q in range(len(rewards))}
            live = follow(store)
            steering = Steering(live)

            served = {text: steering.apply(BASE, text) for text in [*ids, "another question"]}
            live.close()

        assert set(private(offsets)) == set(ids.values())
        assert served == {
            **{text: offsets.apply(BASE, query_id=query_id) for text, query_id in ids.items()},
            "another question": offsets.apply(BASE),
        }
        assert len({tuple(vector) for vector in served.values()}) == len(ids) + 1

    def test_ids_of_ones_own(self, store, rewards):
        """Who records ids of their own says them again; a text alone does not find them."""
        record(store, rewards, named=True)
        offsets = fit(store.rewards("judge"), scope="query", gate=False)
        store.registry.publish(offsets, by="test")
        steering = Steering(follow(store))

        with context(query_id="q3"):
            served = steering.apply(BASE, "query 3, in other words")

        assert served == offsets.apply(BASE, query_id="q3") != BASE
        assert steering.apply(BASE, "query 3") == BASE

    def test_an_id_said_by_context_is_recorded(self, store):
        """Taps record a query under the id that it is served by; what the caller of the log knows comes first."""
        with StoreLog(store, "judge") as log, context(task="billing", query_id="q7"):
            log.record("text", ["a"], [1.0], known=Known(BASE, [BASE]))
            log.record("text", ["a"], [1.0], known=Known(BASE, [BASE], query_id="q8"))

        assert store.rewards("judge").query_ids.tolist() == ["q7", "q8"]

    def test_the_store_may_be_away(self, store, tmp_path, rewards):
        """What is found by its text stays so without the store."""
        record(store, rewards)
        offsets = fit(store.rewards("judge"), scope="query", gate=False)
        store.registry.publish(offsets, by="test")
        live, expected = follow(store, every=0.01), offsets.apply(BASE, query_id=store.text_id("query 3"))
        store.close()
        (tmp_path / "data").rename(tmp_path / "away")
        error = eventually(lambda: live.status.error)
        away = Steering(live).apply(BASE, "query 3")
        live.close()

        assert error is not None
        assert away == Steering(live).apply(BASE, "query 3") == expected != BASE


class TestTenants:
    """A private offset is its tenant's."""

    def test_a_private_offset_is_found_by_queries_of_its_tenant_alone(self, store, rewards):
        """Another tenant that asks the same text finds none of it, also one without a version of its own."""
        versions = {}
        for tenant, names in (("", "query"), ("acme", "own")):
            record(store, rewards, tenant=tenant, names=names)
            versions[tenant] = fit(store.rewards("judge", tenant=tenant), scope="query", gate=False)
            store.registry.publish(versions[tenant], by="test", tenant=tenant)
        live = follow(store, tenants=["acme", "other"])

        served = {
            (tenant, text): Steering(live.for_tenant(tenant)).apply(BASE, text)
            for tenant in ("", "acme", "other")
            for text in ("query 3", "own 3")
        }

        own = {
            (tenant, text): versions[tenant].apply(BASE, query_id=store.text_id(text))
            for tenant, text in (("", "query 3"), ("acme", "own 3"))
        }
        assert served == dict.fromkeys(served, BASE) | own
        assert BASE not in own.values()


class TestLookup:
    """Which id is looked for, and that nothing fails for it."""

    def test_the_order(self):
        """The caller's id, the text's id in the store, the text itself; each where the task has its offset."""
        ids = {"own": "mine", "text": "ID", "itself": "text"}

        def query_found(*kept, task="default"):
            offsets = offsets_of(*(ids[name] for name in kept))
            with context(query_id="mine"):
                offset = live_of(offsets, lambda _: "ID").serving("text", task).offset
            return offset and offset.query_id

        names = (["itself", "text", "own"], ["itself", "text"], ["itself"], [])
        assert [query_found(*kept) for kept in names] == [*ids.values(), None]
        assert query_found("own", task="another") is None

    def test_a_query_without_a_task(self):
        """Its text finds it where one task alone knows it, as its id does."""
        offsets = offsets_of("text", task="billing")

        assert Steering(offsets).apply(BASE, "text") == offsets.apply(BASE, query_id="text") != BASE

    @pytest.mark.parametrize("query", ["unknown", "\ud800", "", "a\0b", None, 3, b"text", ["text"]])
    def test_no_query_fails(self, store, query):
        """Whatever is asked, and whatever a caller hands in as a text, is served the task's offset, bit for bit."""
        offsets = offsets_of("text")
        store.registry.publish(offsets, by="test")

        assert Steering(follow(store)).apply(BASE, query) == offsets.apply(BASE)

    def test_texts_are_not_looked_at_without_private_offsets(self, store):
        """Offsets that hold no private one, or serve none of them, ask for no id."""
        withheld = Evidence(4, None, None, "abstained", "made for a test")
        kept = Offset("query", np.ones(WIDTH), 0.5, 1, withheld, None, "default", "text")

        def asked(text):
            raise AssertionError(text)

        for offsets in (offsets_of(), Offsets([kept], width=WIDTH)):
            offset = live_of(offsets, asked).serving("text", None).offset

            assert offset is None or offset.query_id is None

    def test_a_served_query_is_looked_up_once(self):
        """The id of its text is worked out once for its vector."""
        asked = []
        live = live_of(offsets_of("ID"), lambda text: asked.append(text) or "ID")

        assert Steering(live).apply(BASE, "text") == offsets_of("ID").apply(BASE, query_id="ID")
        assert asked == ["text"]

    def test_it_is_counted_as_served(self):
        """Telemetry counts a query that a private offset alone moves as one with an offset."""
        telemetry.applied.clear()
        steering = Steering(offsets_of("text", task="counted", shared=False), "counted")
        for query in ("text", "other"):
            steering.apply(BASE, query)

        assert telemetry.applied.values() == {("counted", True): 1, ("counted", False): 1}

    def test_the_salt_is_not_shown(self, store):
        """What turns texts into ids is printed nowhere."""
        store.registry.publish(offsets_of("text"), by="test")

        assert store.text_id.salt.hex() not in repr(follow(store).status) + repr(store.text_id)
        assert repr(store.text_id.salt) not in repr(follow(store).status) + repr(store.text_id)
