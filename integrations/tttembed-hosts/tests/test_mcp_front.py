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
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from tttembed_hosts import mcp_front
from tttembed_hosts.mcp_front import FrontedServer, read_servers

from tests.tools.conftest import LEARNED, UNSEEN, request
from tttembed_rag.cli import main
from tttembed_rag.errors import DataError
from tttembed_rag.stores import open_store

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
    return [tool["name"] for tool in result.structured_content["tools"]]


async def work(client, topics):
    """Search each topic, and call both of its tools."""
    for topic in topics:
        for name in await found(client, topic):
            if name.endswith(f"_{topic}"):
                await client.call_tool("call_tool", {"name": name})


async def share(client, topics):
    """Of some topics, the share for which the suite that works comes first."""
    firsts = [(await found(client, topic))[0] for topic in topics]
    return sum(name.startswith("office.zeta_") for name in firsts) / len(topics)


async def learned(client):
    """Whether requests never made find the suite that works, within some seconds."""
    for _ in range(60):
        if await share(client, UNSEEN) > 0.9:
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
            answer = await client.call_tool("call_tool", {"name": "office.zeta_redmail"})
            failure = await client.call_tool("call_tool", {"name": "office.acme_redmail"})
            wrong = await client.call_tool("call_tool", {"name": "gone", "arguments": 3})
            await work(client, LEARNED)
            return listed, before, answer, failure, wrong, await learned(client)

    async def second_day():
        async with Client(front(tmp_path, *options, every=600)) as client:
            return await share(client, UNSEEN)

    listed, before, answer, failure, wrong, after = asyncio.run(first_day())

    assert listed == ["search_tools", "call_tool"]
    assert before < 0.9
    assert (answer.is_error, answer.content[0].text) == (False, "zeta_redmail is done")
    assert failure.is_error
    assert "not in this suite" in failure.content[0].text
    assert wrong.content[0].text == "name: expected a tool that search_tools has found, got 'gone'"
    assert after
    assert asyncio.run(second_day()) > 0.9


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


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_clients_over_http_teach_one_search(tmp_path, mode):
    """Two clients at once, with a session and without one, teach what both are served."""

    async def story():
        async with (
            served(tmp_path) as (_, url),
            Client(url, mode=mode) as one,
            Client(url, mode=mode) as other,
        ):
            await asyncio.gather(work(one, LEARNED[:15]), work(other, LEARNED[15:]))
            return await learned(one) and await learned(other)

    assert asyncio.run(story())


def test_what_was_called_is_kept_with_its_source_when_it_is_told_to_end(tmp_path):
    """SIGTERM right after calls: they are in the store under the source of their header, else of the command line."""
    url = f"sqlite:///{tmp_path}/tools.db"

    async def story():
        async with served(tmp_path, "--store", url, "--source", "unknown") as (process, address):
            for headers in ({"X-TTT-Source": "ann"}, {}):
                async with (
                    httpx2.AsyncClient(headers=headers) as http,
                    Client(streamable_http_client(address, http_client=http)) as client,
                ):
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

    async def story(said):
        async with Client(stdio_client(front(tmp_path), errlog=said)) as client:
            return await found(client, LEARNED[0])

    with (tmp_path / "stderr").open("w") as said:
        names = asyncio.run(story(said))

    assert f"office.zeta_{LEARNED[0]}" in names
    assert "server 'gone': [Errno 2] No such file or directory" in (tmp_path / "stderr").read_text()


@pytest.mark.parametrize("tools", [0, 30])
def test_a_server_that_lists_without_end_is_given_up(monkeypatch, tools):
    """Its pages, and the tools in them, are bounded: it fills no memory, and its name is in the reason."""
    monkeypatch.setattr(mcp_front, "_MOST_TOOLS", 1_000)
    pages = itertools.count()

    async def list_tools(_ctx, _params):
        page = next(pages)
        some = [Tool(name=f"t{page}-{number}", input_schema={"type": "object"}) for number in range(tools)]
        return ListToolsResult(tools=some, next_cursor=str(page))

    async def story():
        behind = FrontedServer("endless", None)
        async with Client(Server("endless", on_list_tools=list_tools)) as client:
            with pytest.raises(ValueError, match=r"expected at most 1000 (pages of )?tools, got more"):
                await behind._listed(client)

    asyncio.run(story())


