"""Postprocessor, event handler and retriever: nodes are judged, recorded, and never lost."""

# The parts override methods that their frameworks document.
# ruff: noqa: D102

import logging
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.dispatcher import instrument_tags
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent
from llama_index.core.llms import CompletionResponse, MockLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.tttembed import TTTEmbedding
from llama_index.postprocessor.tttembed import (
    RescoringPostprocessor,
    RewardEventHandler,
    RewardPostprocessor,
    llm_judge,
)
from llama_index.retrievers.tttembed import RewardRetriever

from tttembed_rag import Evidence, InputError, LiveOffsets, Offset, Offsets, RewardLog, TextVectors, context
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary
from tttembed_rag.offsets.skips import Skips
from tttembed_rag.serving import Cascade
from tttembed_rag.testing import FakeJudge, FakeLog

WIDTH = 12
DRAW = np.random.default_rng(0)
MEANT = DRAW.normal(size=WIDTH)  # what the query should have said
QUERY = MEANT + 2.5 * DRAW.normal(size=WIDTH)
TEXTS = [f"passage {i}" for i in range(60)]


class Hashing(BaseEmbedding):
    """Vectors drawn from a text's hash; every query has the one vector above."""

    def _get_query_embedding(self, query):
        return QUERY.tolist()

    async def _aget_query_embedding(self, query):
        return QUERY.tolist()

    def _get_text_embedding(self, text):
        return document(text).tolist()


def meant(_, text):
    """How well a text serves what was meant, as a logit; it is read as it was embedded."""
    return float(8 * MEANT @ document(text) / np.linalg.norm(MEANT))


def knowing(score_of=meant, **settings):
    """A judge that knows what was meant."""
    return FakeJudge(score_of, scale="logit", fingerprint="knowing", **settings)


def away():
    """A judge that cannot be reached."""
    return knowing(error=TimeoutError())


class Grading(MockLLM):
    """An LLM that grades."""

    def complete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text="Answers most of it.\nScore: 4")


class Unreadable(TextNode):
    """A node whose content cannot be read."""

    def get_content(self, metadata_mode=None):
        raise OSError


def document(text):
    """The unit vector of a text."""
    vector = np.random.default_rng(int.from_bytes(sha256(text.encode()).digest()[:8])).normal(size=WIDTH)
    return vector / np.linalg.norm(vector)


def texts(found):
    """What was found."""
    return [one.text for one in found]


def wanted(found):
    """How well the nodes serve what was meant: their mean cosine with it."""
    return float(np.mean([document(one.text) @ MEANT for one in found]))


@pytest.fixture
def wrapped():
    """A wrapper without offsets."""
    return TTTEmbedding(Hashing(), offsets=Offsets([], width=WIDTH))


@pytest.fixture
def index(wrapped):
    """A real index."""
    return VectorStoreIndex([TextNode(text=text, id_=text) for text in TEXTS], embed_model=wrapped)


@pytest.fixture
def nodes(index):
    """Six retrieved nodes."""
    return index.as_retriever(similarity_top_k=6).retrieve("q")


@pytest.fixture
def log():
    """An empty log for the judge above."""
    return FakeLog("knowing")


def judged(log):
    """Task and number of scores of each call of a log; None where its nodes wait for a judge."""
    return [(call.task, call.scores and len(call.scores)) for call in log.calls]


