"""Feedback as rewards: thumbs, clicks by place, task success, imported judgments."""

from __future__ import annotations

import json

import pytest

from tttembed_rag import Event, Feedback, InputError, Scale
from tttembed_rag.errors import DataError
from tttembed_rag.rewards.rows import read_events, read_log, read_votes

HEADER = "query_id,doc_id,signal,value,position,time\n"


def reward(*events):
    """Reward of the one pair these events are about."""
    (score,) = Feedback.of(events).scores.values()
    return score


def event(signal="click", value=1.0, **more):
    return Event("q", "d", signal, value, **more)


def texts(served):
    """The texts of all candidates."""
    return [candidate.text for query in served for candidate in query.candidates]


class TestBehaviour:
    """What users did."""

    def test_is_a_posterior_mean(self):
        up, down = event("thumb", 1.0), event("thumb", -1.0)
        rewards = [reward(up), reward(down), reward(up, down), reward(*[event("success")] * 3, event("success", 0.0))]

        assert rewards == pytest.approx([0.75, 0.25, 0.5, (0.5 + 3) / (1 + 4)])

    def test_what_nobody_saw_was_not_rejected(self):
        """No click far down says less against a document than no click at the top."""
        rewards = [reward(*[event(value=0.0, position=place)] * 5) for place in (1, 3, 10)]

        assert rewards == sorted(rewards)
        assert rewards[0] == pytest.approx(0.5 / 6)
        assert rewards[2] == pytest.approx(0.5 / 1.5)

    @pytest.mark.parametrize(
        ("thumbs", "expected"),
        [((1, 0), 0.5), ((1, -1), 0.25), ((0, 1), 0.75), ((-1, -1), 0.25), ((1, 0, -1, 1), 0.75)],
    )
    def test_the_last_thumb_of_a_source_counts(self, thumbs, expected):
        """Also where it takes one back, which is neither up nor down; another source is heard beside it."""
        of_source = [event("thumb", thumb, source="ada") for thumb in thumbs]
        up = [Event("q", other, "thumb", 1.0, source=source) for other, source in (("d", "bob"), ("e", "ada"))]
        scores = Feedback.of([*of_source, *up]).scores

        assert Feedback.of([*of_source, up[1]]).scores == {("q", "d"): expected, ("q", "e"): 0.75}
        assert scores["q", "d"] == pytest.approx({0.5: 0.75, 0.25: 0.5, 0.75: 2.5 / 3}[expected])

    def test_thumbs_taken_back_are_counted(self, caplog):
        """A value of 0 is easily taken for a thumb down: one line says how many there are, and what is one."""
        Feedback.of([event("thumb", 0.0), event("thumb", 1.0), event("thumb", -1.0)])

        assert caplog.messages == [
            "value: 1 of 3 thumbs are 0, a thumb taken back, which is neither up nor down; a thumb down is -1"
        ]

    def test_ids_that_match_nothing_are_refused(self):
        """Feedback about another collection scores nothing; the message shows what it names."""
        feedback = Feedback.of([event()])

        with pytest.raises(DataError, match=r"^feedback: 1 of 1 pairs name .*query 'q' with document 'd'.*"):
            feedback.by_text({"other": "text"}, {"d": "text"})

    def test_a_few_unknown_ids_are_counted(self, caplog):
        """Documents come and go: pairs are known by the texts of their ids, and one line counts what is left out."""
        feedback = Feedback.of([event(), Event("q", "gone", "click", 1.0), Event("q", "e", "click", 1.0)])
        scores = feedback.by_text({"q": "query"}, {"d": "D", "e": "E", "f": "never judged"})

        assert scores == {("query", "D"): 0.75, ("query", "E"): 0.75}
        assert ["feedback: 1 of 3 pairs" in message for message in caplog.messages] == [True]


class TestJudgments:
    """Grades given elsewhere."""

    def test_keep_their_declared_scale(self):
        feedback = Feedback.of([event("judgment", 3.0), event("judgment", 2.0)], scale=Scale.parse("rubric:0,3"))

        assert feedback.scores == {("q", "d"): 2.5}
        assert str(feedback.scale) == "rubric:0,3"


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: event("stars"), "signal: expected"),
        (lambda: event("click", 0.5), "value: expected"),
        (lambda: event("success", -1.0), "value: expected"),
        (lambda: event("judgment", float("nan")), "value: expected"),
        (lambda: event("thumb", 5.0), "value: expected for thumb 1 up, -1 down, 0 taken back, got 5$"),
        (lambda: event("click", position=0), "position: expected"),
        # Somebody writes thumbs down as 0.
        (
            lambda: Feedback.of([event("thumb", 0.0)] * 3 + [event("thumb", 1.0)] * 2),
            "value: 3 of 5 thumbs are 0, .*; expected -1 for a thumb down$",
        ),
        # The best grade cannot be told from the grades, and graders and users are two judges.
        (lambda: Feedback.of([event("judgment", 1.0)]), "scale: expected one for judgments"),
        (
            lambda: Feedback.of([event("judgment", 1.0), event()]),
            "events: expected judgments or behaviour, got both$",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, line):
    with pytest.raises(InputError, match=f"^{line}"):
        make()


