"""What LangChain alone asks of retrievers and compressors; the laws of all stand in tests/adapters."""

import numpy as np
import pytest
from langchain_core.callbacks import CallbackManager
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langchain_tttembed import (
    RescoringCompressor,
    RescoringRetriever,
    RewardRetriever,
    TTTEmbeddings,
    stored_vectors,
)
from langchain_tttembed.resolvers import ids_of

from tests.adapters.langchain_driver import Model
from tests.adapters.worlds import QUERY, TEXTS, WIDTH, Vectors, drawn, knowing, likeness, of_task, of_words
from tttembed_rag import Offsets, TextVectors
from tttembed_rag.testing import FakeLog


class Elsewhere(VectorStore):
    """A store that embeds queries on its own server."""

    def similarity_search(self, query, k=4, **kwargs):
        return []

    @classmethod
    def from_texts(cls, texts, embedding, metadatas=None, **kwargs):  # noqa: ARG003
        return cls()


def make(judge=None, *, offsets=(), **settings):
    """A retriever over a real store of the documents above."""
    wrapped = TTTEmbeddings(Model(Vectors(QUERY)), offsets=Offsets(offsets, width=WIDTH))
    store = InMemoryVectorStore.from_texts(TEXTS, wrapped)
    return RewardRetriever(vectorstore=store, embeddings=wrapped, judge=judge or knowing(), **settings)


def texts(documents):
    """What was found."""
    return [document.page_content for document in documents]


class TestStandardSuite(RetrieversIntegrationTests):
    """LangChain's own suite."""

    @property
    def retriever_constructor(self):
        return RewardRetriever

    @property
    def retriever_constructor_params(self):
        made = make()
        return {"vectorstore": made.vectorstore, "embeddings": made.embeddings, "judge": made.judge}

    @property
    def retriever_query_example(self):
        return "q"


def test_reranking_gives_the_judges_order():
    """Without a second pass."""
    retriever = make(second_pass=False, k=10, depth=10)
    first = texts(retriever.vectorstore.similarity_search("q", k=10))

    assert texts(retriever.invoke("q")) == sorted(first, key=likeness, reverse=True) != first


async def test_metadata_names_the_task():
    """The task in a call's metadata is served and recorded, sync and async."""
    log = FakeLog("knowing")
    retriever = make(log=log, offsets=[of_task("far", np.full(WIDTH, 2.0), 0.9)], second_pass=False, k=10)
    config = {"metadata": {"tttembed_task": "far"}}

    far, far_too, near = retriever.invoke("q", config), await retriever.ainvoke("q", config), retriever.invoke("q")

    assert texts(far) == texts(far_too)
    assert set(texts(far)) != set(texts(near))
    assert [call.task for call in log.calls] == ["far", "far", None]


def test_a_filter_holds_in_both_searches():
    allowed = set(TEXTS[:30])
    retriever = make(k=10, search_kwargs={"filter": lambda document: document.page_content in allowed})

    assert set(texts(retriever.invoke("q"))) <= allowed


def test_a_store_without_vector_search_is_refused():
    """It could not search a second time."""
    with pytest.raises(ValueError, match="vectorstore: expected one that searches by vector, got Elsewhere"):
        RewardRetriever(vectorstore=Elsewhere(), embeddings=make().embeddings, judge=knowing())


