"""A store of LangGraph and an agent's middleware, whose memories are found by what helped."""

import asyncio
import logging
import threading

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware.types import ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.store.base import GetOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from pydantic import Field
from tttembed_tools import LearnedRecall
from tttembed_tools.hosts import langchain_memory as memory
from tttembed_tools.hosts.langchain_memory import LearnedStore, RecallMiddleware

from tttembed_rag import context
from tttembed_rag.testing import FakeEmbedder

ADA, BOB = ("memories", "ada"), ("memories", "bob")


class Watched(InMemoryStore):
    """A store with a time to live that keeps what it is asked; `then` is called once, after an answer."""

    supports_ttl = True

    def __init__(self):
        super().__init__()
        self.ttl_config = {"refresh_on_read": False}
        self.operations, self.then = [], None

    def batch(self, ops):
        """The results."""
        ops = list(ops)
        self.operations += ops
        results = super().batch(ops)
        if ops and (then := self.then):
            self.then = None
            then()
        return results


@pytest.fixture
def recall():
    """A search without memories."""
    return LearnedRecall({}, FakeEmbedder())


@pytest.fixture
def inner():
    """A store with one memory of Ada's."""
    inner = Watched()
    inner.put(ADA, "door", {"content": "a red door", "kind": "house"})
    return inner


@pytest.fixture
def store(inner, recall):
    """The same, searched by what helped."""
    return LearnedStore(inner, recall)


@pytest.fixture
def fresh(inner, recall):
    """The same, which reads a namespace again at each search."""
    return LearnedStore(inner, recall, every=0.0)


def searched(store, way, *args, **options):
    """The keys of what is found, in threads or in an event loop."""
    if way == "sync":
        return [item.key for item in store.search(*args, **options)]
    return [item.key for item in asyncio.run(store.asearch(*args, **options))]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_store_is_searched_by_namespace(store, way):
    """What was there before, what is put and what is deleted; values, filters and offsets are the store's."""
    before = searched(store, way, ADA, query="which door?")
    store.put(ADA, "boat", {"text": "a green boat", "kind": "sea"})
    store.put(ADA, "keys", {"where": "the keys lie by the door", "kind": "house"})
    store.put(BOB, "door", {"content": "a blue door"})

    assert before == ["door"]
    assert searched(store, way, ADA, query="the keys", limit=1) == ["keys"]
    assert set(searched(store, way, ADA, query="the green boat", filter={"kind": "house"})) == {"keys", "door"}
    assert searched(store, way, ADA, query="the keys by the door", limit=1, offset=1) == ["door"]
    assert searched(store, way, BOB, query="keys") == ["door"]
    assert store.search(ADA, query="red door", limit=1)[0].value == {"content": "a red door", "kind": "house"}
    store.delete(ADA, "keys")
    assert set(searched(store, way, ADA, query="the keys")) == {"door", "boat"}
    assert len(searched(store, way, ("memories",))) == 3
    assert len(searched(store, way, ("memories",), query="across namespaces")) == 3


def test_what_another_process_did_is_seen(inner, fresh):
    """A namespace is read again after some seconds, with what was put and deleted beside this store."""
    first = searched(fresh, "sync", ADA, query="door")
    inner.delete(ADA, "door")
    inner.put(ADA, "boat", {"content": "a boat"})

    assert (first, searched(fresh, "sync", ADA, query="door")) == (["door"], ["boat"])


def test_an_outcome_belongs_to_its_namespace(recall, store):
    """The user of a namespace is the tenant of what helped."""
    store.search(ADA, query="which door?")
    store.used(ADA, "which door?", "door")

    with context(tenant="/".join(ADA)):
        (kept,) = recall.requests()
    assert dict(kept.outcomes) == {"door": 1.0}
    assert recall.requests() == []


