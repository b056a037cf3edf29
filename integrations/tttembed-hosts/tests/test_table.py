"""The table of docs/how-to/hosts.md: every line of use runs, and every cell names the test that proves it."""

import asyncio
import re
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from tttembed_store import follow

from tests.adapters.worlds import WIDTH, everywhere, published
from tttembed_rag.cli import main
from tttembed_rag.testing import FakeEmbedder, FakeLog

REPO = Path(__file__).resolve().parents[3]
TABLE = (REPO / "docs" / "how-to" / "hosts.md").read_text(encoding="utf-8").partition("\n## ")[0]

LANGCHAIN, LLAMA = "integrations/langchain-tttembed/tests", "integrations/llama-index-embeddings-tttembed/tests"
SEARCHING, TOOLS = "tests/adapters/test_searching.py", "integrations/tttembed-tools/tests"
HAYSTACK, HOSTS, PROXY = (
    "integrations/tttembed-haystack/tests/test_components.py",
    "integrations/tttembed-hosts/tests",
    "integrations/tttembed-store/tests/proxy",
)
FRAMEWORKS, PHOENIX, TAPS = (f"{HOSTS}/test_{name}.py" for name in ("frameworks", "phoenix", "instrumentations"))
ANSWERS, FRONT = f"{HOSTS}/test_answers.py", f"{TOOLS}/test_mcp_front.py"
BY_HAND, SPANS, SPAN_FILES = (
    "tests/test_capture.py",
    "integrations/tttembed-store/tests/spans/test_processor.py",
    "integrations/tttembed-store/tests/spans/test_files.py",
)

# By host, what proves the cells: captured, steered, cannot be. Each is a file and a test in it, or a class of tests.
PROOF = {
    "LangChain": (
        (f"{LANGCHAIN}/test_capture.py", "TestRewardCallbackHandler"),
        (SEARCHING, "test_an_offset_moves_the_search_and_nothing_in_the_store"),
        (f"{LANGCHAIN}/test_retrievers.py", "test_a_store_without_vector_search_is_refused"),
    ),
    "LlamaIndex": (
        (f"{LLAMA}/test_rewards.py", "TestRewardEventHandler"),
        (SEARCHING, "test_an_offset_moves_the_search_and_nothing_in_the_store"),
        (f"{LLAMA}/test_embedding.py", "test_a_retriever_that_embeds_its_query_as_a_text_is_not_steered"),
    ),
    "Haystack": (
        (HAYSTACK, "test_scores_of_a_ranker_become_rewards"),
        (HAYSTACK, "test_a_query_is_steered"),
        (HAYSTACK, "test_retrievers_that_embed_nothing_are_as_before"),
    ),
    "Pydantic AI": (
        (BY_HAND, "test_captured_rewards_can_be_fitted"),
        (FRAMEWORKS, "test_queries_are_steered_and_documents_are_not"),
        (FRAMEWORKS, "test_documents_embedded_as_queries_are_steered"),
    ),
    "LanceDB": (
        (BY_HAND, "test_captured_rewards_can_be_fitted"),
        (FRAMEWORKS, "test_rows_keep_base_vectors_and_searches_are_steered"),
        (FRAMEWORKS, "test_a_search_by_vector_is_as_before"),
    ),
    "Chroma": (
        (BY_HAND, "test_captured_rewards_can_be_fitted"),
        (FRAMEWORKS, "test_documents_keep_base_vectors_and_queries_are_steered"),
        (FRAMEWORKS, "test_a_query_by_vector_is_as_before"),
    ),
    "sentence-transformers": (
        (BY_HAND, "test_captured_rewards_can_be_fitted"),
        (FRAMEWORKS, "test_queries_are_steered_and_all_else_is_not"),
        (FRAMEWORKS, "test_queries_are_steered_and_all_else_is_not"),
    ),
    "DSPy": (
        (f"{HOSTS}/test_dspy.py", "test_what_retrieve_finds_is_captured_by_its_spans"),
        (f"{HOSTS}/test_dspy.py", "test_searches_are_steered_and_the_corpus_is_not"),
        (f"{HOSTS}/test_dspy.py", "test_a_function_names_the_task_of_each_query"),
    ),
    "any client of HTTP": (
        (f"{PROXY}/test_faults.py", "test_other_requests_pass_as_they_came"),
        (f"{PROXY}/test_roles.py", "test_a_query_is_steered"),
        (f"{PROXY}/test_roles.py", "test_cohere_says_its_role_itself"),
    ),
    "Elasticsearch, OpenSearch": (
        (f"{PROXY}/test_faults.py", "test_other_requests_pass_as_they_came"),
        (f"{PROXY}/test_search_engines.py", "test_an_engine_gets_steered_vectors_of_queries"),
        (f"{PROXY}/test_roles.py", "test_all_else_is_the_answer_of_the_service"),
    ),
    "PostgreSQL": (
        (BY_HAND, "test_captured_rewards_can_be_fitted"),
        (f"{PROXY}/test_search_engines.py", "test_postgresql_steers_as_offsets_do"),
        (f"{PROXY}/test_search_engines.py", "test_postgresql_steers_as_offsets_do"),
    ),
    "anything with spans": (
        (TAPS, "test_both_taps_tell_the_same"),
        (SPANS, "test_a_steered_vector_is_marked_and_left_out"),
        (SPANS, "test_a_text_that_is_not_whole_is_never_judged"),
    ),
    "Phoenix": (
        (PHOENIX, "test_spans_are_imported_judged_and_annotated"),
        (PHOENIX, "test_spans_are_imported_judged_and_annotated"),
        (SPAN_FILES, "test_import_puts_spans_into_a_store"),
    ),
    "Langfuse": (
        (ANSWERS, "test_thumbs_of_langfuse_are_weak_votes"),
        (ANSWERS, "test_thumbs_of_langfuse_are_weak_votes"),
        (SPAN_FILES, "test_import_puts_spans_into_a_store"),
    ),
    "LangSmith": (
        (ANSWERS, "test_feedback_of_langsmith_is_a_weak_vote"),
        (ANSWERS, "test_feedback_of_langsmith_is_a_weak_vote"),
        (SPAN_FILES, "test_import_puts_spans_into_a_store"),
    ),
    "OpenTelemetry collector": (
        (SPAN_FILES, "test_what_a_collector_writes_is_read"),
        (SPAN_FILES, "test_import_puts_spans_into_a_store"),
        (SPAN_FILES, "test_import_puts_spans_into_a_store"),
    ),
    "Quepid, OpenSearch, TREC": (
        (f"{HOSTS}/test_judgments.py", "test_what_is_written_is_read_again"),
        (f"{HOSTS}/test_judgments.py", "test_a_store_is_written_by_the_command"),
        (f"{HOSTS}/test_judgments.py", "test_ratings_are_read_as_teams_have_them"),
    ),
    "LangGraph, deepagents": (
        (f"{TOOLS}/test_langchain_memory.py", "test_cited_memories_helped"),
        (f"{TOOLS}/test_langchain_memory.py", "test_a_store_is_searched_by_namespace"),
        (f"{TOOLS}/test_langchain_memory.py", "test_a_store_is_searched_by_namespace"),
    ),
    "mem0": (
        (SPANS, "test_memories_that_were_recalled_are_retrieved_documents"),
        (f"{HOSTS}/test_mem0.py", "test_a_memory_of_mem0_is_steered"),
        (f"{HOSTS}/test_mem0.py", "test_searches_alone_are_steered"),
    ),
    "any MCP client": (
        (FRONT, "test_what_was_called_is_kept_with_its_source_when_it_is_told_to_end"),
        (FRONT, "test_a_client_gains_without_code"),
        (f"{TOOLS}/test_tools.py", "test_calls_before_any_search_say_nothing"),
    ),
}


