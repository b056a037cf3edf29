"""`tttembed tools serve` in front of real MCP servers, with a real client, over stdio and HTTP on loopback."""

import asyncio
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip("mcp")

import anyio
import anyio.lowlevel
import httpx2
from fastmcp import Client as FastClient
from fastmcp.client.transports import FastMCPTransport, StdioTransport
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from tttembed_store import open_store
from tttembed_tools import LearnedToolSearch
from tttembed_tools.hosts import mcp as mcp_front
from tttembed_tools.hosts.mcp import read_servers

from tests.catalogues import LEARNED, TOPICS, UNSEEN, request
from tttembed_rag.cli import main
from tttembed_rag.testing import FakeEmbedder

pytestmark = pytest.mark.slow
BEHIND = Path(__file__).resolve().parent / "suites_server.py"
EMBEDDER = "python:tttembed_rag.testing:FakeEmbedder"


def command(folder, *options, every=1.0):
    """The command line of a front before the server of both suites."""
    catalog = folder / "servers.json"
    if not catalog.exists():
        catalog.write_text(json.dumps({"mcpServers": {"office": {"command": sys.executable, "args": [str(BEHIND)]}}}))
    settings = ["--catalog", str(catalog), "--embed", EMBEDDER, "--every", str(every), "--top", "4"]
    return ["-m", "tttembed_rag", "tools", "serve", *settings, *options]


def front(folder, *options, every=1.0):
    """The front as a client starts it."""
    return StdioServerParameters(command=sys.executable, args=command(folder, *options, every=every), env=environment())


def environment():
    """The variables of this process that a server needs to import the package."""
    return {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}


async def hits(client, query):
    """The names that a search finds."""
    result = await client.call_tool("search_tools", {"query": query})
    return [tool["name"] for tool in result.structured_content["result"]]


async def work(client, topics):
    """Search each topic, and call both of its tools."""
    for topic in topics:
        for name in await hits(client, request(topic)):
            if name.endswith(f"_{topic}"):
                await client.call_tool("call_tool", {"name": name})


async def share(client, topics):
    """Of some topics, the share for which the suite that works comes first."""
    firsts = [(await hits(client, request(topic)))[0] for topic in topics]
    return sum(name.startswith("office_zeta_") for name in firsts) / len(topics)


async def learned(client):
    """Whether requests never made find the suite that works, within some seconds."""
    for _ in range(60):
        if await share(client, UNSEEN) > 0.6:
            return True
        await asyncio.sleep(0.25)
    return False


async def test_a_client_gains_without_code(tmp_path):
    """Over stdio: two tools, answers as they came, learning from calls, and what was learned survives the process."""
    options = ("--store", f"sqlite:///{tmp_path}/tools.db")
    async with Client(front(tmp_path, *options)) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        before = await share(client, UNSEEN)
        answer = await client.call_tool("call_tool", {"name": "office_zeta_redmail"})
        failure = await client.call_tool("call_tool", {"name": "office_acme_redmail"})
        wrong = await client.call_tool("call_tool", {"name": "gone"})
        await work(client, LEARNED)
        after = await learned(client)
    async with Client(front(tmp_path, *options, every=600)) as client:
        next_day = await share(client, UNSEEN)

    assert listed == ["search_tools", "call_tool"]
    assert before < 0.6
    assert (answer.is_error, answer.content[0].text) == (False, "zeta_redmail is done")
    assert failure.is_error
    assert "not in this suite" in failure.content[0].text
    assert wrong.is_error
    assert after
    assert next_day > 0.6