def test_tools_that_no_agent_could_read_are_left_out(caplog):
    """A megabyte of a name, of a description or of a schema: the other tools of the server are found."""
    schemas = {"object": {"type": "object"}, "long": {"type": "object", "x": "y" * 2**20}}
    tools = [
        Tool(name="fine", input_schema=schemas["object"]),
        Tool(name="n" * 2**20, input_schema=schemas["object"]),
        Tool(name="described", description="d" * 2**20, input_schema=schemas["object"]),
        Tool(name="schema", input_schema=schemas["long"]),
    ]

    async def list_tools(_ctx, _params):
        return ListToolsResult(tools=tools)

    async def story():
        async with Client(Server("long", on_list_tools=list_tools)) as client:
            return await FrontedServer("long", None)._listed(client)

    assert list(asyncio.run(story())) == ["long.fine"]
    assert [record.getMessage() for record in caplog.records] == [
        "server 'long': 3 tools of more than 262144 bytes are left out"
    ]


def test_a_server_that_stays_silent_is_told_of_and_tried_again(monkeypatch, caplog):
    """It may hang while it lists, or in a call, which says nothing of the tool: each ends in time, with one line."""
    monkeypatch.setattr(mcp_front, "_PATIENCE", 0.2)
    monkeypatch.setattr(mcp_front, "_PAUSE", 0.01)
    monkeypatch.setattr(mcp_front, "_LONGEST_CALL", 0.2)
    lists = itertools.count()

    async def list_tools(_ctx, _params):
        if next(lists) == 0:
            await anyio.sleep_forever()
        return ListToolsResult(tools=[Tool(name="slow", input_schema={"type": "object"})])

    async def call_tool(_ctx, _params):
        await anyio.sleep_forever()

    async def changed(behind):
        listed.append(list(behind.tools))
        is_listed.set()

    async def story():
        behind = FrontedServer("silent", Server("silent", on_list_tools=list_tools, on_call_tool=call_tool))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(behind.keep, changed, 60.0)
            with anyio.fail_after(30):
                await is_listed.wait()
                with pytest.raises(TimeoutError, match=r"server 'silent' has not answered within 0\.2 s"):
                    await behind.call("silent.slow", {})
            tasks.cancel_scope.cancel()

    listed, is_listed = [], anyio.Event()
    asyncio.run(story())

    assert listed == [["silent.slow"]]
    assert [record.getMessage().startswith("server 'silent': ") for record in caplog.records] == [True]


def test_a_server_that_works_on_a_call_is_left_in_peace(monkeypatch, caplog):
    """It may do one thing at a time, and longer than a list may take: its connection stays."""
    monkeypatch.setattr(mcp_front, "_PATIENCE", 0.2)
    at_work = anyio.Lock()

    async def list_tools(_ctx, _params):
        async with at_work:
            return ListToolsResult(tools=[Tool(name="slow", input_schema={"type": "object"})])

    async def call_tool(_ctx, _params):
        async with at_work:
            await anyio.sleep(1.0)
            return CallToolResult(content=[TextContent(type="text", text="done")])

    async def changed(_):
        pass

    async def story():
        behind = FrontedServer("busy", Server("busy", on_list_tools=list_tools, on_call_tool=call_tool))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(behind.keep, changed, 0.05)
            with anyio.fail_after(30):
                await behind.ready.wait()
                answer = await behind.call("busy.slow", {})
            tasks.cancel_scope.cancel()
        return answer.content[0].text

    assert asyncio.run(story()) == "done"
    assert caplog.records == []


@pytest.mark.parametrize(
    "text",
    [
        None,
        "{",
        "[]",
        '{"mcpServers": {}}',
        '{"mcpServers": {"a": {}}}',
        '{"mcpServers": {"a": {"command": "x", "args": 3}}}',
    ],
)
def test_files_that_name_no_servers_are_refused(tmp_path, text, capsys):
    """Everything that is no file of servers ends with one line that names the file, and exit code 2."""
    path = tmp_path / "servers.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(DataError, match=r"servers.json: expected"):
        read_servers(path)
    with pytest.raises(SystemExit) as ended:
        main(["tools", "serve", "--catalog", str(path)])

    assert ended.value.code == 2
    assert "servers.json" in capsys.readouterr().err.splitlines()[-1]


def test_an_address_that_is_none_is_refused(tmp_path, capsys):
    """A port that is no number ends with exit code 2."""
    command(tmp_path)

    with pytest.raises(SystemExit) as ended:
        main(["tools", "serve", "--catalog", str(tmp_path / "servers.json"), "--http", "here"])

    assert ended.value.code == 2
    assert "--http: expected [HOST:]PORT, got 'here'" in capsys.readouterr().err