def rows():
    """(host, line of use, captured, steered, cannot be) of each row."""
    for line in TABLE.splitlines():
        if line.startswith("| ") and not line.startswith("| host"):
            host, use, *cells = (cell.strip() for cell in line.strip("|").split(" | "))
            yield re.sub(r"\[(.*)\]\(.*\)", r"\1", host), use.strip("`"), *cells


def test_every_cell_is_proved():
    """Each host of the table has its three tests, and they are there."""
    assert [host for host, *_ in rows()] == list(PROOF)
    missing = [
        (host, file, name)
        for host, proofs in PROOF.items()
        for file, name in proofs
        if not re.search(rf"^ *(async def|def|class) {name}\b", (REPO / file).read_text(encoding="utf-8"), re.MULTILINE)
    ]

    assert missing == []


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
}


@pytest.mark.parametrize("host", list(LINES))
def test_a_line_of_use_steers(host, url, monkeypatch):
    """The line as it is printed makes what steers: turned off, the same text has another vector."""
    use = next(use for name, use, *_ in rows() if name == host)
    use = use.replace("inner=...", f"inner='words', options={{'width': {WIDTH}}}")  # the dots of LanceDB
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

    use = next(use for name, use, *_ in rows() if name == "anything with spans")
    log, provider = FakeLog(), trace.TracerProvider()

    eval(use, {"provider": provider, "TTTSpanProcessor": TTTSpanProcessor, "log": log})  # noqa: S307
    attributes = {"openinference.span.kind": "RETRIEVER", "input.value": "wool"}
    attributes["retrieval.documents.0.document.content"] = "cold"
    provider.get_tracer("test").start_span("retrieve", attributes=attributes).end()
    provider.force_flush()

    assert [call.query for call in log.calls] == ["wool"]


@pytest.mark.parametrize(
    "host", [host for host, use, *_ in rows() if use.startswith("tttembed ")], ids=lambda host: host.replace(" ", "-")
)
def test_the_commands_of_the_table_exist(host):
    """Each is a command with these options."""
    _, name, *rest = next(use for of, use, *_ in rows() if of == host).split()
    command = main.get_command(click.Context(main), name)
    below = [word for word in rest if isinstance(command, click.Group) and word in command.list_commands(None)]
    options = [word for word in rest if word.startswith("--")]

    output = CliRunner().invoke(main, [name, *below, "--help"]).output

    assert options
    assert all(option in output for option in options)
