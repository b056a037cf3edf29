"""RewardRetriever: search, judge, search again; and never a failed retrieval because of us."""

# The parts override methods that their frameworks document.
# ruff: noqa: D102

import logging
from dataclasses import replace
from functools import partial
from threading import Barrier

import numpy as np
import pytest
from langchain_core.callbacks import CallbackManager
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_tests.integration_tests import RetrieversIntegrationTests
from langchain_tttembed import (
    RescoringCompressor,
    RescoringRetriever,
    RewardRetriever,
    TTTEmbeddings,
    stored_vectors,
)

from tttembed_rag import Evidence, Offset, Offsets, RewardLog, TextVectors, context
from tttembed_rag.judges import RubricJudge
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary
from tttembed_rag.offsets.skips import Skips
from tttembed_rag.serving import Cascade
from tttembed_rag.testing import FakeJudge, FakeLog

WIDTH = 12
DRAW = np.random.default_rng(0)
MEANT = DRAW.normal(size=WIDTH)  # what the query should have said
DOCUMENTS = {f"document {i}": vector for i, vector in enumerate(DRAW.normal(size=(60, WIDTH)))}
QUERY = MEANT + 2.5 * DRAW.normal(size=WIDTH)


class Stored(Embeddings):
    """The vectors above, by text."""

    def embed_documents(self, texts):
        return [DOCUMENTS[text].tolist() for text in texts]

    def embed_query(self, text):
        return QUERY.tolist()


def meant(_, text):
    """How well a document serves what was meant, as a logit."""
    return float(8 * MEANT @ DOCUMENTS[text] / np.linalg.norm(MEANT) / np.linalg.norm(DOCUMENTS[text]))


def knowing(score_of=meant, **settings):
    """A judge that knows what was meant."""
    return FakeJudge(score_of, scale="logit", fingerprint="knowing", **settings)


class Elsewhere(VectorStore):
    """A store that embeds queries on its own server."""

    def similarity_search(self, query, k=4, **kwargs):
        return []

    @classmethod
    def from_texts(cls, texts, embedding, metadatas=None, **kwargs):  # noqa: ARG003
        return cls()


def offset(task):
    """The offset of one task, far from everything."""
    evidence = Evidence(4, None, None, "ungated", "made for a test")
    return Offset("task", np.full(WIDTH, 2.0), 0.9, 4, evidence, task=task)


def make(judge=None, *, offsets=(), **settings):
    """A retriever over a real store of the documents above."""
    wrapped = TTTEmbeddings(Stored(), offsets=Offsets(offsets, width=WIDTH))
    store = InMemoryVectorStore.from_texts(list(DOCUMENTS), wrapped)
    return RewardRetriever(vectorstore=store, embeddings=wrapped, judge=judge or knowing(), **settings)


def texts(documents):
    """What was found."""
    return [one.page_content for one in documents]


def wanted(found):
    """How well the list serves what was meant: the mean cosine of its documents."""
    rows = np.array([DOCUMENTS[text] / np.linalg.norm(DOCUMENTS[text]) for text in found])
    return float((rows @ MEANT).mean() / np.linalg.norm(MEANT))


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
    """Without a second pass the judged documents come in the order of their rewards."""
    retriever = make(second_pass=False, k=10, depth=10)
    first = texts(retriever.vectorstore.similarity_search("q", k=10))

    found = texts(retriever.invoke("q"))

    scores = dict(zip(first, knowing().score("q", first), strict=True))
    assert found == sorted(first, key=scores.get, reverse=True)
    assert found != first


def test_a_second_search_finds_what_the_first_did_not():
    """With the same judged documents, two passes serve the meaning better than reranking, and reach further."""
    reranked, twice = texts(make(second_pass=False, k=10).invoke("q")), texts(make(k=10).invoke("q"))

    assert set(twice) - set(reranked)
    assert wanted(twice) > wanted(reranked)


async def test_sync_and_async_agree():
    """Both paths return the same documents."""
    retriever = make(k=8)

    assert texts(await retriever.ainvoke("q")) == texts(retriever.invoke("q"))


def test_verdicts_are_kept_with_their_task():
    """What the judge said is in the log, under the task of the call."""
    log = RewardLog.of(knowing())
    retriever = make(log=log, depth=7)
    with context(task="billing"):
        retriever.invoke("q")

    rewards = retriever.embeddings.rewards(log)
    assert (rewards.tasks.tolist(), rewards.depths.tolist()) == (["billing"], [7])
    assert rewards.query_vectors.tolist() == [QUERY.tolist()]


