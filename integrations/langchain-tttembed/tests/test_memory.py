"""A store of LangGraph and an agent's middleware, whose memories are found by what helped."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_tttembed.memory import LearnedStore, RecallMiddleware
from langgraph.store.memory import InMemoryStore
from pydantic import Field

from tttembed_rag import context
from tttembed_rag.search import LearnedRecall
from tttembed_rag.testing import FakeEmbedder

ADA, BOB = ("memories", "ada"), ("memories", "bob")


@pytest.fixture
def recall():
    """A search without memories."""
    return LearnedRecall({}, FakeEmbedder())


def searched(store, way, *args, **options):
    """The keys of what is found, in threads or in an event loop."""
    if way == "sync":
        return [item.key for item in store.search(*args, **options)]
    return [item.key for item in asyncio.run(store.asearch(*args, **options))]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_store_is_searched_by_namespace(recall, way):
    """What was there before, what is put and what is deleted; values, filters and offsets are the store's."""
    inner = InMemoryStore()
    inner.put(ADA, "door", {"content": "the red door sticks", "kind": "house"})
    store = LearnedStore(inner, recall)
    before = searched(store, way, ADA, query="which door?")
    store.put(ADA, "boat", {"text": "a green boat", "kind": "sea"})
    store.put(ADA, "keys", {"where": "the keys lie by the door", "kind": "house"})
    store.put(BOB, "door", {"content": "a blue door"})

    assert before == ["door"]
    assert searched(store, way, ADA, query="the keys", limit=1) == ["keys"]
    assert set(searched(store, way, ADA, query="the green boat", filter={"kind": "house"})) == {"keys", "door"}
    assert searched(store, way, ADA, query="the keys by the door", limit=1, offset=1) == ["door"]
    assert searched(store, way, BOB, query="keys") == ["door"]
    assert store.search(ADA, query="red door", limit=1)[0].value == {"content": "the red door sticks", "kind": "house"}
    store.delete(ADA, "keys")
    assert set(searched(store, way, ADA, query="the keys")) == {"door", "boat"}
    assert len(searched(store, way, ("memories",))) == 3
    assert len(searched(store, way, ("memories",), query="across namespaces")) == 3


def test_what_another_process_did_is_seen(recall):
    """A namespace is read again after some seconds, with what was put and deleted beside this store."""
    inner = InMemoryStore()
    store = LearnedStore(inner, recall, every=0.0)
    inner.put(ADA, "door", {"content": "a red door"})
    first = searched(store, "sync", ADA, query="door")
    inner.delete(ADA, "door")
    inner.put(ADA, "boat", {"content": "a boat"})

    assert (first, searched(store, "sync", ADA, query="door")) == (["door"], ["boat"])


def test_an_outcome_belongs_to_its_namespace(recall):
    """The user of a namespace is the tenant of what helped."""
    store = LearnedStore(InMemoryStore(), recall)
    store.put(ADA, "door", {"content": "a red door"})
    store.search(ADA, query="which door?")
    store.used(ADA, "which door?", "door")

    (kept,) = recall._memory.requests("memories/ada", 64)
    assert dict(kept.outcomes) == {"door": 1.0}
    assert recall._memory.requests("memories/bob", 64) == []


class Citing(BaseChatModel):
    """A model that says what it was told to say, and remembers what it was told."""

    says: str
    told: list = Field(default_factory=list)

    @property
    def _llm_type(self):
        return "citing"

    def bind_tools(self, tools, **_):
        """The same model."""
        return self

    def _generate(self, messages, *_, **__):
        self.told.append("".join(message.text for message in messages if isinstance(message, SystemMessage)))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.says))])


def asked(agent, way, question):
    """The answer of an agent."""
    given = {"messages": [HumanMessage(question)]}
    return agent.invoke(given) if way == "sync" else asyncio.run(agent.ainvoke(given))


def agents():
    """Makers of agents: LangChain's own, and deepagents' where it is installed."""
    yield pytest.param(create_agent, id="langchain")
    try:
        from deepagents import create_deep_agent
    except ImportError:
        yield pytest.param(None, id="deepagents", marks=pytest.mark.skip(reason="deepagents is not installed"))
    else:
        yield pytest.param(create_deep_agent, id="deepagents")


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("make", [*agents()])
def test_cited_memories_helped(recall, make, way):
    """The model is told the memories by number; of those the answer cites, and of no others, an outcome is kept."""
    model = Citing(says="It sticks [memory 1], see [memory 1] and [memory 9].")
    agent = make(model, tools=[], system_prompt="Be brief.", middleware=[RecallMiddleware(recall, k=2)])
    with context(tenant="ada"):
        recall.add({"door": "the red door sticks", "boat": "a green boat", "keys": "the keys lie by the sea"})
        asked(agent, way, "what about the red door?")
        (kept,) = recall._memory.requests("ada", 64)

    assert "Be brief." in model.told[0]
    assert "[memory 1] the red door sticks\n[memory 2] " in model.told[0]
    assert (kept.query, dict(kept.outcomes)) == ("what about the red door?", {"door": 1.0})


def test_a_user_without_memories_is_told_nothing(recall):
    """The model's request is as it was, and nothing is kept."""
    model = Citing(says="I do not know [memory 1].")
    agent = create_agent(model, tools=[], system_prompt="Be brief.", middleware=[RecallMiddleware(recall)])
    with context(tenant="ada"):
        asked(agent, "sync", "what about the red door?")

    assert model.told == ["Be brief."]
    assert recall._memory.tenants() == []
