"""Hosts that lose the caller's context, or embed documents as queries: what happens there, and the safe way round."""

import logging

import pytest
from langchain_community.vectorstores.rocksetdb import Rockset
from langchain_tttembed import TTTEmbeddings
from langgraph.store.memory import InMemoryStore

from tests.adapters.langchain_driver import Model
from tests.adapters.worlds import CARRYING, POINTING, TASKS, WIDTH
from tttembed_rag import context


class Offline(Rockset):
    """Rockset's own code, without its client."""

    def __init__(self, embeddings):
        self._embeddings = embeddings
        self._text_key, self._embedding_key = "text", "vector"
        self.written = []

    def _write_documents_to_rockset(self, batch):
        self.written += batch
        return [{"_id": str(place)} for place in range(len(batch))]


@pytest.fixture
def wrapped():
    return TTTEmbeddings(Model(POINTING), offsets=CARRYING)


def graph_store(embeddings):
    """LangGraph's store with one item per task."""
    store = InMemoryStore(index={"dims": WIDTH, "embed": embeddings, "fields": ["text"]})
    for task in TASKS:
        store.put(("all",), task, {"text": task})
    return store


async def test_langgraph_loses_the_context_and_serves_the_base_vector(wrapped):
    """Its sync search runs in a thread without the caller's context: the base vector, never another's offset."""
    store = graph_store(wrapped)
    with context(task="task7"):
        (item,) = store.search(("all",), query="q", limit=1)

    assert item.key == "task0"


async def test_langgraph_keeps_a_fixed_task(wrapped):
    """A store of its own for each task finds what it should, sync and async; items are stored as they are."""
    store = graph_store(wrapped.for_task("task7"))

    lists = [store.search(("all",), query="q", limit=1), await store.asearch(("all",), query="q", limit=1)]

    assert [[item.key for item in items] for items in lists] == [["task7"]] * 2
    assert [store.get(("all",), task).value["text"] for task in TASKS] == TASKS


def test_a_host_that_embeds_documents_as_queries_is_named_once(wrapped, caplog):
    """Rockset's own code, adding texts, is told from its module; the warning says what to give it."""
    store = Offline(wrapped)
    store.add_texts(TASKS[:3])

    [record] = [record for record in caplog.records if record.name == "langchain_tttembed.hosts"]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("Rockset embeds documents as queries")
    assert len(store.written) == 3


def named(caplog):
    """The hosts that the log names."""
    return [
        record.getMessage().partition(" ")[0] for record in caplog.records if record.name == "langchain_tttembed.hosts"
    ]


async def test_packages_are_known_by_their_name(wrapped, caplog):
    """A module of mem0 is told too, sync and async; anybody else is not."""
    names = {"__name__": "mem0.embeddings.langchain"}
    code = "def ask(model): return model.embed_query('q')\nasync def aask(model): return await model.aembed_query('q')"
    exec(code, names)  # noqa: S102 - code that stands in a module of mem0
    wrapped.embed_query("q")
    quiet = named(caplog)
    names["ask"](wrapped)
    await names["aask"](wrapped)

    assert quiet == []
    assert named(caplog) == ["mem0"]