class TestRescoringCompressor:
    """Documents of any chain, sorted by words too."""

    def chain(self, *, task="default", **settings):
        """A store, what it finds, and the compressor that sorts it."""
        vectors = Vectors(QUERY, {text: drawn(text) for text in TEXTS})
        embeddings = TTTEmbeddings(Model(vectors), offsets=Offsets([of_words(task)], width=WIDTH))
        store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
        hits = store.similarity_search("find 17", k=60)
        return hits, RescoringCompressor(embeddings=embeddings, **settings), store

    @pytest.mark.parametrize(("task", "supplied"), [("default", 60), ("another", 0)])
    def test_nothing_is_embedded_that_the_store_has_or_nobody_needs(self, task, supplied):
        """Vectors come from the store, and none where nothing is published for the task."""
        hits, compressor, store = self.chain(task=task)
        compressor.vectors = TextVectors(stored=stored_vectors(store))
        compressor.compress_documents(hits, "find 17")

        assert (compressor.vectors.supplied, compressor.vectors.embedded) == (supplied, 0)

    async def test_the_metadata_of_a_call_names_the_task(self):
        hits, compressor, _ = self.chain(task="numbers", top_n=3)
        named = CallbackManager([], metadata={"tttembed_task": "numbers"})
        assert compressor.compress_documents(hits, "find 17", named)[0].page_content == "passage 17"
        assert (await compressor.acompress_documents(hits, "find 17", named))[0].page_content == "passage 17"
        assert compressor.compress_documents(hits, "find 17", CallbackManager([])) == hits[:3]

    async def test_documents_may_come_one_by_one(self):
        """A generator is sorted as a list is."""
        hits, compressor, _ = self.chain()

        assert compressor.compress_documents(iter(hits), "find 17") == compressor.compress_documents(hits, "find 17")
        assert len(await compressor.acompress_documents(iter(hits), "find 17")) == len(hits)

    async def test_a_failure_costs_the_order_alone(self, caplog):
        """A model that is away, or documents in another order than that of similarity."""
        hits, compressor, _ = self.chain()
        unknown = [*hits, hits[0].model_copy(update={"page_content": "of another store"})]
        assert compressor.compress_documents(unknown, "find 17") == unknown
        assert await compressor.acompress_documents(unknown, "find 17") == unknown
        assert compressor.compress_documents(hits[::-1], "find 17") == hits[::-1]
        (message,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
        assert message.startswith("61 documents stand as they came: KeyError")


class TestEqualTexts:
    """Documents with one text and no ids, of different sources."""

    @pytest.mark.parametrize("second_pass", [False, True])
    @pytest.mark.parametrize("again", [[0, 1, 2], [1, 0, 2], [1, 2], [2, 3, 0]])
    async def test_each_is_cited_once(self, second_pass, again):
        """What the searches found, whatever the second one found again."""
        hits = [Document("pay by card", metadata={"source": name}) for name in "ab"]
        hits += [Document("pay by cash", metadata={"source": "c"}), Document("pay later", metadata={"source": "d"})]

        class Store(Elsewhere):
            searches = 0

            def similarity_search_by_vector(self, embedding, k=4, **kwargs):
                Store.searches += 1
                return hits[:3] if Store.searches % 2 or not second_pass else [hits[place] for place in again]

        wrapped = TTTEmbeddings(Model(Vectors(QUERY)), offsets=Offsets([], width=WIDTH))
        judge = knowing(lambda _, text: len(text) % 3 / 3)
        retriever = RewardRetriever(vectorstore=Store(), embeddings=wrapped, judge=judge, k=9, second_pass=second_pass)

        cited = [document.metadata["source"] for document in retriever.invoke("q")]

        assert len(cited) == len(set(cited))
        assert set(cited) >= set("abc")


class TestRescoringRetriever:
    """One search, sorted by words too."""

    def retriever(self, *, task="default", offsets=None, **settings):
        embeddings = TTTEmbeddings(Model(Vectors(QUERY)), offsets=offsets or Offsets([of_words(task)], width=WIDTH))
        store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
        return RescoringRetriever(vectorstore=store, embeddings=embeddings, depth=60, **settings)

    def test_the_metadata_of_a_call_names_the_task(self):
        """Words are learned by task; a call may say how many documents it wants."""
        retriever = self.retriever(task="numbers", k=60)
        named = retriever.invoke("find 17", config={"metadata": {"tttembed_task": "numbers"}})
        assert texts(named[:1]) == ["passage 17"]
        assert retriever.invoke("find 17", k=1) == retriever.invoke("find 17")[:1]

    def test_distances_are_told_apart_and_may_be_converted(self, caplog):
        """Scores that rise, or exceed 1, are no cosines: the documents come as they were, and the log says it once."""

        class Distances(InMemoryVectorStore):
            def similarity_search_with_score(self, *args, **kwargs):
                pairs = super().similarity_search_with_score(*args, **kwargs)
                return [(document, 2 - 2 * score) for document, score in pairs]

        retriever = self.retriever(k=60)
        store = Distances.from_texts(TEXTS, retriever.embeddings)
        plain = RescoringRetriever(vectorstore=store, embeddings=retriever.embeddings, depth=60, k=60)
        lists = [texts(plain.invoke("find 17")) for _ in range(2)]
        assert lists == [texts(store.similarity_search("find 17", k=60))] * 2
        assert [record.message for record in caplog.records if "cosine" in record.message] == [
            caplog.records[0].message
        ]
        converted = plain.model_copy(update={"similarity": lambda distance: 1 - distance / 2})
        assert converted.invoke("find 17")[0].page_content == "passage 17"

    def test_a_store_that_embeds_queries_with_the_model_as_it_is_is_refused(self):
        wrapped = self.retriever().embeddings
        store = InMemoryVectorStore.from_texts(TEXTS, Model(Vectors(QUERY)))
        with pytest.raises(ValueError, match=r"vectorstore: expected one that embeds queries with \*embeddings\*, got"):
            RescoringRetriever(vectorstore=store, embeddings=wrapped)


def test_an_id_of_qdrant_may_be_a_number():
    """Its documents have it in their metadata; ids are texts elsewhere."""
    documents = [Document("a", metadata={"_id": 0}), Document("b", id="b1"), Document("c")]

    assert ids_of(documents) == [("a", "0"), ("b", "b1"), ("c", None)]
