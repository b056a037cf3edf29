"""Catalogues of tools and skills, in all the shapes that agents have them, as cards: a name and the text to search."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tttembed_rag.errors import DataError, InputError
from tttembed_rag.rewards.names import is_name
from tttembed_rag.system.jsontext import parsed_json

_log = logging.getLogger(__name__)

# Characters of a card or a passage, as what stands behind them is rarely read by an embedding model; and those of a
# paragraph that is no passage of its own.
CARD_LIMIT, _SHORT = 2000, 60
# Under which the metadata of an MCP tool say what its server is called and for.
SERVER_META = "tttembed/server"
# Attributes under which tools of different packages keep the JSON schema of their parameters.
_SCHEMAS = ("input_schema", "inputSchema", "parameters", "parameters_json_schema")
# The head of a SKILL.md, between lines of ---, and two of its fields, each with the lines that are indented below it.
_HEAD = re.compile(r"\A\s*---[ \t]*\n(.*?\n)---[ \t]*$", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"^(name|description):[ \t]*(.*(?:\n[ \t]+.*)*)", re.MULTILINE)
_EXPECTED = (
    "tools (function schemas, MCP tools, objects of LangChain, LlamaIndex, Pydantic AI or FastMCP), a dict from name "
    "to description, or the path of a JSON file or of a folder with SKILL.md files"
)


@dataclass(frozen=True, slots=True)
class Card:
    """A tool or skill as the search sees it.

    Attributes:
        name: The name by which an agent calls it.
        text: What is embedded and searched, and judged: name, description, parameters.
        passages: What is searched beside it, such as the body of a skill: the passage that is nearest counts.
    """

    name: str
    text: str
    passages: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name where every store can hold it as an id and a plan of judging takes it, else a hash of it."""
        if is_name(self.name) and self.name.isprintable():
            return self.name
        return f"sha256:{hashlib.sha256(self.name.encode('utf-8', 'surrogatepass')).hexdigest()}"


# What is wrong with some tools of a catalogue, which are kept all the same.
_TWICE = "names stand for several tools, whose texts are joined"
_BLANK = "tools have no description and are found by their names"
_ODD = "tools have parameters that are no JSON schema and are left out of the text"


def cards_of(catalog: Any) -> list[Card]:
    """A card for each tool of a catalogue, in its order; one line in the log says what is wrong with some of them.

    Args:
        catalog: OpenAI function schemas, an MCP ``tools/list`` result, tools of MCP, FastMCP, LangChain, LlamaIndex
            or Pydantic AI, `Card` values, ``{name: description}``, or the path of a JSON file with schemas
            or of a folder with SKILL.md files. An entry of a dict may have a ``server``, a text or an object with
            ``name`` and ``description``, by which the tool is found too.

    Raises:
        InputError: It is something else, or a tool has no name.
        DataError: A file cannot be read.
    """
    remarks: dict[str, list[str]] = {_TWICE: [], _BLANK: [], _ODD: []}
    cards: dict[str, Card] = {}
    for tool in _tools(catalog):
        card = _card(tool, remarks)
        earlier = cards.setdefault(card.name, card)
        if card.text not in earlier.text:
            remarks[_TWICE].append(card.name)
            text = f"{earlier.text}\n{card.text}"[:CARD_LIMIT]
            cards[card.name] = Card(card.name, text, earlier.passages + card.passages)
    if parts := [
        f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for what, names in remarks.items()
        if names
    ]:
        _log.warning("catalog of %d tools: %s", len(cards), "; ".join(parts))
    return list(cards.values())


def _tools(catalog: Any) -> Iterable[Any]:
    """The tools of a catalogue, whatever they are."""
    if isinstance(catalog, str | Path):
        path = Path(catalog)
        return _skills(path) if path.is_dir() else _tools(_read_json(path))
    if isinstance(catalog, Mapping):
        if isinstance(catalog.get("mcpServers"), Mapping):
            raise InputError("catalog: expected tools, got mcpServers: `tttembed tools serve` searches their tools")
        if isinstance(catalog.get("tools"), list):
            return _tools(catalog["tools"])
        if isinstance(catalog.get("function"), Mapping) or {"name", "description"} <= catalog.keys():
            return [catalog]  # a tool alone
        return [_named(name, value) for name, value in catalog.items()]
    inside = getattr(catalog, "tools", None)
    if isinstance(inside, list | tuple):
        return inside
    if isinstance(catalog, Iterable) and not isinstance(catalog, bytes):
        return catalog
    raise InputError(f"catalog: expected {_EXPECTED}, got {type(catalog).__name__}")


def _named(name: Any, about: Any) -> Any:
    """The tool of a dict that stands under its name."""
    about = {"description": about} if about is None or isinstance(about, str) else about
    if isinstance(about, Mapping) and not about.keys() & {"description", "function", *_SCHEMAS}:
        raise InputError(f"catalog: expected {_EXPECTED}, got a dict without a description under {name!r}")
    return {"name": name, **about} if isinstance(about, Mapping) else about


