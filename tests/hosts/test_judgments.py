"""Judgments of search teams, in and out."""

import json

import pytest
from click.testing import CliRunner

from tttembed_rag import DataError, InputError
from tttembed_rag.cli import main
from tttembed_rag.hosts.judgments import write_judgments
from tttembed_rag.judges import Event
from tttembed_rag.judges.feedback import read_events
from tttembed_rag.stores import Candidate, Served

REWARDS = {("q1", "a"): 1.0, ("q1", "b"): 1 / 3, ("q2", "a"): 0.0}
TEXTS = {"q1": "wash wool, cold", "q2": 'the "mill"'}


def judged(query, document, grade):
    """The event of a judgment."""
    return Event(query, document, "judgment", grade)


@pytest.mark.parametrize(("name", "by_text"), [("q.qrels", False), ("q.csv", True), ("q.json", True)])
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


def test_a_rating_that_is_no_number_is_named(tmp_path):
    """The message has the line."""
    (tmp_path / "q.csv").write_text("query,docid,rating\nwool,7,good\n", encoding="utf-8")

    with pytest.raises(DataError, match=r"q.csv:2: expected query, docid and rating"):
        list(read_events(tmp_path / "q.csv"))


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

    result = CliRunner().invoke(main, ["judgments", str(tmp_path / "q.csv"), "--store", sqlite_url])

    assert (result.exit_code, result.output) == (0, f"{tmp_path / 'q.csv'}: 2 judgments of mine, grades 0 to 3\n")
    assert list(read_events(tmp_path / "q.csv")) == [judged("wash wool", "a", 3.0), judged("wash wool", "b", 1.0)]


def test_a_store_without_rewards_is_said_to_have_none(tmp_path, store, sqlite_url):
    """Exit code 2, and no file."""
    result = CliRunner().invoke(main, ["judgments", str(tmp_path / "q.csv"), "--store", sqlite_url])

    assert result.exit_code == 2
    assert "expected rewards of a judge for tenant '', found none" in result.output
    assert not (tmp_path / "q.csv").exists()
