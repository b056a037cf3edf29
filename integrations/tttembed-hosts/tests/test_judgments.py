"""Judgments of search teams, in and out."""

import json

import pytest
from click.testing import CliRunner
from tttembed_hosts.judgments import write_judgments
from tttembed_store import Candidate, Served

from tttembed_rag import Event, InputError
from tttembed_rag.cli import main
from tttembed_rag.errors import DataError
from tttembed_rag.rewards.rows import read_events

REWARDS = {("q1", "a"): 1.0, ("q1", "b"): 1 / 3, ("q2", "a"): 0.0}
TEXTS = {"q1": "wash wool, cold", "q2": 'the "mill"'}


def judged(query, document, grade):
    """The event of a judgment."""
    return Event(query, document, "judgment", grade)


@pytest.mark.parametrize(("name", "by_text"), [("q.qrels", False), ("q.csv", True), ("q.CSV", True), ("q.json", True)])
def test_what_is_written_is_read_again(tmp_path, name, by_text):
    """Each format goes there and back, queries named by id or by text, with their grades."""
    write_judgments(tmp_path / name, REWARDS, texts=TEXTS)

    named = TEXTS if by_text else {"q1": "q1", "q2": "q2"}
    expected = [judged(named["q1"], "a", 3.0), judged(named["q1"], "b", 1.0), judged(named["q2"], "a", 0.0)]
    assert list(read_events(tmp_path / name)) == expected


def test_opensearch_gets_what_its_import_takes(tmp_path):
    """The body of a judgment list that is imported: a name, its type, and ratings as texts."""
    write_judgments(tmp_path / "q.json", {("q", "a"): 0.5}, name="mine")

    assert json.loads((tmp_path / "q.json").read_text(encoding="utf-8")) == {
        "name": "mine",
        "type": "IMPORT_JUDGMENT",
        "judgmentRatings": [{"query": "q", "ratings": [{"docId": "a", "rating": "1.500"}]}],
    }


def test_ratings_of_quepid_are_read(tmp_path):
    """Titles in any case and order, more columns; a document that was not rated was not judged."""
    text = 'Query,Title,DocID,Rating\nwool,"a, b",7,3\nwool,c,8,\ntea,d,9,0\n'
    (tmp_path / "q.csv").write_text(text, encoding="utf-8")

    assert list(read_events(tmp_path / "q.csv")) == [judged("wool", "7", 3.0), judged("tea", "9", 0.0)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("wool,7,good", r"q.csv:3: expected query, docid and rating"),
        (",7,3", r"q.csv:3: .*query: expected a text, got ''"),
        ("wool, ,3", r"q.csv:3: .*document: expected a text, got ' '"),
        ("wool,7", r"q.csv:3: expected query, docid and rating"),
        ("wool,7,nan", r"q.csv:3: .*got nan"),
        ('"wool,7,3\ntea,8,1', "q.csv:3: expected comma-separated values"),
    ],
    ids=["no number", "no query", "no document", "cut", "nan", "open quote"],
)
def test_a_row_that_is_no_rating_is_named(tmp_path, row, message):
    """The message has the line, and no row is passed over."""
    (tmp_path / "q.csv").write_text(f"query,docid,rating\nsilk,1,2\n{row}\n", encoding="utf-8")

    with pytest.raises(DataError, match=message):
        list(read_events(tmp_path / "q.csv"))


RATINGS = {"judgmentRatings": [{"query": "wool", "ratings": [{"docId": "7", "rating": "3.000"}]}]}


@pytest.mark.parametrize(
    "said",
    [RATINGS, {"_id": "b5", "found": True, "_source": RATINGS}, {"took": 9, "hits": {"hits": [{"_source": RATINGS}]}}],
    ids=["imported", "document", "asked for"],
)
def test_judgments_are_read_as_opensearch_answers(tmp_path, said):
    """What is imported, and what a GET of a judgment list or of its document gives."""
    (tmp_path / "q.json").write_text(json.dumps(said), encoding="utf-8")

    assert list(read_events(tmp_path / "q.json")) == [judged("wool", "7", 3.0)]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"ratings": [{"docId": "7", "rating": "1"}]}, "judgmentRatings 2: .*query"),
        ({"query": None, "ratings": [{"docId": "7", "rating": "1"}]}, "judgmentRatings 2: .*got None"),
        ({"query": "tea"}, "judgmentRatings 2: .*ratings"),
        ({"query": "tea", "ratings": [{"docId": None, "rating": "1"}]}, "judgmentRatings 2: .*got None"),
        ({"query": "tea", "ratings": [{"docId": "7", "rating": None}]}, "judgmentRatings 2: "),
        ({"query": "tea", "ratings": [{"docId": "7", "rating": 10**400}]}, "judgmentRatings 2: "),
        ("tea", "judgmentRatings 2: "),
    ],
)
def test_a_judgment_of_opensearch_that_lacks_something_is_named(tmp_path, entry, message):
    """A query without a text never becomes the query 'None'."""
    (tmp_path / "q.json").write_text(json.dumps({"judgmentRatings": RATINGS["judgmentRatings"] + [entry]}))

    with pytest.raises(DataError, match=message):
        list(read_events(tmp_path / "q.json"))


def test_several_judgment_lists_are_refused(tmp_path):
    """Their grades may mean different things."""
    (tmp_path / "q.json").write_text(json.dumps({"hits": {"hits": [{"_source": RATINGS}] * 2}}))

    with pytest.raises(DataError, match="expected one judgment list, got 2"):
        list(read_events(tmp_path / "q.json"))


def test_qrels_refuse_what_they_cannot_hold(tmp_path):
    """An id with white space would be two columns."""
    with pytest.raises(InputError, match="qrels: expected ids without white space"):
        write_judgments(tmp_path / "q.txt", {("wash wool", "a"): 1.0})
    with pytest.raises(InputError, match="grades: expected at least 1"):
        write_judgments(tmp_path / "q.txt", REWARDS, grades=0)

    assert not (tmp_path / "q.txt").exists()


def test_a_store_is_written_by_the_command(tmp_path, store, sqlite_url):
    """The rewards of the busiest judge, queries by their text."""
    candidates = [Candidate("a", text="cold", reward=1.0), Candidate("b", text="hot", reward=0.4)]
    store.observe([Served("q1", None, candidates, "wash wool")], judge="mine")

    result = CliRunner().invoke(main, ["store", "judgments", str(tmp_path / "q.csv"), "--store", sqlite_url])

    assert (result.exit_code, result.output) == (0, f"{tmp_path / 'q.csv'}: 2 judgments of mine, grades 0 to 3\n")
    assert list(read_events(tmp_path / "q.csv")) == [judged("wash wool", "a", 3.0), judged("wash wool", "b", 1.0)]


def test_a_store_without_rewards_is_said_to_have_none(tmp_path, store, sqlite_url):
    """Exit code 2, and no file."""
    result = CliRunner().invoke(main, ["store", "judgments", str(tmp_path / "q.csv"), "--store", sqlite_url])

    assert result.exit_code == 2
    assert "expected rewards of a judge for tenant '', found none" in result.output
    assert not (tmp_path / "q.csv").exists()
