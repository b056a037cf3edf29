"""The search transform of FastMCP, with a real server and a real client, in memory and over HTTP on loopback."""

import asyncio
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("fastmcp")

import uvicorn
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from tttembed_tools import LearnedToolSearch
from tttembed_tools.hosts.fastmcp import learned_search

from tests.catalogues import fastmcp_server, request
from tttembed_rag.testing import FakeEmbedder, eventually


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [({"to": "Ada"}, "paid Ada"), ('{"to": "Ada"}', "paid Ada"), ("", "paid nobody"), (None, "paid nobody")],
)
def test_arguments_may_be_a_text_in_json(arguments, answer):
    """As clients send an argument that is an object or null; an empty text is an empty object."""
    server = FastMCP("bank")
    server.tool(lambda to="nobody": f"paid {to}", name="pay", description="Pay somebody")
    learned_search(server, LearnedToolSearch([], FakeEmbedder()))

    async def story():
        async with Client(server) as client:
            return await client.call_tool("call_tool", {"name": "pay", "arguments": arguments}, raise_on_error=False)

    assert asyncio.run(story()).content[0].text == answer


def test_arguments_that_are_no_object_are_refused():
    """They reach no tool."""

    async def story():
        async with Client(fastmcp_server(LearnedToolSearch([], FakeEmbedder()))) as client:
            bad = ["3", "[1]", "to Ada", '{"to": ']
            calls = [{"name": "zeta_redmail", "arguments": text} for text in bad]
            return [(await client.call_tool("call_tool", call, raise_on_error=False)).is_error for call in calls]

    assert asyncio.run(story()) == [True] * 4


def test_results_are_those_of_the_server():
    """What a tool answers, and how it fails, reaches the client as it was."""
    search = LearnedToolSearch([], FakeEmbedder())

    async def story():
        async with Client(fastmcp_server(search)) as client:
            answer = await client.call_tool("call_tool", {"name": "zeta_redmail"})
            with pytest.raises(ToolError, match="not in this suite"):
                await client.call_tool("acme_redmail", {})
            return answer.content[0].text

    assert asyncio.run(story()) == "done"
    assert search.requests() == []


def test_outcomes_of_calls_elsewhere_are_reported():
    """A third tool takes them, for tools that the client's own search listed; it is found by no search."""
    search = LearnedToolSearch([], FakeEmbedder())

    async def story():
        async with Client(fastmcp_server(search, report=True)) as client:
            listed = [tool.name for tool in await client.list_tools()]
            for name in ("zeta_redmail", "acme_bluefile"):  # of which the search lists the first alone
                await client.call_tool("search_tools", {"query": request("redmail")})
                await client.call_tool("report_outcome", {"tool": name, "succeeded": True})
            await client.call_tool("report_outcome", {"tool": "gone", "succeeded": False})
        return listed

    assert asyncio.run(story()) == ["report_outcome", "search_tools", "call_tool"]
    assert [dict(past.outcomes) for past in search.requests()] == [{"zeta_redmail": 1.0}]
    assert "report_outcome" not in search.names


@contextmanager
def served(app):
    """The address of an application that a real HTTP server runs in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, ws="none", log_level="error"))
    running = threading.Thread(target=server.run)
    running.start()
    try:
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        running.join(10)


def test_calls_over_http_carry_the_source_of_their_header():
    """The header of each client names it."""
    search = LearnedToolSearch([], FakeEmbedder())

    async def story():
        with served(fastmcp_server(search).http_app()) as url:
            for name in ("ann", "eve"):
                async with Client(StreamableHttpTransport(url, headers={"X-TTT-Source": name})) as client:
                    await client.call_tool("search_tools", {"query": request("redmail")})
                    await client.call_tool("call_tool", {"name": "zeta_redmail"})

    asyncio.run(story())

    assert {past.source for past in search.requests()} == {"ann", "eve"}
