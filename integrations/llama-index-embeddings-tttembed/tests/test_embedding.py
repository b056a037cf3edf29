"""TTTEmbedding: texts as they were, query vectors with their offset."""

# The wrapped models override methods that their frameworks document.
# ruff: noqa: D102

import logging
import pickle
from collections import Counter
from hashlib import sha256
from threading import Lock
from typing import Any

import numpy as np
import pytest
from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.embeddings import MultiModalEmbedding
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.schema import QueryBundle, TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.core.vector_stores import SimpleVectorStore, VectorStoreQueryResult
from llama_index.embeddings import tttembed
from llama_index.embeddings.tttembed import TTTEmbedding

from tttembed_rag import Evidence, InputError, Offset, Offsets

WIDTH = 16
TEXTS = [f"passage {i}" for i in range(12)]
UNGATED = Evidence(4, None, None, "ungated", "made for a test")


class CountingEmbedding(BaseEmbedding):
    """Vectors drawn from a text's hash, with its own method for each path, and a count of the calls."""

    seed: int = 0
    _calls: Counter = PrivateAttr(default_factory=Counter)

    @classmethod
    def class_name(cls):
        return "CountingEmbedding"

    @property
    def calls(self):
        return dict(self._calls)

    def _get_query_embedding(self, query):
        self._calls["query"] += 1
        return self._vector(f"query: {query}")

    async def _aget_query_embedding(self, query):
        self._calls["async query"] += 1
        return self._vector(f"query: {query}")

    def _get_text_embedding(self, text):
        self._calls["text"] += 1
        return self._vector(text)

    async def _aget_text_embedding(self, text):
        self._calls["async text"] += 1
        return self._vector(text)

    def _get_text_embeddings(self, texts):
        self._calls["texts"] += 1
        return [self._vector(text) for text in texts]

    async def _aget_text_embeddings(self, texts):
        self._calls["async texts"] += 1
        return [self._vector(text) for text in texts]

    def _vector(self, text):
        seed = int.from_bytes(sha256(f"{self.seed} {text}".encode()).digest()[:8])
        return np.random.default_rng(seed).normal(size=WIDTH).tolist()


class ConstantEmbedding(CountingEmbedding):
    """Every vector is the same given value."""

    value: Any

    def _vector(self, _text):
        return self.value


class PictureEmbedding(CountingEmbedding, MultiModalEmbedding):
    """A model that also takes pictures."""

    def _get_image_embedding(self, img_file_path):
        return self._vector(str(img_file_path))

    async def _aget_image_embedding(self, img_file_path):
        return self._vector(str(img_file_path))


class LockedOffsets(Offsets):
    """Offsets that cannot be pickled."""

    def __init__(self):
        super().__init__([], width=WIDTH)
        self.lock = Lock()


def task_offset(task, vector, alpha=0.8):
    """The offset of one task."""
    return Offset(scope="task", task=task, vector=np.asarray(vector), alpha=alpha, n=4, evidence=UNGATED)


@pytest.fixture
def model():
    """The model to wrap; it takes five texts at a time."""
    return CountingEmbedding(model_name="hashes", embed_batch_size=5, num_workers=2)


@pytest.fixture
def offsets():
    """Random offsets of the tasks a and b, and none for any other."""
    draw = np.random.default_rng(0)
    return Offsets([task_offset(task, draw.normal(size=WIDTH)) for task in "ab"], width=WIDTH)


@pytest.fixture
def wrapped(model, offsets):
    """The model with the offset of task a."""
    return TTTEmbedding(model, offsets=offsets, task="a")


def test_public_names():
    """The package exports exactly what it documents."""
    assert tttembed.__all__ == ["TTTEmbedding", "stored_vectors"]


def test_namespace_is_shared_with_core():
    """Neither llama_index nor llama_index.embeddings became a package of ours."""
    import llama_index
    import llama_index.embeddings

    assert getattr(llama_index, "__file__", None) is None
    assert getattr(llama_index.embeddings, "__file__", None) is None


def test_query_path(model, wrapped, offsets):
    """A query is one query call of the wrapped model, steered."""
    assert wrapped.get_query_embedding("q") == offsets.apply(model._vector("query: q"), task="a")
    assert model.calls == {"query": 1}


async def test_async_query_path(model, wrapped, offsets):
    """An async query is one async query call of the wrapped model, steered."""
    assert await wrapped.aget_query_embedding("q") == offsets.apply(model._vector("query: q"), task="a")
    assert model.calls == {"async query": 1}


