"""Live offsets of many tenants: each is served its own, whoever publishes and serves beside it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from tttembed_store import TenantOffsets
from tttembed_store.following.tenants import Published, TenantSnapshot

from tests.traffic import frozen
from tttembed_rag import Evidence, InputError, Offset, Offsets, Steering, context
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary

WIDTH = 8
BASE = np.linspace(-1.0, 2.0, WIDTH).tolist()
UNGATED = Evidence(4, None, None, "ungated", "made for a test")


def offsets_of(tasks, seed=0):
    draw = np.random.default_rng(seed)
    return Offsets([Offset("task", draw.normal(size=WIDTH), 0.8, 4, UNGATED, task=task) for task in tasks], width=WIDTH)


def sorting():
    """Offsets with a rescorer of the default task."""
    sure = Evidence(9, None, None, "published", "made for a test")
    rescorer = Rescorer(np.array([1.0, 0.0, 0.0, 0.0]), Vocabulary.of(["a text"]), sure)
    return Offsets([Offset("local", np.ones(WIDTH), 0.5, 9, sure, task="default", rescorer=rescorer)], width=WIDTH)


class TestTenants:
    """Offsets of one tenant never reach another's query."""

    @pytest.fixture
    def owned(self):
        """The offsets of 32 tenants, all for the same task."""
        return {f"tenant{number}": offsets_of(["task1"], seed=number) for number in range(32)}

    @pytest.fixture
    def steering(self, owned):
        """Steering for all of them, and shared offsets for the others."""
        return Steering(frozen(offsets_of(["task1"], seed=99), **owned))

    def test_threads_do_not_mix(self, steering, owned):
        """32 threads, each for its tenant, that all serve at once: each gets its own."""
        together = Barrier(32)

        def serve(tenant):
            together.wait()
            with context(task="task1", tenant=tenant):
                return [steering.apply(BASE, "q") for _ in range(30)]

        with ThreadPoolExecutor(32) as pool:
            served = list(pool.map(serve, owned))

        assert served == [[offsets.apply(BASE, task="task1")] * 30 for offsets in owned.values()]

    async def test_asyncio_tasks_do_not_mix(self, steering, owned):
        """200 tasks that wait for each other, in the loop and in threads, each get their tenant's."""

        async def serve(number):
            with context(task="task1", tenant=f"tenant{number % 32}"):
                await asyncio.sleep(0)
                here = steering.apply(BASE, "q")
                return here, await asyncio.to_thread(steering.apply, BASE, "q")

        served = await asyncio.gather(*(serve(number) for number in range(200)))

        expected = [owned[f"tenant{number % 32}"].apply(BASE, task="task1") for number in range(200)]
        assert served == [(vector, vector) for vector in expected]


class TestLists:
    """A rescorer sorts only the lists of queries that offsets serve."""

    @pytest.mark.parametrize(
        ("options", "needed"), [({}, True), ({"base_share": 1.0}, False), ({"tenant_required": True}, False)]
    )
    def test_where_base_vectors_are_served_no_score_is_needed(self, options, needed):
        """What they find is not sorted by words either."""
        live = TenantOffsets(Published({"": TenantSnapshot(sorting(), None)}), **options)

        assert Steering(live).request("q").needs_scores == needed

    def test_a_query_without_the_tenant_that_is_required_is_counted_once(self):
        """However much is asked of its request."""
        live = TenantOffsets(Published({"": TenantSnapshot(sorting(), None)}), tenant_required=True)
        request = Steering(live).request("q")
        request.vector(BASE)
        request.order(["a", "b"], [0.9, 0.8])

        assert live.without_tenant == 1

    @pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
    def test_what_is_no_share_is_refused(self, share):
        with pytest.raises(InputError, match=r"base_share: expected a share in \[0, 1\], got"):
            TenantOffsets(Published({}), base_share=share)


@pytest.mark.parametrize(
    ("learned_for", "wrapped", "lines"),
    [
        ("", "mine", ["version 3 was learned for a model that it does not name and is served to mine"]),
        ("mine", "", ["version 3 was learned for mine and is served to whatever model is wrapped"]),
        ("mine", "mine", []),
        ("", "", []),
    ],
)
def test_offsets_of_an_unknown_model_are_said_once(caplog, learned_for, wrapped, lines):
    """Where one of both models is known, nobody can tell whether they are the same: they are served, and one line."""
    offsets = offsets_of(["task1"])

    class Versioned(Published):
        def snapshot(self, tenant):
            return TenantSnapshot(offsets, None, 3, embedder=learned_for)

    live = TenantOffsets(Versioned({}), embedder=wrapped)

    assert [live.current for _ in range(3)] == [offsets] * 3
    assert [message.split(":")[0] for message in caplog.messages] == lines