@pytest.mark.parametrize(("source", "kept"), [("", ""), (None, "ann")])
async def test_the_callers_context_names_the_source(source, kept):
    """What the judge said is its own, and the caller's where the retriever is told so, sync and async."""
    log = RewardLog.of(knowing())
    retriever = make(log=log, source=source)
    with context(source="ann"):
        retriever.invoke("q")
        await retriever.ainvoke("r")

    assert retriever.embeddings.rewards(log).sources.tolist() == [kept, kept]


async def test_metadata_names_the_task():
    """The task in a call's metadata is served and recorded, sync and async."""
    log = FakeLog("knowing")
    retriever = make(log=log, offsets=[offset("far")], second_pass=False, k=10)
    config = {"metadata": {"tttembed_task": "far"}}

    far, far_too, near = retriever.invoke("q", config), await retriever.ainvoke("q", config), retriever.invoke("q")

    assert texts(far) == texts(far_too)
    assert set(texts(far)) != set(texts(near))
    assert [call.task for call in log.calls] == ["far", "far", None]


@pytest.mark.parametrize("second_pass", [True, False])
async def test_a_judge_that_is_away_costs_nothing(second_pass, caplog):
    """The first search's documents are returned in its order, and the log says why."""
    retriever = make(knowing(error=TimeoutError()), second_pass=second_pass, k=5)
    first = texts(retriever.vectorstore.similarity_search("q", k=5))

    assert texts(retriever.invoke("q")) == texts(await retriever.ainvoke("q")) == first
    assert [(one.name, one.levelno) for one in caplog.records] == [("langchain_tttembed.retrievers", logging.ERROR)]


def test_a_judge_with_too_few_scores_is_told(caplog):
    """Nobody knows which documents it means: the first search is served."""
    retriever = make(k=10)
    retriever.judge.score = lambda *_: [0.5]
    first = texts(retriever.vectorstore.similarity_search("q", k=10))
    assert texts(retriever.invoke("q")) == first
    assert f"JudgeError: {retriever.judge.fingerprint}: expected 10 scores, got 1" in caplog.text


def test_a_judge_that_abstains_changes_nothing():
    """Unjudged documents keep the order of the search."""
    retriever = make(knowing(lambda *_: None), k=5)

    assert texts(retriever.invoke("q")) == texts(retriever.vectorstore.similarity_search("q", k=5))


def test_a_filter_holds_in_both_searches():
    """Search keywords reach both searches."""
    allowed = set(list(DOCUMENTS)[:30])
    retriever = make(k=10, search_kwargs={"filter": lambda one: one.page_content in allowed})

    assert set(texts(retriever.invoke("q"))) <= allowed


@pytest.mark.parametrize(("source", "trusted"), [("", True), (None, None)])
def test_the_judge_is_declared(source, trusted):
    """Its order is served; not where each caller judges for itself."""
    log = RewardLog.of(knowing())
    make(log=log, source=source)

    assert log.trusted is trusted


def test_a_store_without_vector_search_is_refused():
    """It could not search a second time."""
    with pytest.raises(ValueError, match="vectorstore: expected one that searches by vector, got Elsewhere"):
        RewardRetriever(vectorstore=Elsewhere(), embeddings=make().embeddings, judge=knowing())


def test_a_log_for_another_judge_is_refused():
    """Rewards of two judges do not mix."""
    with pytest.raises(ValueError, match="log: expected one for knowing, got one for somebody"):
        make(log=RewardLog("somebody"))


def test_a_function_is_no_judge():
    """It is refused when the retriever is made, with what a judge must have."""
    with pytest.raises(
        ValueError, match=r"judge: expected an object with score.* got builtin_function_or_method .*RubricJudge"
    ):
        make(len)


def test_a_chat_judge_reads_documents_side_by_side():
    """Ten prompts of a model that answers only when all ten have come take one round, not ten, also without async."""
    together = Barrier(10)

    def complete(prompt):
        together.wait(timeout=10)
        return f"Score: {len(prompt) % 6}"

    judge = RubricJudge(complete, model="waits", concurrency=10)
    log = FakeLog(judge.fingerprint)

    make(judge, log=log).invoke("q")
    assert [len(call.scores) for call in log.calls] == [10]
    assert None not in log.calls[0].scores


def local(task="default"):
    """A rescorer that counts shared words ten times as much as similarity, beside no offset."""
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    rescorer = Rescorer(np.array([1.0, 10.0, 0.0, 0.0]), Vocabulary.of(DOCUMENTS), evidence)
    zero = np.zeros(WIDTH)
    return Offset("local", zero, 0.0, 9, Evidence(9, None, None, "abstained", ""), task=task, rescorer=rescorer)


