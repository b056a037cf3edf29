"""Taps: every pair and score reaches the log, and nothing else changes."""

# The wrapped parts override methods that their frameworks document.
# ruff: noqa: D102

import asyncio
import logging
from functools import partial
from uuid import uuid4

import pytest
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker
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

from tttembed_rag import InputError, LiveOffsets, Offsets, RewardLog, context, fit
from tttembed_rag.adapting import checked_rewards

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
        found = self.inner.invoke(query, {"callbacks": run_manager.get_child()})
        return [Document(f"extract of {one.page_content}") for one in found[:1]]


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


def by_task(log, wrapped):
    """Tasks, and how many pairs each query has."""
    rewards = wrapped.rewards(log)
    return dict(zip(rewards.tasks.tolist(), rewards.depths.tolist(), strict=True))


class TestRecordingCrossEncoder:
    """The tap that sees every pair and every score."""

    def test_scores_pass_through_and_are_kept(self, log, wrapped):
        """The caller gets the inner scores, the log all of them."""
        scores = RecordingCrossEncoder(Lengths(), log).score(PAIRS)

        assert scores == Lengths().score(PAIRS)
        assert wrapped.rewards(log).values.tolist() == scores

    def test_pairs_of_several_queries(self, log, wrapped):
        """One call may hold several queries; each keeps its own pairs."""
        RecordingCrossEncoder(Lengths(), log).score([*PAIRS, ("r", TEXTS[4]), ("q", TEXTS[5])])

        assert wrapped.rewards(log).depths.tolist() == [4, 1]

    def test_the_caller_names_the_task(self, log, wrapped):
        """Scores are filed under the task they were asked in."""
        tap = RecordingCrossEncoder(Lengths(), log)
        with context(task="billing"):
            tap.score(PAIRS)
        tap.score([("r", TEXTS[0])])

        assert by_task(log, wrapped) == {"billing": 3, "default": 1}

    @pytest.mark.parametrize("source", ["", None])
    async def test_the_callers_context_names_the_source(self, log, wrapped, source):
        """Scores are the judge's own, and the caller's where a tap is told so: in LangChain's threads too."""
        reranker = CrossEncoderReranker(model=RecordingCrossEncoder(Lengths(), log, source=source), top_n=2)
        compressor = RecordingCompressor(compressor=BestOnly(), log=log, source=source)
        documents = [Document(text) for text in TEXTS[:3]]
        with context(source="ann"):
            await reranker.acompress_documents(documents, "q")
            await compressor.acompress_documents(documents, "r")

        assert wrapped.rewards(log).sources.tolist() == ["" if source == "" else "ann"] * 2

    def test_what_it_logs_serves_the_wrapper_it_belongs_to(self, log):
        """Scores recorded with the wrapper as the task are learned for the task that the wrapper asks for."""
        model = DeterministicFakeEmbedding(size=WIDTH)
        live = LiveOffsets()
        embeddings = TTTEmbeddings(model, offsets=live, task="scifact")
        RecordingCrossEncoder(Lengths(), log, task=embeddings).score(PAIRS)

        live.publish(fit(embeddings.rewards(log), scope="task", gate=False))
        assert embeddings.embed_query("another") != model.embed_query("another")

    def test_what_is_logged_under_another_task_is_said(self, log, caplog):
        """A wrapper for one task and a tap for another change nothing, and one line names both tasks."""
        model = DeterministicFakeEmbedding(size=WIDTH)
        live = LiveOffsets()
        embeddings = TTTEmbeddings(model, offsets=live, task="scifact")
        RecordingCrossEncoder(Lengths(), log).score(PAIRS)
        live.publish(fit(embeddings.rewards(log), scope="task", gate=False))

        assert [embeddings.embed_query("another") for _ in range(2)] == [model.embed_query("another")] * 2
        [message] = caplog.messages
        assert "'scifact'" in message
        assert "'default'" in message

    def test_a_failure_of_every_request_is_one_line(self, caplog):
        """A wrong scale is said once a minute, without a traceback for each request."""
        encoder = RecordingCrossEncoder(Lengths(), RewardLog("judge", scale="rubric:5,6"))
        for _ in range(20):
            encoder.score(PAIRS)

        [record] = caplog.records
        assert record.exc_info is None
        assert "RewardError: " in record.getMessage()

    def test_scores_off_the_scale_are_logged_not_raised(self, log, caplog):
        """A wrongly declared scale never fails the user's reranking."""
        encoder = RecordingCrossEncoder(Lengths(), RewardLog("judge", scale="rubric:5,6"))

        assert encoder.score(PAIRS) == Lengths().score(PAIRS)
        [record] = caplog.records
        assert (record.name, record.levelno) == ("langchain_tttembed.capture", logging.ERROR)

    @pytest.mark.parametrize(("source", "said", "trusted"), [("", None, True), ("", False, False), (None, None, None)])
    def test_the_judge_is_declared(self, source, said, trusted):
        """Its order is served; not where scores are those of sources, nor where something else was said."""
        logs = [RewardLog("judge", trusted=said) for _ in range(2)]
        RecordingCrossEncoder(Lengths(), logs[0], source=source)
        RecordingCompressor(compressor=BestOnly(), log=logs[1], source=source)

        assert [log.trusted for log in logs] == [trusted] * 2

    def test_something_else_is_refused(self, log):
        """A wrong argument fails at construction."""
        with pytest.raises(InputError, match=r"^cross_encoder: expected a BaseCrossEncoder, got list$"):
            RecordingCrossEncoder([], log)


