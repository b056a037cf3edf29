"""What the proxy's own endpoints take and give, as an OpenAPI document; bodies are checked against the same schemas."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from tttembed_rag.errors import InputError
from tttembed_rag.rewards.events import SIGNALS, WORDS
from tttembed_rag.rewards.observations import MAX_DEPTH

_Schema = Mapping[str, Any]
# What a user can say of a document: a judgment is a grade on a scale, or a score.
VOTES = (*(signal for signal in SIGNALS if signal != "judgment"), "grade", "score")
# Characters of a text of a document, and of any other, and names that may be found, at most.
_LONG, _LONGEST, _NAMES = 200_000, 20_000, 10_000


def _text(description: str, most: int = _LONGEST, pattern: str = r"\S") -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, "maxLength": most, "description": description}


def _list(of: _Schema, description: str, most: int, least: int = 1) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": least, "maxItems": most, "description": description}


def _object(required: Iterable[str], description: str = "a JSON object", **properties: _Schema) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


_VECTORS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}, "description": "query vectors"}
_YES_NO = [0, 1, False, True, *WORDS]
_SOURCE = _text("who says so, such as a user, of requests without a header X-TTT-Source", pattern="")
_DOCUMENT = _object(
    (),
    "what is said of one document",
    id=_text("the id under which the document was recorded"),
    text=_text("the text of the document", _LONG),
    thumb={"enum": [-1, *_YES_NO], "description": "1 up, -1 down, or 0 taken back"},
    click={"enum": _YES_NO, "description": "1 clicked, or 0 shown and not clicked"},
    success={"enum": _YES_NO, "description": "1 it served the task, or 0 it did not"},
    grade={"type": "number", "description": "a number on the scale of the request"},
    score={"type": "number", "minimum": 0, "maximum": 1, "description": "a number in [0, 1]"},
    position={"type": "integer", "minimum": 1, "description": "the place where it was shown, from 1"},
) | {"anyOf": [{"required": [name]} for name in ("id", "text")], "oneOf": [{"required": [vote]} for vote in VOTES]}
_CALL = _object(
    ("name", "succeeded"),
    "a tool that was called",
    name=_text("the name of a tool that was found"),
    succeeded={"type": "boolean", "description": "true where it did what it was called for, else false"},
)
# The bodies, by the path that takes them.
BODIES: dict[str, _Schema] = {
    "/v1/steer": _object(
        ("vectors",),
        vectors=_VECTORS,
        texts={"type": "array", "items": {"type": "string"}, "description": "the text of each query"},
    )
    | {"additionalProperties": True},
    "/v1/feedback": _object(
        ("query", "documents"),
        query=_text("the text of the query"),
        documents=_list(_DOCUMENT, "a list of documents, each with one of " + ", ".join(VOTES), MAX_DEPTH),
        scale=_text("the scale of grades: probability, logit or rubric:LOW,HIGH", pattern=""),
        source=_SOURCE,
    ),
    "/v1/search/{catalogue}": _object(
        ("query",),
        query=_text("what the tool should do"),
        k={"type": "integer", "minimum": 1, "maximum": 200, "description": "tools at most, 1 to 200", "default": 5},
        among=_list(_text("a text", pattern=""), "names of the tools that may be found", _NAMES, least=0),
    ),
    "/v1/used": _object(
        ("catalogue", "query", "used"),
        catalogue=_text("the name of the catalogue that was searched"),
        query=_text("the request as it was searched"),
        used=_list(_CALL, "a list of calls, each with name and succeeded", 200),
        source=_SOURCE,
    ),
}
_KEPT = _object(("kept", "source"), kept={"type": "integer"}, source={"type": "string"})
_ANSWERS: dict[str, _Schema] = {
    "/v1/steer": _object(
        ("vectors", "steered", "version"),
        vectors=_VECTORS,
        steered={"type": "integer", "description": "vectors that were changed"},
        version={"type": "string"},
    ),
    "/v1/feedback": _KEPT,
    "/v1/search/{catalogue}": _object(
        ("tools",),
        tools={"type": "array", "items": {"type": "string"}, "description": "names, best first; none if none fits"},
    ),
    "/v1/used": _KEPT,
}
_SUMMARIES = {
    "/v1/steer": "Steer query vectors that come from elsewhere",
    "/v1/feedback": "Keep what a user says of documents; it is in the store when the answer is sent",
    "/v1/search/{catalogue}": "Find tools for a request",
    "/v1/used": "Keep which of the tools that were found were called, and whether they worked",
}
_HEADERS = {
    "X-TTT-Task": "the task key of the request",
    "X-TTT-Tenant": "whose request it is, a tenant that the store has; ignored where the server has keys",
    "X-TTT-Query-Id": "the id of the query, where it was recorded under one",
    "X-TTT-Source": "who gives feedback; set by the gateway that authenticates users",
}


def checked_body(path: str, body: Any) -> dict[str, Any]:
    """*body*, as the endpoint at *path* takes it, or an InputError: the field, what was expected and what came."""
    _check(body, BODIES[path], "")
    return dict(body)


def _check(value: Any, schema: _Schema, where: str) -> None:
    """Refuse *value* where *schema* does; of JSON Schema, as much as the schemas above use."""
    if not _fits(value, schema):
        got = type(value).__name__ if isinstance(value, dict | list) else f"{value!r:.60}"
        if isinstance(value, str | list) and len(value) > (most := schema.get(_MOST[type(value)], len(value))):
            got = f"{len(value)}, more than {most}"
        raise InputError(f"{where or 'body'}: expected {schema['description']}, got {got}")
    if isinstance(value, list):
        of = {"description": "a text"} | dict(schema["items"])
        for number, item in enumerate(value):
            _check(item, of, f"{where}[{number}]")
    if isinstance(value, dict):
        _check_names(value, schema, where or "body")
        for name in value.keys() & schema["properties"].keys():
            _check(value[name], schema["properties"][name], f"{where}.{name}".lstrip("."))


def _check_names(value: dict[str, Any], schema: _Schema, where: str) -> None:
    """Refuse an object without a name that it must have, or with one that it must not have."""
    got = ", ".join(value) or "nothing"
    if any(name not in value for name in schema["required"]):
        raise InputError(f"{where}: expected {', '.join(schema['required'])}, got {got:.200}")
    if not schema["additionalProperties"] and not value.keys() <= schema["properties"].keys():
        raise InputError(f"{where}: expected no more than {', '.join(schema['properties'])}, got {got:.200}")
    for rule, allowed, words in (("anyOf", (1, 2), "at least one of"), ("oneOf", (1,), "one of")):
        names = [name for choice in schema.get(rule, ()) for name in choice["required"]]
        if names and sum(name in value for name in names) not in allowed:
            raise InputError(f"{where}: expected {words} {', '.join(names)}, got {got:.200}")


_MOST = {str: "maxLength", list: "maxItems"}
_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
}


def _fits(value: Any, schema: _Schema) -> bool:
    """Whether *value* is of the type, the size and the values that *schema* says."""
    kind, truth = schema.get("type"), isinstance(value, bool)
    if kind is None:
        value = value.strip().lower() if isinstance(value, str) else value
        return (value, truth) in [(choice, isinstance(choice, bool)) for choice in schema["enum"]]
    if not isinstance(value, _TYPES[kind]) or (truth and kind != "boolean"):
        return False
    if kind == "array":
        return bool(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf))
    if kind == "string":
        fits = len(value) <= schema.get("maxLength", math.inf)
        return fits and re.search(schema.get("pattern", ""), value) is not None
    if kind in ("integer", "number"):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def document(endpoints: Collection[str] = tuple(BODIES)) -> dict[str, Any]:
    """The proxy's own *endpoints* as OpenAPI 3.1, by their paths; everything else is the embedding service's."""
    parameters = [
        {"name": name, "in": "header", "required": False, "description": what, "schema": {"type": "string"}}
        for name, what in _HEADERS.items()
    ]
    paths: dict[str, Any] = {path: {"post": _operation(path, parameters)} for path in BODIES}
    paths["/v1/search/{catalogue}"]["parameters"] = [
        {"name": "catalogue", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    error = _object(("message", "type"), message={"type": "string"}, type={"type": "string"})
    return {
        "openapi": "3.1.0",
        "info": {"title": "tttembed serve", "version": version("tttembed-rag")},
        "paths": {path: paths[path] for path in endpoints},
        "components": {
            "schemas": {"Error": _object(("error",), error=error)},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(path: str, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    def body(schema: _Schema) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schema}}}

    refused = {"description": "What was expected, and what came"} | body({"$ref": "#/components/schemas/Error"})
    return {
        "summary": _SUMMARIES[path],
        "operationId": path.split("/")[2],
        "parameters": parameters,
        "requestBody": {"required": True} | body(BODIES[path]),
        "responses": {"200": {"description": "Done"} | body(_ANSWERS[path]), "default": refused},
    }
