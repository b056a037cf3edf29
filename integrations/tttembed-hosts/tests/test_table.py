"""The table of docs/how-to/hosts.md: every line of use runs as it is printed."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
from click.testing import CliRunner
from tttembed_store import follow

from tests.adapters.worlds import WIDTH, everywhere
from tests.traffic import published
from tttembed_rag.cli import main
from tttembed_rag.testing import FakeEmbedder, FakeLog

REPO = Path(__file__).resolve().parents[3]
TABLE = (REPO / "docs" / "how-to" / "hosts.md").read_text(encoding="utf-8").partition("\n## ")[0]


def lines_of_use():
    """By host, the first code of its row."""
    rows = [line.strip("|").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")]
    return {re.sub(r"\[(.*)\]\(.*\)", r"\1", host.strip()): use.split("`")[1] for host, use, *_ in rows[1:]}


USES = lines_of_use()
COMMANDS = [host for host, use in USES.items() if use.startswith("tttembed ")]
# What runs in PostgreSQL, and memories, which are tested with them.
ELSEWHERE = ["PostgreSQL", "LangGraph, deepagents"]


@pytest.fixture
def url(sqlite_url):
    """The URL of a store with a live version."""
    return published(sqlite_url, everywhere())


def langchain_model():
    pytest.importorskip("langchain_core", reason="LangChain is not installed")
    from langchain_core.embeddings import DeterministicFakeEmbedding
    from langchain_tttembed import TTTEmbeddings

    return {"TTTEmbeddings": TTTEmbeddings, "model": DeterministicFakeEmbedding(size=WIDTH)}


def llama_index_model():
    """One of LlamaIndex."""
    pytest.importorskip("llama_index.core", reason="LlamaIndex is not installed")
    from llama_index.core import MockEmbedding
    from llama_index.embeddings.tttembed import TTTEmbedding

    return {"TTTEmbedding": TTTEmbedding, "model": MockEmbedding(embed_dim=WIDTH)}


def haystack_model():
    embedders = pytest.importorskip("haystack.components.embedders", reason="Haystack is not installed")
    from haystack_integrations.components.embedders.tttembed import TTTTextEmbedder

    return {"TTTTextEmbedder": TTTTextEmbedder, "embedder": embedders.MockTextEmbedder(dimension=WIDTH)}


def pydantic_model():
    embeddings = pytest.importorskip("pydantic_ai.embeddings", reason="Pydantic AI is not installed")
    from tttembed_hosts.pydantic_ai import TTTEmbeddingModel

    return {"TTTEmbeddingModel": TTTEmbeddingModel, "model": embeddings.TestEmbeddingModel(dimensions=WIDTH)}


def chroma_function():
    pytest.importorskip("chromadb", reason="Chroma is not installed")
    from tttembed_hosts.chroma import ChromaEmbeddingFunction

    from tests.adapters.chroma_driver import Words

    return {"ChromaEmbeddingFunction": ChromaEmbeddingFunction, "function": Words(WIDTH)}


def lancedb_registry():
    embeddings = pytest.importorskip("lancedb.embeddings", reason="LanceDB is not installed")
    import tests.adapters.lancedb_driver  # noqa: F401 - importing it registers the function

    return {"get_registry": embeddings.get_registry}


def dspy_retriever():
    dspy = pytest.importorskip("dspy", reason="DSPy is not installed")
    from tttembed_hosts.dspy import steer

    embedder = dspy.Embedder(FakeEmbedder(width=WIDTH).embed_queries, caching=False)
    return {"steer": steer, "retriever": dspy.retrievers.Embeddings(corpus=["wool"], embedder=embedder, k=1)}


def sentence_transformer():
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from torch.nn import Sequential
    from tttembed_hosts.sentence_transformers import TTTOffsets

    return {"model": Sequential(), "TTTOffsets": TTTOffsets, "offsets": everywhere()}


def memory_of_mem0():
    from tttembed_hosts.mem0 import steer

    model = SimpleNamespace(embed=lambda text, _=None: FakeEmbedder(width=WIDTH).embed_query(text))
    return {"steer": steer, "memory": SimpleNamespace(embedding_model=model)}


def of_module(model):
    """The vector that the module of a model makes of ones."""
    from torch import ones

    return model[0].forward({"sentence_embedding": ones(1, WIDTH)}, task="query")["sentence_embedding"][0]


# By host: what the line of use needs, and the vector that what it makes gives a query.
LINES = {
    "LangChain": (langchain_model, lambda made: made.embed_query("wool")),
    "LlamaIndex": (llama_index_model, lambda made: made.get_query_embedding("wool")),
    "Haystack": (haystack_model, lambda made: made.run("wool")["embedding"]),
    "Pydantic AI": (pydantic_model, lambda made: asyncio.run(made.embed("wool", input_type="query")).embeddings[0]),
    "LanceDB": (lancedb_registry, lambda made: made.compute_query_embeddings("wool")[0]),
    "Chroma": (chroma_function, lambda made: made.embed_query(["wool"])[0]),
    "sentence-transformers": (sentence_transformer, of_module),
    "DSPy": (dspy_retriever, lambda made: made.embedder(["wool"])[0]),
    "mem0": (memory_of_mem0, lambda made: made.embedding_model.embed("wool", "search")),
}


def test_every_row_of_the_table_is_tested():
    assert sorted(USES) == sorted([*LINES, *COMMANDS, *ELSEWHERE, "anything with spans"])


@pytest.mark.parametrize("host", list(LINES))
def test_a_line_of_use_steers(host, url, monkeypatch):
    """The line as it is printed makes what steers: turned off, the same text has another vector."""
    use = USES[host].replace("inner=...", f"inner='words', options={{'width': {WIDTH}}}")  # the dots of LanceDB
    prepare, vector_of = LINES[host]

    def vector():
        return vector_of(eval(use, prepare() | {"follow": follow, "url": url}))  # noqa: S307 - our own document

    steered = vector()
    monkeypatch.setenv("TTTEMBED_OFF", "1")
    base = vector()

    assert np.shape(steered) == np.shape(base) == (WIDTH,)
    assert not np.allclose(steered, base)


def test_the_line_of_spans_runs():
    """A provider takes the processor."""
    trace = pytest.importorskip("opentelemetry.sdk.trace", reason="the OpenTelemetry SDK is not installed")
    from tttembed_store.spans.processor import TTTSpanProcessor

    log, provider = FakeLog(), trace.TracerProvider()

    eval(USES["anything with spans"], {"provider": provider, "TTTSpanProcessor": TTTSpanProcessor, "log": log})  # noqa: S307
    attributes = {"openinference.span.kind": "RETRIEVER", "input.value": "wool"}
    attributes["retrieval.documents.0.document.content"] = "cold"
    provider.get_tracer("test").start_span("retrieve", attributes=attributes).end()
    provider.force_flush()

    assert [call.query for call in log.calls] == ["wool"]


@pytest.mark.parametrize("host", COMMANDS, ids=lambda host: host.replace(" ", "-"))
def test_the_commands_of_the_table_exist(host):
    """Each is a command with these options."""
    _, name, *rest = USES[host].split()
    command = main.get_command(click.Context(main), name)
    below = [word for word in rest if isinstance(command, click.Group) and word in command.list_commands(None)]
    options = [word for word in rest if word.startswith("--")]

    output = CliRunner().invoke(main, [name, *below, "--help"]).output

    assert options
    assert all(option in output for option in options)
