"""The second search: where it goes, and how both searches become one list."""

import asyncio
import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tttembed_rag import Evidence, LiveOffsets, Offset, Offsets, Rewards, Steering, TwoPass, fit
from tttembed_rag.adapting import adrive, drive, in_reward_order
from tttembed_rag.errors import InputError, VectorError
from tttembed_rag.offsets.orders import in_fused_order
from tttembed_rag.offsets.rescorer import Rescorer, Vocabulary
from tttembed_rag.serving.twopass import FirstPass

KEYS = st.lists(st.integers(0, 30), unique=True)
REWARDS = st.dictionaries(st.integers(0, 30), st.floats(0, 1))


@pytest.mark.parametrize(
    ("order", "ranked", "rewards", "expected"),
    [
        # Unjudged keys stay where they are; judged ones are sorted among the places they hold.
        (in_reward_order, ["a", "new", "b", "c"], {"a": 0.1, "b": 0.5, "c": 0.9}, ["c", "new", "b", "a"]),
        # The best judged document that the second search lost stands at the first judged place.
        (in_reward_order, ["new", "a"], {"a": 0.1, "lost": 0.9}, ["new", "lost", "a"]),
        # Those that the judge did not tell apart keep the order of the search.
        (in_reward_order, ["b", "a", "c"], {"a": 0.5, "b": 0.5, "c": 0.5}, ["b", "a", "c"]),
        # Ranks by reward and in the search are added: second in both beats first and last.
        (in_fused_order, ["a", "b", "c"], {"a": 0.1, "b": 0.5, "c": 0.9}, ["a", "b", "c"]),
        (in_fused_order, ["a", "b", "c", "d"], {"a": 0.1, "b": 0.7, "c": 0.9, "d": 0.2}, ["b", "c", "a", "d"]),
        # Equal rewards share their mean rank; between them the search decides.
        (in_fused_order, ["a", "new", "b", "c"], {"a": 0.5, "b": 0.5, "c": 0.5}, ["a", "new", "b", "c"]),
        (in_fused_order, ["a", "b", "c"], {"a": 0.1, "b": 0.1, "c": 0.9}, ["a", "c", "b"]),
    ],
)
def test_judge_and_search_make_one_order(order, ranked, rewards, expected):
    """By rewards alone, or by rewards and places together."""
    assert order(ranked, rewards) == expected


@given(KEYS, REWARDS)
@settings(deadline=None)
def test_merging_keeps_every_key_and_both_orders(ranked, rewards):
    """All keys come out once; judged ones by falling reward, unjudged ones in their places."""
    merged = in_reward_order(ranked, rewards)

    judged = [rewards[key] for key in merged if key in rewards]
    assert sorted(merged) == sorted({*ranked, *rewards})
    assert judged == sorted(judged, reverse=True)
    assert all(merged[place] == key for place, key in enumerate(ranked) if key not in rewards)


@given(KEYS, REWARDS)
@settings(deadline=None)
def test_fusing_keeps_every_key_and_every_place(ranked, rewards):
    """All keys come out once, unjudged ones in their places; rewards that agree with the search change nothing."""
    fused = in_fused_order(ranked, rewards)
    agreeing = {key: -float(place) for place, key in enumerate(ranked)}

    assert sorted(fused) == sorted({*ranked, *rewards})
    assert all(fused[place] == key for place, key in enumerate(ranked) if key not in rewards)
    assert in_fused_order(ranked, agreeing) == ranked


@pytest.fixture
def case():
    """A query vector of norm 3, ten document vectors and their rewards."""
    draw = np.random.default_rng(0)
    query = draw.normal(size=16)
    return 3 * query / np.linalg.norm(query), draw.normal(size=(10, 16)), draw.uniform(size=10)


def test_the_second_vector_is_the_ungated_private_offset(case):
    """It is what fit(scope="query") serves that one query, norm and all."""
    query, documents, rewards = case
    offsets = fit(Rewards.from_arrays([query], [documents], [rewards]), scope="query", gate=False)

    turned = FirstPass(range(10), rewards, key=int).turned(query.tolist(), documents)

    assert turned == offsets.apply(query, query_id="0").tolist()
    assert np.linalg.norm(turned) == pytest.approx(3.0)


def test_unjudged_documents_teach_nothing(case):
    """A document without a reward is left out of judged, and keeps its place."""
    first = FirstPass(["a", "b", "c", "deep"], [0.2, np.nan, 0.9], key=str)

    assert first.judged == ["a", "c"]
    assert first.reranked() == ["c", "b", "a", "deep"]
    assert first.merged(["new", "b", "c", "a"]) == ["new", "b", "c", "a"]


