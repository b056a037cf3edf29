"""Which task a query belongs to, which offsets are live, and that nothing leaks between requests."""

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from tttembed_rag import Evidence, InputError, LiveOffsets, Offset, Offsets, Rewards, Steering, context, fit
from tttembed_rag.adapting import resolve_task
from tttembed_rag.errors import VectorError
from tttembed_rag.serving.context import context_value
from tttembed_rag.testing import FakeEmbedder

WIDTH = 8
BASE = np.linspace(-1.0, 2.0, WIDTH).tolist()
UNGATED = Evidence(4, None, None, "ungated", "made for a test")
TASKS = [f"task{i}" for i in range(32)]
# What a block may say.
WORDS = ["task", "tenant", "query_id", "source"]


def offsets_of(tasks, seed=0):
    draw = np.random.default_rng(seed)
    return Offsets([Offset("task", draw.normal(size=WIDTH), 0.8, 4, UNGATED, task=task) for task in tasks], width=WIDTH)


class Model:
    """An embedding model in the shape of LangChain's; of another sign it is another model, of none it fails."""

    def __init__(self, sign):
        self.sign = sign

    def embed_query(self, text):
        return self.embed_documents([text])[0]

    def embed_documents(self, texts):
        vectors = FakeEmbedder(width=WIDTH).embed_documents(texts)
        vectors[:, 0] *= np.sign(self.sign)
        return (vectors * abs(self.sign)).tolist()


def rewards_by(model, **options):
    """Verdicts on texts, with the vectors of a *model*."""
    rows = [(f"query {i}", f"text {i} {j}", float(j == 0)) for i in range(4) for j in range(3)]
    return Rewards.from_texts(rows, embed_query=model.embed_query, embed_documents=model.embed_documents, **options)


@pytest.fixture
def offsets():
    return offsets_of(TASKS)


@pytest.fixture
def steering(offsets):
    return Steering(offsets)


class TestContext:
    """The caller's word."""

    @pytest.mark.parametrize("name", WORDS)
    def test_what_a_block_says_holds_inside_it(self, name):
        """Until a block within says otherwise, if only nothing; what that does not say is as around it."""
        seen = [context_value(name)]
        with context(**{name: "outer"}):
            for within in ({}, {name: "inner"}, {name: ""}, {"tenant" if name == "task" else "task": "other"}):
                with context(**within):
                    seen.append(context_value(name))
            seen.append(context_value(name))
        seen.append(context_value(name))

        assert seen == [None, "outer", "inner", "", "outer", "outer", None]

    def test_it_ends_with_an_error(self):
        """A failed request leaves no context for the next one."""
        with pytest.raises(KeyError), context(task="billing"):
            raise KeyError

        assert context_value("task") is None

    @pytest.mark.parametrize("name", WORDS)
    def test_what_is_no_text_is_refused(self, name):
        """It is an error where it is written, and changes nothing."""
        with pytest.raises(InputError, match=f"^{name}: expected a text or None, got int$"), context(**{name: 3}):
            pass

        assert context_value(name) is None


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
        resolve_task(lambda query: query[99], "q")

        [record] = caplog.records
        assert (record.name, record.levelno) == ("tttembed_rag.serving.tasks", logging.ERROR)

    def test_a_wrong_task_is_refused(self, offsets):
        """Neither text nor function nor None."""
        with pytest.raises(InputError, match=r"^task: expected a task key, wrapped embeddings, .*, got list$"):
            Steering(offsets, ["task1"])


class TestUnknownTasks:
    """A task that nothing was learned for is most often one that was logged under another name."""

    @pytest.mark.parametrize(("task", "name"), [("Task1", "Task1"), (None, "default")])
    def test_it_is_named_once(self, offsets, caplog, task, name):
        """One line names the task of the query, the default task where nobody names one, and those that there are."""
        steering = Steering(offsets, task)

        assert [steering.apply(BASE, "q") for _ in range(3)] == [BASE] * 3
        [message] = caplog.messages
        assert message.startswith(f"task '{name}': base vectors are served: nothing was learned of task '{name}', but")

    def test_a_task_on_which_the_gate_abstained_is_known(self, caplog):
        """It is served base vectors for a reason that its evidence gives, not for a wrong name."""
        evidence = Evidence(4, None, None, "abstained", "made for a test")
        held = Offsets([Offset("task", np.zeros(WIDTH), 0.0, 4, evidence, task="task1")], width=WIDTH)

        assert Steering(held, "task1").apply(BASE, "q") == BASE
        assert caplog.messages == []


