"""What LlamaIndex alone asks of postprocessors, handlers and retrievers; the laws of all stand in tests/adapters."""

import logging
import pickle

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.instrumentation import get_dispatcher
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

from tests.adapters.llama_index_driver import Model
from tests.adapters.worlds import QUERY, TEXTS, WIDTH, Vectors, knowing, likeness, of_words
from tttembed_rag import InputError, Offsets, RewardLog, Scale
from tttembed_rag.testing import FakeLog


class Grading(MockLLM):
    """An LLM that grades."""

    def complete(self, prompt, formatted=False, **kwargs):
        return CompletionResponse(text="Answers most of it.\nScore: 4")


class Unreadable(TextNode):
    """A node whose content cannot be read."""

    def get_content(self, metadata_mode=None):
        raise OSError


def texts(nodes):
    return [node.text for node in nodes]


@pytest.fixture
def wrapped():
    """A wrapper without offsets."""
    return TTTEmbedding(Model(vectors=Vectors(QUERY)), offsets=Offsets([], width=WIDTH))


@pytest.fixture
def index(wrapped):
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
        """Without a judge the very nodes go on, their pairs wait, and nobody is declared."""
        observer = RewardPostprocessor(log)

        assert observer.postprocess_nodes(nodes, query_str="q") == nodes
        assert await observer.apostprocess_nodes(nodes, query_str="q") == nodes
        assert (observer.mode, log.trusted) == ("observe", None)
        assert [(len(call.documents), call.scores) for call in log.calls] == [(6, None)] * 2

    def test_nodes_carry_their_rewards(self, log, nodes):
        """The ones that were retrieved are untouched; what is cut off was judged and recorded too."""
        before = [node.score for node in nodes]

        reranked = RewardPostprocessor(log, knowing(), top_n=4).postprocess_nodes(nodes, query_str="q")

        scores = [node.score for node in reranked]
        assert (len(scores), judged(log)) == (4, [(None, 6)])
        assert scores == sorted(scores, reverse=True)
        assert [node.score for node in nodes] == before

    def test_the_judge_reads_what_was_embedded(self, log, wrapped):
        """Metadata that was embedded is judged and recorded with the text."""
        node = NodeWithScore(node=TextNode(text="text", metadata={"src": "book"}))

        RewardPostprocessor(log, knowing()).postprocess_nodes([node], query_str="q")

        assert [call.documents for call in log.calls] == [("src: book\n\ntext",)]

    def test_unjudged_nodes_keep_place_and_score(self, nodes):
        """A judge that declines some orders the others among themselves."""
        unclear = texts(nodes)[::2]
        judge = knowing(lambda _, text: None if text in unclear else 30 * likeness(text))
        reranked = RewardPostprocessor(RewardLog.of(judge), judge).postprocess_nodes(nodes, query_str="q")

        assert reranked[::2] == nodes[::2]
        assert reranked[1].score >= reranked[3].score >= reranked[5].score

    @pytest.mark.parametrize("asynchronous", [True, False])
    async def test_a_judge_that_is_away_costs_nothing(self, log, nodes, asynchronous, caplog):
        """Nodes stand as they came, cut to size, and the log says why."""
        reranker = RewardPostprocessor(log, knowing(error=TimeoutError()), top_n=4)
        if asynchronous:
            kept = await reranker.apostprocess_nodes(nodes, query_str="q")
        else:
            kept = reranker.postprocess_nodes(nodes, query_str="q")

        assert kept == nodes[:4]
        assert [(record.name, record.levelno) for record in caplog.records] == [
            ("llama_index.postprocessor.tttembed.base", logging.ERROR)
        ]

    def test_without_a_query_nothing_is_recorded(self, log, nodes, caplog):
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

    def test_it_can_be_turned_off(self, handler, log, index):
        """Dispatchers keep handlers for ever; a disabled one notes nothing."""
        handler.enabled = False
        index.as_retriever().retrieve("q")

        assert log.calls == []

    def test_its_own_errors_are_logged(self, handler, caplog):
        """LlamaIndex swallows a handler's error in silence; ours leaves a line."""
        node = NodeWithScore(node=Unreadable(text="t"))

        handler.handle(RetrievalEndEvent(str_or_query_bundle="q", nodes=[node]))

        assert [record.name for record in caplog.records] == ["llama_index.postprocessor.tttembed.events"]


