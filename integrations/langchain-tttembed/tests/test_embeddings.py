"""TTTEmbeddings: documents as they were, query vectors with their offset."""

# The wrapped models override methods that their frameworks document.
# ruff: noqa: D102

import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import Barrier

import langchain_tttembed
import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import TTTEmbeddings

from tttembed_rag import Evidence, InputError, LiveOffsets, Offset, Offsets, RewardLog, TextVectors, context

WIDTH = 16
TEXTS = [f"passage {i}" for i in range(12)]
UNGATED = Evidence(4, None, None, "ungated", "made for a test")


class HashEmbeddings(Embeddings):
    """Vectors drawn from a text's hash, of norms around sqrt(width)."""

    def __init__(self, width=WIDTH):
        self.width = width

    def embed_documents(self, texts):
        return [self._vector(text) for text in texts]

    def embed_query(self, text):
        return self._vector(f"query: {text}")

    async def aembed_documents(self, texts):
        return self.embed_documents(texts)

    async def aembed_query(self, text):
        return self.embed_query(text)

    def _vector(self, text):
        seed = int.from_bytes(sha256(text.encode()).digest()[:8])
        return np.random.default_rng(seed).normal(size=self.width).tolist()


class PromptedEmbeddings(HashEmbeddings):
    """A provider whose methods take a keyword of their own."""

    def embed_documents(self, texts, *, task_type="document"):
        return super().embed_documents([f"{task_type} {text}" for text in texts])

    def embed_query(self, text, *, task_type="query"):
        return super().embed_query(f"{task_type} {text}")

    async def aembed_documents(self, texts, *, task_type="document"):
        return self.embed_documents(texts, task_type=task_type)

    async def aembed_query(self, text, *, task_type="query"):
        return self.embed_query(text, task_type=task_type)


class ConstantEmbeddings(HashEmbeddings):
    """Every vector is the same given value, whatever its type."""

    def __init__(self, value):
        self.value = value

    def _vector(self, _text):
        return self.value


def task_offset(task, vector, alpha=0.8):
    """The offset of one task."""
    return Offset(scope="task", task=task, vector=np.asarray(vector), alpha=alpha, n=4, evidence=UNGATED)


@pytest.fixture
def model():
    """The model to wrap."""
    return HashEmbeddings()


@pytest.fixture
def offsets():
    """Random offsets of 32 tasks, and none for any other."""
    draw = np.random.default_rng(0)
    return Offsets([task_offset(f"task{i}", draw.normal(size=WIDTH)) for i in range(32)], width=WIDTH)


def test_public_names():
    """Each name that the package lists is loaded when it is asked for."""
    defined = {name: getattr(langchain_tttembed, name).__name__ for name in langchain_tttembed.__all__}

    assert list(defined) == sorted(defined) == list(defined.values())


def test_query_gets_the_offset_of_its_task(model, offsets):
    """A steered query vector is what Offsets.apply makes of the base vector."""
    expected = offsets.apply(model.embed_query("q"), task="task1")

    actual = TTTEmbeddings(model, offsets=offsets, task="task1").embed_query("q")

    assert actual == expected
    assert actual != model.embed_query("q")


def test_query_keeps_its_norm(model, offsets):
    """The offset turns the query vector and leaves its length."""
    steered = TTTEmbeddings(model, offsets=offsets, task="task1").embed_query("q")

    assert np.linalg.norm(steered) == pytest.approx(np.linalg.norm(model.embed_query("q")))


async def test_sync_and_async_agree(model, offsets):
    """The async methods return the very numbers of the sync ones."""
    wrapped = TTTEmbeddings(model, offsets=offsets, task="task1")

    assert await wrapped.aembed_query("q") == wrapped.embed_query("q")
    assert await wrapped.aembed_documents(TEXTS) == wrapped.embed_documents(TEXTS)
    assert await wrapped.aembed_query_base("q") == wrapped.embed_query_base("q")


async def test_documents_are_bit_identical(model, offsets):
    """Documents never see an offset."""
    wrapped = TTTEmbeddings(model, offsets=offsets, task="task1")

    assert wrapped.embed_documents(TEXTS) == model.embed_documents(TEXTS)
    assert await wrapped.aembed_documents(TEXTS) == model.embed_documents(TEXTS)


@pytest.mark.parametrize("task", [None, "unheard of"])
async def test_unknown_task_is_bit_identical(model, offsets, task):
    """A task without an offset gets the base vector."""
    wrapped = TTTEmbeddings(model, offsets=offsets, task=task)

    assert wrapped.embed_query("q") == model.embed_query("q")
    assert await wrapped.aembed_query("q") == model.embed_query("q")


def test_no_task_looks_up_the_default_task(model):
    """Without a task the offset learned from rewards without task keys is served."""
    offsets = Offsets([task_offset("default", np.eye(WIDTH)[0])], width=WIDTH)

    assert TTTEmbeddings(model, offsets=offsets).embed_query("q") == offsets.apply(model.embed_query("q"))