class TestRewardPostprocessor:
    """Observing and reranking."""

    async def test_observing_changes_nothing(self, log, nodes):
        """Without a judge the very nodes go on, and their pairs wait."""
        observer = RewardPostprocessor(log)

        assert observer.postprocess_nodes(nodes, query_str="q") == nodes
        assert await observer.apostprocess_nodes(nodes, query_str="q") == nodes
        assert observer.mode == "observe"
        assert [(len(call.documents), call.scores) for call in log.calls] == [(6, None)] * 2

    async def test_reranking_orders_by_reward(self, log, nodes):
        """Nodes come in the order of their rewards and carry them, sync and async; the given ones are untouched."""
        before = [one.score for one in nodes]
        reranker = RewardPostprocessor(log, knowing())

        found = reranker.postprocess_nodes(nodes, query_str="q")

        scores = [one.score for one in found]
        assert scores == sorted(scores, reverse=True)
        assert texts(found) == sorted(texts(nodes), key=lambda text: -(document(text) @ MEANT))
        assert texts(await reranker.apostprocess_nodes(nodes, query_str="q")) == texts(found)
        assert [one.score for one in nodes] == before

    def test_all_nodes_are_scored_before_the_cut(self, log, nodes):
        """What is cut off was judged and recorded too."""
        found = RewardPostprocessor(log, knowing(), top_n=2).postprocess_nodes(nodes, query_str="q")

        assert len(found) == 2
        assert judged(log) == [(None, 6)]

    def test_the_judge_reads_what_was_embedded(self, log, wrapped):
        """Metadata that was embedded is judged and recorded with the text."""
        node = NodeWithScore(node=TextNode(text="text", metadata={"src": "book"}))

        RewardPostprocessor(log, knowing()).postprocess_nodes([node], query_str="q")

        assert [call.documents for call in log.calls] == [("src: book\n\ntext",)]

    def test_unjudged_nodes_keep_place_and_score(self, nodes):
        """A judge that declines some orders the others among themselves."""
        unclear = texts(nodes)[::2]
        judge = knowing(lambda query, text: None if text in unclear else meant(query, text))
        found = RewardPostprocessor(RewardLog.of(judge), judge).postprocess_nodes(nodes, query_str="q")

        assert found[::2] == nodes[::2]
        assert found[1].score >= found[3].score >= found[5].score

    @pytest.mark.parametrize("asynchronous", [True, False])
    async def test_a_judge_that_is_away_costs_nothing(self, log, nodes, asynchronous, caplog):
        """Nodes stand as they came, cut to size, and the log says why."""
        reranker = RewardPostprocessor(log, away(), top_n=4)
        found = reranker.postprocess_nodes(nodes, query_str="q")
        if asynchronous:
            found = await reranker.apostprocess_nodes(nodes, query_str="q")

        assert found == nodes[:4]
        assert {(one.name, one.levelno) for one in caplog.records} == {
            ("llama_index.postprocessor.tttembed.base", logging.ERROR)
        }

    @pytest.mark.parametrize(("judge", "source", "trusted"), [(True, "", True), (True, None, None), (False, "", None)])
    def test_the_judge_is_declared(self, log, judge, source, trusted):
        """Its order is served; not where each caller judges for itself, nor where nodes are noted alone."""
        RewardPostprocessor(log, knowing() if judge else None, source=source)

        assert log.trusted is trusted

    def test_the_caller_names_the_task(self, log, nodes):
        """Rewards are filed under the task of the request."""
        with context(task="billing"):
            RewardPostprocessor(log, knowing()).postprocess_nodes(nodes, query_str="q")

        assert judged(log) == [("billing", 6)]

    @pytest.mark.parametrize(("source", "kept"), [("", ""), (None, "ann")])
    async def test_the_callers_context_names_the_source(self, log, nodes, source, kept):
        """Scores are the judge's own, and the caller's where it is told so, sync and async."""
        postprocessor = RewardPostprocessor(log, knowing(), source=source)
        with context(source="ann"):
            postprocessor.postprocess_nodes(nodes, query_str="q")
            await postprocessor.apostprocess_nodes(nodes, query_bundle=QueryBundle("r"))

        assert [call.source for call in log.calls] == [kept, kept]

    def test_the_wrapper_names_the_task(self, log, nodes):
        """Scores recorded with the wrapper as the task belong to the task that the wrapper asks for."""
        model = TTTEmbedding(Hashing(), offsets=Offsets([], width=WIDTH), task="scifact")
        RewardPostprocessor(log, knowing(), task=model).postprocess_nodes(nodes, query_str="q")

        assert [call.task for call in log.calls] == ["scifact"]

    def test_a_function_is_no_judge(self, log):
        """It is refused when the postprocessor is made, with what a judge must have."""
        with pytest.raises(ValueError, match="judge: expected an object with score"):
            RewardPostprocessor(log, len)

    def test_without_a_query_nothing_is_recorded(self, log, nodes, caplog):
        """Nodes of no query pass, and the log says so."""
        assert RewardPostprocessor(log, knowing(), top_n=3).postprocess_nodes(nodes) == nodes[:3]
        assert log.calls == []
        assert "6 nodes stand as they came: InputError: query: expected a text, got NoneType" in caplog.text

    def test_it_works_in_a_query_engine(self, log, index):
        """Beside other postprocessors, it records what the engine retrieved."""
        index.as_query_engine(
            llm=MockLLM(),
            similarity_top_k=5,
            node_postprocessors=[RewardPostprocessor(log, knowing()), SimilarityPostprocessor(similarity_cutoff=0.0)],
        ).query("q")

        assert judged(log) == [(None, 5)]

    def test_wrong_parts_are_refused(self, log):
        """What is no log, a log for another judge and an empty cut fail at construction."""
        for tap in (RewardPostprocessor, RewardEventHandler):
            with pytest.raises(InputError, match=r"^log: expected a RewardLog or a StoreLog, got str$"):
                tap("log")
        with pytest.raises(InputError, match=r"^log: expected one for knowing, got one for somebody$"):
            RewardPostprocessor(RewardLog("somebody"), knowing())
        with pytest.raises(InputError, match=r"^top_n: expected at least 1, got 0$"):
            RewardPostprocessor(log, top_n=0)


