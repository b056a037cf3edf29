"""`tttembed tools serve` in front of real MCP servers, with a real client, over stdio and HTTP on loopback."""

import asyncio
import itertools
import json
import os
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
from fastmcp.client.transports import FastMCPTransport
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
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
from tttembed_rag.errors import DataError
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


async def found(client, topic):
    """The names that a search finds."""
    result = await client.call_tool("search_tools", {"query": request(topic)})
    return [tool["name"] for tool in result.structured_content["result"]]


async def work(client, topics):
    """Search each topic, and call both of its tools."""
    for topic in topics:
        for name in await found(client, topic):
            if name.endswith(f"_{topic}"):
                await client.call_tool("call_tool", {"name": name})


async def share(client, topics):
    """Of some topics, the share for which the suite that works comes first."""
    firsts = [(await found(client, topic))[0] for topic in topics]
    return sum(name.startswith("office_zeta_") for name in firsts) / len(topics)


async def learned(client):
    """Whether requests never made find the suite that works, within some seconds."""
    for _ in range(60):
        if await share(client, UNSEEN) > 0.6:
            return True
        await asyncio.sleep(0.25)
    return False


def test_a_client_gains_without_code(tmp_path):
    """Over stdio: two tools, answers as they came, learning from calls, and what was learned survives the process."""
    options = ("--store", f"sqlite:///{tmp_path}/tools.db")

    async def first_day():
        async with Client(front(tmp_path, *options)) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
            before = await share(client, UNSEEN)
            answer = await client.call_tool("call_tool", {"name": "office_zeta_redmail"})
            failure = await client.call_tool("call_tool", {"name": "office_acme_redmail"})
            wrong = await client.call_tool("call_tool", {"name": "gone"})
            await work(client, LEARNED)
            return listed, before, answer, failure, wrong, await learned(client)

    async def second_day():
        async with Client(front(tmp_path, *options, every=600)) as client:
            return await share(client, UNSEEN)

    listed, before, answer, failure, wrong, after = asyncio.run(first_day())

    assert listed == ["search_tools", "call_tool"]
    assert before < 0.6
    assert (answer.is_error, answer.content[0].text) == (False, "zeta_redmail is done")
    assert failure.is_error
    assert "not in this suite" in failure.content[0].text
    assert wrong.is_error
    assert after
    assert asyncio.run(second_day()) > 0.6


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


def test_clients_over_http_teach_one_search(tmp_path):
    """Two clients at once, each in its session, teach what both are served."""

    async def story():
        async with (
            served(tmp_path) as (_, url),
            named(url, "", "legacy") as one,
            named(url, "", "legacy") as other,
        ):
            await asyncio.gather(work(one, LEARNED[:15]), work(other, LEARNED[15:]))
            return await learned(one) and await learned(other)

    assert asyncio.run(story())


def test_what_was_called_is_kept_with_its_source_when_it_is_told_to_end(tmp_path):
    """SIGTERM right after calls: a header, else the command line, says their source. Calls of nobody are not kept."""
    url = f"sqlite:///{tmp_path}/tools.db"

    async def story():
        async with served(tmp_path, "--store", url, "--source", "unknown") as (process, address):
            for source, mode in (("ann", "auto"), ("", "legacy"), ("", "auto")):  # the last one is nobody
                async with named(address, source, mode) as client:
                    await work(client, LEARNED[:1])
            process.send_signal(signal.SIGTERM)
            return await asyncio.to_thread(process.wait, 20)

    code = asyncio.run(story())

    assert code == 0
    with open_store(url) as store:
        rewards = store.rewards("tool use")
        assert dict(zip(rewards.sources.tolist(), rewards.depths.tolist(), strict=True)) == {"ann": 2, "unknown": 2}


def test_a_server_that_is_away_costs_its_own_tools_alone(tmp_path):
    """A command that does not exist is one line on stderr; the tools of the others are found and work."""
    servers = {"gone": {"command": "/no/such/command"}, "office": {"command": sys.executable, "args": [str(BEHIND)]}}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": servers}))

    async def story(log):
        async with Client(stdio_client(front(tmp_path), errlog=log)) as client:
            return await found(client, LEARNED[0])

    with (tmp_path / "stderr").open("w") as log:
        names = asyncio.run(story(log))

    assert f"office_zeta_{LEARNED[0]}" in names
    assert "server 'gone': FileNotFoundError: No such file or directory" in (tmp_path / "stderr").read_text()