def test_vectors_of_another_width_are_refused(case):
    query, documents, rewards = case

    with pytest.raises(VectorError, match="expected width 16"):
        FirstPass(range(10), rewards, key=int).turned(query, documents[:, :8])


# The loop


class Library:
    """Documents 0 to 9 of `case` as an application: what it is asked, and what it answers or raises."""

    def __init__(self, case, failing=""):
        self.query, self.documents, self.scores = case
        self.failing = failing
        self.requests = []
        self.recorded = []

    def answer(self, what, about):
        """The answer to one request; the second search counts as ``again``."""
        self.requests.append(what if (what, "search" in self.requests) != ("search", True) else "again")
        if self.requests[-1] == self.failing:
            raise ConnectionError(self.failing)
        return {
            "embed": self.query.tolist,
            "search": lambda: np.argsort(-(self.documents @ np.array(about)), kind="stable").tolist(),
            "judge": lambda: [float(self.scores[int(text)]) for text in about],
            "vectors": lambda: self.documents[about],
        }[what]()

    def record(self, request, base, documents, scores):
        self.recorded.append((request.query, base, documents, scores))
        if self.failing == "record":
            raise ConnectionError(self.failing)

    def loop(self, **settings):
        return TwoPass(
            read=str,
            rewards=np.array,
            key=int,
            record=self.record,
            logger=logging.getLogger("library"),
            **{"request": Steering(LiveOffsets()).request} | settings,
        )

    def ranking(self, **settings):
        kinds = ("embed", "search", "judge", "vectors")
        return drive(self.loop(**settings).steps("q"), **{kind: partial(self.answer, kind) for kind in kinds})

    async def aranking(self, **settings):
        async def answer(what, about):
            return self.answer(what, about)

        kinds = ("embed", "search", "judge", "vectors")
        return await adrive(self.loop(**settings).steps("q"), **{kind: partial(answer, kind) for kind in kinds})


async def test_the_loop_is_the_same_sync_and_async(case):
    """Both ask the same in the same order, and find what the parts would find."""
    library, awaited = Library(case), Library(case)
    query, documents, rewards = case
    once = np.argsort(-(documents @ query), kind="stable").tolist()
    first = FirstPass(once, rewards[once][:6], key=int)
    turned = np.array(first.turned(query, documents[once[:6]]))
    expected = first.merged(np.argsort(-(documents @ turned), kind="stable").tolist())

    assert library.ranking(depth=6) == await awaited.aranking(depth=6) == expected
    assert library.requests == awaited.requests == ["embed", "search", "judge", "vectors", "again"]
    assert library.recorded == awaited.recorded == [("q", query.tolist(), once[:6], rewards[once[:6]].tolist())]


class Odd:
    """Requests that sort odd documents before even ones, and steer nothing."""

    task, needs_scores = "default", True

    def __init__(self):
        self.scores = []

    def __call__(self, query):
        """Itself, as the request for *query*."""
        self.query = query
        return self

    def vector(self, base):
        return base

    def order(self, texts, scores):
        """The places of odd documents, then the others."""
        self.scores.append(scores)
        return sorted(range(len(texts)), key=lambda place: int(texts[place]) % 2 == 0)


async def test_words_sort_the_first_search_before_the_judge_reads(case):
    """The judge is given the first of the sorted list; their similarities are those to the vector searched with."""
    query, documents, rewards = case
    library, awaited, words = Library(case), Library(case), Odd()
    once = np.argsort(-(documents @ query), kind="stable").tolist()
    odd = sorted(once, key=lambda row: row % 2 == 0)

    ranked = library.ranking(depth=5, request=words, sorts=True, second_pass=False)

    assert ranked == await awaited.aranking(depth=5, request=words, sorts=True, second_pass=False)
    assert library.recorded == awaited.recorded == [("q", query.tolist(), odd[:5], rewards[odd[:5]].tolist())]
    assert library.requests == awaited.requests == ["embed", "search", "vectors", "judge"]
    cosines = documents @ query / np.linalg.norm(query) / np.linalg.norm(documents, axis=1)
    np.testing.assert_allclose(words.scores, [cosines[once]] * 2)


def test_words_sort_the_second_search_too(case):
    """Else what they brought up for the judge would stand at its place among vectors again."""
    query, documents, rewards = case
    library, words = Library(case), Odd()
    ranked = library.ranking(depth=3, request=words, sorts=True)
    assert library.requests == ["embed", "search", "vectors", "judge", "vectors", "again", "vectors"]
    once = sorted(np.argsort(-(documents @ query), kind="stable").tolist(), key=lambda row: row % 2 == 0)
    first = FirstPass(once, rewards[once][:3], key=int)
    turned = np.array(first.turned(query, documents[once[:3]]))
    again = np.argsort(-(documents @ turned), kind="stable").tolist()
    assert ranked == first.merged(sorted(again, key=lambda row: row % 2 == 0))