class TestRewardEventHandler:
    """What retrievers report."""

    @pytest.fixture
    def handler(self, log):
        """A handler on the root dispatcher, turned off afterwards: there is no way to remove it."""
        handler = RewardEventHandler(log)
        get_dispatcher().add_event_handler(handler)
        yield handler
        handler.enabled = False

    async def test_retrievals_wait_for_a_judge(self, handler, log, index):
        """Sync and async retrievals are noted under their tags' task, else the caller's."""
        retriever = index.as_retriever(similarity_top_k=3)
        with instrument_tags({"tttembed_task": "tagged"}):
            retriever.retrieve("q")
        with context(task="billing"):
            await retriever.aretrieve(QueryBundle("r"))

        noted = [(call.task, call.query, len(call.documents), call.scores) for call in log.calls]
        assert noted == [("tagged", "q", 3, None), ("billing", "r", 3, None)]

    def test_it_can_be_turned_off(self, handler, log, index):
        """Dispatchers keep handlers for ever; a disabled one notes nothing."""
        handler.enabled = False
        index.as_retriever().retrieve("q")

        assert log.calls == []

    def test_its_own_errors_are_logged(self, handler, caplog):
        """LlamaIndex swallows a handler's error in silence; ours leaves a line."""
        node = NodeWithScore(node=Unreadable(text="t"))

        handler.handle(RetrievalEndEvent(str_or_query_bundle="q", nodes=[node]))

        assert [one.name for one in caplog.records] == ["llama_index.postprocessor.tttembed.events"]