def test_no_tool_is_found_where_none_fits_if_it_is_to(tmp_path):
    """With --abstain, as soon as a floor was learned from what worked; other requests find their tools."""

    async def story():
        async with Client(front(tmp_path, "--abstain")) as client:
            for topic, again in itertools.product(TOPICS, range(2)):
                await client.call_tool("search_tools", {"query": f"{request(topic)} {again}"})
                await client.call_tool("call_tool", {"name": f"office_zeta_{topic}"})
            for _ in range(240):
                result = await client.call_tool("search_tools", {"query": "what the weather says"})
                if not result.structured_content["result"]:
                    break
                await asyncio.sleep(0.25)
            own = await client.call_tool("search_tools", {"query": f"{request(TOPICS[0])} 0"})
            return result.structured_content["result"], len(own.structured_content["result"])

    assert asyncio.run(story()) == ([], 4)


def names_found(servers, *, searches=1, every=60.0, query="do it"):
    """The names that each search finds among the tools of *servers*, and the tools that stay in the search."""

    async def story():
        search = LearnedToolSearch([], FakeEmbedder())
        async with FastClient(mcp_front.front(servers, search, every=every)) as client:
            results = [await client.call_tool("search_tools", {"query": query}) for _ in range(searches)]
        return [[tool["name"] for tool in result.structured_content["result"]] for result in results], search.names

    return asyncio.run(story())


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


def test_tools_that_no_agent_could_read_are_left_out(caplog):
    """A megabyte of a name, of a description or of a schema: the other tools of the server are found."""
    long = [
        tool("fine"),
        tool("n" * 2**20),
        tool("described", description="d" * 2**20),
        tool("schema", schema={"x": "y" * 2**20}),
    ]

    names, _ = names_found({"long": listing(long)})

    assert names == [["long_fine"]]
    assert "server 'long': 3 tools are left out, too long or too many" in caplog.text


def test_tools_that_a_server_no_longer_lists_leave_the_search():
    """A server that renames all its tools at each listing costs no more than it lists."""
    pages = [[tool(f"t{page}-{number}") for number in range(30)] for page in range(9)]

    _, stay = names_found({"names": listing(*pages)}, searches=9, every=0.0)

    assert stay == [f"names_t8-{number}" for number in range(30)]


def test_a_server_that_is_away_for_a_while_keeps_its_tools(caplog):
    """What it listed last is found; one line says what is wrong, with no word of the server's."""
    calls = itertools.count()

    async def list_tools(_ctx, _params):
        if next(calls):
            raise ConnectionError("at http://me:secret@host")
        return ListToolsResult(tools=[tool("fine")])

    names, stay = names_found({"shy": behind(list_tools)}, searches=2, every=0.0)

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
    [(listing([tool("t")], endless=True), ""), (behind(silent), "TimeoutError")],
    ids=["endless", "silent"],
)
def test_a_server_that_lists_without_end_costs_its_own_tools_alone(monkeypatch, bad, why, caplog):
    """It may hang, or give page after page: that ends in time, with one line that has its name."""
    if why:
        monkeypatch.setattr(mcp_front, "_PATIENCE", 0.5)

    names, _ = names_found({"bad": bad, "good": FINE})
    lines = [record.getMessage() for record in caplog.records if record.name == mcp_front.__name__]

    assert names == [["good_fine"]]
    assert [line.startswith(f"server 'bad': {why}") for line in lines] == [True]


def test_a_name_of_two_tools_is_neither_found_nor_called(caplog):
    """A call that is meant for one server never goes to another; the other tools of both are found."""
    servers = {"git": listing([tool("hub_log"), tool("status")]), "git_hub": listing([tool("log")])}

    async def story():
        async with FastClient(mcp_front.front(servers, LearnedToolSearch([], FakeEmbedder()))) as client:
            first = await client.call_tool("call_tool", {"name": "git_hub_log"}, raise_on_error=False)
            found = await client.call_tool("search_tools", {"query": "do it"})
            again = await client.call_tool("git_hub_log", {}, raise_on_error=False)
            return [tool["name"] for tool in found.structured_content["result"]], first, again

    names, *answers = asyncio.run(story())

    assert names == ["git_status"]
    assert all("git_hub_log is a tool of several servers" in answer.content[0].text for answer in answers)
    assert "other servers have tools of these names" in caplog.text


