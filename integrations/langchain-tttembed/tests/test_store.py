"""Every tap writes into a real store, and a wrapper follows what is published there."""

# The wrapped parts override methods that their framework documents.
# ruff: noqa: D102

import numpy as np
import pytest
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import (
    RecordingCompressor,
    RecordingCrossEncoder,
    RewardCallbackHandler,
    RewardRetriever,
    TTTEmbeddings,
)
from tttembed_store import StoreLog, follow, open_store

from tttembed_rag import LiveOffsets, context, fit
from tttembed_rag.testing import FakeJudge

TEXTS = [f"passage {i}" for i in range(6)]


class Lengths(BaseCrossEncoder):
    """Scores a text by the digit at its end, in tenths."""

    def score(self, text_pairs):
        return [int(text[-1]) / 10 for _, text in text_pairs]


class Scored(BaseDocumentCompressor):
    """Leaves a score on every document."""

    def compress_documents(self, documents, query, callbacks=None):
        return [one.model_copy(update={"metadata": {"relevance_score": 0.7}}) for one in documents]


def digits():
    """A judge that scores a text by the digit at its end, in tenths."""
    return FakeJudge(lambda _, text: int(text[-1]) / 10, fingerprint="judge")


@pytest.fixture
def store(tmp_path):
    """A store on disk."""
    with open_store(f"sqlite:///{tmp_path}/ttt.db") as store:
        yield store


@pytest.fixture
def wrapped():
    """A wrapper without offsets."""
    return TTTEmbeddings(DeterministicFakeEmbedding(size=8), offsets=LiveOffsets())


@pytest.fixture
def log(store, wrapped):
    """A log that finds vectors with the wrapped model."""
    with StoreLog(
        store, digits(), embed_query=wrapped.embed_query_base, embed_documents=wrapped.embed_documents
    ) as log:
        yield log


@pytest.fixture
def found(wrapped):
    """A real vector store."""
    return InMemoryVectorStore.from_texts(TEXTS, wrapped)


def rewarded(store, log, tenant=""):
    """Tasks with the number of their rewarded pairs."""
    log.flush()
    rewards = store.rewards("judge", tenant=tenant)
    return dict(zip(rewards.tasks.tolist(), rewards.depths.tolist(), strict=True))


def test_a_cross_encoders_scores_reach_the_store(store, log):
    """Scores are rewards there, under the caller's task and tenant."""
    with context(task="billing", tenant="acme"):
        RecordingCrossEncoder(Lengths(), log).score([("q", text) for text in TEXTS[:3]])

    assert rewarded(store, log, "acme") == {"billing": 3}


def test_a_compressors_scores_reach_the_store(store, log):
    """What a compressor leaves a score on is a reward."""
    RecordingCompressor(compressor=Scored(), log=log).compress_documents([Document(text) for text in TEXTS[:2]], "q")

    assert rewarded(store, log) == {"default": 2}


async def test_retrievals_reach_the_store(store, log, found):
    """What retrievers found waits there for a judge, of the tenant that asked, sync and async."""
    config = {"callbacks": [RewardCallbackHandler(log)]}
    retriever = found.as_retriever(search_kwargs={"k": 3})
    with context(task="billing", tenant="acme"):
        retriever.invoke("q", config)
        await retriever.ainvoke("r", config)
    log.flush()

    waiting = store.judge_queue.waiting("judge", tenant="acme")
    assert sorted((one.query, one.task, len(one.candidates)) for one in waiting) == [
        ("q", "billing", 3),
        ("r", "billing", 3),
    ]
    assert store.counts("").queries == 0


def test_a_retriever_that_judges_fills_the_store(store, log, found, wrapped):
    """Its verdicts are rewards there, and can be fitted."""
    retriever = RewardRetriever(vectorstore=found, embeddings=wrapped, judge=digits(), log=log, depth=4)
    retriever.invoke("q")

    assert rewarded(store, log) == {"default": 4}
    assert list(fit(store.rewards("judge"), scope="task", gate=False)) == ["task:default"]


async def test_a_retriever_hands_on_its_query_vector(store, found, wrapped):
    """Nobody embeds a query again whose base vector was searched with, sync or async."""
    with StoreLog(store, digits(), embed_documents=wrapped.embed_documents) as log:
        retriever = RewardRetriever(vectorstore=found, embeddings=wrapped, judge=digits(), log=log)
        retriever.invoke("q")
        await retriever.ainvoke("r")

    learned = store.rewards("judge").query_vectors
    expected = np.array([wrapped.embed_query_base(query) for query in "qr"])
    assert np.allclose(np.sort(learned, axis=0), np.sort(expected, axis=0), rtol=1e-6)


def test_a_wrapper_follows_the_store(store, log, found):
    """What was learned from the store and published there turns the next process's queries."""
    RecordingCrossEncoder(Lengths(), log).score([("q", text) for text in TEXTS])
    log.flush()
    offsets = fit(store.rewards("judge"), scope="task", gate=False)
    store.registry.publish(offsets, by="test")

    following = TTTEmbeddings(DeterministicFakeEmbedding(size=8), offsets=follow(store))

    assert following.embed_query("q") == offsets.apply(following.embed_query_base("q"))
    assert following.embed_query("q") != following.embed_query_base("q")


async def test_a_query_is_served_what_was_learned_from_it(store, log):
    """The private offset of a text that was judged before, sync and async, of its tenant alone; no other text's."""
    with context(task="billing", tenant="acme"):
        RecordingCrossEncoder(Lengths(), log).score([("q", text) for text in TEXTS])
    log.flush()
    offsets = fit(store.rewards("judge", tenant="acme"), scope="query", gate=False)
    store.registry.publish(offsets, by="test", tenant="acme")
    following = TTTEmbeddings(DeterministicFakeEmbedding(size=8), offsets=follow(store, tenants=["acme"]))
    base = following.embed_query_base("q")
    with context(task="billing", tenant="acme"):
        served = [following.embed_query("q"), await following.aembed_query("q")]
        other = following.embed_query("r")

    assert served == [offsets.apply(base, task="billing", query_id=store.text_id("q"))] * 2 != [base] * 2
    assert (other, following.embed_query("q")) == (following.embed_query_base("r"), base)
