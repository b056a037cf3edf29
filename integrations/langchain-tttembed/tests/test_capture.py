"""What LangChain alone asks of taps; the laws of all stand in tests/adapters."""

# The wrapped parts override methods that their frameworks document.

import logging
from uuid import uuid4

import pytest
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import FakeListChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import (
    RecordingCompressor,
    RecordingCrossEncoder,
    RewardCallbackHandler,
    TTTEmbeddings,
    chat_judge,
)

from tttembed_rag import InputError, Offsets, RewardLog, context
from tttembed_rag.adapting import checked_rewards
from tttembed_rag.testing import FakeLog

WIDTH = 8
TEXTS = [f"passage {i}" for i in range(6)]
SCORES = [0.1, 0.9, 0.4]
PAIRS = [("q", text) for text in TEXTS[:3]]


class Lengths(BaseCrossEncoder):
    """Scores a text by the digit at its end, in tenths."""

    def score(self, text_pairs):
        return [int(text[-1]) / 10 for _, text in text_pairs]


class BestOnly(BaseDocumentCompressor):
    """Keeps two documents, and leaves a score on one of them."""

    def compress_documents(self, documents, query, callbacks=None):
        scored = documents[0].model_copy(update={"metadata": {"relevance_score": 0.7}})
        return [scored, documents[1]]


class Asking(BaseRetriever):
    """A retriever that hands on an extract of what another one finds, as compression retrievers do."""

    inner: BaseRetriever

    def _get_relevant_documents(self, query, *, run_manager):
        hits = self.inner.invoke(query, {"callbacks": run_manager.get_child()})
        return [Document(f"extract of {document.page_content}") for document in hits[:1]]


class Broken(BaseRetriever):
    """A retriever whose store is away."""

    def _get_relevant_documents(self, query, *, run_manager):
        raise ConnectionError


@pytest.fixture
def log():
    """An empty log of probabilities."""
    return RewardLog("judge")


@pytest.fixture
def wrapped():
    """A real wrapper, for the vectors of what was logged."""
    return TTTEmbeddings(DeterministicFakeEmbedding(size=WIDTH), offsets=Offsets([], width=WIDTH))


@pytest.fixture
def retriever(wrapped):
    """Three documents at a time from a real store."""
    return InMemoryVectorStore.from_texts(TEXTS, wrapped).as_retriever(search_kwargs={"k": 3})