async def test_the_judge_reads_the_first_of_a_list_that_is_sorted_by_words():
    """A document from the end of the search is judged where it shares a word; without a rescorer it is not."""
    log = FakeLog("knowing")
    supplied = []
    for offsets in ([local()], []):
        retriever = make(offsets=offsets, log=log, depth=3, fetch_k=60, second_pass=False)
        retriever.invoke("find 17")
        await retriever.ainvoke("find 17")
        supplied.append((retriever.vectors.supplied, retriever.vectors.embedded))

    judged = [call.documents for call in log.calls]
    assert judged[0] == judged[1] != judged[2] == judged[3]
    assert judged[0][0] == "document 17"
    assert "document 17" not in judged[2]
    assert {len(documents) for documents in judged} == {3}
    assert supplied == [(120, 0), (0, 0)]


class TestRescoringCompressor:
    """Documents of any chain, sorted by words too."""

    def chain(self, *, task="default", offsets=None, **settings):
        """A store, what it finds, and the compressor that sorts it."""
        embeddings = TTTEmbeddings(Stored(), offsets=offsets or Offsets([local(task)], width=WIDTH))
        store = InMemoryVectorStore.from_texts(list(DOCUMENTS), embeddings)
        found = store.similarity_search("find 17", k=60)
        return found, RescoringCompressor(embeddings=embeddings, **settings), store

    def test_what_is_none_is_refused(self):
        """No other option, and no judge as a cascade."""
        for wrong, said in (({"k": 4}, "Extra inputs"), ({"cascade": knowing()}, "should be an instance of Cascade")):
            with pytest.raises(ValueError, match=said):
                self.chain(**wrong)

    async def test_documents_that_share_words_come_first(self):
        """Vectors come from the store; sync and async."""
        found, compressor, store = self.chain(top_n=3)
        compressor.vectors = TextVectors(stored=stored_vectors(store))
        for kept in (
            compressor.compress_documents(found, "find 17"),
            await compressor.acompress_documents(found, "find 17"),
        ):
            assert len(kept) == 3
            assert kept[0].page_content == "document 17"
        assert (compressor.vectors.supplied, compressor.vectors.embedded) == (120, 0)

    async def test_a_cascade_asks_its_judge_where_the_first_leads_by_little(self):
        """A shared word leads by much, and nobody is asked; without one the judge puts the documents in order."""
        judge = knowing()
        certain = replace(local(), skips=Skips((5.0,), (0.001,), 60))
        certified = Offsets([certain], width=WIDTH, settings={"judge": judge.fingerprint})
        found, compressor, _ = self.chain(offsets=certified, top_n=3)
        compressor.cascade = Cascade(judge, explore=1e-12)
        for query, first in (("find 17", "document 17"), ("anything", max(texts(found[:10]), key=partial(meant, "")))):
            kept = compressor.compress_documents(found, query)
            assert kept == await compressor.acompress_documents(found, query)
            assert kept[0].page_content == first
        assert compressor.cascade.counts == {"repeated": 1, "skipped": 2, "reranked": 1, "explored": 0}

    async def test_the_metadata_of_a_call_names_the_task(self):
        """As for the retrievers."""
        found, compressor, _ = self.chain(task="numbers", top_n=3)
        named = CallbackManager([], metadata={"tttembed_task": "numbers"})
        assert compressor.compress_documents(found, "find 17", named)[0].page_content == "document 17"
        assert (await compressor.acompress_documents(found, "find 17", named))[0].page_content == "document 17"
        assert compressor.compress_documents(found, "find 17", CallbackManager([])) == found[:3]

    async def test_nothing_is_embedded_where_nothing_is_published(self):
        """The documents stand as they came, and so they do where there are none."""
        found, compressor, _ = self.chain(task="another", top_n=3)
        compressor.vectors = TextVectors()
        assert compressor.compress_documents(found, "find 17") == found[:3]
        assert await compressor.acompress_documents(found, "find 17") == found[:3]
        assert compressor.compress_documents([], "find 17") == []
        assert compressor.vectors.embedded == 0

    async def test_a_failure_costs_the_order_alone(self, caplog):
        """A model that is away, or documents in another order than that of similarity."""
        found, compressor, _ = self.chain()
        unknown = [*found, found[0].model_copy(update={"page_content": "of another store"})]
        assert compressor.compress_documents(unknown, "find 17") == unknown
        assert await compressor.acompress_documents(unknown, "find 17") == unknown
        assert compressor.compress_documents(found[::-1], "find 17") == found[::-1]
        said = [one.message for one in caplog.records if one.levelname == "ERROR"]
        assert [one.startswith("61 documents stand as they came: KeyError") for one in said] == [True]


