"""Files of votes and judgments as spreadsheets, databases and other programs write them."""

from __future__ import annotations

import json

import pytest

from tttembed_rag import Scale
from tttembed_rag.errors import DataError
from tttembed_rag.rewards.rows import read_events, read_votes

VOTES = "query,document,thumb\nhow,guide,1\nhow,manual,-1\n"


@pytest.fixture
def read(tmp_path):
    """The rewards of a file called *name* with a *text*, by document and source."""

    def rewards(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
        votes = read_votes(tmp_path / name, scale=Scale(), task="default")
        return {(shown.text, served.source): shown.reward for served in votes for shown in served.candidates}

    return rewards


def lines_of(*rows):
    """Rows as JSON lines."""
    return "".join(json.dumps({"query": "q", **row}) + "\n" for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        VOTES.replace("\n", ",\n"),
        VOTES.replace("\n", ",,\r\n"),
        VOTES + ",,\n,,\n",
        "sep=,\n" + VOTES,
        '"sep=;"\n' + VOTES.replace(",", ";"),
        VOTES.replace(",", ";"),
        VOTES.replace(",", "\t"),
        "\n\r\n" + VOTES,
        ",,\n" + VOTES,
        "\ufeff" + VOTES,
        ",query,document,thumb\n0,how,guide,1\n1,how,manual,-1\n",
    ],
)
def test_what_a_spreadsheet_adds_is_left_out(read, text):
    """Columns without a title, rows without a cell, a line that names the delimiter, another delimiter."""
    assert read("votes.csv", text) == {("guide", ""): 0.75, ("manual", ""): 0.25}


@pytest.mark.parametrize("titles", [["Query Text", "Doc ID", "Rating"], ["query", "docid", "rating"]])
@pytest.mark.parametrize("name", ["ratings.csv", "ratings.CSV"])
def test_quepid_names_its_columns_in_two_ways(tmp_path, titles, name):
    """Its exports have other titles than what it imports."""
    (tmp_path / name).write_text(f"{','.join(titles)}\nhow,d1,3\nhow,d2,\n", encoding="utf-8")

    assert [(one.query, one.document, one.value) for one in read_events(tmp_path / name)] == [("how", "d1", 3.0)]


def test_a_long_text_is_a_cell(read):
    """Longer than the csv module takes by itself."""
    assert read("votes.csv", f"{VOTES}how,{'x' * 200_000},1\n")["x" * 200_000, ""] == 0.75


@pytest.mark.parametrize("marked", ['"Smart TV 55', '"Retina" displays', 'a screen of 55"', '"', 'a "b" c'])
def test_a_quote_between_tabs_is_a_character(read, marked):
    """Each row is a row, and each text stands as it is."""
    texts = ["a", marked, "b", f"{marked}, too", "c"]
    rewards = read("votes.tsv", "query\tdocument\tthumb\n" + "".join(f"q\t{text}\t1\n" for text in texts))

    assert list(rewards) == [(text, "") for text in texts]


def test_titles_in_quotes_mean_quotes_between_tabs(read):
    """As of programs that quote every field."""
    rewards = read("votes.tsv", '"query"\t"document"\t"thumb"\n"q"\t"a ""b""\tc"\t"1"\n')

    assert rewards == {('a "b"\tc', ""): 0.75}


def test_a_quote_that_is_left_open_is_named(read, caplog):
    """By its line: the rows that it takes are lost."""
    rows = [f"q,text {number},1" for number in range(30)]
    rows[4], rows[20] = 'q,"Smart TV 55,1', 'q,a screen of 55",1'
    read("votes.csv", "query,document,thumb\n" + "\n".join(rows))

    assert [message.partition("votes.csv:")[2] for message in caplog.messages] == [
        "22: a row of 17 lines ends here: is a quote left open?"
    ]


def test_texts_of_several_lines_are_no_open_quotes(read, caplog):
    """Where there are several of them."""
    texts = ["line\n" * length for length in (1, 20, 18)]
    read("votes.csv", "query,document,thumb\n" + "".join(f'q,"{text}",1\n' for text in texts))

    assert caplog.messages == []


