"""Catalogues in all the shapes that agents have them, good and bad."""

import json
import logging

import pytest
from langchain_core.tools import tool as langchain_tool
from llama_index.core.tools import FunctionTool
from tttembed_tools import Card, LearnedToolSearch, cards_of

from tttembed_rag.errors import DataError, InputError
from tttembed_rag.testing import FakeEmbedder

SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "description": "The file."}, "deep": {}}}
CARD = Card("read_file", "read_file: Read a file.\npath: The file.\ndeep")


NAMED = {"name": "read_file", "description": "Read a file."}


@pytest.mark.parametrize(
    "catalog",
    [
        [{"type": "function", "function": NAMED | {"parameters": SCHEMA}}],
        {"type": "function", "function": NAMED | {"parameters": SCHEMA}},
        [NAMED | {"input_schema": SCHEMA}],
        {"tools": [NAMED | {"inputSchema": SCHEMA}]},
        NAMED | {"inputSchema": SCHEMA},
        {"read_file": {"description": "Read a file.", "parameters": SCHEMA}},
        [CARD],
    ],
    ids=["openai", "one of openai", "anthropic", "mcp", "one of mcp", "dict", "card"],
)
def test_schemas_become_cards(catalog, caplog):
    """Function schemas, MCP results and dicts give one card: name, description, parameters with their descriptions."""
    assert cards_of(catalog) == [CARD]
    assert caplog.records == []


def read_file(path: str) -> str:
    """Read a file."""
    return path


def of_mcp():
    """The answer of a client of MCP."""
    types = pytest.importorskip("mcp_types")
    return types.ListToolsResult(tools=[types.Tool.model_validate(NAMED | {"inputSchema": SCHEMA})])


def of_fastmcp():
    """A function that a server of FastMCP has."""
    return [pytest.importorskip("fastmcp.tools").Tool.from_function(read_file)]


def of_pydantic_ai():
    """A function that an agent of Pydantic AI has."""
    return [pytest.importorskip("pydantic_ai.tools").Tool(read_file)]


def defined_for_pydantic_ai():
    """A tool that runs elsewhere."""
    tools = pytest.importorskip("pydantic_ai.tools")
    return [tools.ToolDefinition(**NAMED, parameters_json_schema=SCHEMA)]


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (of_mcp, "path: The file.\ndeep"),
        (of_fastmcp, "path"),
        (lambda: [langchain_tool(read_file)], "path"),
        (of_pydantic_ai, "path"),
        (defined_for_pydantic_ai, "path: The file.\ndeep"),
    ],
    ids=["mcp", "fastmcp", "langchain", "pydantic_ai", "pydantic_ai elsewhere"],
)
def test_objects_of_frameworks_become_cards(make, parameters):
    """Tools of agents, clients and servers give name, description and parameters."""
    assert cards_of(make()) == [Card("read_file", f"read_file: Read a file.\n{parameters}")]


def test_tools_of_llama_index_become_cards():
    """Their descriptions begin with the signature."""
    (card,) = cards_of([FunctionTool.from_defaults(read_file, name="other")])

    assert card == Card("other", "other: other(path: str) -> str\nRead a file.\npath")


def test_descriptions_alone_are_enough():
    """A dict from name to description is a catalogue."""
    assert cards_of({"a": "First.", "b": "Second."}) == [Card("a", "a: First."), Card("b", "b: Second.")]


