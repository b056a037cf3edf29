"""Real vector stores: the wrapper steers their searches, leaves what they hold, and gets vectors back from them."""

# The parts override methods that their frameworks document.

from hashlib import sha256

import faiss
import numpy as np
import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.embeddings.tttembed import TTTEmbedding, stored_vectors
from llama_index.postprocessor.tttembed import RewardPostprocessor
from llama_index.retrievers.tttembed import RewardRetriever
from llama_index.vector_stores.faiss import FaissVectorStore

from tttembed_rag import Evidence, LiveOffsets, Offset, Offsets, RewardLog, TextVectors
from tttembed_rag.testing import FakeJudge

WIDTH = 16
TEXTS = [f"passage {i}" for i in range(40)]
QUERIES = [f"question {i}" for i in range(8)]


class Hashing(BaseEmbedding):
    """Unit vectors drawn from a text's hash; counts the texts it embeds."""

    embedded: int = 0

    def _get_query_embedding(self, query):
        vector = np.random.default_rng(int.from_bytes(sha256(query.encode()).digest()[:8])).normal(size=WIDTH)
        return (vector / np.linalg.norm(vector)).tolist()

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text):
        self.embedded += 1
        return self._get_query_embedding(text)


def partial():
    """A judge with an opinion on every passage."""
    return FakeJudge(lambda _, text: int(text.rsplit(" ", 1)[-1]) / 40)


def offset(dose):
    """A global offset of that dose."""
    vector = np.random.default_rng(5).normal(size=WIDTH)
    return Offsets(
        [Offset("global", vector, dose, 4, Evidence(4, None, None, "ungated", "made for a test"))], width=WIDTH
    )


def flat_faiss():
    """A flat FAISS index."""
    return FaissVectorStore(faiss.IndexFlatL2(WIDTH))


@pytest.fixture(params=[SimpleVectorStore, flat_faiss], ids=["simple", "faiss"])
def make_index(request):
    """A function from an embedding model to an index of all passages; their metadata is embedded with them."""

    def make(model):
        nodes = [TextNode(text=text, id_=f"id {text}", metadata={"source": "book"}) for text in TEXTS]
        return VectorStoreIndex(
            nodes, embed_model=model, storage_context=StorageContext.from_defaults(vector_store=request.param())
        )

    return make


@pytest.fixture
def live():
    """Offsets to publish into."""
    return LiveOffsets(Offsets([], width=WIDTH))


@pytest.fixture
def wrapped(live):
    """The model, wrapped."""
    return TTTEmbedding(Hashing(), offsets=live)


@pytest.fixture
def index(make_index, wrapped):
    """An index built through the wrapper."""
    return make_index(wrapped)


def found(index):
    """Texts and scores of all queries."""
    retriever = index.as_retriever(similarity_top_k=5)
    return [[(one.text, round(float(one.score), 6)) for one in retriever.retrieve(query)] for query in QUERIES]


def contents(index):
    """A digest of every node's stored vector."""
    ids = [f"id {text}" for text in TEXTS]
    return {
        key: sha256(np.asarray(vector, np.float32).tobytes()).hexdigest()
        for key, vector in stored_vectors(index)(ids).items()
    }


def test_without_an_offset_the_index_answers_as_unwrapped(make_index, wrapped, index, live):
    """Without an offset, and at dose 0, results and scores are those of an index built with the bare model."""
    expected = found(make_index(wrapped.base))
    alone = found(index)
    live.publish(offset(0.0))

    assert expected == alone == found(index)


def test_an_offset_moves_the_search_and_nothing_in_the_index(index, live):
    """Published offsets change what is found, bit for bit nothing that is stored; rolling back restores the answers."""
    before, stored = found(index), contents(index)

    way_back = live.publish(offset(0.8))
    moved = found(index)
    held = contents(index)
    live.publish(way_back)

    assert sum(one != other for one, other in zip(before, moved, strict=True)) == len(QUERIES)
    assert held == stored
    assert len(stored) == len(TEXTS)
    assert found(index) == before


def test_an_index_gives_its_vectors(index, wrapped):
    """By id, what was embedded, metadata and all; ids it lacks are left out."""
    vectors = stored_vectors(index)(["id passage 3", "id passage 39", "elsewhere"])

    expected = {
        f"id passage {number}": pytest.approx(
            wrapped.base.get_text_embedding(f"source: book\n\npassage {number}"), abs=1e-6
        )
        for number in (3, 39)
    }
    assert {key: np.asarray(vector, float).tolist() for key, vector in vectors.items()} == expected


async def test_two_passes_embed_no_node_again(index, wrapped):
    """A retriever that judges takes the vectors of judged nodes from the index, sync and async, and counts them."""
    retriever = RewardRetriever(index.as_retriever(similarity_top_k=6), wrapped, partial())
    before = wrapped.base.embedded

    answered = [retriever.retrieve("q"), await retriever.aretrieve("q")]

    assert [len(nodes) for nodes in answered] == [4, 4]
    assert wrapped.base.embedded == before
    assert (retriever.vectors.supplied, retriever.vectors.embedded) == (12, 0)


def test_captured_nodes_are_not_embedded_again(index, wrapped):
    """What a tap noted is learned from with the index's own vectors."""
    log, vectors = RewardLog.of(partial()), TextVectors(stored=stored_vectors(index))
    tap = RewardPostprocessor(log, partial(), vectors=vectors)
    for query in QUERIES:
        tap.postprocess_nodes(index.as_retriever(similarity_top_k=5).retrieve(query), query_str=query)
    before = wrapped.base.embedded

    rewards = wrapped.rewards(log, vectors=vectors)

    assert wrapped.base.embedded == before
    assert (vectors.supplied, vectors.embedded) == (len(rewards.doc_vectors), 0)
