"""What LangChain alone asks of TTTEmbeddings; the laws of all wrappers stand in tests/adapters."""

import pytest
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tttembed import TTTEmbeddings

from tests.adapters.langchain_driver import Model
from tests.adapters.worlds import TEXTS, WIDTH, Vectors, drawn, of_task
from tttembed_rag import Offsets, context

OFFSETS = Offsets([of_task("task3", drawn("task 3"))], width=WIDTH)


class Prompted(Model):
    """A provider whose methods take a keyword of their own."""

    def embed_documents(self, texts, *, task_type="document"):
        return super().embed_documents([f"{task_type} {text}" for text in texts])

    def embed_query(self, text, *, task_type="query"):
        return super().embed_query(f"{task_type} {text}")

    async def aembed_documents(self, texts, *, task_type="document"):
        return self.embed_documents(texts, task_type=task_type)

    async def aembed_query(self, text, *, task_type="query"):
        return self.embed_query(text, task_type=task_type)


@pytest.fixture
def model():
    return Model(Vectors())


def test_text_may_be_passed_by_keyword(model):
    """langchain-postgres and semantic caches call embed_query(text=...)."""
    wrapped = TTTEmbeddings(model, offsets=OFFSETS, task="task3")

    assert wrapped.embed_query(text="q") == wrapped.embed_query("q")
    assert wrapped.embed_documents(texts=TEXTS) == wrapped.embed_documents(TEXTS)


async def test_provider_keywords_are_forwarded():
    provider = Prompted(Vectors())
    wrapped = TTTEmbeddings(provider, offsets=OFFSETS)
    query = provider.embed_query("q", task_type="fact")
    documents = provider.embed_documents(TEXTS, task_type="fact")

    assert wrapped.embed_query("q", task_type="fact") == query
    assert await wrapped.aembed_query("q", task_type="fact") == query
    assert wrapped.embed_query_base("q", task_type="fact") == query
    assert await wrapped.aembed_query_base("q", task_type="fact") == query
    assert wrapped.embed_documents(TEXTS, task_type="fact") == documents
    assert await wrapped.aembed_documents(TEXTS, task_type="fact") == documents


def test_attributes_of_the_wrapped_object_are_not_exposed(model):
    """A store that looks for a provider's shortcut must not find a way around the offset."""
    model.embed_query_inline_template = "embedding(...)"

    assert not hasattr(TTTEmbeddings(model, offsets=OFFSETS), "embed_query_inline_template")


async def test_no_vector_is_served_as_none():
    wrapped = TTTEmbeddings(type("Empty", (Model,), {"embed_query": lambda *_: None})(Vectors()), offsets=OFFSETS)

    assert wrapped.embed_query("q") is await wrapped.aembed_query("q") is None


def test_the_callers_context_reaches_a_store_in_every_way_to_run_it(model):
    """Retrievers, sequences, parallel steps and batches carry the context into embed_query."""
    store = InMemoryVectorStore.from_texts(TEXTS, TTTEmbeddings(model, offsets=OFFSETS))
    fixed = InMemoryVectorStore.from_texts(TEXTS, TTTEmbeddings(model, offsets=OFFSETS, task="task3"))
    retriever = store.as_retriever()
    ways = [
        retriever.invoke,
        (RunnableLambda(str) | retriever).invoke,
        lambda query: RunnableParallel(a=retriever, b=retriever).invoke(query)["b"],
        lambda query: retriever.batch([query, query])[1],
    ]
    with context(task="task3"):
        lists = [[document.page_content for document in way("q")] for way in ways]

    expected = [document.page_content for document in fixed.as_retriever().invoke("q")]
    assert lists == [expected] * len(ways)
    assert expected != [document.page_content for document in retriever.invoke("q")]