def test_a_tool_that_does_not_answer_in_time_is_no_failure(monkeypatch):
    """The call ends, and says nothing of the tool; one that fails by itself does."""
    monkeypatch.setattr(mcp_front, "_LONGEST_CALL", 0.5)

    async def list_tools(_ctx, _params):
        return ListToolsResult(tools=[tool("slow"), tool("wrong")])

    async def call_tool(_ctx, params):
        if params.name == "slow":
            await anyio.sleep_forever()
        return CallToolResult(content=[TextContent(type="text", text="no")], is_error=True)

    async def story():
        search = LearnedToolSearch([], FakeEmbedder())
        async with FastClient(mcp_front.front({"behind": behind(list_tools, call_tool)}, search)) as client:
            await client.call_tool("search_tools", {"query": "do it"})
            for name in ("behind_slow", "behind_wrong"):
                answer = await client.call_tool("call_tool", {"name": name}, raise_on_error=False)
                assert answer.is_error
        return [outcome for past in search.requests() for outcome in past.outcomes.items()]

    assert asyncio.run(story()) == [("behind_wrong", 0.2)]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{",
        "[]",
        '{"mcpServers": {}}',
        '{"mcpServers": {"a": {}}}',
        '{"mcpServers": {"a": {"command": "x", "args": 3, "env": {"KEY": "sk-SECRET"}}}}',
        '{"mcpServers": {"a": {"command": 3, "args": ["--key", "sk-SECRET"]}}}',
        '{"mcpServers": {"a": {"url": "h ttp://u:sk-SECRET@h/", "headers": {"Authorization": "Bearer sk-SECRET"}}}}',
        '{"mcpServers": {"a": "sk-SECRET"}, ',
    ],
)
def test_files_that_name_no_servers_are_refused(tmp_path, text, capsys):
    """Everything that is no file of servers ends with one line that names the file and shows no value of it."""
    path = tmp_path / "servers.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(DataError, match=r"servers.json: expected"):
        read_servers(path)
    with pytest.raises(SystemExit) as ended:
        main(["tools", "serve", "--catalog", str(path)])

    assert ended.value.code == 2
    stderr = capsys.readouterr().err
    assert "servers.json" in stderr.splitlines()[-1]
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


@pytest.mark.parametrize("key", ["disabledTools", "excludeTools", "tools"])
def test_a_tool_that_is_switched_off_is_neither_found_nor_called(tmp_path, key):
    """The other tools of its server are."""
    name = f"zeta_{LEARNED[0]}"
    off = {"disabledTools": ["other"], key: {name: {"enabled": False}} if key == "tools" else [name]}
    servers = servers_of(tmp_path, office={"command": sys.executable, "args": [str(BEHIND)], **off})
    search = LearnedToolSearch([], FakeEmbedder())

    async def story():
        async with FastClient(mcp_front.front(servers, search)) as client:
            await client.call_tool("search_tools", {"query": "do it"})
            return await client.call_tool("call_tool", {"name": f"office_{name}"}, raise_on_error=False)

    answer = asyncio.run(story())

    assert answer.is_error
    assert f"office_{name}" not in search.names
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


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ({"command": "x", "args": ["sk-SECRET", "${NOT_SET}"]}, "'NOT_SET'"),
        ({"url": "http://h", "headers": {"Authorization": "sk-SECRET ${input:key}"}}, "'input:key'"),
        ({"command": "x", "args": ["sk-SECRET"], "tools": ["read"]}, "'tools'"),
        ({"command": "x", "args": ["sk-SECRET"], "includeTools": ["read"]}, "'includeTools'"),
        ({"command": "x", "args": ["sk-SECRET"], "includeTools": "read"}, "'includeTools'"),
        ({"command": "x", "args": ["sk-SECRET"], "disabledTools": "write"}, "'disabledTools'"),
    ],
)
def test_what_cannot_be_done_as_clients_do_it_is_refused_by_name(tmp_path, entry, name):
    """A variable that is not set, or a list of the tools that are on."""
    with pytest.raises(DataError, match=f"'a': expected .*{name}") as refused:
        servers_of(tmp_path, a=entry)

    assert "SECRET" not in str(refused.value)


def test_an_address_that_is_none_is_refused(tmp_path, capsys):
    """A port that is no number ends with exit code 2."""
    command(tmp_path)

    with pytest.raises(SystemExit) as ended:
        main(["tools", "serve", "--catalog", str(tmp_path / "servers.json"), "--http", "here"])

    assert ended.value.code == 2
    assert "--http: expected [HOST:]PORT, got 'here'" in capsys.readouterr().err


def test_what_a_server_is_for_counts(tmp_path):
    """The description of a server in the file is part of the texts of its tools, and of no answer's description."""
    about = {"command": sys.executable, "args": [str(BEHIND)], "description": "suites of a shipping company"}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"office": about}}))
    search = LearnedToolSearch([], FakeEmbedder())
    catalog = tmp_path / "servers.json"
    server = mcp_front.front(read_servers(catalog), search, about=mcp_front.described(catalog))

    async def story():
        async with FastClient(server) as client:
            found = await client.call_tool("search_tools", {"query": "shipping"})
            return found.structured_content["result"][0]["description"]

    assert "shipping" not in asyncio.run(story())
    assert all(card.text.endswith("office: suites of a shipping company") for card in search._index.cards)
