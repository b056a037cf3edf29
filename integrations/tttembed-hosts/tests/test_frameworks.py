"""Each host in its own way: queries steered, documents bit for bit, and what it saves opened again."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.adapters.worlds import BILLING, PAGES, WIDTH, everywhere
from tests.traffic import published
from tttembed_rag import InputError, context
from tttembed_rag.testing import FakeEmbedder

REPO = Path(__file__).resolve().parents[3]
EVERYWHERE = everywhere()


def vector_of(text):
    return np.asarray(FakeEmbedder(width=WIDTH).embed_query(text), np.float32)


def distances():
    """From the steered vector of a query to each document, the nearest first."""
    query = BILLING.apply(vector_of("wool"), task="billing")
    return sorted((float(((vector_of(text) - query) ** 2).sum()), text) for text in PAGES)


def in_a_new_process(driver, folder):
    """What a fresh interpreter prints."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.adapters.{driver}", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPO).stdout.strip()


@pytest.fixture
def url(sqlite_url):
    """The URL of a store with a live version for the task billing."""
    return published(sqlite_url, BILLING)


@pytest.fixture
def of_acme(sqlite_url):
    """The URL of a store with a live version of the tenant acme."""
    return published(sqlite_url, EVERYWHERE, tenant="acme")


class TestPydanticAI:
    """`TTTEmbeddingModel` under a real `Embedder`."""

    @pytest.fixture
    def wrapped(self):
        """A model of Pydantic AI that knows the vectors of texts."""
        embeddings = pytest.importorskip("pydantic_ai.embeddings", reason="Pydantic AI is not installed")

        class Words(embeddings.TestEmbeddingModel):
            async def embed(self, inputs, *, input_type, settings=None):
                result = await super().embed(inputs, input_type=input_type, settings=settings)
                return replace(result, embeddings=[vector_of(text).tolist() for text in result.inputs])

        return Words("words")

    @pytest.fixture
    def steered(self, wrapped):
        """The same, with an offset for all queries."""
        from tttembed_hosts.pydantic_ai import TTTEmbeddingModel

        return TTTEmbeddingModel(wrapped, offsets=EVERYWHERE, task="billing")

    async def test_queries_are_steered_and_documents_are_not(self, steered):
        """The role is an argument of every call."""
        from pydantic_ai import Embedder

        embedder = Embedder(steered)

        query = await embedder.embed_query("wool")
        several = await embedder.embed_query(["wool", "tea"])
        documents = await embedder.embed_documents(PAGES)

        expected = [EVERYWHERE.apply(vector_of(text).tolist()) for text in ("wool", "tea")]
        assert query.embeddings == expected[:1]
        assert several.embeddings == expected
        assert documents.embeddings == [vector_of(text).tolist() for text in PAGES]
        assert (query.model_name, query.inputs) == ("words", ["wool"])

    async def test_the_context_of_the_caller_holds(self, wrapped):
        """Without a task of its own, the model serves that of the caller."""
        from tttembed_hosts.pydantic_ai import TTTEmbeddingModel

        model = TTTEmbeddingModel(wrapped, offsets=BILLING)
        with context(task="billing"):
            inside = await model.embed("wool", input_type="query")
        outside = await model.embed("wool", input_type="query")

        assert inside.embeddings[0] != outside.embeddings[0] == vector_of("wool").tolist()

    def test_wrapping_twice_is_refused(self, steered):
        """An offset is added once."""
        with pytest.raises(InputError, match="wrapped: expected a model without offsets"):
            type(steered)(steered, offsets=EVERYWHERE)


