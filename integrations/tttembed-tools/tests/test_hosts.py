"""What all frameworks promise alike, each with a real agent or client and a model that follows a script."""

import asyncio
from contextlib import nullcontext
from functools import partial

import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, ToolException
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.schema import QueryBundle
from llama_index.core.tools import FunctionTool
from pydantic import Field
from tttembed_tools import LearnedToolSearch
from tttembed_tools.hosts.langchain_tools import LearnedToolMiddleware
from tttembed_tools.hosts.llama_index import LearnedToolRetriever

from tests.catalogues import CATALOG, LEARNED, UNSEEN, fastmcp_server, first, functions, request
from tttembed_rag import context
from tttembed_rag.testing import FakeEmbedder

# LlamaIndex's workflows list the members of an agent, deprecated ones of pydantic too.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecationWarning")


def next_calls(prompt, visible, called):
    """The next tool of the topic of a prompt that the model sees and has not called: that of acme, then of zeta."""
    topic = prompt.rsplit(maxsplit=1)[-1]
    return [name for name in (f"acme_{topic}", f"zeta_{topic}") if name in visible and name not in called][:1]


class LangChainModel(BaseChatModel):
    """A model of LangChain."""

    seen: list = Field(default_factory=list)
    tools: list = Field(default_factory=list)

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_):
        """The same model with tools."""
        return self.model_copy(update={"tools": [tool.name for tool in tools], "seen": self.seen})

    def _generate(self, messages, *_, **__):
        self.seen.append(self.tools)
        prompt = next(message for message in messages if isinstance(message, HumanMessage)).text
        called = {call["name"] for message in messages for call in getattr(message, "tool_calls", ())}
        calls = [{"name": name, "args": {}, "id": name} for name in next_calls(prompt, self.tools, called)]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("done", tool_calls=calls))])


def langchain(search, error=None, *, threads):
    """An agent of LangChain, in threads or in an event loop."""
    tools = [
        StructuredTool.from_function(run, name=name, description=CATALOG[name], handle_tool_error=True)
        for name, run in functions(error or ToolException).items()
    ]
    model = LangChainModel()
    agent = create_agent(model, tools=tools, middleware=[LearnedToolMiddleware(search, k=4)])

    async def ask(topic):
        state = {"messages": [HumanMessage(request(topic))]}
        agent.invoke(state) if threads else await agent.ainvoke(state)

    return ask, model.seen


class LlamaIndexModel(FunctionCallingLLM):
    """A model of LlamaIndex."""

    seen: list = Field(default_factory=list)

    @property
    def metadata(self):
        """It calls functions."""
        return LLMMetadata(is_function_calling_model=True)

    def _prepare_chat_with_tools(self, *_, **__):
        raise NotImplementedError

    async def astream_chat_with_tools(self, tools, user_msg=None, chat_history=None, **_):
        """An answer at once: a call of what is left of the topic's tools."""
        visible = [tool.metadata.name for tool in tools]
        self.seen.append(visible)
        prompt = next(message for message in chat_history if message.role == "user").content
        called = {name for message in chat_history for name in message.additional_kwargs.get("called", ())}
        calls = next_calls(prompt, visible, called)

        async def answers():
            yield ChatResponse(message=ChatMessage("done", role="assistant", additional_kwargs={"called": calls}))

        return answers()

    def get_tool_calls_from_response(self, response, **_):
        """The calls of an answer."""
        names = response.message.additional_kwargs["called"]
        return [ToolSelection(tool_id=name, tool_name=name, tool_kwargs={}) for name in names]

    def chat(self, *_, **__):
        """Agents do not ask for this."""
        raise NotImplementedError

    complete = stream_chat = stream_complete = achat = acomplete = astream_chat = astream_complete = chat


def retriever_of(search, error=ValueError):
    """A retriever of LlamaIndex over all tools."""
    tools = [
        FunctionTool.from_defaults(run, name=name, description=CATALOG[name]) for name, run in functions(error).items()
    ]
    return LearnedToolRetriever(tools, search, k=4)


def llama_index(search, error=None):
    """An agent of LlamaIndex."""
    retriever, model = retriever_of(search, error or ValueError), LlamaIndexModel()
    agent = FunctionAgent(tool_retriever=retriever, llm=model)

    async def ask(topic):
        await retriever.watch(agent.run(request(topic)), request(topic))

    return ask, model.seen