def test_base_query_has_no_offset(model, offsets):
    """The base vector stays reachable."""
    assert TTTEmbeddings(model, offsets=offsets, task="task1").embed_query_base("q") == model.embed_query("q")


def test_retrieval_order_follows_the_offset(model):
    """A vector store over unchanged documents ranks by x·z + alpha v·z."""
    documents = np.array(model.embed_documents(TEXTS))
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    query = np.array(model.embed_query("q")) / np.linalg.norm(model.embed_query("q"))
    last = int(np.argmin(documents @ query))
    wrapped = TTTEmbeddings(model, offsets=Offsets([task_offset("t", 2 * documents[last])], width=WIDTH), task="t")
    store = InMemoryVectorStore.from_texts(TEXTS, wrapped)

    found = [document.page_content for document in store.similarity_search("q", k=len(TEXTS))]

    order = np.argsort(-(documents @ query + 0.8 * 2 * documents @ documents[last]))
    assert found == [TEXTS[i] for i in order]
    assert found[0] == TEXTS[last]


@pytest.mark.parametrize(
    "bad",
    [[float("nan"), 1.0, 0.0], [float("inf"), 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0], [], None],
    ids=["NaN", "infinite", "zero", "narrow", "empty", "nothing"],
)
async def test_refused_vector_is_served_as_it_came_and_logged_once(bad, caplog):
    """A query never fails because of us, and the log says once that offsets are not served."""
    offsets = Offsets([task_offset("t", [1.0, 0.0, 0.0])], width=3)
    wrapped = TTTEmbeddings(ConstantEmbeddings(bad), offsets=offsets, task="t")

    served = [wrapped.embed_query("q"), wrapped.embed_query("q"), await wrapped.aembed_query("q")]

    assert all(vector is bad for vector in served)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("tttembed_rag.serving.request", logging.WARNING)