class TestRewardRetriever:
    """Two searches for one request."""

    def test_the_bundle_of_the_caller_is_untouched(self, index, wrapped):
        """No vector is left in a bundle for the next request to find."""
        bundle = QueryBundle("q")
        RewardRetriever(index.as_retriever(similarity_top_k=10), wrapped, knowing()).retrieve(bundle)

        assert bundle.embedding is None

    @pytest.mark.parametrize("asynchronous", [True, False])
    @pytest.mark.parametrize("preset", ["texts", "vector", "steered vector"])
    async def test_the_vector_of_a_query_is_that_of_its_bundle(self, preset, asynchronous):
        """The texts that HyDE sets are embedded; a vector of the caller is searched with, but none that is steered."""
        wrapped = TTTEmbedding(Model(vectors=Vectors()), offsets=Offsets([], width=WIDTH))
        index = VectorStoreIndex([TextNode(text=text, id_=text) for text in TEXTS], embed_model=wrapped)
        searched, inner = [], index.as_retriever(similarity_top_k=10)

        class Watched(type(inner)):
            def _retrieve(self, query_bundle):
                searched.append(query_bundle.embedding)
                return inner._retrieve(query_bundle)

            async def _aretrieve(self, query_bundle):
                return self._retrieve(query_bundle)

        base = wrapped.base
        bundle, expected = {
            "texts": (
                QueryBundle("q", custom_embedding_strs=[TEXTS[0], TEXTS[1]]),
                base.get_agg_embedding_from_queries([TEXTS[0], TEXTS[1]]),
            ),
            "vector": (QueryBundle("q", embedding=[0.5] * WIDTH), [0.5] * WIDTH),
            "steered vector": (
                QueryBundle("q", embedding=wrapped.get_query_embedding("q")),
                base.get_query_embedding("q"),
            ),
        }[preset]
        retriever = RewardRetriever(Watched(index, similarity_top_k=10), wrapped, knowing())

        if asynchronous:
            await retriever.aretrieve(bundle)
        else:
            retriever.retrieve(bundle)

        assert searched[0] == pytest.approx(expected)


class ByLength:
    """A judge that can be pickled."""

    fingerprint, scale = "by length", Scale.parse("logit")

    def score(self, query, documents):
        return [float(len(text)) for text in documents]


def test_a_postprocessor_is_pickled_whole_or_not_at_all(nodes):
    """What cannot be pickled, as a log in memory, is no reason to lose the judge in silence."""
    whole = RewardPostprocessor(FakeLog("by length"), ByLength())

    copy = pickle.loads(pickle.dumps(whole))  # noqa: S301 - its own

    assert copy.postprocess_nodes(nodes, query_str="q") == whole.postprocess_nodes(nodes, query_str="q")
    with pytest.raises(TypeError):
        pickle.dumps(RewardPostprocessor(RewardLog.of(ByLength()), ByLength()))


def test_any_llm_is_a_judge():
    """An LLM's answers are read as grades."""
    judge = llm_judge(Grading(), name="model")

    assert judge.score("q", ["a", ""]) == [4.0, None]
    assert judge.fingerprint.startswith("rubric:model@")


class TestRescoringPostprocessor:
    """One search, sorted by words too."""

    def test_without_a_query_or_scores_nodes_stand_as_they_came(self, caplog):
        """Where nothing is asked, the log says so."""
        model = TTTEmbedding(Model(vectors=Vectors(QUERY)), offsets=Offsets([of_words()], width=WIDTH))
        index = VectorStoreIndex([TextNode(text=text, id_=text) for text in TEXTS], embed_model=model)
        nodes, sorter = index.as_retriever(similarity_top_k=60).retrieve("find 17"), RescoringPostprocessor(model)
        unscored = [NodeWithScore(node=node.node) for node in nodes]

        assert sorter.postprocess_nodes(nodes) == nodes
        assert "not sorted by words: InputError: query: expected a text, got NoneType" in caplog.text
        assert sorter.postprocess_nodes(unscored, query_str="find 17") == unscored

    def test_a_model_without_offsets_is_refused(self):
        with pytest.raises(InputError, match="embed_model: expected TTTEmbedding, got Model"):
            RescoringPostprocessor(Model(vectors=Vectors(QUERY)))