def pydantic_ai(search, error=None):
    """An agent of Pydantic AI, that searches first."""
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent, ModelRetry, Tool
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel
    from tttembed_tools.hosts.pydantic_ai import tool_search

    seen = []

    def model(messages, info):
        prompt = str(messages[0].parts[-1].content)
        called = {part.tool_name for answer in messages for part in answer.parts if isinstance(part, ToolCallPart)}
        if not called:
            return ModelResponse(parts=[ToolCallPart("search_tools", {"queries": [prompt]})])
        visible = [tool.name for tool in info.function_tools if tool.name != "search_tools"]
        seen.append(visible)
        calls = [ToolCallPart(name, {}) for name in next_calls(prompt, visible, called)]
        return ModelResponse(parts=calls or [TextPart("done")])

    tools = [
        Tool(run, name=name, description=CATALOG[name], defer_loading=True)
        for name, run in functions(error or ModelRetry).items()
    ]
    agent = Agent(FunctionModel(model), tools=tools, capabilities=[tool_search(search, k=4)], retries=3)

    async def ask(topic):
        await agent.run(request(topic))

    return ask, seen


def fastmcp(search, error=None):
    """A client of a server of FastMCP, which calls what it found by the proxy, and the next time directly."""
    pytest.importorskip("fastmcp")
    from fastmcp import Client

    server, seen = fastmcp_server(search, error), []

    async def ask(topic):
        async with Client(server) as client:
            answer = await client.call_tool("search_tools", {"query": request(topic)})
            visible, called = [tool["name"] for tool in answer.structured_content["result"]], []
            seen.append(visible)
            while names := next_calls(topic, visible, called):
                call = (names[0], {}) if len(seen) % 2 else ("call_tool", {"name": names[0]})
                await client.call_tool(*call, raise_on_error=False)
                called += names

    return ask, seen


# Those that hand on what a tool raises, and those that do not.
RAISING = [partial(langchain, threads=True), partial(langchain, threads=False), pydantic_ai]
HOSTS = [*RAISING, llama_index, fastmcp]
NAMES = ["langchain_sync", "langchain_async", "pydantic_ai", "llama_index", "fastmcp"]


@pytest.fixture
def empty():
    """A search without tools, which the host adds."""
    with LearnedToolSearch([], FakeEmbedder()) as search:
        yield search


@pytest.mark.parametrize("host", HOSTS, ids=NAMES)
async def test_an_agent_teaches_its_search_by_working(host, empty):
    """The model sees four tools of all; what it calls brings requests never made the right suite."""
    ask, seen = host(empty)
    for topic in LEARNED:
        await ask(topic)
    before = first(empty, UNSEEN)
    lesson = empty.learn()

    assert {len(names) for names in seen} == {4}
    assert (lesson.published, lesson.requests) == (True, len(LEARNED))
    assert before < 0.6 < first(empty, UNSEEN)
    outcomes = {past.query: dict(past.outcomes) for past in empty.requests()}
    assert outcomes.keys() == {request(topic) for topic in LEARNED}
    assert outcomes[request(LEARNED[0])] == {f"acme_{LEARNED[0]}": 0.2, f"zeta_{LEARNED[0]}": 1.0}


@pytest.mark.parametrize("host", HOSTS, ids=NAMES)
async def test_a_service_out_of_reach_says_nothing(host, empty):
    """A tool that cannot reach its service is no outcome; where the framework raises, its error is as it was."""
    ask, _ = host(empty, ConnectionError)

    with pytest.raises(ConnectionError, match="not in this suite") if host in RAISING else nullcontext():
        await ask(LEARNED[0])

    assert not any(f"acme_{LEARNED[0]}" in past.outcomes for past in empty.requests())


@pytest.mark.parametrize("host", HOSTS, ids=NAMES)
async def test_calls_carry_their_source(host, empty):
    """The caller's context names who an agent works for, where several work at once."""
    ask, _ = host(empty)

    async def of(name):
        with context(source=name):
            await ask(LEARNED[0])

    await asyncio.gather(of("ann"), of("eve"))

    assert {past.source for past in empty.requests()} == {"ann", "eve"}


def test_a_tool_of_llama_index_is_given_by_its_name(empty):
    """Asked by the name of a tool, as an agent does when it calls it, the retriever gives that tool."""
    retriever = retriever_of(empty)

    assert [tool.metadata.name for tool in retriever.retrieve("acme_redmail")] == ["acme_redmail"]
    assert len(retriever.retrieve(QueryBundle(request("redmail")))) == 4