class TestFiles:
    """Three formats."""

    @pytest.mark.parametrize(
        ("name", "text", "events"),
        [
            (
                "clicks.csv",
                HEADER + 'q,"a,b",click,1,2,1970-01-02\nq,c,thumb,-1,,\n',
                [Event("q", "a,b", "click", 1.0, 2), Event("q", "c", "thumb", -1.0)],
            ),
            (
                "sheet.csv",
                "\ufeff" + HEADER + '"my\nquery\u2028",d,thumb,1,,\n',
                [Event("my\nquery\u2028", "d", "thumb", 1.0)],
            ),
            (
                "qrels.txt",
                "q 0 a 2\n\nq\t0\tb\t0\n",
                [Event("q", "a", "judgment", 2.0), Event("q", "b", "judgment", 0.0)],
            ),
            ("test.tsv", "query-id\tcorpus-id\tscore\nq\td\t2\n", [Event("q", "d", "judgment", 2.0)]),
        ],
    )
    def test_are_read(self, tmp_path, name, text, events):
        """CSV by names of columns, also of a spreadsheet (a mark of byte order, line breaks in quotes); TREC; BEIR."""
        (tmp_path / name).write_text(text, encoding="utf-8")

        assert list(read_events(tmp_path / name)) == events

    def test_opensearch(self, tmp_path):
        """A judgment list names queries by text and grades as text."""
        path = tmp_path / "judgments.json"
        ratings = [{"docId": "a", "rating": "3"}, {"docId": "b", "rating": 0.0}]
        path.write_text(json.dumps({"judgmentRatings": [{"query": "my query", "ratings": ratings}]}), encoding="utf-8")
        feedback = Feedback.of(list(read_events(path)), scale=Scale.parse("rubric:0,3"))

        assert feedback.by_text({"7": "my query"}, {"a": "A", "b": "B"}) == {("my query", "A"): 3, ("my query", "B"): 0}

    def test_lines_of_json_end_at_line_breaks_alone(self, tmp_path):
        """A mark such as U+2028, at which texts are cut elsewhere, stays in its text; in a log of queries too."""
        text, path = "one\u2028line", tmp_path / "x.jsonl"
        path.write_text(f'{{"query": "q", "document": "{text}", "thumb": 1}}\r\n\n', encoding="utf-8")
        log = tmp_path / "log.jsonl"
        log.write_text(
            f'{{"query_id": "1", "query": "q", "candidates": [{{"id": "d", "text": "{text}"}}]}}\n', encoding="utf-8"
        )

        assert texts(read_votes(path, scale=Scale(), task="t")) == [text]
        assert texts(read_log(log)) == [text]
        log.write_text('{"query": "what a user asked', encoding="utf-8")
        # What stands there is not shown.
        with pytest.raises(DataError, match=r":1: expected one JSON object a line, got text that is no JSON$"):
            read_log(log)

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("x.csv", "query_id,doc_id\n", r"x.csv:1: expected a header with .* lacks signal, value$"),
            ("x.csv", HEADER + "q,d,click,maybe,1,\n", r"x.csv:2: value: expected 1 or 0, got 'maybe'"),
            ("x.csv", HEADER + "q,d,click,1,first,\n", r"x.csv:2: position: expected a number, got 'first'"),
            ("x.csv", HEADER + "q,d\n", r"x.csv:2: value: expected a number, got nothing"),
            ("x.txt", "q 0 2\n", r"x.txt:1: expected QUERY 0 DOCUMENT GRADE, got 'q 0 2'"),
            ("x.txt", "q 0 d\n", r"x.txt:1: expected QUERY 0 DOCUMENT GRADE, got 'q 0 d'"),
            ("x.json", "{}", r"x.json: expected .*judgmentRatings"),
            ("x.json", "no", r"x.json: expected .*judgmentRatings"),
            ("none.csv", None, "none.csv: expected feedback, found no file"),
        ],
    )
    def test_damage_is_named(self, tmp_path, name, text, message):
        path = tmp_path / name
        if text is not None:
            path.write_text(text, encoding="utf-8")

        with pytest.raises(DataError, match=message):
            list(read_events(path))
