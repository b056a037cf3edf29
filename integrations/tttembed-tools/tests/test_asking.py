"""A judge beside the calls: what it is asked, what that costs, and what it changes."""

import pytest
from tttembed_store import open_store
from tttembed_tools import LearnedToolSearch

from tests.catalogues import CATALOG, LEARNED, UNSEEN, first, request, suits
from tttembed_rag.errors import InputError
from tttembed_rag.judges.examination import answers
from tttembed_rag.judging.spending import Budget
from tttembed_rag.testing import FakeEmbedder, FakeJudge


def asked_of(judge):
    """What the judge was asked about, but for its examination."""
    return [(query, text) for query, text in judge.asked if query not in answers()]


@pytest.fixture
def judge():
    """A judge that knows which tools suit a request."""
    return FakeJudge(suits, tokens=10)


@pytest.fixture
def taught(tmp_path, judge):
    """Gives a search with this judge over a store where zeta was called, and worked, for thirty requests."""
    with open_store(f"sqlite:///{tmp_path}/tools.db") as store:
        made = []

        def taught(**given):
            search = LearnedToolSearch(CATALOG, FakeEmbedder(), store=store, judge=judge, **given)
            made.append(search)
            for topic in LEARNED:
                search.used(request(topic), f"zeta_{topic}")
            return search

        yield taught
        for one in made:
            one.close()


def test_tools_that_nobody_called_are_judged(taught, judge):
    """The first tools of each request's list that were not called, none that was, and none within a request."""
    search = taught()
    search(request(LEARNED[0]))
    assert judge.asked == []

    search.learn()
    asked = asked_of(judge)

    assert len(asked) == len(set(asked)) == 3 * len(LEARNED)
    assert {query for query, _ in asked} == {request(topic) for topic in LEARNED}
    assert all(
        any(
            query == request(topic) and text == f"acme_{topic}: Handle a {topic} in the acme suite"
            for query, text in asked
        )
        for topic in LEARNED
    )
    assert not any(text.startswith("zeta_" + query.removeprefix("please handle my ")) for query, text in asked)


@pytest.mark.parametrize("verdict", [0.0, 1.0])
def test_verdicts_count_instead_of_nothing(taught, judge, verdict):
    """Calls of zeta alone teach to prefer it; not where the judge says that acme would have done as well."""
    judge._score_of = lambda query, text: verdict ** (query not in answers()) * suits(query, text) / 0.9

    search = taught()
    search.learn()

    assert (first(search, UNSEEN) > 0.6) == (verdict == 0.0)


@pytest.mark.parametrize(
    ("budget", "pairs"),
    [(Budget(pairs=60), 60), (Budget(pairs=47), 0), (Budget(tokens=600), 60)],
)
def test_a_day_costs_what_was_allowed(taught, judge, budget, pairs):
    """Caps hold over all searches of a store; they hold for its examination too."""
    for number in range(2):
        search = taught(budget=budget)
        search.used(f"another request {number}", "zeta_redmail")
        search.learn()

    assert len(judge.asked) == pairs


def test_nothing_is_paid_for_twice(taught, judge):
    """A later pass asks about new requests alone, and what is left of the day's pairs is for these."""
    search = taught(budget=Budget(pairs=48 + 3 * len(LEARNED) + 5))
    search.learn()
    before = len(judge.asked)
    search.used("something new", "zeta_redmail")
    search.learn()

    assert {query for query, _ in judge.asked[before:]} == {"something new"}
    assert len(judge.asked) == before + 3


@pytest.mark.parametrize("error", [ConnectionError("down"), None])
def test_a_judge_that_fails_costs_nothing_but_its_verdicts(taught, judge, error, caplog):
    """Where the judge is down, or cannot tell good from bad, that is logged, and calls alone are learned from."""
    judge.error = error
    if error is None:
        judge._score_of = lambda *_: 0.5

    lesson = taught().learn()

    assert lesson.published
    assert "items that nobody used stay unjudged" in caplog.text


def test_names_with_tabs_and_line_breaks_are_judged_too(tmp_path, judge):
    """A tool of such a name keeps no other from being judged."""
    catalog = {f"{name.replace('_', chr(9))}\n": text for name, text in CATALOG.items()}
    with (
        open_store(f"sqlite:///{tmp_path}/odd.db") as store,
        LearnedToolSearch(catalog, FakeEmbedder(), store=store, judge=judge) as search,
    ):
        for topic in LEARNED:
            search.used(request(topic), f"zeta\t{topic}\n")
        search.learn()

    assert len(asked_of(judge)) == 3 * len(LEARNED)


def test_a_judge_needs_a_store(judge):
    """Without a store nothing would bound what it costs: refused in one line."""
    with pytest.raises(InputError, match="judge: expected a store beside it"):
        LearnedToolSearch(CATALOG, FakeEmbedder(), judge=judge)