class TestRecordingCompressor:
    """Compressors that leave a relevance score."""

    async def test_scored_documents_are_kept(self, log, wrapped):
        """Documents pass through; only what has a score is recorded."""
        documents = [Document(text) for text in TEXTS[:2]]
        tap = RecordingCompressor(compressor=BestOnly(), log=log)

        compressed = [tap.compress_documents(documents, "q"), await tap.acompress_documents(documents, "r")]

        assert compressed == [BestOnly().compress_documents(documents, "q")] * 2
        assert wrapped.rewards(log).values.tolist() == [0.7, 0.7]


class TestRewardCallbackHandler:
    """What retrievers found."""

    def test_a_retrieval_waits_for_a_judge(self, log, retriever):
        """Query and documents are noted, no judge is asked."""
        retriever.invoke("q", {"callbacks": [RewardCallbackHandler(log)]})

        assert (len(log), log.waiting) == (1, 3)

    async def test_async_retrievals_keep_the_callers_context(self, retriever, wrapped):
        """A sync handler in an async run sees the task of the caller; a chat model judges in a thread."""
        judge = chat_judge(FakeListChatModel(responses=["Score: 3"]), name="parrot")
        log = RewardLog.of(judge)
        config = {"callbacks": [RewardCallbackHandler(log)]}
        with context(task="billing"):
            await retriever.ainvoke("q", config)
        await retriever.ainvoke("r", config)
        await asyncio.to_thread(log.score_waiting, judge)

        assert by_task(log, wrapped) == {"billing": 3, "default": 3}

    def test_batches_in_threads_keep_the_callers_context(self, log, retriever):
        """Batches run in threads with a copied context."""
        handler = RewardCallbackHandler(log)
        with context(task="billing"):
            retriever.batch(["q", "r", "s"], {"callbacks": [handler]})

        assert {task for task, _ in log._served} == {"billing"}

    def test_metadata_names_the_task(self, log, retriever):
        """The metadata of a call, or of a retriever, comes before the context."""
        config = {"callbacks": [RewardCallbackHandler(log)], "metadata": {"tttembed_task": "shipping"}}
        with context(task="billing"):
            retriever.invoke("q", config)

        assert list(log._served) == [("shipping", "q")]

    def test_what_is_no_log_is_refused(self):
        """At once, not when the first query was served."""
        for tap in (RewardCallbackHandler, partial(RecordingCrossEncoder, Lengths())):
            with pytest.raises(InputError, match=r"^log: expected a RewardLog or a StoreLog, got str$"):
                tap("log")

    def test_only_leaves_count(self, log, retriever):
        """A retriever that asks another one adds nothing to what that one found."""
        handler = RewardCallbackHandler(log)

        Asking(inner=Asking(inner=retriever)).invoke("q", {"callbacks": [handler]})

        assert sorted(log._served["default", "q"]) == sorted(one.page_content for one in retriever.invoke("q"))
        assert not handler._pending

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

    def test_its_own_errors_are_logged(self, retriever, caplog):
        """A broken log costs a line, not the user's documents."""
        log = RewardLog("judge")
        log.note = None
        found = retriever.invoke("q", {"callbacks": [RewardCallbackHandler(log)]})

        assert len(found) == 3
        assert [record.name for record in caplog.records] == ["langchain_tttembed.capture"]


async def test_any_chat_model_is_a_judge():
    """A chat model's grades become rewards, sync and async, and what has no verdict stays unjudged."""
    judge = chat_judge(FakeListChatModel(responses=["Good.\nScore: 4", "No idea."]), name="parrot")

    assert checked_rewards(judge, judge.score("q", ["a", "b"]))[0] == 0.8
    assert judge.score("q", ["a", "b"]) == [4.0, None]
    assert await judge.ascore("q", ["a"]) == [4.0]
    assert judge.fingerprint.startswith("rubric:parrot@")
