"""The version that found a list sorts it, whatever is published meanwhile."""

# The parts override methods that their frameworks document.

import copy
import pickle

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.schema import QueryBundle, TextNode
from llama_index.embeddings.tttembed import TTTEmbedding
from llama_index.postprocessor.tttembed import RescoringPostprocessor
from llama_index.retrievers.tttembed import RewardRetriever

from tttembed_rag import Evidence, LiveOffsets, Offset, Offsets, context
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary
from tttembed_rag.testing import FakeJudge

TEXTS = ["a hen", "a fox"]
FOUND, BY_WORDS = ["a hen", "a fox"], ["a fox", "a hen"]


def by_words():
    """Offsets that turn no query, with a rescorer that puts shared words above similarity."""
    sure = Evidence(9, None, None, "published", "made for a test")
    rescorer = Rescorer(np.array([1.0, 1.0, 0.0, 0.0]), Vocabulary.of(TEXTS), sure)
    return Offsets([Offset("local", np.zeros(2), 0.5, 9, sure, task="default", rescorer=rescorer)], width=2)


class Drawn(BaseEmbedding):
    """Hens lie where queries do, and foxes beside them."""

    def _get_query_embedding(self, query):
        return [1.0, 0.0]

    async def _aget_query_embedding(self, query):
        return [1.0, 0.0]

    def _get_text_embedding(self, text):
        return [1.0, float(text == "a fox")]


@pytest.fixture(params=[(by_words(), None), (None, by_words())], ids=["taken away", "published"])
def versions(request):
    """What is live before a search, and after it."""
    return request.param


@pytest.fixture
def live(versions):
    return LiveOffsets(versions[0])


@pytest.fixture
def model(live):
    return TTTEmbedding(Drawn(), offsets=live)


@pytest.fixture
def retriever(model):
    index = VectorStoreIndex([TextNode(text=text, id_=text) for text in TEXTS], embed_model=model)
    return index.as_retriever(similarity_top_k=2)


def texts(nodes):
    return [node.text for node in nodes]


async def test_a_postprocessor_sorts_by_the_version_that_found(versions, live, model, retriever):
    """The bundle of the search carries it, as a query engine hands it on; a query alone is sorted by what is live."""
    bundle, sorts = QueryBundle("which fox?"), RescoringPostprocessor(model)
    nodes = retriever.retrieve(bundle)
    live.publish(versions[1])

    lists = [
        sorts.postprocess_nodes(nodes, bundle),
        await sorts.apostprocess_nodes(nodes, bundle),
        sorts.postprocess_nodes(nodes, query_str="which fox?"),
    ]

    before, after = (FOUND if version is None else BY_WORDS for version in versions)
    assert [texts(listed) for listed in lists] == [before, before, after]


def test_a_bundle_of_another_tenant_has_what_is_live(versions, live, model, retriever):
    """What one tenant was served sorts nothing of another's."""
    bundle, sorts = QueryBundle("which fox?"), RescoringPostprocessor(model)
    nodes = retriever.retrieve(bundle)
    live.publish(versions[1])

    with context(tenant="acme"):
        listed = sorts.postprocess_nodes(nodes, bundle)

    assert texts(listed) == (FOUND if versions[1] is None else BY_WORDS)


def test_two_searches_of_one_query_are_sorted_by_one_version(versions, live, model, retriever):
    """What is published while the first one runs sorts neither."""
    read = []
    judge = FakeJudge(lambda _, text: read.append(text) or 0.5)
    searches = RewardRetriever(retriever, model, judge, depth=2)
    searches.vectors.of = lambda texts, embed: np.array(embed(list(texts)))
    retrieve = retriever._retrieve

    def publishing(bundle):
        nodes = retrieve(bundle)
        live.publish(versions[1])
        return nodes

    object.__setattr__(retriever, "_retrieve", publishing)
    searches.retrieve("which fox?")

    assert read == (FOUND if versions[0] is None else BY_WORDS)


def test_a_copy_of_a_vector_carries_nothing(model):
    """In another process, or a cache, it is a list of numbers."""
    vector = model.get_query_embedding("which fox?")

    assert vector == [1.0, 0.0]
    assert {type(copied) for copied in (copy.copy(vector), pickle.loads(pickle.dumps(vector)))} == {list}  # noqa: S301
