"""Rerankers, retrievers and observers: lists are judged, recorded, sorted, and never lost."""

import logging
from dataclasses import replace
from functools import partial
from threading import Barrier

import numpy as np
import pytest

from tests.adapters.worlds import QUERY, TEXTS, WIDTH, Vectors, knowing, likeness, of_task, of_words
from tttembed_rag import InputError, LiveOffsets, Offsets, RewardLog, context, fit
from tttembed_rag.judges import RubricJudge
from tttembed_rag.offsets.floor import Floor
from tttembed_rag.offsets.rerankskips import Skips, digest_of
from tttembed_rag.serving import Cascade
from tttembed_rag.testing import FakeLog

NO_OFFSET = Offsets([], width=WIDTH)
FAR = Offsets([of_task("far", np.full(WIDTH, 2.0), 0.9)], width=WIDTH)
SOURCES = pytest.mark.parametrize(("source", "kept"), [("", ""), (None, "ann")])
DECLARED = pytest.mark.parametrize(("source", "trusted"), [("", True), (None, None)])


def build(adapter, offsets=NO_OFFSET, **options):
    """A wrapper whose queries all have one vector, and a store of its passages."""
    model = adapter.wrap(adapter.model(Vectors(QUERY)), offsets, **options)
    return model, adapter.build(model, TEXTS)


@pytest.fixture
def log():
    """A log for the judge that knows."""
    return FakeLog("knowing")


@pytest.fixture(params=["tap", "retriever"])
def judging(request, adapter):
    """Makes each part that judges, with a log and options, and gives what asks it, sync and async."""

    def make(log, judge=None, **options):
        judge = judge or knowing()
        if request.param == "retriever":
            model, store = build(adapter)
            retriever = adapter.retriever(store, model, judge, log=log, **options)
            return partial(adapter.ask, retriever), partial(adapter.aask, retriever)
        tap = adapter.tap(log, judge, **options)
        return (lambda query: adapter.record(tap, query, TEXTS[:10])), (
            lambda query: adapter.arecord(tap, query, TEXTS[:10])
        )

    return make


class TestJudging:
    """Whatever asks a judge while a request waits."""

    async def test_all_verdicts_are_recorded_under_the_callers_task(self, judging, log):
        """Before the list is cut; sync and async."""
        ask, aask = judging(log)
        with context(task="billing"):
            ask("q")
            await aask("r")

        assert [(call.query, call.task, len(call.scores)) for call in log.calls] == [
            ("q", "billing", 10),
            ("r", "billing", 10),
        ]

    @SOURCES
    async def test_the_callers_context_names_the_source(self, judging, log, source, kept):
        """Scores are the judge's own, and the caller's where a part is told so; in threads too."""
        ask, aask = judging(log, source=source)
        with context(source="ann"):
            ask("q")
            await aask("r")

        assert [call.source for call in log.calls] == [kept, kept]

    @DECLARED
    def test_a_judge_is_declared_where_it_speaks_for_itself(self, judging, source, trusted):
        """Its order is served; not where each caller judges for itself."""
        log = RewardLog("knowing")
        judging(log, source=source)

        assert log.trusted is trusted
        assert bool(log.declared_by) is bool(trusted)

    def test_what_is_no_log_is_refused(self, judging):
        with pytest.raises(ValueError, match=r"log"):
            judging("log")


class TestTaps:
    """Rerankers that record what they are told."""

    async def test_a_list_comes_in_the_order_of_its_judge(self, adapter, log):
        tap = adapter.tap(log, knowing())
        best = sorted(TEXTS[:6], key=likeness, reverse=True)

        assert adapter.record(tap, "q", TEXTS[:6]) == await adapter.arecord(tap, "q", TEXTS[:6]) == best

    def test_a_wrapper_names_the_task(self, adapter):
        """Scores that are recorded with a wrapper as the task are learned for the task that it asks for."""
        live = LiveOffsets()
        model, _ = build(adapter, live, task="scifact")
        log = RewardLog("knowing", scale="logit")
        adapter.record(adapter.tap(log, knowing(), task=model), "q", TEXTS[:6])

        live.publish(fit(model.rewards(log), scope="task", gate=False))

        assert adapter.embed(model, "another") != QUERY