class TestRecordingCrossEncoder:
    """The tap that sees every pair and every score."""

    def test_pairs_of_several_queries(self, log, wrapped):
        """One call may hold several queries; each keeps its own pairs."""
        RecordingCrossEncoder(Lengths(), log).score([*PAIRS, ("r", TEXTS[4]), ("q", TEXTS[5])])

        assert wrapped.rewards(log).depths.tolist() == [4, 1]

    def test_scores_off_the_scale_are_logged_not_raised(self, caplog):
        """A wrongly declared scale never fails a reranking, and is told once a minute, without a traceback."""
        encoder = RecordingCrossEncoder(Lengths(), RewardLog("judge", scale="rubric:5,6"))

        assert [encoder.score(PAIRS) for _ in range(20)] == [Lengths().score(PAIRS)] * 20
        [record] = caplog.records
        assert (record.name, record.levelno, record.exc_info) == ("langchain_tttembed.capture", logging.ERROR, None)
        assert "RewardError: " in record.getMessage()

    def test_too_few_scores_are_counted_in_the_log(self, log, caplog):
        """A cross encoder that gives one score for two pairs is named; its answer goes on as it came."""

        class Short(Lengths):
            def score(self, text_pairs):
                return super().score(text_pairs)[:1]

        assert len(RecordingCrossEncoder(Short(), log).score(PAIRS)) == 1
        assert f"expected a score for each of {len(PAIRS)} pairs, got 1" in caplog.text

    @pytest.mark.parametrize(
        ("source", "declared", "trusted"), [("", None, True), ("", False, False), (None, None, None)]
    )
    def test_the_judge_is_declared(self, source, declared, trusted):
        """Its order is served; not where scores are those of sources, nor where something else was said."""
        logs = [RewardLog("judge", trusted=declared) for _ in range(2)]
        RecordingCrossEncoder(Lengths(), logs[0], source=source)
        RecordingCompressor(compressor=BestOnly(), log=logs[1], source=source)

        assert [log.trusted for log in logs] == [trusted] * 2
        by = [tap.__name__ * bool(trusted) for tap in (RecordingCrossEncoder, RecordingCompressor)]
        assert [log.declared_by for log in logs] == by

    @pytest.mark.parametrize("kind", [list, iter])
    @pytest.mark.parametrize("answer", [list, lambda scores: map(float, scores), iter])
    def test_scores_pass_through_and_are_kept(self, log, wrapped, kind, answer):
        """Lazy ones of lazy pairs too: a map, as models with several labels give, reaches the caller and the log."""

        class Lazy(BaseCrossEncoder):
            def score(self, text_pairs):
                return answer(Lengths().score(text_pairs))

        scores = list(RecordingCrossEncoder(Lazy(), log).score(kind(PAIRS)))

        assert scores == Lengths().score(PAIRS)
        assert wrapped.rewards(log).values.tolist() == scores

    @pytest.mark.parametrize("answer", [lambda: map(float, ["none"]), lambda: map(float, ["1"]), lambda: 7])
    def test_an_answer_that_fails_fails_as_without_the_tap(self, log, answer):
        """What is no list of scores is the caller's to see; fewer scores than pairs are logged."""

        class Odd(BaseCrossEncoder):
            def score(self, text_pairs):
                return answer()

        def outcome(model):
            try:
                return list(model.score(iter(PAIRS)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
                return type(error)

        assert outcome(RecordingCrossEncoder(Odd(), log)) == outcome(Odd())

    def test_something_else_is_refused(self, log):
        """A wrong argument fails at construction."""
        with pytest.raises(InputError, match=r"^cross_encoder: expected a BaseCrossEncoder, got list$"):
            RecordingCrossEncoder([], log)


class TestRecordingCompressor:
    """Compressors that leave a relevance score."""

    @pytest.mark.parametrize("answer", [list, iter])
    async def test_scored_documents_are_kept(self, answer):
        """A generator reaches both the caller and the log, too; sync and async."""

        class Answering(BaseDocumentCompressor):
            def compress_documents(self, documents, query, callbacks=None):
                return answer(BestOnly().compress_documents(documents, query))

        documents, log = [Document(text) for text in TEXTS[:2]], FakeLog("judge")
        tap = RecordingCompressor(compressor=Answering(), log=log)

        kept = [list(tap.compress_documents(documents, "q")), list(await tap.acompress_documents(documents, "r"))]

        assert kept == [BestOnly().compress_documents(documents, "q")] * 2
        assert [call.scores for call in log.calls] == [(0.7,)] * 2

    def test_a_compressor_that_leaves_no_score_is_named_once(self, caplog):
        """Nothing is recorded, and the line says what records it."""

        class Silent(BaseDocumentCompressor):
            def compress_documents(self, documents, query, callbacks=None):
                return documents[:1]

        log = FakeLog("judge")
        tap = RecordingCompressor(compressor=Silent(), log=log)
        for _ in range(3):
            tap.compress_documents([Document("a")], "q")

        assert log.calls == []
        [message] = caplog.messages
        assert "Silent leaves no relevance_score: wrap its model in RecordingCrossEncoder" in message


class TestRewardCallbackHandler:
    """What retrievers found."""

    def test_batches_in_threads_keep_the_callers_context(self, retriever):
        log = FakeLog("judge")
        with context(task="billing"):
            retriever.batch(["q", "r", "s"], {"callbacks": [RewardCallbackHandler(log)]})

        assert [call.task for call in log.calls] == ["billing"] * 3

    def test_only_leaves_count(self, retriever):
        """A retriever that asks another one adds nothing to what that one found."""
        log = FakeLog("judge")
        handler = RewardCallbackHandler(log)

        Asking(inner=Asking(inner=retriever)).invoke("q", {"callbacks": [handler]})

        hits = [document.page_content for document in retriever.invoke("q")]
        assert [list(call.documents) for call in log.calls] == [hits]
        assert not handler._pending

    def test_documents_that_can_be_read_once_are_left_to_the_caller(self, caplog):
        """They are not noted, which the log says."""

        class Lazy(BaseRetriever):
            def _get_relevant_documents(self, query, *, run_manager):
                return (Document(text) for text in TEXTS)

        log = FakeLog("judge")

        hits = Lazy().invoke("q", {"callbacks": [RewardCallbackHandler(log)]})

        assert [document.page_content for document in hits] == TEXTS
        assert log.calls == []
        assert "retrieved documents were not recorded: InputError: documents: expected a list" in caplog.text

    def test_a_failed_run_is_forgotten(self, log):
        """Errors leave nothing open."""
        handler = RewardCallbackHandler(log)

        with pytest.raises(ConnectionError):
            Broken().invoke("q", {"callbacks": [handler]})

        assert (len(log), len(handler._pending)) == (0, 0)

    def test_open_runs_are_bounded(self, log):
        """Runs that never end do not fill the memory."""
        handler = RewardCallbackHandler(log, max_pending=2)
        runs = [uuid4() for _ in range(3)]
        for run in runs:
            handler.on_retriever_start({}, "q", run_id=run)
        for run in runs:
            handler.on_retriever_end([Document(str(run))], run_id=run)

        assert log.waiting == 2


def test_any_chat_model_is_a_judge():
    """A chat model's grades become rewards, and what has no verdict stays unjudged."""
    judge = chat_judge(FakeListChatModel(responses=["Good.\nScore: 4", "No idea."]), name="parrot")

    assert checked_rewards(judge, judge.score("q", ["a", "b"]))[0] == 0.8
    assert judge.score("q", ["a", "b"]) == [4.0, None]
    assert judge.fingerprint.startswith("rubric:parrot@")
