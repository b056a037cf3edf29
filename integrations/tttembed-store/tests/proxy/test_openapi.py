"""The OpenAPI document of the proxy: valid, and true of what the proxy takes and gives."""

import json

import jsonschema
import pytest
from openapi_spec_validator import validate
from tttembed_store.proxy import FeedbackWriter
from tttembed_store.proxy.openapi import BODIES, checked_body
from tttembed_tools import LearnedToolSearch

from tttembed_rag import InputError
from tttembed_rag.testing import FakeEmbedder

GOOD = {
    "/v1/steer": {"vectors": [[1, 2.5]], "texts": ["a"]},
    "/v1/feedback": {
        "query": "q",
        "documents": [{"id": "d", "text": "t", "click": False, "position": 2}, {"text": "t", "grade": 3}],
        "scale": "rubric:0,3",
        "source": "ada",
    },
    "/v1/search/{catalogue}": {"query": "q", "k": 3, "among": ["a"]},
    "/v1/used": {"catalogue": "c", "query": "q", "used": [{"name": "a", "succeeded": True}], "source": ""},
}
ODD = (None, True, 0, -1, 1.5, 1000, "", " ", "a", [], ["a"], [[]], {}, {"id": "a"}, {"name": "a"})


def variants(value):
    """*value* with one part of it replaced by something odd, left out, or joined by a name that nobody knows."""
    yield from ODD
    if isinstance(value, dict):
        for name in value:
            yield {other: part for other, part in value.items() if other != name}
            yield from ({**value, name: part} for part in variants(value[name]))
        yield {**value, "more": 1}
        yield {**value, "thumb": 1}
    if isinstance(value, list):
        yield value * 201
        yield from ([part, *value[1:]] for part in variants(value[0]))


def test_it_is_valid_and_names_what_is_served(proxied, sqlite_url):
    """The document is OpenAPI 3.1, by its validator, and has an operation for each body; each text has a length."""
    searches = {"office": LearnedToolSearch({"a": "b"}, FakeEmbedder())}
    document = proxied(feedback=FeedbackWriter(sqlite_url), searches=searches).get("/v1/openapi.json").json()

    validate(document)
    assert document["openapi"].startswith("3.1")
    assert document["paths"].keys() == BODIES.keys() == GOOD.keys()
    own = json.dumps([schema for path, schema in BODIES.items() if path != "/v1/steer"])
    assert own.count('"string"') == own.count('"maxLength"') > 0
    assert own.count('"array"') == own.count('"maxItems"') > 0


@pytest.mark.parametrize("path", sorted(BODIES))
def test_bodies_are_checked_as_it_says(path):
    """What the document's schema takes is taken, and what it refuses is refused, in one line."""
    validator = jsonschema.Draft202012Validator(BODIES[path])
    assert checked_body(path, GOOD[path]) == GOOD[path]
    assert validator.is_valid(GOOD[path])
    for body in variants(GOOD[path]):
        assert (refused(path, body) == "") == validator.is_valid(body), body


UP = {"query": "q", "documents": [{"id": "d", "thumb": 1}]}
USED = {"catalogue": "office", "query": "q"}


def about(**document):
    """A body of feedback about one document."""
    return {"query": "q", "documents": [document]}


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("feedback", [], "body: expected a JSON object, got list"),
        ("feedback", {"query": "q"}, "body: expected query, documents, got query"),
        ("feedback", UP | {"user": "ada"}, "body: expected no more than query, documents, scale, source, got query, d"),
        ("feedback", UP | {"query": "x" * 20_001}, "query: expected the text of the query, got 20001, more than 20000"),
        ("feedback", UP | {"documents": []}, "documents: expected a list of documents, each with one of thumb, click"),
        ("feedback", UP | {"documents": ["d"]}, "documents[0]: expected what is said of one document, got 'd'"),
        ("feedback", about(thumb=1), "documents[0]: expected at least one of id, text, got thumb"),
        ("feedback", about(id="d"), "documents[0]: expected one of thumb, click, success, grade, score, got id"),
        ("feedback", about(id="d", thumb=2), "documents[0].thumb: expected 1 up, -1 down, or 0 taken back, got 2"),
        ("feedback", about(id="d", thumb="maybe"), "documents[0].thumb: expected 1 up"),
        ("feedback", about(id="d", score=1.5), "documents[0].score: expected a number in [0, 1], got 1.5"),
        ("feedback", UP | {"source": "x" * 600}, "source: expected at most 512 bytes of UTF-8, got 600"),
        ("feedback", about(id="x" * 600, thumb=1), "doc_id: expected at most 512 bytes of UTF-8, got 600"),
        ("feedback", about(id="a", grade=3), "scale: expected one for grades, such as rubric:0,3, got none"),
        ("feedback", about(id="a", grade=3) | {"scale": "stars"}, "scale: expected probability, logit, unbounded or"),
        ("feedback", about(id="a", grade=9) | {"scale": "rubric:0,3"}, ""),
        (
            "feedback",
            {"query": "q", "scale": "rubric:0,3", "documents": [{"id": "a", "grade": 1}, {"id": "b", "click": 1}]},
            "events: expected judgments or behaviour",
        ),
        ("feedback", b"{", "expected JSON ("),
        ("search/home", {"query": "q"}, "expected a catalogue (office), got 'home'"),
        ("search/office", {"query": "q", "k": 0}, "k: expected tools at most, 1 to 200, got 0"),
        (
            "search/office",
            {"query": "q", "among": ["a"] * 10_001},
            "among: expected names of the tools that may be fou",
        ),
        ("search/office", {"query": "q", "among": [1]}, "among[0]: expected a text, got 1"),
        (
            "used",
            USED | {"used": [{"name": "nobody", "succeeded": True}]},
            "used: expected names of the catalogue 'office', got 'nobody'",
        ),
        (
            "used",
            USED | {"used": [{"name": "a", "succeeded": "yes"}]},
            "used[0].succeeded: expected true where it did what it was called for, else false, got 'yes'",
        ),
        ("steer", [], 'expected {"vectors": [[number, ...], ...]}'),
        ("steer", {"vectors": [["a"]]}, 'expected {"vectors": [[number, ...], ...]}'),
        ("steer", {"vectors": [[1]], "texts": ["a", "b"]}, "texts: expected one string per vector, 1"),
        *(
            (path, b"x" * 200_000, "expected a body of at most 150000 bytes, got more")
            for path in ("feedback", "steer")
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_body_gets_one_line(proxied, sqlite_url, path, body, message):
    """What was expected and came, in the shape of the proxy's errors; the next body is taken."""
    searches = {"office": LearnedToolSearch({"a": "b"}, FakeEmbedder())}
    client = proxied(feedback=FeedbackWriter(sqlite_url), searches=searches, limit=150_000)

    answer = client.post(f"/v1/{path}", content=body if isinstance(body, bytes) else json.dumps(body))
    taken = client.post("/v1/feedback", json=UP)

    error = answer.json()["error"]
    statuses = {"search/home": 404} if not isinstance(body, bytes) or len(body) < 100 else {path: 413}
    assert (answer.status_code, taken.status_code) == (statuses.get(path, 400), 200)
    assert error["message"].startswith(f"tttembed: {message}")
    assert error["type"] == "tttembed_error"
    assert "\n" not in error["message"]


def refused(path, body):
    """The one line with which a body is refused; empty where it is taken."""
    try:
        checked_body(path, body)
    except InputError as error:
        (line,) = str(error).splitlines()
        return line
    return ""
