"""Every tap writes into a real store, and a wrapper follows what is published there."""

# The parts override methods that their framework documents.

import pickle

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.schema import TextNode
from llama_index.embeddings.tttembed import TTTEmbedding
from llama_index.postprocessor.tttembed import RewardEventHandler, RewardPostprocessor
from llama_index.retrievers.tttembed import RewardRetriever
from tttembed_store import StoreLog, follow, open_store

from tttembed_rag import LiveOffsets, context, fit
from tttembed_rag.testing import FakeJudge

WIDTH = 12
TEXTS = [f"passage {i}" for i in range(20)]


class Drawn(BaseEmbedding):
    """Vectors drawn from a text's length and last digit."""

    def _get_query_embedding(self, query):
        return np.linspace(-1.0, 2.0, WIDTH).tolist()

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text):
        return np.random.default_rng([len(text), int(text[-1])]).normal(size=WIDTH).tolist()


def digits():
    """A judge that scores a text by the digit at its end, in tenths."""
    return FakeJudge(lambda _, text: int(text[-1]) / 10, fingerprint="judge")


@pytest.fixture
def url(tmp_path):
    """The URL of a store on disk."""
    return f"sqlite:///{tmp_path}/ttt.db"


@pytest.fixture
def store(url):
    """That store, opened."""
    with open_store(url) as store:
        yield store


@pytest.fixture
def wrapped():
    """A wrapper without offsets."""
    return TTTEmbedding(Drawn(), offsets=LiveOffsets())


@pytest.fixture
def log(store, wrapped):
    """A log that finds vectors with the wrapped model."""
    with StoreLog(
        store, digits(), embed_query=wrapped.embed_query_base, embed_documents=wrapped.get_text_embedding_batch
    ) as log:
        yield log


@pytest.fixture
def retriever(wrapped):
    """Five nodes at a time of a real index."""
    index = VectorStoreIndex([TextNode(text=text, id_=text) for text in TEXTS], embed_model=wrapped)
    return index.as_retriever(similarity_top_k=5)


def rewarded(store, log, tenant=""):
    """Tasks with the number of their rewarded pairs."""
    log.flush()
    rewards = store.rewards("judge", tenant=tenant)
    return dict(zip(rewards.tasks.tolist(), rewards.depths.tolist(), strict=True))


def test_a_rerankers_scores_reach_the_store(store, log, retriever):
    """Scores of all nodes are rewards there, under the caller's task and tenant."""
    nodes = retriever.retrieve("q")
    with context(task="billing", tenant="acme"):
        RewardPostprocessor(log, digits(), top_n=2).postprocess_nodes(nodes, query_str="q")

    assert rewarded(store, log, "acme") == {"billing": 5}


async def test_retrievals_reach_the_store(store, log, retriever):
    """What retrievers report waits there for a judge, of the tenant that asked, sync and async."""
    handler = RewardEventHandler(log)
    get_dispatcher().add_event_handler(handler)
    with context(task="billing", tenant="acme"):
        retriever.retrieve("q")
        await retriever.aretrieve("r")
    handler.enabled = False
    log.flush()

    waiting = store.judge_queue.waiting("judge", tenant="acme")
    assert sorted((one.query, one.task, len(one.candidates)) for one in waiting) == [
        ("q", "billing", 5),
        ("r", "billing", 5),
    ]


def test_a_retriever_that_judges_fills_the_store(store, log, retriever, wrapped):
    """Its verdicts are rewards there, and can be fitted."""
    RewardRetriever(retriever, wrapped, digits(), log=log).retrieve("q")

    assert rewarded(store, log) == {"default": 5}
    assert list(fit(store.rewards("judge"), scope="task", gate=False)) == ["task:default"]


async def test_a_retriever_hands_on_its_query_vector(store, retriever, wrapped):
    """Nobody embeds a query again whose base vector was searched with, sync or async."""
    with StoreLog(store, digits(), embed_documents=wrapped.get_text_embedding_batch) as log:
        judging = RewardRetriever(retriever, wrapped, digits(), log=log)
        judging.retrieve("q")
        await judging.aretrieve("r")

    assert np.allclose(store.rewards("judge").query_vectors, [wrapped.embed_query_base("q")] * 2, rtol=1e-6)


def test_a_wrapper_follows_the_store(store, url, log, retriever):
    """What was learned from the store and published there turns queries, in a pickled wrapper too."""
    RewardPostprocessor(log, digits()).postprocess_nodes(retriever.retrieve("q"), query_str="q")
    log.flush()
    offsets = fit(store.rewards("judge"), scope="task", gate=False)
    store.registry.publish(offsets, by="test")

    following = TTTEmbedding(Drawn(), offsets=follow(url))
    copy = pickle.loads(pickle.dumps(following))  # noqa: S301 - our own bytes

    base = following.embed_query_base("q")
    assert following.get_query_embedding("q") == copy.get_query_embedding("q") == offsets.apply(base)
    assert following.get_query_embedding("q") != base


async def test_a_query_is_served_what_was_learned_from_it(store, url, log, retriever):
    """The private offset of a text that was judged before, sync, async and in a pickled wrapper; no other text's."""
    with context(task="billing", tenant="acme"):
        RewardPostprocessor(log, digits()).postprocess_nodes(retriever.retrieve("q"), query_str="q")
    log.flush()
    offsets = fit(store.rewards("judge", tenant="acme"), scope="query", gate=False)
    store.registry.publish(offsets, by="test", tenant="acme")
    following = TTTEmbedding(Drawn(), offsets=follow(url, tenant="acme"), task="billing")
    copy = pickle.loads(pickle.dumps(following))  # noqa: S301 - our own bytes
    base = following.embed_query_base("q")

    served = [following.get_query_embedding("q"), await following.aget_query_embedding("q")]

    assert served == [offsets.apply(base, task="billing", query_id=store.text_id("q"))] * 2 != [base] * 2
    assert (copy.get_query_embedding("q"), copy.get_query_embedding("r")) == (served[0], base)
