"""A wrapped model: documents as they were, query vectors with their offset."""

import logging
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.adapters.worlds import TEXTS, WIDTH, Vectors, drawn, of_task
from tttembed_rag import InputError, LiveOffsets, Offsets, RewardLog, TextVectors, context
from tttembed_rag.embedders import Bridge

OFFSETS = Offsets([of_task(f"task{i}", drawn(f"task {i}")) for i in range(32)], width=WIDTH)
BASE = drawn("query: q")
SERVED = OFFSETS.apply(BASE, task="task1")
ALONG = Offsets([of_task("t", [1.0, 0.0, 0.0])], width=3)


@pytest.fixture
def wrapped(adapter):
    """A model with the offset of one task."""
    return adapter.wrap(adapter.model(), OFFSETS, task="task1")


def test_modules_export_what_they_document(embedder):
    """Each name that a module lists is loaded when it is asked for."""
    for module in embedder.modules:
        defined = [getattr(getattr(module, name), "__name__", name) for name in module.__all__]

        assert defined == sorted(module.__all__)


async def test_a_query_gets_the_offset_of_its_task(embedder):
    wrapped = embedder.wrap(embedder.model(), OFFSETS, task="task1")

    assert embedder.embed(wrapped, "q") == await embedder.aembed(wrapped, "q") == SERVED != BASE


def test_a_query_keeps_its_norm(embedder):
    wrapped = embedder.wrap(embedder.model(), OFFSETS, task="task1")

    assert np.linalg.norm(embedder.embed(wrapped, "q")) == pytest.approx(np.linalg.norm(BASE))


async def test_documents_are_bit_identical(adapter, wrapped):
    expected = [drawn(text) for text in TEXTS]

    assert adapter.documents(wrapped, TEXTS) == await adapter.adocuments(wrapped, TEXTS) == expected


@pytest.mark.parametrize("task", [None, "unheard of"])
async def test_an_unknown_task_is_served_the_base_vector(embedder, task):
    wrapped = embedder.wrap(embedder.model(), OFFSETS, task=task)

    assert embedder.embed(wrapped, "q") == await embedder.aembed(wrapped, "q") == BASE


def test_no_task_looks_up_the_default_task(embedder):
    """The offset that was learned from rewards without task keys."""
    offsets = Offsets([of_task("default", np.eye(WIDTH)[0])], width=WIDTH)

    assert embedder.embed(embedder.wrap(embedder.model(), offsets), "q") == offsets.apply(BASE)


async def test_the_base_vector_stays_reachable(adapter, wrapped):
    assert wrapped.embed_query_base("q") == await wrapped.aembed_query_base("q") == BASE


async def test_the_callers_context_names_the_task(embedder):
    """Sync and async; outside it there is none, and a fixed task comes first."""
    free, fixed = (embedder.wrap(embedder.model(), OFFSETS, task=task) for task in (None, "task1"))
    with context(task="task3"):
        inside = [embedder.embed(free, "q"), await embedder.aembed(free, "q")]
        own = embedder.embed(fixed, "q")

    assert inside == [OFFSETS.apply(BASE, task="task3")] * 2
    assert (embedder.embed(free, "q"), own) == (BASE, SERVED)


def test_a_function_reads_the_task_from_the_query(adapter):
    wrapped = adapter.wrap(adapter.model(), OFFSETS, task=lambda query: f"task{len(query)}")

    assert adapter.embed(wrapped, "q") == SERVED


def test_another_task_is_another_object(adapter, wrapped):
    other = wrapped.for_task("task2")

    assert adapter.embed(other, "q") == OFFSETS.apply(BASE, task="task2")
    assert adapter.embed(wrapped, "q") == SERVED


def test_published_offsets_need_no_new_wrapper(adapter):
    live = LiveOffsets(Offsets([], width=WIDTH))
    wrapped = adapter.wrap(adapter.model(), live, task="task1")
    before = adapter.embed(wrapped, "q")

    live.publish(OFFSETS)

    assert (before, adapter.embed(wrapped, "q")) == (BASE, SERVED)


def test_rewards_are_learned_from_base_vectors(adapter):
    """A published offset never leaks into the rewards of the next one; documents are embedded once."""
    log, vectors = RewardLog("judge"), TextVectors()
    log.record("q", TEXTS[:3], [0.1, 0.2, 0.3], task="task1")
    wrapped = adapter.wrap(adapter.model(), OFFSETS, task="task1", vectors=vectors)

    rewards = [wrapped.rewards(log) for _ in range(2)][1]

    assert rewards.query_vectors.tolist() == [BASE]
    assert rewards.doc_vectors.tolist() == [np.float32(drawn(text)).tolist() for text in TEXTS[:3]]
    assert (vectors.embedded, vectors.remembered) == (3, 3)