class TestLanceDB:
    """The registered function with a real table on disk."""

    @pytest.fixture
    def create(self):
        """Makes the function around another one."""
        embeddings = pytest.importorskip("lancedb.embeddings", reason="LanceDB is not installed")
        import tests.adapters.lancedb_driver  # noqa: F401 - importing it registers the function

        return embeddings.get_registry().get("tttembed").create

    @pytest.fixture
    def table(self, create, url, tmp_path):
        """A table whose rows were added and are searched by text."""
        import lancedb
        from lancedb.pydantic import LanceModel, Vector

        function = create(inner="words", options={"width": WIDTH}, store=url, task="billing")

        class Manual(LanceModel):
            text: str = function.SourceField()
            vector: Vector(WIDTH) = function.VectorField()

        table = lancedb.connect(tmp_path / "lance").create_table("manuals", schema=Manual)
        table.add([{"text": text} for text in PAGES])
        return table

    def test_rows_keep_base_vectors_and_searches_are_steered(self, table):
        """What was added is the inner function's, bit for bit; the nearest row is that of the steered vector."""
        rows = table.to_arrow().to_pylist()
        (nearest,) = table.search("wool").limit(1).to_list()

        (distance, text), *_ = distances()
        assert [row["vector"] for row in rows] == [vector_of(text).tolist() for text in PAGES]
        assert (nearest["text"], nearest["_distance"]) == (text, pytest.approx(distance, rel=1e-4))

    @pytest.mark.slow
    def test_another_process_opens_the_table(self, table, url, tmp_path):
        """It searches with the same offsets; the table names the store, and holds no vector of an offset."""
        distance, metadata = in_a_new_process("lancedb_driver", tmp_path / "lance").splitlines()

        assert float(distance) == pytest.approx(distances()[0][0], rel=1e-4)
        assert url in metadata
        assert len(metadata) < 600

    def test_its_tenant_is_served(self, create, of_acme):
        """That of the function, whoever asks."""
        function = create(inner="words", options={"width": WIDTH}, store=of_acme, tenant="acme")

        with context(tenant="beta"):
            vectors = function.compute_query_embeddings("wool")

        np.testing.assert_allclose(vectors, [EVERYWHERE.apply(vector_of("wool"))], atol=1e-6)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"inner": "words", "store": "postgresql://a:b@c/d"}, "store: expected no password"),
            ({"inner": "tttembed", "store": "sqlite:///a.db"}, "inner: expected a function without offsets"),
        ],
        ids=["a password in the table", "wrapped twice"],
    )
    def test_wrong_arguments_are_refused(self, create, options, message):
        with pytest.raises(InputError, match=message):
            create(options={"width": 4}, **options)


class TestChroma:
    """The registered function with a real collection on disk."""

    @pytest.fixture
    def words(self):
        """An embedding function of Chroma that knows the vectors of texts."""
        pytest.importorskip("chromadb", reason="Chroma is not installed")
        from tests.adapters.chroma_driver import Words

        return Words(WIDTH)

    @pytest.fixture
    def function(self, words, url):
        """The same, steered."""
        from tttembed_hosts.chroma import ChromaEmbeddingFunction

        return ChromaEmbeddingFunction(words, store=url, task="billing", embedder="words-v1")

    @pytest.fixture
    def collect(self, tmp_path):
        """Makes a collection on disk, filled by a function."""
        import chromadb

        def make(function):
            client = chromadb.PersistentClient(str(tmp_path / "chroma"))
            collection = client.create_collection("manuals", embedding_function=function)
            collection.add(ids=["a", "b", "c"], documents=PAGES)
            return collection

        return make

    @pytest.fixture
    def collection(self, collect, function):
        return collect(function)

    def test_documents_keep_base_vectors_and_queries_are_steered(self, collection):
        """What was added is the inner function's; distances are those of the steered vector."""
        stored = collection.get(ids=["a", "b", "c"], include=["embeddings"])["embeddings"]
        answer = collection.query(query_texts=["wool"], n_results=3)

        np.testing.assert_array_equal(stored, [vector_of(text) for text in PAGES])
        assert answer["distances"][0] == pytest.approx([distance for distance, _ in distances()], rel=1e-4)

    def test_a_collection_that_was_made_without_offsets_is_asked_by_vector(self, words, function, collect):
        """Chroma opens it with the function that made it alone; steered vectors find in it what they find elsewhere."""
        answer = collect(words).query(query_embeddings=function.embed_query(["wool"]), n_results=1)

        assert answer["distances"][0] == pytest.approx([distances()[0][0]], rel=1e-4)

    def test_its_tenant_is_served(self, words, of_acme):
        """That of the function, whoever asks."""
        from tttembed_hosts.chroma import ChromaEmbeddingFunction

        function = ChromaEmbeddingFunction(words, store=of_acme, tenant="acme")

        with context(tenant="beta"):
            vectors = function.embed_query(["wool"])

        np.testing.assert_allclose(vectors, [EVERYWHERE.apply(vector_of("wool"))], atol=1e-6)

    @pytest.mark.slow
    def test_another_process_opens_the_collection(self, collection, tmp_path):
        """It finds the function by its name, and queries with the same offsets."""
        distance = in_a_new_process("chroma_driver", tmp_path / "chroma")

        assert float(distance) == pytest.approx(distances()[0][0], rel=1e-4)

    def test_wrapping_twice_is_refused(self, function):
        """An offset is added once."""
        with pytest.raises(InputError, match="inner: expected a function without offsets"):
            type(function)(function, store="sqlite:///a")