def write_skill(folder, head, body=""):
    """A SKILL.md, as people write it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(f"---\n{head}\n---\n{body}", encoding="utf-8")


def test_a_folder_of_skills_is_a_catalogue(tmp_path):
    """Every SKILL.md below a folder is a card; a skill without a name is called by its folder."""
    write_skill(tmp_path / "b", "name: mail\ndescription: >-\n  Write\n  mail.", "Do it --- well.\n")
    write_skill(tmp_path / "a/deep", "description: 'Dig: deep.'", "Do it --- well.\n")

    assert cards_of(tmp_path) == [
        Card("deep", "deep: Dig: deep.", ("Do it --- well.",)),
        Card("mail", "mail: Write mail.", ("Do it --- well.",)),
    ]


def test_a_json_file_is_a_catalogue(tmp_path):
    """A file with a list of schemas, or an object, is read."""
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [{"name": "a", "description": "First."}]}))

    assert cards_of(str(tmp_path / "tools.json")) == [Card("a", "a: First.")]


# Bad catalogues


def test_bad_tools_are_kept_and_named_in_one_line(caplog):
    """Names that come twice, blank descriptions and schemas that are none: every tool stays, one line says so."""
    catalog = [
        {"name": "a", "description": "First."},
        {"name": "a", "description": "Second."},
        {"name": "a", "description": "First."},
        {"name": "b", "description": "  "},
        {"name": "c", "description": "Third.", "parameters": ["no", "schema"]},
        {"name": "d", "description": None, "parameters": {"properties": {"x": None, "y": {"description": 3}}}},
        {"name": "日本の工具", "description": "列車の切符を買う 🚆"},
    ]

    with caplog.at_level(logging.WARNING, "tttembed_rag"):
        cards = cards_of(catalog)

    assert [card.name for card in cards] == ["a", "b", "c", "d", "日本の工具"]
    assert cards[0].text == "a: First.\na: Second."
    assert cards[3].text == "d\nx\ny"
    assert [record.getMessage() for record in caplog.records] == [
        (
            "catalog of 5 tools: 1 names stand for several tools, whose texts are joined (a); 2 tools have no "
            "description and are found by their names (b, d); 1 tools have parameters that are no JSON schema and are "
            "left out of the text (c)"
        )
    ]


@pytest.mark.parametrize(
    ("catalog", "message"),
    [
        (7, "catalog: expected tools .*, got int"),
        (b"tools", "catalog: expected tools .*, got bytes"),
        ([3], "catalog: expected tools .*, got an item of type int"),
        ([{"description": "Nameless."}], "catalog: expected a name for every tool, got None in"),
        ({" ": "Blank."}, "catalog: expected a name for every tool, got ' ' in"),
        ({"servers": {"a": {"tools": [NAMED]}}}, "expected tools .*got a dict without a description under 'servers'"),
        ({"info": {"title": "x"}, "paths": {}}, "expected tools .*got a dict without a description under 'info'"),
        ({"name": "a", "inputSchema": {"type": "object"}}, "got a dict without a description under 'inputSchema'"),
    ],
)
def test_what_is_no_catalogue_is_refused_in_one_line(catalog, message):
    """Other things, and tools without a name, are refused with what was expected and what came."""
    with pytest.raises(InputError, match=message) as caught:
        cards_of(catalog)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        *(("tools.json", text, "tools.json") for text in (None, "{", "7", "[3")),
        ("README.md", "No skill.", ""),
        *(("SKILL.md", text, "") for text in ("No head.", "---\nname: [\n---\n", "---\n- a\n---\n")),
    ],
)
def test_files_that_hold_no_catalogue_are_refused(tmp_path, name, text, place):
    """A missing file, no JSON, another kind of value, no skill, or skills without a head: the file is named."""
    if text is not None:
        (tmp_path / name).write_text(text)

    with pytest.raises(DataError, match=r"(tools\.json: expected a|SKILL\.md: expected YAML|expected SKILL\.md files)"):
        cards_of(tmp_path / place)


@pytest.mark.parametrize(
    ("head", "description"),
    [
        ('description: "Fill forms. Use when: there is a form"', "Fill forms. Use when: there is a form"),
        ("description: Fill forms. Use when: there is a form", "Fill forms. Use when: there is a form"),
        ("description: @mention people\n  in forms", "@mention people in forms"),
        ("description: [beta] fill forms", "[beta] fill forms"),
        ("description: Fill forms --- and sign them", "Fill forms --- and sign them"),
        ("description: |\n  Fill forms\n  --- and sign them", "Fill forms\n--- and sign them"),
        ("description: 2024", "2024"),
        ("version: 1.0\ndescription: yes", "yes"),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_heads_of_skills_are_read_as_people_write_them(tmp_path, head, description, mark):
    """Between two lines that are ---; where it is no YAML, the lines of name and description are read."""
    (tmp_path / "SKILL.md").write_text(f"{mark}---\nname: 7zip\n{head}\n--- \nHow to.\n---\n", encoding="utf-8")

    assert [(card.name, card.text) for card in cards_of(tmp_path)] == [("7zip", f"7zip: {description}")]


@pytest.mark.parametrize(
    "content", [b"No head.", b"---\nname: [\n---\n", b"---\n- a\n---\n", b"", b"---\nname: \xff\n---\n"]
)
def test_a_bad_skill_among_others_is_named(tmp_path, content, caplog):
    """The others are there."""
    write_skill(tmp_path / "good", "name: good\ndescription: fine")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").write_bytes(content)

    assert cards_of(tmp_path) == [Card("good", "good: fine")]
    assert f"({tmp_path / 'bad' / 'SKILL.md'})" in caplog.text


def test_names_that_no_store_holds_have_a_key():
    """A name that is too long, or holds what databases or plans of judging refuse, is stored under its hash."""
    names = ["a" * 600, "a\0b", "\ud800", "a\tb", "a\nb", "a\u2028b"]
    cards = [Card(name, "x") for name in [*names, "ü 工具"]]

    assert [card.key == card.name for card in cards] == [False] * 6 + [True]
    assert len({card.key for card in cards}) == 7
    assert all(len(card.key) == 71 for card in cards[:6])


@pytest.mark.slow
def test_ten_thousand_tools_are_searched():
    """A catalogue of 10,000 tools, some of them hostile, is indexed whole, and each is found by its own words."""
    catalog = [{"name": f"tool_{i}", "description": f"Does the {i}th thing"} for i in range(10_000)]
    catalog += [{"name": "tool_7", "description": "Twice."}, {"name": "x" * 5000, "description": "y " * 90_000}]

    search = LearnedToolSearch(catalog, FakeEmbedder())

    assert len(search.names) == 10_001
    assert search("the 4711th thing", k=1) == ["tool_4711"]


def test_the_server_of_a_tool_counts():
    """Its name and description stand in the text, from an entry of JSON or the metadata of an MCP tool."""
    tools = pytest.importorskip("fastmcp.tools")
    crm = tools.Tool.from_function(
        lambda: "", name="find", description="Find.", meta={"tttembed/server": "crm: customers"}
    )
    entries = [{"name": "read", "description": "Read.", "server": {"name": "files", "description": "on disk"}}]
    entries += [{"name": "write", "description": "Write.", "server": "files"}, {"name": "bare", "server": 7}]

    assert [card.text.splitlines()[-1] for card in cards_of(entries)] == ["files: on disk", "files", "bare"]
    assert cards_of([crm])[0].text.splitlines()[-1] == "crm: customers"


def test_a_skill_is_found_by_its_body(tmp_path):
    """The paragraph that is nearest counts, short ones stand with what follows, and the card shows none of it."""
    zebra, giraffe = "Flatten the zebra fields afterwards, or viewers show nothing.", "Rotate the giraffe scans."
    write_skill(tmp_path / "b", "name: b\ndescription: Work with documents.")
    write_skill(tmp_path, "name: forms\ndescription: Work with documents.", f"# Forms\n\n{zebra}\n\n{giraffe}\n")
    search = LearnedToolSearch(tmp_path, FakeEmbedder())

    assert set(cards_of(tmp_path)) == {
        Card("b", "b: Work with documents."),
        Card("forms", "forms: Work with documents.", (f"# Forms\n{zebra}", giraffe)),
    }
    assert search("giraffe scans", k=1) == search("zebra fields", k=1) == ["forms"]
    index = search._index
    assert index.dense(search._vector("Rotate the giraffe scans."))[index.rows["forms"]] > 0.99
    assert len(index.without(["b"]).passages) == 2
    assert search.add([Card("forms", "forms: Work with documents.")]) == 1
    assert len(search._index.passages) == 0
