"""What people say of an answer is shared by the documents of its trace."""

from pathlib import Path

import pytest
from tttembed_store.spans import Span, Thumb, thumbed

from tttembed_rag.errors import RewardError
from tttembed_rag.rewards.observations import Candidate, Served
from tttembed_rag.rewards.scales import Scale

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "traces.md"
FIVE = [f"page {number}" for number in range(5)]


def retrieval(trace, texts=FIVE, query="wool"):
    """A span of a trace, and what it served; one more document has no whole text."""
    candidates = [Candidate("", text=text) for text in (*texts, "")]
    return Span(f"s {query}", trace, None, {}), Served("", None, candidates, query, at=7.0)


def rewards(queries):
    """The rewards by source, to four digits."""
    return {served.source: [round(shown.reward, 4) for shown in served.candidates if shown.text] for served in queries}


def test_a_thumb_is_one_event_for_all_documents_of_its_trace():
    """Five documents share it, as the page says."""
    thumbs = [Thumb("t", True, "ada", 1.0), Thumb("t", False, "ben", 2.0), Thumb("other", True, "cy", 3.0)]

    served = thumbed([retrieval("t")], thumbs, Scale())

    assert rewards(served) == {"ada": [0.5833] * 5, "ben": [0.4167] * 5}
    assert "documents that is .58 and .42" in " ".join(PAGE.read_text(encoding="utf-8").split())


def test_two_retrievals_of_a_trace_share_it_too():
    """Whichever of them the answer stands on is not known."""
    queries = [retrieval("t", FIVE[:2]), retrieval("t", FIVE[2:], "kettle")]

    served = thumbed(queries, [Thumb("t", 1, "ada", 0)], Scale())

    assert [query.candidates[0].reward for query in served] == [pytest.approx(3.5 / 6)] * 2


def test_the_last_word_of_a_source_counts():
    """Taken back and given anew."""
    thumbs = [Thumb("t", False, "ada", 2.0), Thumb("t", True, "ada", 1.0)]

    assert rewards(thumbed([retrieval("t", ["a"])], thumbs, Scale())) == {"ada": [0.25]}


def test_without_a_thumb_a_retrieval_stays_as_it_is():
    """It waits for a judge."""
    span, served = retrieval("t")

    assert thumbed([(span, served)], [], Scale()) == [served]


def test_numbers_lie_on_the_scale():
    """Three of one to five stars says nothing; six is none of them."""
    stars = Scale.parse("rubric:1,5")

    assert rewards(thumbed([retrieval("t")], [Thumb("t", 3, "ada", 0.0)], stars)) == {"ada": [0.5] * 5}
    with pytest.raises(RewardError):
        thumbed([retrieval("t")], [Thumb("t", 6, "ada", 0.0)], stars)


def test_the_time_is_that_of_the_retrieval():
    """Not of the thumb, so that what was forgotten between them stays so."""
    (served,) = thumbed([retrieval("t", ["a"])], [Thumb("t", True, "ada", 99.0)], Scale())

    assert (served.source, served.at) == ("ada", 7.0)