def by_words():
    """Offsets that turn no query, with a rescorer of the default task that puts shared words above similarity."""
    sure = Evidence(9, None, None, "published", "made for a test")
    rescorer = Rescorer(np.array([1.0, 1.0, 0.0, 0.0]), Vocabulary.of(["a fox", "a hen"]), sure)
    return Offsets([Offset("local", np.zeros(16), 0.5, 9, sure, task="default", rescorer=rescorer)], width=16)


@pytest.mark.parametrize(
    ("offsets", "questions"),
    [(by_words(), ["embed", "search", "vectors", "judge"]), (None, ["embed", "search", "judge"])],
)
def test_where_base_vectors_are_served_no_vector_is_asked_for(case, offsets, questions):
    """A rescorer sorts only the lists of queries that offsets serve."""
    library, plain = Library(case), Library(case).ranking(depth=5, second_pass=False)
    ranked = library.ranking(depth=5, request=Steering(LiveOffsets(offsets)).request, sorts=True, second_pass=False)

    assert (library.requests, offsets is not None or ranked == plain) == (questions, True)


@pytest.mark.parametrize(("before", "after"), [(by_words(), None), (None, by_words())])
def test_the_version_that_found_a_list_sorts_it(case, before, after):
    """What is published between the search and the sorting serves the next request."""
    live, lists = LiveOffsets(before), []

    def search(_):
        live.publish(after)
        return ["a hen", "a fox"]

    handlers = {
        "embed": lambda _: case[0].tolist(),
        "search": search,
        "vectors": lambda texts: np.stack([case[0], case[0] + case[1][0]])[: len(texts)],
        "judge": lambda texts: lists.append(texts) or [0.5] * len(texts),
    }
    loop = Library(case).loop(request=Steering(live).request, sorts=True, depth=2)
    for _ in range(2):
        drive(replace(loop, key=str).steps("which fox?"), **handlers)

    assert lists == [["a hen", "a fox"] if version is None else ["a fox", "a hen"] for version in (before, after)]


@pytest.mark.parametrize(
    ("scores", "settings"),
    [(None, {"second_pass": False}), (None, {"depth": 1}), ([0.4] * 10, {}), ([0.4, *[np.nan] * 9], {})],
)
def test_without_a_second_search_no_vector_is_asked_for(case, scores, settings):
    """Where it is not wanted, or verdicts that do not differ, or a single one, could not turn the query."""
    library = Library((*case[:2], case[2] if scores is None else scores))

    assert sorted(library.ranking(**settings)) == list(range(10))
    assert library.requests == ["embed", "search", "judge"]


@pytest.mark.parametrize("failing", ["judge", "record", "vectors", "again"])
async def test_a_failure_after_the_first_search_costs_its_order_alone(case, failing, caplog):
    """The first search's documents are returned, and one record says what failed."""
    once = np.argsort(-(case[1] @ case[0]), kind="stable").tolist()

    assert Library(case, failing).ranking() == await Library(case, failing).aranking() == once
    assert [(record.name, record.message, str(record.exc_info[1])) for record in caplog.records] == [
        ("library", "a query is served as first found", failing)
    ] * 2


def test_a_judge_that_gives_no_score_is_logged(case, caplog):
    """Its requests cost time, and change nothing: that must not go unseen."""
    query, documents, rewards = case
    library = Library((query, documents, np.full(len(rewards), np.nan)))

    assert library.ranking(depth=4) == np.argsort(-(documents @ query), kind="stable").tolist()
    assert [str(record.exc_info[1]) for record in caplog.records] == [
        "judge: expected a score of one of 4 documents at least, got none"
    ]


@pytest.mark.parametrize("failing", ["embed", "search"])
async def test_a_failure_before_is_the_callers(case, failing):
    with pytest.raises(ConnectionError, match=failing):
        Library(case, failing).ranking()
    with pytest.raises(ConnectionError, match=failing):
        await Library(case, failing).aranking()


def test_what_waits_is_awaited(case):
    """A coroutine function that waits is no handler of a loop that cannot."""

    async def embed(_):
        await asyncio.sleep(0)

    with pytest.raises(InputError, match=r"^handlers: expected functions, got a coroutine function$"):
        drive(Library(case).loop().steps("q"), embed=embed)