@asynccontextmanager
async def served(folder, *options):
    """A front over HTTP, and its process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    line = [sys.executable, *command(folder, "--http", str(port), *options)]
    process = await asyncio.to_thread(subprocess.Popen, line)
    try:
        for _ in range(200):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            await asyncio.sleep(0.1)
        yield process, f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def named(url, source, mode):
    """A client over HTTP whose requests have a source, unless it is empty."""
    headers = {"X-TTT-Source": source} if source else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def test_clients_over_http_teach_one_search(tmp_path):
    """Two clients at once, each in its session, teach what both are served."""
    async with (
        served(tmp_path) as (_, url),
        named(url, "", "legacy") as client,
        named(url, "", "legacy") as other,
    ):
        await asyncio.gather(work(client, LEARNED[:15]), work(other, LEARNED[15:]))

        assert await learned(client)
        assert await learned(other)


async def test_what_was_called_is_kept_with_its_source_when_it_is_told_to_end(tmp_path):
    """SIGTERM right after calls: a header, else the command line, says their source. Calls of nobody are not kept."""
    url = f"sqlite:///{tmp_path}/tools.db"
    async with served(tmp_path, "--store", url, "--source", "unknown") as (process, address):
        for source, mode in (("ann", "auto"), ("", "legacy"), ("", "auto")):  # the last one is nobody
            async with named(address, source, mode) as client:
                await work(client, LEARNED[:1])
        process.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(process.wait, 20)

    assert code == 0
    with open_store(url) as store:
        rewards = store.rewards("tool use")
        assert dict(zip(rewards.sources.tolist(), rewards.depths.tolist(), strict=True)) == {"ann": 2, "unknown": 2}


async def test_no_tool_is_found_where_none_fits_if_it_is_to(tmp_path):
    """With --abstain, as soon as a floor was learned from what worked; other requests find their tools."""
    async with Client(front(tmp_path, "--abstain")) as client:
        for number in range(50):
            topic = TOPICS[number % len(TOPICS)]
            await hits(client, f"{request(topic)} {number}")
            await client.call_tool("call_tool", {"name": f"office_zeta_{topic}"})
        for _ in range(240):
            if not (names := await hits(client, "what the weather says")):
                break
            await asyncio.sleep(0.25)

        assert names == []
        assert len(await hits(client, f"{request(TOPICS[0])} 0")) == 4


@asynccontextmanager
async def fronted(servers, **options):
    """A client of a front in this process, and the search that it has."""
    search = LearnedToolSearch([], FakeEmbedder())
    async with FastClient(mcp_front.front(servers, search, **options)) as client:
        yield client, search


async def names_found(servers, *, searches=1, every=60.0):
    """The names that each search finds among the tools of *servers*, and the tools that stay in the search."""
    async with fronted(servers, every=every) as (client, search):
        return [await hits(client, "do it") for _ in range(searches)], search.names


def behind(list_tools, call_tool=None):
    """A server in this process with these two handlers."""
    server = MCPServer("behind")
    server._lowlevel_server = Server("behind", on_list_tools=list_tools, on_call_tool=call_tool)
    return FastMCPTransport(server)


def listing(*pages, endless=False):
    """A server with one of these lists for each time it is asked; endless, each is followed by another page."""
    calls = itertools.count()

    async def list_tools(_ctx, _params):
        page = next(calls)
        await anyio.lowlevel.checkpoint()
        tools = pages[min(page, len(pages) - 1)]
        return ListToolsResult(tools=tools, next_cursor=str(page) if endless else None)

    return behind(list_tools)


def tool(name, **about):
    """A tool without arguments."""
    return Tool(name=name, input_schema={"type": "object"} | about.pop("schema", {}), **about)


FINE = listing([tool("fine")])


async def test_tools_that_no_agent_could_read_are_left_out(caplog):
    """A megabyte of a name, of a description or of a schema: the other tools of the server are found."""
    long = [
        tool("fine"),
        tool("n" * 2**20),
        tool("described", description="d" * 2**20),
        tool("schema", schema={"x": "y" * 2**20}),
    ]

    names, _ = await names_found({"long": listing(long)})

    assert names == [["long_fine"]]
    assert "server 'long': 3 tools are left out, too long or too many" in caplog.text


async def test_tools_that_a_server_no_longer_lists_leave_the_search():
    """A server that renames all its tools at each listing costs no more than it lists."""
    pages = [[tool(f"t{page}-{number}") for number in range(30)] for page in range(9)]

    _, stay = await names_found({"names": listing(*pages)}, searches=9, every=0.0)

    assert stay == [f"names_t8-{number}" for number in range(30)]


async def test_a_server_that_is_away_for_a_while_keeps_its_tools(caplog):
    """What it listed last is found; one line says what is wrong, with no word of the server's."""
    calls = itertools.count()

    async def list_tools(_ctx, _params):
        if next(calls):
            raise ConnectionError("at http://me:secret@host")
        return ListToolsResult(tools=[tool("fine")])

    names, stay = await names_found({"shy": behind(list_tools)}, searches=2, every=0.0)

    assert (names, stay) == ([["shy_fine"]] * 2, ["shy_fine"])
    assert "server 'shy': MCPError" in caplog.text
    assert "secret" not in "".join(
        record.getMessage() for record in caplog.records if record.name == mcp_front.__name__
    )