def test_namespaces_with_a_slash_are_apart(recall):
    """What separates the parts of a namespace may stand within a part, and so may what stands for it."""
    store = LearnedStore(InMemoryStore(), recall)
    apart = [("memories", "ada/x"), ("memories/ada", "x"), ("memories", "ada%2Fx")]
    for place, namespace in enumerate(apart):
        store.put(namespace, f"m{place}", {"content": "a red door"})

    assert [searched(store, "sync", namespace, query="door") for namespace in apart] == [["m0"], ["m1"], ["m2"]]
    assert recall.index_of("memories/ada%2Fx").rows.keys() == {"m0"}


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_store_answers_itself_while_the_model_is_down(recall, store, way, caplog):
    """A search gives what the store has, a put does not raise, and both are made good by the next search."""
    embedder = recall._embedder
    embedder.error = RuntimeError("the model is down")
    down = searched(store, way, ADA, query="door")
    embedder.error = None
    up = searched(store, way, ADA, query="which door?")
    embedder.error = RuntimeError("the model is down")
    store.put(ADA, "boat", {"content": "a green boat"})
    put = searched(store, way, ADA, query="green boat")
    embedder.error = None

    assert (down, up, set(put)) == (["door"], ["door"], {"door", "boat"})
    assert searched(store, way, ADA, query="green boat", limit=1) == ["boat"]
    assert {"the store answers itself" in record.getMessage() for record in caplog.records} == {True}


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_an_item_that_is_not_taken_costs_itself_alone(way, place, caplog):
    """One that the model refuses: the others are found by what was learned."""

    class Choosy(FakeEmbedder):
        def embed_documents(self, texts):
            if any("refused" in text for text in texts):
                raise RuntimeError("a content filter")
            return super().embed_documents(texts)

    inner, recall = InMemoryStore(), LearnedRecall({}, Choosy())
    texts = ["a red door", "a green boat", "the grey keys", "a blue hat"]
    texts.insert(place, "refused, and longer than any other")
    for number, text in enumerate(texts):
        inner.put(ADA, f"m{number}", {"content": text})
    store = LearnedStore(inner, recall)
    keys = [f"m{number}" for number in range(5) if number != place]

    first = searched(store, way, ADA, query="green boat", limit=9)
    store.put(ADA, "later", {"content": "this is refused, too"})
    again = searched(store, way, ADA, query="green boat", limit=9)

    assert sorted(first) == sorted(again) == keys
    assert first[0] == again[0] == f"m{texts.index('a green boat')}"
    assert [f"{name!r} " in caplog.text for name in (f"m{place}", "later")] == [True] * 2


def test_two_first_searches_at_once(recall, store):
    """A namespace is known when the recall knows its items, not when it is listed."""
    second, embed = [], recall._embedder.embed_documents

    def embedded(texts):
        if not second:
            thread = threading.Thread(target=lambda: second.append(searched(store, "sync", ADA, query="door")))
            thread.start()
            thread.join(0.1)
            second.append(thread)
        return embed(texts)

    recall._embedder.embed_documents = embedded
    first = searched(store, "sync", ADA, query="door")
    next(entry for entry in second if isinstance(entry, threading.Thread)).join(10)

    assert first == ["door"]
    assert [entry for entry in second if isinstance(entry, list)] == [["door"]]


@pytest.mark.parametrize("value", [{"content": " "}, {"text": ""}, {"content": "", "text": "\n"}])
def test_a_blank_memory_is_searched_as_json(recall, inner, store, value):
    """The others of its namespace are found, and so is it, read or put."""
    inner.put(ADA, "blank", value)

    assert set(searched(store, "sync", ADA, query="door")) == {"door", "blank"}
    store.put(ADA, "second", value)
    assert set(recall.index_of("memories/ada").rows) == {"door", "blank", "second"}
    assert memory.text_of({"content": " ", "text": "a boat"}) == "a boat"