def test_text_path(model, wrapped):
    """A text is one text call of the wrapped model, bit for bit."""
    assert wrapped.get_text_embedding("t") == model._vector("t")
    assert model.calls == {"text": 1}


async def test_async_text_path(model, wrapped):
    """An async text is one async text call of the wrapped model, bit for bit."""
    assert await wrapped.aget_text_embedding("t") == model._vector("t")
    assert model.calls == {"async text": 1}


def test_batch_path(model, wrapped):
    """Twelve texts in batches of five stay three batches, bit for bit."""
    assert wrapped.get_text_embedding_batch(TEXTS) == [model._vector(text) for text in TEXTS]
    assert model.calls == {"texts": 3}


async def test_async_batch_path(model, wrapped):
    """Twelve texts in async batches of five stay three async batches, bit for bit."""
    assert await wrapped.aget_text_embedding_batch(TEXTS) == [model._vector(text) for text in TEXTS]
    assert model.calls == {"async texts": 3}


def test_query_keeps_its_norm(model, wrapped):
    """The offset turns the query vector and leaves its length."""
    expected = np.linalg.norm(model.get_query_embedding("q"))

    assert np.linalg.norm(wrapped.get_query_embedding("q")) == pytest.approx(expected)


async def test_sync_and_async_agree(wrapped):
    """The async paths return the very numbers of the sync ones."""
    assert await wrapped.aget_query_embedding("q") == wrapped.get_query_embedding("q")
    assert await wrapped.aget_text_embedding("t") == wrapped.get_text_embedding("t")
    assert await wrapped.aget_text_embedding_batch(TEXTS) == wrapped.get_text_embedding_batch(TEXTS)
    assert await wrapped.aget_agg_embedding_from_queries(["q", "r"]) == wrapped.get_agg_embedding_from_queries(
        ["q", "r"]
    )


@pytest.mark.parametrize("task", [None, "unheard of"])
def test_unknown_task_is_bit_identical(model, wrapped, task):
    """A task without an offset gets the base vector."""
    assert wrapped.for_task(task).get_query_embedding("q") == model.get_query_embedding("q")


def test_for_task_keeps_the_original_as_it_was(model, wrapped, offsets):
    """Another task is another object with the same settings."""
    wrapped.embed_batch_size = 7

    other = wrapped.for_task("b")

    base = model.get_query_embedding("q")
    assert other.get_query_embedding("q") == offsets.apply(base, task="b")
    assert wrapped.get_query_embedding("q") == offsets.apply(base, task="a")
    assert other.embed_batch_size == 7


def test_settings_of_the_wrapped_model_are_taken_over(model, wrapped):
    """Name, batch size and workers are those of the wrapped model."""
    assert wrapped.model_name == "hashes"
    assert wrapped.embed_batch_size == 5
    assert wrapped.num_workers == 2
    assert wrapped.base is model
    assert wrapped.class_name() == "TTTEmbedding"


def test_retrieval_order_follows_the_offset(model):
    """A real index over unchanged document vectors ranks by x·z + alpha v·z."""
    documents = np.array([model._vector(text) for text in TEXTS])
    unit_documents = documents / np.linalg.norm(documents, axis=1, keepdims=True)
    query = np.array(model._vector("query: q")) / np.linalg.norm(model._vector("query: q"))
    last = int(np.argmin(unit_documents @ query))
    offsets = Offsets([task_offset("t", 2 * unit_documents[last])], width=WIDTH)
    nodes = [TextNode(text=text, id_=text) for text in TEXTS]
    index = VectorStoreIndex(nodes, embed_model=TTTEmbedding(model, offsets=offsets, task="t"))

    found = [hit.text for hit in index.as_retriever(similarity_top_k=len(TEXTS)).retrieve("q")]

    order = np.argsort(-(unit_documents @ query + 0.8 * 2 * unit_documents @ unit_documents[last]))
    assert found == [TEXTS[i] for i in order]
    assert found[0] == TEXTS[last]
    assert [index.vector_store.get(text) for text in TEXTS] == documents.tolist()


def test_a_reused_query_bundle_keeps_its_first_vector(wrapped):
    """LlamaIndex, not this package, serves a stale vector from a bundle used twice."""
    index = VectorStoreIndex([TextNode(text=text) for text in TEXTS], embed_model=wrapped)
    bundle = QueryBundle("q")
    index.as_retriever().retrieve(bundle)
    other = wrapped.for_task("b")

    index.as_retriever(embed_model=other).retrieve(bundle)

    assert bundle.embedding == wrapped.get_query_embedding("q")
    assert bundle.embedding != other.get_query_embedding("q")


