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


RATING = {"query": "wool", "ratings": [{"docId": "7", "rating": "3.000"}]}
RATINGS = {"judgmentRatings": [RATING]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.csv", 'Query,Title,DocID,Rating\nwool,"a, b",7,3\nwool,c,8,\n'),
        ("q.json", RATINGS),
        ("q.json", {"_id": "b5", "found": True, "_source": RATINGS}),
        ("q.json", {"took": 9, "hits": {"hits": [{"_source": RATINGS}]}}),
    ],
    ids=["quepid", "imported into opensearch", "a document of opensearch", "asked of opensearch"],
)
def test_ratings_are_read_as_teams_have_them(tmp_path, name, content):
    """Titles in any case and order; what was not rated was not judged; what a GET of a list or its document gives."""
    (tmp_path / name).write_text(content if name == "q.csv" else json.dumps(content), encoding="utf-8")

    assert list(read_events(tmp_path / name)) == [judged("wool", "7", 3.0)]


def csv_with(row):
    """A file with a bad row."""
    return "q.csv", f"query,docid,rating\nsilk,1,2\n{row}\n"


def json_with(entry):
    """A file with a bad judgment."""
    return "q.json", json.dumps({"judgmentRatings": [RATING, entry]})


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (csv_with("wool,7,good"), "q.csv:3: expected query, docid and rating"),
        (csv_with(",7,3"), "q.csv:3: .*query: expected a text, got ''"),
        (csv_with("wool, ,3"), "q.csv:3: .*document: expected a text, got ' '"),
        (csv_with("wool,7"), "q.csv:3: expected query, docid and rating"),
        (csv_with("wool,7,nan"), "q.csv:3: .*got nan"),
        (csv_with('"wool,7,3\ntea,8,1'), "q.csv:3: expected comma-separated values"),
        (json_with({"ratings": RATING["ratings"]}), "judgmentRatings 2: .*query"),
        (json_with(RATING | {"query": None}), "judgmentRatings 2: .*got None"),
        (json_with({"query": "tea"}), "judgmentRatings 2: .*ratings"),
        (json_with({"query": "tea", "ratings": [{"docId": None, "rating": "1"}]}), "judgmentRatings 2: .*got None"),
        (json_with({"query": "tea", "ratings": [{"docId": "7", "rating": None}]}), "judgmentRatings 2: "),
        (json_with({"query": "tea", "ratings": [{"docId": "7", "rating": 10**400}]}), "judgmentRatings 2: "),
        (json_with("tea"), "judgmentRatings 2: "),
        (("q.json", json.dumps({"hits": {"hits": [{"_source": RATINGS}] * 2}})), "expected one judgment list, got 2"),
    ],
)
def test_what_is_no_rating_is_named(tmp_path, file, message):
    """With its place: no row is passed over, and a query without a text never becomes the query 'None'."""
    name, text = file
    (tmp_path / name).write_text(text, encoding="utf-8")

    with pytest.raises(DataError, match=message):
        list(read_events(tmp_path / name))


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