class TestObservers:
    """What retrievals leave."""

    @pytest.fixture
    def observer(self, adapter, log):
        """An observer, turned off afterwards."""
        observer = adapter.observer(log)
        yield observer
        adapter.off(observer)

    async def test_a_retrieval_waits_for_a_judge_under_its_task(self, adapter, observer, log):
        """Its own task comes first, then the caller's; sync and async. The documents are those of a search."""
        _, store = build(adapter)
        expected = adapter.texts(adapter.hits(store, "s", 3))
        log.calls.clear()
        with context(task="billing"):
            hits = [adapter.observe(observer, store, "q"), await adapter.aobserve(observer, store, "r")]
            hits.append(adapter.observe(observer, store, "s", task="shipping"))

        assert [(call.task, call.query, list(call.documents), call.scores) for call in log.calls] == [
            (task, query, expected, None) for task, query in (("billing", "q"), ("billing", "r"), ("shipping", "s"))
        ]
        assert [adapter.texts(documents) for documents in hits] == [expected] * 3

    def test_what_is_no_log_is_refused(self, adapter):
        with pytest.raises(InputError, match=r"^log: expected a RewardLog or a StoreLog, got str$"):
            adapter.observer("log")

    def test_an_observer_may_name_the_task(self, adapter, log):
        _, store = build(adapter)
        observer = adapter.observer(log, task="orders")
        with context(task="billing"):
            adapter.observe(observer, store, "q")
        adapter.off(observer)

        assert [call.task for call in log.calls] == ["orders"]

    def test_a_broken_log_costs_a_line(self, adapter, caplog):
        """Never the user's documents."""
        log = RewardLog("judge")
        log.note = log.observe = None
        _, store = build(adapter)
        observer = adapter.observer(log)
        hits = adapter.observe(observer, store, "q")
        adapter.off(observer)

        assert len(hits) == 3
        (record,) = caplog.records
        assert record.name.partition(".")[0] in {"langchain_tttembed", "llama_index"}


class TestRetrievers:
    """Search, judge, search again."""

    @staticmethod
    def make(adapter, judge=None, offsets=NO_OFFSET, **options):
        model, store = build(adapter, offsets)
        return adapter.retriever(store, model, judge or knowing(), **options), store

    async def test_a_second_search_beats_reranking(self, adapter):
        """With the same verdicts two passes reach further and serve the meaning better; sync and async."""
        retriever, store = self.make(adapter, k=10)
        first = adapter.texts(adapter.hits(store, "q", 10))

        hits = adapter.ask(retriever, "q")

        assert set(hits) - set(first)
        assert np.mean([*map(likeness, hits)]) > np.mean([*map(likeness, first)])
        assert await adapter.aask(retriever, "q") == hits

    def test_rewards_are_learned_from_the_vector_of_the_search(self, adapter):
        log = RewardLog("knowing", scale="logit")
        model, store = build(adapter)
        adapter.ask(adapter.retriever(store, model, knowing(), log=log, depth=7), "q")

        rewards = model.rewards(log)

        assert (rewards.depths.tolist(), rewards.query_vectors.tolist()) == ([7], [QUERY])

    def test_verdicts_are_recorded_under_the_task_of_the_model(self, adapter, log):
        model, store = build(adapter, task="scifact")
        adapter.ask(adapter.retriever(store, model, knowing(), log=log), "q")

        assert [call.task for call in log.calls] == ["scifact"]

    async def test_a_judge_that_is_away_costs_nothing(self, adapter, caplog):
        """The documents of the first search are returned in its order, and the log says why."""
        retriever, store = self.make(adapter, knowing(error=TimeoutError()))
        first = adapter.texts(adapter.hits(store, "q", 4))

        assert adapter.ask(retriever, "q") == await adapter.aask(retriever, "q") == first
        assert [record.levelno for record in caplog.records] == [logging.ERROR]

    async def test_the_judge_reads_the_first_of_a_list_that_is_sorted_by_words(self, adapter, log):
        """A document from the end of the search is judged where it shares a word; without a rescorer it is not."""
        supplied = []
        for offsets in (Offsets([of_words()], width=WIDTH), NO_OFFSET):
            retriever, _ = self.make(adapter, offsets=offsets, log=log, depth=3, fetch_k=60)
            adapter.ask(retriever, "find 17")
            await adapter.aask(retriever, "find 17")
            supplied.append(retriever.vectors.supplied)

        judged = [call.documents for call in log.calls]
        assert judged[0] == judged[1] != judged[2] == judged[3]
        assert (judged[0][0], "passage 17" in judged[2]) == ("passage 17", False)
        assert {len(documents) for documents in judged} == {3}
        assert supplied[0] > supplied[1]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"judge": len}, r"judge: expected an object with score.* got builtin_function_or_method .*RubricJudge"),
            ({"log": RewardLog("somebody")}, "log: expected one for knowing, got one for somebody"),
            ({"depth": 0}, "depth"),
            ({"k": 0}, "k|top_n"),
        ],
    )
    def test_wrong_parts_are_refused(self, adapter, options, message):
        with pytest.raises(ValueError, match=message):
            self.make(adapter, **options)