@pytest.mark.parametrize(
    "bad",
    [[float("nan"), 1.0, 0.0], [float("inf"), 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0], []],
    ids=["NaN", "infinite", "zero", "narrow", "empty"],
)
async def test_refused_vector_is_served_as_it_came_and_logged_once(bad, caplog):
    """A query never fails because of us, and the log says once that offsets are not served."""
    offsets = Offsets([task_offset("t", [1.0, 0.0, 0.0])], width=3)
    model = ConstantEmbedding(value=bad)
    wrapped = TTTEmbedding(model, offsets=offsets, task="t")

    served = [
        wrapped.get_query_embedding("q"),
        wrapped.get_query_embedding("q"),
        await wrapped.aget_query_embedding("q"),
    ]

    assert served == [model.value] * 3
    [record] = caplog.records
    assert (record.name, record.levelno) == ("tttembed_rag.serving.request", logging.WARNING)


def test_refusals_are_logged_once_per_task(caplog):
    """A wrapper made anew for every request does not flood the log."""
    wrapped = TTTEmbedding(ConstantEmbedding(value=[1.0]), offsets=Offsets([], width=3))

    for task in ["a", "b", "a", "b"]:
        wrapped.for_task(task).get_query_embedding("q")

    assert ["task='a'" in caplog.messages[0], "task='b'" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2


def test_numpy_vectors_become_python_floats():
    """Stores that serialise to JSON accept the query vector of a careless model."""
    careless = ConstantEmbedding(value=np.array([3.0, 4.0, 0.0], dtype=np.float32))
    offsets = Offsets([task_offset("t", [1.0, 0.0, 0.0])], width=3)

    vector = TTTEmbedding(careless, offsets=offsets, task="t").get_query_embedding("q")

    assert [type(x) for x in vector] == [float, float, float]


def test_callbacks_of_the_wrapper_see_the_steered_vector(model, offsets):
    """The wrapper's own callbacks report what is served."""
    handler = LlamaDebugHandler(print_trace_on_end=False)
    wrapped = TTTEmbedding(model, offsets=offsets, task="a", callback_manager=CallbackManager([handler]))

    served = wrapped.get_query_embedding("q")

    [(_, end)] = handler.get_event_pairs(CBEventType.EMBEDDING)
    assert end.payload[EventPayload.EMBEDDINGS] == [served]


def test_cache_of_the_wrapped_model_holds_base_vectors(model, wrapped):
    """The wrapped model keeps its cache, and nothing steered enters it."""
    model.embeddings_cache = SimpleKVStore()

    first, second = wrapped.get_query_embedding("q"), wrapped.get_query_embedding("q")

    assert first == second
    assert model.calls == {"query": 1}
    assert list(model.embeddings_cache.get("q", collection="embeddings").values()) == [model._vector("query: q")]


def test_cache_on_the_wrapper_is_refused(wrapped):
    """A cache keyed on text alone would hand a steered query vector to a document."""
    with pytest.raises(InputError, match=r"^embeddings_cache: expected None"):
        wrapped.embeddings_cache = SimpleKVStore()

    assert wrapped.embeddings_cache is None


def test_new_offsets_leave_the_ingestion_cache_valid(model, wrapped):
    """The hash of an ingestion step depends on the wrapped model, not on offsets or task."""
    nodes = [TextNode(text="t")]
    refitted = TTTEmbedding(model, offsets=Offsets([], width=WIDTH), task="b")

    assert get_transformation_hash(nodes, refitted) == get_transformation_hash(nodes, wrapped)


def test_another_wrapped_model_is_another_ingestion_step(wrapped, offsets):
    """Two models that differ only in a setting of their own never share cached vectors."""
    nodes = [TextNode(text="t")]
    other = CountingEmbedding(model_name="hashes", embed_batch_size=5, num_workers=2, seed=1)
    other_wrapped = TTTEmbedding(other, offsets=offsets, task="a")

    assert get_transformation_hash(nodes, other_wrapped) != get_transformation_hash(nodes, wrapped)


def test_pickle_round_trip(wrapped):
    """A worker process serves the same vectors with the same settings."""
    wrapped.embed_batch_size = 7

    copy = pickle.loads(pickle.dumps(wrapped))  # noqa: S301 - our own bytes

    assert copy.get_query_embedding("q") == wrapped.get_query_embedding("q")
    assert copy.get_text_embedding_batch(TEXTS) == wrapped.get_text_embedding_batch(TEXTS)
    assert (copy.model_name, copy.embed_batch_size) == ("hashes", 7)


def test_pickling_leaves_callbacks_behind(model, offsets):
    """Handlers hold locks and connections of their process; they do not stop the pickle."""
    handler = LlamaDebugHandler(print_trace_on_end=False)
    handler.lock = Lock()
    wrapped = TTTEmbedding(model, offsets=offsets, task="a", callback_manager=CallbackManager([handler]))

    copy = pickle.loads(pickle.dumps(wrapped))  # noqa: S301 - our own bytes

    assert copy.callback_manager.handlers == []
    assert copy.get_query_embedding("q") == wrapped.get_query_embedding("q")


def test_offsets_that_cannot_be_pickled_stop_the_pickle(model):
    """Unlike other LlamaIndex components, nothing is dropped in silence."""
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(TTTEmbedding(model, offsets=LockedOffsets()))


def test_repr_names_model_offsets_and_task(wrapped):
    """The repr says what is wrapped, what is served and for which task."""
    assert repr(wrapped) == "TTTEmbedding(CountingEmbedding, Offsets(2 offsets, 2 served, width 16), task='a')"


def test_wrapping_twice_is_refused(wrapped, offsets):
    """Two wrappers would add two offsets."""
    with pytest.raises(InputError, match=r"^embed_model: expected an unwrapped model, got TTTEmbedding"):
        TTTEmbedding(wrapped, offsets=offsets)


def test_multi_modal_model_is_refused(offsets):
    """A wrapper without image methods must not pass for one."""
    with pytest.raises(InputError, match=r"^embed_model: .*multi-modal PictureEmbedding"):
        TTTEmbedding(PictureEmbedding(), offsets=offsets)


@pytest.mark.parametrize(
    ("argument", "wrong"), [("embed_model", len), ("offsets", {"task:a": [1.0]}), ("task", ["task1"])]
)
def test_wrong_argument_is_refused_by_name(offsets, argument, wrong):
    """A wrong argument fails at construction, not at the first query."""
    arguments = {"embed_model": MockEmbedding(WIDTH), "offsets": offsets, "task": None, argument: wrong}

    with pytest.raises(InputError, match=f"^{argument}: expected .*, got {type(wrong).__name__}$"):
        TTTEmbedding(**arguments)


@pytest.mark.filterwarnings("ignore")  # the index of this retriever is deprecated, the retriever is not
def test_a_retriever_that_embeds_its_query_as_a_text_is_not_steered(model, wrapped):
    """KGTableRetriever asks for the vector of a text: it finds what it found before, with the base vector."""
    from llama_index.core import KnowledgeGraphIndex
    from llama_index.core.indices.knowledge_graph.retrievers import KGTableRetriever
    from llama_index.core.llms import MockLLM

    index = KnowledgeGraphIndex([], llm=MockLLM(), embed_model=wrapped, include_embeddings=True)
    for thing in ("wool", "silk", "kettle"):
        node = TextNode(text=thing, id_=thing)
        index.upsert_triplet_and_node((thing, "needs", "care"), node, include_embeddings=True)
    retriever = KGTableRetriever(index, llm=MockLLM(), embed_model=wrapped, retriever_mode="embedding")
    before = model.calls
    retriever.retrieve("how do I wash wool?")

    assert {name: count - before.get(name, 0) for name, count in model.calls.items()} == {"text": 1}


def test_a_text_search_asks_for_no_vector(model, wrapped):
    """A store that searches by text is given none, and nothing is steered."""
    asked = []

    class Texts(SimpleVectorStore):
        """A store that notes its queries."""

        def query(self, query, **settings):
            asked.append((query.query_str, query.query_embedding, query.mode))
            return VectorStoreQueryResult(nodes=[], similarities=[], ids=[])

    storage = StorageContext.from_defaults(vector_store=Texts())
    index = VectorStoreIndex([TextNode(text="wool")], embed_model=wrapped, storage_context=storage)
    index.as_retriever(vector_store_query_mode="text_search").retrieve("how do I wash wool?")

    assert asked == [("how do I wash wool?", None, "text_search")]
    assert "query" not in model.calls
