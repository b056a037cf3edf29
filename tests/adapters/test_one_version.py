"""The version that found a list sorts it, whatever is published meanwhile."""

import copy
import pickle

import numpy as np
import pytest

from tests.adapters.conftest import driver_of
from tests.adapters.worlds import UNGATED, Vectors, of_words
from tttembed_rag import LiveOffsets, Offset, Offsets, context

QUERY, TEXTS = "which fox?", ["a hen", "a fox"]
FOUND, BY_WORDS = TEXTS, TEXTS[::-1]
# Hens lie where queries do, and foxes beside them; the rescorer puts shared words above similarity.
VECTORS = Vectors([1.0, 0.0], {"a hen": [1.0, 0.0], "a fox": [1.0, 1.0]})
SORTING = Offsets([of_words(texts=TEXTS, width=2)], width=2)


@pytest.fixture(params=[(SORTING, None), (None, SORTING)], ids=["taken away", "published"])
def versions(request):
    """What is live before a search, and after it."""
    return request.param


@pytest.fixture
def lists(versions):
    """The texts as the version before sorts them, and as the one after does."""
    return [FOUND if version is None else BY_WORDS for version in versions]


@pytest.fixture
def live(versions):
    return LiveOffsets(versions[0])


def wrapped(adapter, live):
    """A wrapper over the vectors above, and a store of the texts."""
    model = adapter.wrap(adapter.model(VECTORS), live)
    return model, adapter.build(model, TEXTS)


class TestLangChain:
    """Its retriever and its compressor."""

    @pytest.fixture
    def adapter(self, tmp_path):
        return driver_of("langchain", tmp_path)

    @pytest.fixture
    def retriever(self, adapter, live, versions):
        """A retriever over a store in which the second version is published while it searches."""
        from langchain_core.vectorstores import InMemoryVectorStore
        from langchain_tttembed import RescoringRetriever

        class Store(InMemoryVectorStore):
            def similarity_search_with_score(self, query, k=4, **kwargs):
                pairs = super().similarity_search_with_score(query, k, **kwargs)
                live.publish(versions[1])
                return pairs

            async def asimilarity_search_with_score(self, query, k=4, **kwargs):
                pairs = await super().asimilarity_search_with_score(query, k, **kwargs)
                live.publish(versions[1])
                return pairs

        model, _ = wrapped(adapter, live)
        return RescoringRetriever(vectorstore=Store.from_texts(TEXTS, model), embeddings=model)

    @pytest.mark.parametrize("asynchronous", [False, True])
    async def test_a_retriever_sorts_by_the_version_that_found(self, adapter, lists, retriever, asynchronous):
        """The next request is sorted by the other one."""
        for expected in lists:
            answer = await adapter.aask(retriever, QUERY) if asynchronous else adapter.ask(retriever, QUERY)

            assert answer == expected

    def test_a_store_is_asked_with_the_vector_of_the_request(self, adapter):
        """A version that is published before the store embeds the query serves the next request."""
        live = LiveOffsets()
        model, _ = wrapped(adapter, live)
        with model.searching(QUERY):
            live.publish(Offsets([Offset("global", np.array([0.0, 1.0]), 0.5, 9, UNGATED)], width=2))
            vector, another = model.embed_query(QUERY), model.embed_query("which hen?")
            with context(tenant="acme"):
                of_tenant = model.embed_query(QUERY)

        assert vector == [1.0, 0.0]
        assert another == of_tenant == model.embed_query(QUERY) != vector

    def test_a_compressor_looks_once(self, adapter, lists, live, versions):
        """What is published while it embeds sorts nothing of this request."""
        model, store = wrapped(adapter, live)
        documents = adapter.hits(store, QUERY)
        model.base.embed_query = lambda _: (live.publish(versions[1]), [1.0, 0.0])[1]

        assert adapter.texts(adapter.sort(adapter.sorter(model), documents, QUERY)) == lists[0]


class TestLlamaIndex:
    """Its postprocessor, which has the bundle of the search."""

    @pytest.fixture
    def adapter(self, tmp_path):
        return driver_of("llama_index", tmp_path)

    @pytest.fixture
    def searched(self, adapter, live, versions):
        """The bundle of a search, its nodes, and what sorts them, when the second version is live."""
        from llama_index.core.schema import QueryBundle

        model, index = wrapped(adapter, live)
        bundle = QueryBundle(QUERY)
        nodes = adapter.hits(index, bundle, 2)
        live.publish(versions[1])
        return bundle, nodes, adapter.sorter(model)

    async def test_a_postprocessor_sorts_by_the_version_that_found(self, adapter, lists, searched):
        """The bundle carries it, as a query engine hands it on; a query alone is sorted by what is live."""
        bundle, nodes, sorter = searched

        assert adapter.texts(sorter.postprocess_nodes(nodes, bundle)) == lists[0]
        assert adapter.texts(await sorter.apostprocess_nodes(nodes, bundle)) == lists[0]
        assert adapter.texts(adapter.sort(sorter, nodes, QUERY)) == lists[1]

    def test_a_bundle_of_another_tenant_has_what_is_live(self, adapter, lists, searched):
        """What one tenant was served sorts nothing of another's."""
        bundle, nodes, sorter = searched
        with context(tenant="acme"):
            served = sorter.postprocess_nodes(nodes, bundle)

        assert adapter.texts(served) == lists[1]

    def test_a_copy_of_a_vector_carries_nothing(self, adapter, live):
        """In another process, or a cache, it is a list of numbers."""
        model, _ = wrapped(adapter, live)
        vector = model.get_query_embedding(QUERY)

        assert vector == [1.0, 0.0]
        assert {type(copied) for copied in (copy.copy(vector), pickle.loads(pickle.dumps(vector)))} == {list}  # noqa: S301