class TestSorters:
    """One search, sorted by what verdicts taught of words."""

    @staticmethod
    def make(sorting, task="default", offsets=None, **options):
        """Sixty documents of a search, and what sorts them by the words of a task."""
        model, store = build(sorting, offsets or Offsets([of_words(task)], width=WIDTH))
        return sorting.hits(store, "find 17", 60), sorting.sorter(model, **options)

    async def test_documents_that_share_words_come_first(self, sorting):
        """As they came; sync and async."""
        documents, sorter = self.make(sorting, top_n=3)
        expected = next(document for document in documents if sorting.texts([document]) == ["passage 17"])
        for kept in (sorting.sort(sorter, documents, "find 17"), await sorting.asort(sorter, documents, "find 17")):
            assert (len(kept), kept[0]) == (3, expected)

    async def test_a_cascade_asks_its_judge_where_the_first_leads_by_little(self, cascading):
        """A shared word leads by much, and nobody is asked; without one the judge puts the documents in order."""
        judge = knowing()
        certain = replace(of_words(), skips=Skips((5.0,), (0.001,), 60, (digest_of("passage 17"),)))
        certified = Offsets([certain], width=WIDTH, settings={"judge": judge.fingerprint})
        cascade = Cascade(judge, depth=60, explore=1e-12)
        documents, sorter = self.make(cascading, offsets=certified, top_n=3, cascade=cascade)

        for query, first in (("find 17", "passage 17"), ("anything", max(TEXTS, key=likeness))):
            for kept in (cascading.sort(sorter, documents, query), await cascading.asort(sorter, documents, query)):
                assert cascading.texts(kept)[0] == first
        assert cascade.counts == {"repeated": 1, "skipped": 2, "reranked": 1, "explored": 0}

    async def test_documents_stand_as_they_came_where_nothing_is_published(self, sorting):
        """Until the caller names the task; a list without documents is one."""
        documents, sorter = self.make(sorting, task="numbers")
        plain = [sorting.sort(sorter, documents, "find 17"), await sorting.asort(sorter, documents, "find 17")]
        with context(task="numbers"):
            named = sorting.sort(sorter, documents, "find 17")

        assert plain == [documents] * 2
        assert sorting.texts(named)[0] == "passage 17"
        assert sorting.sort(sorter, [], "find 17") == []

    async def test_nothing_is_left_where_nothing_fits(self, sorting):
        """Below the floor the list is empty; above it documents in their order say how likely they are relevant."""
        for cut, kept in ((0.99, 0), (1e-6, 60)):
            floor = Floor((0.0, 1.0, 0.0, 0.0, 0.0), np.zeros((1, WIDTH)), 0.0, 60, (cut,), 1.0, (cut,), (0.04,))
            offsets = Offsets([replace(of_words(), floor=floor)], width=WIDTH)
            documents, sorter = self.make(sorting, offsets=offsets, floor=0.05)
            for hits in (
                sorting.sort(sorter, documents, "find 17"),
                await sorting.asort(sorter, documents, "find 17"),
            ):
                assert len(hits) == kept
                assert all(0.25 < sorting.likelihood(document) < 0.75 for document in hits)
                assert sorting.texts(hits[:1]) == ["passage 17"] * bool(kept)

    async def test_a_cascade_asks_about_no_list_that_the_floor_refuses(self, cascading):
        """Once lists are certified to need no judge; before, and of texts that are explored, all lists are judged."""
        judge = knowing()
        floor = Floor((0.0, 1.0, 0.0, 0.0, 0.0), np.zeros((1, WIDTH)), 0.0, 60, (0.99,), 1.0, (0.99,), (0.04,))
        counts = []
        certified = Skips((5.0,), (0.001,), 60, ())
        for skips, explore in ((certified, 1e-12), (certified, 1.0), (None, 1e-12)):
            version = replace(of_words(), floor=floor, skips=skips)
            offsets = Offsets([version], width=WIDTH, settings={"judge": judge.fingerprint})
            cascade = Cascade(judge, depth=60, explore=explore)
            documents, sorter = self.make(cascading, offsets=offsets, floor=0.05, cascade=cascade)
            assert cascading.sort(sorter, documents, "anything") == []
            assert await cascading.asort(sorter, documents, "something") == []
            counts.append((cascade.counts["skipped"], cascade.counts["reranked"]))

        assert counts == [(2, 0), (0, 2), (0, 2)]

    @pytest.mark.parametrize(
        "options",
        [{"deep": 4}, {"floor": 1.0}, {"cascade": knowing()}, {"top_n": 0}, {"top_n": "four"}],
        ids=["deep", "all lost", "cascade", "none kept", "no number"],
    )
    def test_wrong_options_are_refused_by_name(self, cascading, options):
        (name,) = options
        with pytest.raises((ValueError, TypeError), match=rf"\b{name}|\n{cascading.kept}\n"):
            self.make(cascading, **options)


def test_a_chat_judge_reads_documents_side_by_side(adapter):
    """Ten prompts of a model that answers only when all ten have come take one round, not ten, also without async."""
    together = Barrier(10)

    def complete(prompt):
        together.wait(timeout=60)
        return f"Score: {len(prompt) % 6}"

    judge = RubricJudge(complete, model="waits", concurrency=10)
    log = FakeLog(judge.fingerprint)
    model, store = build(adapter)

    adapter.ask(adapter.retriever(store, model, judge, log=log), "q")

    assert [len(call.scores) for call in log.calls] == [10]
    assert None not in log.calls[0].scores
