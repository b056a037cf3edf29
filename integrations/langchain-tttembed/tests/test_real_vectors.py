"""The whole loop on real vectors: serve, capture, judge, fit, publish, and better answers for unseen queries."""

# The parts override methods that their frameworks document.
# ruff: noqa: D102

from pathlib import Path

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import RewardCallbackHandler, TTTEmbeddings

from tttembed_rag import LiveOffsets, Offsets, RewardLog, context, fit
from tttembed_rag.evaluate.files import load_beir, load_vectors
from tttembed_rag.testing import FakeJudge

METATOOL = Path(__file__).resolve().parents[4] / "shared" / "data" / "metatool"
JUDGED, ASKED, K = 120, 400, 10


class Stored(Embeddings):
    """all-MiniLM-L6-v2's vectors of a collection, looked up by text."""

    def __init__(self, vectors):
        self.vectors = vectors

    def embed_documents(self, texts):
        return [self.vectors[text] for text in texts]

    def embed_query(self, text):
        return self.vectors[text]


def labels(relevant):
    """The collection's labels acting as the judge: a simulation."""
    return FakeJudge(lambda query, text: float((query, text) in relevant), fingerprint="labels")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif(not METATOOL.is_dir(), reason="needs ../shared/data/metatool")
def test_a_served_application_gets_better_on_queries_it_never_saw():
    """Rewards captured while serving are fitted and published; unseen queries find more; the index stays the same."""
    data = load_beir(METATOOL)
    documents, queries = load_vectors(METATOOL, "minilm", data)
    model = Stored(
        dict(zip(data.documents.values(), documents.tolist(), strict=True))
        | dict(zip(data.queries.values(), queries.tolist(), strict=True))
    )
    relevant = {(data.queries[q], data.documents[d]) for q, grades in data.qrels.items() for d in grades}
    asked = np.random.default_rng(0).permutation(list(data.queries.values())[:ASKED]).tolist()
    judged, unseen = asked[:JUDGED], asked[JUDGED:]
    judge, live = labels(relevant), LiveOffsets(Offsets([], width=384))
    embeddings, log = TTTEmbeddings(model, offsets=live), RewardLog.of(judge)
    store = InMemoryVectorStore.from_texts(list(data.documents.values()), embeddings)
    retriever = store.as_retriever(search_kwargs={"k": K})
    indexed = {key: list(one["vector"]) for key, one in store.store.items()}

    def quality():
        """Mean reciprocal rank of the first relevant tool, over unseen queries under the application's context."""
        with context(task="tools"):
            found = {query: retriever.invoke(query) for query in unseen}
        hits = [[(query, one.page_content) in relevant for one in found[query]] for query in unseen]
        return float(np.mean([1 / (hit.index(True) + 1) if any(hit) else 0.0 for hit in hits]))

    before = quality()
    with context(task="tools"):
        for query in judged:
            retriever.invoke(query, {"callbacks": [RewardCallbackHandler(log)]})
    log.score_waiting(judge)
    live.publish(fit(embeddings.rewards(log), scope="task"))

    assert live.current["task:tools"].evidence.verdict == "published"
    assert quality() > before + 0.02
    assert {key: list(one["vector"]) for key, one in store.store.items()} == indexed