async def silent(_ctx, _params):
    """List nothing, ever."""
    await anyio.sleep_forever()


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (listing([tool("t")], endless=True), ""),
        (behind(silent), "TimeoutError"),
        (StdioTransport("/no/such/command", []), "FileNotFoundError: No such file or directory"),
    ],
    ids=["endless", "silent", "away"],
)
async def test_a_server_that_lists_nothing_costs_its_own_tools_alone(monkeypatch, bad, why, caplog):
    """It may hang, give page after page, or not be there: that ends in time, with one line that has its name."""
    if why == "TimeoutError":
        monkeypatch.setattr(mcp_front, "_PATIENCE", 3.0)  # enough for the good one beside other work

    names, _ = await names_found({"bad": bad, "good": FINE})
    lines = [record.getMessage() for record in caplog.records if record.name == mcp_front.__name__]

    assert names == [["good_fine"]]
    assert [line.startswith(f"server 'bad': {why}") for line in lines] == [True]


async def test_a_name_of_two_tools_is_neither_found_nor_called(caplog):
    """A call that is meant for one server never goes to another; the other tools of both are found."""
    servers = {"git": listing([tool("hub_log"), tool("status")]), "git_hub": listing([tool("log")])}
    async with fronted(servers) as (client, _):
        answers = [await client.call_tool("call_tool", {"name": "git_hub_log"}, raise_on_error=False)]
        names = await hits(client, "do it")
        answers.append(await client.call_tool("git_hub_log", {}, raise_on_error=False))

    assert names == ["git_status"]
    assert all("git_hub_log is a tool of several servers" in answer.content[0].text for answer in answers)
    assert "other servers have tools of these names" in caplog.text


async def test_a_tool_that_does_not_answer_in_time_is_no_failure(monkeypatch):
    """The call ends, and says nothing of the tool; one that fails by itself does."""
    monkeypatch.setattr(mcp_front, "_LONGEST_CALL", 3.0)

    async def list_tools(_ctx, _params):
        return ListToolsResult(tools=[tool("slow"), tool("wrong")])

    async def call_tool(_ctx, params):
        if params.name == "slow":
            await anyio.sleep_forever()
        return CallToolResult(content=[TextContent(type="text", text="no")], is_error=True)

    async with fronted({"behind": behind(list_tools, call_tool)}) as (client, search):
        calls = [{"name": name} for name in await hits(client, "do it")]
        answers = [await client.call_tool("call_tool", call, raise_on_error=False) for call in calls]

    assert [answer.is_error for answer in answers] == [True, True]
    assert [outcome for past in search.requests() for outcome in past.outcomes.items()] == [("behind_wrong", 0.2)]


def file_of(**entry):
    """A file with one server."""
    return json.dumps({"mcpServers": {"a": entry}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "expected a JSON file of MCP servers, found none"),
        ("{", "expected a JSON file of MCP servers, found none"),
        ('{"mcpServers": {"a": "sk-SECRET"}, ', "expected a JSON file of MCP servers, found none"),
        ("[]", "expected {"),
        ('{"mcpServers": {}}', "expected {"),
        (file_of(), "expected .* for 'a'"),
        (file_of(command="x", args=3, env={"KEY": "sk-SECRET"}), "expected .* for 'a'"),
        (file_of(command=3, args=["--key", "sk-SECRET"]), "expected .* for 'a'"),
        (file_of(url="h ttp://u:sk-SECRET@h/", headers={"Authorization": "Bearer sk-SECRET"}), "expected .* for 'a'"),
        (file_of(command="x", args=["sk-SECRET", "${NOT_SET}"]), "'a': expected the variable 'NOT_SET'"),
        (file_of(url="http://h", headers={"Authorization": "sk-SECRET ${input:key}"}), "'a': .*'input:key'"),
        (file_of(command="x", args=["sk-SECRET"], tools=["read"]), "'a': expected the tools that are off.*'tools'"),
        (file_of(command="x", args=["sk-SECRET"], includeTools=["read"]), "'a': .*'includeTools'"),
        (file_of(command="x", args=["sk-SECRET"], includeTools="read"), "'a': expected a list.*'includeTools'"),
        (file_of(command="x", args=["sk-SECRET"], disabledTools="write"), "'a': expected a list.*'disabledTools'"),
    ],
)
def test_files_that_name_no_servers_are_refused(tmp_path, text, message, capsys):
    """In one line that names the file, and what cannot be done as clients do it; no value is shown."""
    path = tmp_path / "servers.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(SystemExit) as ended:
        main(["tools", "serve", "--catalog", str(path)])

    stderr = capsys.readouterr().err
    assert ended.value.code == 2
    assert re.search(rf"servers\.json: {message}", stderr.splitlines()[-1])
    assert "SECRET" not in stderr