class TestSteering:
    """The vector that goes out."""

    def test_the_caller_decides(self, steering, offsets):
        """A query gets the offset of the task it was asked under, and one without a task that of no query before it."""
        with context(task="task3"):
            within = steering.apply(BASE, "q")

        assert within == offsets.apply(BASE, task="task3")
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

    @pytest.mark.parametrize("held", [lambda offsets: offsets, LiveOffsets])
    def test_offsets_of_another_model_of_the_same_width_are_refused_at_once(self, tmp_path, held):
        """A file holds vectors of fixed texts by its model; other vectors are of another model."""
        fit(rewards_by(Model(1.0)), scope="task", gate=False).save(tmp_path / "o")
        learned, line = held(Offsets.load(tmp_path / "o")), "^offsets: vectors of fixed queries have moved, .*"

        assert Steering(learned, model=Model(2.0)).apply(BASE, "q") != BASE  # the same directions
        with pytest.raises(InputError, match=f"{line} another embedding model$"):
            Steering(learned, model=Model(-1.0))

    def test_a_model_that_is_away_is_not_asked(self, caplog):
        Steering(fit(rewards_by(Model(1.0)), scope="task", gate=False), model=Model(None))

        [message] = caplog.messages
        assert message.startswith("Model was not asked whether offsets were learned for it:")

    def test_vectors_that_are_known_by_text_have_no_probe(self):
        """A function that gives vectors of the queries alone says nothing of other texts."""
        known = SimpleNamespace(embed_query={f"query {i}": BASE for i in range(4)}.__getitem__)
        known.embed_documents = Model(1.0).embed_documents
        settings = fit(rewards_by(known, embedder="named"), scope="task", gate=False).settings

        assert (settings["embedder"], "probe" in settings) == ("named", False)


class TestLiveOffsets:
    """Publishing while serving."""

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
        before = Steering(live).apply(BASE, "q"), Steering(live).apply([1.0, 2.0], "q")
        live.publish(offsets)

        assert before == (BASE, [1.0, 2.0])
        assert live.publish(None) is offsets
        assert live.current is None

    def test_the_environment_switches_off(self, offsets, monkeypatch):
        """TTTEMBED_OFF=1 at the start serves base vectors, whatever is published."""
        monkeypatch.setenv("TTTEMBED_OFF", "1")
        live = LiveOffsets(offsets)
        live.publish(offsets)

        assert Steering(live).apply(BASE, "q") == Steering(offsets, "task1").apply(BASE, "q") == BASE
        assert repr(live) == "base vectors: TTTEMBED_OFF is set"

    @pytest.mark.parametrize("moment", [1, 2, 3])
    def test_what_is_published_during_a_look_up_is_served_whole_or_not_at_all(self, offsets, moment):
        """Whatever the moment, offsets never come without what was looked up in them."""
        live, lines, tracing = LiveOffsets(), [], sys.gettrace()

        def publish(frame, event, _):
            if event == "line" and frame.f_code.co_name == "serving":
                lines.append(event)
                if len(lines) == moment:
                    live.publish(offsets)
            return publish

        sys.settrace(publish)
        try:
            lookup = live.serving("q", "task1")
        finally:
            sys.settrace(tracing)

        assert live.current is offsets
        assert (lookup.offsets is None) == (lookup.offset is None)

    def test_something_else_is_refused(self, offsets):
        with pytest.raises(InputError, match=r"^offsets: expected tttembed_rag Offsets, got dict$"):
            LiveOffsets(offsets).publish({})

    def test_a_private_offset_serves_no_query_of_a_tenant(self):
        """Its verdicts came from a query without one; the task's offset serves all alike."""
        own = Offset("query", np.ones(WIDTH), 0.5, 1, UNGATED, None, "task1", "q")
        of_task = offsets_of(["task1"])["task:task1"]
        steering, shared = Steering(LiveOffsets(Offsets([own, of_task], width=WIDTH)), "task1"), offsets_of(["task1"])
        with context(tenant="acme"):
            of_tenant = steering.apply(BASE, "q")

        assert of_tenant == shared.apply(BASE, task="task1")
        assert steering.apply(BASE, "q") not in (of_tenant, BASE)


