"""Which task a query belongs to, which offsets are live, and that nothing leaks between requests."""

import asyncio
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest

from tttembed_rag import Evidence, InputError, LiveOffsets, Offset, Offsets, VectorError, context, current_task
from tttembed_rag.serving import Published, Snapshot, Steering, resolve_task
from tttembed_rag.serving.context import said

WIDTH = 8
BASE = np.linspace(-1.0, 2.0, WIDTH).tolist()
UNGATED = Evidence(4, None, None, "ungated", "made for a test")
TASKS = [f"task{i}" for i in range(32)]
# What a block may say.
WORDS = ["task", "tenant", "query_id", "source"]


def offsets_of(tasks, seed=0):
    draw = np.random.default_rng(seed)
    return Offsets([Offset("task", draw.normal(size=WIDTH), 0.8, 4, UNGATED, task=task) for task in tasks], width=WIDTH)


@pytest.fixture
def offsets():
    """Offsets of 32 tasks."""
    return offsets_of(TASKS)


@pytest.fixture
def steering(offsets):
    """Steering by the caller's context."""
    return Steering(offsets)


class TestContext:
    """The caller's word."""

    @pytest.mark.parametrize("name", WORDS)
    def test_what_a_block_says_holds_inside_it(self, name):
        """Until a block within says otherwise, if only nothing; what that does not say is as around it."""
        seen = [said(name)]
        with context(**{name: "outer"}):
            for within in ({}, {name: "inner"}, {name: ""}, {"tenant" if name == "task" else "task": "other"}):
                with context(**within):
                    seen.append(said(name))
            seen.append(said(name))
        seen.append(said(name))

        assert seen == [None, "outer", "inner", "", "outer", "outer", None]

    def test_it_ends_with_an_error(self):
        """A failed request leaves no context for the next one."""
        with pytest.raises(KeyError), context(task="billing"):
            raise KeyError

        assert current_task() is None

    @pytest.mark.parametrize("name", WORDS)
    def test_what_is_no_text_is_refused(self, name):
        """It is an error where it is written, and changes nothing."""
        with pytest.raises(InputError, match=f"^{name}: expected a text or None, got int$"), context(**{name: 3}):
            pass

        assert said(name) is None


class TestResolution:
    """A fixed task, then the caller's, then the resolver's."""

    @pytest.mark.parametrize(
        ("source", "expected", "in_context"),
        [
            ("fixed", "fixed", "fixed"),
            (lambda query: query.split(":")[0], "billing", "caller"),
            (lambda _: None, None, "caller"),
            (lambda _: 3, None, "caller"),
            (lambda query: query[99], None, "caller"),
            (None, None, "caller"),
        ],
    )
    def test_what_names_a_task(self, source, expected, in_context):
        """A fixed task, whatever the context says; the caller's; what a resolver reads, unless it abstains or fails."""
        assert resolve_task(source, "billing: refund?") == expected
        with context(task="caller"):
            assert resolve_task(source, "billing: refund?") == in_context

    def test_a_failing_resolver_is_logged(self, caplog):
        """The query is answered, and the log says what happened."""
        resolve_task(lambda query: query[99], "q")

        [record] = caplog.records
        assert (record.name, record.levelno) == ("tttembed_rag.serving.steering", logging.ERROR)

    def test_a_wrong_task_is_refused(self, offsets):
        """Neither text nor function nor None."""
        with pytest.raises(InputError, match=r"^task: expected a task key, wrapped embeddings, .*, got list$"):
            Steering(offsets, ["task1"])

    def test_a_wrapper_names_the_task_of_another(self, offsets):
        """A log that is given the wrapper files a query under the task that the wrapper asks for."""
        fixed = Steering(offsets, "task1")
        asked = Steering(offsets, lambda query: query[:5])

        assert resolve_task(fixed, "task2 of a query") == "task1"
        assert resolve_task(asked, "task2 of a query") == "task2"
        with context(task="task3"):
            assert (resolve_task(fixed, "q"), resolve_task(asked, "task2")) == ("task1", "task3")


