"""The table of docs/how-to/hosts.md: every line of use runs, and every cell names the test that proves it."""

import ast
import re
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from tttembed_store import follow, open_store

from tttembed_rag import Evidence, Offset, Offsets
from tttembed_rag.cli import main
from tttembed_rag.testing import FakeEmbedder, FakeLog

REPO = Path(__file__).resolve().parents[3]
TABLE = (REPO / "docs" / "how-to" / "hosts.md").read_text(encoding="utf-8").partition("\n## ")[0]
WIDTH = 16

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
        (f"{HOSTS}/test_judgments.py", "test_ratings_of_quepid_are_read"),
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
    missing = []
    for host, proofs in PROOF.items():
        for file, name in proofs:
            tree = ast.parse((REPO / file).read_text(encoding="utf-8"))
            found = {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.ClassDef)}
            missing += [(host, file, name)] * (name not in found)

    assert missing == []


@pytest.fixture
def url(tmp_path):
    """The URL of a store with a live version and a reward."""
    url = f"sqlite:///{tmp_path / 'ttt.db'}"
    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    offset = Offset("global", np.tile(np.float32([0.1, -0.1]), WIDTH // 2), 0.9, 9, evidence)
    with open_store(url) as store:
        store.registry.publish(Offsets([offset], width=WIDTH), by="test")
    return url


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
    types = pytest.importorskip("chromadb.api.types", reason="Chroma is not installed")
    from tttembed_hosts.chroma import ChromaEmbeddingFunction

    class Words(types.EmbeddingFunction):
        """Word vectors."""

        def __init__(self):
            """Nothing to set up."""

        def __call__(self, input):  # noqa: A002 - Chroma's name
            """A vector each."""
            return list(FakeEmbedder(width=WIDTH).embed_queries(input))

    return {"ChromaEmbeddingFunction": ChromaEmbeddingFunction, "function": Words()}


# By host: what the line of use needs, and the vector that what it makes gives a query.
LINES = {
    "LangChain": (langchain_model, lambda made: made.embed_query("wool")),
    "LlamaIndex": (llama_index_model, lambda made: made.get_query_embedding("wool")),
    "Haystack": (haystack_model, lambda made: made.run("wool")["embedding"]),
    "Chroma": (chroma_function, lambda made: made.embed_query(["wool"])[0]),
}


@pytest.mark.parametrize("host", list(LINES))
def test_a_line_of_use_steers(host, url):
    """The line as it is printed makes what steers: turned off, the same text has another vector."""
    use = next(use for name, use, *_ in rows() if name == host)
    prepare, vector_of = LINES[host]
    names = prepare() | {"follow": follow, "url": url}

    steered = vector_of(eval(use, names))  # noqa: S307 - the line of our own document
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TTTEMBED_OFF", "1")
        base = vector_of(eval(use, prepare() | {"follow": follow, "url": url}))  # noqa: S307 - the same

    assert np.shape(steered) == np.shape(base) == (WIDTH,)
    assert not np.allclose(steered, base)


def test_the_line_of_pydantic_ai_steers(url):
    """Its calls are async."""
    import asyncio

    use = next(use for name, use, *_ in rows() if name == "Pydantic AI")
    names = pydantic_model()
    made = eval(use, names | {"follow": follow, "url": url})  # noqa: S307 - the line of our own document

    vectors = [asyncio.run(one.embed("wool", input_type="query")).embeddings[0] for one in (made, names["model"])]

    assert vectors[0] != vectors[1]


@pytest.mark.slow
def test_the_line_of_dspy_steers(url):
    """A retriever with its corpus embedded is steered."""
    dspy = pytest.importorskip("dspy", reason="DSPy is not installed")
    from tttembed_hosts.dspy import QueryEmbedder, steer

    words = FakeEmbedder(width=WIDTH).embed_queries
    embedder = dspy.Embedder(words, caching=False)
    retriever = dspy.retrievers.Embeddings(corpus=["wool"], embedder=embedder, k=1)
    use = next(use for name, use, *_ in rows() if name == "DSPy")

    made = eval(use, {"steer": steer, "retriever": retriever, "follow": follow, "url": url})  # noqa: S307

    assert isinstance(made.embedder, QueryEmbedder)
    assert not np.allclose(made.embedder(["wool"]), words(["wool"]))


def test_the_line_of_lancedb_makes_a_function(url):
    """The registry knows the name."""
    embeddings = pytest.importorskip("lancedb.embeddings", reason="LanceDB is not installed")
    import tttembed_hosts.lancedb  # noqa: F401 - importing it registers the function

    if "words-of-the-table" not in embeddings.get_registry()._functions:

        @embeddings.register("words-of-the-table")
        class Words(embeddings.TextEmbeddingFunction):
            def ndims(self):
                return WIDTH

            def generate_embeddings(self, texts):
                return list(FakeEmbedder(width=WIDTH).embed_queries(texts))

    use = next(use for name, use, *_ in rows() if name == "LanceDB").replace("...", "'words-of-the-table'")
    made = eval(use, {"get_registry": embeddings.get_registry, "url": url})  # noqa: S307 - of our own document

    assert not np.allclose(made.compute_query_embeddings("wool")[0], made.compute_source_embeddings(["wool"])[0])


def test_the_line_of_sentence_transformers_runs():
    """A module is added to a model."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from torch.nn import Sequential
    from tttembed_hosts.sentence_transformers import TTTOffsets

    evidence = Evidence(9, 0.1, (0.05, 0.15), "published", "made up for a test")
    offsets = Offsets([Offset("global", np.ones(WIDTH, np.float32), 0.9, 9, evidence)], width=WIDTH)
    model = Sequential()
    use = next(use for name, use, *_ in rows() if name == "sentence-transformers")

    eval(use, {"model": model, "TTTOffsets": TTTOffsets, "offsets": offsets})  # noqa: S307 - of our own document

    assert isinstance(model[0], TTTOffsets)


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

    assert [one.query for one in log.calls] == ["wool"]


@pytest.mark.parametrize(
    "host", [host for host, use, *_ in rows() if use.startswith("tttembed ")], ids=lambda host: host.replace(" ", "-")
)
def test_the_commands_of_the_table_exist(host):
    """Each is a command with these options."""
    _, name, *rest = next(use for of, use, *_ in rows() if of == host).split()
    command = main.get_command(click.Context(main), name)
    below = [word for word in rest if isinstance(command, click.Group) and word in command.list_commands(None)]
    options = [word for word in rest if word.startswith("--")]

    said = CliRunner().invoke(main, [name, *below, "--help"]).output

    assert options
    assert all(option in said for option in options)
