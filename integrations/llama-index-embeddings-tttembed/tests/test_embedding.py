"""What LlamaIndex alone asks of TTTEmbedding; the laws of all wrappers stand in tests/adapters."""

# The wrapped models override methods that their frameworks document.

import pickle
from collections import Counter
from hashlib import sha256
from inspect import iscoroutine
from threading import Lock

import numpy as np
import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.core.embeddings import MultiModalEmbedding
from llama_index.core.ingestion.pipeline import get_transformation_hash
from llama_index.core.schema import TextNode
from llama_index.core.storage.kvstore import SimpleKVStore
from llama_index.embeddings.tttembed import BridgedEmbedding, TTTEmbedding

from tests.adapters.worlds import of_task
from tttembed_rag import InputError, Offsets
from tttembed_rag.embedders import Bridge

WIDTH = 16
TEXTS = [f"passage {i}" for i in range(12)]


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


@pytest.fixture
def model():
    """The model to wrap; it takes five texts at a time."""
    return CountingEmbedding(model_name="hashes", embed_batch_size=5, num_workers=2)


@pytest.fixture
def offsets():
    """Random offsets of the tasks a and b, and none for any other."""
    draw = np.random.default_rng(0)
    return Offsets([of_task(task, draw.normal(size=WIDTH)) for task in "ab"], width=WIDTH)


@pytest.fixture
def wrapped(model, offsets):
    return TTTEmbedding(model, offsets=offsets, task="a")


@pytest.mark.parametrize(
    ("path", "argument", "calls"),
    [
        ("get_query_embedding", "q", {"query": 1}),
        ("aget_query_embedding", "q", {"async query": 1}),
        ("get_text_embedding", "t", {"text": 1}),
        ("aget_text_embedding", "t", {"async text": 1}),
        ("get_text_embedding_batch", TEXTS, {"texts": 3}),
        ("aget_text_embedding_batch", TEXTS, {"async texts": 3}),
    ],
)
async def test_a_path_is_the_same_path_of_the_wrapped_model(model, wrapped, offsets, path, argument, calls):
    """Texts bit for bit, and twelve of them in batches of five are three batches; queries with their offset."""
    result = getattr(wrapped, path)(argument)
    vectors = await result if iscoroutine(result) else result

    if "query" in path:
        assert vectors == offsets.apply(model._vector("query: q"), task="a")
    else:
        expected = [model._vector(text) for text in TEXTS] if argument is TEXTS else model._vector("t")
        assert vectors == expected
    assert model.calls == calls


async def test_several_queries_have_their_mean(wrapped):
    queries = ["q", "r"]
    mean = np.mean([wrapped.get_query_embedding(query) for query in queries], axis=0)

    assert wrapped.get_agg_embedding_from_queries(queries) == pytest.approx(mean)
    assert await wrapped.aget_agg_embedding_from_queries(queries) == pytest.approx(mean)


def test_another_task_and_another_process_keep_settings(wrapped):
    wrapped.embed_batch_size = 7

    others = [wrapped.for_task("b"), pickle.loads(pickle.dumps(wrapped))]  # noqa: S301 - our own bytes

    assert [(other.model_name, other.embed_batch_size) for other in others] == [("hashes", 7)] * 2


async def test_one_text_crosses_a_bridge_too(model):
    new = model.get_text_embedding_batch([f"passage {number}" for number in range(60)])
    bridge = Bridge.learn(new, np.random.default_rng(0).normal(size=(60, 8)))
    bridged = BridgedEmbedding(model, bridge)

    expected = pytest.approx(bridge.apply(new[0], documents=True).tolist())
    assert bridged.get_text_embedding("passage 0") == await bridged.aget_text_embedding("passage 0") == expected


def test_settings_of_the_wrapped_model_are_taken_over(model, wrapped):
    """Name, batch size and workers are those of the wrapped model."""
    assert wrapped.model_name == "hashes"
    assert wrapped.embed_batch_size == 5
    assert wrapped.num_workers == 2
    assert wrapped.base is model
    assert wrapped.class_name() == "TTTEmbedding"


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
    nodes = [TextNode(text="t")]
    refitted = TTTEmbedding(model, offsets=Offsets([], width=WIDTH), task="b")

    assert get_transformation_hash(nodes, refitted) == get_transformation_hash(nodes, wrapped)


def test_another_wrapped_model_is_another_ingestion_step(wrapped, offsets):
    """Two models that differ only in a setting of their own never share cached vectors."""
    nodes = [TextNode(text="t")]
    other = CountingEmbedding(model_name="hashes", embed_batch_size=5, num_workers=2, seed=1)
    other_wrapped = TTTEmbedding(other, offsets=offsets, task="a")

    assert get_transformation_hash(nodes, other_wrapped) != get_transformation_hash(nodes, wrapped)


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


def test_multi_modal_model_is_refused(offsets):
    """A wrapper without image methods must not pass for one."""
    with pytest.raises(InputError, match=r"^embed_model: .*multi-modal PictureEmbedding"):
        TTTEmbedding(PictureEmbedding(), offsets=offsets)