def test_refusals_are_logged_once_per_task(caplog):
    """A wrapper made anew for every request does not flood the log."""
    wrapped = TTTEmbeddings(ConstantEmbeddings([1.0]), offsets=Offsets([], width=3))

    for task in ["a", "b", "a", "b"]:
        wrapped.for_task(task).embed_query("q")

    assert ["task='a'" in caplog.messages[0], "task='b'" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("task", ["t", "unheard of"])
def test_numpy_vectors_become_python_floats(task):
    """Stores that check for Python floats accept the query vector of a careless provider."""
    careless = ConstantEmbeddings(np.array([3.0, 4.0, 0.0], dtype=np.float32))
    offsets = Offsets([task_offset("t", [1.0, 0.0, 0.0])], width=3)

    vector = TTTEmbeddings(careless, offsets=offsets, task=task).embed_query("q")

    assert [type(x) for x in vector] == [float, float, float]


def test_text_may_be_passed_by_keyword(model, offsets):
    """langchain-postgres and semantic caches call embed_query(text=...)."""
    wrapped = TTTEmbeddings(model, offsets=offsets, task="task1")

    assert wrapped.embed_query(text="q") == wrapped.embed_query("q")
    assert wrapped.embed_documents(texts=TEXTS) == wrapped.embed_documents(TEXTS)


async def test_provider_keywords_are_forwarded(offsets):
    """All methods hand provider keywords to the wrapped method."""
    provider = PromptedEmbeddings()
    wrapped = TTTEmbeddings(provider, offsets=offsets)
    query = provider.embed_query("q", task_type="fact")
    documents = provider.embed_documents(TEXTS, task_type="fact")

    assert wrapped.embed_query("q", task_type="fact") == query
    assert await wrapped.aembed_query("q", task_type="fact") == query
    assert wrapped.embed_query_base("q", task_type="fact") == query
    assert await wrapped.aembed_query_base("q", task_type="fact") == query
    assert wrapped.embed_documents(TEXTS, task_type="fact") == documents
    assert await wrapped.aembed_documents(TEXTS, task_type="fact") == documents


def test_attributes_of_the_wrapped_object_are_not_exposed(model, offsets):
    """A store that looks for a provider's shortcut must not find a way around the offset."""
    model.embed_query_inline_template = "embedding(...)"

    assert not hasattr(TTTEmbeddings(model, offsets=offsets), "embed_query_inline_template")


def test_base_is_the_wrapped_object(model, offsets):
    """The wrapped object is handed back as it is."""
    assert TTTEmbeddings(model, offsets=offsets).base is model


def test_for_task_keeps_the_original_as_it_was(model, offsets):
    """Another task is another object."""
    wrapped = TTTEmbeddings(model, offsets=offsets, task="task1")

    other = wrapped.for_task("task2")

    assert other.embed_query("q") == offsets.apply(model.embed_query("q"), task="task2")
    assert wrapped.embed_query("q") == offsets.apply(model.embed_query("q"), task="task1")


async def test_the_callers_context_is_served(model, offsets):
    """Without a fixed task the offset is that of the caller's context, sync and async; outside it there is none."""
    wrapped = TTTEmbeddings(model, offsets=offsets)
    with context(task="task3"):
        inside = [wrapped.embed_query("q"), await wrapped.aembed_query("q")]

    assert inside == [offsets.apply(model.embed_query("q"), task="task3")] * 2
    assert wrapped.embed_query("q") == model.embed_query("q")


def test_the_callers_context_reaches_a_store_in_every_way_to_run_it(model, offsets):
    """Retrievers, sequences, parallel steps and batches carry the context into embed_query."""
    store = InMemoryVectorStore.from_texts(TEXTS, TTTEmbeddings(model, offsets=offsets))
    fixed = InMemoryVectorStore.from_texts(TEXTS, TTTEmbeddings(model, offsets=offsets, task="task3"))
    retriever = store.as_retriever()
    ways = [
        retriever.invoke,
        (RunnableLambda(str) | retriever).invoke,
        lambda query: RunnableParallel(a=retriever, b=retriever).invoke(query)["b"],
        lambda query: retriever.batch([query, query])[1],
    ]
    with context(task="task3"):
        found = [[one.page_content for one in way("q")] for way in ways]

    expected = [one.page_content for one in fixed.as_retriever().invoke("q")]
    assert found == [expected] * len(ways)
    assert expected != [one.page_content for one in retriever.invoke("q")]


def test_a_resolver_reads_the_query(model, offsets):
    """A function from query to task chooses the offset."""
    wrapped = TTTEmbeddings(model, offsets=offsets, task=lambda query: f"task{len(query)}")

    assert wrapped.embed_query("abc") == offsets.apply(model.embed_query("abc"), task="task3")


def test_published_offsets_reach_a_store_that_was_built_before(model, offsets):
    """Publishing needs no new wrapper and no new index."""
    live = LiveOffsets(Offsets([], width=WIDTH))
    wrapped = TTTEmbeddings(model, offsets=live, task="task1")
    before = wrapped.embed_query("q")

    live.publish(offsets)

    assert before == model.embed_query("q")
    assert wrapped.embed_query("q") == offsets.apply(before, task="task1")


def test_rewards_are_learned_from_base_vectors(model, offsets):
    """A published offset never leaks into the rewards of the next one; documents are embedded once."""
    log = RewardLog("judge")
    log.record("q", TEXTS[:3], [0.1, 0.2, 0.3], task="task1")
    vectors = TextVectors()
    wrapped = TTTEmbeddings(model, offsets=offsets, task="task1", vectors=vectors)

    rewards = [wrapped.rewards(log) for _ in range(2)]

    assert rewards[1].query_vectors.tolist() == [model.embed_query("q")]
    assert rewards[1].doc_vectors.tolist() == np.float32(model.embed_documents(TEXTS[:3])).tolist()
    assert (vectors.embedded, vectors.remembered) == (3, 3)


def test_threads_with_different_tasks_do_not_mix(model, offsets):
    """32 threads, each with its own task, each get their own offset."""
    wrapped = TTTEmbeddings(model, offsets=offsets)
    together = Barrier(32)

    def serve(task):
        mine = wrapped.for_task(task)
        together.wait()
        return [mine.embed_query(f"q{i}") for i in range(20)]

    tasks = [f"task{i}" for i in range(32)]
    with ThreadPoolExecutor(32) as pool:
        served = list(pool.map(serve, tasks))

    expected = [[offsets.apply(model.embed_query(f"q{i}"), task=task) for i in range(20)] for task in tasks]
    assert served == expected


def test_pickle_round_trip(model, offsets):
    """Another process serves the same vectors."""
    wrapped = TTTEmbeddings(model, offsets=offsets, task="task1")

    copy = pickle.loads(pickle.dumps(wrapped))  # noqa: S301 - our own bytes

    assert copy.embed_query("q") == wrapped.embed_query("q")
    assert copy.embed_documents(TEXTS) == wrapped.embed_documents(TEXTS)


def test_repr_names_model_offsets_and_task(model, offsets):
    """The repr says what is wrapped, what is served and for which task."""
    wrapped = TTTEmbeddings(model, offsets=offsets, task="task1")

    assert repr(wrapped) == "TTTEmbeddings(HashEmbeddings, Offsets(32 offsets, 32 served, width 16), task='task1')"


def test_wrapping_twice_is_refused(model, offsets):
    """Two wrappers would add two offsets."""
    with pytest.raises(InputError, match=r"^embeddings: expected unwrapped embeddings, got TTTEmbeddings"):
        TTTEmbeddings(TTTEmbeddings(model, offsets=offsets), offsets=offsets)


@pytest.mark.parametrize(
    ("argument", "wrong"), [("embeddings", len), ("offsets", {"task:a": [1.0]}), ("task", ["task1"])]
)
def test_wrong_argument_is_refused_by_name(model, offsets, argument, wrong):
    """A wrong argument fails at construction, not at the first query."""
    arguments = {"embeddings": model, "offsets": offsets, "task": None, argument: wrong}

    with pytest.raises(InputError, match=f"^{argument}: expected .*, got {type(wrong).__name__}$"):
        TTTEmbeddings(**arguments)
