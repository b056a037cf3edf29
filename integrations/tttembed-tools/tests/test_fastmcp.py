"""The search transform of FastMCP, with a real server and a real client."""

import pytest

pytest.importorskip("fastmcp")

from fastmcp import Client, FastMCP
from tttembed_tools import LearnedToolSearch
from tttembed_tools.hosts.fastmcp import learned_search

from tests.catalogues import fastmcp_server, request
from tttembed_rag.testing import FakeEmbedder


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [({"to": "Ada"}, "paid Ada"), ('{"to": "Ada"}', "paid Ada"), ("", "paid nobody"), (None, "paid nobody")],
)
async def test_arguments_may_be_a_text_in_json(arguments, answer):
    """As clients send an argument that is an object or null; an empty text is an empty object."""
    server = FastMCP("bank")
    server.tool(lambda to="nobody": f"paid {to}", name="pay", description="Pay somebody")
    learned_search(server, LearnedToolSearch([], FakeEmbedder()))

    async with Client(server) as client:
        result = await client.call_tool("call_tool", {"name": "pay", "arguments": arguments}, raise_on_error=False)

    assert result.content[0].text == answer


async def test_arguments_that_are_no_object_are_refused():
    """They reach no tool."""
    calls = [{"name": "zeta_redmail", "arguments": text} for text in ("3", "[1]", "to Ada", '{"to": ')]
    async with Client(fastmcp_server(LearnedToolSearch([], FakeEmbedder()))) as client:
        results = [await client.call_tool("call_tool", call, raise_on_error=False) for call in calls]

    assert [result.is_error for result in results] == [True] * 4


async def test_outcomes_of_calls_elsewhere_are_reported():
    """A third tool takes them, for tools that the client's own search listed; it is found by no search."""
    search = LearnedToolSearch([], FakeEmbedder())
    async with Client(fastmcp_server(search, report=True)) as client:
        listed = [tool.name for tool in await client.list_tools()]
        for name in ("zeta_redmail", "acme_bluefile"):  # of which the search lists the first alone
            await client.call_tool("search_tools", {"query": request("redmail")})
            await client.call_tool("report_outcome", {"tool": name, "succeeded": True})
        await client.call_tool("report_outcome", {"tool": "gone", "succeeded": False})

    assert listed == ["report_outcome", "search_tools", "call_tool"]
    assert [dict(past.outcomes) for past in search.requests()] == [{"zeta_redmail": 1.0}]
    assert "report_outcome" not in search.names
