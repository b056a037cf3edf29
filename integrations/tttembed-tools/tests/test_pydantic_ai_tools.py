"""The capability of Pydantic AI, with a real agent and a model that follows a script."""

import asyncio

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, ModelRetry, Tool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from tttembed_tools import LearnedToolSearch
from tttembed_tools.hosts.pydantic_ai import tool_search

import tttembed_rag
from tests.catalogues import CATALOG, LEARNED, UNSEEN, first, request
from tttembed_rag.testing import FakeEmbedder


def handler(name, description):
    """A deferred tool: those of zeta work, those of acme ask for another try, and one cannot reach its service."""

    def run() -> str:
        if name.startswith("acme_"):
            raise ModelRetry("not in this suite")
        if name == "zeta_down":
            raise ConnectionError("unreachable")
        return "done"

    return Tool(run, name=name, description=description, defer_loading=True)


def returned(messages):
    """The answers of tools in a conversation, as (tool, content)."""
    return [
        (part.tool_name, part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


def agent_with(search, catalog=CATALOG):
    """An agent that searches its prompt, calls what comes first, then the tool of zeta, and ends."""

    def model(messages, info):
        prompt = str(messages[0].parts[-1].content)
        calls = [part for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
        if not calls:
            return ModelResponse(parts=[ToolCallPart("search_tools", {"queries": [prompt]})])
        topic = prompt.rsplit(maxsplit=1)[-1]
        for name in (f"acme_{topic}", f"zeta_{topic}"):
            if name in {tool.name for tool in info.function_tools} and name not in {call.tool_name for call in calls}:
                return ModelResponse(parts=[ToolCallPart(name, {})])
        return ModelResponse(parts=[TextPart("done")])

    tools = [handler(name, text) for name, text in catalog.items()]
    return Agent(FunctionModel(model), tools=tools, capabilities=[tool_search(search, k=4)], retries=3)


def test_an_agent_teaches_its_search_by_working():
    """Runs of a real agent find tools by the learned search, and what worked brings unseen requests the right suite."""
    search = LearnedToolSearch([], FakeEmbedder())
    agent = agent_with(search)

    async def story():
        answers = [await agent.run(request(topic)) for topic in LEARNED]
        return returned(answers[0].all_messages())[0]

    found = asyncio.run(story())
    before = first(search, UNSEEN)
    lesson = search.learn()

    assert found[0] == "search_tools"
    assert len(found[1]["discovered_tools"]) == 4
    assert lesson.published
    assert before < 0.6 < first(search, UNSEEN)
    told = {one.query: dict(one.outcomes) for one in search.requests()}
    assert told[request(LEARNED[0])] == {f"acme_{LEARNED[0]}": 0.2, f"zeta_{LEARNED[0]}": 1.0}


def test_a_service_out_of_reach_says_nothing():
    """A tool that cannot reach its service is no outcome, and its error reaches the agent's caller."""
    search = LearnedToolSearch([], FakeEmbedder())
    agent = agent_with(search, {"zeta_down": "Handle a down thing"})

    with pytest.raises(ConnectionError, match="unreachable"):
        asyncio.run(agent.run(request("down")))

    assert search.requests() == []


def test_calls_carry_their_source():
    """The caller's context names who an agent works for, where several work at once."""
    search = LearnedToolSearch([], FakeEmbedder())
    agent = agent_with(search)

    async def of(name):
        with tttembed_rag.context(source=name):
            await agent.run(request(LEARNED[0]))

    async def both():
        await asyncio.gather(of("ann"), of("eve"))

    asyncio.run(both())

    assert {one.source for one in search.requests()} == {"ann", "eve"}
