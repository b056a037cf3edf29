"""The version that found a list sorts it, whatever is published meanwhile."""

# The parts override methods that their frameworks document.

import numpy as np
import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import RescoringCompressor, RescoringRetriever, TTTEmbeddings

from tttembed_rag import Evidence, LiveOffsets, Offset, Offsets, context
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary

TEXTS = ["a hen", "a fox"]
FOUND, BY_WORDS = ["a hen", "a fox"], ["a fox", "a hen"]


def by_words():
    """Offsets that turn no query, with a rescorer that puts shared words above similarity."""
    sure = Evidence(9, None, None, "published", "made for a test")
    rescorer = Rescorer(np.array([1.0, 1.0, 0.0, 0.0]), Vocabulary.of(TEXTS), sure)
    return Offsets([Offset("local", np.zeros(2), 0.5, 9, sure, task="default", rescorer=rescorer)], width=2)


class Publishing(Embeddings):
    """A model as which a store embeds; another version is published as soon as it was asked for a query."""

    def __init__(self, live, version):
        self.live, self.version = live, version

    def embed_documents(self, texts):
        return [[1.0, float(text == "a fox")] for text in texts]

    def embed_query(self, text):
        return [1.0, 0.0]


class Store(InMemoryVectorStore):
    """A store in which another *version* is published while it searches."""

    def similarity_search_with_score(self, query, k=4, **kwargs):
        pairs = super().similarity_search_with_score(query, k, **kwargs)
        self.embedding.publish()
        return pairs

    async def asimilarity_search_with_score(self, query, k=4, **kwargs):
        pairs = await super().asimilarity_search_with_score(query, k, **kwargs)
        self.embedding.publish()
        return pairs


class Wrapped(TTTEmbeddings):
    """Wrapped embeddings, with what publishes another version."""

    def publish(self):
        self.base.live.publish(self.base.version)


@pytest.fixture(params=[(by_words(), None), (None, by_words())], ids=["taken away", "published"])
def versions(request):
    """What is live before a search, and after it."""
    return request.param


@pytest.fixture
def embeddings(versions):
    """Wrapped embeddings under the first version."""
    before, after = versions
    live = LiveOffsets(before)
    return Wrapped(Publishing(live, after), offsets=live)


@pytest.fixture
def retriever(embeddings):
    """A retriever over a store in which the second version is published."""
    return RescoringRetriever(vectorstore=Store.from_texts(TEXTS, embeddings), embeddings=embeddings)


def texts(documents):
    return [document.page_content for document in documents]


def test_a_retriever_sorts_by_the_version_that_found(versions, retriever):
    """The next request is sorted by the other one."""
    lists = [texts(retriever.invoke("which fox?")) for _ in versions]

    assert lists == [FOUND if version is None else BY_WORDS for version in versions]


async def test_it_does_so_without_blocking(versions, retriever):
    """The vector that the store awaits is that of the request, too."""
    lists = [texts(await retriever.ainvoke("which fox?")) for _ in versions]

    assert lists == [FOUND if version is None else BY_WORDS for version in versions]


def test_a_store_is_asked_with_the_vector_of_the_request():
    """A version that is published before the store embeds the query serves the next request."""
    sure = Evidence(9, None, None, "published", "made for a test")
    live = LiveOffsets()
    embeddings = TTTEmbeddings(Publishing(live, None), offsets=live)
    with embeddings.searching("which fox?"):
        live.publish(Offsets([Offset("global", np.array([0.0, 1.0]), 0.5, 9, sure)], width=2))
        found_by = embeddings.embed_query("which fox?")
        another, of_tenant = embeddings.embed_query("which hen?"), []
        with context(tenant="acme"):
            of_tenant = embeddings.embed_query("which fox?")

    assert found_by == [1.0, 0.0]
    assert another == of_tenant == embeddings.embed_query("which fox?") != found_by


def test_a_compressor_looks_once(versions, embeddings):
    """What is published while it embeds sorts nothing of this request."""
    compressor = RescoringCompressor(embeddings=embeddings)
    documents = Store.from_texts(TEXTS, embeddings).similarity_search("which fox?")
    embeddings.base.embed_query = lambda _: embeddings.publish() or [1.0, 0.0]
    embeddings.base.live.publish(versions[0])

    assert texts(compressor.compress_documents(documents, "which fox?")) == (BY_WORDS if versions[0] else FOUND)