def servers_of(folder, **entries):
    """The servers of a file with these entries."""
    (folder / "servers.json").write_text(json.dumps({"mcpServers": entries}))
    return read_servers(folder / "servers.json")


@pytest.mark.parametrize("off", [{"disabled": True}, {"enabled": False}])
def test_a_server_that_is_switched_off_is_left_out(tmp_path, off, caplog):
    """It is not started, whatever else is wrong with it, and a line names it."""
    on, prod = {"command": "on", "disabled": False}, {"command": "prod", "env": {"KEY": "${NOT_SET}"}}

    assert list(servers_of(tmp_path, on=on, prod=prod | off)) == ["on"]
    assert "server 'prod' is switched off" in caplog.text


async def test_a_tool_that_is_switched_off_is_neither_found_nor_called(tmp_path):
    """By any key that clients have for it; the other tools of its server are."""
    off = [f"zeta_{topic}" for topic in LEARNED[:3]]
    about = {"command": sys.executable, "args": [str(BEHIND)], "disabledTools": off[:1], "excludeTools": off[1:2]}
    about["tools"] = {off[2]: {"enabled": False}}
    async with fronted(servers_of(tmp_path, office=about)) as (client, search):
        await hits(client, "do it")
        calls = [{"name": f"office_{name}"} for name in off]
        answers = [await client.call_tool("call_tool", call, raise_on_error=False) for call in calls]

    assert [answer.is_error for answer in answers] == [True] * 3
    assert not set(search.names).intersection(f"office_{name}" for name in off)
    assert f"office_acme_{LEARNED[0]}" in search.names


def test_variables_are_those_of_the_environment(tmp_path, monkeypatch):
    """In every value of an entry, as clients fill them."""
    monkeypatch.setenv("KEY_OF_TEST", "k")
    monkeypatch.delenv("NOT_SET", raising=False)
    local = {
        "command": "${NOT_SET:-run}",
        "args": ["--key", "${KEY_OF_TEST}"],
        "env": {"KEY": "a${env:KEY_OF_TEST}b$c"},
    }
    away = {"url": "http://h/${KEY_OF_TEST}/mcp", "headers": {"Authorization": "Bearer ${KEY_OF_TEST:-none}"}}

    servers = servers_of(tmp_path, local=local, away=away)

    assert (servers["local"].command, servers["local"].args) == ("run", ["--key", "k"])
    assert servers["local"].env["KEY"] == "akb$c"
    assert (servers["away"].url, servers["away"].headers) == ("http://h/k/mcp", {"Authorization": "Bearer k"})


def test_an_address_that_is_none_is_refused(tmp_path, capsys):
    """A port that is no number ends with exit code 2."""
    command(tmp_path)

    with pytest.raises(SystemExit) as ended:
        main(["tools", "serve", "--catalog", str(tmp_path / "servers.json"), "--http", "here"])

    assert ended.value.code == 2
    assert "--http: expected [HOST:]PORT, got 'here'" in capsys.readouterr().err


async def test_what_a_server_is_for_counts(tmp_path):
    """The description of a server in the file is part of the texts of its tools, and of no answer's description."""
    servers_of(tmp_path, office={"command": "office", "description": "suites of a shipping company"})
    about, office = mcp_front.described(tmp_path / "servers.json"), listing([tool("mail", description="Send it.")])
    async with fronted({"office": office}, about=about) as (client, search):
        answer = await client.call_tool("search_tools", {"query": "shipping"})

    assert [shown["description"] for shown in answer.structured_content["result"]] == ["Send it."]
    assert all(card.text.endswith("office: suites of a shipping company") for card in search._index.cards)