class TestSentenceTransformers:
    """A module in a real model, saved and loaded."""

    @pytest.fixture
    def plain(self):
        """Makes a model of the library, small: static vectors of words, at unit length."""
        st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
        from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = sorted({word for text in PAGES for word in text.split()} | {"[UNK]"})
        tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))  # noqa: S106
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        weights = np.random.default_rng(0).normal(size=(len(words), WIDTH)).astype(np.float32)
        return lambda: st.SentenceTransformer(
            modules=[StaticEmbedding(tokenizer, embedding_weights=weights), Normalize()], device="cpu"
        )

    @pytest.fixture
    def with_offsets(self, plain):
        """Makes such a model with offsets, by their options."""
        from tttembed_hosts.sentence_transformers import TTTOffsets

        def make(*args, **options):
            model = plain()
            model.append(TTTOffsets(*args, **options))
            return model

        return make

    def test_queries_are_steered_and_all_else_is_not(self, plain, with_offsets):
        """`encode_query` gets the offset; `encode_document` and `encode` are the model's, bit for bit."""
        base, model = plain(), with_offsets(EVERYWHERE, task="billing")

        np.testing.assert_allclose(model.encode_query(PAGES), EVERYWHERE.apply(base.encode_query(PAGES)), atol=1e-6)
        np.testing.assert_array_equal(model.encode_document(PAGES), base.encode_document(PAGES))
        np.testing.assert_array_equal(model.encode(PAGES), base.encode(PAGES))

    def test_the_context_of_the_caller_holds(self, plain, with_offsets):
        """Without a task of its own, the module serves that of the caller; another task is bit for bit."""
        base, model = plain(), with_offsets(BILLING)

        with context(task="billing"):
            inside = model.encode_query(PAGES)

        assert not np.allclose(inside, base.encode_query(PAGES), atol=1e-3)
        np.testing.assert_array_equal(model.encode_query(PAGES), base.encode_query(PAGES))

    def test_it_travels_with_a_saved_model(self, with_offsets, tmp_path):
        """Saved and loaded without trusting the model's code; without the class, the library refuses by name."""
        import sentence_transformers
        from tttembed_hosts.sentence_transformers import load_steered

        model = with_offsets(BILLING, task="billing")
        model.save_pretrained(str(tmp_path / "steered"))

        loaded = load_steered(str(tmp_path / "steered"), device="cpu")

        np.testing.assert_array_equal(loaded.encode_query(PAGES), model.encode_query(PAGES))
        np.testing.assert_array_equal(loaded.encode_document(PAGES), model.encode_document(PAGES))
        with pytest.raises(ValueError, match="trust_remote_code"):
            sentence_transformers.SentenceTransformer(str(tmp_path / "steered"), device="cpu")

    def test_half_precision_stays(self, plain):
        """The vector comes back in the precision of the model."""
        import torch
        from tttembed_hosts.sentence_transformers import TTTOffsets

        base = torch.nn.functional.normalize(torch.ones(2, WIDTH), dim=1).to(torch.bfloat16)

        steered = TTTOffsets(EVERYWHERE).forward({"sentence_embedding": base}, task="query")["sentence_embedding"]

        assert steered.dtype == torch.bfloat16
        assert not torch.equal(steered, base)
