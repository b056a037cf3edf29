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


def refused(path, body):
    """The one line with which a body is refused; empty where it is taken."""
    try:
        checked_body(path, body)
    except InputError as error:
        (line,) = str(error).splitlines()
        return line
    return ""