class TestRewardRetriever:
    """Two searches for one request."""

    def make(self, index, wrapped, judge=None, **settings):
        """A retriever over the real index."""
        return RewardRetriever(index.as_retriever(similarity_top_k=10), wrapped, judge or knowing(), **settings)

    async def test_a_second_search_beats_reranking(self, index, wrapped, log):
        """With the same judged nodes two passes reach further and serve the meaning better, sync and async."""
        first = index.as_retriever(similarity_top_k=10).retrieve("q")
        twice = self.make(index, wrapped, top_n=10, log=log)

        found = twice.retrieve("q")

        assert set(texts(found)) - set(texts(first))
        assert wanted(found) > wanted(first)
        assert texts(await twice.aretrieve("q")) == texts(found)
        assert judged(log) == [(None, 10)] * 2

    async def test_the_judge_reads_the_first_of_a_list_that_is_sorted_by_words(self, index, log):
        """A node from the end of the search is judged where it shares a word."""
        model = TTTEmbedding(Hashing(), offsets=Offsets([local()], width=WIDTH))
        retriever = RewardRetriever(index.as_retriever(similarity_top_k=60), model, knowing(), log=log, depth=3)

        retriever.retrieve("find 17")
        await retriever.aretrieve("find 17")

        assert [call.documents[0] for call in log.calls] == ["passage 17"] * 2
        assert judged(log) == [(None, 3)] * 2
        assert retriever.vectors.supplied > 0 == retriever.vectors.embedded
        with pytest.raises(InputError, match=r"^depth: expected at least 1, got 0$"):
            self.make(index, model, depth=0)

    @pytest.mark.parametrize(("source", "kept"), [("", ""), (None, "ann")])
    async def test_the_callers_context_names_the_source(self, index, wrapped, log, source, kept):
        """Scores are the judge's own, and the caller's where it is told so, sync and async."""
        retriever = self.make(index, wrapped, log=log, source=source)
        with context(source="ann"):
            retriever.retrieve("q")
            await retriever.aretrieve("r")

        assert [call.source for call in log.calls] == [kept, kept]

    def test_the_bundle_of_the_caller_is_untouched(self, index, wrapped):
        """No vector is left in a bundle for the next request to find."""
        bundle = QueryBundle("q")
        self.make(index, wrapped).retrieve(bundle)

        assert bundle.embedding is None

    async def test_a_judge_that_is_away_costs_nothing(self, index, wrapped, caplog):
        """The first search's nodes are returned, sync and async, and the log says why."""
        first = index.as_retriever(similarity_top_k=4).retrieve("q")
        retriever = self.make(index, wrapped, away(), top_n=4)

        assert texts(retriever.retrieve("q")) == texts(await retriever.aretrieve("q")) == texts(first)
        assert [one.levelno for one in caplog.records] == [logging.ERROR]

    def test_wrong_parts_are_refused(self, index, wrapped):
        """A log for another judge and an empty answer fail at construction."""
        with pytest.raises(InputError, match=r"^log: expected one for knowing, got one for somebody$"):
            self.make(index, wrapped, log=RewardLog("somebody"))
        with pytest.raises(InputError, match=r"^top_n: expected at least 1, got 0$"):
            self.make(index, wrapped, top_n=0)


class TestTaskAndRewards:
    """The wrapper's side of the loop."""

    @pytest.fixture
    def offsets(self):
        """The offset of one task."""
        evidence = Evidence(4, None, None, "ungated", "made for a test")
        return Offsets([Offset("task", np.ones(WIDTH), 0.8, 4, evidence, task="billing")], width=WIDTH)

    async def test_the_callers_context_is_served(self, offsets):
        """Without a fixed task the offset is that of the caller's context; outside it there is none."""
        wrapped = TTTEmbedding(Hashing(), offsets=offsets)
        with context(task="billing"):
            inside = [wrapped.get_query_embedding("q"), await wrapped.aget_query_embedding("q")]

        assert inside == [offsets.apply(QUERY.tolist(), task="billing")] * 2
        assert wrapped.get_query_embedding("q") == QUERY.tolist()
        assert wrapped.embed_query_base("q") == await wrapped.aembed_query_base("q") == QUERY.tolist()

    def test_a_resolver_reads_the_query(self, offsets):
        """A function from query to task chooses the offset."""
        wrapped = TTTEmbedding(Hashing(), offsets=offsets, task=lambda query: query.split(":")[0])

        assert wrapped.get_query_embedding("billing: q") == offsets.apply(QUERY.tolist(), task="billing")

    def test_published_offsets_reach_an_index_that_was_built_before(self, offsets):
        """Publishing needs no new wrapper and no new index."""
        live = LiveOffsets(Offsets([], width=WIDTH))
        wrapped = TTTEmbedding(Hashing(), offsets=live, task="billing")
        before = wrapped.get_query_embedding("q")

        live.publish(offsets)

        assert before == QUERY.tolist()
        assert wrapped.get_query_embedding("q") == offsets.apply(before, task="billing")

    def test_rewards_are_learned_from_base_vectors(self, offsets, nodes):
        """A published offset never leaks into the next rewards; nodes are embedded once."""
        log, vectors = RewardLog.of(knowing()), TextVectors()
        wrapped = TTTEmbedding(Hashing(), offsets=offsets, task="billing", vectors=vectors)
        RewardPostprocessor(log, knowing(), task="billing").postprocess_nodes(nodes, query_str="q")

        rewards = [wrapped.rewards(log) for _ in range(2)][1]

        assert rewards.query_vectors.tolist() == [QUERY.tolist()]
        assert rewards.doc_vectors.tolist() == [np.float32(document(text)).tolist() for text in texts(nodes)]
        assert (vectors.embedded, vectors.remembered) == (6, 6)


