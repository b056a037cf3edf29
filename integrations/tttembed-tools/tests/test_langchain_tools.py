"""The middleware in a real agent of LangChain, with a model that follows a script."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, ToolException
from pydantic import Field
from tttembed_tools import LearnedToolSearch
from tttembed_tools.hosts.langchain_tools import LearnedToolMiddleware

from tttembed_rag import context
from tttembed_rag.testing import FakeEmbedder

TOPICS = [
    f"{colour}{thing}"
    for colour in ("red", "blue", "green", "black", "white")
    for thing in ("mail", "file", "talk", "note", "call", "list")
]
LEARNED, UNSEEN = TOPICS[:22], TOPICS[22:]


class Scripted(BaseChatModel):
    """A model that calls the tools of the topic it is asked about, one after another, where it sees them."""

    seen: list = Field(default_factory=list)
    tools: list = Field(default_factory=list)

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_):
        """The same model with tools."""
        return self.model_copy(update={"tools": [tool.name for tool in tools], "seen": self.seen})

    def _generate(self, messages, *_, **__):
        self.seen.append(list(self.tools))
        topic = next(m for m in reversed(messages) if isinstance(m, HumanMessage)).text.rsplit(maxsplit=1)[-1]
        called = {call["name"] for m in messages if isinstance(m, AIMessage) for call in m.tool_calls}
        left = [name for name in (f"acme_{topic}", f"zeta_{topic}") if name in self.tools and name not in called]
        calls = [{"name": left[0], "args": {}, "id": left[0]}] if left else []
        return ChatResult(generations=[ChatGeneration(message=AIMessage("done", tool_calls=calls))])


def tool(name, suite, topic, error=ToolException):
    """A tool: those of acme fail."""

    def run() -> str:
        if suite == "acme":
            raise error("not in this suite")
        return "done"

    text = f"Handle a {topic} in the {suite} suite"
    return StructuredTool.from_function(run, name=name, description=text, handle_tool_error=True)


def world(error=ToolException):
    """A search, a model and an agent with the tools of both suites."""
    search, model = LearnedToolSearch([], FakeEmbedder()), Scripted(seen=[])
    tools = [tool(f"{suite}_{topic}", suite, topic, error) for suite in ("acme", "zeta") for topic in TOPICS]
    agent = create_agent(model, tools=tools, middleware=[LearnedToolMiddleware(search, k=4)])
    return search, model, agent


def ask(topic):
    """The input of an agent."""
    return {"messages": [HumanMessage(f"please handle my {topic}")]}


def first(search):
    """Of requests never made, the share for which the suite that works comes first."""
    return sum(search(f"please handle my {topic}", k=1) == [f"zeta_{topic}"] for topic in UNSEEN) / len(UNSEEN)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_agent_teaches_its_search_by_working(way):
    """The model sees four tools of sixty; what it calls brings requests never made the right suite."""
    search, model, agent = world()

    for topic in LEARNED:
        answer = agent.invoke(ask(topic)) if way == "sync" else asyncio.run(agent.ainvoke(ask(topic)))
    before = first(search)
    search.learn()

    assert {len(names) for names in model.seen} == {4}
    assert [m.status for m in answer["messages"] if isinstance(m, ToolMessage)][-1] == "success"
    assert before < 0.6 < first(search)
    told = {one.query: set(one.outcomes.values()) for one in search.requests()}
    assert len(told) == len(LEARNED)
    assert set().union(*told.values()) == {0.2, 1.0}


def test_a_service_out_of_reach_says_nothing():
    """A tool that cannot reach its service is no outcome, and its error reaches the caller as it was."""
    search, _, agent = world(ConnectionError)

    with pytest.raises(ConnectionError, match="not in this suite"):
        agent.invoke(ask(LEARNED[0]))

    assert search.requests() == []


def test_some_tools_are_always_visible():
    """Tools that are named so are shown beside what is found."""
    search, model = LearnedToolSearch([], FakeEmbedder()), Scripted(seen=[])
    tools = [tool(f"zeta_{topic}", "zeta", topic) for topic in TOPICS]
    middleware = LearnedToolMiddleware(search, k=2, always=["zeta_whitelist"])

    create_agent(model, tools=tools, middleware=[middleware]).invoke(ask("redmail"))

    assert model.seen[0][0] == "zeta_redmail"
    assert len(model.seen[0]) == 3
    assert "zeta_whitelist" in model.seen[0]


def test_calls_carry_their_source():
    """The caller's context names who an agent works for, in an event loop and in LangGraph's threads."""
    search, _, agent = world()

    async def of(name):
        with context(source=name):
            await agent.ainvoke(ask(LEARNED[0]))

    async def both():
        await asyncio.gather(of("ann"), of("eve"))

    asyncio.run(both())
    with context(source="bob"):
        agent.invoke(ask(LEARNED[0]))

    assert {one.source for one in search.requests()} == {"ann", "eve", "bob"}