def _read_json(path: Path) -> Any:
    try:
        catalog = parsed_json(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as exc:
        raise DataError(f"{path}: expected a JSON file of tools or a folder with SKILL.md files, got nothing") from exc
    except (ValueError, OSError) as exc:
        raise DataError(f"{path}: expected a JSON file of tools, got {exc}") from exc
    if not isinstance(catalog, list | dict):
        raise DataError(f"{path}: expected a list of tools or an object, got {type(catalog).__name__}")
    return catalog


def _skills(folder: Path) -> Iterable[Any]:
    """Name, description and body of every SKILL.md below a folder, sorted by path; the log names the bad ones."""
    files = sorted(folder.rglob("SKILL.md"))
    if not files:
        raise DataError(f"{folder}: expected SKILL.md files below this folder, got none")
    heads = {file: _head(file) for file in files}
    bad = [file for file, (_, is_yaml) in heads.items() if not is_yaml]
    skills = [head | {"name": head.get("name") or file.parent.name} for file, (head, _) in heads.items() if head]
    expected = "expected YAML with name and description between two lines of ---"
    if not skills:
        raise DataError(f"{bad[0]}: {expected}, got none")
    if bad:
        _log.warning(
            "%d files are read as far as that is possible: %s (%s)", len(bad), expected, ", ".join(map(str, bad[:3]))
        )
    return skills


def _head(file: Path) -> tuple[dict[str, Any], bool]:
    """The body of a file and the fields at its head, all of them texts; and whether they are YAML, else two lines."""
    import yaml

    head = body = ""
    try:
        _, head, body = _HEAD.split(file.read_text(encoding="utf-8-sig"), 1)
        fields = dict(yaml.load(head, yaml.BaseLoader), body=body)  # noqa: S506 - it makes texts, lists and dicts
    except (ValueError, TypeError, OSError, yaml.YAMLError):  # not UTF-8, no head, no fields in it
        fields = {name: " ".join(text.split()) for name, text in _FIELD.findall(head)}
        return ({**fields, "body": body} if "description" in fields else {}), False
    return fields, True


def _passages(body: str) -> tuple[str, ...]:
    """The paragraphs of a body; one that is short, such as a heading, stands with what follows."""
    passages: list[str] = []
    for paragraph in filter(None, map(str.strip, re.split(r"\n\s*\n", body))):
        if passages and len(passages[-1]) < _SHORT:
            passages[-1] = f"{passages[-1]}\n{paragraph}"[:CARD_LIMIT]
        else:
            passages.append(paragraph[:CARD_LIMIT])
    return tuple(passages)


def _card(tool: Any, remarks: dict[str, list[str]]) -> Card:
    if isinstance(tool, Card):
        name, text, passages = tool.name, tool.text, tool.passages
        if not text.strip():
            remarks[_BLANK].append(name)
            text = name
    else:
        name, description, schema = _parts(tool)
        if not (isinstance(description, str) and description.strip()):
            remarks[_BLANK].append(str(name))
            description = ""
        lines = [f"{name}: {description.strip()}".rstrip(": "), *_parameters(str(name), schema, remarks)]
        text = "\n".join(filter(None, [*lines, _server(tool)]))
        body = tool.get("body") if isinstance(tool, Mapping) else None
        passages = _passages(body) if isinstance(body, str) else ()
    if not (isinstance(name, str) and name.strip()):
        raise InputError(f"catalog: expected a name for every tool, got {name!r} in {tool!s:.60}")
    return Card(name, text[:CARD_LIMIT], passages)


def _server(tool: Any) -> str:
    """Name and description of the server that a tool is of, where its entry or its metadata says so; else empty."""
    about = tool.get("server") if isinstance(tool, Mapping) else (getattr(tool, "meta", None) or {}).get(SERVER_META)
    if isinstance(about, Mapping):
        about = ": ".join(text for key in ("name", "description") if isinstance(text := about.get(key), str))
    return about if isinstance(about, str) else ""


def _parts(tool: Any) -> tuple[Any, Any, Any]:
    """Name, description and schema of parameters of a tool of any kind."""
    if isinstance(tool, Mapping):
        inner = tool["function"] if isinstance(tool.get("function"), Mapping) else tool
        return inner.get("name"), inner.get("description"), next((inner[key] for key in _SCHEMAS if key in inner), None)
    about: Any = getattr(tool, "metadata", None)
    if hasattr(about, "get_name") and hasattr(about, "description"):  # LlamaIndex
        return about.get_name(), about.description, getattr(about, "fn_schema", None)
    if not hasattr(tool, "name"):
        raise InputError(f"catalog: expected {_EXPECTED}, got an item of type {type(tool).__name__}")
    # LangChain keeps a class of pydantic, or a schema, in `args_schema`.
    keys = ("args_schema", *_SCHEMAS)
    schema = next((found for key in keys if (found := getattr(tool, key, None)) is not None), None)
    if schema is None and hasattr(tool, "function_schema"):  # a tool of Pydantic AI
        schema = getattr(tool.function_schema, "json_schema", None)
    return tool.name, getattr(tool, "description", None), schema


def _parameters(name: str, schema: Any, remarks: dict[str, list[str]]) -> list[str]:
    """A line for each parameter of a JSON schema or a class of pydantic: its name, and its description if any."""
    if schema is None:
        return []
    try:
        schema = schema.model_json_schema() if hasattr(schema, "model_json_schema") else schema
        about = {
            key: value.get("description") if isinstance(value, Mapping) else None
            for key, value in schema.get("properties", {}).items()
        }
    except Exception as exc:  # noqa: BLE001 - a schema of the caller's types: anything may be wrong with it
        _log.debug("a schema of parameters was not read: %r", exc)
        remarks[_ODD].append(name)
        return []
    return [f"{key}: {described}" if isinstance(described, str) else str(key) for key, described in about.items()]
