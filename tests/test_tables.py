"""Files of votes and judgments as spreadsheets, databases and other programs write them."""

from __future__ import annotations

import json

import pytest

from tttembed_rag.cli.labels import read_labels
from tttembed_rag.rewards.rows import read_events, read_votes

VOTES = "query,document,thumb\nhow,guide,1\nhow,manual,-1\n"


@pytest.fixture
def read(tmp_path):
    """The rewards of a file called *name* with a *text*, by document and source."""

    def rewards(name, text):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        votes = read_votes(tmp_path / name, scale=None, task="default")
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
        ("votes.csv", VOTES.replace(",", "|"), UP_AND_DOWN),
        ("votes.csv", VOTES.replace("\n", "\r"), UP_AND_DOWN),
        ("votes.csv", VOTES.encode("utf-16"), UP_AND_DOWN),
        ("votes.csv", table_of('how,"a guide, new",1'), {("a guide, new", ""): 0.75}),
        ("votes.csv", "\n\r\n" + VOTES, UP_AND_DOWN),
        ("votes.csv", ",,\n" + VOTES, UP_AND_DOWN),
        ("votes.csv", "\ufeff" + VOTES, UP_AND_DOWN),
        ("votes.csv", ",query,document,thumb\n0,how,guide,1\n1,how,manual,-1\n", UP_AND_DOWN),
        # What stands in a file says what it is, and not its name.
        ("votes.jsonl", VOTES, UP_AND_DOWN),
        ("votes.txt", lines_of({"document": "guide", "thumb": True}), {("guide", ""): 0.75}),
        ("votes.csv", '[{"query": "how", "document": "guide",\n "thumb": true}]', {("guide", ""): 0.75}),
        # Columns under the names that others give them; a column that is none of ours is not read.
        *(
            ("votes.csv", table_of("how,guide,up,ann,May", titles=titles), {("guide", "ann"): 0.75})
            for titles in (
                "Question,Article,Vote,User,Date",
                "prompt,context,feedback,user_id,Date",
                "search,chunk,liked,User ID,Date",
            )
        ),
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


# Words for yes and no.
WORDS = (
    *("up down", "UP Down", "true false", "TRUE FALSE", "yes no", "Y N", "+ -", "like dislike", "good bad"),
    *("positive negative", "thumbs_up thumbs_down", "\U0001f44d \U0001f44e", "helpful unhelpful", "liked disliked"),
)


@pytest.mark.parametrize(
    ("columns", "votes", "rewards"),
    [
        *((("thumb", "success"), votes, [0.75, 0.25]) for votes in WORDS),
        *((("thumb",), votes, [0.75, 0.25]) for votes in ("+1 -1", "1.0 -1.0", "1,0 -1,0")),
        *((("success",), votes, [0.75, 0.25]) for votes in ("+1 0", "1.0 0", "1,0 0")),
        # Where a column's name asks for yes or no, and none is below zero, zero is no; else it is taken back.
        (("liked", "Helpful"), "0 1 0", [0.25, 0.75, 0.25]),
        (("feedback",), "0 1 -1", [0.5, 0.75, 0.25]),
        (("vote",), "0 1 1", [0.5, 0.75, 0.75]),
    ],
)
def test_a_vote_may_be_a_word(read, caplog, columns, votes, rewards):
    """Of thumbs, and of all that is or is not; only thumbs that were taken back are doubted."""
    for column in columns:
        rows = [f"q;{place};{vote}" for place, vote in enumerate(votes.split())]

        assert list(read("votes.csv", table_of(*rows, titles=f"query;text;{column}")).values()) == rewards
    assert bool(caplog.messages) == (0.5 in rewards)


@pytest.mark.parametrize(
    ("grades", "scale", "rewards"),
    [
        ("0.2 1", None, [0.2, 1]),
        ("0,2 1", None, [0.2, 1]),
        ("0 1", None, [0, 1]),
        ("true FALSE yes no", None, [1, 0, 1, 0]),
        ("0 4 5", "rubric:0,5", [0, 0.8, 1]),
        ("1 5", "rubric:1,5", [0, 1]),
        ("3 0", "rubric:0,3", [1, 0]),
        ("10 7", "rubric:1,10", [1, 2 / 3]),
        ("20 100", "rubric:0,100", [0.2, 1]),
    ],
)
def test_whole_grades_say_their_scale(read, caplog, grades, scale, rewards):
    """Where none is declared; one line says which it is."""
    rows = [f"q;{place};{grade}" for place, grade in enumerate(grades.split())]

    assert list(read("votes.csv", table_of(*rows, titles="query;text;grade")).values()) == pytest.approx(rewards)
    assert [f"on scale {scale}, unless" in line for line in caplog.messages] == ([True] if scale else [])


def test_columns_may_stand_in_later_lines_alone(read, tmp_path):
    """What is left out, or empty, is not there; a place counts for clicks, and may be anything beside rewards."""
    click = {"document": "b", "click": 0, "position": 2, "task": "legal", "source": "ann"}
    clicks = read("clicks.jsonl", lines_of({"document": "a", "click": 1}, click))
    rewards = read("rewards.csv", "query,text,reward,rank,task\nq,a,1,0,\nq,b,0,second,\nr,c,0,1,legal\n")
    tasks = [votes.task for votes in read_votes(tmp_path / "rewards.csv", scale=None, task="rest")]

    assert clicks == {("a", ""): 0.75, ("b", "ann"): pytest.approx(1 / 3)}
    assert rewards == {("a", ""): 1, ("b", ""): 0, ("c", ""): 0}
    assert tasks == ["rest", "legal"]


def test_labels_come_back_from_a_spreadsheet(tmp_path):
    """With semicolons, empty columns and empty rows."""
    lines = ["sep=;", "query_id;doc_id;Label;;", "q;d;1;;", ";;;;", "q;e;;;", "q;f;0;;"]
    (tmp_path / "labels.csv").write_text("\r\n".join(lines), encoding="utf-8-sig")

    assert read_labels(tmp_path / "labels.csv") == {("q", "d"): 1.0, ("q", "f"): 0.0}


def test_keys_of_json_are_of_any_case(read):
    """As titles are, and not of the same in all objects."""
    rows = lines_of(
        {"document": "guide", "thumb": 1, "Source": "ada"}, {"Document": "manual", "Thumb": -1, "source": "bob"}
    )

    assert read("votes.jsonl", rows) == {("guide", "ada"): 0.75, ("manual", "bob"): 0.25}