def test_a_time_to_live_is_the_stores(recall, inner, store):
    """What the store supports is supported; only what is found is renewed, where the caller wants that."""
    store.search(ADA, query="door", filter={"kind": "house"}, refresh_ttl=False)
    store.search(ADA, query="door", refresh_ttl=True)
    store.put(ADA, "boat", {"content": "a boat"}, ttl=5)

    assert {op.refresh_ttl for op in inner.operations if isinstance(op, SearchOp)} == {False}
    assert [op.refresh_ttl for op in inner.operations if isinstance(op, GetOp)] == [False, True]
    assert (store.supports_ttl, store.ttl_config) == (True, {"refresh_on_read": False})
    assert not LearnedStore(InMemoryStore(), recall).supports_ttl


@pytest.mark.parametrize("known", [True, False])
def test_what_is_written_while_a_namespace_is_listed_stays(recall, inner, fresh, known):
    """A listing from before a put does not take it back, nor bring back what was deleted."""
    if known:
        fresh.search(ADA, query="door")

    def write():
        fresh.put(ADA, "boat", {"content": "a green boat"})
        fresh.delete(ADA, "door")

    inner.then = write
    fresh.search(ADA, query="door")
    assert set(recall.index_of("memories/ada").rows) == {"boat"}
    assert searched(fresh, "sync", ADA, query="door") == ["boat"]


def test_of_two_writes_at_once_the_last_is_known(recall, inner, store):
    """What came last, the store says: the namespace is read again."""
    store.search(ADA, query="door")
    inner.then = lambda: store.put(ADA, "door", {"content": "a green door"})
    store.put(ADA, "door", {"content": "a red door"})  # the first of the two in the store, the last to be known
    store.search(ADA, query="door")

    with context(tenant="memories/ada"):
        assert recall.texts(["door"]) == {"door": "a green door"}


def test_a_listing_that_ends_at_its_limit_forgets_nothing(fresh, monkeypatch):
    """An item beyond it is there still."""
    for key in ("boat", "keys"):
        fresh.put(ADA, key, {"content": f"the {key}"})
    monkeypatch.setattr(memory, "_MOST", 2)

    assert set(searched(fresh, "sync", ADA, query="the keys")) == {"door", "boat", "keys"}


def test_what_is_put_or_deleted_before_a_search_is_known(recall, store):
    """Middleware on the same recall is told of it."""
    store.put(ADA, "door", {"content": "a red door"})
    with context(tenant="memories/ada"):
        put = recall("door")
        recall.add({"boat": "a boat"})
        store.delete(ADA, "boat")

        assert (put, recall("boat")) == (["door"], ["door"])


def test_a_deletion_that_fails_is_told(recall, store, monkeypatch):
    """The caller must know that a text stands somewhere still."""
    store.search(ADA, query="door")
    monkeypatch.setattr(recall, "forget", lambda _: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        store.delete(ADA, "door")
    monkeypatch.undo()
    assert searched(store, "sync", ADA, query="door") == []


def test_a_known_namespace_is_not_listed_for_a_write(recall, inner, store):
    """However many are put, one after the other."""
    store.put(ADA, "door", {"content": "a red door"})
    inner.operations.clear()
    for key in ("boat", "keys", "house"):
        store.put(ADA, key, {"content": f"the {key}"})

    assert set(recall.index_of("memories/ada").rows) == {"door", "boat", "keys", "house"}
    assert [op for op in inner.operations if isinstance(op, SearchOp)] == []


def test_a_namespace_without_items_of_its_own_is_listed_once(inner, store):
    """Searches of what lies below it are the store's, at no cost of ours."""
    lists = [searched(store, "sync", ("memories",), query="door") for _ in range(3)]

    assert lists == [["door"]] * 3
    assert sum(op.query is None for op in inner.operations if isinstance(op, SearchOp)) == 1
    store.put(("memories",), "all", {"content": "a door of all"})
    assert searched(store, "sync", ("memories",), query="door") == ["all"]


def test_no_items_are_found_where_none_are_wanted(store):
    """As in LangGraph."""
    assert store.search(ADA, query="door", limit=0) == []


class Citing(BaseChatModel):
    """A model that says what it was told to say, and remembers what it was told."""

    says: str
    prompts: list = Field(default_factory=list)

    @property
    def _llm_type(self):
        return "citing"

    def bind_tools(self, tools, **_):
        """The same model."""
        return self

    def _generate(self, messages, *_, **__):
        self.prompts.append("".join(message.text for message in messages if isinstance(message, SystemMessage)))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.says))])