async def test_any_llm_is_a_judge():
    """An LLM's answers are read as grades, sync and async."""
    judge = llm_judge(Grading(), name="model")

    assert judge.score("q", ["a", ""]) == await judge.ascore("q", ["a", ""]) == [4.0, None]
    assert judge.fingerprint.startswith("rubric:model@")


def local(task="default"):
    """A rescorer that counts shared words ten times as much as similarity, beside no offset."""
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    rescorer = Rescorer(np.array([1.0, 10.0, 0.0, 0.0]), Vocabulary.of(TEXTS), evidence)
    unserved = Evidence(9, None, None, "abstained", "")
    return Offset("local", np.zeros(WIDTH), 0.0, 9, unserved, task=task, rescorer=rescorer)


class TestRescoringPostprocessor:
    """One search, sorted by words too."""

    def query_engine_parts(self, task="default", offsets=None):
        """Sixty nodes of a search, and the model whose rescorer sorts so."""
        model = TTTEmbedding(Hashing(), offsets=offsets or Offsets([local(task)], width=WIDTH))
        index = VectorStoreIndex([TextNode(text=text, id_=text) for text in TEXTS], embed_model=model)
        return model, index.as_retriever(similarity_top_k=60).retrieve("find 17")

    async def test_nodes_that_share_words_come_first(self):
        """The named passage comes first with the score that it had; sync and async."""
        model, nodes = self.query_engine_parts()
        sorted_by = RescoringPostprocessor(model, top_n=3)
        for found in (
            sorted_by.postprocess_nodes(nodes, query_str="find 17"),
            await sorted_by.apostprocess_nodes(nodes, query_str="find 17"),
        ):
            assert len(found) == 3
            assert found[0] == next(node for node in nodes if node.text == "passage 17")

    async def test_a_cascade_asks_its_judge_where_the_first_leads_by_little(self):
        """A shared word leads by much, and nobody is asked; without one the judge puts the nodes in order."""
        judge = FakeJudge(lambda _, text: float(text == "passage 3"), fingerprint="wants passage 3")
        certain = replace(local(), skips=Skips((5.0,), (0.001,), 60))
        certified = Offsets([certain], width=WIDTH, settings={"judge": judge.fingerprint})
        model, nodes = self.query_engine_parts(offsets=certified)
        cascade = Cascade(judge, depth=60, explore=1e-12)
        sorted_by = RescoringPostprocessor(model, top_n=3, cascade=cascade)

        for query, first in (("find 17", "passage 17"), ("anything", "passage 3")):
            assert sorted_by.postprocess_nodes(nodes, query_str=query)[0].text == first
            assert (await sorted_by.apostprocess_nodes(nodes, query_str=query))[0].text == first
        assert cascade.counts == {"repeated": 1, "skipped": 2, "reranked": 1, "explored": 0}

    def test_without_a_rescorer_or_scores_nodes_stand_as_they_came(self, caplog):
        """Also where nothing is asked, which the log says."""
        model, nodes = self.query_engine_parts("numbers")
        sorted_by = RescoringPostprocessor(model)
        assert sorted_by.postprocess_nodes(nodes, query_str="find 17") == nodes
        assert sorted_by.postprocess_nodes(nodes) == nodes
        assert "not sorted by words: InputError: query: expected a text, got NoneType" in caplog.text
        with context(task="numbers"):
            assert sorted_by.postprocess_nodes(nodes, query_str="find 17")[0].text == "passage 17"
            unscored = [NodeWithScore(node=node.node) for node in nodes]
            assert sorted_by.postprocess_nodes(unscored, query_str="find 17") == unscored

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"embed_model": Hashing()}, "embed_model: expected TTTEmbedding"),
            ({"top_n": 0}, "top_n: expected at least 1"),
            ({"top_n": "4"}, "top_n: expected at least 1, got '4'"),
            ({"cascade": FakeJudge()}, "cascade: expected a Cascade, got FakeJudge"),
        ],
    )
    def test_what_is_none_is_refused(self, settings, said):
        """One line says what was expected."""
        model, _ = self.query_engine_parts()
        with pytest.raises(InputError, match=said):
            RescoringPostprocessor(**{"embed_model": model, **settings})
