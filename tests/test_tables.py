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


def table_of(*rows, titles="query,document,thumb"):
    """Rows as comma-separated values."""
    return "".join(f"{line}\n" for line in (titles, *rows))


UP_AND_DOWN = {("guide", ""): 0.75, ("manual", ""): 0.25}
VOTED = ["q,d,1,ada", "q,d,1,bob", "q,d,0,ada", "q,d,-1,bob", "q,d,1,", "q,d,1,", "q,d,-1,"]


@pytest.mark.parametrize(
    ("name", "text", "rewards"),
    [
        # What spreadsheets add: columns without a title, rows without a cell, the delimiter's name, another delimiter.
        ("votes.csv", VOTES.replace("\n", ",\n"), UP_AND_DOWN),
        ("votes.csv", VOTES.replace("\n", ",,\r\n"), UP_AND_DOWN),
        ("votes.csv", VOTES + ",,\n,,\n", UP_AND_DOWN),
        ("votes.csv", "sep=,\n" + VOTES, UP_AND_DOWN),
        ("votes.csv", '"sep=;"\n' + VOTES.replace(",", ";"), UP_AND_DOWN),
        ("votes.csv", VOTES.replace(",", ";"), UP_AND_DOWN),
        ("votes.csv", VOTES.replace(",", "\t"), UP_AND_DOWN),
        ("votes.csv", "\n\r\n" + VOTES, UP_AND_DOWN),
        ("votes.csv", ",,\n" + VOTES, UP_AND_DOWN),
        ("votes.csv", "\ufeff" + VOTES, UP_AND_DOWN),
        ("votes.csv", ",query,document,thumb\n0,how,guide,1\n1,how,manual,-1\n", UP_AND_DOWN),
        # A cell that is longer than the csv module takes by itself.
        ("votes.csv", f"{VOTES}how,{'x' * 200_000},1\n", UP_AND_DOWN | {("x" * 200_000, ""): 0.75}),
        # Titles in quotes mean quotes between tabs, as of programs that quote every field.
        ("votes.tsv", '"query"\t"document"\t"thumb"\n"q"\t"a ""b""\tc"\t"1"\n', {('a "b"\tc', ""): 0.75}),
        # The last thumb of a source counts; votes of others, and of nobody that is named, are heard beside it.
        (
            "votes.csv",
            table_of(*VOTED, titles="query,document,thumb,source"),
            {("d", "ada"): 0.5, ("d", "bob"): 0.25, ("d", ""): 0.625},
        ),
        # A source that is a zero, as the first user of a database, is somebody; a null is a blank.
        *(
            (name, text, {("d", "0"): 0.75, ("d", "1"): 0.75})
            for name, text in (
                ("votes.csv", table_of("q,d,1,0", "q,d,1,1", titles="query,document,thumb,source")),
                ("votes.jsonl", lines_of(*({"document": "d", "thumb": 1, "source": user} for user in (0, 1)))),
            )
        ),
        (
            "votes.jsonl",
            lines_of({"document": "d", "click": 1, "position": None, "task": None, "source": None}),
            {("d", ""): 0.75},
        ),
        # Thumbs of JSON may be truths, whole numbers and others.
        *(
            (
                "votes.jsonl",
                lines_of({"document": "guide", "thumb": up}, {"document": "manual", "thumb": down}),
                UP_AND_DOWN,
            )
            for up, down in ((True, False), (1, -1), (1.0, -1.0))
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_votes_are_read_as_they_are_written(read, name, text, rewards):
    assert read(name, text) == rewards


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("v.jsonl", lines_of({"document": "d", "click": 1, "position": 0}), "v.jsonl:1: position: expected 1 or more"),
        ("v.jsonl", lines_of({"document": "d", "click": 1, "task": 0}), "v.jsonl:1: task: expected a text, got 0"),
        ("v.csv", table_of("q,a,1", 'q,"b" c,1'), r"v.csv:3: expected comma-separated values \("),
        ("v.csv.gz", b"\x1f\x8b\x08", "got a file compressed by gzip: unpack it"),
        ("v.xlsx", b"PK\x03\x04\xff", "got a spreadsheet or another zip file: save it as CSV"),
        ("v.csv", b"\xff\xfeq", "got other bytes: save it as CSV or JSON lines in UTF-8"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, name, data, line):
    """A zero, which is no blank, an odd quote, and files that are compressed, workbooks or damaged."""
    (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())

    with pytest.raises(DataError, match=line):
        read_votes(tmp_path / name, scale=Scale(), task="default")


@pytest.mark.parametrize("titles", [["Query Text", "Doc ID", "Rating"], ["query", "docid", "rating"]])
@pytest.mark.parametrize("name", ["ratings.csv", "ratings.CSV"])
def test_quepid_names_its_columns_in_two_ways(tmp_path, titles, name):
    (tmp_path / name).write_text(f"{','.join(titles)}\nhow,d1,3\nhow,d2,\n", encoding="utf-8")

    assert [(event.query, event.document, event.value) for event in read_events(tmp_path / name)] == [
        ("how", "d1", 3.0)
    ]


@pytest.mark.parametrize("marked", ['"Smart TV 55', '"Retina" displays', 'a screen of 55"', '"', 'a "b" c'])
def test_a_quote_between_tabs_is_a_character(read, marked):
    """Each row is a row, and each text stands as it is."""
    texts = ["a", marked, "b", f"{marked}, too", "c"]
    rewards = read("votes.tsv", "query\tdocument\tthumb\n" + "".join(f"q\t{text}\t1\n" for text in texts))

    assert list(rewards) == [(text, "") for text in texts]


def test_a_quote_that_is_left_open_is_named(read, caplog):
    """By its line: the rows that it takes are lost."""
    rows = [f"q,text {number},1" for number in range(30)]
    rows[4], rows[20] = 'q,"Smart TV 55,1', 'q,a screen of 55",1'
    read("votes.csv", table_of(*rows))

    assert [message.partition("votes.csv:")[2] for message in caplog.messages] == [
        "22: a row of 17 lines ends here: is a quote left open?"
    ]


def test_texts_of_several_lines_are_no_open_quotes(read, caplog):
    texts = ["line\n" * length for length in (1, 20, 18)]
    read("votes.csv", table_of(*(f'q,"{text}",1' for text in texts)))

    assert caplog.messages == []


@pytest.mark.parametrize(
    ("up", "down"), [("1", "-1"), ("up", "down"), ("TRUE", "FALSE"), ("yes", "no"), ("true", "false"), ("+", "-")]
)
@pytest.mark.parametrize("name", ["votes.csv", "votes.jsonl"])
def test_a_thumb_has_many_spellings(read, caplog, name, up, down):
    """False and no are thumbs down: nobody writes a thumb that was taken back so."""
    rows = lines_of({"document": "guide", "thumb": up}, {"document": "manual", "thumb": down})

    assert read(name, table_of(f"q,guide,{up}", f"q,manual,{down}") if name.endswith("csv") else rows) == UP_AND_DOWN
    assert caplog.messages == []


def test_keys_of_json_are_of_any_case(read):
    """As titles are, and not of the same in all objects."""
    rows = lines_of(
        {"document": "guide", "thumb": 1, "Source": "ada"}, {"Document": "manual", "Thumb": -1, "source": "bob"}
    )

    assert read("votes.jsonl", rows) == {("guide", "ada"): 0.75, ("manual", "bob"): 0.25}