def test_what_is_wrong_in_a_quote_has_a_line(read):
    with pytest.raises(DataError, match=r"votes.csv:3: expected comma-separated values \("):
        read("votes.csv", 'query,document,thumb\nq,a,1\nq,"b" c,1\n')


@pytest.mark.parametrize(
    ("up", "down"), [("1", "-1"), ("up", "down"), ("TRUE", "FALSE"), ("yes", "no"), ("true", "false"), ("+", "-")]
)
@pytest.mark.parametrize("name", ["votes.csv", "votes.jsonl"])
def test_a_thumb_has_many_spellings(read, caplog, name, up, down):
    """False and no are thumbs down: nobody writes a thumb that was taken back so."""
    rows = [{"document": "a", "thumb": up}, {"document": "b", "thumb": down}]
    table = "query,document,thumb\n" + "".join(f"q,{row['document']},{row['thumb']}\n" for row in rows)

    assert read(name, table if name.endswith("csv") else lines_of(*rows)) == {("a", ""): 0.75, ("b", ""): 0.25}
    assert caplog.messages == []


@pytest.mark.parametrize(("up", "down"), [(True, False), (1, -1), (1.0, -1.0)])
def test_a_thumb_of_json_may_be_a_truth(read, up, down):
    rewards = read("votes.jsonl", lines_of({"document": "a", "thumb": up}, {"document": "b", "thumb": down}))

    assert list(rewards.values()) == [0.75, 0.25]


def test_the_last_thumb_of_a_source_counts(read):
    """Also where it takes one back; votes of others, and of nobody that is named, are heard beside it."""
    votes = [("ada", 1), ("bob", 1), ("ada", 0), ("bob", -1), ("", 1), ("", 1), ("", -1)]
    rewards = read("votes.csv", "query,document,thumb,source\n" + "".join(f"q,d,{up},{who}\n" for who, up in votes))

    assert rewards == {("d", "ada"): 0.5, ("d", "bob"): 0.25, ("d", ""): 0.625}


@pytest.mark.parametrize("name", ["votes.csv", "votes.jsonl"])
def test_a_source_may_be_a_zero(read, name):
    """As the first user of a database: it is not nobody."""
    rows = [{"document": "d", "thumb": 1, "source": user} for user in (0, 1)]
    table = "query,document,thumb,source\nq,d,1,0\nq,d,1,1\n"

    assert read(name, table if name.endswith("csv") else lines_of(*rows)) == {("d", "0"): 0.75, ("d", "1"): 0.75}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"position": 0}, r"votes.jsonl:1: position: expected 1 or more, got 0"),
        ({"task": 0}, r"votes.jsonl:1: task: expected a text, got 0"),
    ],
)
def test_a_zero_is_not_a_blank(read, row, message):
    """It is refused where a table would be."""
    with pytest.raises(DataError, match=message):
        read("votes.jsonl", lines_of({"document": "d", "click": 1, **row}))


def test_a_null_is_a_blank(read):
    row = {"document": "d", "click": 1, "position": None, "task": None, "source": None}

    assert read("votes.jsonl", lines_of(row)) == {("d", ""): 0.75}


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("v.csv.gz", b"\x1f\x8b\x08", "a file compressed by gzip: unpack it"),
        ("v.xlsx", b"PK\x03\x04\xff", "a spreadsheet or another zip file: save it as CSV"),
        ("v.csv", b"\xff\xfeq", "other bytes: save it as CSV or JSON lines in UTF-8"),
    ],
)
def test_another_kind_of_file_is_told_what_is_read(tmp_path, name, data, what):
    """Compressed files, workbooks and damaged UTF-16 alike."""
    (tmp_path / name).write_bytes(data)

    with pytest.raises(DataError, match=f"got {what}"):
        read_votes(tmp_path / name, scale=Scale(), task="default")