class TestUnknownTasks:
    """A task that nothing was learned for is most often one that was logged under another name."""

    def test_it_is_named_once(self, offsets, caplog):
        """One line names the task that was asked for, and those that there are."""
        steering = Steering(offsets, "Task1")

        assert [steering.apply(BASE, "q") for _ in range(3)] == [BASE] * 3
        [message] = caplog.messages
        assert message.startswith("task 'Task1': base vectors are served: the offsets hold nothing of it, but of 'task")

    def test_a_wrapper_without_a_task_asks_for_the_default_task(self, offsets, caplog):
        """What was learned of named tasks serves nobody who names none, and the log says so."""
        Steering(offsets).apply(BASE, "q")

        assert ["task 'default'" in message for message in caplog.messages] == [True]

    def test_a_task_on_which_the_gate_abstained_is_known(self, caplog):
        """It is served base vectors for a reason that its evidence gives, not for a wrong name."""
        evidence = Evidence(4, None, None, "abstained", "made for a test")
        held = Offsets([Offset("task", np.zeros(WIDTH), 0.0, 4, evidence, task="task1")], width=WIDTH)

        assert Steering(held, "task1").apply(BASE, "q") == BASE
        assert caplog.messages == []

    def test_very_many_tasks_are_not_all_named(self, offsets, caplog):
        """A function that makes tasks of texts fills no log."""
        steering = Steering(offsets, lambda query: query)
        for number in range(100):
            steering.apply(BASE, f"query {number}")

        assert len(caplog.messages) == 20


class TestSteering:
    """The vector that goes out."""

    def test_the_caller_decides(self, steering, offsets):
        """A query gets the offset of the task it was asked under."""
        with context(task="task3"):
            assert steering.apply(BASE, "q") == offsets.apply(BASE, task="task3")

    def test_no_task_is_the_base_vector_after_another_task(self, steering):
        """An unresolved task gives the base vector, never the last one used."""
        with context(task="task3"):
            steering.apply(BASE, "q")

        assert steering.apply(BASE, "q") == BASE

    def test_a_plain_thread_pool_has_no_context(self, steering, offsets):
        """Where the context is lost, the base vector is served; a fixed task survives it."""
        with context(task="task3"), ThreadPoolExecutor(1) as pool:
            lost = pool.submit(steering.apply, BASE, "q").result()
            kept = pool.submit(steering.for_task("task3").apply, BASE, "q").result()

        assert lost == BASE
        assert kept == offsets.apply(BASE, task="task3")

    @pytest.mark.parametrize("name", ["dimensions", "embed_dim", "size"])
    def test_offsets_of_another_width_than_the_model_are_refused_at_once(self, offsets, name):
        """Where the model says how wide its vectors are; a model that does not is taken as it is."""
        same, other = SimpleNamespace(**{name: offsets.width}), SimpleNamespace(**{name: offsets.width + 1})

        assert Steering(offsets, "task1", model=same).apply(BASE, "q") == offsets.apply(BASE, task="task1")
        assert Steering(offsets, model=SimpleNamespace(**{name: None})).apply(BASE, "q") == BASE
        with pytest.raises(InputError, match=f"expected the width of SimpleNamespace, {offsets.width + 1}, got"):
            Steering(offsets, model=other)

    def test_it_pickles(self, offsets):
        """Another process steers the same way."""
        copy = pickle.loads(pickle.dumps(Steering(offsets, "task1")))  # noqa: S301 - our own bytes

        assert copy.apply(BASE, "q") == offsets.apply(BASE, task="task1")