@pytest.mark.parametrize(
    "bad",
    [[float("nan"), 1.0, 0.0], [float("inf"), 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0], []],
    ids=["NaN", "infinite", "zero", "narrow", "empty"],
)
async def test_a_refused_vector_is_served_as_it_came_and_logged_once(embedder, bad, caplog):
    wrapped = embedder.wrap(embedder.model(Vectors(bad)), ALONG, task="t")

    served = [embedder.embed(wrapped, "q"), embedder.embed(wrapped, "q"), await embedder.aembed(wrapped, "q")]

    assert repr(served) == repr([bad] * 3)
    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("tttembed_rag.serving.steering", logging.WARNING)
    ]


def test_refusals_are_logged_once_per_task(adapter, caplog):
    """A wrapper that is made anew for every request does not flood the log."""
    wrapped = adapter.wrap(adapter.model(Vectors([1.0])), Offsets([], width=3))

    for task in ["a", "b", "a", "b"]:
        adapter.embed(wrapped.for_task(task), "q")

    assert ["task 'a'" in caplog.messages[0], "task 'b'" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("task", ["t", "unheard of"])
def test_numpy_vectors_become_python_floats(embedder, task):
    """Stores that check for Python floats, or write JSON, take the query vector of a careless model."""
    careless = embedder.model(Vectors(np.array([3.0, 4.0, 0.0], dtype=np.float32)))

    vector = embedder.embed(embedder.wrap(careless, ALONG, task=task), "q")

    assert [type(x) for x in vector] == [float, float, float]


def test_another_process_serves_the_same_vectors(adapter, wrapped):
    copy = pickle.loads(pickle.dumps(wrapped))  # noqa: S301 - our own bytes

    assert adapter.embed(copy, "q") == SERVED
    assert adapter.documents(copy, TEXTS) == adapter.documents(wrapped, TEXTS)


def test_the_repr_names_model_offsets_and_task(adapter, wrapped):
    assert repr(wrapped) == f"{adapter.wrapper}(Model, Offsets(32 offsets, 32 served, width 12), task='task1')"


def test_the_wrapped_model_is_handed_back(adapter):
    model = adapter.model()

    assert adapter.wrap(model, OFFSETS).base is model


def test_wrapping_twice_is_refused(embedder):
    """Two wrappers would add two offsets."""
    with pytest.raises(
        InputError, match=rf"^{embedder.argument}: expected .*, got {embedder.wrapper}; pass its \.\w+$"
    ):
        embedder.wrap(embedder.wrap(embedder.model(), OFFSETS), OFFSETS)


@pytest.mark.parametrize(("argument", "wrong"), [("model", len), ("offsets", {"task:a": [1.0]}), ("task", ["task1"])])
def test_a_wrong_argument_is_refused_by_name(adapter, argument, wrong):
    """At construction, not at the first query."""
    arguments = {"model": adapter.model(), "offsets": OFFSETS, "task": None, argument: wrong}
    name = adapter.argument if argument == "model" else argument

    with pytest.raises(InputError, match=f"^{name}: expected .*, got {type(wrong).__name__}$"):
        adapter.wrap(**arguments)


async def test_a_new_model_searches_and_fills_an_old_index_across_a_bridge(adapter):
    """It is a model like any other, so that offsets are served above it."""
    model = adapter.model()
    new = adapter.documents(model, TEXTS)
    bridge = Bridge.learn(new, np.random.default_rng(0).normal(size=(len(TEXTS), 8)))
    bridged = adapter.bridged(model, bridge)
    vector, documents = adapter.embed(bridged, "q"), adapter.documents(bridged, TEXTS)

    assert vector == await adapter.aembed(bridged, "q") == bridge.apply(adapter.embed(model, "q")).tolist()
    assert_allclose(documents, bridge.apply(new, documents=True))
    assert_allclose(await adapter.adocuments(bridged, TEXTS), documents)
    assert_allclose(adapter.documents(bridged, TEXTS[:1]), documents[:1])
    assert adapter.documents(bridged, []) == []
    assert adapter.embed(adapter.wrap(bridged, Offsets([], width=8)), "q") == vector
