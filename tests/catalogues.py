"""A world of tools where what works depends on something that no request says."""

import itertools

import pytest
from tttembed_tools import LearnedToolSearch

from tttembed_rag.testing import FakeEmbedder

TOPICS = [
    f"{colour}{thing}"
    for colour, thing in itertools.product(
        ("red", "blue", "green", "black", "white", "grey"), ("mail", "file", "talk", "note", "call", "list", "form")
    )
]
# Every topic can be handled in two suites; requests name the topic alone, and only one suite works here.
CATALOG = {
    f"{suite}_{topic}": f"Handle a {topic} in the {suite} suite" for topic in TOPICS for suite in ("acme", "zeta")
}
LEARNED, UNSEEN = TOPICS[:30], TOPICS[30:]


def request(topic):
    """What an agent asks for."""
    return f"please handle my {topic}"


def first(search, topics):
    """Of some topics, the share for which the suite that works comes first."""
    return sum(search(request(topic), k=1) == [f"zeta_{topic}"] for topic in topics) / len(topics)


def teach(search, topics):
    """Call both tools of each topic: the one of zeta works, the other fails."""
    for topic in topics:
        search.used(request(topic), f"acme_{topic}", False)
        search.used(request(topic), f"zeta_{topic}", True)


def functions(error):
    """A function for each tool: those of acme fail with *error*."""

    def made(name):
        def run() -> str:
            if name.startswith("acme_"):
                raise error("not in this suite")
            return "done"

        return run

    return {name: made(name) for name in CATALOG}


def fastmcp_server(search, error=None, **options):
    """A server of FastMCP with these tools behind a learned search."""
    from fastmcp import FastMCP
    from fastmcp.exceptions import ToolError
    from fastmcp.tools import Tool
    from tttembed_tools.hosts.fastmcp import learned_search

    server = FastMCP("suites")
    for name, run in functions(error or ToolError).items():
        server.add_tool(Tool.from_function(run, name=name, description=CATALOG[name]))
    learned_search(server, search, k=4, **options)
    return server


@pytest.fixture
def search():
    """A search over the whole catalogue, which learns in this process."""
    with LearnedToolSearch(CATALOG, FakeEmbedder()) as search:
        yield search


@pytest.fixture
def stored(store):
    """The same, over a store that other processes may share."""
    with LearnedToolSearch(CATALOG, FakeEmbedder(), store=store) as search:
        yield search