class TestLiveOffsets:
    """Publishing while serving."""

    def test_wrappers_follow(self, offsets):
        """What is published is served by every wrapper from the next query on."""
        live = LiveOffsets(Offsets([], width=WIDTH))
        steering = Steering(live).for_task("task1")
        before = steering.apply(BASE, "q")

        live.publish(offsets)

        assert before == BASE
        assert steering.apply(BASE, "q") == offsets.apply(BASE, task="task1")

    def test_publishing_returns_the_way_back(self, offsets):
        live = LiveOffsets(offsets)

        assert live.publish(offsets_of(["other"])) is offsets
        assert live.publish(offsets) is not offsets
        assert live.current is offsets

    def test_another_width_is_refused(self, offsets):
        live = LiveOffsets(offsets)

        with pytest.raises(VectorError, match=r"^offsets: expected width 8, got 3$"):
            live.publish(Offsets([], width=3))

        assert live.current is offsets

    def test_nothing_learned_yet_needs_no_width(self, offsets):
        """Before the first version base vectors of any width are served, as they came."""
        live = LiveOffsets()
        before = Steering(live).apply(BASE, "q"), Steering(live).apply([1.0, 2.0], "q"), live.status.reason
        live.publish(offsets)

        assert before == (BASE, [1.0, 2.0], "nothing was published")
        assert live.publish(None) is offsets
        assert live.current is None

    def test_the_environment_switches_off(self, offsets, monkeypatch):
        """TTTEMBED_OFF=1 at the start serves base vectors, whatever is published."""
        monkeypatch.setenv("TTTEMBED_OFF", "1")
        live = LiveOffsets(offsets)
        live.publish(offsets)

        assert Steering(live).apply(BASE, "q") == Steering(offsets, "task1").apply(BASE, "q") == BASE
        assert repr(live) == "base vectors: TTTEMBED_OFF is set"

    def test_something_else_is_refused(self, offsets):
        """Only offsets can be published."""
        with pytest.raises(InputError, match=r"^offsets: expected tttembed_rag Offsets, got dict$"):
            LiveOffsets(offsets).publish({})


class TestTenants:
    """Offsets of one tenant never reach another's query."""

    @pytest.fixture
    def owned(self):
        """The offsets of 32 tenants, all for the same task."""
        return {f"tenant{number}": offsets_of(["task1"], seed=number) for number in range(32)}

    @pytest.fixture
    def steering(self, owned):
        """Steering for all of them, and shared offsets for the others."""
        live = LiveOffsets(offsets_of(["task1"], seed=99))
        for tenant, offsets in owned.items():
            live.for_tenant(tenant).publish(offsets)
        return Steering(live)

    def test_others_are_served_the_shared_ones(self, steering):
        shared = offsets_of(["task1"], seed=99).apply(BASE, task="task1")
        with context(task="task1", tenant="new"):
            new = steering.apply(BASE, "q")
        with context(task="task1"):
            nobody = steering.apply(BASE, "q")

        assert new == nobody == shared

    def test_a_fixed_tenant_comes_first(self, owned):
        """A wrapper that was made for one tenant serves it whatever the context says."""
        live = LiveOffsets()
        mine = live.for_tenant("tenant1")
        mine.publish(owned["tenant1"])

        with context(task="task1", tenant="tenant2"):
            assert Steering(mine).apply(BASE, "q") == owned["tenant1"].apply(BASE, task="task1")
            assert Steering(live).apply(BASE, "q") == BASE

    def test_threads_do_not_mix(self, steering, owned):
        """32 threads, each for its tenant, that all publish while they serve: each gets its own."""
        together = Barrier(32)

        def serve(tenant):
            mine = steering._live.for_tenant(tenant)
            together.wait()
            with context(task="task1", tenant=tenant):
                served = []
                for _ in range(30):
                    served.append(steering.apply(BASE, "q"))
                    mine.publish(owned[tenant])
                return served

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
        assert served == [(one, one) for one in expected]


@pytest.mark.parametrize(
    ("learned_for", "wrapped", "said"),
    [
        ("", "mine", ["version 3 was learned for a model that it does not name and is served to mine"]),
        ("mine", "", ["version 3 was learned for mine and is served to whatever model is wrapped"]),
        ("mine", "mine", []),
        ("", "", []),
    ],
)
def test_offsets_of_an_unknown_model_are_said_once(offsets, caplog, learned_for, wrapped, said):
    """Where one of both models is known, nobody can tell whether they are the same: they are served, and one line."""

    class Versioned(Published):
        def snapshot(self, tenant):
            return Snapshot(offsets, None, 3, embedder=learned_for)

    live = LiveOffsets.of(Versioned({}), embedder=wrapped)

    assert [live.current for _ in range(3)] == [offsets] * 3
    assert [message.split(":")[0] for message in caplog.messages] == said