class TestRequest:
    """One query, one version."""

    def test_it_is_served_what_was_live_when_it_came(self, offsets):
        """What is published is served by every wrapper from the next query on."""
        live = LiveOffsets()
        steering = Steering(live).for_task("task1")
        before = steering.request("q")
        live.publish(offsets)
        after = steering.request("q")
        live.publish(None)

        assert before.vector(BASE) == BASE
        assert after.vector(BASE) == offsets.apply(BASE, task="task1")

    @pytest.mark.parametrize(
        ("task", "base", "reason"),
        [
            ("task1", BASE, ""),
            (
                "task1",
                [0.0] * WIDTH,
                "the offsets refuse its base vector: X: expected finite, non-zero vectors, got a z",
            ),
            ("Task1", BASE, "nothing was learned of task 'Task1', but of 'held', 'task1': were its rewards"),
            ("held", BASE, "task:held: abstained: made for a test"),
        ],
    )
    def test_it_says_why_it_is_not_steered(self, task, base, reason):
        """One place answers, whatever the reason is; nothing is said where an offset is added."""
        evidence = Evidence(4, None, None, "abstained", "made for a test")
        held = Offset("task", np.zeros(WIDTH), 0.0, 4, evidence, task="held")
        known = Offsets([offsets_of(["task1"])["task:task1"], held], width=WIDTH)
        request = Steering(known, task).request("q")
        steered = request.vector(base) != base

        assert (request.reason == "", request.reason[: len(reason)]) == (steered, reason)

    @pytest.mark.parametrize(
        ("query", "reason"),
        [
            ("other", "nothing was learned of task 'task1' but private offsets, and none serves this query"),
            ("denied", "query:task1/denied: abstained: made for a test"),
            ("q", ""),
        ],
    )
    def test_it_says_so_where_there_are_private_offsets_alone(self, query, reason):
        """The query's own says why it is not served."""
        denied = Evidence(1, None, None, "abstained", "made for a test")
        private = [
            Offset("query", np.ones(WIDTH), 0.5, 1, evidence, None, "task1", name)
            for name, evidence in (("q", UNGATED), ("denied", denied))
        ]

        assert Steering(Offsets(private, width=WIDTH), "task1").request(query).reason == reason

    def test_a_refused_vector_is_forgotten_when_another_is_taken(self, offsets):
        request = Steering(offsets, "task1").request("q")
        request.vector([0.0] * WIDTH)
        refused = request.reason

        assert request.vector(BASE) == offsets.apply(BASE, task="task1")
        assert refused.startswith("the offsets refuse its base vector")
        assert request.reason == ""

    def test_many_tasks_hide_no_other_failure(self, offsets, caplog):
        """Twenty of a kind are logged, and those of another kind still are."""
        steering = Steering(offsets)
        for number in range(30):
            steering.for_task(f"unknown {number}").apply(BASE, "q")
        steering.for_task("task1").apply([0.0] * WIDTH, "q")

        assert len(caplog.messages) == 21
        assert "the offsets refuse its base vector" in caplog.messages[-1]

    @pytest.mark.parametrize(("switch", "reason"), [("1", "TTTEMBED_OFF is set"), ("0", "nothing was published")])
    def test_it_says_why_nothing_is_live(self, switch, reason, monkeypatch):
        monkeypatch.setenv("TTTEMBED_OFF", switch)

        assert Steering(LiveOffsets()).request("q").reason == reason

    @pytest.mark.parametrize("task", ["task1", "unknown"])
    @pytest.mark.parametrize("of", [list, np.int8, np.uint16])
    def test_whole_numbers_stay_whole(self, offsets, task, of, caplog):
        """As quantised vectors have them, with an offset and without one; the log says once that none is served."""
        whole = [3, 120, 5, 20, 0, 7, 7, 1]
        request = Steering(offsets, task).request("q")

        served = [request.vector(of(whole)) for _ in range(2)]

        assert served == [whole] * 2
        assert {type(number) for vector in served for number in vector} == {int}
        assert caplog.text.count("whole numbers") == 1

    def test_the_version_is_looked_up_once(self, offsets):
        """However much is asked of one request."""
        looks = []

        class Counted(LiveOffsets):
            def serving(self, query, task):
                looks.append((query, task))
                return super().serving(query, task)

        request = Steering(Counted(offsets), "task1").request("q")
        request.vector(BASE)
        request.order(["a", "b"], [0.9, 0.8])

        assert not request.needs_scores
        assert looks == [("q", "task1")]
