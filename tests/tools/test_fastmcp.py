"""The search transform of FastMCP, with a real server and a real client, in memory and over HTTP on loopback."""

import asyncio

import pytest

pytest.importorskip("fastmcp")

from fastmcp import Client, FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools import Tool

from tttembed_rag.testing import FakeEmbedder
from tttembed_rag.tools import LearnedToolSearch
from tttembed_rag.tools.fastmcp import learned_search

from .conftest import CATALOG, LEARNED, UNSEEN, first, request


def server_with(search):
    """A server with the tools of both suites: those of acme fail."""
    server = FastMCP("suites")

    def made(name):
        def run() -> str:
            if name.startswith("acme_"):
                raise ToolError("not in this suite")
            return name

        return run

    for name, text in CATALOG.items():
        server.add_tool(Tool.from_function(made(name), name=name, description=text))
    learned_search(server, search, k=4)
    return server


async def work(client, topics):
    """Search each topic, and call what is found, by the proxy or directly."""
    for number, topic in enumerate(topics):
        found = (await client.call_tool("search_tools", {"query": request(topic)})).structured_content["result"]
        for name in (tool["name"] for tool in found):
            if not name.endswith(f"_{topic}"):
                continue
            direct = (name, {}) if number % 2 else ("call_tool", {"name": name})
            await client.call_tool(*direct, raise_on_error=False)


def test_clients_teach_the_server_by_working():
    """A client sees two tools; what it calls teaches the search; requests never made find the right suite."""
    search = LearnedToolSearch([], FakeEmbedder())

    async def story():
        async with Client(server_with(search)) as client:
            listed = [tool.name for tool in await client.list_tools()]
            await work(client, LEARNED)
        return listed

    listed = asyncio.run(story())
    before = first(search, UNSEEN)
    lesson = search.learn()

    assert listed == ["search_tools", "call_tool"]
    assert lesson.requests == len(LEARNED)
    assert before < 0.9 < first(search, UNSEEN)
    told = [outcome for one in search._memory.requests("", 64) for outcome in one.outcomes.items()]
    assert {(name.split("_")[0], value) for name, value in told} == {("acme", 0.2), ("zeta", 1.0)}


def test_results_are_those_of_the_server():
    """What a tool answers, and how it fails, reaches the client as it was."""
    search = LearnedToolSearch([], FakeEmbedder())

    async def story():
        async with Client(server_with(search)) as client:
            answer = await client.call_tool("call_tool", {"name": "zeta_redmail"})
            with pytest.raises(ToolError, match="not in this suite"):
                await client.call_tool("acme_redmail", {})
            return answer.data if answer.data is not None else answer.content[0].text

    assert asyncio.run(story()) in ("zeta_redmail", {"result": "zeta_redmail"})
    assert search._memory.requests("", 64) == []
