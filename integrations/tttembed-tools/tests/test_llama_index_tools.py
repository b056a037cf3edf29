"""The tool retriever in a real agent of LlamaIndex, with a model that follows a script."""

import asyncio

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.schema import QueryBundle
from llama_index.core.tools import FunctionTool
from pydantic import Field
from tttembed_tools import LearnedToolSearch
from tttembed_tools.hosts.llama_index import LearnedToolRetriever

from tttembed_rag import context
from tttembed_rag.testing import FakeEmbedder

# Its workflows list the members of an agent, deprecated ones of pydantic too.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")

TOPICS = [
    f"{colour}{thing}"
    for colour in ("red", "blue", "green", "black", "white")
    for thing in ("mail", "file", "talk", "note", "call", "list")
]
LEARNED, UNSEEN = TOPICS[:22], TOPICS[22:]


class Scripted(FunctionCallingLLM):
    """A model that calls the tools of the topic it is asked about, one after another, where it sees them."""

    seen: list = Field(default_factory=list)

    @property
    def metadata(self):
        """It calls functions."""
        return LLMMetadata(is_function_calling_model=True)

    def _prepare_chat_with_tools(self, tools, user_msg=None, chat_history=None, **_):
        return {"messages": chat_history, "tools": [tool.metadata.name for tool in tools]}

    async def achat(self, messages, tools=(), **_):
        """Call what is left of the topic's tools."""
        self.seen.append(list(tools))
        topic = [m for m in messages if m.role == "user"][-1].content.rsplit(maxsplit=1)[-1]
        called = {call for m in messages for call in m.additional_kwargs.get("called", ())}
        done = {m.additional_kwargs.get("tool_call_id") for m in messages if m.role == "tool"}
        left = [name for name in (f"acme_{topic}", f"zeta_{topic}") if name in tools and name not in done | called]
        return ChatResponse(message=ChatMessage("done", role="assistant", additional_kwargs={"called": left[:1]}))

    async def achat_with_tools(self, tools, user_msg=None, chat_history=None, **_):
        """The same."""
        return await self.achat(chat_history, [tool.metadata.name for tool in tools])

    async def astream_chat_with_tools(self, tools, user_msg=None, chat_history=None, **_):
        """The same, at once."""
        answer = await self.achat_with_tools(tools, user_msg, chat_history)

        async def one():
            yield answer

        return one()

    def get_tool_calls_from_response(self, response, **_):
        """The calls of an answer."""
        names = response.message.additional_kwargs["called"]
        return [ToolSelection(tool_id=name, tool_name=name, tool_kwargs={}) for name in names]

    def chat(self, *_, **__):
        """Agents do not ask for this."""
        raise NotImplementedError

    complete = stream_chat = stream_complete = acomplete = astream_chat = astream_complete = chat


def tool(suite, topic, error=ValueError):
    """A tool: those of acme fail."""

    def run() -> str:
        if suite == "acme":
            raise error("not in this suite")
        return "done"

    text = f"Handle a {topic} in the {suite} suite"
    return FunctionTool.from_defaults(run, name=f"{suite}_{topic}", description=text)


def world(error=ValueError):
    """A search, a retriever, a model and an agent with the tools of both suites."""
    search, model = LearnedToolSearch([], FakeEmbedder()), Scripted(seen=[])
    tools = [tool(suite, topic, error) for suite in ("acme", "zeta") for topic in TOPICS]
    retriever = LearnedToolRetriever(tools, search, k=4)
    return search, retriever, model, FunctionAgent(tool_retriever=retriever, llm=model)


def ask(topic):
    """What a user says."""
    return f"please handle my {topic}"


def first(search):
    """Of requests never made, the share for which the suite that works comes first."""
    return sum(search(ask(topic), k=1) == [f"zeta_{topic}"] for topic in UNSEEN) / len(UNSEEN)


def test_an_agent_teaches_its_search_by_working():
    """The model sees four tools of sixty; what it calls brings requests never made the right suite."""
    search, retriever, model, agent = world()

    async def story():
        for topic in LEARNED:
            await retriever.watch(agent.run(ask(topic)), ask(topic))

    asyncio.run(story())
    before = first(search)
    search.learn()

    assert {len(names) for names in model.seen} == {4}
    assert before < 0.6 < first(search)
    told = {one.query: set(one.outcomes.values()) for one in search.requests()}
    assert set(told) == {ask(topic) for topic in LEARNED}
    assert set().union(*told.values()) == {0.2, 1.0}


def test_a_service_out_of_reach_says_nothing():
    """A tool that cannot reach its service is no outcome."""
    search, retriever, _, agent = world(ConnectionError)

    async def story():
        await retriever.watch(agent.run(ask("redmail")), ask("redmail"))

    asyncio.run(story())

    told = [dict(one.outcomes) for one in search.requests()]
    assert [outcome for outcome in told if "acme_redmail" in outcome] == []


def test_a_tool_is_given_by_its_name():
    """Asked by the name of a tool, as an agent does when it calls it, the retriever gives that tool."""
    _, retriever, _, _ = world()

    assert [found.metadata.name for found in retriever.retrieve("acme_redmail")] == ["acme_redmail"]
    assert len(retriever.retrieve(QueryBundle(ask("redmail")))) == 4


def test_calls_carry_their_source():
    """The context around a run that is watched names who the agent works for."""
    search, retriever, _, agent = world()

    async def of(name):
        with context(source=name):
            await retriever.watch(agent.run(ask(LEARNED[0])), ask(LEARNED[0]))

    async def both():
        await asyncio.gather(of("ann"), of("eve"))

    asyncio.run(both())

    assert {one.source for one in search.requests()} == {"ann", "eve"}
