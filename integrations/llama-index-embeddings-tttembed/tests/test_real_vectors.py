"""The whole loop on real vectors: serve, capture, judge, fit, publish, and better answers for unseen queries."""

# The parts override methods that their frameworks document.

from pathlib import Path

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from llama_index.embeddings.tttembed import TTTEmbedding
from llama_index.postprocessor.tttembed import RewardPostprocessor

from tttembed_rag import LiveOffsets, Offsets, RewardLog, context, fit
from tttembed_rag.evaluate.files import load_beir, load_vectors
from tttembed_rag.testing import FakeJudge

METATOOL = Path(__file__).resolve().parents[4] / "shared" / "data" / "metatool"
JUDGED, ASKED, K = 120, 400, 10


class Stored(BaseEmbedding):
    """all-MiniLM-L6-v2's vectors of a collection, looked up by text."""

    vectors: dict[str, list[float]]

    def _get_text_embedding(self, text):
        return self.vectors[text]

    def _get_query_embedding(self, query):
        return self.vectors[query]

    async def _aget_query_embedding(self, query):
        return self.vectors[query]


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
        vectors=dict(zip(data.documents.values(), documents.tolist(), strict=True))
        | dict(zip(data.queries.values(), queries.tolist(), strict=True))
    )
    relevant = {(data.queries[q], data.documents[d]) for q, grades in data.qrels.items() for d in grades}
    asked = np.random.default_rng(0).permutation(list(data.queries.values())[:ASKED]).tolist()
    judged, unseen = asked[:JUDGED], asked[JUDGED:]
    judge, live = labels(relevant), LiveOffsets(Offsets([], width=384))
    embed_model, log = TTTEmbedding(model, offsets=live), RewardLog.of(judge)
    nodes = [TextNode(text=text, id_=name) for name, text in data.documents.items()]
    index = VectorStoreIndex(nodes, embed_model=embed_model)
    retriever, tap = index.as_retriever(similarity_top_k=K), RewardPostprocessor(log, judge)
    indexed = index.vector_store.to_dict()

    def quality():
        """Mean reciprocal rank of the first relevant tool, over unseen queries under the application's context."""
        with context(task="tools"):
            found = {query: retriever.retrieve(query) for query in unseen}
        hits = [[(query, one.text) in relevant for one in found[query]] for query in unseen]
        return float(np.mean([1 / (hit.index(True) + 1) if any(hit) else 0.0 for hit in hits]))

    before = quality()
    with context(task="tools"):
        for query in judged:
            tap.postprocess_nodes(retriever.retrieve(query), query_str=query)
    live.publish(fit(embed_model.rewards(log), scope="task"))

    assert live.current["task:tools"].evidence.verdict == "published"
    assert quality() > before + 0.02
    assert index.vector_store.to_dict() == indexed