def answer_of(agent, way, question):
    """The answer of an agent."""
    state = {"messages": [HumanMessage(question)]}
    return agent.invoke(state) if way == "sync" else asyncio.run(agent.ainvoke(state))


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
        answer_of(agent, way, "what about the red door?")
        (kept,) = recall.requests()

    assert "Be brief." in model.prompts[0]
    assert "[memory 1] the red door sticks\n[memory 2] " in model.prompts[0]
    assert (kept.query, dict(kept.outcomes)) == ("what about the red door?", {"door": 1.0})


def test_a_user_without_memories_is_told_nothing(recall):
    """The model's request is as it was, and nothing is kept."""
    model = Citing(says="I do not know [memory 1].")
    agent = create_agent(model, tools=[], system_prompt="Be brief.", middleware=[RecallMiddleware(recall)])
    with context(tenant="ada"):
        answer_of(agent, "sync", "what about the red door?")
        kept = recall.requests()

    assert model.prompts == ["Be brief."]
    assert kept == []


def prompt_of(middleware, message, answer="yes", during=lambda: None):
    """What the model was told in a call of the middleware."""
    prompts = []

    def handler(request):
        prompts.append(request.system_message.text if request.system_message else "")
        during()
        return ModelResponse(result=[AIMessage(answer)])

    request = ModelRequest(model=Citing(says=""), messages=[message])
    assert middleware.wrap_model_call(request, handler).result[0].text == answer
    return prompts[0]


def test_what_is_told_is_each_users_own(recall):
    """A message of the same id or text is another's."""
    middleware = RecallMiddleware(recall)
    for user in ("ada", "bob"):
        with context(tenant=user):
            recall.add({"door": f"the door of {user}"})

    for message in (HumanMessage("which door?", id="1"), HumanMessage("which door?")):
        for user in ("ada", "bob"):
            with context(tenant=user):
                assert prompt_of(middleware, message).endswith(f"[memory 1] the door of {user}")


@pytest.mark.parametrize("number", ["1" * 5000, "7", "0"])
def test_a_number_of_no_memory_is_none(recall, number):
    """An answer may cite what it wants."""
    with context(tenant="ada"):
        recall.add({"door": "the red door sticks"})
        prompt_of(RecallMiddleware(recall), HumanMessage("red door"), f"[memory {number}]")

    assert recall.requests() == []


def test_an_outcome_that_cannot_be_kept_is_logged(recall, caplog):
    """The answer reaches the user, as where its memory was forgotten meanwhile."""
    with context(tenant="ada"):
        recall.add({"door": "the red door sticks"})
        gone = RecallMiddleware(recall)
        prompt_of(gone, HumanMessage("red door"), "[memory 1]", lambda: recall.remove(["door"]))

    assert [(record.name, record.levelno) for record in caplog.records] == [
        ("tttembed_tools.hosts.langchain_memory", logging.ERROR)
    ]


def test_many_items_are_taken_in_and_forgotten_at_once():
    """One by one, each would be a request of the embedding model, and a copy of all that is known."""
    asked = []

    class Model(FakeEmbedder):
        """One that counts its requests."""

        def embed_documents(self, texts):
            """Vectors."""
            asked.append(len(texts))
            return super().embed_documents(texts)

    store = LearnedStore(InMemoryStore(), LearnedRecall([], Model()))
    store.put(("ann",), "first", {"text": "tea at noon"})
    store.search(("ann",), query="tea")
    store.batch([PutOp(("ann",), f"note {number}", {"text": f"tea at {number}"}) for number in range(9)])
    store.batch([PutOp(("ann",), f"note {number}", None) for number in range(9)])

    assert asked == [1, 9]
    assert [item.key for item in store.search(("ann",), query="tea")] == ["first"]