class TestRescoringRetriever:
    """One search, sorted by words too."""

    def retriever(self, *, task="default", offsets=None, **settings):
        """A retriever that is sorted so."""
        embeddings = TTTEmbeddings(Stored(), offsets=offsets or Offsets([local(task)], width=WIDTH))
        store = InMemoryVectorStore.from_texts(list(DOCUMENTS), embeddings)
        return RescoringRetriever(vectorstore=store, embeddings=embeddings, depth=60, **settings)

    async def test_documents_that_share_words_come_first(self):
        """The named document is found first, whatever its place was; sync and async."""
        retriever = self.retriever(k=3)
        for found in (retriever.invoke("find 17"), await retriever.ainvoke("find 17")):
            assert len(found) == 3
            assert found[0].page_content == "document 17"
        assert [one.page_content for one in retriever.invoke("find 17", k=1)] == ["document 17"]

    def test_another_task_keeps_the_order_of_the_store(self):
        """Words are learned by task; the call's metadata names it."""
        retriever = self.retriever(task="numbers", k=60)
        plain = [one.page_content for one in retriever.invoke("find 17")]
        expected = [one.page_content for one in retriever.vectorstore.similarity_search("find 17", k=60)]
        named = retriever.invoke("find 17", config={"metadata": {"tttembed_task": "numbers"}})
        assert plain == expected
        assert named[0].page_content == "document 17"

    def test_distances_are_told_apart_and_may_be_converted(self, caplog):
        """Scores that rise, or exceed 1, are no cosines: the documents come as they were, and the log says it once."""

        class Distances(InMemoryVectorStore):
            def similarity_search_with_score(self, *args, **kwargs):
                return [(one, 2 - 2 * score) for one, score in super().similarity_search_with_score(*args, **kwargs)]

        retriever = self.retriever(k=60)
        store = Distances.from_texts(list(DOCUMENTS), retriever.embeddings)
        plain = RescoringRetriever(vectorstore=store, embeddings=retriever.embeddings, depth=60, k=60)
        found = [[one.page_content for one in plain.invoke("find 17")] for _ in range(2)]
        assert found == [[one.page_content for one in store.similarity_search("find 17", k=60)]] * 2
        assert [record.message for record in caplog.records if "cosine" in record.message] == [
            caplog.records[0].message
        ]
        converted = plain.model_copy(update={"similarity": lambda distance: 1 - distance / 2})
        assert converted.invoke("find 17")[0].page_content == "document 17"

    def test_what_is_none_is_refused(self):
        """No other option, no judge as a cascade, and no store that embeds queries with the model as it is."""
        for wrong, said in (
            ({"top_k": 4}, "Extra inputs are not permitted"),
            ({"cascade": knowing()}, "should be an instance of Cascade"),
        ):
            with pytest.raises(ValueError, match=said):
                self.retriever(**wrong)
        wrapped = self.retriever().embeddings
        store = InMemoryVectorStore.from_texts(list(DOCUMENTS), Stored())
        with pytest.raises(ValueError, match=r"vectorstore: expected one that embeds queries with \*embeddings\*, got"):
            RescoringRetriever(vectorstore=store, embeddings=wrapped)

    async def test_a_cascade_asks_its_judge_where_the_first_leads_by_little(self):
        """A shared word leads by much, and nobody is asked; without one the judge puts the list in order."""
        certain = replace(local(), skips=Skips((5.0,), (0.001,), 60))
        judge = knowing()
        certified = Offsets([certain], width=WIDTH, settings={"judge": judge.fingerprint})
        log = RewardLog.of(judge)
        cascade = Cascade(judge, log=log, explore=1e-12)
        retriever = self.retriever(offsets=certified, k=3, cascade=cascade)

        sure = [await retriever.ainvoke("find 17"), retriever.invoke("find 17")]
        asked = [await retriever.ainvoke("anything"), retriever.invoke("anything at all")]

        assert [found[0].page_content for found in sure] == ["document 17"] * 2
        listed = [one.page_content for one in retriever.vectorstore.similarity_search("anything", k=10)]
        best = sorted(listed, key=lambda text: -meant(None, text))[:3]
        assert [[one.page_content for one in found] for found in asked] == [best] * 2
        assert cascade.counts == {"repeated": 0, "skipped": 2, "reranked": 2, "explored": 0}
        assert len(log) == 0
