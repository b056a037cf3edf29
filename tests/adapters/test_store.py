"""Every tap writes into a real store, and a wrapper follows what is published there."""

import pickle

import numpy as np
import pytest
from tttembed_store import StoreLog, follow

from tests.adapters.worlds import TEXTS, drawn, knowing
from tttembed_rag import LiveOffsets, context, fit


@pytest.fixture
def model(adapter):
    """A wrapper without offsets."""
    return adapter.wrap(adapter.model(), LiveOffsets())


@pytest.fixture
def log(store, model, adapter):
    """A log that finds vectors with the wrapped model."""
    with StoreLog(
        store,
        knowing(),
        embed_query=model.embed_query_base,
        embed_documents=lambda texts: adapter.documents(model, texts),
    ) as log:
        yield log


async def test_retrievals_reach_the_store(adapter, store, log, model):
    """What was found waits there for a judge, of the tenant that asked; sync and async."""
    searched = adapter.build(model, TEXTS)
    observer = adapter.observer(log)
    with context(task="billing", tenant="acme"):
        adapter.observe(observer, searched, "q")
        await adapter.aobserve(observer, searched, "r")
    adapter.off(observer)
    log.flush()

    waiting = store.judge_queue.waiting("knowing", tenant="acme")
    assert sorted((waits.query, waits.task, len(waits.candidates)) for waits in waiting) == [
        ("q", "billing", 3),
        ("r", "billing", 3),
    ]
    assert store.counts("").queries == 0


async def test_a_retriever_hands_on_its_query_vector(adapter, store, model):
    """Nobody embeds a query again with whose base vector was searched; sync and async."""
    with StoreLog(store, knowing(), embed_documents=lambda texts: adapter.documents(model, texts)) as log:
        retriever = adapter.retriever(adapter.build(model, TEXTS), model, knowing(), log=log)
        adapter.ask(retriever, "q")
        await adapter.aask(retriever, "r")

    learned = store.rewards("knowing").query_vectors
    expected = np.array([drawn("query: q"), drawn("query: r")])
    assert np.allclose(np.sort(learned, axis=0), np.sort(expected, axis=0), rtol=1e-6)


@pytest.mark.parametrize(("scope", "others"), [("task", True), ("query", False)])
async def test_a_wrapper_serves_what_the_store_learned(adapter, store, sqlite_url, log, scope, others):
    """In this process and from a pickle, sync and async: a task's offset to all its queries, a private one to its own.

    Without a task, or for another tenant, the base vector is served.
    """
    with context(task="billing", tenant="acme"):
        adapter.record(adapter.tap(log, knowing()), "q", TEXTS[:6])
    log.flush()
    offsets = fit(store.rewards("knowing", tenant="acme"), scope=scope, gate=False)
    store.registry.publish(offsets, by="test", tenant="acme")
    here = adapter.wrap(adapter.model(), follow(store, tenants=["acme"]))
    there = pickle.loads(pickle.dumps(adapter.wrap(adapter.model(), follow(sqlite_url, tenant="acme"))))  # noqa: S301
    base, other = drawn("query: q"), drawn("query: r")

    with context(task="billing", tenant="acme"):
        served = [adapter.embed(here, "q"), await adapter.aembed(here, "q"), adapter.embed(there, "q")]
        elsewhere = adapter.embed(here, "r")

    assert served == [offsets.apply(base, task="billing", query_id=store.text_id("q"))] * 3 != [base] * 3
    assert (elsewhere != other) is others
    assert adapter.embed(here, "q") == base