def waiting_in_langchain(search):
    """An agent of LangChain whose tools wait for a person."""
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import interrupt

    tools = [
        StructuredTool.from_function(lambda: interrupt("may I?"), name=name, description=text)
        for name, text in CATALOG.items()
    ]
    middleware, thread = [LearnedToolMiddleware(search, k=4)], {"configurable": {"thread_id": "thread"}}
    agent = create_agent(LangChainModel(), tools=tools, middleware=middleware, checkpointer=InMemorySaver())
    return agent.ainvoke({"messages": [HumanMessage(request("redmail"))]}, thread)


def waiting_in_pydantic_ai(search):
    """An agent of Pydantic AI whose tools wait for a person."""
    exceptions = pytest.importorskip("pydantic_ai.exceptions")
    ask, _ = pydantic_ai(search, lambda _: exceptions.ApprovalRequired())

    async def story():
        with pytest.raises(exceptions.UserError):  # the agent expects no calls that wait
            await ask("redmail")

    return story()


def waiting_in_fastmcp(answer):
    """A server of FastMCP that answers each call of a tool with *answer*."""

    async def story(search):
        pytest.importorskip("fastmcp")
        import mcp_types
        from fastmcp import FastMCP
        from fastmcp.exceptions import ToolError
        from fastmcp.server.extensions import ServerExtension
        from mcp.shared.exceptions import UrlElicitationRequiredError
        from tttembed_tools.hosts.fastmcp import learned_search

        class Tasks(ServerExtension):
            """Runs calls as tasks."""

            identifier = "tests/tasks"

            async def intercept_tool_call(self, params, context, call_next):
                """What says that a task has begun."""
                return mcp_types.EmptyResult() if params.name == "zeta_redmail" else await call_next()

        def run():
            if answer == "a link":
                link = mcp_types.ElicitRequestURLParams(message="log in", url="http://localhost/", elicitation_id="1")
                raise UrlElicitationRequiredError([link])
            return mcp_types.InputRequiredResult(request_state="who are you?")

        server = FastMCP("suites")
        for name, text in CATALOG.items():
            server.tool(run, name=name, description=text)
        if answer == "a task":
            server.add_extension(Tasks())
        learned_search(server, search, k=4)
        await server.call_tool("search_tools", {"query": request("redmail")})
        with pytest.raises(ToolError, match="URL elicitation") if answer == "a link" else nullcontext():
            await server.call_tool("zeta_redmail")

    return story


FASTMCP = {f"fastmcp: {answer}": waiting_in_fastmcp(answer) for answer in ("a question", "a task", "a link")}
WAITING = {"langchain": waiting_in_langchain, "pydantic_ai": waiting_in_pydantic_ai, **FASTMCP}


@pytest.mark.parametrize("story", WAITING.values(), ids=WAITING)
async def test_a_call_that_waits_for_a_person_says_nothing(story, empty):
    """What is no answer yet is neither a success nor a failure, and it reaches the agent as it was."""
    await story(empty)

    assert empty.requests() == []


async def test_an_agent_has_its_tools_while_the_model_is_down():
    """It would have none at all, as the search knows none; what is called then teaches nothing."""

    class Down(FakeEmbedder):
        """A model that is down."""

        def embed_documents(self, texts):
            """No vectors."""
            raise OSError(texts)

    with LearnedToolSearch([], Down()) as search:
        ask, seen = langchain(search, threads=True)
        await ask("redmail")

        assert set(seen[0]) == set(CATALOG)
        assert search.requests() == []


def test_a_tool_of_langchain_may_answer_with_a_command():
    """As it does to change the state of the agent: it has worked."""
    from langgraph.types import Command

    def run(runtime: ToolRuntime):
        return Command(update={"messages": [ToolMessage("done", tool_call_id=runtime.tool_call_id)]})

    tools = [StructuredTool.from_function(run, name=name, description=text) for name, text in CATALOG.items()]
    with LearnedToolSearch([], FakeEmbedder()) as search:
        agent = create_agent(LangChainModel(), tools=tools, middleware=[LearnedToolMiddleware(search, k=4)])
        agent.invoke({"messages": [HumanMessage(request("redmail"))]})

        assert [dict(past.outcomes) for past in search.requests()] == [{"acme_redmail": 1.0, "zeta_redmail": 1.0}]
